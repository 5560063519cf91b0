"""Changes sink: a lake that keeps every change; a batch is an append to each of its tables.

A table's app transaction makes an append happen once, like a mirror's merge
(`drainer.sinks.delta`). After a crash a batch may be cut elsewhere, because a setting has changed,
and may extend beyond a table's last commit. Lines up to the table's app transaction are skipped
then. A transaction larger than memory is written to the disk, table by table, before the first
commit, so that each table gets all of it in one commit.

Tasks write large blocks into Parquet files (`drainer.task.sql.lake_files`). The sink moves such a
file into the table's folder and commits its name, without reading its rows. If a commit needs only
some of a file's lines, or if the table has other types than the file, the sink reads the file and
writes the lines itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from drainer.settings.targets import LakeTarget
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.delta.incoming import commit_files
from drainer.sinks.delta.lake import OwnTable, Place, text_of
from drainer.sinks.delta.lake_ddl import ChangesDdl
from drainer.sinks.delta.sink import LakeSink, warn_of_nulled
from drainer.sinks.protocol import EventSink, rows_changed
from drainer.task.events.event_unit import DELTA_CHANGES, Encoding
from drainer.task.events.messages import Messages
from drainer.task.sql.lake_files import write_files
from drainer.task.sql.lake_merge import LakeChanges, by_table
from drainer.task.sql.lake_rows import COMMIT_TS, SEQ, change_schema
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.schema.model import TableInfo
from penstock.ts import physical_ms

if TYPE_CHECKING:
    from drainer.sinks.protocol import Slices
    from penstock.ddl import Catalog, SchemaChange

Appended = tuple[LakeChanges, Iterable[pa.Table]]
"""A table's changes, and their lines in pieces, which can be iterated repeatedly."""


class ChangesSink(LakeSink, EventSink):
    """See `EventSink`; its messages are blocks of changes (`change_blocks`)."""

    encoding = Encoding(DELTA_CHANGES)
    """From the first checkpoint on, it also has the folder for the files of tasks."""

    def __init__(self, target: LakeTarget, *, cluster_id: int, retry_s_max: float) -> None:
        super().__init__(target, cluster_id=cluster_id, retry_s_max=retry_s_max)
        self._ddl = ChangesDdl(self._lake)
        self._statements = OwnTable(self._lake, "ddl")
        self._upstream: list[tuple[str, TableInfo]] = []

    def _prepare(self) -> None:
        super()._prepare()
        self.encoding = Encoding(DELTA_CHANGES, folder=str(self._incoming.run or ""))

    def look_at(self, catalog: Catalog) -> None:
        self._upstream = [each for each in catalog.tables() if each[1].kind == "TABLE"]

    def put(self, messages: Sequence[Messages], checkpoint: Checkpoint) -> None:
        made: dict[Place, LakeChanges] = {}
        for changes in (changes for each in messages for changes in _in_order(each)):
            if (known := made.setdefault(changes.place, changes)) is not changes:
                known.add(changes)
        self._append_all([(each, each.pieces) for each in made.values()], checkpoint)
        self._incoming.discard(file for each in made.values() for file, _ in each.files)

    def put_slices(self, slices: Slices[Messages], checkpoint: Checkpoint) -> None:
        with ExitStack() as files:
            laid_out = self._patience.retrying(lambda _: self._laid_out(slices, files))
            self._append_all([(each.changes, each) for each in laid_out], checkpoint)

    def _laid_out(self, slices: Slices[Messages], files: ExitStack) -> list[_OnDisk]:
        """Return the changes of all slices by table, with lines numbered throughout."""
        files.close()  # Remove an earlier try's.
        made: dict[Place, _OnDisk] = {}
        count, disk = 0, self._folder if isinstance(self._folder, Path) else None
        with closing(slices()) as parts:
            for messages in parts:
                found = _in_order(messages)
                for changes in found:
                    if changes.place not in made:
                        file = files.enter_context(TemporaryFile(dir=disk))  # noqa: SIM115
                        made[changes.place] = _OnDisk(changes, file)
                    made[changes.place].add(changes, count)
                count += sum(len(piece) for each in found for piece in each.pieces)
        return list(made.values())

    def _append_all(self, changes: Sequence[Appended], checkpoint: Checkpoint) -> None:
        if not changes:
            self.save_checkpoint(checkpoint)
            return
        self._begin(checkpoint)

        def work() -> None:
            self._come_first(checkpoint)
            for each, pieces in changes:
                after_ts = self._lake.through(each.place)
                commit = partial(self._append, each, pieces, after_ts)
                self._lake.commit(each.place, checkpoint.commit_ts, commit)
            rows_changed()
            self._add_versions(checkpoint)

        self._commit(work, checkpoint)

    def _append(
        self,
        changes: LakeChanges,
        pieces: Iterable[pa.Table],
        after_ts: int,
        table: DeltaTable,
        properties: CommitProperties,
    ) -> None:
        """Append the lines after `after_ts` to a table, in one commit."""
        warn_of_nulled(changes)
        incoming, wanted = self._incoming, pa.schema(table.schema())

        def batches() -> Iterator[pa.RecordBatch]:
            for piece in pieces:
                rows = piece.filter(pc.greater(piece.column(COMMIT_TS), after_ts))
                yield from as_columns(rows, wanted, changes.place).to_batches()

        files = [file for file, _ in changes.files]
        if not all(after_ts < f.first_ts and is_part(had, wanted) for f, had in changes.files):
            pieces, files = chain(pieces, map(incoming.read, files)), []
        stream = pa.RecordBatchReader.from_batches(wanted, batches())
        if not files:
            write_deltalake(table, stream, mode="append", commit_properties=properties)
            return
        folder = self._lake.path(changes.place)
        assert incoming.run is not None, "they are files of tasks"
        assert isinstance(folder, Path), "tasks write into folders only"
        if len(rows := stream.read_all()):
            files += write_files(incoming.run, rows, 0)
        commit_files(table, [incoming.move(file, folder) for file in files], properties)

    def _change_tables(self, change: SchemaChange, checkpoint: Checkpoint) -> None:
        self._come_first(checkpoint)
        super()._change_tables(change, checkpoint)
        ts, job = checkpoint.commit_ts, change.job
        when = datetime.fromtimestamp(physical_ms(ts) / 1000, UTC)
        row = {"commit_time": when, "schema": job.schema_name, "statement": job.query}
        self._statements.add_once(ts, row)

    def _let_go(self) -> None:
        super()._let_go()
        self._statements.forget()

    def _come_first(self, checkpoint: Checkpoint) -> None:
        """Create the logs of tables that existed upstream before this cluster's first commit."""
        absent = [
            (place, table)
            for schema, table in self._upstream
            if (place := (schema, table.name)) not in self._lake.versions
            and not self._lake.has(place)
        ]
        for place, table in absent:
            self._lake.create(place, change_schema(table), None)
        if absent:  # A DDL may drop such a table and a crash follow; it is not created again.
            self._versions.add(checkpoint.commit_ts - 1, self._lake.versions)
        self._upstream = []


class _OnDisk:
    """A table's changes in a file that closing deletes; it can be iterated repeatedly."""

    def __init__(self, changes: LakeChanges, file: IO[bytes]) -> None:
        self.changes = LakeChanges(changes.place, changes.key, [])
        self._file = file

    def add(self, changes: LakeChanges, count: int) -> None:
        """Write the next changes; `count` lines of the transaction precede them."""
        self.changes.nulled += changes.nulled
        for rows in changes.pieces:
            at = rows.schema.get_field_index(SEQ)
            numbered = rows.set_column(at, rows.field(at), pc.add(rows.column(at), count))
            with pa.ipc.new_stream(self._file, numbered.schema) as writer:
                writer.write_table(numbered)

    def __iter__(self) -> Iterator[pa.Table]:
        self._file.flush()
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        while self._file.tell() < end:
            with pa.ipc.open_stream(self._file) as reader:
                yield reader.read_all()


def _in_order(messages: Messages) -> list[LakeChanges]:
    found = by_table(_blocks(messages))
    for changes in found:
        if len(changes.pieces) > 1:  # Of several upstream tables, which are one downstream.
            rows = changes.rows()
            changes.pieces = [rows.sort_by([(COMMIT_TS, "ascending"), (SEQ, "ascending")])]
    return found


def _blocks(messages: Messages) -> Iterator[bytes]:
    for _, message in messages:
        assert message.value is not None, "a block is a value"
        yield message.value


def is_part(some: pa.Schema, of_all: pa.Schema) -> bool:
    """Return whether a table with the columns `of_all` may have a file with the columns `some`."""
    return all(name in of_all.names and of_all.field(name).type == field.type
               for name, field in zip(some.names, some, strict=True))  # fmt: skip


def as_columns(rows: pa.Table, wanted: pa.Schema, place: Place) -> pa.Table:
    """Return rows with the columns of a table, NULL in columns that upstream has dropped.

    Raises `NeedsOperator` for a column that the table lacks.
    """
    found = {name.lower(): column for name, column in zip(rows.column_names, rows, strict=True)}
    made = []
    for field in wanted:
        column = found.pop(field.name.lower(), None)
        made.append(pa.nulls(len(rows), field.type) if column is None else column.cast(field.type))
    if found:
        raise NeedsOperator(
            f"the Delta table of upstream's {text_of(place)} has no column {next(iter(found))!r}",
            "put the table back as it was; nothing was appended",
            Code.DELTA_TABLE,
        )
    return pa.Table.from_arrays(made, schema=wanted)
