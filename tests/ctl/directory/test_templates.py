"""What a template uses, without rendering it."""

from __future__ import annotations

import jinja2
import pytest

from kolla_mesos_start.ctl.directory.templates import BadTemplate, read


@pytest.mark.parametrize(
    ("source", "risky"),
    [
        ("{{ hostvars[a]['ansible_' + b] }}", False),
        ("{% for c in groups['a'] %}{{ c }}{% endfor %}", False),
        ("{{ a ~ 1 }}", False),
        ("{{ a + 1 }}", True),
        ("{{ 'a' + cpu_count }}", True),
        ("{{ 'a' + b | int }}", True),
        ("{% for c in range(2) %}{{ 'a' + c }}{% endfor %}", True),
        ("{{ a.b }}", True),
        ("{{ -a }}", True),
    ],
)
def test_what_only_rendering_can_tell(source: str, risky: bool) -> None:
    """Texts can be put together, whatever they are; it takes time to try out every template."""
    assert read(source).risky == risky


def test_the_services_that_a_template_lists() -> None:
    """Those that it names; which others it finds in a variable, only an agent knows."""
    template = read(
        "{{ list_ips_by_service('a/b', port) }}\n{{ ready_instances(c) }}{{ ready_instances(name='d') }}"
        "{% for m in groups['e'] %}{{ groups[m] }}{% endfor %}\n{{ list_addresses_by_service('f') }}"
    )
    assert sorted(template.listed) == [("a/b", False, 1), ("e", True, 2), ("f", False, 3)]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("", {}),
        ("a {{ b }}\n{{c}} {{ b }}\n", {"b": 1, "c": 2}),
        ("{{ b | upper }}\n{{ c.d[e] }} {{ f }}", {"b": 1, "c": 2, "e": 2, "f": 2}),
        ("{% for a in b %}{{ a }}{{ loop.index }}{% endfor %}", {"b": 1}),
        ("{% set a = b %}{{ a }}", {"b": 1}),
        ("{% macro m(a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", {"b": 1}),
        ("{% if a %}\n{{ b }}\n{% endif %}", {"a": 1, "b": 2}),
        ("{{ '{{ a }}' }}{{ \"{{ b }}\" }} {{ c }}", {"c": 1}),
        ("{% raw %}{{ a }}{% endraw %}{{ b }}", {"b": 1}),
        ("{# {{ a }} #}{{ true }}{{ None }}", {}),
        ("a\r\n{{ b }}", {"b": 2}),
        ("{% set a = namespace(b=1) %}{{ range(2) }}", {}),
        ("{{ namespace ~ 1 }}\n{{ range }}{{ range(2) }}", {"namespace": 1, "range": 2}),
    ],
)
def test_the_names_that_a_template_looks_up(source: str, names: dict[str, int]) -> None:
    """With the line of the first use; what it sets itself, or quotes, is none."""
    assert read(source).names == names


@pytest.mark.parametrize(
    "source", ["a {{ b }} {{c}}", "{{ b }}\n", "{{ b }}\n\n", "{{b}}{{ b }}", "x\n{{ c }}\n y"]
)
def test_a_template_of_names_is_filled_as_jinja2_does_it(source: str) -> None:
    """The newline at the end is cut once, and a value is not rendered again."""
    values = {"b": "{{ c }}\n", "c": "\\1"}
    assert read(source).is_plain
    assert read(source).filled(values) == jinja2.Template(source).render(values)


def test_what_may_be_missing_and_what_is_tested_for_truth() -> None:
    template = read(
        "{{ a | default(1) }}{% if b is defined and not c %}{% elif d | bool %}{% endif %}{{ 1 if e }}"
    )
    assert template.optional == {"a", "b"}
    assert {name for name, _ in template.truths} == {"c", "e"}


SUMS = {
    "a * 2": ["a"],
    "a | int * 2": [],
    "a + b": ["a", "b"],
    "a ~ b": [],
    "a + ':' + b": [],
    "a == 4": ["a"],
    "a == '4'": [],
    "a != b | int": ["a"],
    "a == b": [],
    "a < b": ["a", "b"],
    "a in [1, 2]": ["a"],
    "a in ['1', '2']": [],
    "a in b": [],
}


@pytest.mark.parametrize("expression", SUMS)
def test_where_a_text_may_be_meant_as_a_number(expression: str) -> None:
    """jinja2 repeats, joins or compares the texts; what it refuses is an error elsewhere."""
    found = read(f"{{{{ {expression} }}}}").sums
    assert [name for names, _ in found for name in names] == SUMS[expression]
    assert not read(f"{{% set a = a | int %}}{{{{ {expression} }}}}").sums


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ("a\n{% if b %}\n{{ c }}", 2, "Unexpected end"),
        ("a\n\n{{ b | upperr }}", 3, "No filter named 'upperr'"),
        ("{{ b is evenn }}", 1, "No test named 'evenn'"),
        ("a\n{{ b", 2, "the tag is not closed: add '}}'"),
        ("{{ " + "(" * 3000 + "b" + ")" * 3000 + " }}", 1, "nested too deep"),
        ("{{ b" + ".c" * 3000 + " }}", 1, "nested too deep"),
        ("{{ " + "1" * 5000 + " + b }}", 1, "too long"),
    ],
)
def test_a_template_that_can_not_be_read(source: str, line: int, reason: str) -> None:
    """The names that need no parser don't move the lines of the others."""
    with pytest.raises(BadTemplate, match=reason) as caught:
        read("{{ x }}" + source)
    assert caught.value.line == line
