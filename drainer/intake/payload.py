"""Payload: a binlog in the merge, either its bytes or a handle to their location.

Almost all binlogs are small and travel as bytes. A binlog that a Pump sends in chunks is a
`Spooled`: its bytes are in a file in the data-dir (`drainer.intake.spool`), and the handle weighs
almost nothing wherever memory is counted. A binlog whose rows a Spark task fetches is a `Remote`;
`RemoteRun` holds many of them in columns, because an object for each costs more than all else that
the Drainer does with it.

`SpooledRows` reads the row changes from such a file, slice after slice.
A slice is a small `PrewriteValue`:

    file ── survey ──> its tables, looked up once, before a later DDL changes them
         └─ walk ────> PrewriteValue, PrewriteValue, …   each within the limits, in their order

Any number of walks may be made, until the file is released; each holds one slice at a time.

    Binlog   tp  start_ts  PrewriteValue ............................ tp  commit_ts
                           | schema_version  TableMutation  TableMutation ... |
    slices                 [v M M M M M] [v part of M] [v part of M] [v rest of M] [v M M]

A mutation that fits into a slice is copied unchanged. A larger mutation is cut along its
`sequence`: a walk through all of its lists in parallel takes the rows in their order. A row is
never cut; a row larger than a slice is a slice on its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np

from drainer.task.row_changes import Lookup, TableChanges, Target, read_changes
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator
from penstock.wire.binlog import MutationType, Origin
from penstock.wire.codec import decode_binlog, decode_origin
from penstock.wire.protowire import (
    LEN,
    VARINT,
    Source,
    encode_uvarint,
    fields,
    malformed,
    raw_fields,
    signed,
    tag,
)

_TP, _START_TS, _COMMIT_TS = tag(1, VARINT), tag(2, VARINT), tag(3, VARINT)
_PREWRITE_VALUE, _DDL_JOB_ID, _ORIGIN = tag(5, LEN), tag(7, VARINT), tag(15, LEN)
_SCHEMA_VERSION, _MUTATION = tag(1, VARINT), tag(2, LEN)
_TABLE_ID, _SEQUENCE, _PACKED_SEQUENCE = tag(1, VARINT), tag(7, VARINT), tag(7, LEN)
_OBSOLETE = (tag(4, VARINT), tag(4, LEN), tag(5, LEN))
_LISTS = {
    int(MutationType.INSERT): tag(2, LEN),
    int(MutationType.UPDATE): tag(3, LEN),
    int(MutationType.DELETE): tag(6, LEN),
}
_ONE_KIND = bytes([_SEQUENCE])
_KINDS_AT_ONCE = 32 << 10
_ORIGIN_BYTES_MAX = 64 << 10
_SPARE_BYTES = 64
"""A slice's size beside its rows and their kinds: two ids and four lengths."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A merged binlog's header fields, and the position of its row changes."""

    tp: int
    start_ts: int
    commit_ts: int
    ddl_job_id: int
    value_start: int
    value_end: int
    origin: Origin | None = None


def outline(source: Source, size: int) -> Outline:
    """Return the outline of a merged binlog of `size` bytes; raise `Malformed`."""
    numbers = {_TP: 0, _START_TS: 0, _COMMIT_TS: 0, _DDL_JOB_ID: 0}
    value, origin = (0, 0), None
    for found, at, content, end in fields(source, 0, size):
        if found in numbers:
            numbers[found] = signed(content)
        elif found == _PREWRITE_VALUE:
            value = (content, end)
        elif found == _ORIGIN:
            if end - content > _ORIGIN_BYTES_MAX:
                raise malformed(at, f"an origin of {end - content} bytes")
            origin = decode_origin(source(content, end - content))
    return Outline(
        tp=numbers[_TP],
        start_ts=numbers[_START_TS],
        commit_ts=numbers[_COMMIT_TS],
        ddl_job_id=numbers[_DDL_JOB_ID],
        value_start=value[0],
        value_end=value[1],
        origin=origin,
    )


def survey(source: Source, start: int, end: int) -> tuple[int, set[int]]:
    """Return schema version and table ids of the `PrewriteValue` in [start, end)."""
    version = 0
    tables: set[int] = set()
    for found, _, content, stop in fields(source, start, end):
        if found == _SCHEMA_VERSION:
            version = signed(content)
        elif found == _MUTATION:
            # Every writer puts it first; a version that is repeated later shows in the slices.
            ids = (signed(c) for f, _, c, _ in fields(source, content, stop) if f == _TABLE_ID)
            tables.add(next(ids, 0))
    return version, tables


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a slice may be; `rows_max` holds for mutations that have to be cut."""

    bytes_max: int
    rows_max: int


def slices(
    source: Source, start: int, end: int, *, version: int, limits: Limits
) -> Iterator[bytes]:
    """Split the `PrewriteValue` in [start, end) into consecutive small values within `limits`.

    `version` is its schema version, which `survey` returns. Raises `Malformed` for data that is not
    a `PrewriteValue`, and for a mutation whose lists and sequence disagree. Mutations that need not
    be cut are passed on unread.
    """
    room_bytes = max(limits.bytes_max - _SPARE_BYTES, 1)
    head = encode_uvarint(_SCHEMA_VERSION) + encode_uvarint(version & 0xFFFF_FFFF_FFFF_FFFF)
    held: list[bytes] = []
    size = 0
    for found, at, content, stop in fields(source, start, end):
        if found != _MUTATION:
            continue
        if held and size + stop - at > room_bytes:
            yield head + b"".join(held)
            held, size = [], 0
        if stop - at <= room_bytes:
            held.append(source(at, stop - at))
            size += stop - at
            continue
        for part in _cut(source, content, stop, room_bytes, limits.rows_max):
            yield head + encode_uvarint(_MUTATION) + encode_uvarint(len(part)) + part
            del part
    if held:
        yield head + b"".join(held)


@dataclass(slots=True)
class _List:
    """Start and end of the fields with one tag, and their number."""

    start: int = 0
    end: int = 0
    count: int = 0


@dataclass(slots=True)
class _Lists:
    table_id: int = 0
    of: dict[int, _List] = field(default_factory=dict)


def _index(source: Source, start: int, end: int) -> _Lists:
    lists = _Lists(of={t: _List() for t in (*_LISTS.values(), _SEQUENCE, _PACKED_SEQUENCE)})
    for found, at, content, stop in fields(source, start, end):
        known = lists.of.get(found)
        if known is not None:
            if not known.count:
                known.start = at
            known.end = stop
            known.count += 1
        elif found == _TABLE_ID:
            lists.table_id = signed(content)
        elif found in _OBSOLETE:
            raise malformed(at, "an obsolete kind of row change")
    if lists.of[_SEQUENCE].count and lists.of[_PACKED_SEQUENCE].count:
        raise malformed(start, "a sequence that is packed and not")
    return lists


def _kinds(source: Source, lists: _Lists) -> Iterator[bytes]:
    """Yield the sequence in pieces, one byte for each change."""
    packed = lists.of[_PACKED_SEQUENCE]
    for found, _, content, end in fields(source, packed.start, packed.end):
        for at in range(content, end if found == _PACKED_SEQUENCE else content, _KINDS_AT_ONCE):
            yield source(at, min(_KINDS_AT_ONCE, end - at))
    at, end = lists.of[_SEQUENCE].start, lists.of[_SEQUENCE].end
    while at < end:
        # Usually these are pairs of one-byte varints; anything else is read one at a time.
        pairs = source(at, min(2 * _KINDS_AT_ONCE, end - at) & ~1)
        if pairs[::2] != _ONE_KIND * (len(pairs) // 2) or not pairs:
            break
        yield pairs[1::2]
        at += len(pairs)
    for found, where, content, _ in fields(source, at, end):
        if found == _SEQUENCE:
            if content > MutationType.DELETE:
                raise malformed(where, f"a row change of kind {content}")
            yield bytes([content])


def _cut(source: Source, start: int, end: int, room_bytes: int, rows_max: int) -> Iterator[bytes]:
    """Split one mutation into several, each with its part of the lists and the sequence."""
    lists = _index(source, start, end)
    walks = {
        kind: raw_fields(source, lists.of[t].start, lists.of[t].end, t)
        for kind, t in _LISTS.items()
    }
    head = encode_uvarint(_TABLE_ID) + encode_uvarint(lists.table_id & 0xFFFF_FFFF_FFFF_FFFF)
    kinds, rows, size = bytearray(), list[bytes](), 0

    def part() -> bytes:
        sequence = encode_uvarint(_PACKED_SEQUENCE) + encode_uvarint(len(kinds)) + kinds
        return b"".join([head, *rows, sequence])

    taken = dict.fromkeys(_LISTS, 0)
    for some in _kinds(source, lists):
        for kind in some:
            walk = walks.get(kind)
            row = None if walk is None else next(walk, None)
            if row is None:
                raise malformed(start, f"a change of kind {kind} in the sequence but in no list,")
            if rows and (size + len(row) + 1 > room_bytes or len(rows) >= rows_max):
                yield part()
                kinds, rows, size = bytearray(), [], 0
            kinds.append(kind)
            rows.append(row)
            size += len(row) + 1
            taken[kind] += 1
    for kind, t in _LISTS.items():
        if taken[kind] != lists.of[t].count:
            raise malformed(start, f"more changes of kind {kind} in the list than in the sequence,")
    if rows:
        yield part()


_HANDLE_BYTES = 1000
_REMOTE_BYTES = 100


@dataclass(frozen=True, slots=True, eq=False)
class Spooled:
    """A merged binlog in a dedicated file; equal to another with the same content."""

    path: Path
    size: int
    digest: bytes
    outline: Outline
    on_release: Callable[[], None] = field(default=lambda: None)
    pump: str = ""
    """The Pump that sent it, if it was not read from the relay log."""

    def __len__(self) -> int:
        """Return the handle's weight in memory; `size` is the size on disk."""
        return _HANDLE_BYTES

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spooled):
            return NotImplemented
        return (self.size, self.digest) == (other.size, other.digest)

    __hash__ = None  # type: ignore[assignment]

    def release(self) -> None:
        """Delete the file: the binlog is downstream, or another copy of it is used."""
        self.path.unlink(missing_ok=True)
        self.on_release()


@dataclass(slots=True)
class Remote:
    """A transaction of rows that is still on its Pump; `head` is the binlog without them.

    The head is empty if it would contain only the transaction's timestamps.
    """

    pump: str
    size: int
    start_ts: int
    head: bytes = b""

    def __len__(self) -> int:
        """Return the handle's weight in memory; `size` is the binlog's size."""
        return _REMOTE_BYTES + len(self.head)


Payload = bytes | Spooled | Remote


@dataclass(frozen=True, slots=True, eq=False)
class RemoteRun(Sequence[Payload]):
    """Payloads in columns; an item is a `Remote`, or its head, whole, where the size is 0.

    `owners` (uint16) are places in `pumps`; `sizes` and `start_ts` are int64.
    """

    pumps: tuple[str, ...]
    owners: Any
    sizes: Any
    start_ts: Any
    heads: Sequence[bytes]

    @classmethod
    def of(cls, pump: str, sizes: Any, start_ts: Any, heads: Sequence[bytes]) -> RemoteRun:
        """Return the run of one Pump; columns of different lengths are a defect."""
        count = len(heads)
        assert len(sizes) == len(start_ts) == count
        return cls(
            pumps=(pump,),
            owners=np.zeros(count, np.uint16),
            sizes=np.fromiter(sizes, np.int64, count),
            start_ts=np.fromiter(start_ts, np.int64, count),
            heads=heads,
        )

    @classmethod
    def joined(cls, runs: Sequence[RemoteRun]) -> RemoteRun:
        pumps = tuple(dict.fromkeys(pump for run in runs for pump in run.pumps))
        return cls(
            pumps,
            np.concatenate([run.owners_in(pumps) for run in runs]),
            np.concatenate([run.sizes for run in runs]),
            np.concatenate([run.start_ts for run in runs]),
            [head for run in runs for head in run.heads],
        )

    def owners_in(self, pumps: Sequence[str]) -> Any:
        """Return the owners as places in `pumps`, which has all of them."""
        return np.array([pumps.index(pump) for pump in self.pumps], np.uint16)[self.owners]

    def taken(self, order: Any) -> RemoteRun:
        """Return the items at the places in `order`."""
        heads = self.heads
        if any(heads):
            heads = list(map(heads.__getitem__, order.tolist()))
        return RemoteRun(
            self.pumps,
            self.owners[order],
            self.sizes[order],
            self.start_ts[order],
            heads[: len(order)],
        )

    @property
    def weight(self) -> int:
        return _REMOTE_BYTES * int(np.count_nonzero(self.sizes)) + sum(map(len, self.heads))

    @property
    def has_more(self) -> Any:
        """An array: whether an item is more than its Pump, size and start_ts."""
        has_head = np.fromiter(map(len, self.heads), np.int64, len(self)) if any(self.heads) else 0
        return (self.sizes == 0) | (has_head != 0)

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[Payload]:
        columns = self.owners.tolist(), self.sizes.tolist(), self.start_ts.tolist(), self.heads
        for owner, size, start_ts, head in zip(*columns, strict=True):
            yield Remote(self.pumps[owner], size, start_ts, head) if size else head

    @overload
    def __getitem__(self, place: int) -> Payload: ...

    @overload
    def __getitem__(self, place: slice) -> RemoteRun: ...

    def __getitem__(self, place: int | slice) -> Payload | RemoteRun:
        if isinstance(place, int):
            head, size = self.heads[place], int(self.sizes[place])
            pump, start_ts = self.pumps[self.owners[place]], int(self.start_ts[place])
            return Remote(pump, size, start_ts, head) if size else head
        owners, sizes = self.owners[place], self.sizes[place]
        return RemoteRun(self.pumps, owners, sizes, self.start_ts[place], self.heads[place])


def weight_of(payloads: Sequence[Payload]) -> int:
    """Return the bytes of memory that payloads take, beside their places in the merge."""
    return payloads.weight if isinstance(payloads, RemoteRun) else sum(map(len, payloads))


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """Open a file for reading; raise `NeedsOperator` if the disk cannot be read.

    It uses `pread` and not a mapping, because a disk error under a mapping kills the process.
    """

    def broken(error: OSError) -> NeedsOperator:
        hint = "repair the disk of the data-dir; the Pump still has the binlog"
        return NeedsOperator(f"cannot read {path}: {error.strerror}", hint, Code.PATH_UNUSABLE)

    def read(offset: int, count: int) -> bytes:
        try:
            return os.pread(descriptor, count, offset)
        except OSError as error:
            raise broken(error) from error

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise broken(error) from error
    try:
        yield read
    finally:
        os.close(descriptor)


def outline_in(path: Path, size: int) -> Outline:
    """Return the outline of a file's binlog; blocking. Raises `Malformed`."""
    with opened(path) as source:
        return outline(source, size)


def start_ts_of(payload: Payload) -> int:
    """Return the `start_ts` of a merged binlog; raise `Malformed` for invalid bytes."""
    if isinstance(payload, Spooled):
        return payload.outline.start_ts
    return payload.start_ts if isinstance(payload, Remote) else decode_binlog(payload).start_ts


def is_fake(payload: Payload) -> bool:
    """Return whether a binlog only advances time; raise `Malformed` for invalid bytes."""
    return isinstance(payload, bytes) and decode_binlog(payload).is_fake


def release(payload: Payload) -> None:
    if isinstance(payload, Spooled):
        payload.release()


class SpooledRows:
    """The row changes of a large transaction."""

    def __init__(self, payload: Spooled, lookup: Lookup, limits: Limits) -> None:
        """Read through the file for its tables, and look them up; blocking.

        Raises `Malformed` if it holds no row changes, and the errors of `lookup`.
        """
        self.payload = payload
        self._limits = limits
        found = payload.outline
        with opened(payload.path) as source:
            self.version, tables = survey(source, found.value_start, found.value_end)
        self.targets = {table_id: lookup(table_id, self.version) for table_id in sorted(tables)}

    def values(self) -> Generator[bytes]:
        """Yield the slices as serialized `PrewriteValue`s, from the first on."""
        begin, end = self.payload.outline.value_start, self.payload.outline.value_end
        with opened(self.payload.path) as source:
            yield from slices(source, begin, end, version=self.version, limits=self._limits)

    def changes(self) -> Generator[list[TableChanges]]:
        """Yield the changes slice by slice; some may only count skipped changes."""
        with closing(self.values()) as values:
            for value in values:
                yield read_changes(value, self.target)

    def target(self, table_id: int, version: int) -> Target:
        """Return the target of a table's rows; `Malformed` if the survey did not find it."""
        # A mutation that names a second table after its rows is not one that a survey reads.
        assert version == self.version
        if table_id not in self.targets:
            raise Malformed(
                f"transaction {self.payload.outline.commit_ts} has a mutation with two tables' ids",
                "the writer and the Drainer must speak the same binlog.proto",
                Code.BINLOG_UNDECODABLE,
            )
        return self.targets[table_id]
