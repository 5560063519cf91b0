"""Row changes that are too many for memory, in a file without a name: it is gone with the process.

The file is a sequence of `mutations` fields of a `PrewriteValue`, each whole.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from penstock.errors import NeedsOperator
from penstock.wire.binlog import TableMutation
from penstock.wire.codec import decode_prewrite_value, encode_mutation_field


class _Field(NamedTuple):
    table_id: int
    offset: int
    length: int


class Spill:
    """One transaction's file; for one thread at a time, reads for any number."""

    def __init__(self, folder: str | None) -> None:
        """Open a file in `folder`, by default where the system keeps temporary files.

        Raises `NeedsOperator`, here and everywhere, when the disk does not do its part.
        """
        self._folder = folder
        self._fields: list[_Field] = []
        self.size_bytes = 0
        with _told("opened"):
            self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115

    def add(self, mutation: TableMutation) -> None:
        """Write one mutation behind the others."""
        self._append(mutation.table_id, encode_mutation_field(mutation))

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file, fewer only at its end."""
        with _told("read"):
            return os.pread(self._file.fileno(), length, offset)

    def rewrite(
        self,
        table_ids: Collection[int],
        change: Callable[[TableMutation], Iterable[TableMutation]],
    ) -> None:
        """Replace each mutation of those tables by what `change` makes of it; one at a time."""
        if not any(found.table_id in table_ids for found in self._fields):
            return
        fresh = Spill(self._folder)
        try:
            for found in self._fields:
                data = self.read(found.offset, found.length)
                if found.table_id not in table_ids:
                    fresh._append(found.table_id, data)
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
        """Remove the file."""
        self._file.close()

    def _append(self, table_id: int, data: bytes) -> None:
        left = memoryview(data)
        with _told("written"):
            while left:
                left = left[
                    os.pwrite(self._file.fileno(), left, self.size_bytes + len(data) - len(left)) :
                ]
        self._fields.append(_Field(table_id, self.size_bytes, len(data)))
        self.size_bytes += len(data)


@contextmanager
def _told(done: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NeedsOperator(
            f"the temporary file of a large transaction cannot be {done}: {error}",
            hint=f"free space in {tempfile.gettempdir()}, or set Options.spill_dir",
        ) from error
