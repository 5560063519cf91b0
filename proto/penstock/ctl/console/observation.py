"""Observation: the last answers of etcd and the nodes, their facts, and the rates of the last hour.

Pure. A node's status is read whatever its version and content. A fact that is missing, or has
another type than expected, is None or empty: a console shows the facts that it understands and
never fails for the rest.

    Track      720 slots of 5 s, each the mean (or the maximum) of its values, or nothing
    Chronicle  a track for each node and quantity; rates are made of counters that only grow

A counter that falls has been reset, for example by a node's restart. A quantity without a value for
an hour is forgotten, and beyond `TRACKS_MAX` no new track is started.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
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
    flags: str = ""
    """The options with which a command finds this cluster."""
    table_rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Rows per second of each table, by Drainer."""


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


class Rates:
    """The rates of many counters over the last seconds; a counter that falls starts again."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[str, float]]] = deque()

    def note(self, at_s: float, counts: Mapping[str, float]) -> None:
        """Record all counters of this time; times must not decrease."""
        self._seen.append((at_s, counts))
        while len(self._seen) > 2 and self._seen[1][0] <= at_s - _RATES_S:
            self._seen.popleft()

    def now(self) -> dict[str, float]:
        """Return the rate in 1/s of each counter that was seen before."""
        if not self._seen:
            return {}
        end_s, counts = self._seen[-1]
        found = {}
        for name, count in counts.items():
            first = next(((s, c[name]) for s, c in self._seen if c.get(name, math.inf) <= count))
            if end_s > first[0]:
                found[name] = (count - first[1]) / (end_s - first[0])
        return found


_RATES_S: Final = 10.0
STEP_S: Final = 5.0
SLOTS: Final = 720
SPAN_S: Final = STEP_S * SLOTS
TRACKS_MAX: Final = 2000
_NOW_SLOTS: Final = 2
_NOTHING: Final = float("nan")


class Track:
    """One quantity over the last hour."""

    def __init__(self, *, is_greatest: bool = False) -> None:
        """Start empty; a slot keeps the mean of its values, or their maximum."""
        self._is_greatest = is_greatest
        self._values = array("d", [_NOTHING]) * SLOTS
        self._count = 0
        self._last = -1

    def note(self, at_s: float, value: float) -> None:
        """Record a value; times must not decrease."""
        slot = int(at_s / STEP_S)
        if slot != self._last:
            for passed in range(max(self._last + 1, slot - SLOTS + 1), slot + 1):
                self._values[passed % SLOTS] = _NOTHING
            self._last, self._count = slot, 0
        index = slot % SLOTS
        before = self._values[index]
        self._count += 1
        if self._count == 1:
            self._values[index] = value
        elif self._is_greatest:
            self._values[index] = max(before, value)
        else:
            self._values[index] = before + (value - before) / self._count

    def last(self, now_s: float, slots: int) -> list[float | None]:
        """Return the last slots up to now, oldest first; None for a slot without a value."""
        end = int(now_s / STEP_S)
        shown = range(end - min(slots, SLOTS) + 1, end + 1)
        held = range(self._last - SLOTS + 1, self._last + 1)
        found = [self._values[slot % SLOTS] if slot in held else _NOTHING for slot in shown]
        return [None if value != value else value for value in found]  # NaN differs from itself.

    def now(self, now_s: float) -> float | None:
        """Return the current value: the mean of the last slots that have a value."""
        found = [value for value in self.last(now_s, _NOW_SLOTS + 1) if value is not None]
        return sum(found[-_NOW_SLOTS:]) / len(found[-_NOW_SLOTS:]) if found else None

    def is_over(self, now_s: float) -> bool:
        return int(now_s / STEP_S) - self._last >= SLOTS


class Chronicle:
    """All tracks of one console; times are seconds of a clock that never goes back."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self._tracks: dict[tuple[str, str], Track] = {}
        self._counters: dict[tuple[str, str], tuple[float, float]] = {}
        """The time and the count of the last value."""

    def gauge(self, node: str, name: str, at_s: float, value: float | None) -> None:
        """Record a gauge; a slot keeps its maximum, and None is ignored."""
        if value is not None:
            self._note(node, name, at_s, value, is_greatest=True)

    def counter(self, node: str, name: str, at_s: float, count: float | None) -> None:
        """Record a counter, whose rate in 1/s is the quantity; None is ignored."""
        if count is None:
            return
        before_s, before = self._counters.get((node, name), (at_s, count))
        self._counters[node, name] = at_s, count
        if at_s > before_s and count >= before:
            rate = (count - before) / (at_s - before_s)
            self._note(node, name, at_s, rate, is_greatest=False)

    def now(self, node: str, name: str, now_s: float) -> float | None:
        track = self._tracks.get((node, name))
        return None if track is None else track.now(now_s)

    def points(self, node: str, name: str, now_s: float) -> Sequence[float | None]:
        """Return a quantity since the console began, oldest first, for an hour at most."""
        track = self._tracks.get((node, name))
        return [] if track is None else track.last(now_s, self._slots(now_s))

    def span_s(self, now_s: float) -> float:
        return self._slots(now_s) * STEP_S

    def forget(self, now_s: float) -> None:
        for key in [key for key, track in self._tracks.items() if track.is_over(now_s)]:
            del self._tracks[key]
        for key in [k for k, (at_s, _) in self._counters.items() if now_s - at_s > SPAN_S]:
            del self._counters[key]

    def _slots(self, now_s: float) -> int:
        return min(SLOTS, 1 + int(now_s / STEP_S) - int(self.began_s / STEP_S))

    def _note(self, node: str, name: str, at_s: float, value: float, *, is_greatest: bool) -> None:
        track = self._tracks.get((node, name))
        if track is None:
            if len(self._tracks) >= TRACKS_MAX:
                return
            track = self._tracks[node, name] = Track(is_greatest=is_greatest)
        track.note(at_s, value)
