"""Writers: apply restored changes to a target, print them, or check them in a dry run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from drainer.differences import Counts
from drainer.reparo.rebuilt_rows import Target, datum_value
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import TableSink
from drainer.task.compaction import plan_units
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import MYSQL
from drainer.task.work_unit import Batch, in_order
from penstock.ddl import SchemaChange
from penstock.node.output import plain
from penstock.pb import pb_binlog_pb2 as pb

Slices = Callable[[], Iterator[Batch]]
"""Yields a large transaction in parts; each walk is separate."""


class Checks:
    """A dry run: turns everything into SQL, and discards it."""

    verb = "checked, and nothing changed:"
    dialect = MYSQL

    def begin(self, start: Checkpoint) -> None: ...

    def see(self, commit_ts: int, event: Any, target: Target) -> None: ...

    def rows(self, batch: Batch, point: Checkpoint) -> None:
        self._sql(batch)

    def slices(self, slices: Slices, point: Checkpoint) -> None:
        for batch in slices():
            self._sql(batch)

    def ddl(self, change: SchemaChange, point: Checkpoint, *, maybe_done: bool) -> None: ...

    def end(self, point: Checkpoint) -> None:
        """Note that the target has everything up to a point."""

    def _sql(self, batch: Batch) -> list[bytes]:
        units = plan_units(batch, 1, self.dialect)
        return list(in_order(generate(unit) for unit in units))


class Prints(Checks):
    """Prints every change, one JSON object a line."""

    verb = "printed"

    def see(self, commit_ts: int, event: Any, target: Target) -> None:
        columns = [pb.Column.FromString(each) for each in event.row]
        fields = {each.name: _shown(each.value) for each in columns}
        shown: dict[str, object] = {
            "commit_ts": commit_ts,
            "table": f"{target[0]}.{target[1].name}",
            "type": pb.EventType.Name(event.tp).lower(),
            "row": fields,
        }
        if event.tp == pb.Update:
            shown["after"] = {each.name: _shown(each.changed_value) for each in columns}
        sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")

    def rows(self, batch: Batch, point: Checkpoint) -> None: ...

    def slices(self, slices: Slices, point: Checkpoint) -> None:
        for _ in slices():
            pass

    def ddl(self, change: SchemaChange, point: Checkpoint, *, maybe_done: bool) -> None:
        job = change.job
        shown = {"commit_ts": job.finished_ts, "schema": job.schema_name, "ddl": job.query}
        sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")


class Applies(Checks):
    """Runs everything in a sink."""

    def __init__(self, sink: TableSink) -> None:
        self._sink = sink
        self.dialect = sink.dialect
        self._start = Checkpoint(0, 0)
        self._through_ts = 0

    def begin(self, start: Checkpoint) -> None:
        self._start, self._through_ts = start, start.commit_ts
        self._sink.save_checkpoint(self._stored(start))

    def rows(self, batch: Batch, point: Checkpoint) -> None:
        if self._through_ts < self._start.applying_ts:
            # A Drainer may have left some of it there: upserts remove conflicting rows.
            batch = replace(batch, displaces=True)
        self._sink.apply(self._sql(batch), self._stored(point))
        self._through_ts = point.commit_ts

    def slices(self, slices: Slices, point: Checkpoint) -> None:
        def statements() -> Generator[Sequence[str | bytes]]:
            for batch in slices():
                yield self._sql(batch)

        self._sink.apply_slices(statements, self._stored(point))

    def ddl(self, change: SchemaChange, point: Checkpoint, *, maybe_done: bool) -> None:
        self._sink.run_ddl(change, self._stored(point), maybe_done=maybe_done)

    def end(self, point: Checkpoint) -> None:
        """Record at the end that the target is consistent."""
        self._sink.save_checkpoint(replace(self._stored(point), consistent=True))

    def _stored(self, point: Checkpoint) -> Checkpoint:
        start = self._start
        skipped = Counts(dict(start.skipped))
        if point is not start:
            skipped.update(point.skipped)
        return replace(
            start,
            commit_ts=point.commit_ts,
            schema_version=point.schema_version,
            consistent=False,
            applying_ts=0,
            ddl_intent_ts=start.ddl_intent_ts if start.ddl_intent_ts > point.commit_ts else 0,
            skipped=dict(skipped),
        )


def _shown(data: bytes) -> object:
    value = datum_value(data)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return plain(value)
