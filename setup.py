"""What the package is, what it needs, and what it installs.

Inside a container the agent needs five packages, each with one job; whatever else is an extra.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent


def version() -> str:
    """The version as the package says it, read without importing the package."""
    text = (HERE / "kolla_mesos_start" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise SystemExit("kolla_mesos_start/__init__.py holds no line like: __version__ = ...")
    return found.group(1)


setup(
    name="kolla_mesos_start",
    version=version(),
    description="The startup agent of Kolla containers: waits, renders, bootstraps once, registers, execs",
    long_description=(HERE / "README.rst").read_text(encoding="utf-8"),
    long_description_content_type="text/x-rst",
    license="Apache-2.0",
    classifiers=[
        "Environment :: OpenStack",
        "Intended Audience :: System Administrators",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: System :: Boot :: Init",
    ],
    python_requires=">=3.9",
    packages=find_packages(include=["kolla_mesos_start", "kolla_mesos_start.*"]),
    package_data={"kolla_mesos_start.operator.timeline": ["*.html", "*.js"]},
    # The same as the default, but said: an editable install is then one line in a .pth file and not
    # an import hook, which would make every start of Python slower, that of the agent's too.
    package_dir={"": "."},
    # Not console_scripts: the wrapper that pip writes for one may import `re` before it calls
    # anything, and `health` has to be as quick as bare Python.
    scripts=["bin/kolla_mesos_start", "bin/kolla_mesos_ctl"],
    install_requires=[
        # The lowest versions that have been run, on each Python (tests/integration/test_pythons.py).
        "kazoo>=2.11",  # With older ones an agent's end is an error.
        "jinja2>=3.1.6",  # In older ones a template finds ways out of the sandbox.
        "psutil>=5.9.4",  # The first one with a wheel for every Python.
        "retrying>=1.3.4",  # The first one with a wheel.
        "six>=1.16",  # Older ones can't be imported from by Python 3.12.
    ],
    extras_require={
        # What people run outside containers.
        "operator": ["PyYAML>=5.4", "rich>=13", "shtab>=1.9"],
        # What builds the pages of docs/.
        "docs": ["PyYAML>=5.4", "furo", "rich>=13", "shtab>=1.9", "sphinx>=7"],
        "test": [
            "check-jsonschema",
            "cyclonedx-python-lib",
            "docutils",
            "furo",
            "hypothesis",
            "jsonschema",
            "kubernetes-validate",
            "mypy",
            "packageurl-python",
            "packaging",
            "playwright",
            "podman-compose",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "setuptools>=61",
            "sphinx>=7",
            "types-PyYAML",
            "vermin",
        ],
    },
    zip_safe=False,
)
