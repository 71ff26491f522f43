"""What is an address, the name of a host, or a port: the same for settings and for what others register."""

from __future__ import annotations

import re
import socket

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_NAME_LIMIT, _LABEL_LIMIT = 253, 63  # characters: the limits of DNS


def is_ip(text: str, family: int) -> bool:
    """Whether it is an address of this family, without brackets."""
    try:
        socket.inet_pton(family, text)
    except (OSError, ValueError):
        return False
    return True


def is_host(text: str) -> bool:
    """Whether it is an IPv4 address or a host name. Only digits and dots must be a valid address.

    An absolute name ends with a dot.
    """
    if not text.strip("0123456789."):
        return is_ip(text, socket.AF_INET)
    text = text.removesuffix(".")
    fits = len(text) <= _NAME_LIMIT and all(0 < len(label) <= _LABEL_LIMIT for label in text.split("."))
    return fits and bool(_NAME.fullmatch(text))


def is_port(number: int) -> bool:
    """Whether it is a port to connect to."""
    return 1 <= number <= 65535
