"""The package: metadata, dependencies, scripts.

In a container the agent needs five packages. Everything else is an extra.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent


def version() -> str:
    """The version of the package, read without importing it."""
    text = (HERE / "kolla_mesos_start" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise SystemExit('kolla_mesos_start/__init__.py has no line of the form: __version__ = "1.0"')
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
    package_data={
        "kolla_mesos_start.kolla_ansible": ["rules.yml", "cluster_definitions/*/*", "plugins/*"],
        "kolla_mesos_start.ctl.timeline": ["*.html", "*.js"],
    },
    # This is the default. If it is explicit, an editable install is one line in a .pth file, and not an
    # import hook, which would slow down every start of Python, including the agent's.
    package_dir={"": "."},
    # Not console_scripts: the wrapper that pip generates may import `re`, but `health` must be as fast as
    # bare Python.
    scripts=["bin/kolla_mesos_start", "bin/kolla_mesos_ctl"],
    install_requires=[
        # The lowest tested versions, on each Python (tests/agent/test_pythons.py).
        "kazoo>=2.11",  # With older versions, an agent ends with an error.
        "jinja2>=3.1.6",  # In older versions, templates can escape from the sandbox.
        "psutil>=5.9.4",  # The first version with a wheel for every Python.
        "retrying>=1.3.4",  # The first version with a wheel.
        "six>=1.16",  # `six.moves` of older versions does not work in Python 3.12.
    ],
    extras_require={
        # For kolla_mesos_ctl, which runs outside containers.
        "operator": [
            "PyYAML>=5.4,!=6.0.4",  # In 6.0.4, `<<` takes a value from the wrong one of several mappings.
            "prometheus_client>=0.16",
            "requests>=2.28",
            "rich>=13",
            "shtab>=1.9",
        ],
        # For `kolla_mesos_ctl import` without --ansible, which runs the playbooks of this environment.
        "import": [
            "PyYAML>=5.4,!=6.0.4",
            "ansible>=10,<13",  # The collections; with it comes ansible-core.
            "kolla-ansible>=20,<23",  # The tested releases.
            "prometheus_client>=0.16",
            "requests>=2.28",
            "rich>=13",
            "shtab>=1.9",
        ],
        # For bin/docs, with the extra `operator`.
        "docs": ["furo", "sphinx>=7"],
        # For bin/release.
        "release": ["build", "cyclonedx-python-lib", "packageurl-python", "packaging"],
        "test": [
            "check-jsonschema",
            "docutils",
            "furo",
            "hypothesis",
            "jsonschema",
            "kubernetes-validate",
            "mypy",
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
