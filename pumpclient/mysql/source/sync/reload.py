"""Reload: loads a skipped table again and replicates it, while the source continues.

    source     t is skipped ────────────── P ───────────── Q ┌ stops for a moment
    reload          snapshot at P ── waits until the source is at P
                    drops and creates t, loads its rows as of P
                    reads the relay log from P on, t only ── up to Q ┘ t is followed from Q on

Exactly once. The writes of a reload have the origins of a separate source, `<source-id>/reload`,
with an unused epoch: first the load's as in `pumpclient.mysql.load`, then the binlog's. So the
Drainer and the DDL history recognise repeated writes after a kill. The progress of the reload is in
two files beside the source's: `<source-id>.reload-<number>.load.json`, and `….json` for the binlog
part.

Readers downstream see t dropped and created; t fills, and then runs behind the other tables until
Q. From Q on all tables are consistent again. A transaction on t and others between P and Q arrives
in two parts.

A statement that renames or drops t, and a switch to another server, restart the reload under
another number: the snapshot is then of the resulting table. Nothing of the cluster is changed
before the source is at P, so the source sees every such statement that matters from then on. If the
snapshot lacks t although the source has read no DROP of it, the server lost t without logging that:
the reload fails, and downstream t stays as it is. The report of a reload that ended is in the
checkpoint.

If several tables are routed into one, t stands for all of them: they are skipped, loaded and
followed again together. A table that is created in the meantime joins them, and the reload
restarts. Rows of another source in that table are dropped with it, so the operator must explicitly
accept this.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.filters import Rules
from pumpclient.mysql.journal import Journal, settle
from pumpclient.mysql.load.loader import Load, LoadOptions
from pumpclient.mysql.load.state import LoadState, now_text, read_state, write_state
from pumpclient.mysql.protocol.server import BinlogPlace, ServerAddress
from pumpclient.mysql.relay.layout import FileName, Location
from pumpclient.mysql.relay.reader import Growth, RelayReader
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.config import OPTIMISTIC, SourceConfig
from pumpclient.mysql.source.ddl.table_mapping import Tables
from pumpclient.mysql.source.state.checkpoint import Checkpoint, FollowFile, fresh_epoch
from pumpclient.mysql.source.state.overrides import Edit
from pumpclient.mysql.source.state.skipped import SkippedTable, SkippedTables
from pumpclient.mysql.source.sync.context import SourceCounters, SyncContext
from pumpclient.mysql.source.sync.loading import report_text, siblings
from pumpclient.mysql.source.sync.syncer import Syncer
from pumpclient.mysql.translate.ddl_pieces import Translator

log = logging.getLogger(__name__)

_NEAR_BYTES = 8 << 20
"""When it is this near to the source, the reload asks the source to stop for the rest."""
_REPORTS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The pauses of a source before a retry, and between two polls."""

    retry_s_min: float = 0.2
    retry_s_max: float = 30.0
    edit_s_max: float = 50.0
    reload_retry_s: float = 3.0
    reload_poll_s: float = 0.2


@dataclass(slots=True)
class ReloadStatus:
    """A reload on the status page."""

    state: str = "begins"
    problem: str = ""
    hint: str = ""
    started: str = ""


class Reload:
    """A reload of one table, or all with one target; starts immediately, on a thread of its own."""

    def __init__(
        self,
        here: Reloads,
        tables: Sequence[SkippedTable],
        server: str,
        suffix: int,
        growth: Growth,
    ) -> None:
        """`server` and `suffix` name the source's sub-directory of the relay log."""
        self.names, self.number = frozenset(each.name for each in tables), tables[0].reload
        self.status = ReloadStatus()
        self._dropped = {each.name: each.dropped for each in tables if each.dropped}
        self._missing: frozenset[Name] = frozenset()
        self._here = here
        self._label = tables[0].label
        self._server, self._suffix, self._growth = server, suffix, growth
        stem = f"{here.config.source_id}.reload-{self.number}"
        self._files = here.config.data_dir, stem
        self._load_file = here.config.data_dir / f"{stem}.load.json"
        self._follow = FollowFile(here.config.data_dir / f"{stem}.json", here.context.store.is_ours)
        self._source = f"{here.config.source_id}/reload"
        self._stopped = threading.Event()
        self._syncer: Syncer | None = None
        self._thread = threading.Thread(target=self._run, name="reload", daemon=True)
        self._thread.start()

    @property
    def needed(self) -> Location | None:
        found = self._follow.load()
        if found is not None:
            return found.place
        state = read_state(self._load_file)
        if state is None or state.start is None:
            return None
        # During the load, the snapshot is at least as new as the first attempt's.
        return self._snapshot(state) if state.is_complete else self._location(state.start)

    def stop(self) -> None:
        """Stop even in the middle of an operation; another process or reload continues."""
        self._stopped.set()
        syncer = self._syncer
        if syncer is not None:
            syncer.stop()
        self._thread.join()

    def _run(self) -> None:
        log.info("reload %d of %s begins", self.number, self._label)
        while not self._stopped.is_set():
            try:
                self._reload()
                return
            except Retryable as error:
                if not self._stopped.is_set():
                    self.status.problem = str(error)
                    log.warning("reload of %s: %s; it is tried again", self._label, error)
                    self._stopped.wait(self._here.pace.reload_retry_s)
            except PenstockError as error:
                problem = getattr(error, "problem", str(error))
                hint, started = getattr(error, "hint", ""), self.status.started
                self.status = ReloadStatus("failed", problem, hint, started)
                log.error(
                    "reload of %s waits for an operator: %s; it stays skipped until"
                    " penstock source reload %s is asked for again",
                    self._label, error, self._label,
                )  # fmt: skip
                self._here.wake()
                return

    def _reload(self) -> None:
        loaded = self._loaded()
        if self._follow.load() is None:
            begin = str(self._snapshot(loaded))
            self._follow.save(Checkpoint(epoch=loaded.epoch, server=self._server, done=begin))
        self.status = ReloadStatus("follows", started=loaded.started)
        while not self._is_near() and not self._stopped.is_set():
            self._read_up_to(self._source_place())
        self._join(loaded)

    def _loaded(self) -> LoadState:
        here, state = self._here, read_state(self._load_file)
        # In a restored etcd a number may occur twice; files of the first occurrence do not count.
        if state is None or not self.names <= state.begun:
            self._remove_files()
            # The table downstream is old and will be dropped.
            epoch = fresh_epoch(here.context.client, self._source)
            state = LoadState(
                source=self._source, epoch=epoch, begun=self.names, started=now_text()
            )
            write_state(self._load_file, state)
        if not state.is_complete:
            settings = here.config.load
            options = LoadOptions(
                translator=Translator(
                    is_replicated=here.rules.is_replicated, target=here.rules.target, online=None
                ),
                policy=here.rules.of_rows,
                only=self.names,
                before_changes=self._wait_for_source,
                readers=settings.readers,
                transaction_bytes=settings.transaction_bytes,
                rate_bytes_per_s=settings.rate_bytes_per_s or None,
                may_commit=here.context.store.is_ours,
            )
            self.status = ReloadStatus("loads", started=state.started)
            load = Load(
                here.address, here.context.client, self._load_file, options,
                is_stopped=self._stopped.is_set,
            )  # fmt: skip
            state = load.run(self._source, state.epoch)
        return state

    def _snapshot(self, state: LoadState) -> Location:
        return max(self._location(state.loaded[name]) for name in self.names)

    def _location(self, place: BinlogPlace) -> Location:
        return Location(self._suffix, FileName.parse(place.file), place.position)

    def _wait_for_source(self, place: BinlogPlace, missing: frozenset[Name]) -> None:
        """Return once the source has read all before a snapshot that still covers these tables.

        Raises `NeedsOperator` for tables that are `missing` on the server without a DROP.
        """
        counters, at = self._here.context.counters, self._location(place)
        self.status.state = f"waits until the source is at {at}"
        while True:
            read = counters.read_location
            if self._source_place() >= at or (counters.idle and read is not None and read >= at):
                break
            if self._stopped.wait(self._here.pace.reload_poll_s):
                raise Retryable("stopped", Code.CLOSED)
        self._check_lost(missing)
        self._check_whole()
        self._here.context.statements.check_server(self._here.address, self.names)
        self.status.state = "loads"

    def _check_lost(self, missing: frozenset[Name]) -> None:
        """Raise `NeedsOperator` for tables that the server lost without a DROP in its binlog.

        The list of tables is younger than the snapshot, so a DROP may come after the part that the
        source has read. At the next snapshot the source has read it, and has ended this reload.
        """
        lost = missing - self._dropped.keys()
        is_sure = lost <= self._missing
        self._missing = missing
        if not lost:
            return
        names = ", ".join(".".join(name) for name in sorted(lost))
        if not is_sure:
            raise Retryable(f"the server does not have {names}", Code.LOAD_DISTURBED)
        raise NeedsOperator(
            f"the server does not have {names}, and its binlog has no DROP of it: nothing was"
            " dropped downstream",
            "restore the table on the server and reload it again; or run DROP TABLE IF EXISTS"
            f" {names} on the server, which the source follows",
            Code.OVERRIDE_INVALID,
        )

    def _check_whole(self) -> None:
        """Raise `Retryable` while the server has another table with the same target.

        It is new: once the source is at its CREATE TABLE, the reload restarts with it.
        """
        here = self._here
        others = siblings(here.config, here.rules, self.names) - self.names
        if others:
            names = ", ".join(".".join(name) for name in sorted(others)[:5])
            raise Retryable(
                f"{names} goes where {self._label} goes, and the source is not that far yet; if"
                " this stays, ask for the reload again",
                Code.NODE_STATE,
            )

    def _source_place(self) -> Location:
        checkpoint = self._here.context.counters.checkpoint
        assert checkpoint is not None, "a source that runs has one"
        return checkpoint.place

    def _is_near(self) -> bool:
        found, end = self._follow.load(), self._source_place()
        assert found is not None, "it was stored before"
        begin = found.place
        files = end.file.number - begin.file.number
        return files < 0 or (not files and end.position - begin.position <= _NEAR_BYTES)

    def _read_up_to(self, end: Location) -> None:
        here, found = self._here, self._follow.load()
        assert found is not None, "it was stored before"
        if found.place >= end:
            return
        client, config = here.context.client, here.config
        folder, stem = self._files
        with closing(Journal(folder / f"{stem}.journal")) as journal:
            settle(client.session, journal)
            tables = Tables(
                client, here.rules, here.address, None,
                merges=here.config.shard_mode == OPTIMISTIC, only=self.names,
            )  # fmt: skip
            context = SyncContext(
                client=client,
                store=self._follow,
                journal=journal,
                tables=tables,
                statements=here.context.statements.of_tables(self.names),
                counters=SourceCounters(rulings=here.context.counters.rulings),
                source_id=self._source,
                flavor=here.context.flavor,
            )
            reader = RelayReader(config.relay.dir, found.place, self._growth)
            self._syncer = Syncer(context, reader, found, config.sync.group_count_max, until=end)
            if self._stopped.is_set():
                self._syncer.stop()
            try:
                self._syncer.run()
            finally:
                self._syncer = None
        if self._stopped.is_set():
            raise Retryable("stopped", Code.CLOSED)

    def _join(self, loaded: LoadState) -> None:
        done = self._here.change(partial(self._joined, loaded))
        while True:
            try:
                log.warning("%s", done.result(self._here.pace.reload_poll_s).strip())
                break
            except NotYet:
                if self._stopped.is_set() and done.cancel():
                    return
        self._remove_files()

    def _joined(self, loaded: LoadState, checkpoint: Checkpoint) -> tuple[Checkpoint, str]:
        """Apply the rest with the source stopped at `checkpoint`, then follow the table."""
        left_out = SkippedTables(checkpoint.left_out)
        tables = [each for each in left_out.tables if each.reload == self.number]
        if {each.name for each in tables} != self.names or checkpoint.server != self._server:
            raise Retryable(
                f"{self._label} is reloaded by another number by now", Code.SOURCE_TAKEN
            )
        self._read_up_to(checkpoint.place)
        self._check_there()
        reports, parts, ended = dict(checkpoint.reloaded), [], now_text()
        for each in tables:
            left_out.remove(each.name)
            reports.pop(each.label, None)
            reports[each.label] = {
                "reload": self.number,
                "rows": loaded.rows.get(each.name, 0),
                "started": loaded.started,
                "ended": ended,
                "dropped": each.dropped,
            }
            parts.append(report_text(each.label, reports[each.label]))
        rows, statements = sum(t.rows for t in tables), sum(t.statements for t in tables)
        left_out_text = f"{rows} rows and {statements} statements that had been skipped are in it"
        kept = dict(list(reports.items())[-_REPORTS_MAX:])
        cascaded = {  # What foreign keys had done before the snapshot is in it.
            label: note
            for label, note in checkpoint.cascaded.items()
            if label not in {each.label for each in tables}
            or Location.parse(note["last"]) > self._snapshot(loaded)
        }
        return replace(checkpoint, left_out=left_out.tables, reloaded=kept, cascaded=cascaded), (
            f"reload {self.number} is done, and followed from {checkpoint.done} on; {left_out_text}"
            f"\n{''.join(parts)}"
        )

    def _check_there(self) -> None:
        rules, catalog = self._here.rules, self._here.context.client.session.schemas.catalog()
        for name in sorted(self.names - self._dropped.keys()):
            target = rules.target(*name)
            if catalog.table(*target) is None:
                raise NeedsOperator(
                    f"{'.'.join(name)} was loaded again, but {'.'.join(target)} is gone: another"
                    " writer dropped it",
                    "find that writer, then reload the table again",
                    Code.LOAD_DISTURBED,
                )

    def _remove_files(self) -> None:
        folder, stem = self._files
        for path in folder.glob(f"{stem}.*"):
            with suppress(OSError):
                path.unlink()


class Reloads:
    """The reloads of one source, one after the other."""

    def __init__(
        self,
        config: SourceConfig,
        context: SyncContext,
        address: ServerAddress,
        rules: Rules,
        *,
        change: Callable[[Edit], Future[str]],
        wake: Callable[[], None],
        pace: Pace,
    ) -> None:
        """Share the source's `context`.

        `change` changes the source's checkpoint between two of its runs and in its thread; `wake`
        makes the source look for reloads again.
        """
        self.config, self.context, self.address, self.rules = config, context, address, rules
        self.change, self.wake, self.pace = change, wake, pace
        self._running: Reload | None = None
        self._ended: dict[int, ReloadStatus] = {}

    @property
    def statuses(self) -> Mapping[int, ReloadStatus]:
        """The status of each reload by its number: a table may have been asked for again since."""
        running = self._running
        return self._ended | ({} if running is None else {running.number: running.status})

    @property
    def needed(self) -> Location | None:
        running = self._running
        return None if running is None else running.needed

    def see(self, checkpoint: Checkpoint, growth: Growth) -> None:
        """Start the reloads that a checkpoint requests; end all others."""
        wanted: dict[int, list[SkippedTable]] = {}
        for table in sorted(checkpoint.left_out, key=lambda each: each.reload):
            if table.reload:
                wanted.setdefault(table.reload, []).append(table)
        self._ended = {number: each for number, each in self._ended.items() if number in wanted}
        running = self._running
        if running is not None:
            if running.number in wanted and running.status.state != "failed":
                return
            if running.number in wanted:
                self._ended[running.number] = running.status
            self.stop()
        for number, tables in wanted.items():
            if number not in self._ended:
                suffix = checkpoint.place.suffix
                self._running = Reload(self, tables, checkpoint.server, suffix, growth)
                return

    def cancel(self, names: Sequence[Name]) -> None:
        """End the running reload if it has one of these tables: it must start again."""
        running = self._running
        if running is not None and not running.names.isdisjoint(names):
            self.stop()

    def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.stop()
