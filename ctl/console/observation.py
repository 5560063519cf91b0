"""Observation: the last answers of etcd and the nodes, unchanged, and their facts.

A node's status is read whatever its version and content. A fact that is missing, or has another
type than expected, is None or empty: a console shows the facts that it understands and never fails
for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.cluster.node_registry import NodeStatus
from penstock.cluster.records import DrainerStop, Gap, Standby

Facts = Mapping[str, Any]
PUMP: Final = "pump"
DRAINER: Final = "drainer"
SOURCE: Final = "source"
STREAM: Final = "stream of "
"""Before a Pump's id: a Drainer's quantity for how far that Pump's stream is behind."""

_TEXT_CHARS_MAX: Final = 4000
Named = tuple[str, str]
"""A node: its kind and its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEntry:
    """A MySQL source in etcd; `owner` is the process that runs it, empty for none."""

    source_id: str
    checkpoint: Facts = field(default_factory=dict)
    owner: str = ""
    pages_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A cluster according to etcd."""

    pumps: Sequence[NodeStatus] = ()
    drainers: Sequence[NodeStatus] = ()
    standbys: Sequence[Standby] = ()
    gaps: Sequence[Gap] = ()
    stops: Sequence[DrainerStop] = ()
    writers: Sequence[str] = ()
    """Ids of writers; a source is also a writer."""
    sources: Sequence[SourceEntry] = ()
    problems: Sequence[str] = ()
    """Unreadable entries; the objects that they describe are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A node's last answer, and the reason why it does not answer now.

    `silent_since_s` is when it stopped answering, seconds since the epoch, None while it answers.
    """

    facts: Facts | None = None
    problem: str = ""
    silent_since_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that was seen of a cluster by `now_s`, seconds since the epoch."""

    now_s: float
    listing: Listing | None = None
    etcd_problem: str = ""
    etcd_silent_since_s: float | None = None
    answers: Mapping[Named, Answer] = field(default_factory=dict)


# --- facts ---------------------------------------------------------------------------------------


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
