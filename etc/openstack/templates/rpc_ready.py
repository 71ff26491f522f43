"""rpc_ready.py TOPIC: status 0 once this host's service listens to its queue, which it does last of all.

It waits for that for a while, so that a start needs only one of these processes.
"""

import sys
import time

import amqp

BROKERS = "{% for each in controllers.split() %}{{ each.split('=')[1] }}:{{ rabbitmq_port }}{{ ',' if not loop.last }}{% endfor %}"
WAIT = 12  # seconds; the check has 15

queue = f"{sys.argv[1]}.{{ kolla_hostname }}"
deadline = time.monotonic() + WAIT
with amqp.Connection(
    BROKERS.split(",")[0], "openstack", "{{ rabbitmq_password }}", connect_timeout=WAIT
) as broker:
    while time.monotonic() < deadline:
        try:
            if broker.channel().queue_declare(queue, passive=True).consumer_count:
                sys.exit(0)
        except amqp.NotFound:
            pass
        time.sleep(0.1)
sys.exit(f"nobody listens to {queue}")
