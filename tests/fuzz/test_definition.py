"""The JSON that stands at a service's path."""

from __future__ import annotations

from random import Random

from kolla_mesos_start.definition import keys
from kolla_mesos_start.definition.document import load
from kolla_mesos_start.definition.resolve import late_texts, resolve
from kolla_mesos_start.definition.strings import Text
from tests.fuzz.inputs import ODD, Fuzz, changed_document, changed_json, definitions, seeded
from tests.unit.definition.examples import SERVICE, TEMPLATED
from tests.unit.definition.test_schema import MESOS_SERVICE, MESOS_TASK

TEXTS = [each for each in ODD if isinstance(each, str)]
WORDS = [
    *ODD,
    *("host", "local", "keystone-api/daemon", "infra/mariadb/mariadb", "0640", "0o755", "root:root", "HUP"),
    *(
        {"tcp": 80},
        {"http": "http://h:1/"},
        {"notify": True},
        {"command": "true"},
        {"alive": 1},
        {"path": "a/b"},
    ),
    *(
        {"members": "a/b"},
        {"external": {"tcp": "h:1"}},
        {"external": {"http": "http://h"}},
        "echo 'a",
        "a=b c",
    ),
]
KEYS = [*keys.SHARED_KEYS, *keys.COMMAND_KEYS, *keys.DAEMON_KEYS, "perm", "dest", "check", "count"]
VALID = [*definitions(), TEMPLATED, MESOS_TASK, MESOS_SERVICE]


def use(data: bytes) -> None:
    """Read a definition as an agent does; its templates become anything."""

    def render(text: Text) -> str:
        return TEXTS[len(text.text + text.label) % len(TEXTS)]

    document = load(data)
    keys.early_texts(document)
    for command in keys.build(document, SERVICE, render).all_commands:
        late_texts(command)
        resolve(command, render)


@seeded
def test_a_definition(fuzz: Fuzz, seed: int) -> None:
    """It is run, or refused (65)."""

    def make(random: Random) -> bytes:
        named = [changed_document(random, VALID, [*WORDS, *KEYS])] if random.random() < 0.3 else VALID
        return changed_json(
            random, [{**each, "name": SERVICE} for each in named if type(each) is dict] or [{}], WORDS
        )

    fuzz("definition", seed, make, use)
