"""The load of one server: attempts, each at a snapshot of its own, until every table is done."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.errors import NeedsOperator, Retryable
from penstock.filters.rules import RowPolicy
from penstock.schema.model import TableInfo
from penstock.wire.binlog import Origin
from pumpclient.client import PumpClient
from pumpclient.mysql.journal.journal import Journal
from pumpclient.mysql.journal.recovery import settle
from pumpclient.mysql.load.progress import Brake, Progress
from pumpclient.mysql.load.readers import Group, Readers, TableJob
from pumpclient.mysql.load.sessions import Session, Snapshot, snapshot
from pumpclient.mysql.load.sink import Sink, SinkOptions, sink_sessions
from pumpclient.mysql.load.sql_rows import sql_rows
from pumpclient.mysql.load.state import BinlogPlace, LoadState, Name, StateFile
from pumpclient.mysql.load.tables import SourceTable, base_tables, check_engines, views
from pumpclient.mysql.load.targets import Targets
from pumpclient.mysql.load.text_rows import text_rows
from pumpclient.mysql.load.writing import Passing, RowWriter
from pumpclient.mysql.protocol.address import ServerAddress
from pumpclient.mysql.translate.statements.ddl_pieces import Translator
from pumpclient.mysql.translate.statements.sql import dialect_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to load; `translator` has the source's filters and routes."""

    translator: Translator
    only: frozenset[Name] | None = None
    """The tables to load; without it all that are replicated."""
    before_changes: Callable[[BinlogPlace], None] = lambda place: None
    """Called with each snapshot's place, before anything of the cluster is changed."""
    policy: Callable[[str, TableInfo], RowPolicy] | None = None
    """Which rows, taken as inserts, pass; asked with the source's schema and the table."""
    readers: int = 4
    rows_per_chunk: int = 100_000
    transaction_bytes: int = 1 << 20
    rate_bytes_per_s: int | None = None
    sink: SinkOptions | None = None
    """Where rows go straight; without it, and where rows are filtered, they go to the Pumps."""
    into_existing: bool = False
    """Tables of several servers become one: a target that exists is loaded into."""
    may_commit: Callable[[], bool] = lambda: True
    """False once another process has the source."""
    attempts_max: int = 10
    retry_s: float = 3.0
    report_s: float = 5.0


@dataclass(frozen=True, slots=True)
class _Run:
    """What all attempts of a run share."""

    journal: Journal
    is_stopped: Callable[[], bool]
    may_commit: Callable[[], bool]

    def check_stopped(self) -> None:
        """Raise `Retryable` once the load is to end."""
        if self.is_stopped():
            raise Retryable("stopped before the load was done; it goes on when run again")


class Load:
    """Loads the tables of one server; `run` returns once all is durable on the Pumps."""

    def __init__(
        self,
        address: ServerAddress,
        client: PumpClient,
        state_path: Path,
        options: LoadOptions,
        *,
        say: Callable[[str], None] = log.info,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._address = address
        self.client = client
        self.file = StateFile(state_path)
        self.options = options
        self.say = say
        self._is_stopped = is_stopped
        self._journal_path = state_path.with_suffix(".journal")

    def run(self, source: str, epoch: int) -> LoadState:
        """Load what is not yet loaded; afterwards the binlog goes on from `start`, with `floors`.

        May be called again after any end, a killed process included. Raises `NeedsOperator` for
        what cannot be loaded, `Retryable` after `attempts_max` failures in a row.
        """
        state = self.file.read() or LoadState(source=source, epoch=epoch)
        if (state.source, state.epoch) != (source, epoch):
            raise NeedsOperator(
                f"the load was begun by {state.source!r} in epoch {state.epoch},"
                f" this is {source!r} in epoch {epoch}",
                hint="remove load.json and the targets to load again",
            )
        with closing(Journal(self._journal_path)) as journal:
            return self._completed(_Run(journal, self._is_stopped, self.options.may_commit), state)

    def _completed(self, run: _Run, state: LoadState) -> LoadState:
        failures = 0
        while not state.is_complete:
            loaded = len(state.loaded)
            try:
                state = self._attempt(run, state)
            except Retryable as error:
                if self._is_stopped():
                    raise
                state = self.file.read() or state
                failures = 0 if len(state.loaded) > loaded else failures + 1
                if failures >= self.options.attempts_max:
                    raise
                self.say(f"the load begins again for what is not done: {error}")
                time.sleep(self.options.retry_s)
        return state

    def _attempt(self, run: _Run, state: LoadState) -> LoadState:
        settle(self.client.session, run.journal)
        with ExitStack() as opened:
            sink, readers = None, self.options.readers
            if self.options.sink is not None:
                told = (self.client.session.pumps.cluster_id, state.source, readers, run.may_commit)
                sink = opened.enter_context(sink_sessions(self.options.sink, *told))
            taken = opened.enter_context(snapshot(self._address, readers + 1))
            return _Attempt(self, run, taken, sink, state).run()


class _Attempt:
    """What is done at one snapshot."""

    def __init__(
        self,
        load: Load,
        run: _Run,
        taken: Snapshot,
        sink: Sink | None,
        state: LoadState,
    ) -> None:
        self._client = load.client
        self._file = load.file
        self._options = load.options
        self._say = load.say
        self._run = run
        self._place = BinlogPlace(taken.place.file, taken.place.position)
        self._sink = sink
        self._planner: Session = taken.sessions[0]
        self._sessions = taken.sessions[1:]
        self._state = state.next_attempt(taken.place)
        self._number = 0
        self._passing: dict[Name, Passing] = {}
        self._targets = Targets(
            self._client,
            self._options.translator,
            self._planner,
            dialect_of(taken.identity.version),
            self._next_origin,
        )

    def run(self) -> LoadState:
        """Load everything that is not done; return the state, which is complete."""
        self._options.before_changes(self._place)
        state = self._state
        tables = [t for t in base_tables(self._planner) if self._is_wanted(*t.full_name)]
        for name in views(self._planner):
            if self._is_wanted(*name):
                self._say(f"{name[0]}.{name[1]} is a view and is not created: do it by hand")
        missing = [t for t in self._with_siblings(tables) if t.full_name not in state.loaded]
        check_engines(missing)
        self._targets.check_definitions(missing)
        stale = state.begun - state.loaded.keys()
        self._check_targets(missing, stale)
        names = frozenset(t.full_name for t in missing)
        self._save(begun=state.begun | names)
        self._targets.drop(stale, self._say)
        self._save(loaded={**self._state.loaded, **dict.fromkeys(stale - names, self._place)})
        self._read(self._created(missing))
        self._save(is_complete=True)
        return self._state

    def _is_wanted(self, schema: str, table: str) -> bool:
        only = self._options.only
        is_replicated = self._options.translator.is_replicated(schema, table)
        return is_replicated and (only is None or (schema, table) in only)

    def _with_siblings(self, tables: Iterable[SourceTable]) -> list[SourceTable]:
        """Return the tables; forget what of a target is done that is not done as a whole."""
        tables, target = list(tables), self._options.translator.target
        open_ = {target(*t.full_name) for t in tables if t.full_name not in self._state.loaded}
        kept = {n: p for n, p in self._state.loaded.items() if not n[1] or target(*n) not in open_}
        self._state = replace(self._state, loaded=kept)
        return tables

    def _check_targets(self, tables: Iterable[SourceTable], stale: frozenset[Name]) -> None:
        if not self._options.into_existing:
            self._targets.check_free(tables, stale)
        elif stale:
            raise NeedsOperator(
                f"a load into tables that others share ended early: {sorted(stale)}",
                hint="remove this server's rows from them, then load.json, and load again",
            )

    def _save(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]
        self._file.write(self._state)

    def _next_origin(self) -> Origin:
        self._number += 1
        return self._state.origin(self._number)

    def _created(self, tables: list[SourceTable]) -> list[TableJob]:
        """Create databases and tables; return what is to be read."""
        jobs = []
        sources = Counter(map(self._targets.name, tables))
        for table in tables:
            target = self._targets.name(table)
            if (table.schema, "") not in self._state.loaded:
                self._targets.create_database(table.schema, target[0])
                self._save(loaded={**self._state.loaded, (table.schema, ""): self._place})
            compiled, policy = self._targets.created(table), None
            if self._options.policy is not None:
                policy = self._options.policy(table.schema, replace(compiled.info, name=table.name))
            passing = self._passing[table.full_name] = Passing(compiled, policy)
            jobs.append(self._job(table, passing, is_alone=sources[target] == 1))
        if self._sink is not None:
            direct = [self._targets.name(job.table) for job in jobs if job.way is not None]
            self._sink.wait_for(self._targets.last_ddl_ts, direct, self._run.check_stopped)
        return jobs

    def _job(self, table: SourceTable, passing: Passing, *, is_alone: bool) -> TableJob:
        info = passing.table.info
        if self._sink is None:
            return TableJob(table, text_rows(info))
        if not passing.takes_all:
            self._say(f"{table.schema}.{table.name} goes through the Pumps: its rows are filtered")
            return TableJob(table, text_rows(info))
        way = sql_rows(info, self._targets.name(table))
        way = replace(way, is_told_by_key=way.is_told_by_key and is_alone)
        return TableJob(table, way.reader, way)

    def _read(self, jobs: list[TableJob]) -> None:
        options, sink = self._options, self._sink
        bytes_max = options.transaction_bytes
        estimated = sum(job.table.rows_estimated for job in jobs)
        progress = Progress(len(jobs), estimated, self._say, options.report_s)
        brake = Brake(options.rate_bytes_per_s)
        readers = Readers(
            jobs,
            self._planner,
            self._sessions,
            () if sink is None else sink.sessions,
            rows_per_chunk=options.rows_per_chunk,
            group_bytes=bytes_max if sink is None else sink.group_bytes(bytes_max),
        )
        writer = RowWriter(self._client.session, self._run.journal, self._run.may_commit)
        with closing(writer), readers.groups() as groups:
            for group in groups:
                self._run.check_stopped()
                if group.rows:
                    size_bytes = sum(map(len, group.rows))
                    brake.take(size_bytes)
                    self._write(writer, group)
                    progress.add(len(group.rows), size_bytes)
                elif group.written_rows:
                    brake.take(group.written_bytes)
                    progress.add(group.written_rows, group.written_bytes)
                elif self._is_done(group):
                    writer.drain()
                    progress.tables_done += 1
                    name = group.job.table.full_name
                    self._save(loaded={**self._state.loaded, name: self._place})
        if jobs:
            self._say(progress.line())

    def _write(self, writer: RowWriter, group: Group) -> None:
        passing = self._passing[group.job.table.full_name]
        rows = passing.rows(group.rows)
        if rows:
            writer.write(passing.table, rows, self._next_origin())

    def _is_done(self, group: Group) -> bool:
        job = group.job
        job.chunks_ended += group.ends_chunk
        return job.is_planned and job.chunks_ended == job.chunks_begun
