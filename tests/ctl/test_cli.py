"""The command line of the operator's tool."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from kolla_mesos_start import __version__
from kolla_mesos_start.ctl.cli import PROGRAM, SUBCOMMANDS, ListedCommand, parser
from kolla_mesos_start.ctl.invocation import Invocation
from kolla_mesos_start.errors import BadEnvironment, BadUsage
from kolla_mesos_start.settings import Settings

TOOL = Path(__file__).parents[2] / "bin" / PROGRAM
PROGRAMS = ["kolla_mesos_ctl", "kolla_mesos_start", "kolla_mesos_start check", "kolla_mesos_start health"]


def settings(line: str, **environ: str) -> Settings:
    """What a command line and an environment make of the settings."""
    return Invocation(parser().parse_args(line.split()), environ, ExitStack()).settings


@pytest.mark.parametrize(
    "line", ["", "publish", "publish --deployment x", "publish DIR --prnue", "pubish DIR", "--deployment x"]
)
def test_a_wrong_command_line_is_bad_usage(line: str) -> None:
    """It ends with 64, as the agent's does, and not with argparse's 2."""
    with pytest.raises(BadUsage, match="--help"):
        parser().parse_args(line.split())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stauts", "argument COMMAND: 'stauts' is unknown (did you mean 'status'?); see {} --help"),
        ("status --wath", "unknown: --wath (did you mean '--watch'?); see {} status --help"),
        ("--hots=zoo status", "unknown: --hots=zoo (did you mean '--hosts'?); see {} --help"),
        ("status a b", "unknown: b; see {} status --help"),
        ("get a --format jsn",
         "argument --format: 'jsn' is unknown (did you mean 'json'?); see {} get --help"),
        ("completion cmd",
         "argument shell: 'cmd' is unknown: choose from bash, fish, zsh; see {} completion --help"),
    ],
)  # fmt: skip
def test_a_misspelt_word_is_answered_with_the_nearest(line: str, message: str) -> None:
    """And with the help of the command that it was meant for."""
    with pytest.raises(BadUsage) as caught:
        parser().parse_args(line.split())
    assert caught.value.reason == message.format(PROGRAM)


@pytest.mark.parametrize(
    "line",
    [
        "publish DIR --prnue",
        "publish DIR --pru",
        "remove x --forse",
        "unset x --forc",
        "reset --absent-host",
    ],
)
def test_no_option_that_deletes_is_suggested(line: str) -> None:
    """Somebody may follow the suggestion without reading what the option does."""
    with pytest.raises(BadUsage) as caught:
        parser().parse_args(line.split())
    assert "did you mean" not in caught.value.reason


@pytest.mark.parametrize("line", ["explain --host node-1", "--host node-1 explain", "reset --absent"])
def test_a_part_of_an_options_name_is_not_taken_for_it(line: str) -> None:
    """--host means something else where there is one."""
    with pytest.raises(BadUsage, match=r"--(host|absent)|node-1"):
        parser().parse_args(line.split())


@pytest.mark.parametrize("line", ["publish DIR --deployment a/b", "publish DIR"])
def test_a_deployment_must_be_named(line: str) -> None:
    with pytest.raises(BadUsage, match="--deployment"):
        settings(line, KOLLA_ZK_HOSTS="zoo")


@pytest.mark.parametrize("line", ["{} publish DIR", "publish DIR {}", "publish {} DIR"])
def test_options_win_over_the_environment_and_stand_before_or_after_the_command(line: str) -> None:
    """The operator works outside containers: a wrong KOLLA_PORTS does not matter there."""
    environ = {
        "KOLLA_ZK_HOSTS": "other",
        "KOLLA_SYSTEM_PREFIX": "/other",
        "KOLLA_DEPLOYMENT": "other",
        "KOLLA_PORTS": "none",
        "KOLLA_ZK_CONNECT_TIMEOUT": "7",
    }
    found = settings(line.format("--deployment site --hosts zoo:2181/x --prefix /p"), **environ)
    assert (found.hosts, found.chroot, found.prefix, found.deployment_id) == ("zoo:2181", "/x", "/p", "site")
    assert found.connect_timeout == 7


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("status", "give --hosts, or set KOLLA_ZK_HOSTS: h1:2181,h2:2181[/chroot]"),
        ("status --hosts=", "--hosts is empty: give its value, or leave it out to use KOLLA_ZK_HOSTS"),
        ("status --hosts a:b", "connection: 1 issue: --hosts is 'a:b': expected h1:2181,.*"),
        ("status --hosts zoo --prefix p", "connection: 1 issue: --prefix is 'p': expected the absolute .*"),
        (
            "status --hosts zoo --ca nofile",
            "connection: 1 issue: --ca is '{here}/nofile': expected a file that this user can read (No such"
            " file or directory)",
        ),
        (
            "status --hosts zoo --key pyproject.toml",
            "connection: 1 issue: --key is set, KOLLA_ZK_CERT is not: expected both or none",
        ),
    ],
)
def test_an_option_that_can_reach_no_zookeeper_is_named(line: str, message: str) -> None:
    """By its own name, not by that of the agent's variable."""
    with pytest.raises((BadUsage, BadEnvironment)) as caught:
        settings(line, KOLLA_DEPLOYMENT="site")
    pattern = re.escape(message).replace(re.escape(".*"), ".*")
    assert re.fullmatch(pattern.replace(re.escape("{here}"), re.escape(os.getcwd())), caught.value.reason)


def test_a_file_may_be_named_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "auth").write_text("digest:a:b\n")
    found = settings("status --auth-file auth", KOLLA_ZK_HOSTS="zoo", KOLLA_DEPLOYMENT="site")
    assert found.auth == (("digest", "a:b"),)


@pytest.mark.parametrize("each", SUBCOMMANDS, ids=lambda each: each.name)
def test_each_has_help_with_an_example_that_parses(
    each: ListedCommand, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the width of a terminal that nobody has made wider."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([each.name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    example = re.search(rf"^  {PROGRAM} (.*)$", shown, re.MULTILINE)
    assert example is not None
    words = re.sub(r" [|<>] .*", "", example[1]).split()
    assert parser().parse_args(words).run is not None


@pytest.mark.parametrize("line", ["quickstart", *PROGRAMS])
def test_help_fits_into_80_columns(line: str) -> None:
    """The width of a terminal that nobody has made wider."""
    name, *words = line.split()
    done = subprocess.run(
        ["sh" if name == "quickstart" else sys.executable, TOOL.parent / name, *words, "--help"],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert [each for each in done.stdout.splitlines() if len(each) > 80] == []


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_a_shell_can_complete_its_words(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, TOOL, "completion", shell], capture_output=True, text=True, check=True, timeout=60
    )
    assert "publish" in done.stdout and "--deployment" in done.stdout
    subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=shell == "bash", timeout=60)


# What readline does with the words of a line: the reply of the function that `complete` registered.
COMPLETE = """\
eval "$SCRIPT"
compopt() { :; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_kolla_mesos_ctl "$1" "${!#}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_bash_completes_files_and_directories(tmp_path: Path) -> None:
    """Those that a command takes, as any other program's."""
    script = subprocess.run(
        [sys.executable, TOOL, "completion", "bash"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop.tar").touch()
    for line, replies in (
        ("publish sho", ["shop"]),
        ("restore sho", ["shop", "shop.tar"]),
        ("timeline --html shop.", ["shop.tar"]),
        ("status --ca shop.", ["shop.tar"]),
        ("--key shop.", ["shop.tar"]),
        ("up shop --in sho", ["shop"]),
        ("resto", ["restore"]),
    ):
        done = subprocess.run(
            ["bash", "-c", COMPLETE, "bash", PROGRAM, *line.split()],
            env={"SCRIPT": script, "PATH": os.environ["PATH"]},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (line, sorted(done.stdout.split()), done.stderr) == (line, replies, "")


def test_it_says_its_name_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    """As the agent does."""
    with pytest.raises(SystemExit):
        parser().parse_args(["--version"])
    assert capsys.readouterr().out == f"{PROGRAM} {__version__}\n"


def test_a_package_that_is_not_installed_is_named() -> None:
    """Containers hold the agent's packages only, and so does a plain installation."""
    done = subprocess.run(
        [sys.executable, "-S", TOOL, "status"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"{PROGRAM}: the package rich is missing: pip install 'kolla_mesos_start[operator]'\n"
    )


def test_a_package_that_is_missing_in_the_importer_is_named(tmp_path: Path) -> None:
    """The importer is imported late; others than `graph --imported` do not need its packages."""
    (tmp_path / "psutil.py").write_text("raise ModuleNotFoundError(name='psutil')\n")
    done = subprocess.run(
        [sys.executable, TOOL, "graph", "--imported", tmp_path],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (
        1,
        f"{PROGRAM}: the package psutil is missing: pip install 'kolla_mesos_start[operator]'\n",
    )


def test_ctrl_c_while_it_is_starting_shows_no_traceback(tmp_path: Path) -> None:
    """Its modules take a moment to import."""
    (tmp_path / "rich.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, TOOL, "status"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(("word", "status"), [("--version", 0), ("no-such-command", 64)])
def test_ctrl_c_at_its_very_end_does_not_change_its_status(tmp_path: Path, word: str, status: int) -> None:
    at_exit = "import atexit, os, signal\natexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    (tmp_path / "sitecustomize.py").write_text(at_exit)
    environ = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, TOOL, word], env=environ, capture_output=True, timeout=60)
    assert (done.returncode, b"Traceback" in done.stderr) == (status, False)


def test_a_defect_is_told_without_a_value(tmp_path: Path) -> None:
    """As the agent's: where in the code it was met, and no message, in which a secret may stand."""
    lines = (
        "import json",
        "def dumps(*words, **others): raise ValueError('s3' + 'cret')",
        "json.dumps = dumps",
    )
    (tmp_path / "sitecustomize.py").write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, TOOL, "schema"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (70, "")
    said = done.stderr.splitlines()
    assert said[0] == f"{PROGRAM}: Traceback (most recent call last):"
    assert said[-2:] == [
        f"{PROGRAM}: ValueError",
        f"{PROGRAM}: this is a defect of {PROGRAM}: please report it with these lines",
    ]
    assert "ctl/commands/publish.py" in done.stderr and "s3cret" not in done.stderr
