"""DDL of a lake: applies each schema change to Delta tables, of a mirror or of a change log.

A mirror has the tables as they are upstream:

    CREATE TABLE      a new table; a folder that already has another table stops the Drainer
    ADD COLUMN        new metadata; if older rows read as a default, all rows are written again
    other columns     renamed, dropped, of a wider type: all rows are written again, in one commit
    RENAME TABLE      the folder moves, by way of `_penstock/renaming`, because names may swap
    TRUNCATE          a commit that removes all rows; older versions can still be read
    DROP TABLE        the folder moves to `_penstock/dropped`, and is removed after the retention
    indexes, NULL     nothing: a lake has no indexes, and all its columns may be NULL

Each step can be repeated. A commit has the DDL's commit_ts as its app transaction, and the folders
show how far a move came. Delta's column mapping would avoid rewriting rows, but many readers do not
support it. A column is therefore renamed in the same way as upstream changes a type: by a copy, all
or nothing.

In a change log no earlier row changes, whatever upstream does to a table:

    ADD COLUMN         new metadata; earlier rows are NULL there, whatever the default is
    DROP COLUMN        the column stays, and is NULL from then on
    RENAME COLUMN      a column of the new name; the old column stays, and is NULL from then on
    another type       the column stays if it can hold each new value, else all rows are written
                       again with the wider type; if neither fits, the Drainer stops
    TRUNCATE           a row with `_op` truncate, and NULL in upstream's columns
    DROP TABLE         the folder moves to `_penstock/dropped`, and stays there forever
    CREATE, RENAME     as in a mirror

A column's name alone therefore decides its content, and each step can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake

from drainer.sinks.ddl_effects import ROWS_BY_PARTITION, stored_default
from drainer.sinks.delta.folders import is_moved, is_moving, move, remove, sync_names
from drainer.sinks.delta.lake import OWN, Lake, Place, folder_name, text_of
from drainer.task.sql.lake_merge import rows_of
from drainer.task.sql.lake_rows import (
    CHANGE_OP,
    COMMIT_TIME,
    COMMIT_TS,
    SEQ,
    TRUNCATE,
    change_schema,
    commit_times,
    lake_array,
    lake_schema,
    lake_type,
)
from drainer.task.sql.rows import is_written
from penstock.codes import Code
from penstock.ddl import adopted
from penstock.ddl.successors import check_known
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnInfo, DdlType, TableInfo

if TYPE_CHECKING:
    from drainer.sinks.delta.folders import Folder
    from penstock.ddl import SchemaChange

DROPPED, RENAMING = "dropped", "renaming"
_ALL = "all"
"""The file that marks that every table of a rename has left its old name."""
_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")
"""Characters that Delta forbids in column names without column mapping."""
_WIDER = ((pa.float32(), pa.float64()), (pa.date32(), pa.timestamp("us")))
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


@dataclass(frozen=True, slots=True)
class NewColumn:
    """A column after the change; its values are the `source` column's, or all are `value`."""

    name: str
    type: pa.DataType
    source: str | None
    value: pa.Scalar | None = None

    @property
    def is_empty(self) -> bool:
        """True when all its values are NULL."""
        return self.source is None and self.value is None

    def is_in(self, schema: pa.Schema) -> bool:
        return self.name == self.source and schema.field(self.name).type == self.type


class LakeDdl:
    """Runs DDL on the tables of a lake; `keeps_columns` keeps dropped columns."""

    def __init__(self, lake: Lake, *, keeps_columns: bool) -> None:
        self._lake = lake
        self._keeps_columns = keeps_columns

    def run(self, change: SchemaChange, commit_ts: int) -> None:
        check_possible(change)
        created = {(schema, table.name) for schema, table in change.created}
        truncated = set()
        for schema, table in change.dropped:
            place = schema, table.name
            if table.kind != "TABLE":
                continue
            if change.job.type == DdlType.TRUNCATE_TABLE and place in created:
                truncated.add(place)
                self._truncate(place, commit_ts)
            else:
                self._drop(place, commit_ts)
        for schema in change.schemas_dropped:
            with suppress(OSError):  # Keep other content, and its folder.
                (self._lake.folder / folder_name(schema)).rmdir()
        self._rename(change, commit_ts)
        for schema, before, after in change.altered:
            if before.kind == "TABLE":
                check_known(change.job, before, after)
                self._alter((schema, after.name), change, before, after, commit_ts)
        for schema, table in change.created:
            if table.kind == "TABLE" and (schema, table.name) not in truncated:
                self._lake.create((schema, table.name), self._schema_of(table), commit_ts)

    def _schema_of(self, table: TableInfo) -> pa.Schema:
        return lake_schema(table)

    def _truncate(self, place: Place, commit_ts: int) -> None:
        self._lake.commit(
            place, commit_ts, lambda table, properties: table.delete(commit_properties=properties)
        )

    # --- folders ---------------------------------------------------------------------------

    def _own(self, *names: str) -> Folder:
        return self._lake.folder.joinpath(OWN, *names)

    def _drop(self, place: Place, commit_ts: int) -> None:
        schema, name = map(folder_name, place)
        to = self._own(DROPPED, str(commit_ts), schema, name)
        if not is_moved(to):
            self._leave(place, to)
        self._lake.moved({place: None})

    def _rename(self, change: SchemaChange, commit_ts: int) -> None:
        done = self._own(RENAMING)
        for each in done.iterdir() if done.exists() else ():
            if int(each.name) < commit_ts:  # The checkpoint has passed this rename.
                remove(each)
        renamed = [each for each in change.renamed if each[1].kind == "TABLE"]
        pairs = {(old, b.name): (new, a.name) for old, b, new, a in renamed}
        if not pairs:
            return
        aside = self._own(RENAMING, str(commit_ts))
        have_left = aside / _ALL
        if not have_left.exists():
            aside.mkdir(parents=True, exist_ok=True)
            for number, old in enumerate(pairs):
                if not is_moved(aside / str(number)):
                    self._leave(old, aside / str(number))
            have_left.touch()
            sync_names(aside)
        for number, new in enumerate(pairs.values()):
            to = self._lake.path(new)
            if (aside / str(number)).exists() or is_moving(to):
                move(aside / str(number), to)
        self._lake.moved(pairs)
        for _, before, schema, after in renamed:
            self._alter((schema, after.name), change, before, after, commit_ts)

    def _leave(self, place: Place, to: Folder) -> None:
        if not is_moving(to):
            self._lake.opened(place)
        move(self._lake.path(place), to)

    # --- columns ---------------------------------------------------------------------------

    def _alter(
        self,
        place: Place,
        change: SchemaChange,
        before: TableInfo,
        after: TableInfo,
        commit_ts: int,
    ) -> None:
        known = adopted(change.job, before, after)
        columns, dropped = new_columns(change, place, known, after)
        if self._lake.has_through(place, commit_ts):
            return
        there = pa.schema(self._lake.opened(place).schema())
        # A column that upstream no longer has, such as a kept one, stays unless its name is taken.
        taken = {name.lower() for each in columns for name in (each.name, each.source or "")}
        gone = set() if self._keeps_columns else dropped
        columns += [
            NewColumn(each.name, each.type, each.name)
            for each in there
            if each.name.lower() not in taken and each.name not in gone
        ]
        new = [each for each in columns if not each.is_in(there)]
        have_all = len(columns) - len(new) == len(there)
        if have_all and not new:
            return
        if have_all and all(each.is_empty and each.name not in there.names for each in new):
            self._lake.commit(place, commit_ts, partial(with_added, new))
        else:
            self._lake.commit(place, commit_ts, partial(rewrite, columns))


def check_possible(change: SchemaChange) -> None:
    """Raise `NeedsOperator` for a change a lake cannot make, before any part of it is made."""
    job = change.job
    if job.type in ROWS_BY_PARTITION:
        raise impossible(
            f"a lake has no partitions, so it cannot run: {job.query}",
            "delete or move the partition's rows in the Delta table by hand",
        )
    if job.type == DdlType.RECOVER_TABLE:
        raise impossible(
            f"a lake does not bring a dropped table back: {job.query}",
            f"move its folder back from {OWN}/{DROPPED}, and compare its rows",
        )
    for table in tables_after(change):
        for column in table.columns:
            if _NOT_IN_NAMES.intersection(column.name):
                raise impossible(
                    f"column {column.name!r} of {table.name!r} has a character that no column of a"
                    " Delta table has",
                    "leave the table out by a filter, or name the column otherwise upstream",
                )


def tables_after(change: SchemaChange) -> list[TableInfo]:
    made = [table for _, table in change.created]
    made += [after for _, _, after in change.altered]
    made += [after for _, _, _, after in change.renamed]
    return [table for table in made if table.kind == "TABLE"]


def impossible(problem: str, hint: str) -> NeedsOperator:
    return NeedsOperator(problem, hint, Code.SINK_DDL)


def new_columns(
    change: SchemaChange, place: Place, before: TableInfo, after: TableInfo
) -> tuple[list[NewColumn], set[str]]:
    """Return the columns after the change, and the names of the dropped columns.

    Raises `NeedsOperator` for a type whose values cannot be converted to the new type unchanged.
    """
    old = {c.id: c for c in before.columns if is_written(c)}
    columns = []
    for column in after.columns:
        if not is_written(column):
            continue
        was = old.pop(column.id, None)
        if was is None:
            columns.append(_added(column))
            continue
        if not becomes(lake_type(was), lake_type(column)):
            raise impossible(
                f"{text_of(place)}: what {was.name!r} has as {was.sql_type} does not become"
                f" {column.sql_type} in a lake by itself: {change.job.query}",
                "write the Delta table again with the new type by hand, add"
                f" accept={text_of(place)}@<its version> to the sink's URL, then track this DDL",
            )
        columns.append(NewColumn(column.name, lake_type(column), was.name))
    return columns, {column.name for column in old.values()}


def _added(column: ColumnInfo) -> NewColumn:
    stored, wanted = stored_default(column), lake_type(column)
    if stored is None:
        return NewColumn(column.name, wanted, None)
    value = lake_array(column, pa.array([stored]))[0]
    return NewColumn(column.name, wanted, None, value if value.is_valid else None)


def becomes(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether each value of `old` is a value of `new`, and the same upstream."""
    if old == new or (old, new) in _WIDER:
        return True
    if old in _DIGITS:
        if new in _DIGITS:
            return _DIGITS[old] < _DIGITS[new]
        if pa.types.is_decimal(new):
            return bool(new.precision - new.scale >= _DIGITS[old])
        return bool(new == pa.string())
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        wider = new.precision - new.scale >= old.precision - old.scale
        return bool(wider and new.scale >= old.scale)
    return False


def with_added(added: Sequence[NewColumn], table: DeltaTable, properties: CommitProperties) -> None:
    schema = Schema.from_arrow(pa.schema([(each.name, each.type) for each in added]))
    table.alter.add_columns(list(schema.fields), commit_properties=properties)


def rewrite(columns: Sequence[NewColumn], table: DeltaTable, properties: CommitProperties) -> None:
    there = pa.schema(table.schema())
    sources = pa.schema([there.field(each.source) for each in columns if each.source])
    wanted = pa.schema([(each.name, each.type) for each in columns])

    def batches() -> Iterator[pa.RecordBatch]:
        for rows in rows_of(table, sources):
            arrays = [
                rows.column(each.source).cast(each.type)
                if each.source
                else pa.repeat(each.value or pa.scalar(None, each.type), len(rows))
                for each in columns
            ]
            yield from pa.Table.from_arrays(arrays, schema=wanted).to_batches()

    stream = pa.RecordBatchReader.from_batches(wanted, batches())
    write_deltalake(
        table, stream, mode="overwrite", schema_mode="overwrite", commit_properties=properties
    )


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
        (time,) = commit_times(np.array([commit_ts])).to_pylist()
        own = {COMMIT_TS: commit_ts, SEQ: 0, CHANGE_OP: TRUNCATE, COMMIT_TIME: time}

        def mark(table: DeltaTable, properties: CommitProperties) -> None:
            row = pa.Table.from_pylist([own], pa.schema(table.schema()))
            write_deltalake(table, row, mode="append", commit_properties=properties)

        self._lake.commit(place, commit_ts, mark)

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
