"""The fixtures and the hooks of the tests, for `bin/test drills/openstack`."""

from __future__ import annotations

from tests.conftest import *  # noqa: F403
