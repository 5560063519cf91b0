"""GTIDs: global transaction ids of both flavours, and sets of them.

    MySQL     3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7:daily:1-3,…   every id that was executed
    MariaDB   0-1-100,1-2-7                                            the last id of each domain

A MySQL set names every transaction, so it can have holes. The numbers after a tag (since 8.3)
belong to it, up to the next tag or uuid. Intervals are kept as half-open pairs [start, stop),
sorted, with a gap between any two.

A MariaDB position names the last transaction of each replication domain; all smaller sequence
numbers of the domain are before it. A set holds, for each domain, the largest sequence number of
each server that wrote in it. The domain's position is the largest of these: sequence numbers grow
within a domain, whichever server writes.

MySQL's sets in binary, in `COM_BINLOG_DUMP_GTID` and in the PREVIOUS_GTIDS event. Classic, for sets
without tags (all integers little-endian):

    8       number of servers
    16      server uuid                 } for each
    8       number of intervals         }
    8 + 8   start, stop (exclusive)     } for each interval

With tags. The last byte of the first eight distinguishes the two forms:

    1       1
    6       number of (server, tag) pairs
    1       1
    16      server uuid                 } for each pair
    1       bytes of the tag, times two }
    n       tag                         }
    8       number of intervals         }
    8 + 8   start, stop (exclusive)     } for each interval
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple, Self
from uuid import UUID

from penstock.codes import Code
from penstock.errors import Malformed

_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_RANGE = re.compile(r"(\d{1,19})(?:\s*-\s*(\d{1,19}))?", re.ASCII)
NUMBER_END = (1 << 63) - 1
"""One more than the largest transaction number."""

_MYSQL_HINT = "MySQL writes one as uuid:1-5:7, several with commas between them"

Interval = tuple[int, int]
GtidSource = tuple[UUID, str]


class MysqlGtid(NamedTuple):
    """One transaction's id; `tag` is usually empty."""

    source: UUID
    number: int
    tag: str = ""

    def __str__(self) -> str:
        return (
            f"{self.source}:{self.tag}:{self.number}"
            if self.tag
            else f"{self.source}:{self.number}"
        )


class MysqlGtidSet:
    """Transaction numbers by server and tag; changed by `add` and `add_interval` only."""

    __slots__ = ("_sources",)

    def __init__(self) -> None:
        self._sources: dict[GtidSource, list[Interval]] = {}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a GTID set; raise `Malformed` if `text` is not one."""
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
                raise Malformed(
                    f"{part.strip()!r} has no transaction numbers",
                    _MYSQL_HINT,
                    Code.POSITION_INVALID,
                )
        return found

    def add(self, gtid: MysqlGtid) -> None:
        self.add_interval((gtid.source, gtid.tag), (gtid.number, gtid.number + 1))

    def add_interval(self, source: GtidSource, interval: Interval) -> None:
        """Add the transactions [start, stop) of a server and tag."""
        start, stop = interval
        held = self._sources.setdefault(source, [])
        if held and held[-1][1] == start:  # The next transaction: by far the most frequent case.
            held[-1] = (held[-1][0], stop)
            return
        first = bisect_left(held, start, key=lambda i: i[1])
        last = bisect_right(held, stop, key=lambda i: i[0])
        if first < last:
            start, stop = min(start, held[first][0]), max(stop, held[last - 1][1])
        held[first:last] = [(start, stop)]

    def copy(self) -> MysqlGtidSet:
        return _mysql_set({source: list(held) for source, held in self._sources.items()})

    def items(self) -> Iterator[tuple[GtidSource, list[Interval]]]:
        """Yield server and tag with their intervals, in the order that MySQL writes."""
        yield from sorted(self._sources.items(), key=lambda item: (item[0][0].bytes, item[0][1]))

    def __contains__(self, gtid: MysqlGtid) -> bool:
        held = self._sources.get((gtid.source, gtid.tag), [])
        at = bisect_right(held, gtid.number, key=lambda i: i[0])
        return at > 0 and gtid.number < held[at - 1][1]

    def union(self, other: MysqlGtidSet) -> MysqlGtidSet:
        joined = self.copy()
        for source, held in other._sources.items():
            for interval in held:
                joined.add_interval(source, interval)
        return joined

    def subtract(self, other: MysqlGtidSet) -> MysqlGtidSet:
        return _mysql_set(
            {
                source: _without(held, other._sources.get(source, []))
                for source, held in self._sources.items()
            }
        )

    def __bool__(self) -> bool:
        return bool(self._sources)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MysqlGtidSet) and self._sources == other._sources

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        parts: dict[UUID, str] = {}
        for (source, tag), held in self.items():
            text = "".join(
                f":{start}" if stop - start == 1 else f":{start}-{stop - 1}" for start, stop in held
            )
            parts[source] = parts.get(source, str(source)) + (f":{tag}" if tag else "") + text
        return ",".join(parts.values())

    def __repr__(self) -> str:
        return f"MysqlGtidSet.parse({str(self)!r})"


def _mysql_set(sources: dict[GtidSource, list[Interval]]) -> MysqlGtidSet:
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
    raise Malformed(f"{text!r} is no server uuid", _MYSQL_HINT, Code.POSITION_INVALID)


def _interval(text: str) -> Interval:
    found = _RANGE.fullmatch(text)
    if found is not None:
        first = int(found[1])
        last = int(found[2]) if found[2] is not None else first
        if 1 <= first <= last < NUMBER_END:
            return first, last + 1
    raise Malformed(
        f"{text!r} is no transaction number or range of them", _MYSQL_HINT, Code.POSITION_INVALID
    )


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


_U64 = struct.Struct("<Q")
_INTERVAL = struct.Struct("<QQ")
_UUID_SIZE = 16
_TAGGED = 1
_BINARY_HINT = (
    "the server writes GTID sets in a form that this version does not know, or bytes are lost"
)


def encode_sids(gtids: MysqlGtidSet) -> bytes:
    """Encode the set: the classic form, unless a tag needs the tagged form."""
    items = list(gtids.items())
    tagged = any(tag for (_, tag), _ in items)
    if tagged:
        out = [bytes([_TAGGED]) + len(items).to_bytes(6, "little") + bytes([_TAGGED])]
    else:
        out = [_U64.pack(len(items))]
    for (source, tag), intervals in items:
        out.append(source.bytes)
        if tagged:
            out.append(bytes([len(tag) << 1]) + tag.encode("ascii"))
        out.append(_U64.pack(len(intervals)))
        out += [_INTERVAL.pack(start, stop) for start, stop in intervals]
    return b"".join(out)


def decode_sids(data: bytes) -> MysqlGtidSet:
    """Decode a set; raise `Malformed` unless `data` is exactly one set."""
    try:
        found, end = _decode(data)
    except (struct.error, IndexError, ValueError) as error:
        raise Malformed(
            f"undecodable GTID set of {len(data)} bytes: {error}",
            _BINARY_HINT,
            Code.POSITION_INVALID,
        ) from error
    if end != len(data):
        raise Malformed(
            f"{len(data) - end} bytes too many after a GTID set",
            _BINARY_HINT,
            Code.POSITION_INVALID,
        )
    return found


def _decode(data: bytes) -> tuple[MysqlGtidSet, int]:
    found = MysqlGtidSet()
    (count,) = _U64.unpack_from(data)
    tagged = data[7] == _TAGGED
    if tagged:
        count = int.from_bytes(data[1:7], "little")
    at = _U64.size
    for _ in range(count):
        source = UUID(bytes=data[at : at + _UUID_SIZE])
        at += _UUID_SIZE
        tag = ""
        if tagged:
            size = data[at] >> 1
            tag = data[at + 1 : at + 1 + size].decode("ascii")
            at += 1 + size
        (intervals,) = _U64.unpack_from(data, at)
        at += _U64.size
        for _ in range(intervals):
            start, stop = _INTERVAL.unpack_from(data, at)
            at += _INTERVAL.size
            if not 1 <= start < stop <= NUMBER_END:
                raise ValueError(f"an interval from {start} to {stop}")
            found.add_interval((source, tag), (start, stop))
    return found, at


_MARIADB_GTID = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})", re.ASCII)
_U32_END = 1 << 32
_U64_END = 1 << 64
_MARIADB_HINT = "MariaDB writes one as 0-1-100, several with commas between them"


class MariadbGtid(NamedTuple):
    """One transaction's id."""

    domain: int
    server: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse an id; raise `Malformed` if `text` is not one."""
        found = _MARIADB_GTID.fullmatch(text.strip())
        if found is None:
            raise Malformed(f"{text!r} is no MariaDB GTID", _MARIADB_HINT, Code.POSITION_INVALID)
        domain, server, sequence = map(int, found.groups())
        if domain >= _U32_END or server >= _U32_END or sequence >= _U64_END:
            raise Malformed(
                f"{text!r} has a number that is too large", _MARIADB_HINT, Code.POSITION_INVALID
            )
        return cls(domain, server, sequence)

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.sequence}"


class MariadbGtidSet:
    """Positions in domains; changed by `add` only."""

    __slots__ = ("_domains",)

    def __init__(self, gtids: Iterable[MariadbGtid] = ()) -> None:
        """Hold the highest sequence number of each domain and server among `gtids`."""
        self._domains: dict[int, dict[int, int]] = {}
        for gtid in gtids:
            self.add(gtid)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a GTID set; raise `Malformed` if `text` is not one."""
        text = text.strip()
        return cls(map(MariadbGtid.parse, text.split(",")) if text else ())

    def add(self, gtid: MariadbGtid) -> None:
        """Advance to `gtid`; an id that is already within the position changes nothing."""
        servers = self._domains.setdefault(gtid.domain, {})
        if gtid.sequence >= servers.get(gtid.server, 0):
            servers[gtid.server] = gtid.sequence

    def copy(self) -> MariadbGtidSet:
        return MariadbGtidSet(self)

    def __iter__(self) -> Iterator[MariadbGtid]:
        """Yield the last id of each server in each domain, sorted."""
        for domain, servers in sorted(self._domains.items()):
            for server, sequence in sorted(servers.items()):
                yield MariadbGtid(domain, server, sequence)

    def position(self) -> list[MariadbGtid]:
        """Return the last id of each domain, after which a replica asks the server to start."""
        return [
            MariadbGtid(domain, server, sequence)
            for domain, servers in sorted(self._domains.items())
            for server, sequence in [max(servers.items(), key=lambda item: item[1])]
        ]

    def __contains__(self, gtid: MariadbGtid) -> bool:
        """Return whether `gtid` is at or before the position of its domain."""
        return gtid.sequence <= self._last(gtid.domain)

    def union(self, other: MariadbGtidSet) -> MariadbGtidSet:
        return MariadbGtidSet([*self, *other])

    def subtract(self, other: MariadbGtidSet) -> MariadbGtidSet:
        return MariadbGtidSet(gtid for gtid in self if gtid not in other)

    def _last(self, domain: int) -> int:
        return max(self._domains.get(domain, {}).values(), default=-1)

    def __bool__(self) -> bool:
        return bool(self._domains)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MariadbGtidSet) and self._domains == other._domains

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return ",".join(map(str, self))

    def __repr__(self) -> str:
        return f"MariadbGtidSet.parse({str(self)!r})"


Gtid = MysqlGtid | MariadbGtid
GtidSet = MysqlGtidSet | MariadbGtidSet


def add_gtid(gtids: GtidSet, gtid: Gtid) -> None:
    if isinstance(gtids, MariadbGtidSet):
        assert isinstance(gtid, MariadbGtid), "one flavour has one kind of GTID"
        gtids.add(gtid)
    else:
        assert isinstance(gtid, MysqlGtid), "one flavour has one kind of GTID"
        gtids.add(gtid)


def union(one: GtidSet, other: GtidSet) -> GtidSet:
    if isinstance(one, MariadbGtidSet):
        assert isinstance(other, MariadbGtidSet), "one flavour has one kind of GTID"
        return one.union(other)
    assert isinstance(other, MysqlGtidSet), "one flavour has one kind of GTID"
    return one.union(other)


class Flavor(StrEnum):
    """Whether a binlog comes from MySQL or MariaDB."""

    MYSQL = "mysql"
    MARIADB = "mariadb"

    @classmethod
    def of_version(cls, version: str) -> Self:
        return cls("mariadb" if "mariadb" in version.lower() else "mysql")


def parse_gtid_set(text: str, flavor: Flavor) -> GtidSet:
    """Parse a GTID set; an empty text gives an empty set.

    Raises `Malformed` for a text that is not a set of this flavour.
    """
    if flavor is Flavor.MYSQL:
        return MysqlGtidSet.parse(text)
    return MariadbGtidSet.parse(text)
