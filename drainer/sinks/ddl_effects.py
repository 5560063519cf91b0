"""DDL effects: a DDL's effects on existing rows, which are in no binlog."""

from __future__ import annotations

from typing import Any

from penstock.datum.rows.defaults import missing_datum
from penstock.datum.rows.fields import compile_field
from penstock.schema.model import ColumnInfo, DdlType

ROWS_BY_PARTITION = (
    DdlType.DROP_PARTITION,
    DdlType.TRUNCATE_PARTITION,
    DdlType.EXCHANGE_PARTITION,
    DdlType.CONVERT_PARTITION,
    DdlType.CONVERT_TABLE,
)
"""Clauses that move or remove rows that only a server with partitions can identify."""


def default_value(column: ColumnInfo) -> Any:
    """Return the value that rows older than the column read as, None for NULL."""
    datum = missing_datum(column)
    return None if datum is None else compile_field(column).decode(datum, 0)[0]


def stored_default(column: ColumnInfo) -> Any:
    """Return `default_value` in the storage form of `penstock.datum.columnar.decode`."""
    datum = missing_datum(column)
    return None if datum is None else compile_field(column).store(datum, 0)[0]
