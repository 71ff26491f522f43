"""rpc_ready.py TOPIC: exit with status 0 once this host's service listens to its queue, the last step of its
start.

It waits for a while, so that one process is enough for a start. Each broker knows all queues of the cluster.
"""

import random
import sys
import time

import amqp

CONTROLLERS = "{{ controllers }}"
WAIT = 12  # seconds; the check has 15

queue = f"{sys.argv[1]}.{{ kolla_hostname }}"
deadline = time.monotonic() + WAIT
reason = f"nobody listens to {queue}"
brokers = [each.partition("=")[2] for each in CONTROLLERS.split()]
random.shuffle(brokers)
for address in brokers:
    try:
        with amqp.Connection(
            f"{address}:{{ rabbitmq_port }}", "openstack", "{{ rabbitmq_password }}", connect_timeout=3
        ) as broker:
            while time.monotonic() < deadline:
                try:
                    if broker.channel().queue_declare(queue, passive=True).consumer_count:
                        sys.exit(0)
                except amqp.NotFound:
                    pass
                time.sleep(0.1)
            break
    except OSError as error:
        reason = f"{address}: {error}"
sys.exit(reason)
