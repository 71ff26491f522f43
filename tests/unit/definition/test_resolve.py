"""A command right before it runs: all its strings are rendered and checked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kolla_mesos_start.definition.model import File, ResolvedCommand
from kolla_mesos_start.definition.ready import Ready
from kolla_mesos_start.definition.resolve import late_texts, resolve
from kolla_mesos_start.definition.strings import Text
from kolla_mesos_start.errors import BadDefinition
from tests.unit.definition.examples import ANY, daemon, templated, unrendered

LATE = {
    "commands.a.command[1]": "{{ word }}",
    "commands.a.env.A": "{{ a }}",
    "commands.a.files.f.dest": "/{{ d }}",
    "commands.a.files.f.owner": "{{ o }}",
    "commands.a.files.f.perm": "{{ p }}",
    "commands.a.user": "{{ u }}",
    "service.daemon.command": "run {{ word }}",
    "service.daemon.ready.command[1]": "{{ h }}",
}

LATE_VALUES = {
    **{
        "{{ word }}": "$(x); y",
        "{{ a }}": '"}, {"',
        "/{{ d }}": "/etc/f",
        "{{ o }}": "a:b",
        "{{ p }}": "0640",
    },
    **{"{{ u }}": "keystone", "run {{ word }}": "run 'a b' c", "{{ h }}": "10.0.0.1"},
}


def test_the_late_templates_are_the_strings_that_a_process_or_a_file_gets() -> None:
    """They are rendered when the command is about to run, and not before."""
    texts = [text for step in templated().all_commands for text in late_texts(step)]
    assert {text.label: text.text for text in texts} == LATE


def test_resolving_renders_every_string() -> None:
    """The items of a list are never split or parsed, even if they look like JSON or shell."""
    first, last = (resolve(step, lambda text: LATE_VALUES[text.text]) for step in templated().all_commands)
    assert (first.argv, first.shell) == (("echo", "$(x); y", "plain"), False)
    assert first.command.command == first.argv
    assert first.command.env == (("A", '"}, {"'), ("B", "plain"))
    assert first.command.files == (File("f", "/etc/f", "a:b", "0640", False, "/m/f", True, None, False),)
    assert first.command.files[0].mode == 0o640
    assert first.command.user == "keystone"
    assert last.argv == ("run", "a b", "c")
    assert last.command.command == last.argv
    assert last.command.ready == Ready("command", ("ping", "10.0.0.1"), 4.0, 5.0, 3, "ping")
    for step in (first, last):
        assert late_texts(step.command) == ()


def resolved(render: Callable[[Text], str] = unrendered, **keys: ANY) -> ResolvedCommand:
    return resolve(daemon(**keys), render)


def test_a_string_is_rendered_before_it_is_split_or_given_to_a_shell() -> None:
    """The rendered text decides, not the template."""
    step = resolved(lambda text: "run a; b", command="{{ c }}")
    assert (step.argv, step.shell, step.lacks_exec) == (("/bin/sh", "-c", "run a; b"), True, True)
    step = resolved(lambda text: "run a", command="run {{ hostvars['x']['y'] }}")
    assert (step.argv, step.shell, step.lacks_exec) == (("run", "a"), False, False)


def test_text_without_a_template_is_never_rendered() -> None:
    """So no newline is cut from it, and jinja2 is not imported."""
    step = resolved(command=["a", "b\n"], env={"A": "x\n"}, ready={"http": "http://h/"}, user="u")
    assert (step.argv, step.command.env, step.command.user) == (("a", "b\n"), (("A", "x\n"),), "u")


LATE_BAD: list[tuple[dict[str, ANY], str, str]] = [
    ({"command": "{{ x }}"}, " ", "service.daemon.command: is empty"),
    ({"command": "{{ x }}"}, "s3cret 'open", "service.daemon.command: has an unclosed quotation"),
    ({"command": ["{{ x }}"]}, "", "service.daemon.command: is empty"),
    ({"command": ["a", "{{ x }}"]}, "s3cret\0", "service.daemon.command[1]: holds a NUL"),
    ({"env": {"A": "{{ x }}"}}, "s3cret\0", "service.daemon.env.A: holds a NUL"),
    ({"user": "{{ x }}"}, "s3cret x", "service.daemon.user: expected a user"),
    ({"ready": {"http": "{{ x }}"}}, "s3cret", "service.daemon.ready.http: expected http"),
    ({"ready": {"command": "{{ x }}"}}, "", "service.daemon.ready.command: is empty"),
    ({"files": {"f": {"dest": "{{ x }}"}}}, "s3cret", "files.f.dest: expected the absolute path"),
    ({"files": {"f": {"dest": "/f", "owner": "{{ x }}"}}}, "s3 cret", "files.f.owner: expected user"),
    ({"files": {"f": {"dest": "/f", "perm": "{{ x }}"}}}, "s3cret", "files.f.perm: expected octal"),
]


@pytest.mark.parametrize(("keys", "value", "words"), LATE_BAD)
def test_a_bad_result_of_a_template_is_refused_before_the_command_runs(
    keys: dict[str, ANY], value: str, words: str
) -> None:
    """By its label, and without the value."""
    with pytest.raises(BadDefinition) as caught:
        resolved(lambda text: value, **keys)
    assert len(caught.value.issues) == 1
    assert words in str(caught.value)
    assert "s3" not in str(caught.value)
