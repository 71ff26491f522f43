"""A connection that refuses everything: no task may reach a host, this machine included."""

from __future__ import annotations

from ansible.errors import AnsibleError
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
    name: refuse
    short_description: refuses to run, put or fetch anything
    description:
        - Every module that would touch a host is recorded. One that is not fails here.
    author: kolla_mesos_start
    version_added: historical
"""
WHY = "the import does not record this module, so it does not run it"


class Connection(ConnectionBase):
    """Never connects."""

    transport = "refuse"
    has_pipelining = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Actions such as `template` would make a temporary directory on the host.
        self._shell.tmpdir = "/nonexistent"

    def _connect(self):
        return self

    def exec_command(self, cmd, in_data=None, sudoable=True):
        """Refuse."""
        raise AnsibleError(WHY)

    def put_file(self, in_path, out_path):
        """Refuse."""
        raise AnsibleError(WHY)

    def fetch_file(self, in_path, out_path):
        """Refuse."""
        raise AnsibleError(WHY)

    def close(self):
        """Nothing is open."""
