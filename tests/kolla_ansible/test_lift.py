"""Stand-ins become variables, and every other difference is found."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from kolla_mesos_start.definition.strings import Text
from kolla_mesos_start.kolla_ansible import lift
from kolla_mesos_start.kolla_ansible.lift import Lifter, Unlifted
from kolla_mesos_start.kolla_ansible.stand_ins import StandIns
from kolla_mesos_start.render.context import file_text
from kolla_mesos_start.render.sandbox import Sandbox
from tests.kolla_ansible.examples import Recorder

REAL = "192.0.2.11"
NAMES = {REAL: "address_ctl_1"}
VALUES = {"password": "s3cret", "key_private_key": "a\nb\n", "address_ctl_1": REAL}


def stand_ins(run: int) -> StandIns:
    secrets = {"password": f"Zpassword{run}", "key_private_key": f"BEGIN {run}\nEND\n"}
    return StandIns({}, secrets, {REAL: f"198.1{8 + run}.1.1"}, {})


LIFTERS = (Lifter(stand_ins(0), NAMES), Lifter(stand_ins(1), NAMES))


def rendered(lifted: str) -> str:
    """What an agent writes for the template of a lifted text, as a file and as a string of a definition."""
    template, string = lift.template(lifted), lift.templates(lifted)
    if not lift.is_template(lifted):
        assert template == string
        return template
    text = file_text("a", template.encode())
    written, made = (Sandbox().render(each, VALUES) for each in (text, Text("string", string)) if each)
    assert written == made
    return written


@pytest.mark.parametrize(
    "recorded, real",
    [
        ("nothing to replace\n", "nothing to replace\n"),
        ("password = Zpassword0\n", "password = s3cret\n"),
        ("no newline at the end: Zpassword0", "no newline at the end: s3cret"),
        ("two newlines: Zpassword0\n\n", "two newlines: s3cret\n\n"),
        (
            "bind 198.18.1.1:80\nnot 198.18.1.10, 1198.18.1.1\n",
            f"bind {REAL}:80\nnot 198.18.1.10, 1198.18.1.1\n",
        ),
        ("{198,18,1,1}", "{192,0,2,11}"),
        ("BEGIN 0\nEND\n", "a\nb\n"),
        ("{{ a }} {% b %} {# c #} Zpassword0", "{{ a }} {% b %} {# c #} s3cret"),
        ("{{ a }}\n", "{{ a }}\n"),
        ("a\r\nZpassword0\r\n", "a\r\ns3cret\r\n"),
        ("{\r\n  Zpassword0 {{{{\r\n}}}\r\n", "{\r\n  s3cret {{{{\r\n}}}\r\n"),
        ("{{{", "{{{"),
        ("{Zpassword0}{%{#", "{s3cret}{%{#"),
        ("an icon \ue000password\ue001, \ue001 \ue000\n", "an icon \ue000password\ue001, \ue001 \ue000\n"),
        (base64.b64encode("an icon \ue000a\ue001".encode()).decode(),) * 2,
        (base64.b64encode(b"openstack:Zpassword0").decode(), base64.b64encode(b"openstack:s3cret").decode()),
        (base64.b64encode(b'a"\\Zpassword0').decode(), base64.b64encode(b'a"\\s3cret').decode()),
    ],
)
def test_a_lifted_text_renders_to_the_text_with_real_values(recorded: str, real: str) -> None:
    assert rendered(LIFTERS[0].text(recorded)) == real


def test_the_words_of_a_command_are_those_of_a_shell_and_a_mark_is_not_split() -> None:
    encoded = base64.b64encode(b"openstack:Zpassword0").decode()
    lifted = LIFTERS[0].text(f"login 'a b' --as=Zpassword0 {encoded}")
    assert list(map(lift.template, lift.words(lifted))) == [
        "login",
        "a b",
        "--as={{ password }}",
        '{{ ("openstack:" ~ password) | b64encode }}',
    ]


def test_a_password_that_the_operator_has_written_into_a_file_becomes_its_variable() -> None:
    """Into one of /etc/kolla/config. A short one could be any word."""
    real = {"password": "a-real-password", "other": "admin"}
    lifter = Lifter(stand_ins(0), NAMES, real)
    assert lift.template(lifter.text("p = a-real-password, admin")) == "p = {{ password }}, admin"


def test_the_same_texts_of_both_recordings_are_lifted_to_the_same() -> None:
    first, second = (Recorder(), Recorder())
    for run, recorder in enumerate((first, second)):
        recorder.file("keystone/keystone.conf", f"password = Zpassword{run}\nhost = 198.1{8 + run}.1.1\n")
    lifted, unlifted = lift.lift(first.tasks, second.tasks, LIFTERS)
    assert not unlifted
    assert [lift.template((each.content or b"").decode()) for each in lifted] == [
        "password = {{ password }}\nhost = {{ address_ctl_1 }}\n"
    ]


@pytest.mark.parametrize(
    "one, other, lines",
    [
        ("user: a\nhash: 111\n", "user: a\nhash: 222\n", [2]),
        ("hash: 1a\nuser: a\nhash: 1b\n", "hash: 2a\nuser: a\nhash: 2b\n", [1, 3]),
        ("user: a\nhash: 1\n", "user: a\nhash: 2\n3\n", [2]),
        ("user: a", "user: a\nhash: 1", [0]),
    ],
)
def test_values_made_from_secrets_are_reported_with_their_lines(
    one: str, other: str, lines: list[int]
) -> None:
    """All of them: the operator has to replace each by hand."""
    first, second = (Recorder(), Recorder())
    first.file("a/web.yml", one)
    second.file("a/web.yml", other)
    assert lift.lift(first.tasks, second.tasks, LIFTERS)[1] == [
        Unlifted("ctl-1", "/etc/kolla/a/web.yml", line) for line in lines
    ]


SIZED = {
    "workers = 5\nport = 80\n": "workers = 1\nport = 80\n",
    "pool = 3276M": "pool = 409M",
    "rate = 0.8": "rate = 0.4",
}


@pytest.mark.parametrize("one", SIZED)
def test_a_number_that_is_less_on_a_small_host_is_marked_and_stays_in_a_text_of_one_host(one: str) -> None:
    first, second = Recorder(), Recorder()
    for recorder, text in ((first, one), (second, SIZED[one])):
        recorder.file("a/a.conf", text)
        recorder.task("kolla_container", environment={"A": text, "B": [len(text) if text == one else 1]})
    lifted, unlifted = lift.lift(first.tasks, second.tasks, LIFTERS)
    assert not unlifted
    text = (lifted[0].content or b"").decode()
    assert len(lift.SIZED_MARK.findall(text)) == 1
    assert lift.template(text) == one
    assert not list(lift.expressions(text))
    environment = lifted[1].args["environment"]
    assert [lift.template(environment["A"]), lift.template(environment["B"][0])] == [one, str(len(one))]


def test_hosts_that_were_recorded_in_another_order_are_paired() -> None:
    one, other = Recorder("ctl-1"), Recorder("ctl-2")
    one.file("a/a.conf", "one")
    other.file("a/a.conf", "other")
    first = [*one.tasks, *(replace(each, number=1) for each in other.tasks)]
    assert not lift.lift(first, list(reversed(first)), LIFTERS)[1]
