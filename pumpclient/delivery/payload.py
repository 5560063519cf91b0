"""The serialized form of a Prewrite: one message, or chunks when it is large.

changes ── encoded again where a table has another version ──┬─ whole: a write in a batch
                                                             └─ large: a dedicated stream, read
                                                                from wherever its rows lie
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.log.chunks import DATA_BYTES, before_rows
from penstock.wire.binlog import Binlog, BinlogType, Origin, PrewriteValue
from penstock.wire.codec import encode_binlog, encode_prewrite_value
from pumpclient.changes import ChangeSet
from pumpclient.delivery.write_queue import PendingWrite
from pumpclient.errors import Failure
from pumpclient.rows import Table
from pumpclient.schema import Schemas


class Taker(Protocol):
    """A Pump as seen by a payload."""

    def write(self, payload: bytes) -> Failure | None:
        """Try once to make a serialized binlog durable; None means success."""

    def write_large(self, prewrite: LargePrewrite) -> Failure | None:
        """Try once to make a large Prewrite durable; None means success."""


class Payload(Protocol):
    """A serialized Prewrite; it may be written as often as needed."""

    start_ts: int

    def __len__(self) -> int: ...

    def write_to(self, pump: Taker) -> Failure | None:
        """Try once to make the payload durable on `pump`; None means success."""

    def pending(self) -> PendingWrite | None:
        """Return the payload as a write to queue, or None if it must be sent alone."""


class WholePrewrite:
    """A Prewrite in one message."""

    def __init__(self, prewrite: Binlog) -> None:
        self.start_ts = prewrite.start_ts
        self.data = encode_binlog(prewrite)

    def __len__(self) -> int:
        return len(self.data)

    def write_to(self, pump: Taker) -> Failure | None:
        return pump.write(self.data)

    def pending(self) -> PendingWrite:
        return PendingWrite(self.data)


class Rows(Protocol):
    """Row changes that can be read as often as needed."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from `offset` on; fewer than `length` only at the end."""


@dataclass(frozen=True, slots=True)
class RowsInMemory:
    """Row changes that the caller already has as bytes."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


class LargePrewrite:
    """A Prewrite whose rows are read while they are sent."""

    def __init__(self, prewrite: Binlog, rows: Rows) -> None:
        """Append `rows` to `prewrite`, whose `prewrite_value` precedes the rows."""
        head = encode_binlog(replace(prewrite, prewrite_value=b""))
        begin = prewrite.prewrite_value
        self.start_ts = prewrite.start_ts
        self._head = before_rows(head, len(begin) + rows.size_bytes) + begin
        self._rows = rows

    def __len__(self) -> int:
        return len(self._head) + self._rows.size_bytes

    def write_to(self, pump: Taker) -> Failure | None:
        return pump.write_large(self)

    def pending(self) -> None: ...

    def chunks(self) -> Iterator[bytes]:
        first = DATA_BYTES - len(self._head)
        yield self._head + self._rows.read(0, first)
        for offset in range(first, self._rows.size_bytes, DATA_BYTES):
            yield self._rows.read(offset, DATA_BYTES)


def payload_of(prewrite: Binlog, large_bytes: int) -> WholePrewrite | LargePrewrite:
    """Return a Prewrite as one message, or in chunks if its rows exceed `large_bytes`."""
    if len(prewrite.prewrite_value) <= large_bytes:
        return WholePrewrite(prewrite)
    rows = RowsInMemory(prewrite.prewrite_value)
    return LargePrewrite(replace(prewrite, prewrite_value=b""), rows)


def bring_up_to_date(changes: ChangeSet, schemas: Schemas) -> None:
    """Encode the changes again for tables that have a new version by now.

    Raises `Retryable` when one of the tables is gone.
    """
    carried: dict[int, Table] = {}
    for table_id, each in changes.tables.items():
        now = schemas.table_by_id(table_id)
        if now is None:
            raise Retryable(
                f"table {each.table.schema_name}.{each.table.info.name} was dropped or"
                " truncated since the transaction began",
                Code.TRANSACTION_ROLLED_BACK,
            )
        if now is not each.table:
            carried[table_id] = now
    changes.carry_over(carried)


def prewrite_of(
    changes: ChangeSet,
    version: int,
    *,
    start_ts: int,
    prewrite_key: bytes = b"",
    origin: Origin | None = None,
    large_bytes: int | None = None,
) -> Payload:
    """Return changes encoded for `version`: large when rows are in the spool file.

    Rows in memory make it large when they exceed `large_bytes`.
    """
    rows = changes.spool_all() if changes.spool_file is not None else None
    value = encode_prewrite_value(PrewriteValue(schema_version=version))
    prewrite = Binlog(
        tp=BinlogType.PREWRITE,
        start_ts=start_ts,
        prewrite_key=prewrite_key,
        prewrite_value=changes.value(version) if rows is None else value,
        origin=origin,
    )
    if rows is not None:
        return LargePrewrite(prewrite, rows)
    return WholePrewrite(prewrite) if large_bytes is None else payload_of(prewrite, large_bytes)
