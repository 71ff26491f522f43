"""How Sphinx builds these pages: `bin/docs`, or `python -m sphinx -W docs build/docs`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from kolla_mesos_start import __version__  # noqa: E402 (the path comes first)

project = "kolla_mesos_start"
author = project_copyright = "the kolla_mesos_start developers"
release = version = __version__
extensions = ["tables"]
nitpicky = True
highlight_language = "text"  # Blocks without a language are commands, output and drawings, and no Python.
html_theme = "furo"
html_title = "kolla_mesos_start"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
man_pages = [
    ("reference/agent", "kolla_mesos_start", "the startup agent of Kolla containers", author, 8),
    ("reference/command-line", "kolla_mesos_ctl", "the operator's tool of kolla_mesos_start", author, 8),
]
