"""Unique names for services, deployments, volumes and files that all launchers accept.

A name has lowercase letters, digits and hyphens only.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from kolla_mesos_start.ctl.directory.container_settings import NAMED, SHARED

DIGITS = 6  # of a digest
LONGEST = 52  # letters; a StatefulSet's name and a revision have to fit into a label


def names_of(services: Iterable[str]) -> Mapping[str, str]:
    """A name for each service: its role, where that is enough. None is that of a directory of volumes."""
    return distinct({service: label(service.rpartition("/")[2]) for service in services}, [SHARED, NAMED])


def distinct(labels: Mapping[str, str], others: Iterable[str] = ()) -> Mapping[str, str]:
    """These, with a digest of what is so called where one is too long, or another's too."""
    count = Counter([*labels.values(), *others])

    def named(digits: int) -> Mapping[str, str]:
        return {
            key: name if count[name] == 1 and len(name) <= LONGEST else digested(name, key, LONGEST, digits)
            for key, name in labels.items()
        }

    found = named(DIGITS)
    # Of some thousand short digests two are likely to be the same.
    return found if len(set(found.values())) == len(found) else named(4 * DIGITS)


def label(text: str) -> str:
    """The text as a name in Kubernetes (RFC 1123) that begins with a letter, as a Service requires."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return name if name[:1].isalpha() else f"s-{name}".rstrip("-")


def name_of(text: str) -> str:
    """A label of one text, with a digest unless it is the text itself: others are called otherwise."""
    name = label(text)
    return name if name == text and len(name) <= LONGEST else digested(name, text, LONGEST)


def digested(name: str, of: str, longest: int, digits: int = DIGITS) -> str:
    """Cut, and with a digest, so that others are called otherwise."""
    digest = hashlib.sha256(of.encode()).hexdigest()[:digits]
    return f"{name[: longest - digits - 1].rstrip('-')}-{digest}"
