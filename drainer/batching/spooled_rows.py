"""Spooled rows: the row changes of one transaction in a spool file, slice after slice.

    file ── survey ──> its tables, looked up once, before a later DDL changes them
         └─ walk ────> PrewriteValue, PrewriteValue, …   each within the limits, in their order

Any number of walks may be made, until the file is released; each holds one slice at a time.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

from drainer.intake.payload import Spooled, opened
from drainer.intake.transaction_slices import Limits, slices, survey
from drainer.task.row_changes import Lookup, TableChanges, Target, read_changes
from penstock.codes import Code
from penstock.errors import Malformed


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
                hint="the writer and the Drainer must speak the same binlog.proto",
                code=Code.BINLOG_UNDECODABLE,
            )
        return self.targets[table_id]
