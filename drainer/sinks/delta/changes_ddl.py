"""DDL of a change log: no earlier row changes, whatever upstream does to a table.

    ADD COLUMN         new metadata; earlier rows are NULL there, whatever the default is
    DROP COLUMN        the column stays, and is NULL from then on
    RENAME COLUMN      a column of the new name; the old one stays, and is NULL from then on
    another type       the column stays if it can hold each new value, else all rows are written
                       again with the wider type; if neither fits, the Drainer stops
    TRUNCATE           a row with `_op` truncate, and NULL in upstream's columns
    DROP TABLE         the folder moves to `_penstock/dropped`, and stays there forever
    CREATE, RENAME     as in a mirror (`lake_ddl`)

A column's name alone therefore decides its content, and each step can be repeated.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from drainer.sinks.ddl_effects import ROWS_BY_PARTITION
from drainer.sinks.delta.lake import Lake, Place, text_of
from drainer.sinks.delta.lake_ddl import (
    LakeDdl,
    NewColumn,
    becomes,
    impossible,
    rewrite,
    tables_after,
    with_added,
)
from drainer.task.events.change_blocks import (
    COMMIT_TIME,
    COMMIT_TS,
    OP,
    SEQ,
    TRUNCATE,
    change_schema,
    commit_times,
)
from penstock.schema.model import TableInfo

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange


class ChangesDdl(LakeDdl):
    """Runs DDL on the tables of a change log."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake, keeps_columns=True)

    def run(self, change: SchemaChange, commit_ts: int) -> None:
        for table in tables_after(change):
            change_schema(table)
        if change.job.type in ROWS_BY_PARTITION:
            raise impossible(
                f"a change log does not know which rows are a partition's: {change.job.query}",
                "delete or move them by statements upstream instead; or track this DDL, and let"
                " readers of the log know",
            )
        super().run(change, commit_ts)

    def _schema_of(self, table: TableInfo) -> pa.Schema:
        return change_schema(table)

    def _truncate(self, place: Place, commit_ts: int) -> None:
        self._lake.commit(place, commit_ts, partial(_truncated, commit_ts))

    def _alter(
        self,
        place: Place,
        change: SchemaChange,
        before: TableInfo,
        after: TableInfo,
        commit_ts: int,
    ) -> None:
        if self._lake.has_through(place, commit_ts):
            return
        there = {each.name.lower(): each for each in pa.schema(self._lake.opened(place).schema())}
        added: list[NewColumn] = []
        columns = {name: NewColumn(f.name, f.type, f.name) for name, f in there.items()}
        for wanted in change_schema(after):
            found = there.get(wanted.name.lower())
            if found is None:
                added.append(NewColumn(wanted.name, wanted.type, None))
            elif becomes(wanted.type, found.type):
                continue
            elif becomes(found.type, wanted.type):
                columns[wanted.name.lower()] = NewColumn(found.name, wanted.type, found.name)
            else:
                raise impossible(
                    f"{text_of(place)}: the change log has {found.name!r} as {found.type}, and not"
                    f" each {wanted.type} is one: {change.job.query}",
                    "write the Delta table again with a type for both by hand, add"
                    f" accept={text_of(place)}@<its version> to the sink's URL, then start again",
                )
        if any(each.type != there[name].type for name, each in columns.items()):
            self._lake.commit(place, commit_ts, partial(rewrite, [*columns.values(), *added]))
        elif added:
            self._lake.commit(place, commit_ts, partial(with_added, added))


def _truncated(commit_ts: int, table: DeltaTable, properties: CommitProperties) -> None:
    (time,) = commit_times(np.array([commit_ts])).to_pylist()
    own = {COMMIT_TS: commit_ts, SEQ: 0, OP: TRUNCATE, COMMIT_TIME: time}
    row = pa.Table.from_pylist([own], pa.schema(table.schema()))
    write_deltalake(table, row, mode="append", commit_properties=properties)
