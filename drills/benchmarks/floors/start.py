"""The floor of a start: connect with kazoo, read one znode, exec. With TEMPLATE also: render a file before.

python start.py HOSTS SERVICE WORD...                             WORD... is the daemon
python start.py HOSTS SERVICE --template DEST NAME,... WORD...    of the variables NAME,...
"""

from __future__ import annotations

import os
import sys

from kazoo.client import KazooClient

hosts, service, *daemon = sys.argv[1:]
client = KazooClient(hosts)
client.start()
client.get(service)
if daemon[0] == "--template":
    import jinja2

    _, dest, names, *daemon = daemon
    replies = {name: client.get_async(f"{service}/variables/{name}") for name in names.split(",")}
    template = client.get(f"{service}/files/config")[0].decode()
    values = {name: reply.get()[0].decode() for name, reply in replies.items()}
    with open(dest, "w") as file:
        file.write(jinja2.Template(template).render(values))
client.stop()
os.execv(daemon[0], daemon)
