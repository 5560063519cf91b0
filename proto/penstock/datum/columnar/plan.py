"""Works out, once per table version, how its rows are to be walked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from penstock.datum import values
from penstock.datum.columnar.render import row_flag
from penstock.datum.columnar.walk import HEADER_BYTES_MAX, Step
from penstock.datum.rows.field import Decode, Field
from penstock.datum.rows.layout import ROW_ID, Stored, handle_parts, handle_position, stored_columns
from penstock.datum.rows.reader import RowReader
from penstock.schema.model import IndexColumn, TableInfo
from penstock.wire.binlog import MutationType

UNKNOWN = -1
"""The position of columns that a table's rows hold and the table does not know."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is worked out once per table version."""

    table: TableInfo
    reader: RowReader
    stored: dict[int, Stored]
    steps: dict[int, Step]
    handle: int | None
    parts: tuple[IndexColumn, ...]

    def order(self, kind: MutationType, sample: Sequence[int] = ()) -> list[Step]:
        """Return the steps in the order of `sample`, other columns behind those they follow."""
        ids = list(dict.fromkeys(sample))
        previous = -1
        for column_id in self.steps:
            if column_id not in ids:
                ids.insert(previous + 1, column_id)
            previous = ids.index(column_id)
        if kind is MutationType.INSERT and self.handle is not None:
            # The handle is that column's value, whatever the row says.
            handle_id = self.table.columns[self.handle].id
            ids = [column_id for column_id in ids if column_id != handle_id]
        steps = [self.steps.get(i) or Step(values.int_datum(i), UNKNOWN, 0) for i in ids]
        return [step for step in steps if len(step.header) <= HEADER_BYTES_MAX]


@lru_cache(maxsize=256)
def plan_of(table: TableInfo) -> Plan:
    """Return the plan of a table version; recent ones are kept."""
    stored = stored_columns(table)
    steps = {
        s.column.id: Step(values.int_datum(s.column.id), s.position, row_flag(s.column))
        for s in stored
    }
    parts = handle_parts(table)
    if handle_position(table) is None and not parts:
        steps[ROW_ID] = Step(values.int_datum(ROW_ID), UNKNOWN, 0)
    by_position = {s.position: s for s in stored}
    reader = RowReader(table, _store)
    return Plan(table, reader, by_position, steps, handle_position(table), parts)


def _store(field: Field) -> Decode:
    return field.store
