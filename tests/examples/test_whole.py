"""A whole OpenStack as the quickstart writes it, with one controller and with three."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.up.deployment import plan
from kolla_mesos_start.ctl.validate.rules import validate
from tests import CHECKOUT
from tests.examples import whole

ON_EACH = ("infra/mariadb", "infra/rabbitmq", "infra/memcached", "infra/haproxy", "openstack/nova/nova-api")


@pytest.mark.parametrize("controllers", [1, 3])
def test_it_is_valid_with_its_controllers(tmp_path: Path, controllers: int) -> None:
    """The definitions' numbers follow from the hosts of launch.yml and the variable `controllers`."""
    site = tmp_path / "site"
    whole.write(site, Path("/packaged"), tmp_path / "volumes", controllers)
    hosts = list(whole.addresses(controllers))
    launch = site / "launch.yml"
    launch.write_text(launch.read_text().replace("control: [ctl-1]", f"control: [{', '.join(hosts)}]"))

    deployment = directory.read(site)
    given = {**yaml.safe_load((site / whole.VALUES).read_text()), **whole.secrets()}
    contents = {name: str(value).encode() for name, value in given.items()}
    deployment = deployment._replace(variables={**deployment.variables, **contents})

    assert not validate(deployment, deployment_id="cloud", given={})
    planned = plan(deployment, [], [])
    assert {name: [host for each, host in planned if each == name] for name in ON_EACH} == dict.fromkeys(
        ON_EACH, hosts
    )


@pytest.mark.parametrize("script", ["position.sh", "ready.sh", "start.sh"])
def test_its_database_has_the_scripts_of_the_galera_example(script: str) -> None:
    """A directory must not have links out of it, and copies must not differ: the drills test only one."""
    below = f"services/infra/mariadb/files/{script}"
    assert (CHECKOUT / "etc/openstack" / below).read_text() == (
        CHECKOUT / "etc/examples/galera" / below
    ).read_text()
