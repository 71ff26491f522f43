"""Templates: those of kolla-mesos render as in plain jinja2, and all that is missing is reported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pytest

from kolla_mesos_start.definition.strings import Text
from kolla_mesos_start.errors import CannotRender, NoConnection
from kolla_mesos_start.render.context import Context, Renderer, file_text, variable_names
from kolla_mesos_start.render.sandbox import Missing, Sandbox
from tests.conftest import LogLines

SECRET = "hunter2-secret"


def member(name: str, private: str, public: str, **more: object) -> dict[str, Any]:
    """Facts as kolla-mesos wrote them, with the address that they are known by."""
    return {
        "private_address": private,
        "ansible_hostname": name,
        "api_interface": "eth0",
        "ansible_eth0": {"ipv4": {"address": public}},
        "ansible_eth1": {"ipv4": {"address": private}},
        **more,
    }


FIRST = member("one", "10.0.0.1", "192.0.2.1")
SECOND = member("two", "10.0.0.2", "192.0.2.2", host="two")
SIXTH = {"ansible_hostname": "six", "api_interface": "eth1", "private_address": "fd00::6", "host": "six"}

PARTIES: dict[str, list[dict[str, Any]]] = {
    "infra/mariadb/mariadb": [SECOND, FIRST],
    "infra/memcached/memcached": [FIRST],
    "infra/rabbitmq/rabbitmq": [],
    "infra/six/six": [SIXTH, FIRST],
}

READY = {
    "openstack/keystone/keystone-api": [
        {"host": "two", "address": "10.0.0.2", "ports": [5000]},
        {"host": "one", "address": "10.0.0.1", "ports": [5000, 35357]},
    ]
}

VARIABLES = {
    "api_interface": "eth0",
    "database_password": SECRET,
    "distro": "ubuntu",
    "empty": "",
    "enable_ceph": "no",
    "enable_nova": "Yes",
    "enable_true": "TRUE",
    "mapping": "{'auth_url': 'x'}",
    "memcached_port": "11211",
    "plugin": "openvswitch",
    "roles": "api scheduler conductor",
}

ADDRESSES = {None: "10.0.0.1", "eth0": "192.0.2.1", "eth1": "10.0.0.1"}


def context(variables: Mapping[str, str] = VARIABLES, **more: Any) -> Context:
    return Context(
        deployment_id="cloud",
        service_name="infra/mariadb/mariadb",
        address="10.0.0.1",
        hostname="one",
        api_interface="eth0",
        variables=variables,
        members=lambda service: PARTIES.get(service, []),
        parties=lambda: PARTIES,
        ready_instances=lambda service: READY.get(service, []),
        get_ip_address=ADDRESSES.__getitem__,
        host="ctl-1",
        cpu_count=2,
        facts=FIRST,
        image_generation="2026.1",
        services=lambda role: [service for service in PARTIES if service.rsplit("/", 1)[-1] == role],
    )._replace(**more)


def render(template: str, variables: Mapping[str, str] = VARIABLES, **more: Any) -> str:
    """The text, of which nothing must be missing."""
    renderer = Renderer(context(variables, **more))
    text = renderer.text(Text("label", template))
    renderer.check(looked_at)
    return text


def looked_at(name: str) -> Sequence[str]:
    return (f"/kolla/cloud/infra/mariadb/mariadb/variables/{name}", f"/kolla/cloud/variables/{name}")


def complaint(*templates: str, variables: Mapping[str, str] = VARIABLES, **more: Any) -> str:
    """The message about templates that can't be rendered; they are called a, b, ..."""
    renderer = Renderer(context(variables, **more))
    with pytest.raises(CannotRender) as caught:
        for number, template in enumerate(templates):
            renderer.text(Text(chr(ord("a") + number), template))
        renderer.check(looked_at)
    assert caught.value.status == 78
    return caught.value.reason


def nothing_behind(error: BaseException) -> bool:
    """Whether no traceback shows another error, whose message may hold a value."""
    return error.__cause__ is None and (error.__suppress_context__ or error.__context__ is None)


CONSTRUCTS = [
    # A template, and its text.
    ("port = {{ memcached_port }}", "port = 11211"),
    ("{{ empty }}|", "|"),
    ("{# a remark #}kept", "kept"),
    ("{% set lib = '/a.so' if distro == 'ubuntu' else '/b.so' %}\nuse {{ lib }}\n", "\nuse /a.so"),
    ("{% set name = 'mysql' if distro in ['debian', 'ubuntu'] else '' %}/etc/{{ name }}/x", "/etc/mysql/x"),
    ("{% if not distro in ['debian', 'ubuntu'] %}rpm{% else %}deb{% endif %}", "deb"),
    (
        '{% if plugin == "linuxbridge" %}\nlb\n{% elif plugin == "openvswitch" %}\novs\n'
        "{% else %}\nx\n{% endif %}\n",
        "\novs\n",
    ),
    ("{% if enable_nova | bool %}on{% endif %}", "on"),
    ("{% if enable_true | bool %}on{% endif %}", "on"),
    ("{% if enable_ceph | bool %}{{ nowhere }}{% else %}off{% endif %}", "off"),
    ("{{ empty | bool }} {{ memcached_port | bool }}", "False False"),
    ("{{ plugin | regex_replace('v(.)', '<\\\\1>') }}", "open<s>witch"),
    ("{{ plugin | regex_replace('OPEN', '', ignorecase=True) }}", "vswitch"),
    ("{{ ('openstack:' ~ plugin) | b64encode }}", "b3BlbnN0YWNrOm9wZW52c3dpdGNo"),
    ("{{ 'ä' | b64encode }}", "w6Q="),
    (
        "{% for role in roles.split() %}{{ role }}{% if not loop.last %},{% endif %}{% endfor %}",
        "api,scheduler,conductor",
    ),
    (
        "{% for role in roles.split() %}{{ role }}{{ ';' if not loop.last }}{% endfor %}",
        "api;scheduler;conductor",
    ),
    ("{{ roles.split() | length }}", "3"),
    ("{{ list_ips_by_service('infra/mariadb/mariadb').split(',') | length }}", "2"),
    ("{{ list_ips_by_service('infra/rabbitmq/rabbitmq').split(',') | length }}", "1"),
    ("m = {{ list_ips_by_service('infra/memcached/memcached', memcached_port) }}", "m = 10.0.0.1:11211"),
    ("{{ list_ips_by_service('infra/mariadb/mariadb', 4567) }}", "10.0.0.1:4567,10.0.0.2:4567"),
    (
        "{{ list_ips_by_service('infra/mariadb/mariadb', separator=' ', prefix='tcp://', port='1') }}",
        "tcp://10.0.0.1:1 tcp://10.0.0.2:1",
    ),
    ("<{{ list_ips_by_service('infra/rabbitmq/rabbitmq', 5672) }}>", "<>"),
    ("<{{ list_ips_by_service('infra/not/there') }}>", "<>"),
    ("{{ hostvars[inventory_hostname]['ansible_' + api_interface]['ipv4']['address'] }}", "192.0.2.1"),
    ("{{ hostvars[inventory_hostname].ansible_hostname }} {{ ansible_hostname }}", "one 10.0.0.1"),
    (
        "gcomm://{% if (groups['mariadb'] | length) > 1 %}{% for host in groups['mariadb'] %}"
        "{{ hostvars[host]['ansible_' + hostvars[host]['api_interface']]['ipv4']['address'] }}:4567"
        "{% if not loop.last %},{% endif %}{% endfor %}{% endif %}",
        "gcomm://192.0.2.1:4567,192.0.2.2:4567",
    ),
    ("{{ groups['memcached'] }} {{ groups['rabbitmq'] }}", "['10.0.0.1'] []"),
    ("{% for host in groups['rabbitmq'] %}{{ host }}{% else %}nobody{% endfor %}", "nobody"),
    (
        "{{ get_ip_address() }} {{ get_ip_address(api_interface) }} {{ get_hostname() }}",
        "10.0.0.1 192.0.2.1 one",
    ),
    ("{{ deployment_id }}/{{ service_name }} {{ cpu_count * 2 }}", "cloud/infra/mariadb/mariadb 4"),
    ("{{ kolla_hostname }}, not {{ get_hostname() }}", "ctl-1, not one"),
    ("{% raw %}{{ later }}{% endraw %} {{ distro }}", "{{ later }} ubuntu"),
    ("auth={{ '{{ later }}' }} {{ '{%' }}", "auth={{ later }} {%"),
    ("-e \"{'auth':{{ mapping }}}\"", "-e \"{'auth':{'auth_url': 'x'}}\""),
    (
        "LOCATION: '{{ list_ips_by_service('infra/memcached/memcached', memcached_port) }}'",
        "LOCATION: '10.0.0.1:11211'",
    ),
    (
        "{{ nowhere | default('x') }} {{ distro | default('x') }} {{ nowhere | d(plugin) }}",
        "x ubuntu openvswitch",
    ),
    ("{{ empty | default('x', true) }} {{ nowhere | default('y', true) }}", "x y"),
    ("{% if nowhere is defined %}a{% endif %}{% if nowhere is not defined %}b{% endif %}", "b"),
    ("{% if distro is defined and distro == 'ubuntu' %}a{% endif %}", "a"),
    ("{{ hostvars['10.9.9.9'] | default('nobody') }}", "nobody"),
    (
        "{% for one in ready_instances('openstack/keystone/keystone-api') %}"
        "{{ one.address }}:{{ one.ports[0] }} {% endfor %}",
        "10.0.0.1:5000 10.0.0.2:5000 ",
    ),
    ("{{ ready_instances('a/b/nobody') }}", "[]"),
    ("{% macro line(key) %}{{ key }} = {{ plugin }}{% endmacro %}{{ line('a') }}", "a = openvswitch"),
    ("{{ {'b': 1, 'a': [true]} | tojson }}", '{"a": [true], "b": 1}'),
    (
        "{{ distro ~ '-' ~ 5 }} {{ 'a' 'b' }} {{ '%s!' % distro }} {{ '{}?'.format(distro) }}",
        "ubuntu-5 ab ubuntu! ubuntu?",
    ),
    ("  {%- if true %}  x\n  {% endif -%}  y", "  x\n  y"),
    ("a\r\nb {{ distro }}\r\n\r\n", "a\nb ubuntu\n"),
    ("one newline is cut {{ distro }}\n", "one newline is cut ubuntu"),
    ("\n\n{{ distro }}\n\n\n", "\n\nubuntu\n\n"),
    ("Grüße \U0001f600 {{ distro }} \ufeff", "Grüße \U0001f600 ubuntu \ufeff"),
]


@pytest.mark.parametrize(("template", "text"), CONSTRUCTS)
def test_each_construct_of_kolla_mesos_renders_as_in_jinja2(template: str, text: str) -> None:
    """What a definition or a file could say to kolla-mesos means the same here. Only a file's final newline,
    which jinja2 cuts, stays."""
    assert render(template) == text
    renderer = Renderer(context())
    newline = "\n" if template.endswith("\n") else ""
    assert renderer.content("x", template.encode()) == f"{text}{newline}".encode()
    assert renderer.missing == ()


# -- values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, True) for value in ("yes", "on", "1", "true", "y", "t", "Yes", "ON", "TRUE", "T", 1, True)),
        *((value, False) for value in ("no", "off", "0", "n", "f", "", "2", "yes!", " true", 0, False, None)),
    ],
)
def test_bool_has_the_true_values_of_ansible(value: object, expected: bool) -> None:
    assert render(f"{{{{ {value!r} | bool }}}}") == str(expected)


GLOBALS = ["namespace", "dict", "range", "lipsum", "cycler", "joiner"]


@pytest.mark.parametrize("name", GLOBALS)
def test_a_published_variable_wins_over_a_global_of_jinja2(name: str) -> None:
    template = f"{{{{ {name} }}}}"
    assert variable_names([Text("label", template)]) == {name}
    assert render(template, variables={name: "kube-system"}) == "kube-system"


@pytest.mark.parametrize("name", GLOBALS)
@pytest.mark.parametrize("use", ["{{ %s }}", "{{ 'a' ~ %s }}", "{{ %s | upper }}", "{% if %s %}{% endif %}"])
def test_a_global_of_jinja2_is_not_the_value_of_a_missing_variable(name: str, use: str) -> None:
    assert f"missing: {name} (used in a line 1" in complaint(use.replace("%s", name))


def test_a_global_of_jinja2_can_be_called_unless_a_variable_has_its_name() -> None:
    template = (
        "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}"
    )
    assert render(template + "{{ dict(a=1) }}") == "3{'a': 1}"
    assert "TypeError" in complaint("{{ range(3) }}", variables={"range": "10.0.0.1-10.0.0.9"})
    assert render("{{ namespace is defined }} {{ namespace | default('none') }}") == "False none"


@pytest.mark.parametrize(
    "expression",
    [
        "get_hostname",
        "list_ips_by_service",
        "distro.upper",
        "'a'.upper",
        "self",
        "namespace(a=1)",
        "cycler('a', 'b')",
        "roles.split() | map('upper')",
        "m",
    ],
)
def test_a_python_object_is_never_written(expression: str) -> None:
    """It would be `<function ... at 0x7f...>`, in a file that counts as rendered."""
    reason = complaint("{% macro m() %}{% endmacro %}\n{{ " + expression + " }}")
    assert reason.startswith("a line 2: the value is neither text, a number, a list nor a mapping")


@pytest.mark.parametrize("service", ["infra/mariadb/mariadb", "a/mariadb"])
def test_a_name_of_the_agent_wins_over_a_znode(service: str) -> None:
    """No published variable can stand in for what the agent knows itself."""
    names = ("deployment_id", "service_name", "inventory_hostname", "ansible_hostname", "cpu_count")
    template = " ".join(f"{{{{ {name} }}}}" for name in names)
    assert render(template, dict.fromkeys(names, "forged"), service_name=service) == (
        f"cloud {service} 10.0.0.1 10.0.0.1 2"
    )


@pytest.mark.parametrize(("variables", "interface"), [({}, "eth0"), ({"api_interface": "br0"}, "br0")])
def test_api_interface_is_the_public_one_unless_a_znode_has_it(
    variables: dict[str, str], interface: str
) -> None:
    """`api_interface` alone is a default: a znode of that name wins."""
    assert render("{{ api_interface }}", variables) == interface


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("'infra/six/six'", "10.0.0.1,fd00::6"),
        ("'infra/six/six', 80", "10.0.0.1:80,[fd00::6]:80"),
        ("'infra/six/six', '80', ' ', 'tcp://'", "tcp://10.0.0.1:80 tcp://[fd00::6]:80"),
        ("'infra/six/six', prefix='http://'", "http://10.0.0.1,http://[fd00::6]"),
        ("'infra/six/six', prefix='--to='", "--to=10.0.0.1,--to=fd00::6"),
        ("'infra/six/six', port=''", "10.0.0.1,fd00::6"),
    ],
)
def test_an_ipv6_address_stands_in_brackets_where_a_port_or_a_url_needs_it(call: str, text: str) -> None:
    """`fd00::6:80` would be another address."""
    assert render(f"{{{{ list_ips_by_service({call}) }}}}") == text


def test_an_unknown_role_has_an_empty_group() -> None:
    """A template can't know whether its peers were ever published."""
    assert render("{{ groups['nobody'] }}{{ groups.nobody | length }}{{ 'nobody' in groups }}") == "[]0False"


def test_hostvars_hold_this_host_before_its_presence_is_seen() -> None:
    """A task registers no presence, and its templates look at its own host all the same."""
    template = "{{ hostvars[inventory_hostname]['ansible_' + api_interface].ipv4.address }}"
    assert render(template, parties=lambda: {}) == "192.0.2.1"


def test_members_are_not_read_for_a_missing_name() -> None:
    """There is no such path."""

    def refuse(service: str) -> NoReturn:
        raise NoConnection(service)

    template = "{{ list_ips_by_service(m) }}{{ ready_instances(m) }}{{ get_ip_address(m) }}"
    reason = complaint(template, members=refuse, ready_instances=refuse, get_ip_address=refuse)
    assert reason.startswith("missing: m (used in a line 1;")


def test_ready_instances_are_in_the_order_of_hosts_and_then_of_ids() -> None:
    """Each replica must render the same list; the ids' order comes with the instances."""
    instances = [{"host": "b", "n": 1}, {"host": "a", "n": 2}, {"host": "a", "n": 3}, {"host": "b", "n": 4}]
    template = "{% for one in ready_instances('x') %}{{ one.host }}{{ one.n }} {% endfor %}"
    assert render(template, ready_instances=lambda service: instances) == "a2 a3 b1 b4 "


def test_an_error_of_the_ensemble_is_not_taken_for_one_of_the_template() -> None:
    """Exit status 69 is worth a retry, 78 is not."""

    def away(service: str) -> NoReturn:
        raise NoConnection("away")

    with pytest.raises(NoConnection):
        render("{{ list_ips_by_service('x') }}", members=away)


# -- which variables


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("no template", []),
        ("{{ a }}{{ b.c }}{{ d['e'] }}{{ f | default(g) }}", ["a", "b", "d", "f", "g"]),
        ("{% if a %}{{ b }}{% elif c %}{{ d }}{% else %}{{ e }}{% endif %}", ["a", "b", "c", "d", "e"]),
        ("{% for x in a %}{{ x }}{{ loop.index }}{{ y }}{% endfor %}", ["a", "y"]),
        ("{% set x = a %}{{ x }}", ["a"]),
        ("{% macro m(p) %}{{ p }}{{ q }}{% endmacro %}{{ m(r) }}", ["q", "r"]),
        ("{{ groups[a] }}{{ hostvars }}{{ get_ip_address(api_interface) }}", ["a", "api_interface"]),
        ("{{ get_hostname() }}{{ list_ips_by_service(a, b) }}{{ ready_instances(c) }}", ["a", "b", "c"]),
        ("{{ inventory_hostname }}{{ ansible_hostname }}{{ deployment_id }}{{ service_name }}", []),
        ("{{ range(3) | list }}{{ cpu_count }}", ["range"]),
        ("{% raw %}{{ a }}{% endraw %}{# {{ b }} #}{{ '{{ c }}' }}", []),
    ],
)
def test_the_variables_to_read_are_all_that_may_be_looked_up(template: str, expected: list[str]) -> None:
    """They are read together before rendering, so a branch not taken counts too."""
    assert sorted(variable_names([Text("x", "plain"), Text("y", template)])) == expected


# What a template uses of the parties -> the text, and whether all of them are read.
PARTY_USES = [
    (
        "{{ groups['mariadb'] }}{{ groups.memcached | length }}{{ groups.get('nobody', 'x') }}",
        "['10.0.0.1', '10.0.0.2']1x",
        False,
    ),
    ("{% for role in ['six', 'no'] %}{{ groups[role] }}{% endfor %}", "['10.0.0.1', 'fd00::6'][]", False),
    ("{{ groups.get(distro) }}", "None", False),
    ("{% for a in groups.mariadb %}{{ hostvars[a].ansible_hostname }}{% endfor %}", "onetwo", False),
    ("{% set all = groups.six %}{{ hostvars[all[1]]['ansible_hostname'] }}", "six", False),
    ("{{ hostvars[inventory_hostname]['ansible_hostname'] }}", "one", False),
    ("groups{# hostvars #}{{ distro }}", "groupsubuntu", False),
    ("{{ groups | length }}", "4", True),
    ("{{ 'six' in groups }}", "True", True),
    ("{% for role in groups %}{{ role[0] }}{% endfor %}", "mmrs", True),
    ("{{ groups.keys() | length }}", "4", True),
    ("{{ (groups | attr('values'))() | length }}", "4", True),
    ("{% set g = groups %}{{ g['memcached'] }}", "['10.0.0.1']", True),
    ("{{ groups.six | length }}{{ hostvars | length }}", "23", True),
]


@pytest.mark.parametrize(("template", "text", "whole"), PARTY_USES)
def test_all_parties_are_read_only_where_a_template_may_use_them_all(
    template: str, text: str, whole: bool
) -> None:
    """Else what it looks up is read."""
    reads: list[str] = []

    def parties() -> Mapping[str, Any]:
        reads.append("all")
        return PARTIES

    assert render(template, parties=parties) == text
    assert reads == ["all"] * whole


def test_an_address_that_no_group_named_is_looked_for_in_all_parties() -> None:
    """Once."""
    reads: list[str] = []

    def parties() -> Mapping[str, Any]:
        reads.append("all")
        return PARTIES

    template = (
        "{{ groups['memcached'] }}{{ hostvars['10.0.0.2'].ansible_hostname }}{{ hostvars.get('10.9') }}"
    )
    assert render(template, parties=parties) == "['10.0.0.1']twoNone"
    assert reads == ["all"]


# -- what is missing


@pytest.mark.parametrize("name", ["my-var", "my.var", "not-my"])
def test_a_variable_that_no_template_can_use_is_named(name: str) -> None:
    """jinja2 reads two names with an operator between them."""
    found = complaint(f"{{{{ {name} }}}}", variables={name: "1"})
    other = re.sub("[-.]", "_", name)
    assert f"; templates can't use '{name}', because it contains - or .: rename it to {other}" in found


@pytest.mark.parametrize("template", ["{{ workers + 1 }}", "{{ workers > 4 }}", "{{ workers // 2 }}"])
def test_a_text_that_can_not_be_calculated_with_is_told_so(template: str) -> None:
    assert "each variable is a text: to calculate or compare with a number, write NAME | int" in complaint(
        template, variables={"workers": "4"}
    )


def test_all_that_is_missing_is_reported_with_file_line_and_znodes() -> None:
    """One failure, one list: nobody has to start a container once for each variable."""
    renderer = Renderer(context())
    renderer.text(Text("commands.x.env.PORT", "{{ port }}"))
    renderer.content("nova.conf", b"[a]\nx = {{ distro }}\ny = {{ port }}\n\nz = {{ token }}{{ port }}\n")
    assert renderer.missing == (
        Missing("port", "commands.x.env.PORT", 1, True),
        Missing("port", "file nova.conf", 3, True),
        Missing("token", "file nova.conf", 5, True),
        Missing("port", "file nova.conf", 5, True),
    )
    with pytest.raises(CannotRender) as caught:
        renderer.check(looked_at)
    service = "/kolla/cloud/infra/mariadb/mariadb/variables"
    assert caught.value.reason == (
        "missing: port (used in commands.x.env.PORT line 1; file nova.conf line 3; file nova.conf line 5; "
        f"looked at {service}/port, /kolla/cloud/variables/port), "
        f"token (used in file nova.conf line 5; looked at {service}/token, /kolla/cloud/variables/token)"
    )


NESTED = """\
{% if distro == 'ubuntu' %}
{% for role in roles.split() %}
{{ role }} = {{ in_loop }}
{% endfor %}
{% else %}
{{ not_taken }}
{% endif %}
{% set kept = in_set + 1 %}
{% macro m() %}

{{ in_macro }}
{% endmacro %}
{{ m() }}
{{ distro
   ~ over_lines }}
{{ list_ips_by_service('infra/mariadb/mariadb', in_call) }}
{% if in_test | bool %}{% elif in_elif == 'x' %}{% endif %}
{% for x in in_for %}{{ x }}{% endfor %}
"""


def test_a_missing_variable_is_reported_with_its_line() -> None:
    """In a loop, a macro, an argument, a filter or a test; and never for a branch that was not taken."""
    renderer = Renderer(context())
    renderer.text(Text("n", NESTED))
    assert [(one.name, one.line) for one in renderer.missing] == [
        ("in_loop", 3),
        ("in_set", 8),
        ("in_macro", 11),
        ("over_lines", 14),
        ("in_call", 16),
        ("in_test", 17),
        ("in_elif", 17),
        ("in_for", 18),
    ]


USES = [
    "{{ m }}",
    "{{ m.a.b['c'] }}",
    "{{ m['a'] }}",
    "{{ m() }}",
    "{{ m.split(',') | length }}",
    "{{ m + 1 }}{{ 1 + m }}{{ 'a' + m }}{{ m - 1 }}{{ m * 2 }}",
    "{{ m / 2 }}{{ m // 2 }}{{ m % 2 }}{{ -m }}{{ m ** 2 }}",
    "{{ m ~ 'a' }}",
    "{{ '%s' % m }}",
    "{{ '{}'.format(m) }}",
    "{{ m == 'a' }}",
    "{{ m != 'a' }}",
    "{{ m < 1 }}",
    "{{ 1 >= m }}",
    "{{ m in ['a'] }}",
    "{{ 'a' in m }}",
    "{{ 'a' if m else 'b' }}",
    "{{ m or 'a' }}",
    "{{ not m }}",
    "{% if m %}{% endif %}",
    "{% for x in m %}{% endfor %}",
    "{% for x in m.y %}{% endfor %}",
    "{% set x = m %}{{ x }}",
    "{% set x, y = m %}",
    "{{ m | bool }}",
    "{{ m | int + 1 }}",
    "{{ m | float }}",
    "{{ m | length }}",
    "{{ m | upper }}",
    "{{ m | trim }}",
    "{{ m | join(',') }}",
    "{{ m | list }}",
    "{{ m | first }}",
    "{{ m | sort }}",
    "{{ m | replace('a', 'b') }}",
    "{{ 'a' | replace('a', m) }}",
    "{{ m | b64encode }}",
    "{{ m | regex_replace('a', 'b') }}",
    "{{ 'a' | regex_replace(m, 'b') }}",
    "{{ 'a' | regex_replace('a', m) }}",
    "{{ m | tojson }}",
    "{{ {'a': [m]} | tojson }}",
    "{{ m | default(m) }}",
    "{{ x | default(m) }}",
    "{{ [m] | join }}",
    "{{ {'a': 1}[m] }}",
    "{{ ['a'][m] }}",
    "{{ range(m) | list }}",
    "{{ hostvars[m].ansible_hostname }}",
    "{{ groups[m] }}",
    "{{ get_ip_address(m) }}",
    "{{ list_ips_by_service(m) }}",
    "{{ list_ips_by_service('infra/mariadb/mariadb', m) }}",
    "{{ list_ips_by_service('infra/mariadb/mariadb', 1, m) }}",
    "{{ list_ips_by_service('infra/mariadb/mariadb', prefix=m) }}",
    "{{ ready_instances(m) }}",
]


@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_missing_variable_reports_that_variable_only(use: str) -> None:
    """Rendering goes on after each use; an operation that fails because of it is not reported."""
    renderer = Renderer(context())
    renderer.text(Text("u", use + "{{ next_one }}"))
    stops_python = use == "{% set x, y = m %}"
    assert {one.name for one in renderer.missing} == ({"m"} if stops_python else {"m", "next_one"})


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ hostvars['x'] }}", "item 'x'"),
        ("{{ hostvars['x']['ansible_eth0']['ipv4'] }}", "item 'x'"),
        ("{{ hostvars[database_password]['a'] }}", "an item"),
        ("{{ hostvars[inventory_hostname]['ansible_' + database_password]['ipv4']['address'] }}", "an item"),
        ("{{ hostvars[inventory_hostname].ansible_eth1.ipv6 }}", "item 'ipv6'"),
        ("{{ database_password.username }}", "item 'username' of a text"),
        ("{% for x in groups['mariadb'] %}{{ hostvars[x].y }}{% endfor %}", "item 'y'"),
        ("{{ groups['nobody'] | first }}", "an item of an empty list"),
        ("{{ groups['mariadb'][7] }}", "item 7"),
        ("{{ [hostvars] | map(attribute=database_password) | join }}", "an item"),
    ],
)
def test_what_is_missing_in_a_value_is_reported_by_the_key_that_the_template_holds(
    template: str, name: str
) -> None:
    """A computed key may be a variable's value, so it is not shown; no znode can hold it."""
    reason = complaint("\n" + template)
    assert reason == f"missing: {name} (used in a line 2)"


@pytest.mark.parametrize(
    ("item", "ports", "is_named"),
    [
        ("ports[0]", [], True),
        ("ports | first", [], True),
        ("ports[1]", [5000], True),
        ("ports[1]", [5000, 5001], False),
        ("nothing", [], False),
    ],
)
def test_a_service_that_has_registered_no_port_is_named(item: str, ports: list[int], is_named: bool) -> None:
    """The first load balancer often lacks `ports` of the service behind it."""
    instances = [{"host": "one", "address": "10.0.0.1", "ports": ports}]
    template = (
        f"{{% for one in ready_instances('a/db') %}}{{{{ one.{item} }}}}{{{{ one.other }}}}{{% endfor %}}"
    )
    reason = complaint(template, ready_instances=lambda service: instances)
    what = "no such port" if ports else "no port"
    assert (
        f"; an instance of a/db has registered {what}: give it `ports` in launch.yml" in reason
    ) is is_named


def test_what_is_missing_names_the_services_of_which_nobody_is_there() -> None:
    """The likely cause."""
    reason = complaint("\n{{ (ready_instances('a/b') | last).host }}{{ groups['rabbitmq'] | first }}")
    assert reason == (
        "missing: an item of an empty list (used in a line 2); no member or ready instance of a/b,"
        " infra/rabbitmq/rabbitmq is present"
    )


def test_a_service_that_a_variable_names_is_not_shown() -> None:
    """It is the value of the variable."""
    reason = complaint("{{ ready_instances(plugin)[0].host }}")
    assert reason == "missing: item 0 (used in a line 1)"


LOOKS = [
    "{{ nope.%s }}",
    "{{ nope['%s'] }}",
    "{{ nope | attr('%s') }}",
    "{{ '{0.%s}'.format(nope) }}",
    "{{ [nope] | map(attribute='%s') | list }}",
    "{{ nope.%s() }}",
]


@pytest.mark.parametrize("look", LOOKS)
def test_a_missing_variable_has_no_attribute_that_a_template_can_show(look: str) -> None:
    """Neither one of jinja2's nor one of ours: it is missing, or the sandbox refuses it."""
    for name in sorted({*dir(Sandbox()._environment.undefined), "record", "username"}):
        reason = complaint(look % name)
        if name.startswith("_"):
            assert reason.startswith("missing: nope ") or "SecurityError" in reason
        else:
            assert reason.startswith("missing: nope ")


@pytest.mark.parametrize(
    "use", ["{{ [nope] }}", "{{ {'a': nope} }}", "{{ '%r' % nope }}", "{{ [nope] | pprint }}"]
)
def test_a_missing_variable_is_missing_inside_a_list_too(use: str) -> None:
    """jinja2 would write `[Undefined]` into the file."""
    assert complaint(use).startswith("missing: nope (")
    assert "Undefined" not in Renderer(context(), missing_is_empty=True).text(Text("x", use))


def test_a_znode_of_zero_length_is_a_value() -> None:
    """The operator chose it; a missing variable was forgotten."""
    assert render("<{{ empty }}>{{ empty is defined }}") == "<>True"


def test_missing_may_be_empty_with_one_warning_for_each_name(log_lines: LogLines) -> None:
    """KOLLA_MISSING_VARIABLES=empty keeps what kolla-mesos did, but not silently."""
    renderer = Renderer(context(), missing_is_empty=True)
    assert renderer.content("f", b"a={{ a }}\nb={{ b }}\na={{ a }}\n") == b"a=\nb=\na=\n"
    renderer.check(looked_at)
    assert [(line.level, line.message) for line in log_lines()] == [
        ("warning", "a is missing and was rendered as empty text: used in file f line 1; file f line 3"),
        ("warning", "b is missing and was rendered as empty text: used in file f line 2"),
    ]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ m.split(',') | length }}", "1"),
        ("{{ 'a' + m + 'b' }}", "ab"),
        ("{{ m == '' }}{{ m != 'a' }}{{ m < 'a' }}{{ 'a' in m }}", "TrueTrueTrueFalse"),
        ("{{ m | bool }}{{ m | int }}{{ m | length }}", "False00"),
        ("{{ m.username }}{{ m['a']['b'] }}", ""),
        ("{{ {'': 'x'}[m] }}", "x"),
        ("{{ m | default('x') }}{{ m is defined }}", "xFalse"),
        ("{{ 'a' * 2 + m * 2 }}{{ m | upper }}{{ m ~ 1 }}", "aa1"),
        ("{{ list_ips_by_service('infra/mariadb/mariadb', m) }}", "10.0.0.1,10.0.0.2"),
    ],
)
def test_an_empty_missing_variable_behaves_as_an_empty_text(template: str, text: str) -> None:
    """As in kolla-mesos, whose missing variables were empty texts; but `default()` works."""
    assert Renderer(context(), missing_is_empty=True).text(Text("x", template)) == text


@pytest.mark.parametrize("template", ["{{ m + 1 }}", "{{ range(m) | list }}", "{{ m() }}", "{{ -m }}"])
def test_an_operation_that_fails_on_empty_text_is_an_error_if_missing_is_empty(template: str) -> None:
    """A file must not become empty as a whole because one of its operations failed."""
    with pytest.raises(CannotRender, match=r"^x line 2: TypeError: "):
        Renderer(context(), missing_is_empty=True).text(Text("x", "a\n" + template))


# -- what is wrong


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("\n\n{% if %}", "a line 3: Expected an expression, got '%}'"),
        ("{{ distro", "a line 1: the tag is not closed: add '}}'"),
        ("\n{{ distro | nothing }}", "a line 2: No filter named 'nothing'."),
        ("\n{% endfor %}", "a line 2: Encountered unknown tag 'endfor'."),
        ("\n{{ 1 // 0 }}", "a line 2: ZeroDivisionError"),
        ("\n\n{{ distro + 1 }}", "a line 3: TypeError"),
        ("{% macro m() %}\n{{ distro + 1 }}{% endmacro %}\n{{ m() }}", "a line 2: TypeError"),
        ("\n{{ distro.encode().decode('utf-32') }}", "a line 2: UnicodeDecodeError"),
        ("\n{{ distro | regex_replace('(', '') }}", "a line 2: ValueError"),
        ("\n{{ range(10 ** 9) }}", "a line 2: OverflowError"),
        ("\n{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "a line 2: RecursionError"),
        ("\n{{ get_ip_address(1, 2, 3) }}", "a line 2: TypeError"),
        ("\n{{ distro() }}", "a line 2: TypeError"),
        (
            "\n{% include 'other' %}",
            "a line 2: TemplateNotFound: a template can't include, import or extend another one",
        ),
    ],
)
def test_a_wrong_template_is_reported_with_its_line(template: str, reason: str) -> None:
    """An error of jinja2 or of an operation names the template, the line and the kind of error."""
    assert complaint(template).startswith(reason)


@pytest.mark.parametrize("template", ["{{ a | nothing }}", "{% if %}"])
def test_a_wrong_template_is_reported_before_its_variables_are_read(template: str) -> None:
    with pytest.raises(CannotRender, match=r"^x line 1: "):
        variable_names([Text("x", template)])


ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ (database_password | attr('__' ~ 'class__')).__base__ }}",
    "{{ get_hostname.__globals__ }}",
    "{{ get_hostname.__closure__[0].cell_contents }}",
    "{{ list_ips_by_service.__code__ }}",
    "{{ lipsum.__globals__['os'].environ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ missing_one.__class__ }}",
    "{{ missing_one.sandbox }}{{ missing_one._use.__globals__ }}",
    "{{ missing_one._undefined_exception.__init__.__globals__ }}",
    "{{ '{0.__class__}'.format(database_password) }}",
    "{{ '{a.__class__.__mro__}'.format_map({'a': database_password}) }}",
    "{{ hostvars.__class__ }}{{ groups.__missing__.__globals__ }}",
    "{% set x = ''.__class__ %}{{ x() }}",
    "{{ namespace.__init__.__globals__ }}",
]


@pytest.mark.parametrize("escape", ESCAPES)
def test_no_template_leaves_the_sandbox(escape: str) -> None:
    """The author of a definition must not get the rights of the agent; and no value is leaked."""
    renderer = Renderer(context())
    with pytest.raises(CannotRender) as caught:
        renderer.text(Text("x", "\n" + escape + "{{ database_password }}"))
        renderer.check(looked_at)
    assert SECRET not in caught.value.reason
    assert "x line 2" in caught.value.reason


@pytest.mark.parametrize("missing_is_empty", [False, True])
@pytest.mark.parametrize("template", ["{{ ''.__class__ }}", "{{ nowhere }}{{ get_hostname.__globals__.x }}"])
def test_a_refusal_of_the_sandbox_never_counts_as_missing(template: str, missing_is_empty: bool) -> None:
    """Else an attempt would be rendered as empty text if missing is empty, and nobody would see it."""
    with pytest.raises(CannotRender) as caught:
        Renderer(context(), missing_is_empty).text(Text("x", template))
    assert caught.value.reason == "x line 1: SecurityError: the sandbox does not allow this"


@pytest.mark.parametrize(
    "template",
    [
        "{{ database_password | int + database_password }}",
        "{{ [1][database_password] }}",
        "{{ hostvars[database_password].x }}",
        "{{ {}[database_password] }}",
        "{{ database_password.nothing }}",
        "{{ database_password | attr(database_password) }}",
        "{{ database_password | attr('__' ~ database_password) }}",
        "{{ 1 | regex_replace(database_password ~ '(', '') }}",
        "{{ 1 | round(method=database_password) }}",
        "{{ [database_password] | sum }}",
        "{{ database_password | tojson(indent=database_password) + 1 }}",
        "{{ [database_password] | map(database_password) | list }}",
        "{{ [database_password] | map(attribute=database_password) | join }}",
        "{% include database_password %}",
        "{{ database_password.encode('utf-8').decode(database_password) }}",
        "{{ get_ip_address(database_password) }}",
        "{{ database_password() }}",
    ],
)
def test_no_message_holds_a_value(template: str, log_lines: LogLines) -> None:
    """Python's and jinja2's own messages often do; even the error's chain must not bring one into a log."""
    renderer = Renderer(context())
    with pytest.raises(CannotRender) as caught:
        renderer.text(Text("x", template))
        renderer.check(looked_at)
    assert SECRET not in caught.value.reason
    assert nothing_behind(caught.value)
    assert SECRET not in str(log_lines())


def test_an_unknown_interface_is_reported_with_the_line() -> None:
    """The message of `host` is kept; label and line are added."""

    def refuse(interface: str | None) -> str:
        raise CannotRender("no such interface here")

    reason = complaint("\n{{ get_ip_address(api_interface) }}", get_ip_address=refuse)
    assert reason == "a line 2: no such interface here"


# -- files


BYTES = [
    b"",
    b"\x00\xff\xfe",
    b"a\r\nb\r\n",
    b"no newline",
    b"\n\n",
    bytes(range(256)),
    b"{ { % # }}",
    "ü".encode(),
]


@pytest.mark.parametrize("data", BYTES)
@pytest.mark.parametrize("template", [True, False])
def test_a_file_without_a_template_stays_byte_for_byte(data: bytes, template: bool) -> None:
    """A key or an image is a file like any other; so are CRLF and trailing newlines."""
    assert Renderer(context()).content("f", data, template) == data
    assert file_text("f", data, template) is None


@pytest.mark.parametrize("mark", [b"{{", b"{%", b"{#"])
def test_a_template_that_is_not_utf_8_is_reported_with_what_to_do(mark: bytes) -> None:
    """A binary file may hold the marks by chance."""
    with pytest.raises(CannotRender) as caught:
        Renderer(context()).content("key.der", b"ab\xff" + mark)
    assert caught.value.reason.startswith("file key.der: ")
    assert '"template": false' in caught.value.reason
    assert "byte 2" in caught.value.reason
    assert nothing_behind(caught.value)


@pytest.mark.parametrize(
    ("newline", "kept"), [("", ""), ("\n", "\n"), ("\r\n", "\n"), ("\n\n", "\n\n"), ("\r\n\r\n", "\n\n")]
)
def test_a_rendered_file_keeps_its_final_newlines(newline: str, kept: str) -> None:
    """As with Ansible's template module. CRLF becomes LF, as jinja2 does by default."""
    template = f"a{newline}{{{{ distro }}}}{newline}"
    assert Renderer(context()).content("x", template.encode()) == f"a{kept}ubuntu{kept}".encode()


def test_the_generation_of_the_image_comes_from_the_container() -> None:
    """Where it is missing no znode would help."""
    assert render("{{ image_generation }}", {"image_generation": "shadowed"}) == "2026.1"
    assert variable_names([Text("label", "{{ image_generation }}")]) == frozenset()
    expected = (
        r"image_generation \(used in label line 1; set KOLLA_GENERATION to the generation of this image\)"
    )
    with pytest.raises(CannotRender, match=expected):
        render("{{ image_generation }}", image_generation=None)
    assert render("{{ image_generation | default('none') }}", image_generation=None) == "none"


def test_an_interface_has_ansibles_name_too() -> None:
    """Ansible writes `_` for - and :, but a dot stays. The own facts, and those of others."""
    facts = {**SECOND, "ansible_br-ex.7:1": {"ipv4": {"address": "192.0.2.9"}}}
    names = "ansible_br_ex.7_1", "ansible_br-ex.7:1"
    template = "".join(f"{{{{ hostvars['10.0.0.2']['{name}'].ipv4.address }}}} " for name in names)
    assert render(template, parties=lambda: {"infra/db": [facts]}) == "192.0.2.9 192.0.2.9 "
    assert render(template, address="10.0.0.2", facts=facts) == "192.0.2.9 192.0.2.9 "


def test_a_lone_surrogate_cannot_be_rendered() -> None:
    """Written as an escape in a template, it is no character that a file or a command can have."""
    with pytest.raises(CannotRender, match=r"file f: its text can't be written as UTF-8") as caught:
        Renderer(context()).content("f", rb'{{ "\ud800" }}')
    assert caught.value.status == 78
