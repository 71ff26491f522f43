"""Templates: in definitions and files, with whatever values there are."""

from __future__ import annotations

import re
from random import Random

from kolla_mesos_start.definition.strings import Text
from kolla_mesos_start.render.context import Renderer, file_text, variable_names
from tests.fuzz.inputs import ODD, Fuzz, changed, published, seeded
from tests.unit.render.test_context import CONSTRUCTS, context

FILES = [path.read_bytes() for path in published("*") if path.parent.name in ("files", "templates")]
VALID = [
    *(each for each in FILES if b"{{" in each or b"{%" in each),
    *(template.encode() for template, _ in CONSTRUCTS),  # of kolla-mesos
    b"{% for host in groups['mariadb'] %}{{ hostvars[host]['ansible_' + api_interface].ipv4 }}{% endfor %}",
    b"{{ list_ips_by_service('infra/mariadb/mariadb', 3306, ' ', 'tcp://') }}",
    b"{% for one in ready_instances('a/b') %}{{ one.host }}:{{ one['ports'] | first }}\n{% endfor %}",
    b"{{ a | default('b') | bool }} {{ c is defined }} {{ d | regex_replace('^(a)', '\\\\1b') }}",
    b"{{ get_ip_address() }}{{ get_hostname() }}",
    b"{% set x = {'a': [1, 2]} %}{{ x.a | sum + y }}{% if not z %}{{ x | tojson }}{% endif %}",
    b"{% raw %}{{{% endraw %}",
    b"{% macro m(a, b=2) %}{{ a ~ b }}{{ varargs }}{% endmacro %}{{ m(1) }}{% call m(1) %}{% endcall %}",
]
WORDS = [
    *(b"\xc3\xa9", b"\xff", b"\n"),
    *(
        b"{{;}};{%;%};{#;#};-;|;.;[;];(;);';\";~; + ; * 2; / 0; in ; is ; not ; if ; else ;a;groups;"
        b"hostvars;a.b['c']; | first; | int; | map(attribute='a') | list; | sort; | join(',');"
        b" | length;loop;.__class__;['__init__'];.format(1); | attr('x'); | xmlattr;self;caller();"
        b"range(7);{% include 'a' %};{% extends a %};{% import 'a' as b %};{% block b %};"
        b"{% endblock %};{% for a in b recursive %};{% endfor %};{% if a %};{% endif %};"
        b"{% set a.b = 1 %};%s;%d;get_ip_address('x');cpu_count;namespace();dict();{{ a[b:c] }}"
    ).split(b";"),
]
TEXTS = [each for each in ODD if isinstance(each, str) and len(each) < 100]


def small(data: bytes) -> bytes:
    """Without large numbers or powers: time and memory of a container are its templates' to use up."""
    return re.sub(rb"[0-9]{2,}", b"7", data).replace(b"**", b"*")


@seeded
def test_a_template(fuzz: Fuzz, seed: int) -> None:
    """It is rendered, or what is wrong or missing is named with its line (78), and without a value."""

    def make(random: Random) -> tuple[bytes, dict[str, str], bool]:
        names = ("a", "b", "api_interface", "mariadb_port", "root", "port")
        values = {name: random.choice(TEXTS) for name in names if random.random() < 0.5}
        return small(changed(random, VALID, WORDS)), values, random.random() < 0.3

    def attempt(tried: tuple[bytes, dict[str, str], bool]) -> None:
        data, values, missing_is_empty = tried
        text = file_text("a.conf", data)
        variable_names([text] if text else [])
        renderer = Renderer(context(values), missing_is_empty)
        renderer.content("a.conf", data)
        renderer.text(Text("commands.a.command", data.decode("utf-8", "surrogateescape")))
        renderer.check(lambda name: [f"/variables/{name}"])

    fuzz("templates", seed, make, attempt)
