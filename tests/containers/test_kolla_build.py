"""`etc/kolla-build` puts the agent into all images of a Kolla build: rendered by kolla-build, one built."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.containers.images import CERTIFIED, SNIPPET, Images, archive, kolla_build, render
from tests.containers.podman import Podman
from tests.support import pins

OVERRIDE = CHECKOUT / "etc" / "kolla-build" / "agent.j2"
TAG = "2026.1"
START = 'CMD ["kolla_mesos_start"]'
OPENS = re.compile(r"^RUN install -d -g (\S+) -m 0775 /etc/(\S+)$", re.MULTILINE)

# The first test may wait for the images.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The Dockerfiles of all images that Kolla has, by the image's name."""
    place = tmp_path_factory.mktemp("kolla-build")
    added = place / "kolla" / "base"
    added.mkdir(parents=True)
    shutil.copy(pins.AGENT, added)
    program = kolla_build(CHECKOUT / ".cache", print)
    found = render(program, place, [], tag=TAG, docker_dir=added.parent, template_override=OVERRIDE)
    assert (found / "base" / pins.AGENT.name).exists()
    return {path.parent.name: path.read_text() for path in found.rglob("Dockerfile")}


def test_all_images_start_with_the_agent(rendered: Mapping[str, str]) -> None:
    """But `base`, from which all others are made, and one that starts a whole system."""
    assert len(rendered) > 150
    last = {name: re.findall("^CMD .*", text, re.MULTILINE)[-1] for name, text in rendered.items()}
    assert {name for name, found in last.items() if found != START} == {"base", "bifrost-deploy"}


def test_the_agent_is_installed_once_and_as_in_the_snippet(rendered: Mapping[str, str]) -> None:
    installs = [name for name, text in rendered.items() if "/opt/kolla_mesos_start" in text]
    assert installs == ["base"]
    code = [line for line in SNIPPET.read_text().splitlines() if line and not line.startswith("#")]
    ours = "\n".join(code).partition("\nARG KOLLA_GENERATION")[0]
    assert ours in rendered["base"]
    assert f"ENV KOLLA_GENERATION={TAG}\n" in rendered["base"]
    (own,) = (line for line in code if "/run/kolla_mesos_start" in line)
    assert own in rendered["base"]


def test_an_image_opens_the_directory_of_its_service_and_no_other(rendered: Mapping[str, str]) -> None:
    opened = {name: OPENS.findall(text) for name, text in rendered.items()}
    assert opened["nova-api"] == opened["nova-conductor"] == [("nova", "nova")]
    assert opened["mariadb-server"] == [("mysql", "mysql")]
    # Their users are no service's, or root.
    assert opened["kolla-toolbox"] == opened["keepalived"] == opened["cron"] == []
    for name, found in opened.items():
        assert all(group == service and name.startswith((service, "mariadb")) for group, service in found)


def test_the_lines_do_in_kollas_images_what_they_say(
    rendered: Mapping[str, str], podman: Podman, images: Images, tmp_path: Path
) -> None:
    """Those of `base` and those of memcached, built onto Kolla's memcached."""
    shutil.copy(pins.AGENT, tmp_path)
    archive(tmp_path / "kolla_mesos_start-source.tar.gz")
    base, service = rendered["base"], rendered["memcached"]
    installs = base[base.index("COPY kolla_mesos_start.txt") :].partition("CMD ")[0]
    footer = service[service.rindex("RUN install -d") :]
    text = f"FROM {images.kolla('memcached')}\nUSER root\n{installs}\n{START}\n{footer}\n"
    (tmp_path / "Dockerfile").write_text(text)
    podman("build", "--network=host", *CERTIFIED, "--tag=localhost/baked", str(tmp_path))
    config = podman.config("localhost/baked")
    assert (config["Cmd"], config["User"]) == (["kolla_mesos_start"], "memcached")
    said = podman.output(
        "localhost/baked", "sh", "-c", "touch /etc/memcached/a; kolla_mesos_start; echo $? $KOLLA_GENERATION"
    )
    assert said.splitlines()[-1] == f"64 {TAG}"
