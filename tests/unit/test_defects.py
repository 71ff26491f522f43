"""A defect is reported with its place in the code, but without its message, which may contain a secret.

Here for guard and registrar; `agent/test_endings.py` tests the agent, `ctl/test_cli.py` the
operator's tool.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import CHECKOUT

SCRIPT = """\
from kolla_mesos_start.{module} import __name__ as name, main
import sys
def fail(descriptor):
    raise ValueError("s3" + "cret")
vars(sys.modules[name])[{work!r}] = fail
main(0)
"""


@pytest.mark.parametrize(
    ("who", "module", "work"),
    [("guard", "commands.guard", "serve"), ("registrar", "daemon.handoff", "_live")],
)
def test_the_report_of_a_defect_contains_no_value(who: str, module: str, work: str) -> None:
    """In the container's log."""
    argv = (sys.executable, "-c", SCRIPT.format(module=module, work=work))
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 70
    assert f"{module.replace('.', '/')}.py" in done.stderr and "ValueError" in done.stderr
    assert f"this is a defect of the {who}" in done.stderr
    assert "s3cret" not in done.stderr
