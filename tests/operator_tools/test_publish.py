"""The command line of the operator's tool."""

from __future__ import annotations

import pytest

from kolla_mesos_start.errors import BadUsage
from kolla_mesos_start.operator.publish import arguments, settings_of


@pytest.mark.parametrize(
    "line", ["", "DIR", "--deployment x", "DIR --deployment a/b", "DIR --deployment x --prnue"]
)
def test_a_wrong_command_line_is_bad_usage(line: str) -> None:
    """It ends with 64, as the agent's does, and not with argparse's 2."""
    with pytest.raises(BadUsage):
        arguments(line.split())


def test_options_win_over_the_environment_and_variables_of_containers_are_ignored() -> None:
    """The publisher runs outside containers: a wrong KOLLA_PORTS does not matter there."""
    options = arguments(["DIR", "--deployment", "site", "--hosts", "zoo:2181/x", "--prefix", "/p"])
    environ = {
        "KOLLA_ZK_HOSTS": "other",
        "KOLLA_SYSTEM_PREFIX": "/other",
        "KOLLA_PORTS": "none",
        "KOLLA_ZK_CONNECT_TIMEOUT": "7",
    }
    found = settings_of(options, environ)
    assert (found.hosts, found.chroot, found.prefix, found.deployment_id) == ("zoo:2181", "/x", "/p", "site")
    assert found.connect_timeout == 7
