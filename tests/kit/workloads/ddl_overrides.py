"""A random history with random overrides of its DDL, and what each of them must come to.

`History` makes up DDL and rows as an upstream commits them. `Model` says, by rules of its own, what
an operator's overrides leave out of that: which row changes and which values, by the names that
they have when they are committed. `Operator` lets a Drainer's pipeline run to the end, overriding
what it stops at, and the DDL that it is to override, and does by hand what `track` promises,
in the `OperatedDownstream` where the Drainer writes.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from drainer.differences import REPLACE, SKIP, TRACK, Override
from drainer.schema.tracker import SchemaTracker
from drainer.sinks.checkpoint import Checkpoint, Overridden
from drainer.sinks.opening import open_sink
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlJob, TableInfo
from penstock.wire.binlog import Binlog, BinlogType, MutationType, PrewriteValue, TableMutation
from penstock.wire.codec import encode_binlog, encode_prewrite_value
from tests.kit.fakes.local_drainer import CLUSTER, Way, run_drainer
from tests.kit.operated.downstreams import OperatedDownstream, SqliteFile
from tests.kit.workloads.bank import Bank

INSERT, UPDATE, DELETE = MutationType
Row = dict[str, Any]
_COLUMNS = ("a", "b", "c", "d")
_TABLES = ("t", "u", "v")
_SCHEMAS = ("d", "e")


@dataclass
class Event:
    """One commit: a DDL's change, or row changes as (table id, kind, before, after)."""

    ts: int
    change: SchemaChange | None = None
    rows: list[tuple[int, MutationType, Row | None, Row | None]] = field(default_factory=list)


class History:
    """What an upstream commits: binlogs, jobs, and the same as `events`."""

    def __init__(self, seed: int, commits: int) -> None:
        self.random = random.Random(seed)
        self.catalog = Catalog()
        self.rows: dict[int, dict[int, Row]] = {}
        self.events: list[Event] = []
        self.binlogs: list[tuple[int, bytes]] = []
        self.jobs: list[DdlJob] = []
        self._ids = itertools.count(1)
        self._keys = itertools.count(1)
        self._ts = 1000
        for sql in ("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, a INT, b INT)"):
            self._ddl(sql)
        for _ in range(commits):
            if self.random.random() < 0.4:
                self._ddl(self._statement())
            else:
                self._transaction()

    @property
    def last_ts(self) -> int:
        return self._ts

    # --- DDL -----------------------------------------------------------------------------------

    def _statement(self) -> str:
        pick = self.random.choice
        name = f"{pick(_SCHEMAS)}.{pick(_TABLES)}"
        one, two = self.random.sample(_COLUMNS, 2)
        statements = (
            f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT, b INT)",
            f"CREATE TABLE {name} (a INT, id INT, PRIMARY KEY (id), KEY by_a (a))",
            f"DROP TABLE {name}",
            f"TRUNCATE TABLE {name}",
            f"RENAME TABLE {name} TO {pick(_SCHEMAS)}.{pick(_TABLES)}",
            f"ALTER TABLE {name} ADD COLUMN {one} INT",
            f"ALTER TABLE {name} ADD COLUMN {one} INT DEFAULT 7 FIRST",
            f"ALTER TABLE {name} ADD COLUMN {one} INT, DROP COLUMN {two}",
            f"ALTER TABLE {name} DROP COLUMN {one}",
            f"ALTER TABLE {name} CHANGE COLUMN {one} {two} INT",
            f"ALTER TABLE {name} MODIFY COLUMN {one} BIGINT",
            f"ALTER TABLE {name} ADD INDEX by_{one} ({one})",
            f"ALTER TABLE {name} DROP PRIMARY KEY",
            f"ALTER TABLE {name} ADD PRIMARY KEY (id)",
            f"ALTER TABLE {name} COMMENT 'x'",
            "CREATE DATABASE e",
            "DROP DATABASE e",
        )
        return pick(statements)

    def _ddl(self, sql: str) -> None:
        try:
            planned = plan_ddl(sql, None, self.catalog, lambda: next(self._ids))
        except NeedsOperator:
            return
        for each in planned:
            self._ts += 10
            job = replace(each, finished_ts=self._ts)
            change = self.catalog.apply(job)
            self.jobs.append(job)
            for _, table in change.dropped:
                self.rows.pop(table.id, None)
            for _, table in change.created:
                self.rows[table.id] = {}
            for _, before, after in change.altered:
                self._alter(before, after)
            self.events.append(Event(self._ts, change=change))
            head = Binlog(tp=BinlogType.COMMIT, start_ts=self._ts - 5, commit_ts=self._ts)
            self._emit(replace(head, ddl_query=job.query.encode(), ddl_job_id=job.id))

    def _alter(self, before: TableInfo, after: TableInfo) -> None:
        names = {c.id: c.name for c in before.columns}
        for key, row in self.rows[before.id].items():
            self.rows[before.id][key] = {
                c.name: row[names[c.id]] if c.id in names else c.origin_default and 7
                for c in after.columns
            }

    # --- rows ----------------------------------------------------------------------------------

    def _transaction(self) -> None:
        tables = [table for _, table in self.catalog.tables()]
        event = Event(self._ts + 10)
        for table in self.random.sample(tables, min(len(tables), self.random.randint(1, 2))):
            for _ in range(self.random.randint(1, 3)):
                event.rows.append(self._change(table))
        if not event.rows:
            return
        self._ts += 10
        self.events.append(event)
        found = {table.id: table for table in tables}
        mutations = tuple(_mutation(found[each[0]], *each[1:]) for each in event.rows)
        value = PrewriteValue(schema_version=self.catalog.version, mutations=mutations)
        head = Binlog(tp=BinlogType.COMMIT, start_ts=self._ts - 5, commit_ts=self._ts)
        self._emit(replace(head, prewrite_value=encode_prewrite_value(value)))

    def _change(self, table: TableInfo) -> tuple[int, MutationType, Row | None, Row | None]:
        rows = self.rows[table.id]
        kind = self.random.choice((INSERT, INSERT, UPDATE, DELETE)) if rows else INSERT
        before = None if kind is INSERT else rows.pop(self.random.choice(sorted(rows)))
        after: Row | None = None
        if kind is not DELETE:
            after = {c.name: self.random.choice((None, 1, 2, 3)) for c in table.columns}
            keeps = before is not None and self.random.random() < 0.7
            after["id"] = before["id"] if keeps and before else next(self._keys)
            rows[after["id"]] = after
        return table.id, kind, before, after

    def _emit(self, binlog: Binlog) -> None:
        self.binlogs.append((self._ts, encode_binlog(binlog)))


def _mutation(
    table: TableInfo, kind: MutationType, before: Row | None, after: Row | None
) -> TableMutation:
    codec = RowCodec(table)

    def values(row: Row | None) -> tuple[Any, ...]:
        assert row is not None
        return tuple(row[c.name] for c in table.columns)

    return TableMutation(
        table_id=table.id,
        inserted_rows=(codec.encode_insert(values(after)),) if kind is INSERT else (),
        updated_rows=(codec.encode_update(values(before), values(after)),)
        if kind is UPDATE
        else (),
        deleted_rows=(codec.encode_delete(values(before)),) if kind is DELETE else (),
        sequence=(kind,),
    )


@dataclass
class Copy:
    """What the model knows of a table downstream, by its id upstream."""

    name: str
    is_absent: bool = False
    lacking: set[str] = field(default_factory=set)
    converted: set[str] = field(default_factory=set)
    has_more: bool = False
    """Rows that upstream removed stay."""
    lacked: set[str] = field(default_factory=set)
    """Columns of which older rows lack values."""
    was_absent: bool = False


class Model:
    """What is left out, by the rules as an operator would read them."""

    def __init__(self) -> None:
        self.copies: dict[int, Copy] = {}
        self.absent_schemas: set[str] = set()
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """By kind, table and column."""

    def ddl(self, change: SchemaChange, override: Override | None) -> None:
        is_same = override is not None and override.sql == change.job.query
        skipped = override is not None and override.verb != TRACK and not is_same
        self.absent_schemas.difference_update(change.schemas_dropped)
        if skipped:
            self.absent_schemas.update(change.schemas_created)
        gone = {(s, t.name): self.copies.pop(t.id) for s, t in change.dropped}
        for schema, table in change.created:
            copy = gone.get((schema, table.name)) or Copy(f"{schema}.{table.name}")
            if (schema, table.name) not in gone:
                copy.is_absent = skipped or (override is None and schema in self.absent_schemas)
                if override is not None and not skipped:
                    self.absent_schemas.discard(schema)
            elif not skipped and not copy.is_absent:
                copy = replace(copy, has_more=False, lacked=set(), was_absent=False)
            else:
                copy.has_more |= skipped
            self.copies[table.id] = copy
        for _, old, schema, new in change.renamed:
            copy = self.copies[old.id]
            copy.name = f"{schema}.{new.name}"
            copy.is_absent |= skipped
        for _, before, after in change.altered:
            self._altered(self.copies[after.id], before, after, skipped=skipped)

    @staticmethod
    def _altered(copy: Copy, before: TableInfo, after: TableInfo, *, skipped: bool) -> None:
        old = {c.id: c for c in before.columns}
        names = {c.name for c in after.columns}
        came = {c.name for c in after.columns if c.id not in old or old[c.id].name != c.name}
        changed = {c.name for c in after.columns if c.id in old and old[c.id].tp != c.tp} - came
        renamed = {old[c.id].name: c.name for c in after.columns if c.id in old}
        for kept in ("lacking", "converted", "lacked"):
            moved = {renamed[name] for name in getattr(copy, kept) if name in renamed}
            setattr(copy, kept, moved & names)
        copy.converted -= changed
        if skipped and not copy.is_absent:
            copy.lacking |= came
            copy.converted = (copy.converted | changed) - came
            copy.lacked |= came

    def rows(self, event: Event) -> None:
        for table_id, kind, _, _ in event.rows:
            copy = self.copies[table_id]
            if copy.is_absent:
                self.counts["rows", copy.name, ""] += 1
                copy.was_absent = True
            elif kind is not DELETE:
                for column in copy.lacking:
                    self.counts["values", copy.name, column] += 1
                for column in copy.converted - copy.lacking:
                    self.counts["converted", copy.name, column] += 1


class Operator:
    """Lets the pipeline run, decides, and works at the downstream by hand."""

    def __init__(
        self,
        history: History,
        folder: Path,
        seed: int,
        often: float = 0.4,
        place: OperatedDownstream | None = None,
    ) -> None:
        self.history = history
        self.model = Model()
        self._random = random.Random(seed)
        self._often = often
        self._place = place or SqliteFile(folder / "down.db")
        self._way = Way(url=self._place.url, folder=folder, rows_max=5, run_binlogs=3)
        self._at = 0
        self._undecided_ts = 0

    def run(self) -> Checkpoint:
        """Run to the end of the history; return the last checkpoint."""
        ddls = [event.ts for event in self.history.events if event.change is not None]
        chosen = [ts for ts in ddls if self._random.random() < self._often]
        for ts in chosen:
            self._live(ts - 1)
            if self._random.random() < 0.5:
                self._decide(ts)
            else:
                self._undecided_ts = ts  # Until the Drainer runs again.
        return self._live(self.history.last_ts)

    def _live(self, until_ts: int) -> Checkpoint:
        while True:
            binlogs = [entry for entry in self.history.binlogs if entry[0] <= until_ts]
            bank = _Part(binlogs, self.history.jobs, binlogs[-1][0] if binlogs else 0)
            stop: NeedsOperator | None = None
            try:
                asyncio.run(run_drainer(cast(Bank, bank), self._way, lambda *_: self._decide_now()))
            except Overridden:
                continue  # As a Drainer does; it has committed nothing since.
            except NeedsOperator as error:
                stop = error
            checkpoint = self.checkpoint()
            self._account(checkpoint)
            if stop is None:
                return checkpoint
            stopped = next(e for e in self.history.events if e.ts > checkpoint.commit_ts)
            # It is a DDL that it stops at, always: rows are never refused for an override.
            assert stopped.change is not None, stop
            assert f"DDL at {stopped.ts}" in stop.problem
            self._decide(stopped.ts)

    def _account(self, checkpoint: Checkpoint) -> None:
        commit_ts, overrides = checkpoint.commit_ts, checkpoint.overrides or {}
        for event in self.history.events:
            if self._at < event.ts <= commit_ts:
                if event.change is not None:
                    self.model.ddl(event.change, overrides.get(event.ts))
                else:
                    self.model.rows(event)
        self._at = max(self._at, commit_ts)

    def checkpoint(self) -> Checkpoint:
        stored = self._place.stored()
        return Checkpoint.from_json(stored) if stored else Checkpoint(0, 0)

    # --- decisions -----------------------------------------------------------------------------

    def _tracker(self, before_ts: int) -> SchemaTracker:
        made = self.checkpoint().overrides
        return SchemaTracker.from_history(self.history.jobs, before_ts - 1, made)

    def _override(self, override: Override) -> None:
        """Write an override to where whichever Drainer comes next finds it."""
        with closing(open_sink(self._way.url, cluster_id=CLUSTER)) as sink:
            sink.load_checkpoint()
            sink.change_overrides(
                lambda now: {**(now.overrides or {}), override.commit_ts: override}
            )

    def _decide(self, ts: int) -> None:
        """Override the DDL at `ts`, and take an earlier override back now and then."""
        if self._random.random() < 0.3:
            self._take_something_back(ts)
        job = next(job for job in self.history.jobs if job.finished_ts == ts)
        verb = self._random.choice((TRACK, SKIP, SKIP, REPLACE, REPLACE))
        if verb == TRACK:
            self._by_hand(ts, job)
        sql = self._instead(job) if verb == REPLACE else None
        self._override(Override(commit_ts=ts, verb=verb, sql=sql, made="now"))

    def _decide_now(self) -> None:
        """Decide what is open, while a Drainer runs."""
        ts, self._undecided_ts = self._undecided_ts, 0
        if ts:
            self._decide(ts)

    def _instead(self, job: DdlJob) -> str:
        """Return the statement itself, or one that comes to nothing of it."""
        other = f"ALTER TABLE {self._random.choice(_SCHEMAS)}.{self._random.choice(_TABLES)}"
        return self._random.choice((job.query, f"{other} COMMENT 'y'"))

    def _by_hand(self, ts: int, job: DdlJob) -> None:
        """Do downstream what a DDL does, and remove what is in its way."""
        tracker = self._tracker(ts)
        change = tracker.track(job, Override(commit_ts=ts, verb=TRACK)).change
        gone = list(change.dropped)
        gone += [(s, t) for s, t, _, _ in change.renamed if not tracker.drift(t.id).absent_ts]
        for schema, table in gone:
            self._drop(schema, table)
        for sql in self._place.databases(change):
            self._place.query(sql)
        for schema, table in _after(change):
            drift = tracker.drift(table.id)
            if not drift.absent_ts:
                self._make(schema, drift.stripped(table), table.id, ts)

    def _drop(self, schema: str, table: TableInfo) -> None:
        self._place.query(f"DROP TABLE IF EXISTS {self._place.name(schema, table.name)}")

    def _make(self, schema: str, table: TableInfo, table_id: int, ts: int) -> None:
        """Make a table with the rows that upstream has in it at `ts`."""
        self._drop(schema, table)
        name, names = self._place.name(schema, table.name), [c.name for c in table.columns]
        for sql in self._place.create(schema, table):
            self._place.query(sql)
        for row in self._rows_at(table_id, ts).values():
            values = ["NULL" if row.get(n) is None else str(row[n]) for n in names]
            self._place.query(
                f"INSERT INTO {name} ({', '.join(names)}) VALUES ({', '.join(values)})"
            )
        if table_id in self.model.copies:
            copy = self.model.copies[table_id]
            copy.has_more, copy.was_absent, copy.lacked = False, False, set(copy.lacking)

    def _rows_at(self, table_id: int, ts: int) -> dict[int, Row]:
        """Return the rows of a table at a commit_ts, under the names that they have then."""
        rows: dict[int, Row] = {}
        for event in self.history.events:
            if event.ts > ts:
                break
            change = event.change
            for _, before, after in change.altered if change is not None else ():
                if after.id == table_id:
                    names = {c.id: c.name for c in before.columns}
                    rows = {
                        key: {
                            c.name: row[names[c.id]] if c.id in names else c.origin_default and 7
                            for c in after.columns
                        }
                        for key, row in rows.items()
                    }
            for changed_id, _, before_row, after_row in event.rows:
                if changed_id == table_id:
                    if before_row is not None:
                        del rows[before_row["id"]]
                    if after_row is not None:
                        rows[after_row["id"]] = after_row
        return rows

    def _take_something_back(self, ts: int) -> None:
        """End an earlier skip at the checkpoint, and load the tables that it is about again."""
        held = self.checkpoint()
        skips = [
            each
            for ts_passed, each in (held.overrides or {}).items()
            if each.verb == SKIP and ts_passed <= held.commit_ts and not each.ended_ts
        ]
        if not skips or held.commit_ts >= ts:
            return
        chosen = self._random.choice(skips)
        tracker = self._tracker(held.commit_ts + 1)
        tables = tracker.take_back(chosen.commit_ts)
        self._override(replace(chosen, ended_ts=held.commit_ts))
        for schema, table in tables:
            drift = tracker.drift(table.id)
            if drift.absent_ts:
                continue
            self._make(schema, drift.stripped(table), table.id, held.commit_ts)
            copy = self.model.copies[table.id]
            copy.is_absent = False
            copy.lacking &= set(drift.lacking(table))
            copy.converted &= set(drift.converted(table))
            copy.lacked = set(copy.lacking)
        self.model.absent_schemas &= set(tracker.absent_schemas)

    # --- at the end ----------------------------------------------------------------------------

    def rows(self, schema: str, table: str, columns: Sequence[str]) -> dict[int, list[Any]]:
        """Return the values of a table's columns downstream, by the rows' id."""
        names = ", ".join(("id", *columns))
        found = self._place.query(f"SELECT {names} FROM {self._place.name(schema, table)}")
        return {row[0]: list(row[1:]) for row in found}


@dataclass
class _Part:
    """The beginning of a history, for `run_drainer`."""

    binlogs: list[tuple[int, bytes]]
    jobs: list[DdlJob]
    last_ts: int


def _after(change: SchemaChange) -> list[tuple[str, TableInfo]]:
    """Return the tables that a change made or changed."""
    altered = [(schema, new) for schema, _, new in change.altered]
    return [*change.created, *altered, *((s, new) for _, _, s, new in change.renamed)]
