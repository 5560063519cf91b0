"""The row changes of one transaction, encoded as they arrive and spilled to a file when large.

    insert, update, delete ──> lists per table ── above `spill_bytes` ──> spool file
                                                                           finished mutations

The file has no name, so it disappears with the process. It is a sequence of complete
`TableMutation` fields, so its bytes are the row changes of the binlog. A table may have several
mutations; the order of its changes is kept.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.wire.binlog import MutationType, PrewriteValue, TableMutation
from penstock.wire.codec import decode_prewrite_value, encode_mutation_field, encode_prewrite_value
from pumpclient.rows import Table

MUTATION_BYTES_MAX = 4 << 20
"""Maximum size of a mutation in a spool file; a single row may be larger."""

# Tables without a primary key have a hidden row id. It is never read; it must only be unique.
_row_ids = itertools.count(time.time_ns())


def next_row_id() -> int:
    """Return a hidden row id that no other row of this process has."""
    return next(_row_ids)


@dataclass(slots=True)
class Changes:
    """The changes of one table, encoded for the table version in `table`."""

    table: Table
    inserted: list[bytes] = field(default_factory=list)
    updated: list[bytes] = field(default_factory=list)
    deleted: list[bytes] = field(default_factory=list)
    sequence: list[MutationType] = field(default_factory=list)

    @classmethod
    def of(cls, table: Table, mutation: TableMutation) -> Changes:
        return cls(
            table,
            list(mutation.inserted_rows),
            list(mutation.updated_rows),
            list(mutation.deleted_rows),
            list(mutation.sequence),
        )

    def note(self, kind: MutationType, data: bytes) -> None:
        if kind is MutationType.INSERT:
            self.inserted.append(data)
        elif kind is MutationType.UPDATE:
            self.updated.append(data)
        else:
            self.deleted.append(data)
        self.sequence.append(kind)

    def carry_over(self, now: Table) -> None:
        then = self.table.codec
        inserted = [now.carried(self.table, then.decode_insert(data)) for data in self.inserted]
        updated = [then.decode_update(data) for data in self.updated]
        deleted = [now.carried(self.table, then.decode_delete(data)) for data in self.deleted]
        self.inserted = [now.codec.encode_insert(image, rowid=next_row_id()) for image in inserted]
        self.updated = [
            now.codec.encode_update(now.carried(self.table, before), now.carried(self.table, after))
            for before, after in updated
        ]
        self.deleted = [now.codec.encode_delete(image) for image in deleted]
        self.table = now

    def mutation(self) -> TableMutation:
        return TableMutation(
            table_id=self.table.info.id,
            inserted_rows=tuple(self.inserted),
            updated_rows=tuple(self.updated),
            deleted_rows=tuple(self.deleted),
            sequence=tuple(self.sequence),
        )

    def take(self, bytes_max: int = MUTATION_BYTES_MAX) -> Iterator[TableMutation]:
        """Yield the changes in mutations of at most `bytes_max`, in order, and forget them."""
        rows = {
            MutationType.INSERT: iter(self.inserted),
            MutationType.UPDATE: iter(self.updated),
            MutationType.DELETE: iter(self.deleted),
        }
        part, size_bytes = Changes(self.table), 0
        for kind in self.sequence:
            data = next(rows[kind])
            if part.sequence and size_bytes + len(data) > bytes_max:
                yield part.mutation()
                part, size_bytes = Changes(self.table), 0
            part.note(kind, data)
            size_bytes += len(data)
        if part.sequence:
            yield part.mutation()
        self.inserted, self.updated, self.deleted, self.sequence = [], [], [], []


class SpoolFile:
    """The rows of one transaction that is too large for memory.

    Only one thread may write; any number may read.
    """

    def __init__(self, folder: str | Path | None) -> None:
        """Open a file in `folder`, by default the system's temporary directory.

        This and all other methods raise `NeedsOperator` when the disk fails.
        """
        self._folder = folder
        # The table, the offset and the length of each mutation.
        self._fields: list[tuple[int, int, int]] = []
        self.size_bytes = 0
        with _named("opened"):
            self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115

    def add(self, mutation: TableMutation) -> None:
        self._append(mutation.table_id, encode_mutation_field(mutation))

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file; fewer than `length` only at its end."""
        with _named("read"):
            return os.pread(self._file.fileno(), length, offset)

    def rewrite(
        self, table_ids: Collection[int], change: Callable[[TableMutation], Iterable[TableMutation]]
    ) -> None:
        """Replace each mutation of these tables with the results of `change`, one at a time."""
        if not any(table_id in table_ids for table_id, _, _ in self._fields):
            return
        fresh = SpoolFile(self._folder)
        try:
            for table_id, offset, length in self._fields:
                data = self.read(offset, length)
                if table_id not in table_ids:
                    fresh._append(table_id, data)
                    continue
                for mutation in decode_prewrite_value(data).mutations:
                    for changed in change(mutation):
                        fresh.add(changed)
        except BaseException:
            fresh.close()
            raise
        self._file.close()
        self._file, self._fields, self.size_bytes = fresh._file, fresh._fields, fresh.size_bytes

    def close(self) -> None:
        self._file.close()

    def _append(self, table_id: int, data: bytes) -> None:
        left = memoryview(data)
        with _named("written"):
            while left:
                left = left[
                    os.pwrite(self._file.fileno(), left, self.size_bytes + len(data) - len(left)) :
                ]
        self._fields.append((table_id, self.size_bytes, len(data)))
        self.size_bytes += len(data)


@contextmanager
def _named(done: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NeedsOperator(
            f"the temporary file of a large transaction cannot be {done}: {error}",
            f"free space in {tempfile.gettempdir()}, or set Options.spill_dir",
            Code.PATH_UNUSABLE,
        ) from error


class ChangeSet:
    """The changes of all tables; holds at most about `spill_bytes` of rows in memory."""

    def __init__(
        self,
        spill_bytes: int,
        spill_dir: str | Path | None,
        *,
        mutation_bytes_max: int = MUTATION_BYTES_MAX,
    ) -> None:
        # By table id, because the same table may be named in different letter case.
        self.tables: dict[int, Changes] = {}
        self.size_bytes = 0
        self._spill_bytes = spill_bytes
        self._spill_dir = spill_dir
        self._mutation_bytes_max = mutation_bytes_max
        self._in_memory_bytes = 0
        self.spool_file: SpoolFile | None = None

    @property
    def is_empty(self) -> bool:
        return self.spool_file is None and not any(c.sequence for c in self.tables.values())

    def note(self, changes: Changes, kind: MutationType, data: bytes) -> None:
        """Add a change; raise `NeedsOperator` if the file cannot be written."""
        changes.note(kind, data)
        self.size_bytes += len(data)
        self._in_memory_bytes += len(data)
        limit = self._spill_bytes if self.spool_file is None else self._mutation_bytes_max
        if self._in_memory_bytes > limit:
            self.spool_all()

    def spool_all(self) -> SpoolFile:
        if self.spool_file is None:
            self.spool_file = SpoolFile(self._spill_dir)
        for changes in self.tables.values():
            for mutation in changes.take(self._mutation_bytes_max):
                self.spool_file.add(mutation)
        self._in_memory_bytes = 0
        return self.spool_file

    def carry_over(self, now: Mapping[int, Table]) -> None:
        then = {table_id: self.tables[table_id].table for table_id in now}

        def carried(mutation: TableMutation) -> Iterator[TableMutation]:
            changes = Changes.of(then[mutation.table_id], mutation)
            changes.carry_over(now[mutation.table_id])
            return changes.take(self._mutation_bytes_max)

        if self.spool_file is not None:
            self.spool_file.rewrite(set(now), carried)
        for table_id, table in now.items():
            self.tables[table_id].carry_over(table)

    def value(self, schema_version: int) -> bytes:
        """Return all changes as a serialized `PrewriteValue`; the spool file must be empty."""
        assert self.spool_file is None, "what is in a file stays there"
        value = PrewriteValue(
            schema_version=schema_version,
            mutations=tuple(c.mutation() for c in self.tables.values() if c.sequence),
        )
        return encode_prewrite_value(value)

    def close(self) -> None:
        self.tables.clear()
        if self.spool_file is not None:
            self.spool_file.close()
