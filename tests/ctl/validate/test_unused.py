"""Variables and files that nothing uses: each is named, and nothing that may be used is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kolla_mesos_start.ctl.directory import directory
from kolla_mesos_start.ctl.directory.directory import Deployment
from kolla_mesos_start.ctl.validate.rules import validate
from tests.publishing import write_files

WEB = """\
service:
  daemon:
    command: [web, "{{ port }}"]
    files:
      conf: {dest: /etc/conf}
    ready: {alive: 0}
"""
SITE = {
    "variables_yml": "region: one\nport: 80\n",
    "services__a__web__definition_yml": WEB,
    "services__a__web__files__conf": "{% if region == 'one' %}x{% endif %}",
}


def found_in(root: Path, **more: str) -> list[str]:
    deployment, unreadable = directory.look(write_files(root, **{**SITE, **more}))
    return [f"{each.severity} {each.place}: {each.message}" for each in (*unreadable, *validate(deployment))]


UNUSED = {
    "a variable of the deployment": ({"variables_yml": "region: one\nport: 80\nregoin: two\n"},
     "variables.yml:3: no template uses the variable 'regoin': correct its name, or remove it"),
    "a file of one": ({"variables__other": "1"},
     "variables/other: no template uses the variable 'other': correct its name, or remove it"),
    "a variable of a service": (
        {"services__a__web__variables_yml": "size: 1\n"},
        "services/a/web/variables.yml:1: no template of a/web uses the variable 'size': correct its name, or"
        " remove it",
    ),
    "a variable of another service": (
        {
            "services__b__definition_yml": "commands: {a: {command: 'true {{ size }}'}}",
            "services__a__web__variables_yml": "size: 1\n",
            "services__b__variables_yml": "size: 1\n",
        },
        "services/a/web/variables.yml:1: no template of a/web uses the variable 'size': correct its name, or"
        " remove it",
    ),
    "a variable beside an empty file": (
        {"services__a__web__files__conf": "", "variables_yml": "port: 80\nregoin: two\n"},
        "variables.yml:2: no template uses the variable 'regoin': correct its name, or remove it",
    ),
    "a variable of hosts, once": (
        {"services__a__web__variables_yml": "h1: {size: 1}\nh2: {size: 1}\n"},
        "services/a/web/variables.yml:1: no template of a/web uses the variable 'size': correct its name, or"
        " remove it",
    ),
    "a variable whose name is only in a text": (
     {"services__a__web__files__conf": "{{ region }} size", "variables__size": "1"},
     "variables/size: no template uses the variable 'size': correct its name, or remove it"),
    "a file": (
        {"services__a__web__files__conf.old": "{{ old }}"},
        "services/a/web/files/conf.old: no command of a/web has this file: name it under `files`, or"
        " remove it",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("more", "expected"), UNUSED.values(), ids=UNUSED)
def test_what_nothing_uses_is_a_warning(tmp_path: Path, more: dict[str, str], expected: str) -> None:
    assert found_in(tmp_path, **more) == [f"warning {expected}"]


LAUNCH = """\
defaults: {image: "site/{{ registry }}", env: {A: "{{ a }}"}}
services: {a/web: {ports: ["{{ web_port }}"]}}
"""
USED = {
    "all": {},
    "in the definition": {"services__a__web__variables_yml": "port: 81\nh1: {region: two}\n"},
    "after a line break": {
        "services__a__web__definition_yml": WEB + "    user: \"{{\\nsize | default('x') }}\"\n",
        "variables__size": "kolla",
    },
    "where it is set too": {
        "services__a__web__files__conf": "{% set size = size | default(1) %}{{ size }} {{ region }}",
        "variables__size": "1",
    },
    "on a branch that is not taken": {
        "services__a__web__files__conf": "{% if region == 'two' %}{{ size }}{% endif %}",
        "variables__size": "1",
    },
    "in launch.yml": {
        "launch_yml": LAUNCH,
        "variables__registry": "r",
        "variables__web_port": "80",
        "services__a__web__variables_yml": "a: 1\n",
    },
    "perhaps in a file that only containers have": {
        "services__a__web__definition_yml": WEB.replace("conf}", "conf, mounted: /mnt/conf}"),
        "services__a__web__variables_yml": "size: 1\n",
        "variables__size": "1",
    },
    "perhaps in another directory": {"variables__size": "1"},
}


@pytest.mark.parametrize("name", USED)
def test_what_may_be_used_is_none(tmp_path: Path, name: str) -> None:
    """A wrong warning is worse than none."""
    root = write_files(tmp_path, **{**SITE, **USED[name]})
    if name.startswith("perhaps in a file"):
        (root / "services/a/web/files/conf").unlink()
    if name == "perhaps in another directory":
        (root / "services/a/web/files/conf").unlink()
        (root / "services/a/web/definition.yml").unlink()
        (root / "services/a/web/files").rmdir()
        (root / "services/a/web").rmdir()
    assert validate(directory.read(root)) == []


@pytest.mark.parametrize("kind", ["a directory", "a link"])
def test_a_file_that_cannot_be_read_may_use_everything(tmp_path: Path, kind: str) -> None:
    root = write_files(tmp_path, **SITE)
    file = root / "services/a/web/files/conf"
    file.unlink()
    if kind == "a directory":
        file.mkdir()
    else:
        file.symlink_to("missing")
    deployment, (found,) = directory.look(root)
    assert validate(deployment) == []
    assert f"{found.place}: {found.message}".startswith(f"services/a/web/files/conf: {kind}")


def test_it_is_not_said_beside_an_error(tmp_path: Path) -> None:
    """It may be a consequence: of a name that is misspelt where it is used."""
    (found,) = found_in(tmp_path, services__a__web__files__conf="{{ regoin }}")
    assert "needs the variable 'regoin'" in found


def test_what_is_published_already_counts(tmp_path: Path) -> None:
    """The services of another directory use it, or have left it there."""
    deployment = directory.read(write_files(tmp_path, **SITE, variables__size="1"))
    assert len(validate(deployment)) == 1
    other = deployment.services[0]._replace(name="b", files={"conf": b"{{ size }}"})
    assert validate(_with(deployment, other)) == []


def _with(deployment: Deployment, service: directory.Service) -> Deployment:
    return deployment._replace(services=[*deployment.services, service])
