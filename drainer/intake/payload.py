"""Payload: a binlog in the merge, as its bytes or as a handle to their location.

Almost all binlogs are small and travel as bytes. A binlog that a Pump sends in chunks is a
`Spooled`: its bytes are in a file in the data-dir (`drainer.intake.spool`), and the handle weighs
almost nothing wherever memory is counted. A binlog whose rows a Spark task fetches is a `Remote`.

`SpooledRows` reads the row changes from such a file, slice after slice:

    file ── survey ──> its tables, looked up once, before a later DDL changes them
         └─ walk ────> PrewriteValue, PrewriteValue, …   each within the limits, in their order

Any number of walks may be made, until the file is released; each holds one slice at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from drainer.intake.transaction_slices import Limits, Outline, slices, survey
from drainer.task.row_changes import Lookup, TableChanges, Target, read_changes
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator
from penstock.wire.codec import decode_binlog
from penstock.wire.protowire import Source

_HANDLE_BYTES = 1000
_REMOTE_BYTES = 100


@dataclass(frozen=True, slots=True, eq=False)
class Spooled:
    """A merged binlog in a dedicated file; equal to another with the same content."""

    path: Path
    size: int
    digest: bytes
    outline: Outline
    on_release: Callable[[], None] = field(default=lambda: None)

    def __len__(self) -> int:
        """Return the handle's weight in memory; `size` is the size on disk."""
        return _HANDLE_BYTES

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spooled):
            return NotImplemented
        return (self.size, self.digest) == (other.size, other.digest)

    __hash__ = None  # type: ignore[assignment]

    def release(self) -> None:
        """Delete the file: the binlog is downstream, or another copy of it is used."""
        self.path.unlink(missing_ok=True)
        self.on_release()


@dataclass(slots=True)
class Remote:
    """A transaction of rows that is still on its Pump; `head` is the binlog without them.

    The head is empty if it would contain only the transaction's timestamps.
    """

    pump: str
    size: int
    start_ts: int
    head: bytes = b""

    def __len__(self) -> int:
        """Return the handle's weight in memory; `size` is the binlog's size."""
        return _REMOTE_BYTES + len(self.head)


Payload = bytes | Spooled | Remote


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """Open a file for reading; raise `NeedsOperator` if the disk cannot be read.

    It uses `pread` and not a mapping, because a disk error under a mapping kills the process.
    """

    def broken(error: OSError) -> NeedsOperator:
        hint = "repair the disk of the data-dir; the Pump still has the binlog"
        return NeedsOperator(f"cannot read {path}: {error.strerror}", hint, Code.PATH_UNUSABLE)

    def read(offset: int, count: int) -> bytes:
        try:
            return os.pread(descriptor, count, offset)
        except OSError as error:
            raise broken(error) from error

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise broken(error) from error
    try:
        yield read
    finally:
        os.close(descriptor)


def start_ts_of(payload: Payload) -> int:
    """Return the `start_ts` of a merged binlog; raise `Malformed` for invalid bytes."""
    if isinstance(payload, Spooled):
        return payload.outline.start_ts
    return payload.start_ts if isinstance(payload, Remote) else decode_binlog(payload).start_ts


def is_fake(payload: Payload) -> bool:
    """Return whether a binlog only advances time; raise `Malformed` for invalid bytes."""
    return isinstance(payload, bytes) and decode_binlog(payload).is_fake


def release(payload: Payload) -> None:
    if isinstance(payload, Spooled):
        payload.release()


class SpooledRows:
    """The row changes of a large transaction."""

    def __init__(self, payload: Spooled, lookup: Lookup, limits: Limits) -> None:
        """Read through the file for its tables, and look them up; blocking.

        Raises `Malformed` if it holds no row changes, and the errors of `lookup`.
        """
        self.payload = payload
        self._limits = limits
        found = payload.outline
        with opened(payload.path) as source:
            self.version, tables = survey(source, found.value_start, found.value_end)
        self.targets = {table_id: lookup(table_id, self.version) for table_id in sorted(tables)}

    def values(self) -> Generator[bytes]:
        """Yield the slices as serialized `PrewriteValue`s, from the first on."""
        begin, end = self.payload.outline.value_start, self.payload.outline.value_end
        with opened(self.payload.path) as source:
            yield from slices(source, begin, end, version=self.version, limits=self._limits)

    def changes(self) -> Generator[list[TableChanges]]:
        """Yield the changes slice by slice; some may only count skipped changes."""
        with closing(self.values()) as values:
            for value in values:
                yield read_changes(value, self.target)

    def target(self, table_id: int, version: int) -> Target:
        """Return the target of a table's rows; `Malformed` if the survey did not find it."""
        # A mutation that names a second table after its rows is not one that a survey reads.
        assert version == self.version
        if table_id not in self.targets:
            raise Malformed(
                f"transaction {self.payload.outline.commit_ts} has a mutation with two tables' ids",
                "the writer and the Drainer must speak the same binlog.proto",
                Code.BINLOG_UNDECODABLE,
            )
        return self.targets[table_id]
