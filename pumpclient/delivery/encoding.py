"""What a transaction's changes become: a Prewrite, encoded for one schema version."""

from __future__ import annotations

from penstock.errors import Retryable
from penstock.wire.binlog import Binlog, BinlogType, Origin, PrewriteValue
from penstock.wire.codec import encode_prewrite_value
from pumpclient.changes import ChangeSet
from pumpclient.delivery.large import LargePrewrite
from pumpclient.rows import Table
from pumpclient.schema import Schemas


def bring_up_to_date(changes: ChangeSet, schemas: Schemas) -> None:
    """Encode again the changes of tables that have another version by now.

    Raises `Retryable` when one of them is gone.
    """
    carried: dict[int, Table] = {}
    for table_id, each in changes.tables.items():
        now = schemas.table_by_id(table_id)
        if now is None:
            raise Retryable(
                f"table {each.table.schema_name}.{each.table.info.name} was dropped or"
                " truncated since the transaction began"
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
) -> Binlog | LargePrewrite:
    """Return the Prewrite of changes encoded for `version`; large when rows wait in a file."""
    spilled = changes.spill_all() if changes.spill is not None else None
    if spilled is None:
        value = changes.value(version)
    else:
        value = encode_prewrite_value(PrewriteValue(schema_version=version))
    prewrite = Binlog(
        tp=BinlogType.PREWRITE,
        start_ts=start_ts,
        prewrite_key=prewrite_key,
        prewrite_value=value,
        origin=origin,
    )
    return prewrite if spilled is None else LargePrewrite(prewrite, spilled)
