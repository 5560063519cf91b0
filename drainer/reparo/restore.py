"""Restore: applies the files of a folder to a target, prints them, or checks them in a dry run.

A batch ends at a DDL, at a bound, or at the end; it is compacted and is one transaction with the
checkpoint. A record larger than a batch goes in slices, like a Drainer's large transaction. Rows
that filters skip are counted in the checkpoint.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from drainer.differences import DDLS, FILTER, ROWS, Counts, Skipped
from drainer.reparo.held_changes import HeldChanges
from drainer.reparo.rebuilt_rows import Change, RowBuilder, Target, datum_value, ddl_of, events_of
from drainer.reparo.reparo_config import ReparoConfig
from drainer.settings.targets import FILE_S3, FilesTarget, target_of
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.files.binlog_files import Record
from drainer.sinks.opening import open_table_sink
from drainer.sinks.protocol import TableSink
from drainer.task.compaction import plan_units
from drainer.task.events.tidb_binlog import DDL
from drainer.task.row_changes import Collector, TableChanges
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import MYSQL
from drainer.task.work_unit import Batch, in_order
from penstock.codes import Code
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.ddl.catalog import table_by_table, together
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.node.output import plain, time_text
from penstock.pb import pb_binlog_pb2 as pb
from penstock.schema.ddl_context import DdlContext, zone_offset

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
        units = plan_units(batch, self.dialect)
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


log = logging.getLogger("reparo")

_USE = re.compile(r"use `((?:[^`]|``)+)`;\s*", re.IGNORECASE)
_REPORT_S = 5.0
_SCHEMA_HINT = (
    "give a schema-file with the CREATE statements of the tables at the start, such as a dump"
    " without data"
)


@dataclass(slots=True)
class Restored:
    """The results of a restore, for its last line."""

    verb: str = "restored"
    through_ts: int = 0
    transactions: int = 0
    ddls: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    skipped: Counts = field(default_factory=Counts)
    unproved: str = ""

    def facts(self) -> dict[str, Any]:
        return {
            "done": self.verb,
            "through_ts": self.through_ts,
            "transactions": self.transactions,
            "ddls": self.ddls,
            "rows": dict(self.rows),
            "left_out": sum(self.skipped.values()),
            "unproved": self.unproved or None,
        }

    def __str__(self) -> str:
        rows = ", ".join(f"{name} {count:,}" for name, count in sorted(self.rows.items()))
        skipped = sum(self.skipped.values())
        more = f"; {skipped:,} changes were left out by filters" if skipped else ""
        unproved = f"; it cannot be proved {self.unproved}" if self.unproved else ""
        return (
            f"{self.verb} everything up to {self.through_ts} ({time_text(self.through_ts)}):"
            f" {self.transactions:,} transactions, {self.ddls:,} DDL, changes of rows:"
            f" {rows or 'none'}{more}{unproved}"
        )


def run(config: ReparoConfig) -> Restored:
    """Restore, print or only check, as configured."""
    if not config.data_dir.startswith(f"{FILE_S3}:"):
        return _run(config)
    from drainer.sinks.files.object_sink import download

    source = target_of(config.data_dir)
    assert isinstance(source, FilesTarget), source
    with TemporaryDirectory(prefix="penstock-reparo-") as folder:
        download(source, Path(folder))
        return _run(replace(config, data_dir=folder))


def _run(config: ReparoConfig) -> Restored:
    held = HeldChanges(config.folder)
    held.check_stop(config.stop_ts)
    target = config.target
    if config.dry_run or target is None:
        writer = Checks() if config.dry_run else Prints()
        made = Restore(config, held, writer).run(Checkpoint(config.after_ts, 0))
        return replace(made, verb=writer.verb)
    sink = open_table_sink(target, cluster_id=held.cluster_id)
    with closing(sink):
        start = _starting_point(config, sink)
        return Restore(config, held, Applies(sink)).run(start)


def _starting_point(config: ReparoConfig, sink: TableSink) -> Checkpoint:
    found = sink.load_checkpoint()
    if found is None or not (found.commit_ts or found.ddl_intent_ts):
        return Checkpoint(config.after_ts, 0)
    if found.is_torn:
        raise NeedsOperator(
            f"the target's checkpoint, at {found.commit_ts}, is TiDB-Binlog's and not consistent:"
            " rows of later transactions may be there already",
            "take the copy after penstock ctl pause-drainer",
            Code.CHECKPOINT_INCONSISTENT,
        )
    if config.after_ts > found.commit_ts:
        raise NeedsOperator(
            f"the target has a checkpoint, at {found.commit_ts}, and the restore is to begin after"
            f" {config.after_ts}: what is between would be missing",
            "leave the start out, to continue at the checkpoint",
            Code.COMMAND_INVALID,
        )
    if 0 < config.stop_ts < found.commit_ts:
        raise NeedsOperator(
            f"the target is at {found.commit_ts} already, after the end at {config.stop_ts}",
            "restore into another target, from an older copy or from the beginning",
            Code.COMMAND_INVALID,
        )
    log.info("the target is at %d (%s)", found.commit_ts, time_text(found.commit_ts))
    return found


class Restore:
    """One run over the files."""

    def __init__(self, config: ReparoConfig, held: HeldChanges, writer: Checks) -> None:
        self._config = config
        self._held = held
        self._writer = writer
        self._rules = Rules(lists=[config.lists()])
        self._builder = RowBuilder(_zone(config, held))
        self._catalog = Catalog()
        self._ids = itertools.count(1)
        self._targets: dict[tuple[str, str], Target | None] = {}
        self._collector = Collector()
        self._made = Restored()
        self._last_ddl = ""
        self._report_s = time.monotonic() + _REPORT_S

    def run(self, start: Checkpoint) -> Restored:
        config, held, made = self._config, self._held, self._made
        files, schema = held.start(start.commit_ts, config.stop_ts)
        self._catalog = schema.catalog
        known = [each.id for each in schema.catalog.schemas()]
        known += [table.id for _, table in schema.catalog.tables()]
        self._ids = itertools.count(1 + max(known, default=0))
        if config.schema_file:
            self._read_schema(Path(config.schema_file))
        self._writer.begin(start)
        made.through_ts = start.commit_ts
        made.unproved = held.unproved
        size, is_passed = held.size_bytes(files), False
        with closing(held.records(files)) as found:
            for record in found:
                is_passed = 0 < config.stop_ts < record.commit_ts
                if is_passed:
                    break
                if record.kind == DDL:
                    self._ddl(record, start)
                elif record.commit_ts > start.commit_ts:
                    self._transaction(record)
                self._report(size)
        self._flush()
        if held.repeated:
            log.info("%d records came again, and were left out", held.repeated)
        made.through_ts = held.held_ts(made.through_ts, config.stop_ts, is_passed=is_passed)
        self._writer.end(self._point(made.through_ts))
        return made

    def _point(self, commit_ts: int) -> Checkpoint:
        return Checkpoint(commit_ts, 0, skipped=dict(self._made.skipped))

    # --- rows ------------------------------------------------------------------------------------

    def _transaction(self, record: Record) -> None:
        made, bytes_max = self._made, self._config.batch_bytes_max
        made.transactions += 1
        if record.end - record.begin > bytes_max:
            self._flush()
            # Its only checkpoint records the skipped rows.
            events = events_of(record, bytes_max)
            names = ((event.schema_name, event.table_name) for event in events)
            made.skipped += Counts(_skipped(*n) for n in names if self._target(*n) is None)
            rows: Counter[str] = Counter()
            self._writer.slices(partial(self._slices, record, rows), self._point(record.commit_ts))
            made.rows += rows
        else:
            changes = list(self._changes(record, made.rows, made.skipped))
            self._collector.add(_by_table(changes), record.end - record.begin, record.commit_ts)
        made.through_ts = record.commit_ts
        full = self._collector.rows >= self._config.batch_rows_max
        if full or self._collector.bytes >= bytes_max:
            self._flush()

    def _slices(self, record: Record, rows: Counter[str]) -> Iterator[Batch]:
        """Yield a record that is larger than a batch, as batches; count its changes in `rows`."""
        bytes_max, rows_max = self._config.batch_bytes_max, self._config.batch_rows_max
        rows.clear()
        changes: list[Change] = []
        size = 0
        for change in self._changes(record, rows, Counts()):
            changes.append(change)
            size += len(change[2])
            if size >= bytes_max or len(changes) >= rows_max:
                yield _sliced(changes, size)
                changes, size = [], 0
        if changes:
            yield _sliced(changes, size)

    def _changes(self, record: Record, rows: Counter[str], skipped: Counts) -> Iterator[Change]:
        for event in events_of(record, self._config.batch_bytes_max):
            target = self._target(event.schema_name, event.table_name)
            if target is None:
                skipped[_skipped(event.schema_name, event.table_name)] += 1
                continue
            rows[f"{target[0]}.{target[1].name}"] += 1
            change = self._builder.change(event, target)
            self._writer.see(record.commit_ts, event, target)
            yield change

    def _target(self, schema: str, name: str) -> Target | None:
        """Return the target of rows, the same object until a DDL; None without a target."""
        if (schema, name) not in self._targets:
            is_replicated = self._rules.is_replicated(schema, name)
            self._targets[schema, name] = self._known(schema, name) if is_replicated else None
        return self._targets[schema, name]

    def _known(self, schema: str, name: str) -> Target:
        table = self._catalog.table(schema, name)
        if table is None:
            raise NeedsOperator(
                f"no DDL in the files made {schema}.{name}, and no schema beside them has it",
                f"{_SCHEMA_HINT}; or leave the table out (replicate-ignore-table)",
                Code.FILES_GAP,
            )
        home = self._catalog.schema(schema)
        return (home.name if home is not None else schema), table

    def _flush(self) -> None:
        collected, self._collector = self._collector, Collector()
        if collected.commit_ts:
            point = self._point(self._made.through_ts)
            self._writer.rows(Batch(1, collected.tables()), point)

    # --- DDL -------------------------------------------------------------------------------------

    def _ddl(self, record: Record, start: Checkpoint) -> None:
        (text, context), ts = ddl_of(record), record.commit_ts
        runs = ts > start.commit_ts
        if runs:
            self._flush()
        changes = self._planned(text, ts, context)
        self._last_ddl = text
        self._targets.clear()
        maybe_done = start.ddl_intent_ts > start.commit_ts and self._made.ddls == 0
        for number, change in enumerate(changes, 1):
            if not runs:
                continue
            parts = table_by_table(change)
            kept = [part for part in parts if self._rules.of_ddl(part)]
            if len(kept) < len(parts):
                skipped = Skipped(DDLS, FILTER, change.job.schema_name)
                self._made.skipped[skipped] += len(parts) - len(kept)
            if not kept:
                continue
            run = together(kept)
            log.info("DDL at %d: %s", ts, run.job.query)
            is_last = number == len(changes)
            self._writer.ddl(run, self._point(ts if is_last else ts - 1), maybe_done=maybe_done)
            self._made.ddls += 1
        self._made.through_ts = max(self._made.through_ts, ts)

    def _planned(self, text: str, ts: int, context: DdlContext | None) -> list[SchemaChange]:
        """Follow a DDL; a TiDB's DROP of several tables has a record for each table."""
        schema, query = split_use(text)
        try:
            jobs = plan_ddl(query, schema, self._catalog, lambda: next(self._ids), context)
        except NeedsOperator as error:
            if text == self._last_ddl and query.lower().startswith("drop"):
                log.info("DDL at %d is the one before once more: %s", ts, query)
                return []
            raise NeedsOperator(
                f"the DDL at {ts} cannot be followed: {error.problem}: {query}",
                _SCHEMA_HINT,
                Code.FILES_GAP,
            ) from error
        return [self._catalog.apply(replace(job, finished_ts=ts)) for job in jobs]

    def _read_schema(self, path: Path) -> None:
        schema: str | None = None
        lines = path.read_text(encoding="utf-8").splitlines()
        text = "\n".join(line for line in lines if not line.startswith(("--", "/*")))
        # Each statement of a dump is ended by a semicolon at the end of a line.
        for query in filter(None, map(str.strip, re.split(r";\s*$", text, flags=re.MULTILINE))):
            used = re.fullmatch(r"use\s+`?((?:[^`]|``)+?)`?", query, re.IGNORECASE)
            if used is not None:
                schema = used[1].replace("``", "`")
            elif query.lower().startswith("create"):
                for job in plan_ddl(query, schema, self._catalog, lambda: next(self._ids)):
                    self._catalog.apply(job)

    # --- progress --------------------------------------------------------------------------------

    def _report(self, size_bytes: int) -> None:
        if time.monotonic() < self._report_s:
            return
        self._report_s = time.monotonic() + _REPORT_S
        made, read_bytes = self._made, self._held.read_bytes
        log.info(
            "%s: %d of %d MiB are read, %d transactions with %d changes of rows",
            time_text(made.through_ts), read_bytes >> 20, size_bytes >> 20, made.transactions,
            made.rows.total(),
        )  # fmt: skip


def _skipped(schema: str, name: str) -> Skipped:
    return Skipped(ROWS, FILTER, f"{schema}.{name}")


def _sliced(changes: Sequence[Change], size: int) -> Batch:
    collector = Collector()
    collector.add(_by_table(changes), size)
    return Batch(1, collector.tables(), displaces=True)


def _by_table(changes: Sequence[Change]) -> list[TableChanges]:
    tables: dict[int, tuple[Target, bytearray, list[bytes]]] = {}
    for target, kind, row in changes:
        _, kinds, rows = tables.setdefault(target[1].id, (target, bytearray(), []))
        kinds.append(kind)
        rows.append(row)
    return [
        TableChanges(table_id, target, bytes(kinds), rows)
        for table_id, (target, kinds, rows) in tables.items()
    ]


def split_use(text: str) -> tuple[str | None, str]:
    """Return the schema that a record's DDL runs in, if it names one, and the statement."""
    found = _USE.match(text)
    schema = None if found is None else found[1].replace("``", "`")
    query = text if found is None else text[found.end() :]
    return schema, query.strip().rstrip(";").strip()


def _zone(config: ReparoConfig, held: HeldChanges) -> timedelta:
    said = "" if held.savepoint is None else held.savepoint.time_zone
    if said and config.time_zone and zone_offset(said) != zone_offset(config.time_zone):
        raise NeedsOperator(
            f"the files say that their time zone is {said}, not {config.time_zone}",
            "leave time-zone out",
            Code.SINK_SETTING,
        )
    return zone_offset(said or config.time_zone or "UTC")
