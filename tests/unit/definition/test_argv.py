"""How a command becomes an argv, compared with a real shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kolla_mesos_start.definition.argv import CommandLine, parse, problem

DIRECT = {
    "apache2 -DFOREGROUND": ("apache2", "-DFOREGROUND"),
    "  nova-compute   --config-file /etc/nova.conf ": ("nova-compute", "--config-file", "/etc/nova.conf"),
    "ends in a newline\n": ("ends", "in", "a", "newline"),
    "sh -c 'a; b | c > d'": ("sh", "-c", "a; b | c > d"),
    "sh -c 'two\nlines'": ("sh", "-c", "two\nlines"),
    """mysql -e "it's {'a': 1} (b) *" """: ("mysql", "-e", "it's {'a': 1} (b) *"),
    r'echo "a \" b" \$HOME': ("echo", 'a " b', "$HOME"),
    r"echo a\ b \# \~": ("echo", "a b", "#", "~"),
    "env A=1 program": ("env", "A=1", "program"),
    "program '' last": ("program", "", "last"),
    "'/opt/my program' x": ("/opt/my program", "x"),
}

SHELL = [
    "echo $HOME",
    'echo "$HOME"',
    'echo "a \\$ b"',
    "echo `date`",
    'echo "`date`"',
    "a; b",
    "a && b",
    "a | b",
    "a < b",
    "a > b",
    "(a)",
    "echo *",
    "echo a?",
    "echo [ab]",
    "cd ~",
    "a # b",
    "a\nb",
    "a \\\nb",
    'echo "a\\\nb"',
    "A=1 program",
    "A='b c' program",
    "exec program",
    ". /etc/profile",
    "! program",
    "exit 3",
]


@pytest.mark.parametrize("text", DIRECT)
def test_a_plain_string_is_split_and_run_directly(text: str) -> None:
    """Words and quotes alone need no shell between the agent and the program."""
    assert parse(text) == CommandLine(DIRECT[text], shell=False)


@pytest.mark.parametrize("text", SHELL)
def test_shell_syntax_is_given_to_a_shell(text: str) -> None:
    """The string goes to /bin/sh untouched."""
    assert parse(text) == CommandLine(("/bin/sh", "-c", text), shell=True)


def test_a_list_is_an_argv_whatever_its_words_hold() -> None:
    """No shell looks at a list, so a value in it can't become a command."""
    assert parse(("echo", "$(rm -rf /)", "a b", "")) == CommandLine(("echo", "$(rm -rf /)", "a b", ""), False)


@pytest.mark.parametrize("command", ["", " \n", "''", (), ("",), "echo 'open", 'echo "open', "echo \\"])
def test_a_command_without_a_program_is_refused_and_not_shown(command: str | tuple[str, ...]) -> None:
    """The reason never holds a word of the command: it may be a secret."""
    reason = problem(command)
    assert reason and "open" not in reason
    with pytest.raises(ValueError, match=r"expected a program|unclosed quotation"):
        parse(command)


# Only what does no harm when a real shell runs it.
words = st.text("ab '\"\\\n=x-,.:%@{}!", max_size=12)


@settings(max_examples=300, deadline=None)
@given(words)
def test_words_are_split_as_the_shell_splits_them(text: str) -> None:
    """A program that is run directly gets the same words from /bin/sh."""
    command = f"printf %s\\\\0 {text}"
    try:
        line = parse(command)
    except ValueError:
        line = None
    shell = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False)
    if line is None:
        # Shells read a last backslash as a character; here it is refused as a mistake.
        assert shell.returncode != 0 or text.endswith("\\")
    elif not line.shell:
        direct = subprocess.run(line.argv, capture_output=True, check=False)
        assert (direct.returncode, direct.stdout) == (shell.returncode, shell.stdout)


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("program $HOME", True),
        ("ulimit -n 1024; program", True),
        ("ulimit -n 1024; exec program", False),
        ("exec program", False),
        ("cd /tmp && exec program", False),
        ("program --executor $HOME", True),
        ("program", False),
    ],
)
def test_a_shell_that_never_says_exec_is_known(text: str, lacks: bool) -> None:
    """Only such a shell stays between the agent's process id and the daemon."""
    assert parse(text).lacks_exec is lacks


EXTEND_START = [
    "kolla_extend_start",
    "bash kolla_extend_start",
    "/bin/bash kolla_extend_start",
    ("kolla_extend_start",),
    ("bash", "kolla_extend_start"),
]


def run_extend_start(command: str | tuple[str, ...], script: str, tmp_path: Path) -> tuple[int, str]:
    """Run `command` where kolla_extend_start is on the path and, as in Kolla's images, no program."""
    file = tmp_path / "kolla_extend_start"
    file.write_text(script)
    file.chmod(0o644)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(parse(command).argv, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("command", EXTEND_START)
def test_kolla_extend_start_is_sourced_though_it_is_no_program(
    command: str | tuple[str, ...], tmp_path: Path
) -> None:
    """As Kolla's start.sh does it, alone or after bash."""
    assert run_extend_start(command, "echo sourced; return 0; echo never", tmp_path) == (0, "sourced\n")


@pytest.mark.parametrize("script", ["false; echo on", "false | true; echo on", 'echo "$NOBODY"; echo on'])
def test_a_failure_inside_kolla_extend_start_is_not_hidden(script: str, tmp_path: Path) -> None:
    """errexit, pipefail and nounset hold inside it."""
    status, output = run_extend_start("kolla_extend_start", script, tmp_path)
    assert status != 0
    assert "on" not in output


def test_kolla_extend_start_by_its_path_is_that_file(tmp_path: Path) -> None:
    """A path is taken as it is, spaces and all."""
    directory = tmp_path / "a $b"
    directory.mkdir()
    assert run_extend_start((f"{directory}/kolla_extend_start",), "echo here", directory) == (0, "here\n")


@pytest.mark.parametrize("text", ["kolla_extend_start --more", "bash kolla_mesos_extend_start", "bash -x a"])
def test_only_kolla_extend_start_alone_is_sourced(text: str) -> None:
    """With arguments, or under another name, it is a program like any other."""
    assert parse(text).argv == tuple(text.split())
