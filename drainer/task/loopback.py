"""Loop-back: recognises transactions that a Drainer wrote, between two replicating clusters.

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

from collections.abc import Sequence

from penstock.codes import Code
from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import Malformed
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType

MARK_SCHEMA, MARK_TABLE = "retl", "_drainer_repl_mark"
OWN_SCHEMAS = (MARK_SCHEMA, "tidb_binlog")
_CHANNEL_COLUMN = "channel_id"


def is_mark_table(schema: str, table: str) -> bool:
    return (schema.lower(), table.lower()) == (MARK_SCHEMA, MARK_TABLE)


class MarkTable(tuple[str, TableInfo]):
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
                hint="loop-back control reads it there: let a Drainer create the table",
                code=Code.LOOPBACK_TABLE,
            )
        made._channel_id, made._at = channel_id, column.offset
        made._codec = RowCodec(target[1])
        return made

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def stops(self, kinds: bytes, rows: Sequence[bytes]) -> bool:
        """Return whether the transaction with these changes came from here.

        Raises `Malformed` for bytes that are not rows of this table.
        """
        return any(self._is_own(*each) for each in zip(kinds, rows, strict=True))

    def _is_own(self, kind: int, data: bytes) -> bool:
        images: Sequence[Sequence[object]]
        if kind == MutationType.UPDATE:
            images = self._codec.decode_update(data)
        elif kind == MutationType.INSERT:
            images = [self._codec.decode_insert(data)]
        else:
            images = [self._codec.decode_delete(data)]
        return any(image[self._at] == self._channel_id for image in images)
