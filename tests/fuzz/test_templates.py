"""Templates: in definitions and files, with whatever values there are."""

from __future__ import annotations

import re
from random import Random

from kolla_mesos_start.definition.texts import Text
from kolla_mesos_start.render.context import Renderer, file_text, variable_names
from tests.fuzz.inputs import ODD, Fuzz, changed, published, seeded
from tests.render.test_context import CONSTRUCTS, context

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
    *(
        b"{{",
        b"}}",
        b"{%",
        b"%}",
        b"{#",
        b"#}",
        b"-",
        b"|",
        b".",
        b"[",
        b"]",
        b"(",
        b")",
        b"'",
        b'"',
        b"~",
        b" + ",
    ),
    *(
        b" * 2",
        b" / 0",
        b" in ",
        b" is ",
        b" not ",
        b" if ",
        b" else ",
        b"a",
        b"groups",
        b"hostvars",
        b"a.b['c']",
    ),
    *(
        b" | first",
        b" | int",
        b" | map(attribute='a') | list",
        b" | sort",
        b" | join(',')",
        b" | length",
        b"loop",
    ),
    *(
        b".__class__",
        b"['__init__']",
        b".format(1)",
        b" | attr('x')",
        b" | xmlattr",
        b"self",
        b"caller()",
        b"range(7)",
    ),
    *(
        b"{% include 'a' %}",
        b"{% extends a %}",
        b"{% import 'a' as b %}",
        b"{% block b %}",
        b"{% endblock %}",
    ),
    *(
        b"{% for a in b recursive %}",
        b"{% endfor %}",
        b"{% if a %}",
        b"{% endif %}",
        b"{% set a.b = 1 %}",
        b"\xc3\xa9",
    ),
    *(
        b"\xff",
        b"\n",
        b"%s",
        b"%d",
        b"get_ip_address('x')",
        b"cpu_count",
        b"namespace()",
        b"dict()",
        b"{{ a[b:c] }}",
    ),
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
