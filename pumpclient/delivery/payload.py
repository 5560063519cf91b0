"""The serialized form of a Prewrite: one message, or chunks when it is large.

changes ── encoded again where a table has another version ──┬─ whole: a write in a batch
                                                             └─ large: a dedicated stream, read
                                                                from wherever its rows lie
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.log.chunks import DATA_BYTES, before_rows
from penstock.wire.binlog import Binlog, BinlogType, Origin, PrewriteValue
from penstock.wire.codec import encode_binlog, encode_prewrite_value
from pumpclient.changes import ChangeSet, SpoolFile
from pumpclient.rows import Table
from pumpclient.schema import Schemas


class Payload:
    """A serialized Prewrite; it may be written as often as needed.

    With `rows` it is large: they follow `prewrite`, and are read while they are sent.
    """

    def __init__(self, prewrite: Binlog, rows: bytes | SpoolFile | None = None) -> None:
        self.start_ts = prewrite.start_ts
        self.is_large = rows is not None
        if rows is None:
            rows, self.data = b"", encode_binlog(prewrite)
        else:
            head = encode_binlog(replace(prewrite, prewrite_value=b""))
            begin = prewrite.prewrite_value
            size_bytes = len(rows) if isinstance(rows, bytes) else rows.size_bytes
            self.data = before_rows(head, len(begin) + size_bytes) + begin
        self._rows = rows

    @classmethod
    def of(cls, prewrite: Binlog, large_bytes: int) -> Payload:
        """Return a Prewrite as one message, or in chunks if its rows exceed `large_bytes`."""
        rows = prewrite.prewrite_value
        is_large = len(rows) > large_bytes
        return cls(replace(prewrite, prewrite_value=b""), rows) if is_large else cls(prewrite)

    def __len__(self) -> int:
        rows = self._rows
        return len(self.data) + (len(rows) if isinstance(rows, bytes) else rows.size_bytes)

    def chunks(self) -> Iterator[bytes]:
        first = DATA_BYTES - len(self.data)
        yield self.data + self._read(0, first)
        for offset in range(first, len(self) - len(self.data), DATA_BYTES):
            yield self._read(offset, DATA_BYTES)

    def _read(self, offset: int, length: int) -> bytes:
        if isinstance(self._rows, bytes):
            return self._rows[offset : offset + length]
        return self._rows.read(offset, length)


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
    if rows is not None or large_bytes is None:
        return Payload(prewrite, rows)
    return Payload.of(prewrite, large_bytes)
