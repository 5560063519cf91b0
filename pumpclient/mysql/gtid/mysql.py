"""MySQL's GTIDs: server uuid, tag since 8.3, transaction number; and sets with holes.

    3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7:daily:1-3, …

The numbers behind a tag belong to it, up to the next tag or uuid. Intervals are kept as
half-open pairs [start, stop), sorted, with a gap between any two.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self
from uuid import UUID

from penstock.errors import Malformed

_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"(\d{1,19})(?:\s*-\s*(\d{1,19}))?", re.ASCII)
NUMBER_END = (1 << 63) - 1
"""One more than the largest transaction number."""

_HINT = "MySQL writes one as uuid:1-5:7, several with commas between them"

Interval = tuple[int, int]
Source = tuple[UUID, str]


class MysqlGtid(NamedTuple):
    """One transaction's id; `tag` is empty for most."""

    source: UUID
    number: int
    tag: str = ""

    def __str__(self) -> str:
        """Return the text that MySQL writes."""
        return (
            f"{self.source}:{self.tag}:{self.number}"
            if self.tag
            else f"{self.source}:{self.number}"
        )


class MysqlGtidSet:
    """Transaction numbers by server and tag; changed by `add` and `add_interval` only."""

    __slots__ = ("_sources",)

    def __init__(self) -> None:
        """Start empty."""
        self._sources: dict[Source, list[Interval]] = {}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the set that `text` names; raise `Malformed` when it is none."""
        found = cls()
        for part in text.split(","):
            words = [word.strip() for word in part.split(":")]
            if words == [""] and not text.strip(" ,\n"):
                continue
            source, tag = _uuid(words[0]), ""
            numbered = False
            for word in words[1:]:
                lowered = word.lower()
                if _TAG.fullmatch(lowered):
                    tag, numbered = lowered, False
                    continue
                found.add_interval((source, tag), _interval(word))
                numbered = True
            if not numbered:
                raise Malformed(f"{part.strip()!r} has no transaction numbers", hint=_HINT)
        return found

    def add(self, gtid: MysqlGtid) -> None:
        """Add one transaction."""
        self.add_interval((gtid.source, gtid.tag), (gtid.number, gtid.number + 1))

    def add_interval(self, source: Source, interval: Interval) -> None:
        """Add the transactions [start, stop) of a server and tag."""
        start, stop = interval
        held = self._sources.setdefault(source, [])
        if held and held[-1][1] == start:  # The next transaction: what happens all the time.
            held[-1] = (held[-1][0], stop)
            return
        first = bisect_left(held, start, key=lambda i: i[1])
        last = bisect_right(held, stop, key=lambda i: i[0])
        if first < last:
            start, stop = min(start, held[first][0]), max(stop, held[last - 1][1])
        held[first:last] = [(start, stop)]

    def copy(self) -> MysqlGtidSet:
        """Return an independent set that is equal."""
        return _of({source: list(held) for source, held in self._sources.items()})

    def items(self) -> Iterator[tuple[Source, list[Interval]]]:
        """Yield server and tag with their intervals, in the order in which MySQL writes them."""
        yield from sorted(self._sources.items(), key=lambda item: (item[0][0].bytes, item[0][1]))

    def __contains__(self, gtid: MysqlGtid) -> bool:
        """Tell whether a transaction is in the set."""
        held = self._sources.get((gtid.source, gtid.tag), [])
        at = bisect_right(held, gtid.number, key=lambda i: i[0])
        return at > 0 and gtid.number < held[at - 1][1]

    def contains(self, other: MysqlGtidSet) -> bool:
        """Tell whether every transaction of `other` is in this set."""
        return not other.subtract(self)

    def union(self, other: MysqlGtidSet) -> MysqlGtidSet:
        """Return the transactions of either."""
        joined = self.copy()
        for source, held in other._sources.items():
            for interval in held:
                joined.add_interval(source, interval)
        return joined

    def subtract(self, other: MysqlGtidSet) -> MysqlGtidSet:
        """Return the transactions of this set that `other` does not have."""
        return _of(
            {
                source: _without(held, other._sources.get(source, []))
                for source, held in self._sources.items()
            }
        )

    def intersect(self, other: MysqlGtidSet) -> MysqlGtidSet:
        """Return the transactions that both have."""
        return self.subtract(self.subtract(other))

    def __bool__(self) -> bool:
        """Tell whether there is any transaction."""
        return bool(self._sources)

    def __eq__(self, other: object) -> bool:
        """Tell whether both hold the same transactions."""
        return isinstance(other, MysqlGtidSet) and self._sources == other._sources

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        """Return the text that MySQL writes."""
        parts: dict[UUID, str] = {}
        for (source, tag), held in self.items():
            text = "".join(_text(interval) for interval in held)
            parts[source] = parts.get(source, str(source)) + (f":{tag}" if tag else "") + text
        return ",".join(parts.values())

    def __repr__(self) -> str:
        """Return the set as a call."""
        return f"MysqlGtidSet.parse({str(self)!r})"


def _of(sources: dict[Source, list[Interval]]) -> MysqlGtidSet:
    made = MysqlGtidSet()
    made._sources = {source: held for source, held in sources.items() if held}
    return made


def _uuid(text: str) -> UUID:
    # UUID() also takes braces, urn: and missing dashes in odd places; MySQL does not.
    if len(text) in (32, 36):
        try:
            return UUID(text)
        except ValueError:
            pass
    raise Malformed(f"{text!r} is no server uuid", hint=_HINT)


def _interval(text: str) -> Interval:
    found = _INTERVAL.fullmatch(text)
    if found is not None:
        first = int(found[1])
        last = int(found[2]) if found[2] is not None else first
        if 1 <= first <= last < NUMBER_END:
            return first, last + 1
    raise Malformed(f"{text!r} is no transaction number or range of them", hint=_HINT)


def _text(interval: Interval) -> str:
    start, stop = interval
    return f":{start}" if stop - start == 1 else f":{start}-{stop - 1}"


def _without(held: Iterable[Interval], gone: list[Interval]) -> list[Interval]:
    left: list[Interval] = []
    for start, stop in held:
        for gone_start, gone_stop in gone[bisect_right(gone, start, key=lambda i: i[1]) :]:
            if gone_start >= stop:
                break
            if start < gone_start:
                left.append((start, gone_start))
            start = max(start, gone_stop)
        if start < stop:
            left.append((start, stop))
    return left
