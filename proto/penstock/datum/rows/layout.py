"""Says which columns the rows of a table hold, in which order, and what the handle is."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.datum import values
from penstock.datum.rows import fields
from penstock.datum.rows.field import Field
from penstock.schema.model import PUBLIC, ColumnInfo, IndexColumn, TableInfo

ROW_ID = -1
"""The column id under which a table without a handle of its own keeps its hidden row id."""
EMPTY_ROW = b"\x00"

Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A column that rows hold: its place in the table, what reads and writes it."""

    position: int
    column: ColumnInfo
    field: Field
    header: bytes
    omits_null: bool


def stored_columns(table: TableInfo) -> tuple[Stored, ...]:
    """Return the columns that rows of `table` hold, in the order in which they are written."""
    return tuple(
        Stored(
            position,
            column,
            fields.compile_field(column),
            values.int_datum(column.id),
            # An insert may only leave out a NULL that will read as NULL again.
            column.origin_default is None and (column.is_generated or not column.is_not_null),
        )
        for position, column in enumerate(table.columns)
        if column.state == PUBLIC and not (column.is_generated and not column.generated_stored)
    )


def handle_position(table: TableInfo) -> int | None:
    """Return the position of the integer primary key that is the row's handle."""
    key = table.primary_key if table.pk_is_handle else None
    return key.columns[0].offset if key else None


def handle_parts(table: TableInfo) -> tuple[IndexColumn, ...]:
    """Return the columns of a common handle, in index order."""
    key = table.primary_key if table.is_common_handle else None
    return key.columns if key else ()
