"""Reads a node's status, whatever its version and content.

A fact that is missing, or has another type than expected, is None or empty: a console shows the
facts that it understands and never fails for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

Facts = Mapping[str, Any]

_TEXT_CHARS_MAX = 4000


def number(facts: Facts, name: str) -> float | None:
    """Return a finite number, or None without one."""
    found = facts.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        value = float(found)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def timestamp(facts: Facts, name: str) -> int:
    """Return a timestamp, or 0 if there is none."""
    found = facts.get(name)
    is_one = isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 1 << 63
    return found if is_one and isinstance(found, int) else 0


def text(facts: Facts, name: str) -> str:
    """Return a string, or a number or boolean as a string; empty if there is none."""
    found = facts.get(name)
    if isinstance(found, str):
        return found[:_TEXT_CHARS_MAX]
    return str(found)[:_TEXT_CHARS_MAX] if isinstance(found, int | float) else ""


def drainer_lag_s(facts: Facts) -> float | None:
    return number(facts, "lag_s") if timestamp(facts, "max_commit_ts") else None


def truth(facts: Facts, name: str) -> bool:
    return facts.get(name) is True


def texts(facts: Facts, name: str) -> tuple[str, ...]:
    found = facts.get(name)
    listed = found if isinstance(found, list | tuple) else ()
    return tuple(each[:_TEXT_CHARS_MAX] for each in listed if isinstance(each, str))


def within(facts: Facts, name: str) -> Facts:
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}


def listed(facts: Facts, name: str) -> Iterator[Facts]:
    found = facts.get(name)
    for each in found if isinstance(found, list | tuple) else ():
        if isinstance(each, Mapping):
            yield each
