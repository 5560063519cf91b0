"""Row changes: collects the changes of many transactions into one column of bytes per table.

    Prewrite bytes ──> mutations ──> table 7:  kinds [0 0 1 4]   rows [b"…", b"…", b"…", b"…"]
                                     table 9:  kinds [0]         rows [b"…"]

Rows stay the bytes that the writer sent: this module does not decode them, and no protobuf object
outlives the call that read it. The order of the rows of a table is the order of their commits.

**Loop-back control** recognises transactions that a Drainer wrote, between two replicating
clusters:

    A ── Drainer, channel 7 ──> B        every transaction there also changes a row of
                                         `retl`.`_drainer_repl_mark` with channel_id 7
    A <── Drainer, channel 7 ── B        skips each transaction that changes such a row

The table is TiDB-Binlog's, so that its Drainer may run at either end:

    id           bigint        the connection, so that connections do not wait for each other
    channel_id   bigint        the key's second part; the same number at both ends
    val          bigint        incremented by every transaction
    channel_info varchar(64)   for people

The mark decides for a whole transaction, before filters do, whatever else it contains. The schema
`retl` belongs to the Drainers: none of its rows and DDL are replicated. The same holds for
`tidb_binlog`, in which the other end's Drainer keeps its checkpoint. Three clusters in a ring are
not supported, because a mark goes one hop. DDL carries no mark; one of the two must have sync-ddl =
false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from drainer.differences import (
    CONVERTED,
    FILTER,
    IGNORED,
    LOOP_BACK,
    OVERRIDE,
    ROWS,
    TRANSACTIONS,
    VALUES,
    Counts,
    Skipped,
)
from drainer.task.work_unit import TableRows, TransactionStart
from penstock.codes import Code
from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import Malformed, NeedsOperator
from penstock.filters.rules import RowPolicy
from penstock.pb import binlog_pb2 as pb
from penstock.schema.model import TableInfo
from penstock.wire.binlog import BinlogType, MutationType

MARK_SCHEMA, MARK_TABLE = "retl", "_drainer_repl_mark"
OWN_SCHEMAS = (MARK_SCHEMA, "tidb_binlog")
_CHANNEL_COLUMN = "channel_id"


def is_mark_table(schema: str, table: str) -> bool:
    return (schema.lower(), table.lower()) == (MARK_SCHEMA, MARK_TABLE)


class _ByIdentity(tuple[str, TableInfo]):
    """A target that equals no other target."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class MarkTable(_ByIdentity):
    """The table of marks as a target of rows: none is written, and some stop their transaction."""

    _channel_id: int
    _at: int
    _codec: RowCodec

    def __new__(cls, target: tuple[str, TableInfo], channel_id: int) -> MarkTable:
        """Watch for `channel_id`.

        Raises `Malformed` for a table that has only the name in common.
        """
        made = super().__new__(cls, target)
        column = target[1].column(_CHANNEL_COLUMN)
        if column is None:
            raise Malformed(
                f"{MARK_SCHEMA}.{MARK_TABLE} has no column {_CHANNEL_COLUMN}",
                "loop-back control reads it there: let a Drainer create the table",
                Code.LOOPBACK_TABLE,
            )
        made._channel_id, made._at = channel_id, column.offset
        made._codec = RowCodec(target[1])
        return made

    def stops(self, mutation: Any) -> bool:
        """Return whether changes of this table say that their transaction came from here.

        Raises `Malformed` for bytes that are not rows of this table.
        """
        codec = self._codec
        for kind, data in zip(*_in_sequence(mutation), strict=True):
            images: Sequence[Sequence[object]]
            if kind == MutationType.UPDATE:
                images = codec.decode_update(data)
            else:
                is_insert = kind == MutationType.INSERT
                images = [codec.decode_insert(data) if is_insert else codec.decode_delete(data)]
            if any(image[self._at] == self._channel_id for image in images):
                return True
        return False


_HINT = "the writer and the Drainer must speak the same binlog.proto"
_INT32_BYTES_MAX = 2**31 - 1
_INSERT, _UPDATE, _DELETE = (bytes([kind]) for kind in MutationType)

Target = tuple[str, TableInfo]
Lookup = Callable[[int, int], Target]
"""(table id, schema version) to the table at that version; `Screened` if not all rows go there."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The skipped rows and values of a table, and the cause: `policy` None skips every row.

    `name` is the table's name in the counts. In rows that pass, the values of the `lacking` columns
    are skipped, and those of the `converted` columns go into a column of another definition.
    """

    name: str
    policy: RowPolicy | None = None
    cause: str = FILTER
    lacking: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()

    @property
    def takes_nothing(self) -> bool:
        return self.policy is None or self.policy.takes_nothing

    def counts(self, rows: int, kept_kinds: bytes) -> Counts:
        found = Counts()
        if rows:
            found[Skipped(ROWS, self.cause, self.name)] = rows
        written = len(kept_kinds) - kept_kinds.count(_DELETE)
        for kind, columns in ((VALUES, self.lacking), (CONVERTED, self.converted)):
            for column in columns if written else ():
                found[Skipped(kind, OVERRIDE, self.name, column)] = written
        return found


class Screened(_ByIdentity):
    """A target that does not get all of its rows or values."""

    loss: Loss
    target: Target

    def __new__(cls, target: Target, loss: Loss) -> Screened:
        made = super().__new__(cls, target)
        made.loss, made.target = loss, target
        return made


@dataclass(frozen=True, slots=True)
class TableChanges:
    """One transaction's changes in one table, in their order, with their losses."""

    table_id: int
    target: Target
    kinds: bytes
    rows: list[bytes]
    skipped: Counts | None = None


class Targets:
    """A lookup's answers, so that equal tables are one object; valid until the next DDL."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._known: dict[tuple[int, int], Target] = {}
        self._latest: dict[int, Target] = {}

    def clear(self) -> None:
        self._known.clear()
        self._latest.clear()

    def of(self, table_id: int, version: int) -> Target:
        key = (table_id, version)
        if key not in self._known:
            target = self._lookup(table_id, version)
            # Most versions differ in some other table: one object for equal tables.
            latest = self._latest.get(table_id)
            self._latest[table_id] = self._known[key] = latest if latest == target else target
        return self._known[key]

    @property
    def convert(self) -> bool:
        """True if some values go into a column of another definition."""
        found = self._known.values()
        return any(isinstance(each, Screened) and each.loss.converted for each in found)


@dataclass(slots=True)
class _TableColumn:
    target: Target
    kinds: bytearray = field(default_factory=bytearray)
    rows: list[bytes] = field(default_factory=list)
    transactions: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """The number of rows of each of `transactions` here."""


class Collector:
    """The batch that is being filled."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self.skipped = Counts()
        """Counts of all added changes that do not go downstream."""
        self.commit_ts: list[int] = []
        """The commit_ts of each transaction, by its number."""
        self.starts: dict[int, TransactionStart] = {}
        """The start of each transaction that has one, by its commit_ts."""
        self._columns: dict[int, _TableColumn] = {}

    def fits(self, changes: list[TableChanges]) -> bool:
        """Return whether each change has the table version being collected, if there is one."""
        for change in changes:
            column = self._columns.get(change.table_id)
            if not change.rows:
                continue
            if column is not None and column.target is not change.target:
                return False
        return True

    def add(
        self,
        changes: list[TableChanges],
        size: int,
        commit_ts: int = 0,
        start: TransactionStart | None = None,
    ) -> None:
        """Append one transaction's changes, which weigh `size` bytes."""
        for change in changes:
            if change.skipped:
                self.skipped.update(change.skipped)
            if not change.rows:
                continue
            column = self._columns.get(change.table_id)
            if column is None:
                column = self._columns[change.table_id] = _TableColumn(change.target)
            column.kinds += change.kinds
            column.rows += change.rows
            column.transactions.append(len(self.commit_ts))
            column.counts.append(len(change.rows))
            self.rows += len(change.rows)
        self.bytes += size
        self.commit_ts.append(commit_ts)
        if start is not None:
            self.starts[commit_ts] = start

    def tables(self) -> list[TableRows]:
        """Return everything collected as Arrow columns; the collector is unusable afterwards."""
        tables = []
        while self._columns:
            # One table after another, so that never all rows exist twice.
            _, column = self._columns.popitem()
            schema, table = column.target
            rows = _array(column.rows)
            numbers = np.repeat(np.array(column.transactions, np.int32), column.counts)
            tables.append(TableRows(schema, table, bytes(column.kinds), rows, numbers))
        return tables[::-1]


def parse_merged(ts: int, payload: bytes) -> Any:
    """Parse a merged binlog; raise `Malformed` unless a Pump may stream it out."""
    hint = "the Pumps and the Drainer must speak the same binlog.proto"
    try:
        binlog: Any = pb.Binlog.FromString(payload)
    except DecodeError as error:
        raise Malformed(
            f"undecodable binlog at commit_ts {ts}: {error}", hint, Code.BINLOG_UNDECODABLE
        ) from error
    fake = binlog.tp == BinlogType.ROLLBACK and binlog.start_ts == binlog.commit_ts
    if binlog.commit_ts != ts or not (fake or binlog.tp == BinlogType.COMMIT):
        raise Malformed(
            f"a Pump sent a binlog of type {binlog.tp} with commit_ts {binlog.commit_ts} as {ts}",
            hint,
            Code.PULL_MALFORMED,
        )
    return binlog


def _parsed(prewrite_value: bytes) -> Any:
    try:
        return pb.PrewriteValue.FromString(prewrite_value)
    except DecodeError as error:
        raise Malformed(
            f"undecodable row changes: {error}", _HINT, Code.BINLOG_UNDECODABLE
        ) from error


def read_changes(prewrite_value: bytes, lookup: Lookup) -> list[TableChanges]:
    """Return a transaction's changes; some may only count skipped rows.

    A transaction with this Drainer's mark has only that count.

    Raises `Malformed` if the bytes are not row changes, or their lists and sequence disagree.
    """
    value = _parsed(prewrite_value)
    version = value.schema_version
    targets = [lookup(mutation.table_id, version) for mutation in value.mutations]
    if MarkTable in map(type, targets) and any(
        isinstance(target, MarkTable) and target.stops(mutation)
        for mutation, target in zip(value.mutations, targets, strict=True)
    ):
        return [TableChanges(0, targets[0], b"", [], Counts([Skipped(TRANSACTIONS, LOOP_BACK)]))]
    changes = []
    for mutation, target in zip(value.mutations, targets, strict=True):
        if isinstance(target, MarkTable):
            continue
        if isinstance(target, Screened):
            changes.append(_screened(mutation, target))
        else:
            # Tables that are one downstream have one id in their targets.
            changes.append(TableChanges(target[1].id, target, *_in_sequence(mutation)))
    return changes


def ignored_counts(prewrite_value: bytes, lookup: Lookup) -> Counts:
    value = _parsed(prewrite_value)
    found = Counts([Skipped(TRANSACTIONS, IGNORED)])
    for mutation in value.mutations:
        name = name_of(lookup, mutation.table_id, value.schema_version)
        found[Skipped(ROWS, IGNORED, name)] += len(mutation.sequence)
    return found


def name_of(lookup: Lookup, table_id: int, version: int) -> str:
    """Return a table's name for the counts, or its id if the name is unknown."""
    try:
        target = lookup(table_id, version)
    except NeedsOperator:
        return f"id {table_id}"
    return target.loss.name if isinstance(target, Screened) else f"{target[0]}.{target[1].name}"


def _screened(mutation: Any, screen: Screened) -> TableChanges:
    """Return the part of a mutation that passes; if none can, its rows are not examined."""
    loss, target = screen.loss, screen.target
    policy = loss.policy
    if policy is None or policy.takes_nothing:
        return TableChanges(target[1].id, target, b"", [], loss.counts(len(mutation.sequence), b""))
    kinds, rows = _in_sequence(mutation)
    policy.check(kinds)
    dropped, is_kept = policy.dropped, policy.is_kept
    kept = [
        i
        for i, kind in enumerate(kinds)
        if kind not in dropped and (is_kept is None or is_kept(kind, rows[i]))
    ]
    skipped = len(rows) - len(kept)
    if skipped:
        kinds, rows = bytes(kinds[i] for i in kept), [rows[i] for i in kept]
    return TableChanges(target[1].id, target, kinds, rows, loss.counts(skipped, kinds))


def _in_sequence(mutation: Any) -> tuple[bytes, list[bytes]]:
    kinds = bytes(mutation.sequence)
    inserted, updated = mutation.inserted_rows, mutation.updated_rows
    deleted, count = mutation.deleted_rows, len(kinds)
    expected = (kinds.count(_INSERT), kinds.count(_UPDATE), kinds.count(_DELETE))
    held = (len(inserted), len(updated), len(deleted))
    if expected != held or sum(expected) != count or mutation.deleted_ids or mutation.deleted_pks:
        raise Malformed(
            f"table {mutation.table_id}: the sequence of {count} changes has {expected}"
            f" inserts, updates and deletes, the lists hold {held}",
            _HINT,
            Code.BINLOG_UNDECODABLE,
        )
    # Most transactions make one kind of change to a table: a list is then taken over whole.
    if expected[0] == count:
        return kinds, list(inserted)
    if expected[1] == count:
        return kinds, list(updated)
    if expected[2] == count:
        return kinds, list(deleted)
    lists = zip(MutationType, (inserted, updated, deleted), strict=True)
    rows: dict[int, Iterator[bytes]] = {int(kind): iter(rows) for kind, rows in lists}
    return kinds, [next(rows[kind]) for kind in kinds]


def _array(rows: list[bytes]) -> pa.Array:
    """Return the rows as one Arrow array; joining them at once is faster than one by one."""
    data = b"".join(rows)
    large = len(data) > _INT32_BYTES_MAX
    offsets = np.zeros(len(rows) + 1, np.int64 if large else np.int32)
    np.cumsum(np.fromiter(map(len, rows), offsets.dtype, len(rows)), out=offsets[1:])
    kind = pa.large_binary() if large else pa.binary()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(rows), buffers)
