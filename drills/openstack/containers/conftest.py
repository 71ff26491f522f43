"""OpenStack's images, and a podman that has them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from drills.openstack.containers.images import OpenStackImages
from tests import CHECKOUT
from tests.containers.conftest import able as able
from tests.containers.podman import Podman
from tests.support.arrangement import say, section


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> list[str]:
    """Texts that are printed below the tests: how long it all took."""
    return section(pytestconfig, "OpenStack in containers")


@pytest.fixture(scope="session")
def images(able: None, pytestconfig: pytest.Config) -> Iterator[OpenStackImages]:
    """The images; they are made where they are missing."""
    images = OpenStackImages(CHECKOUT / ".cache", partial(say, pytestconfig))
    images.make()
    yield images
    images.release()


@pytest.fixture(scope="session")
def podman(images: OpenStackImages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Podman, which has these images."""
    podman = Podman(tmp_path_factory.mktemp("podman"), images.store)
    yield podman
    podman.end()
