"""`kubernetes` in launch.yml: what it adds to pods, and what it can't change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kolla_mesos_start.ctl import cli
from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.pod_template import merged
from kolla_mesos_start.ctl.manifests import kubernetes
from kolla_mesos_start.ctl.manifests.formats import FORMATS
from kolla_mesos_start.errors import AgentError
from tests.ctl.manifests.test_manifests import made, model, pod
from tests.support.publishing import write_files

LAUNCH = """\
zookeeper: zk
hosts: {control: [ctl-1]}
defaults:
  image: site/web:1
  placement: control
  kubernetes: %s
services:
  web:
    user: 42
    memory: 1Gi
    ports: [80]
    volumes: {/run/web: temporary}
    env: {A: a}
    kubernetes: %s
"""
DAEMON = "service: {daemon: {command: sleep 9, ready: {alive: 0}}}\n"
TASK = "commands: {look: {command: 'true'}}\n"


def site(root: Path, own: str = "{}", defaults: str = "{}") -> Path:
    return write_files(
        root,
        launch_yml=LAUNCH % (defaults, own),
        services__web__definition_yml=DAEMON,
        services__make__definition_yml=TASK,
    )


def template(root: Path) -> Any:
    """The pod template of the service."""
    (found,) = [each for each in made(root)["web.yml"] if each["kind"] == "Deployment"]
    return found["spec"]["template"]


DEFAULTS = """
    metadata: {annotations: {a: "1", b: "2"}}
    spec:
      priorityClassName: high
      imagePullSecrets: [{name: one}]
      nodeSelector: {env: prod, ports: x}
      tolerations: [{key: a}]
      automountServiceAccountToken: true
      topologySpreadConstraints:
      - {topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}
      volumes: [{name: shared, emptyDir: {}}]
      containers:
      - name: agent
        livenessProbe: {periodSeconds: 60, timeoutSeconds: 9, failureThreshold: 2}
        readinessProbe: {periodSeconds: 30}
        env: [{name: NEW, valueFrom: {secretKeyRef: {name: s, key: k}}}]
        resources: {requests: {ephemeral-storage: 1Gi}, limits: {"vendor/gpu": 1}}
        volumeMounts: [{name: shared, mountPath: /shared}]
        securityContext: {seccompProfile: {type: Unconfined}}
      - {name: sidecar, image: "site/side:1", env: [{name: X, value: "1"}, {name: Y, value: "2"}]}
      - {name: other, image: "site/other:1"}"""
OWN = """
      metadata: {annotations: {a: null}, labels: {team: blue}}
      spec:
        priorityClassName: null
        imagePullSecrets: [{name: two}]
        tolerations: [{key: b}]
        hostAliases: [{ip: 192.0.2.1, hostnames: [x]}]
        volumes: [{name: run-web, emptyDir: {sizeLimit: 1Gi}}]
        containers:
        - {name: other, $patch: delete}
        - {name: sidecar, image: "site/side:2", env: [{name: X, value: "3"}]}
        - {name: agent, resources: {limits: {cpu: 2}}, livenessProbe: {periodSeconds: 90}}"""


def test_parts_are_merged_as_kubectl_does(tmp_path: Path) -> None:
    """Those of a service after the defaults: mappings by key, some lists by item; null removes a key."""
    before, found = template(site(tmp_path / "plain")), template(site(tmp_path / "site", OWN, DEFAULTS))
    assert found["metadata"]["annotations"] == {"b": "2"}
    assert found["metadata"]["labels"] == {**before["metadata"]["labels"], "team": "blue"}
    spec = found["spec"]
    assert "priorityClassName" not in spec and spec["automountServiceAccountToken"] is True
    assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert spec["nodeSelector"] == {"env": "prod", "ports": "x"}
    assert spec["tolerations"] == [{"key": "b"}]
    assert {"name": "run-web", "emptyDir": {"sizeLimit": "1Gi"}} in spec["volumes"]
    agent, sidecar = spec["containers"]
    assert sidecar == {
        "name": "sidecar",
        "image": "site/side:2",
        "env": [{"name": "X", "value": "3"}, {"name": "Y", "value": "2"}],
    }
    (was,) = before["spec"]["containers"]
    assert {key: value for key, value in agent["livenessProbe"].items() if key != "exec"} == {
        "periodSeconds": 90,
        "timeoutSeconds": 9,
        "failureThreshold": 2,
    }
    assert agent["livenessProbe"]["exec"] == was["livenessProbe"]["exec"]
    assert agent["env"][:-1] == was["env"] and agent["volumeMounts"][:-1] == was["volumeMounts"]
    assert agent["resources"] == {
        "requests": {"memory": "1024Mi", "ephemeral-storage": "1Gi"},
        "limits": {"memory": "1024Mi", "vendor/gpu": 1, "cpu": 2},
    }


def test_items_with_the_same_key_are_both_kept(tmp_path: Path) -> None:
    """Kubernetes has ports of TCP and UDP with the same number."""
    ports = [{"containerPort": 53, "protocol": name} for name in ("TCP", "UDP")]
    side = {"spec": {"containers": [{"name": "side", "image": "site/dns:1", "ports": ports}]}}
    found = merged({"spec": {"containers": [{"name": "agent"}]}}, side)
    assert found["spec"]["containers"][1]["ports"] == ports
    again = merged(
        found, {"spec": {"containers": [{"name": "side", "ports": [{**ports[0], "name": "dns"}]}]}}
    )
    assert again["spec"]["containers"][1]["ports"] == [{**ports[0], "name": "dns"}, ports[1]]


def test_a_part_that_adds_nothing_changes_nothing(tmp_path: Path) -> None:
    """Nor one that repeats what the manifest has."""
    before = template(site(tmp_path / "plain"))
    assert template(site(tmp_path / "same", json.dumps(before))) == before
    assert list(kubernetes.conflicts(model(site(tmp_path / "same", json.dumps(before))))) == []


def test_a_task_has_no_probes(tmp_path: Path) -> None:
    """Their numbers in the defaults are for services. The name of a Job depends on what is added."""
    names = set()
    for number, defaults in enumerate(("{}", DEFAULTS)):
        (job,) = made(site(tmp_path / str(number), "{}", defaults))["make.yml"]
        names.add(job["metadata"]["name"])
        assert not {"livenessProbe", "readinessProbe"} & pod(job)["containers"][0].keys()
    assert len(names) == 2


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_kubernetes_takes_what_is_merged(version: str, tmp_path: Path) -> None:
    """Numbers are numbers, and texts are texts, also in JSON."""
    root = site(tmp_path, OWN, DEFAULTS)
    launch = root / "launch.yml"
    for name in ("launch.yml", "launch.json"):
        if name.endswith("json"):
            content = yaml.safe_load(launch.read_text())
            content["services"]["web"]["ports"] = ["80"]
            launch.unlink()
            (root / name).write_text(json.dumps(content, indent="\t"))
        files = [root / f"{each}.yml" for each in ("make", "web")]
        for path, text in zip(files, kubernetes.manifests(model(root)).files.values()):
            path.write_text(text)
        argv = [sys.executable, "-m", "kubernetes_validate", "--strict", "--kubernetes-version", version]
        done = subprocess.run([*argv, *map(str, files)], capture_output=True, text=True, check=False)
        for path in files:
            path.unlink()
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("form", sorted(set(FORMATS) - {"kubernetes"}))
def test_other_launchers_ignore_it(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a word, also what contradicts the pods."""
    made_, words = [], ["manifests", form]
    for name, own in {"plain": "{}", "site": "{spec: {hostNetwork: true}}"}.items():
        root = site(tmp_path / name, own)
        assert cli.run([*words, str(root), "--deployment", "site"]) == 0
        made_.append(capsys.readouterr())
    assert made_[0] == made_[1]


AGENT = "{spec: {containers: [{name: agent, %s}]}}"
SPEC, AT = "services.web.kubernetes.spec", "services.web.kubernetes.spec.containers[0]"
CONFLICTS = {
    "a user": (
        "{spec: {securityContext: {runAsUser: 7}}}",
        f"{SPEC}.securityContext.runAsUser: the manifest has 42, from `user` of launch.yml: change that",
    ),
    "its group": (
        "{spec: {securityContext: {fsGroup: 7}}}",
        f"{SPEC}.securityContext.fsGroup: the manifest has 42, from `user` of launch.yml",
    ),
    "a user of the container": (
        AGENT % "securityContext: {runAsUser: 7}",
        f"{AT}.securityContext.runAsUser: set `user` of launch.yml instead",
    ),
    "a user that is removed": (
        "{spec: {securityContext: null}}",
        f"{SPEC}.securityContext: the manifest has ",
    ),
    "memory": (
        AGENT % "resources: {limits: {memory: 2Gi}}",
        f'{AT}.resources.limits.memory: the manifest has "1024Mi", from `memory` of launch.yml',
    ),
    "a processor": (
        AGENT % "resources: {requests: {cpu: 2}}",
        f"{AT}.resources.requests.cpu: set `cpu` of launch.yml instead",
    ),
    "a network": ("{spec: {hostNetwork: true}}", f"{SPEC}.hostNetwork: set `network` of launch.yml instead"),
    "a namespace": ("{spec: {hostPID: true}}", f"{SPEC}.hostPID: set `pid` of launch.yml instead"),
    "a right": (
        AGENT % "securityContext: {privileged: true}",
        f"{AT}.securityContext.privileged: set `privileged` of launch.yml instead",
    ),
    "capabilities": (
        AGENT % "securityContext: {capabilities: {add: [KILL]}}",
        f'{AT}.securityContext.capabilities: the manifest has {{"drop": ["ALL"]}}, from `capabilities`',
    ),
    "an image": (
        AGENT % "image: x",
        f'{AT}.image: the manifest has "site/web:1", from `image` of launch.yml',
    ),
    "a port": (AGENT % "ports: [{containerPort: 81}]", f"{AT}.ports: the manifest has [{{"),
    "other hosts": (
        "{spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution:"
        " {nodeSelectorTerms: []}}}}}",
        f"{SPEC}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: the"
        " manifest has [{",
    ),
    "time to stop": (
        "{spec: {terminationGracePeriodSeconds: 1}}",
        f"{SPEC}.terminationGracePeriodSeconds: the manifest has 20, from `stop_grace` of the definition",
    ),
    "a command": (AGENT % "command: [sh]", f"{AT}.command: only the agent sets it: remove this"),
    "arguments": (
        AGENT % "args: [sh]",
        f'{AT}.args: the manifest has ["kolla_mesos_start"], which the agent',
    ),
    "another probe": (
        AGENT % "livenessProbe: {httpGet: {port: 80}}",
        f"{AT}.livenessProbe.httpGet: only the agent sets it: remove this",
    ),
    "no probe": (AGENT % "readinessProbe: null", f"{AT}.readinessProbe: the manifest has "),
    "a start probe": (AGENT % "startupProbe: {exec: {}}", f"{AT}.startupProbe: only the agent sets it"),
    "a hook": (AGENT % "lifecycle: {postStart: {}}", f"{AT}.lifecycle: the manifest has {{"),
    "a policy": ("{spec: {restartPolicy: Always}}", f"{SPEC}.restartPolicy: only the agent sets it"),
    "variables of services": (
        "{spec: {enableServiceLinks: true}}",
        f"{SPEC}.enableServiceLinks: the manifest has false, which the agent needs: remove this",
    ),
    "the agent's variable": (
        AGENT % "env: [{name: KOLLA_ADDRESS, value: x}]",
        f"{AT}.env[0]: set `env` of launch.yml instead",
    ),
    "a variable": (
        AGENT % "env: [{name: B, value: b}, {name: A, value: b}]",
        f'{AT}.env[1]: the manifest has {{"name": "A", "value": "a"}}, from `env` of launch.yml',
    ),
    "a mount": (
        AGENT % "volumeMounts: [{mountPath: /run/web, readOnly: true}]",
        f"{AT}.volumeMounts[0]: the manifest has ",
    ),
    "a volume": (
        "{spec: {volumes: [{name: run-web, emptyDir: null, hostPath: {path: /x}}]}}",
        f"{SPEC}.volumes[0].emptyDir: the manifest has {{}}, from `volumes` of launch.yml",
    ),
    "a label": (
        "{metadata: {labels: {app.kubernetes.io/name: x}}}",
        "services.web.kubernetes.metadata.labels.app.kubernetes.io/name: the manifest has",
    ),
    "no agent": ("{spec: {containers: [{name: agent, $patch: delete}]}}", f"{AT}: the manifest has "),
    "text in place of an object": (
        AGENT % "resources: much",
        f"{AT}.resources: expected an object, found text",
    ),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_what_the_manifests_contain_is_not_replaced(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what they contain, and which setting to change instead."""
    own, expected = CONFLICTS[name]
    root = site(tmp_path, own)
    words = [str(root), "--deployment", "site"]
    with pytest.raises(AgentError) as caught:
        cli.run(["manifests", "kubernetes", *words])
    assert (caught.value.status, str(caught.value).count("launch.yml:14")) == (65, 1)
    assert f"launch.yml:14: {expected}" in str(caught.value)
    capsys.readouterr()
    assert cli.run(["validate", *words]) == 1
    assert f"launch.yml:14: error: {expected}" in capsys.readouterr().out.replace("\n", " ")


def test_a_wrong_default_is_one_mistake(tmp_path: Path) -> None:
    """However many services it contradicts."""
    root = site(tmp_path, "{}", "{spec: {terminationGracePeriodSeconds: 7}}")
    with pytest.raises(AgentError, match=r"launch\.yml:6: defaults\.kubernetes\.spec\.term") as caught:
        cli.run(["manifests", "kubernetes", str(root)])
    assert str(caught.value).count("launch.yml:6") == 1


MALFORMED = {
    "a container twice": (
        "{spec: {containers: [{name: a, image: b}, {name: a, image: c}]}}",
        "services.web.kubernetes.spec.containers[1]: a is here twice",
    ),
    "no number": (
        "{spec: {priority: 1e999}}",
        "services.web.kubernetes.spec.priority: expected a number, found inf",
    ),
    "half a character": (
        '{metadata: {annotations: {a: "\\ud800"}}}',
        "services.web.kubernetes.metadata.annotations.a: expected text, but it holds a lone surrogate",
    ),
    "half of another": (
        '{spec: {nodeSelector: {a: "\\ud800"}}}',
        "services.web.kubernetes.spec.nodeSelector.a: expected text, but it holds a lone surrogate",
    ),
    "a set": ("{spec: {tolerations: !!set {a}}}", "services.web.kubernetes.spec.tolerations: "),
    "text": ("all", "services.web.kubernetes: expected an object, found text"),
    "another key": ("{sepc: {}}", "services.web.kubernetes.sepc: unknown key; nearest is 'spec'"),
    "a name": ("{metadata: {name: x}}", "services.web.kubernetes.metadata.name: unknown key"),
    "a number": (
        "{metadata: {labels: {a: 1}}}",
        "services.web.kubernetes.metadata.labels.a: expected text, found a number: put it in quotes",
    ),
    "a specification": ("{spec: [a]}", f"{SPEC}: expected an object, found a list"),
    "one container": (
        "{spec: {containers: {name: x}}}",
        f"{SPEC}.containers: expected a list, found an object",
    ),
    "no name": ("{spec: {containers: [{image: x}]}}", f"{AT}: expected an object with `name`"),
    "no text": ("{spec: {containers: [{name: {}}]}}", f"{AT}: expected an object with `name`"),
    "no object": ("{spec: {volumes: [x]}}", f"{SPEC}.volumes[0]: expected an object with `name`"),
    "no place": (
        AGENT % "volumeMounts: [{name: x}]",
        f"{AT}.volumeMounts[0]: expected an object with `mountP",
    ),
    "a directive": (
        "{spec: {$patch: replace}}",
        f"{SPEC}.$patch: only `$patch: delete` in an item of a list",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_can_not_be_merged_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    """And alone."""
    own, expected = MALFORMED[name]
    (found,) = directory.look(site(tmp_path, own))[1]
    assert f"{found.place}: {found.message}".startswith(f"launch.yml:14: {expected}")
