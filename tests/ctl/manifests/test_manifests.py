"""Manifests: which containers a deployment has, and how Kubernetes is told of them."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kolla_mesos_start import errors
from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.container_settings import REFERENCE
from kolla_mesos_start.ctl.manifests import compose, kubernetes, marathon, quadlet
from kolla_mesos_start.ctl.manifests.model import FINAL, UNAVAILABLE, Model, Site, build, names_of
from tests.support.marathon import wrong
from tests.support.publishing import write_files

LAUNCH = """\
tag: "2026.1"
zookeeper: zk-1:2181
hosts: {control: [ctl-1, ctl-2], compute: [cmp-1, cmp-2]}
defaults: {placement: control, image: "site/{{ role }}:{{ tag }}", variables: passwords, credential: zk}
services:
  a/agent: {placement: compute, replicas: each, network: host, capabilities: [NET_ADMIN], user: 0}
  a/look_up: {placement: compute, replicas: each}
  a/web: {ports: ["{{ port }}"], cpu: 0.5, memory: 1Gi, user: 42, read_only: yes, env: {A: "$$(A){{ port }}"}}
  db: {volumes: {/var/lib/db: 10Gi, /keys: {shared: keys}, /run/db: temporary}}
"""
DAEMON = "service: {daemon: {command: sleep 9, ready: {alive: 0}%s}, instances: %d}\n"
TASK = "commands: {look: {command: 'true', run_once: true, generation: '{{ release }}', stop_grace: 30}}\n"
FILES = (
    "{conf: {dest: /etc/db/conf, mounted: /etc/files/conf.d}, key: {dest: /etc/db/k, mounted: /etc/files/k}}"
)


def site(root: Path, launch: str = LAUNCH, **more: str | bytes) -> Path:
    """A directory with a service of each kind, and two tasks."""
    files: dict[str, str | bytes] = {
        "launch_yml": launch,
        "variables_yml": "release: 2026.1\n",
        "services__a__agent__definition_yml": DAEMON % ("", 1),
        "services__a__look_up__definition_yml": TASK,
        "services__a__web__definition_yml": DAEMON % (", stop_grace: 70, on_change: {restart: true}", 2),
        "services__a__web__variables_yml": "port: 8080\n",
        "services__db__definition_yml": DAEMON % (f", files: {FILES}", 1),
        "services__db__files__conf": "port = 1\n",
        "services__db__files__key": b"\xff",
        "services__make__definition_yml": TASK,
        **more,
    }
    return write_files(root, **files)


def model(root: Path, prefix: str | None = None) -> Model:
    found, wrong = build(directory.read(root), Site("site", prefix))
    assert not wrong
    return found


def made(root: Path) -> dict[str, list[dict[str, Any]]]:
    """The documents of each file."""
    files = kubernetes.manifests(model(root)).files
    return {name: list(yaml.safe_load_all(text)) for name, text in files.items() if name.endswith(".yml")}


def pod(document: Mapping[str, Any]) -> Any:
    return document["spec"]["template"]["spec"]


# -- the model ---------------------------------------------------------------------------------------


def test_a_workload_has_the_prefix_of_the_command_line(tmp_path: Path) -> None:
    """`golden` has all that definition and launch.yml say."""
    assert {each.env["KOLLA_SYSTEM_PREFIX"] for each in model(site(tmp_path), "/own").workloads} == {"/own"}


WRONG = {
    "no ZooKeeper": ("zookeeper: zk-1:2181\n", "", "launch.yml: zookeeper: is required"),
    "no image": (', image: "site/{{ role }}:{{ tag }}"', "", "image: is required: make has none"),
    "an unknown variable": (
        '{{ port }}"], cpu',
        '{{ prot }}"], cpu',
        "launch.yml:8: ports: a/web has no variable 'prot' (did you mean 'port'?)",
    ),
    "no tag": ('tag: "2026.1"\n', "", "has no variable 'tag', nor has launch.yml a `tag`"),
    "capitals in an image": (
        "site/{{",
        "site/X{{",
        "launch.yml:4: image: expected registry/name:tag, without",
    ),
    "no tag of an image": (
        "}:{{ tag }}",
        "}:{{ tag }}/{{ tag }}",
        "launch.yml:4: image: expected registry/name",
    ),
    "bad syntax": ("site/{{ role }}", "site/{{ role }", "launch.yml:4: image: "),
    "a port twice": (
        '["{{ port }}"]',
        '[8080, "{{ port }}"]',
        "launch.yml:8: ports: 8080 is here twice, for a/web",
    ),
    "no port": (
        '["{{ port }}"]',
        '["{{ release }}"]',
        "launch.yml:8: ports: expected a port (80, or 53/udp), but {{ release }} is",
    ),
    "a port twice, once with its protocol": (
        '["{{ port }}"]',
        '[8080/tcp, "{{ port }}"]',
        "launch.yml:8: ports: 8080 is here twice, for a/web",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_missing_or_wrong_is_named(name: str, tmp_path: Path) -> None:
    """With file and line, where it stands in a file."""
    right, wrong, expected = WRONG[name]
    assert LAUNCH.count(right) == 1
    deployment = directory.read(site(tmp_path, LAUNCH.replace(right, wrong)))
    found = [f"{each.place}: {each.message}" for each in build(deployment, Site("site"))[1]]
    assert any(expected in each for each in found), found
    assert len(found) == len(set(found)) <= 5, "each has its own, for each service at most one"


def test_of_a_wrong_template_only_the_cause_is_named(tmp_path: Path) -> None:
    """Not what follows from it."""
    for number, template in enumerate(("{{ prot }}", "{{ port }")):
        launch = LAUNCH.replace('ports: ["{{ port }}"]', f'ports: ["{template}"]')
        deployment = directory.read(site(tmp_path / str(number), launch))
        (found,) = build(deployment, Site("site"))[1]
        assert found.message.startswith(("ports: a/web has no variable 'prot'", "ports: {{ port } line 1: "))


@pytest.mark.parametrize("network", ["host", "own"])
def test_every_format_knows_ports_of_udp(network: str, tmp_path: Path) -> None:
    """Also the same number as one of TCP; what a container registers are numbers."""
    ports = f'network: {network}, ports: [53, 53/udp, "{{{{ port }}}}/udp"]'
    found = model(site(tmp_path, LAUNCH.replace('ports: ["{{ port }}"]', ports)))
    web = next(each for each in found.workloads if each.service == "a/web")
    only = Model("site", [web])
    assert web.env["KOLLA_PORTS"] == "53,8080"

    service, *_, controller = yaml.safe_load_all(kubernetes.manifests(only).files["web.yml"])
    of_service = [
        (each["name"], each.get("protocol"), each["targetPort"]) for each in service["spec"]["ports"]
    ]
    assert of_service == [("port-53", None, 53), ("port-53-udp", "UDP", 53), ("port-8080-udp", "UDP", 8080)]
    of_pod = [
        (each["name"], each.get("protocol"), each["containerPort"])
        for each in pod(controller)["containers"][0]["ports"]
    ]
    assert of_pod == of_service

    (app,) = marathon.apps(only)
    mapped = app["portDefinitions"] if network == "host" else app["container"]["portMappings"]
    assert [(each["name"], each["protocol"]) for each in mapped] == [
        ("port-53", "udp,tcp"),  # Mesos offers a port for both.
        ("port-8080", "udp"),
    ]
    assert not wrong(app)

    published = ["53:53", "53:53/udp", "8080:8080/udp"] if network == "own" else []
    composed = yaml.safe_load(next(iter(compose.manifests(only).files.values())))["services"]["web"]
    assert composed.get("ports", []) == published
    (unit,) = {
        text
        for name, text in quadlet.manifests(only).files.items()
        if name.endswith("ctl-1/site_web.container")
    }
    assert re.findall("PublishPort=(.*)", unit) == published


@pytest.mark.parametrize("launch", ["", "# nothing yet\n", "hosts: {control: [ctl-1]}\n", None])
def test_a_launch_yml_that_says_nothing_is_one_mistake(launch: str | None, tmp_path: Path) -> None:
    """However many services want an image."""
    root = site(tmp_path, launch or "")
    if launch is None:
        (root / "launch.yml").unlink()
    (found,) = build(directory.read(root), Site("site"))[1]
    assert f"{found.place}: {found.message}".startswith(
        "launch.yml: is missing or empty: `zookeeper` and each"
    )


def test_an_image_without_a_tag_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be another one on each host; a digest is as good as a tag."""
    digest = "registry:5000/x@sha256:" + "a" * 64
    for launch, warned in ((":{{ tag }}", False), ("", True), ("@sha256:" + "a" * 64, False)):
        root = site(tmp_path / f"site{launch[:2]}", LAUNCH.replace(":{{ tag }}", launch))
        assert cli.run(["manifests", "compose", str(root), "--output", str(tmp_path / "made")]) == 0
        told = capsys.readouterr().err
        assert (
            "launch.yml:4: warning: image: site/web of a/web has no tag: each host takes" in told
        ) is warned
    assert REFERENCE.fullmatch(digest)


# -- Kubernetes --------------------------------------------------------------------------------------


def test_volumes_whose_paths_are_alike_have_names_of_their_own(tmp_path: Path) -> None:
    """A name is less than a path."""
    launch = LAUNCH.replace("/keys: {shared: keys}", "/run-db: {shared: keys}, /var/lib-db: {host: /x}")
    (_, _, stateful) = made(site(tmp_path, launch))["db.yml"]
    claims = [each["metadata"]["name"] for each in stateful["spec"]["volumeClaimTemplates"]]
    names = [*claims, *(each["name"] for each in pod(stateful)["volumes"])]
    assert len(set(names)) == len(names) == 7
    (container,) = pod(stateful)["containers"]
    assert {each["name"] for each in container["volumeMounts"]} == set(names)


def test_no_status_of_the_agent_is_forgotten() -> None:
    """What is not worth retrying is final, and nothing else is; a signal's is its own."""
    causes = [each for each in subclasses(errors.AgentError) if ".ctl." not in each.__module__]
    causes.remove(errors.Stopped)
    assert set(FINAL) == {each.status for each in causes if not each.retriable}
    assert {*UNAVAILABLE, 1} == {each.status for each in causes if each.retriable}


def subclasses(cause: type[errors.AgentError]) -> Iterator[type[errors.AgentError]]:
    """The class itself, and all below it."""
    yield cause
    for each in cause.__subclasses__():
        yield from subclasses(each)


def test_a_job_that_has_changed_has_another_name(tmp_path: Path) -> None:
    """Kubernetes lets nobody change one that is there; what has not changed is the same object."""
    (before,) = made(site(tmp_path))["make.yml"]
    (same,) = made(site(tmp_path))["make.yml"]
    (upgraded,) = made(site(tmp_path, variables_yml="release: 2026.2\n"))["make.yml"]
    (other,) = made(site(tmp_path, LAUNCH.replace("passwords", "words")))["make.yml"]
    names = [each["metadata"]["name"] for each in (before, same, upgraded, other)]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert names[2].startswith("make-2026-2-2026-1-")


NAMES = {
    ("nova/nova-api", "nova_hosts"): ["nova-api", "nova-hosts"],
    ("a/look_up", "b/look-up"): ["look-up-123456", "look-up-654321"],
    # Of a thousand services of the same role, two often have the same short digest.
    ("cell-2523/api", "cell-3307/api"): ["api-123456", "api-654321"],
    ("9pfs", "Ä", "x." + 80 * "y"): ["s-9pfs", "s", "x-" + 43 * "y" + "-123456"],
}


def test_an_upgrade_of_one_service_changes_no_other(tmp_path: Path) -> None:
    """Its tag is its own; one `tag` for all is also in the others' KOLLA_GENERATION."""
    before = kubernetes.manifests(model(site(tmp_path / "before"))).files
    launch = LAUNCH.replace("a/web: {", 'a/web: {tag: "2026.2", ')
    after = kubernetes.manifests(model(site(tmp_path / "after", launch))).files
    assert {name for name in before if before[name] != after[name]} == {"web.yml"}
    *_, web = yaml.safe_load_all(after["web.yml"])
    (container,) = pod(web)["containers"]
    assert container["image"] == "site/web:2026.2"
    assert {"name": "KOLLA_GENERATION", "value": "2026.2"} in container["env"]


def test_a_member_on_the_network_of_its_host_has_the_hosts_name(tmp_path: Path) -> None:
    """Its addresses are the host's. Otherwise its name is the pod's, which its data follow."""
    for network, names in (("host", []), ("own", ["metadata.name"])):
        launch = LAUNCH.replace("db: {", f"db: {{network: {network}, ")
        *_, db = made(site(tmp_path / network, launch))["db.yml"]
        env = pod(db)["containers"][0]["env"]
        given = [each["valueFrom"]["fieldRef"] for each in env if each["name"] == "KOLLA_HOSTNAME"]
        assert [each["fieldPath"] for each in given] == names


@pytest.mark.parametrize(
    ("more", "expected", "is_noted"),
    [
        ("", "HostToContainer", False),
        ("capabilities: [SYS_ADMIN], ", "HostToContainer", True),
        ("privileged: true, ", "Bidirectional", False),
    ],
)
def test_only_a_privileged_container_shares_its_mounts(
    tmp_path: Path, more: str, expected: str, is_noted: bool
) -> None:
    """Kubernetes refuses other pods; `manifests` says what those lack that can mount at all."""
    launch = LAUNCH.replace(
        "db: {volumes: {", f"db: {{{more}volumes: {{/run/n: {{host: /run/n, propagation: shared}}, "
    )
    *_, db = made(site(tmp_path, launch))["db.yml"]
    mounts = {each["mountPath"]: each for each in pod(db)["containers"][0]["volumeMounts"]}
    assert mounts["/run/n"]["mountPropagation"] == expected
    note = "without `privileged: true`, mounts in /run/n stay those of a pod, in: db"
    assert (note in kubernetes.manifests(model(tmp_path)).notes) == is_noted


@pytest.mark.parametrize(("user", "expected"), [("", None), ("user: 0, ", False), ("user: 42, ", True)])
def test_a_node_checks_only_the_number_of_a_user(tmp_path: Path, user: str, expected: bool | None) -> None:
    *_, db = made(site(tmp_path, LAUNCH.replace("db: {", f"db: {{{user}")))["db.yml"]
    assert pod(db)["securityContext"].get("runAsNonRoot") == expected


def test_a_long_deployments_label_is_one_that_kubernetes_takes(tmp_path: Path) -> None:
    """At most 63 characters."""
    found, _ = build(directory.read(site(tmp_path)), Site("x" * 70))
    (text,) = {text for name, text in kubernetes.manifests(found).files.items() if name == "web.yml"}
    for document in yaml.safe_load_all(text):
        assert len(document["metadata"]["labels"]["app.kubernetes.io/part-of"]) <= 63


def test_a_secret_that_is_both_is_said_twice(tmp_path: Path) -> None:
    """Its key `auth`, and that all are variables."""
    notes = kubernetes.manifests(
        model(site(tmp_path, LAUNCH.replace("credential: zk", "credential: passwords")))
    ).notes
    assert len([note for note in notes if note.startswith("create the Secret passwords: ")]) == 2


@pytest.mark.parametrize("services", NAMES)
def test_a_name_is_one_that_kubernetes_takes_and_nobody_elses(services: tuple[str, ...]) -> None:
    """A digest is in it only where it has to be."""
    found = names_of(services)
    for name, expected in zip(found.values(), NAMES[services]):
        is_plain = name == expected
        assert is_plain or name.rpartition("-")[0] == expected.rpartition("-")[0]
        assert len(name) <= 52
    assert len(set(found.values())) == len(services)


def test_what_only_the_operator_can_make_is_said(tmp_path: Path) -> None:
    """Secrets, shared volumes, files that the directory does not have."""
    launch = LAUNCH.replace("network: host", "volumes: {/var/lib/agent: 1Gi}")
    root = site(tmp_path, launch)
    (root / "services/db/files/key").unlink()
    assert kubernetes.manifests(model(root)).notes == [
        "create the Secret passwords: its keys are variables (KOLLA_VARIABLES_DIR)",
        "create the Secret zk: its key 'auth' has lines scheme:credential (KOLLA_ZK_AUTH_FILE)",
        "create the PersistentVolumeClaim keys, which several pods can write",
        "add files to ConfigMaps that DIR does not have: key of db",
        "only a namespace with Pod Security `privileged` has the node's network or directories: a/agent",
        "without `user` in launch.yml, the image's own USER is used, which a namespace with Pod Security"
        " `restricted` refuses: a/look_up, db, make",
    ]


def test_what_a_pod_can_not_have_is_said(tmp_path: Path) -> None:
    """The stop signal needs Kubernetes 1.33."""
    more = "cgroup: host, limits: {nofile: 1}, security_options: [label=disable], devices: [/dev/tun]"
    launch = LAUNCH.replace("network: host", f"network: host, stop_signal: QUIT, {more}")
    launch = launch.replace("db: {", "db: {limits: {nofile: 1}, ")
    assert kubernetes.manifests(model(site(tmp_path, launch))).notes[-5:] == [
        "a pod has no `cgroup`: configure it on the hosts of: a/agent",
        "a pod has no `devices`: give /dev/tun with a device plugin, or with privileged: true and {host:"
        " /dev/tun}, to: a/agent",
        "a pod has no `limits`: configure it on the hosts of: a/agent, db",
        "a pod has no `security_options`: configure it on the hosts of: a/agent",
        "a pod has no stop signal: build STOPSIGNAL SIGQUIT into the images of: a/agent",
    ]


@pytest.mark.parametrize("path", ["/", "/lib"])
def test_only_the_whole_file_system_of_a_host_is_warned_of(path: str, tmp_path: Path) -> None:
    launch = LAUNCH.replace("/run/db: temporary", f"/host: {{host: {path}}}")
    found = build(directory.read(site(tmp_path, launch)), Site("site"))[1]
    assert [each.severity for each in found] == ["warning"] * (path == "/")


def test_a_used_directory_of_the_node_is_left_alone(tmp_path: Path) -> None:
    """The script of the init container, with other directories."""
    image, volumes = tmp_path / "image", tmp_path / "volumes"
    volume = Path(f"{volumes}{image}")
    image.mkdir()
    volume.mkdir(parents=True)
    (image / "file").write_text("of the image")
    image.chmod(0o2775)
    os.chown(image, 42, 43)
    argv = ["sh", "-c", kubernetes.COPY, str(volumes), "44", str(image), str(tmp_path / "missing")]
    missing = volumes / str(tmp_path)[1:] / "missing"
    missing.mkdir()
    subprocess.run(argv, check=True, timeout=60)
    assert (missing.stat().st_uid, missing.stat().st_gid) == (44, 44)
    found = volume.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (42, 43, 0o2775)
    assert (volume / "file").read_text() == "of the image"
    (volume / "file").write_text("of the daemon")
    volume.chmod(0o700)
    os.chown(missing, 45, 45)  # Of another service, which has it too.
    subprocess.run(argv, check=True, timeout=60)
    assert ((volume / "file").read_text(), volume.stat().st_mode & 0o7777) == ("of the daemon", 0o700)
    assert missing.stat().st_uid == 45
    (volume / "file").unlink()
    (volume / "part").touch()
    (volume / ".copying").touch()  # A copy that was interrupted is completed.
    subprocess.run(argv, check=True, timeout=60)
    assert {each.name for each in volume.iterdir()} == {"file", "part"}


# -- the command -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "where"), [("compose", "on node-1 and so on"), ("kubernetes", "on any host")]
)
def test_services_without_placement_are_named(
    form: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A forgotten line would otherwise put them anywhere."""
    root = site(tmp_path, LAUNCH.replace("defaults: {placement: control, ", "defaults: {"))
    assert cli.run(["manifests", form, str(root)]) == 0
    assert f"launch.yml has no `placement` for a/web, db, make: they run {where}\n" in capsys.readouterr().err
    assert cli.run(["manifests", form, str(site(tmp_path))]) == 0
    assert "`placement`" not in capsys.readouterr().err


def test_output_follows_no_link_and_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a link leads to may be anything; and a launcher may read the directory meanwhile."""
    root, place, others = site(tmp_path / "site"), tmp_path / "made", tmp_path / "others"
    words = ["manifests", "quadlet", str(root), "--output", str(place)]
    assert cli.run(words) == 0
    (unit,) = place.glob("ctl-1/*_db.container")
    text = unit.read_text()
    write_files(others, mine="mine")
    assert unit.stat().st_mode == (others / "mine").stat().st_mode
    unit.unlink()
    unit.symlink_to(others / "mine")
    assert cli.run(words) == 0
    assert (unit.is_symlink(), unit.read_text(), (others / "mine").read_text()) == (False, text, "mine")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(errors.CannotWrite, match="can't be written: No space left on device"):
            cli.run(words)
    assert unit.read_text() == text
    shutil.rmtree(place / "ctl-1")
    (place / "ctl-1").symlink_to(others)
    with pytest.raises(errors.CannotWrite, match="ctl-1 is a link: remove it"):
        cli.run(words)
    assert [path.name for path in others.iterdir()] == ["mine"]


REFUSED = {
    "a format": (["kubernets", "{}"], 64, "'kubernets' is unknown (did you mean 'kubernetes'?)"),
    "a directory": (["kubernetes", "{}/nowhere"], 66, "is not a directory"),
    "a deployment": (["kubernetes", "{}", "--deployment", "a/b"], 64, "--deployment: expected a name"),
    "a definition": (
        ["kubernetes", "{}"],
        65,
        "services/make/definition.yml:1: comands: unknown key; nearest is 'commands'",
    ),
    "a file": (["kubernetes", "{}", "--output", "{}/launch.yml"], 64, "is not a directory"),
    "DIR": (["kubernetes", "{}", "--output", "{}/services/.."], 64, "the files would be taken for parts of"),
    "a part of DIR": (["kubernetes", "{}", "--output", "{}/services/x"], 64, "would be taken for parts of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_its_status(name: str, tmp_path: Path) -> None:
    """And a message that says what to do."""
    argv, status, message = REFUSED[name]
    definition = TASK.replace("commands", "comands") if status == 65 else TASK
    root = site(tmp_path, services__make__definition_yml=definition)
    with pytest.raises(errors.AgentError) as caught:
        cli.run(["manifests", *(each.format(root) for each in argv)])
    assert caught.value.status == status
    assert message in str(caught.value)


SECRET = {
    "generated": {"secrets_yml": "secret: password\n"},
    "restricted": {
        "acl_yml": "operator: 'x509:CN=op'\nservices: {{{}}}\nvariables: {{secret: []}}\n".format(
            ", ".join(f"{name}: 'x509:CN=a'" for name in ("a/agent", "a/look_up", "a/web", "db", "make"))
        )
    },
    "mounted": {},
}


@pytest.mark.parametrize("kind", SECRET)
def test_no_secret_is_written(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may read manifests, or list the environment of containers, would have it."""
    launch = LAUNCH.replace("env: {A:", "env: {S: '{{ secret }}', A:")
    root = site(tmp_path / "site", launch, **SECRET[kind])
    values = tmp_path / "values"
    if kind == "mounted":
        monkeypatch.setenv(
            "KOLLA_VARIABLES_DIR", str(write_files(tmp_path / "mounted", secret="correct-horse"))
        )
    values.write_text("secret: correct-horse\n" if kind == "generated" else "")
    more = {"restricted": ["--set", "secret=correct-horse"], "generated": ["--secrets", str(values)]}
    words = ["manifests", "compose", str(root), "--output", str(tmp_path / "made"), *more.get(kind, [])]
    with pytest.raises(errors.AgentError, match=r"launch.yml:8: env: .* contains a secret") as found:
        cli.run(words)
    assert found.value.status == 65
    assert not (tmp_path / "made").exists()
