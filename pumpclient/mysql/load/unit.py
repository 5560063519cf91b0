"""The load of one server: attempts, each at a snapshot of its own, until every table is done."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.ddl.lexer import quote_name
from penstock.errors import NeedsOperator, Retryable
from penstock.filters.rules import RowPolicy
from penstock.schema import TableInfo
from pumpclient.client import PumpClient
from pumpclient.mysql.load.progress import Brake, Progress
from pumpclient.mysql.load.readers import Group, Readers, TableJob
from pumpclient.mysql.load.sessions import Session, Snapshot, snapshot
from pumpclient.mysql.load.state import BinlogPlace, LoadState, Name, StateFile
from pumpclient.mysql.load.tables import (
    SourceTable,
    base_tables,
    check_engines,
    create_database,
    create_table,
    views,
)
from pumpclient.mysql.load.text_rows import text_rows
from pumpclient.mysql.load.writing import Passing, RowWriter
from pumpclient.mysql.protocol.address import ServerAddress
from pumpclient.mysql.source.journal import Journal
from pumpclient.mysql.source.recovery import settle
from pumpclient.mysql.translate.ddl import Translator
from pumpclient.mysql.translate.sql import dialect_of, plain_text

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to load; `translator` has the source's filters and routes."""

    translator: Translator
    policy: Callable[[str, TableInfo], RowPolicy] | None = None
    """Which rows, taken as inserts, pass; asked with the source's schema and the table."""
    readers: int = 4
    rows_per_chunk: int = 100_000
    transaction_bytes: int = 1 << 20
    rate_bytes_per_s: int | None = None
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
        with snapshot(self._address, self.options.readers + 1) as taken:
            return _Attempt(self, run, taken, state).run()


class _Attempt:
    """What is done at one snapshot."""

    def __init__(
        self,
        load: Load,
        run: _Run,
        taken: Snapshot,
        state: LoadState,
    ) -> None:
        self._client = load.client
        self._file = load.file
        self._options = load.options
        self._say = load.say
        self._run = run
        self._place = BinlogPlace(taken.place.file, taken.place.position)
        self._dialect = dialect_of(taken.identity.version)
        self._planner: Session = taken.sessions[0]
        self._sessions = taken.sessions[1:]
        self._state = state.next_attempt(taken.place)
        self._number = 0
        self._passing: dict[Name, Passing] = {}

    def run(self) -> LoadState:
        """Load everything that is not done; return the state, which is complete."""
        translator, state = self._options.translator, self._state
        tables = [t for t in base_tables(self._planner) if translator.is_replicated(*t.full_name)]
        for name in views(self._planner):
            if translator.is_replicated(*name):
                self._say(f"{name[0]}.{name[1]} is a view and is not created: do it by hand")
        missing = [t for t in self._with_siblings(tables) if t.full_name not in state.loaded]
        check_engines(missing)
        stale = state.begun - state.loaded.keys()
        self._check_targets(missing, stale)
        names = frozenset(t.full_name for t in missing)
        self._save(begun=state.begun | names)
        self._drop(stale)
        self._save(loaded={**self._state.loaded, **dict.fromkeys(stale - names, self._place)})
        self._read(self._created(missing))
        self._save(is_complete=True)
        return self._state

    def _with_siblings(self, tables: Iterable[SourceTable]) -> list[SourceTable]:
        """Return the tables; forget what of a target is done that is not done as a whole."""
        tables, target = list(tables), self._options.translator.target
        open_ = {target(*t.full_name) for t in tables if t.full_name not in self._state.loaded}
        kept = {n: p for n, p in self._state.loaded.items() if not n[1] or target(*n) not in open_}
        self._state = replace(self._state, loaded=kept)
        return tables

    def _check_targets(self, tables: Iterable[SourceTable], stale: frozenset[Name]) -> None:
        if self._options.into_existing:
            if stale:
                raise NeedsOperator(
                    f"a load into tables that others share ended early: {sorted(stale)}",
                    hint="remove this server's rows from them, then load.json, and load again",
                )
            return
        ours = {self._options.translator.target(*name) for name in stale}
        for table in tables:
            target = self._options.translator.target(*table.full_name)
            if target not in ours and self._exists(target):
                raise NeedsOperator(
                    f"table {target[0]}.{target[1]} is there already, and not by this load",
                    hint="drop it, leave it out by the filters, or load into it (into-existing)",
                )

    def _exists(self, target: Name) -> bool:
        try:
            self._client.table(_quoted(target))
        except NeedsOperator:
            return False
        return True

    def _save(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]
        self._file.write(self._state)

    def _ddl(self, sql: str) -> None:
        self._number += 1
        self._client.execute_ddl(sql, origin=self._state.origin(self._number))

    def _drop(self, stale: frozenset[Name]) -> None:
        for target in sorted({self._options.translator.target(*name) for name in stale}):
            if self._exists(target):
                self._say(f"{target[0]}.{target[1]} was not done: dropped, to be loaded again")
                self._ddl(f"DROP TABLE {_quoted(target)}")

    def _created(self, tables: list[SourceTable]) -> list[TableJob]:
        """Create databases and tables; return what is to be read."""
        jobs = []
        for table in tables:
            self._create_database(table.schema, self._target(table)[0])
            target = self._target(table)
            if not self._exists(target):
                self._ddl(self._translated(table))
            compiled, policy = self._client.compiled(_quoted(target)), None
            if self._options.policy is not None:
                policy = self._options.policy(table.schema, replace(compiled.info, name=table.name))
            self._passing[table.full_name] = Passing(compiled, policy)
            jobs.append(TableJob(table, text_rows(compiled.info)))
        return jobs

    def _target(self, table: SourceTable) -> Name:
        return self._options.translator.target(*table.full_name)

    def _create_database(self, schema: str, target: str) -> None:
        if (schema, "") not in self._state.loaded:
            self._ddl(create_database(self._planner, schema, target))
            self._save(loaded={**self._state.loaded, (schema, ""): self._place})

    def _translated(self, table: SourceTable) -> str:
        text = plain_text(create_table(self._planner, table), 0, self._dialect)
        made = replace(self._options.translator, online=None).translate(text, table.schema, {})
        assert len(made.pieces) == 1, f"{table.full_name} is replicated and is one statement"
        return made.pieces[0].sql

    def _read(self, jobs: list[TableJob]) -> None:
        options = self._options
        estimated = sum(job.table.rows_estimated for job in jobs)
        progress = Progress(len(jobs), estimated, self._say, options.report_s)
        brake = Brake(options.rate_bytes_per_s)
        readers = Readers(
            jobs,
            self._planner,
            self._sessions,
            rows_per_chunk=options.rows_per_chunk,
            group_bytes=options.transaction_bytes,
        )
        writer = RowWriter(self._client.session, self._run.journal, self._run.may_commit)
        with closing(writer), readers.groups() as groups:
            for group in groups:
                if self._run.is_stopped():
                    raise Retryable("stopped before the load was done; it goes on when run again")
                if group.rows:
                    size_bytes = sum(map(len, group.rows))
                    brake.take(size_bytes)
                    self._write(writer, group)
                    progress.add(len(group.rows), size_bytes)
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
            self._number += 1
            writer.write(passing.table, rows, self._state.origin(self._number))

    def _is_done(self, group: Group) -> bool:
        job = group.job
        job.chunks_ended += group.ends_chunk
        return job.is_planned and job.chunks_ended == job.chunks_begun


def _quoted(name: Name) -> str:
    return f"{quote_name(name[0])}.{quote_name(name[1])}"
