"""Manifests for Marathon: what its apps say, and in what those that it has differ."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory.container_settings import Port
from kolla_mesos_start.ctl.manifests import marathon
from kolla_mesos_start.ctl.manifests.model import Model, Workload, names_of
from tests.ctl.manifests.test_manifests import DAEMON, LAUNCH, model, site
from tests.support.marathon import completed, wrong

APP = dict[str, Any]


def apps(root: Path) -> dict[str, APP]:
    """By the services' names."""
    found = model(root)
    return {each.service: app for each, app in zip(found.workloads, marathon.apps(found))}


def parameters(app: APP) -> list[str]:
    """As Mesos writes them for Docker."""
    return [f"--{each['key']}={each['value']}" for each in app["container"]["docker"]["parameters"]]


def volumes(app: APP) -> list[str]:
    return ["{hostPath}:{containerPath}:{mode}".format(**each) for each in app["container"]["volumes"]]


def changed(root: Path, **fields: Any) -> APP:
    """The app of the first workload, if it were like that; `settings` are those of launch.yml."""
    found = model(root)
    workload = found.workloads[0]
    settings = workload.settings._replace(**fields.pop("settings", {}))
    return marathon.apps(found._replace(workloads=[workload._replace(settings=settings, **fields)]))[0]


# -- what stands in an app ---------------------------------------------------------------------------


def test_the_ports_of_a_host_are_its_own(tmp_path: Path) -> None:
    """On its network they are claimed from Mesos, and there is none without a name."""
    app = changed(site(tmp_path), ports=[Port(8080)])
    assert app["networks"] == [{"mode": "host"}]
    assert app["args"] == ["kolla_mesos_start"]
    assert (app["portDefinitions"], app["requirePorts"]) == (
        [{"name": "port-8080", "port": 8080, "protocol": "tcp"}],
        True,
    )
    assert "portMappings" not in app["container"]
    assert (apps(site(tmp_path))["a/agent"]["portDefinitions"], parameters(app)[:3]) == (
        [],
        ["--user=0", "--cap-drop=ALL", "--cap-add=NET_ADMIN"],
    )


def test_an_address_that_launch_yml_says_is_kept(tmp_path: Path) -> None:
    """Marathon's word for the host is a default."""
    root, own = site(tmp_path), {"ports": [Port(8080)]}
    assert changed(root, settings={"network": "own"}, **own)["args"] == [
        "sh",
        "-c",
        "KOLLA_ADDRESS=$HOST exec kolla_mesos_start",
    ]
    kept = changed(root, settings={"network": "own"}, **own, env={"KOLLA_ADDRESS": "web.example.org"})
    assert (kept["args"], kept["env"]["KOLLA_ADDRESS"]) == (["kolla_mesos_start"], "web.example.org")


# -- where, and how many -----------------------------------------------------------------------------


def test_two_services_never_have_the_same_directory_of_a_host(tmp_path: Path) -> None:
    """Nor does one have that of what all share, whatever it is called."""
    launch = LAUNCH.replace("  a/web: {", "  a/web: {volumes: {/var/lib/db: 1Gi}, ").replace(
        "  db: {", "  b/web: {volumes: {/var/lib/db: 1Gi}}\n  shared: {volumes: {/keys: 1Gi}}\n  db: {"
    )
    more = dict.fromkeys(
        ("services__b__web__definition_yml", "services__shared__definition_yml"), DAEMON % ("", 1)
    )
    found = apps(site(tmp_path, launch, **more))
    paths = [
        volume["hostPath"]
        for app in found.values()
        for volume in app["container"]["volumes"]
        if volume["mode"] == "RW"
    ]
    assert len(set(paths)) == len(paths) == 5


def test_containers_with_data_share_no_host(tmp_path: Path) -> None:
    """The directory there is of one of them."""
    root = site(tmp_path, LAUNCH.replace("[ctl-1, ctl-2]", "[ctl-1, ctl-2, ctl-3]"))
    app = changed(root, settings={"volumes": model(root).workloads[3].volumes, "replicas": None})
    assert app["constraints"] == [["hostname", "LIKE", "cmp-1|cmp-2"], ["hostname", "UNIQUE"]]
    assert changed(root, hosts=(), settings={"replicas": None})["constraints"] == [["hostname", "GROUP_BY"]]


def test_where_anything_may_run_anywhere_nothing_is_said(tmp_path: Path) -> None:
    """An empty list would be one more thing to read."""
    assert "constraints" not in changed(site(tmp_path), hosts=(), settings={"replicas": None}, replicas=1)


def test_the_name_of_a_host_is_no_pattern(tmp_path: Path) -> None:
    """Marathon takes it for one, of the whole name."""
    app = changed(site(tmp_path), hosts=["cmp-1.example.org", "cmp(2)"])
    assert app["constraints"][0] == ["hostname", "LIKE", r"cmp-1\.example\.org|cmp\(2\)"]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 49, 100, 101, 1000])
def test_the_old_ones_end_first_where_there_is_no_room_for_both(count: int, tmp_path: Path) -> None:
    """One after the other; Marathon keeps as many as this, rounded up."""
    hosts = [f"h{number}" for number in range(count)]
    strategy = changed(site(tmp_path), hosts=hosts)["upgradeStrategy"]
    assert strategy["maximumOverCapacity"] == 0
    assert math.ceil(count * strategy["minimumHealthCapacity"]) == count - 1


def test_a_service_without_anything_of_its_own_is_upgraded_before_it_ends(tmp_path: Path) -> None:
    """All new ones are healthy first."""
    app = changed(site(tmp_path), settings={"network": "own", "replicas": None})
    assert app["upgradeStrategy"] == {"maximumOverCapacity": 1, "minimumHealthCapacity": 1}


# -- ids ---------------------------------------------------------------------------------------------

IDS: dict[tuple[str, ...], list[str]] = {
    ("nova/nova-api", "nova/nova_hosts"): ["/site/nova/nova-api", "/site/nova/nova-hosts"],
    ("A/look_up", "b/look-up"): ["/site/a/look-up-??????", "/site/b/look-up-??????"],
    # An app can't be called as a group is, nor as what follows an app's id in a URL.
    ("a", "a/b"): ["/site/a-??????", "/site/a/b"],
    ("x/tasks", "Ä/versions"): ["/site/x/tasks-??????", "/site/s/versions-??????"],
    ("x.y/9.1", "u/" + 80 * "y"): ["/site/x-y/s-9-1", "/site/u/" + 45 * "y" + "-??????"],
}


@pytest.mark.parametrize("services", IDS)
def test_an_id_is_one_that_marathon_takes_and_nobody_elses(services: tuple[str, ...], tmp_path: Path) -> None:
    """And KOLLA_APP_ID is the real one."""
    first = model(site(tmp_path)).workloads[0]
    names = names_of(services)
    workloads = [named(first, service, names[service]) for service in services]
    made = marathon.apps(Model("site", workloads))
    for app, expected in zip(made, IDS[services]):
        assert re.fullmatch(expected.replace("?", "[0-9a-f]"), app["id"])
        assert wrong(app) == []
    assert len({app["id"] for app in made}) == len(services)
    assert [app["env"]["KOLLA_APP_ID"] for app in made] == [f"/site/{service}" for service in services]


def test_the_group_of_a_deployment_is_nobody_elses() -> None:
    """Marathon has no capital letters; --post names what is in a group and not of the deployment."""
    assert marathon.group("site") == "/site"
    assert re.fullmatch("/site-[0-9a-f]{6}", marathon.group("Site"))


def named(workload: Workload, service: str, name: str) -> Workload:
    return workload._replace(service=service, name=name, env={"KOLLA_APP_ID": f"/site/{service}"})


# -- the documents -----------------------------------------------------------------------------------


def test_standard_output_is_one_list_for_curl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And --output writes its apps, a file each."""
    root, place = site(tmp_path / "site"), tmp_path / "made"
    assert cli.run(["manifests", "marathon", str(root)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert cli.run(["manifests", "marathon", str(root), "--output", str(place)]) == 0
    written = [json.loads(path.read_text()) for path in sorted(place.iterdir())]
    assert [path.name for path in sorted(place.iterdir())] == [
        *("agent.json", "db.json", "look-up.json", "make.json", "web.json"),
    ]
    assert sorted(printed, key=lambda app: str(app["id"].rpartition("/")[2])) == written
    assert printed == list(apps(root).values())


def test_what_the_hosts_must_have_is_said(tmp_path: Path) -> None:
    """Secrets, directories, files and ports; and a limit that nobody has chosen."""
    root = site(tmp_path)
    (root / "services/db/files/key").unlink()
    everywhere, can_read = "cmp-1, cmp-2, ctl-1, ctl-2", "which the containers' users can read"
    assert marathon.manifests(model(root)).notes == [
        f"on {everywhere}: make /etc/kolla-secrets/passwords with a file for each variable"
        f" (KOLLA_VARIABLES_DIR), {can_read}",
        f"on {everywhere}: make /etc/kolla-secrets/zk/auth with lines scheme:credential"
        f" (KOLLA_ZK_AUTH_FILE), {can_read}",
        "on ctl-1: mount what is shared at /var/lib/kolla/site/shared/keys, for its users to write",
        "on ctl-1: put conf of db at /etc/kolla-files/site/db/etc/files/conf.d",
        "on ctl-1: put key of db, which DIR does not have, at /etc/kolla-files/site/db/etc/files/k",
        "on ctl-1: make /var/lib/kolla/site/db/var/lib/db, for the user of db to write",
        "have the Mesos agents offer the ports 8080: by default they offer 31000 to 32000",
        "without `memory` in launch.yml, 128 MiB is the limit of a/agent, a/look_up, db, make",
    ]


def test_data_that_a_container_would_lose_are_said(tmp_path: Path) -> None:
    """Without a placement Marathon takes any host."""
    notes = marathon.manifests(model(site(tmp_path, LAUNCH.replace("placement: control, ", "")))).notes
    assert (
        "give db a `placement`: its data stay on the host where it has started first" in notes
        and "on each Mesos agent: make /var/lib/kolla/site/db/var/lib/db, for the user of db to write"
        in notes
    )


# -- what Marathon has -------------------------------------------------------------------------------


def test_what_marathon_adds_is_no_difference(tmp_path: Path) -> None:
    """Defaults, counts, and what others have set of what nothing here says."""
    for app in apps(site(tmp_path)).values():
        found = {**completed(app), "labels": {"HAPROXY_GROUP": "external"}, "tasksRunning": 1}
        found["constraints"] = found["constraints"][::-1]
        assert marathon.differences(app, found) == []


DIFFERENT = {
    "another image": lambda app: app["container"]["docker"].update(image="other"),
    "one more parameter": lambda app: app["container"]["docker"]["parameters"].append(
        {"key": "privileged", "value": "true"}
    ),
    "one volume less": lambda app: app["container"]["volumes"].pop(),
    "one more variable": lambda app: app["env"].update(MORE="1"),
    "another count": lambda app: app.update(instances=3),
    "no limit of a host": lambda app: app.update(constraints=[]),
    "another health check": lambda app: app["healthChecks"][0].update(intervalSeconds=1),
    "other arguments": lambda app: app["args"].append("check"),
    "more at an upgrade": lambda app: app["upgradeStrategy"].update(maximumOverCapacity=1.0),
    "no container": lambda app: app.update(container=None),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_every_other_difference_is_one(name: str, tmp_path: Path) -> None:
    """By the field's name, never by its value."""
    app = apps(site(tmp_path))["a/web"]
    found = completed(app)
    DIFFERENT[name](found)
    (field,) = marathon.differences(app, found)
    assert app[field] != found[field]


def test_a_constraint_that_is_no_longer_wanted_is_a_difference(tmp_path: Path) -> None:
    """The app says nothing of it, and means that there is none."""
    app = changed(site(tmp_path), hosts=(), settings={"replicas": None}, replicas=1)
    assert marathon.differences(app, {**completed(app), "constraints": [["hostname", "UNIQUE"]]}) == [
        "constraints"
    ]


def test_what_others_have_set_stays(tmp_path: Path) -> None:
    """Labels for a load balancer, for example; not what Marathon tells of the app."""
    app = apps(site(tmp_path))["a/web"]
    found = {**completed(app), "labels": {"HAPROXY_GROUP": "external"}, "tasksRunning": 1, "instances": 7}
    merged = marathon.merged(app, found)
    assert (merged["labels"], merged["instances"]) == ({"HAPROXY_GROUP": "external"}, 2)
    assert "tasksRunning" not in merged and "version" not in merged
