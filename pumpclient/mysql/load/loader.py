"""Loads a server in attempts, each at its own snapshot, until every table is done.

Rows go to the Pumps in one transaction per group, in the order of their origins, journaled. The
load has its own journal beside its state: transactions that a killed load left open on a Pump are
rolled back by the next attempt. Otherwise they would block that Pump's stream until the Pump
abandons them.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.filters.rules import RowPolicy
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType, Origin
from pumpclient.changes import Changes, ChangeSet
from pumpclient.client import PumpClient
from pumpclient.delivery.group_commit import (
    GROUP_COUNT_MAX,
    GroupJournal,
    GroupWriter,
    PendingTransaction,
)
from pumpclient.delivery.session import Session
from pumpclient.mysql.journal import Journal, settle
from pumpclient.mysql.load.readers import (
    Readers,
    RowGroup,
    SnapshotSession,
    TableJob,
    TableLocks,
    snapshot,
)
from pumpclient.mysql.load.sink import Sink, SinkOptions, sink_sessions
from pumpclient.mysql.load.state import LoadState, now_text, read_state, write_state
from pumpclient.mysql.load.tables import (
    Fetch,
    SourceTable,
    Targets,
    base_tables,
    check_engines,
    views,
)
from pumpclient.mysql.load.text_rows import sql_rows, text_rows
from pumpclient.mysql.protocol.server import BinlogPlace, ServerAddress
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.translate.ddl_pieces import Translator
from pumpclient.mysql.translate.statement_text import dialect_of
from pumpclient.rows import Table

Clock = Callable[[], float]
GROUP_BYTES = 1 << 20
_NAMED_MAX = 10


@dataclass(slots=True)
class LoadProgress:
    """Counts of one attempt, logged in one line each `every_s`; another thread may ask for `facts`.

    Estimates of rows are the server's. Once a table is done, its rows replace its estimate.
    """

    tables: Sequence[SourceTable]
    say: Callable[[str], None]
    every_s: float = 5.0
    clock: Clock = time.monotonic
    loaded: Mapping[Name, int] = field(default_factory=dict)
    """The rows of the tables that earlier attempts have loaded."""
    rows: int = 0
    bytes: int = 0
    tables_done: int = 0
    _estimated: int = 0
    _running: dict[Name, int] = field(default_factory=dict)
    _begun_s: float = field(init=False)
    _said_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun_s = self._said_s = self.clock()
        self._estimated = sum(table.rows_estimated for table in self.tables)

    def add(self, table: SourceTable, rows: int, bytes_: int) -> None:
        """Count rows that are durable; report progress when it is due."""
        self.rows += rows
        self.bytes += bytes_
        self._running[table.full_name] = self._running.get(table.full_name, 0) + rows
        if self.clock() - self._said_s >= self.every_s:
            self._said_s = self.clock()
            self.say(self.line())

    def done(self, table: SourceTable) -> None:
        self.tables_done += 1
        self._estimated += self._running.pop(table.full_name, 0) - table.rows_estimated

    def facts(self) -> dict[str, Any]:
        """Return the progress as the status page shows it; of tables, those in work."""
        read, known = dict(self._running), {table.full_name: table for table in self.tables}
        running = [
            {"table": ".".join(name), "rows": max(known[name].rows_estimated, rows),
             "rows_done": rows}
            for name, rows in read.items()
        ]  # fmt: skip
        before, left_s = sum(self.loaded.values()), self._left_s()
        return {
            "tables": len(self.tables) + len(self.loaded),
            "tables_done": self.tables_done + len(self.loaded),
            "rows": before + max(self._estimated, self.rows),
            "rows_done": before + self.rows,
            "seconds_left": None if left_s is None else round(left_s, 1),
            "running": running,
        }

    def _left_s(self) -> float | None:
        rate = self.rows / max(self.clock() - self._begun_s, 1e-9)
        return max(self._estimated - self.rows, 0) / rate if rate else None

    def line(self) -> str:
        seconds = max(self.clock() - self._begun_s, 1e-9)
        whole = max(self._estimated, self.rows)
        share, left_s = self.rows / whole if whole else 1.0, self._left_s()
        left = "time left unknown" if left_s is None else f"about {left_s:.0f} s left"
        return (
            f"{100 * share:3.0f} %  {self.rows} rows, {self.tables_done} of {len(self.tables)}"
            f" tables, {self.rows / seconds:.0f} rows/s, {self.bytes / seconds / 1e6:.1f} MB/s,"
            f" {left}"
        )


@dataclass(slots=True)
class Brake:
    """Limits a rate by waiting; None does not limit."""

    bytes_per_s: int | None
    clock: Clock = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _free_s: float = 0.0

    def take(self, bytes_: int) -> None:
        if self.bytes_per_s is None:
            return
        now_s = self.clock()
        if self._free_s > now_s:
            self.sleep(self._free_s - now_s)
        self._free_s = max(self._free_s, now_s) + bytes_ / self.bytes_per_s


class RowWriter:
    """Writes for one attempt; raises `NeedsOperator` or, for all other failures, `Retryable`.

    Small transactions are committed in groups, since each group costs several round trips.
    """

    def __init__(
        self, session: Session, journal: GroupJournal, may_commit: Callable[[], bool]
    ) -> None:
        self._session = session
        # The next attempt has other rows under the same origins.
        self._writer = GroupWriter(session, journal, may_commit=may_commit, decides=False)
        self._group: list[PendingTransaction] = []
        self._bytes = 0

    def write(self, table: Table, rows: Sequence[bytes], origin: Origin) -> None:
        options = self._session.options
        if self._session.schemas.table_by_id(table.info.id) is not table:
            raise Retryable(
                f"table {table.schema_name}.{table.info.name} was altered here", Code.LOAD_DISTURBED
            )
        changes = ChangeSet(options.spill_bytes, options.spill_dir)
        changes.tables[table.info.id] = Changes(
            table, inserted=list(rows), sequence=[MutationType.INSERT] * len(rows)
        )
        # At most the bytes of one message stay in memory; more wait in a file, and go alone.
        size_bytes, in_memory_max = sum(map(len, rows)), options.spill_bytes // 4
        is_full = self._bytes + size_bytes > min(GROUP_BYTES, in_memory_max)
        if is_full or len(self._group) == GROUP_COUNT_MAX:
            self._submit()
        if size_bytes > in_memory_max:
            changes.spool_all()
        self._group.append(PendingTransaction(changes, origin))
        self._bytes += size_bytes

    def drain(self) -> None:
        self._submit()
        self._tried(self._writer.drain)

    def close(self) -> None:
        """End; rows in flight are committed or rolled back."""
        for each in self._group:
            each.changes.close()
        self._writer.close()

    def _submit(self) -> None:
        group, self._group, self._bytes = self._group, [], 0
        if group:
            self._tried(lambda: self._writer.submit(group, lambda: None))

    def _tried(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (NeedsOperator, Retryable):
            raise
        except PenstockError as error:
            raise Retryable(f"rows were not written: {error}", Code.LOAD_DISTURBED) from error


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to load; `translator` has the source's filters and routes."""

    translator: Translator
    only: frozenset[Name] | None = None
    """The tables to load; None means all that are replicated."""
    before_changes: Callable[[BinlogPlace, frozenset[Name]], None] = lambda place, missing: None
    """Called with each snapshot's place, before anything of the cluster is changed, and with the
    started tables that the server does not have.
    """
    policy: Callable[[str, TableInfo], RowPolicy] | None = None
    """The filter of a table's rows, taken as inserts; called with the source's schema and the
    table.
    """
    readers: int = 4
    rows_per_chunk: int = 100_000
    transaction_bytes: int = 1 << 20
    rate_bytes_per_s: int | None = None
    sink: SinkOptions | None = None
    """The direct target of rows; if None, or if rows are filtered, rows go to the Pumps."""
    into_existing: bool = False
    """Tables of several servers are merged: an existing target is loaded into."""
    may_commit: Callable[[], bool] = lambda: True
    """False once another process has the source."""
    attempts_max: int = 10
    retry_s: float = 3.0
    report_s: float = 5.0
    show: Callable[[LoadProgress], None] = lambda progress: None
    """Called with the progress of each attempt, at first before the tables are created."""
    save_s: float = 1.0
    """How long tables that are done may wait to be saved as done, since a save is expensive."""

    def is_wanted(self, schema: str, table: str) -> bool:
        is_replicated = self.translator.is_replicated(schema, table)
        return is_replicated and (self.only is None or (schema, table) in self.only)


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
        self.path = state_path
        self.options = options
        self.say = say
        self._is_stopped = is_stopped

    def run(self, source: str, epoch: int) -> LoadState:
        """Load all remaining tables; the binlog then continues from `start`, with `floors`.

        May be called again after any end, a killed process included. Raises `NeedsOperator` if a
        table cannot be loaded, `Retryable` after `attempts_max` failures in a row.
        """
        state = read_state(self.path) or LoadState(source=source, epoch=epoch)
        if (state.source, state.epoch) != (source, epoch):
            raise NeedsOperator(
                f"the load was begun by {state.source!r} in epoch {state.epoch},"
                f" this is {source!r} in epoch {epoch}",
                "stop the source and load again (penstock source reload --all), which drops and"
                " creates the targets",
                Code.LOAD_NOT_CONTINUED,
            )
        with closing(Journal(self.path.with_suffix(".journal"))) as journal:
            return self._completed(journal, state)

    def check_stopped(self) -> None:
        """Raise `Retryable` once the load is to stop."""
        if self._is_stopped():
            raise Retryable(
                "stopped before the load was done; it continues when run again", Code.LOAD_DISTURBED
            )

    def _completed(self, journal: Journal, state: LoadState) -> LoadState:
        failures = 0
        while not state.is_complete:
            loaded = len(state.loaded)
            try:
                state = self._attempt(journal, state)
            except Retryable as error:
                if self._is_stopped():
                    raise
                state = read_state(self.path) or state
                failures = 0 if len(state.loaded) > loaded else failures + 1
                if failures >= self.options.attempts_max:
                    raise
                self.say(f"the load begins again for what is not done: {error}")
                time.sleep(self.options.retry_s)
        return state

    def _attempt(self, journal: Journal, state: LoadState) -> LoadState:
        settle(self.client.session, journal)
        with ExitStack() as opened:
            sink, readers = None, self.options.readers
            if self.options.sink is not None:
                cluster_id = self.client.session.pumps.cluster_id
                of_load = cluster_id, state.source, readers, self.options.may_commit
                sink = opened.enter_context(sink_sessions(self.options.sink, *of_load))
            taken = opened.enter_context(snapshot(self._address, readers + 1, self._lockable))
            return _Attempt(self, journal, *taken, sink, state).run()

    def _lockable(self, fetch: Fetch) -> list[SourceTable]:
        is_wanted = self.options.is_wanted
        return [t for t in base_tables(fetch) if t.needs_lock and is_wanted(*t.full_name)]


class _Attempt:
    def __init__(
        self,
        load: Load,
        journal: Journal,
        version: str,
        place: BinlogPlace,
        sessions: Sequence[SnapshotSession],
        locks: TableLocks,
        sink: Sink | None,
        state: LoadState,
    ) -> None:
        self._client = load.client
        self._path = load.path
        self._options = load.options
        self._say = load.say
        self._journal = journal
        self._check_stopped = load.check_stopped
        self._place = BinlogPlace(place.file, place.position)
        self._locks, self._sink = locks, sink
        self._planner, *self._sessions = sessions
        self._state = replace(state.next_attempt(place), started=state.started or now_text())
        self._number = 0
        self._passing: dict[Name, tuple[Table, RowPolicy | None]] = {}
        self._targets = Targets(
            self._client,
            self._options.translator,
            self._planner.fetch,
            dialect_of(version),
            self._next_origin,
            self._check_stopped,
        )

    def run(self) -> LoadState:
        tables = [
            t for t in base_tables(self._planner.fetch) if self._options.is_wanted(*t.full_name)
        ]
        # A target that is not finished as a whole is loaded again from all of its sources.
        target, loaded = self._options.translator.target, self._state.loaded
        open_ = {target(*t.full_name) for t in tables if t.full_name not in loaded}
        kept = {n: p for n, p in loaded.items() if not n[1] or target(*n) not in open_}
        state = self._state = replace(self._state, loaded=kept)
        gone = state.begun - state.loaded.keys() - {t.full_name for t in tables}
        self._options.before_changes(self._place, gone)
        if self._options.only is None and state.attempt == 1 and gone:
            # They existed when an operator requested the load, but this load has no row of them.
            for name in sorted(gone):
                self._say(f"{'.'.join(name)} is not on the server any more: it stays here")
            self._save(begun=state.begun - gone)
            state = self._state
        for name in views(self._planner.fetch):
            if self._options.is_wanted(*name):
                self._say(f"{name[0]}.{name[1]} is a view and is not created: do it by hand")
        missing = [t for t in tables if t.full_name not in state.loaded]
        missing.sort(key=lambda table: not table.needs_lock)  # Others wait to write these.
        check_engines(missing)
        self._check_locked(missing)
        self._targets.check_definitions(missing)
        stale = state.begun - state.loaded.keys()
        if not self._options.into_existing:
            self._targets.check_free(missing, stale)
        elif stale:
            raise NeedsOperator(
                f"a load into tables that others share ended early: {sorted(stale)}",
                "remove this server's rows from them, remove load.json, and load again",
                Code.LOAD_NOT_CONTINUED,
            )
        self._progress(missing)
        names = frozenset(t.full_name for t in missing)
        self._save(begun=state.begun | names)
        self._targets.drop(stale, self._say)
        self._save(loaded={**self._state.loaded, **dict.fromkeys(stale - names, self._place)})
        self._read(self._created(missing))
        self._save(is_complete=True, ended=now_text())
        return self._state

    def _check_locked(self, tables: Sequence[SourceTable]) -> None:
        """Raise `Retryable` for a table without transactions that is newer than the locks."""
        known = {table.full_name for table in self._locks.tables}
        new = [t.full_name for t in tables if t.needs_lock and t.full_name not in known]
        if new:
            raise Retryable(
                f"{'.'.join(new[0])} was created or altered while the load began",
                Code.LOAD_DISTURBED,
            )

    def _save(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]
        write_state(self._path, self._state)

    def _next_origin(self) -> Origin:
        self._number += 1
        return self._state.origin(self._number)

    def _created(self, tables: list[SourceTable]) -> list[TableJob]:
        jobs = []
        sources = Counter(map(self._targets.name, tables))
        new = [t for t in tables if (t.schema, "") not in self._state.loaded]
        if new:
            self._targets.create_databases(new)
            made = {(table.schema, ""): self._place for table in new}
            self._save(loaded={**self._state.loaded, **made})
        self._targets.create()
        for table in tables:
            target = self._targets.name(table)
            compiled, policy = self._targets.compiled(table), None
            if self._options.policy is not None:
                policy = self._options.policy(table.schema, replace(compiled.info, name=table.name))
            self._passing[table.full_name] = compiled, policy
            if self._sink is not None and (policy is None or policy.takes_all):
                inserts = sql_rows(compiled.info, target)
                is_known = inserts.is_known_by_key and sources[target] == 1
                inserts = replace(inserts, is_known_by_key=is_known)
                jobs.append(TableJob(table, inserts.reader, inserts))
                continue
            if self._sink is not None:
                name = ".".join(table.full_name)
                self._say(f"{name} goes through the Pumps: its rows are filtered")
            jobs.append(TableJob(table, text_rows(compiled.info)))
        if self._sink is not None:
            direct = [self._targets.name(job.table) for job in jobs if job.inserts is not None]
            self._sink.wait_for(self._targets.last_ddl_ts, direct, self._check_stopped)
        return jobs

    def _read(self, jobs: list[TableJob]) -> None:
        options, sink = self._options, self._sink
        bytes_max = options.transaction_bytes
        progress = self._progress([job.table for job in jobs])
        brake = Brake(options.rate_bytes_per_s)
        readers = Readers(
            jobs,
            self._planner,
            self._sessions,
            () if sink is None else sink.sessions,
            rows_per_chunk=options.rows_per_chunk,
            group_bytes=bytes_max if sink is None else sink.group_bytes(bytes_max),
        )
        writer = RowWriter(self._client.session, self._journal, self._options.may_commit)
        unsaved: dict[Name, int] = {}
        saved_s = time.monotonic()
        locked = self._locked(jobs)
        with closing(writer), readers.groups() as groups:
            for group in groups:
                self._check_stopped()
                if group.rows:
                    size_bytes = sum(map(len, group.rows))
                    brake.take(size_bytes)
                    group.job.rows_written += self._write(writer, group)
                    progress.add(group.job.table, len(group.rows), size_bytes)
                elif group.written_rows:
                    brake.take(group.written_bytes)
                    group.job.rows_written += group.written_rows
                    progress.add(group.job.table, group.written_rows, group.written_bytes)
                elif self._is_done(group):
                    progress.done(group.job.table)
                    if locked.pop(group.job.table.full_name, None) and not locked:
                        self._locks.release()
                        self._say("the tables without transactions are read: they can be written")
                    unsaved[group.job.table.full_name] = group.job.rows_written
                if unsaved and time.monotonic() - saved_s > options.save_s:
                    self._save_done(writer, unsaved)
                    unsaved, saved_s = {}, time.monotonic()
            self._save_done(writer, unsaved)
        if jobs:
            self._say(progress.line())

    def _progress(self, tables: Sequence[SourceTable]) -> LoadProgress:
        loaded = {n: self._state.rows.get(n, 0) for n in self._state.loaded if n[1]}
        progress = LoadProgress(tables, self._say, self._options.report_s, loaded=loaded)
        self._options.show(progress)
        return progress

    def _locked(self, jobs: Sequence[TableJob]) -> dict[Name, SourceTable]:
        """Return the tables that stay locked until they are read; release the others."""
        locked = {job.table.full_name: job.table for job in jobs if job.table.needs_lock}
        if not locked:
            self._locks.release()
        else:
            names = ", ".join(".".join(name) for name in sorted(locked)[:_NAMED_MAX])
            self._say(
                f"writes to {len(locked)} tables without transactions wait until the load has read"
                f" them: {names}"
            )
        return locked

    def _save_done(self, writer: RowWriter, rows: Mapping[Name, int]) -> None:
        writer.drain()
        loaded = {**self._state.loaded, **dict.fromkeys(rows, self._place)}
        self._save(loaded=loaded, rows={**self._state.rows, **rows})

    def _write(self, writer: RowWriter, group: RowGroup) -> int:
        table, policy = self._passing[group.job.table.full_name]
        rows: Sequence[bytes] = group.rows
        if policy is not None:
            rows = policy.passing(MutationType.INSERT, rows)
        if rows:
            writer.write(table, rows, self._next_origin())
        return len(rows)

    def _is_done(self, group: RowGroup) -> bool:
        job = group.job
        job.chunks_ended += group.ends_chunk
        # The end of the planning also arrives as a group, after the last chunk's end or before it.
        was_done, job.is_done = job.is_done, job.is_planned and job.chunks_ended == job.chunks_begun
        return job.is_done and not was_done
