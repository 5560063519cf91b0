"""Runs a source: relay log and syncer together, through failures, pauses and overrides.

starting ── checks, ownership, settling of an earlier run's transactions, the first checkpoint
syncing  ── a run of the syncer; temporary failures are retried, with growing pauses
failed   ── an operator must act: override the statement, or resume; the relay log may be over
paused   ── as requested; the relay log continues
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from penstock.cluster import etcd
from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator, PenstockError, Retryable
from penstock.filters import Rules
from penstock.security.tls import Security
from penstock.waiting import spread_s
from pumpclient.client import PumpClient
from pumpclient.mysql.journal import Journal, settle
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.relay.reader import RelayReader
from pumpclient.mysql.relay.receiver import RelayReceiver
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.checks import checked_flavor
from pumpclient.mysql.source.config import OPTIMISTIC, SourceConfig
from pumpclient.mysql.source.ddl.cascades import Cascades
from pumpclient.mysql.source.ddl.execution import Statements
from pumpclient.mysql.source.ddl.table_mapping import Tables
from pumpclient.mysql.source.first_checkpoint import first_checkpoint, without_relay
from pumpclient.mysql.source.relay_log import Purger, RelayLog
from pumpclient.mysql.source.state.checkpoint import (
    Checkpoint,
    SourceStore,
    load_with_retries,
    own_once_back,
    own_once_free,
    save_with_retries,
)
from pumpclient.mysql.source.state.overrides import Edit, choices
from pumpclient.mysql.source.sync.context import SourceCounters, SyncContext
from pumpclient.mysql.source.sync.loading import (
    begin_epoch,
    edit_of,
    is_load_asked,
    load_state,
    load_tables,
)
from pumpclient.mysql.source.sync.reload import Pace, Reloads
from pumpclient.mysql.source.sync.syncer import Syncer
from pumpclient.mysql.translate.outputs import Refused, place_text
from pumpclient.options import Options

log = logging.getLogger(__name__)

_WAIT_S = 0.5
_DAMAGED_HINT = "stop the source, move its relay-dir away, start it: the log is fetched again"


class SourceService:
    """One source; call `run` in a dedicated thread, it ends after `stop`."""

    def __init__(self, config: SourceConfig, pace: Pace | None = None) -> None:
        """Compile the rules; raise `NeedsOperator` for invalid settings."""
        self._config = config
        self._pace = pace or Pace()
        self._address = config.source.address()
        self._stream = config.source.stream()
        self._rules = Rules(config.filter)
        self._online = config.online_ddl.rules()
        self.counters = SourceCounters()
        self.pages_url = ""
        """URL of the source's pages; must be set before `run`, which stores it in etcd."""
        self._relay_log = RelayLog(
            config.relay, self._address, self._stream, self._needed, self._interrupt
        )
        self._syncer: Syncer | None = None
        self._client: PumpClient | None = None
        self._stopped = threading.Event()
        self._paused = False
        self.reloads: Reloads | None = None
        self._edits: list[tuple[Edit, Future[str]]] = []
        self._news = threading.Condition()

    @property
    def relay(self) -> RelayReceiver | None:
        return self._relay_log.receiver

    @property
    def purger(self) -> Purger | None:
        return self._relay_log.purger if self.relay else None

    def reached(self) -> tuple[Location | None, int]:
        """Return the place up to which all is committed, and a timestamp above all its commit_ts.

        Raises `Retryable` while the source is starting.
        """
        counters, client = self.counters, self._client
        if client is None or counters.checkpoint is None:
            raise Retryable("the source is starting", Code.NODE_STATE)
        place = counters.read_location if counters.idle else counters.checkpoint.place
        return place, client.session.oracle.get_ts()

    # Requests from other threads.

    def stop(self) -> None:
        """Make `run` return soon, at the end of a transaction, with the checkpoint stored."""
        self._stopped.set()
        self._interrupt()

    def pause(self) -> None:
        """Stop syncing at a transaction's end; the relay log continues."""
        self._paused = True
        self._interrupt()

    def resume(self) -> None:
        self._paused = False
        counters = self.counters
        counters.problem = counters.hint = counters.code = ""
        counters.overrides = ()
        counters.state = "starting" if counters.state == "failed" else counters.state
        self._interrupt(syncer=False)

    def request(self, request: str, parts: Mapping[str, str]) -> str:
        """Change the checkpoint durably as `edit_of` says; return a report.

        An override without a place concerns the failed place, which is then retried.
        """
        if parts.get("place") == "-":
            counters = self.counters
            place = counters.statement_place if counters.state == "failed" else ""
            if not place:
                raise NeedsOperator(
                    "no statement has failed", "name its place, file:position", Code.NODE_STATE
                )
            parts = {**parts, "place": place}
        return self.change(edit_of(self._config, request, parts))

    def asked(self, edit: Edit) -> Future[str]:
        """Change the checkpoint between two runs of the syncer; the result is the edit's report.

        A failed source retries with the changed checkpoint.
        """
        done: Future[str] = Future()
        with self._news:
            self._edits.append((edit, done))
        self._interrupt()
        return done

    def change(self, edit: Edit) -> str:
        """Do the same as `asked` and wait for it; return the edit's report.

        Raises the errors of the edit, and `Retryable` when the source is still starting.
        """
        done = self.asked(edit)
        try:
            return done.result(self._pace.edit_s_max)
        except TooLate:
            done.cancel()
            raise Retryable(
                "the source does not get to it: it is starting, loading, or waits for etcd or"
                " Pumps",
                Code.NODE_STATE,
            ) from None

    def _interrupt(self, *, syncer: bool = True) -> None:
        running = self._syncer
        if syncer and running is not None:
            running.stop()
        with self._news:
            self._news.notify_all()

    # The thread.

    def run(self) -> None:
        """Run until `stop`; raise an error that `resume` cannot cure."""
        with ExitStack() as opened:
            opened.callback(self._refuse_changes)
            try:
                store, context, checkpoint = self._started(opened)
            except Retryable as error:
                if self._stopped.is_set() and self._config.mode != "full":
                    return log.info("source %s: %s", self._config.source_id, error)
                raise
            failures = 0
            while not self._stopped.is_set():
                transactions = self.counters.transactions
                try:
                    self._live(context, checkpoint)
                except Retryable as error:
                    failures = 0 if self.counters.transactions > transactions else failures + 1
                    self._retry_later(error, failures)
                except PenstockError as error:
                    self._failed(error)
                checkpoint = self._wait_until_wanted(store) or checkpoint
        self.counters.state = "stopped"

    def _refuse_changes(self) -> None:
        with self._news:
            edits, self._edits = self._edits, []
        for _, done in edits:
            if done.set_running_or_notify_cancel():
                done.set_exception(
                    Retryable("the source stops: ask again once it is stopped", Code.NODE_STATE)
                )

    def _started(self, opened: ExitStack) -> tuple[SourceStore, SyncContext, Checkpoint]:
        config = self._config
        flavor = checked_flavor(self._address)
        cascades = Cascades.of(config)
        security = Security(config.security)
        if config.mode != "full":
            self._look_for_cascades(cascades, security)
        client = self._connected(security)
        opened.callback(client.close)
        connection = etcd.connect(config.etcd_urls, tls=security.etcd_tls)
        opened.callback(connection.close)
        store = SourceStore(connection, config.source_id, ttl_s=config.lease_s)
        store.pages_url = self.pages_url
        own_once_free(store, self._stopped)
        opened.callback(store.close)
        journal = Journal(config.data_dir / f"{config.source_id}.journal")
        opened.callback(journal.close)
        merges = config.shard_mode == OPTIMISTIC
        tables = Tables(
            client, self._rules, self._address, self._online,
            merges=merges, on_history=self.counters.history,
        )  # fmt: skip
        checkpoint = self._checkpoint(store, tables, client, cascades)
        self._client = client
        context = SyncContext(
            client=client,
            store=store,
            journal=journal,
            tables=tables,
            statements=Statements(
                client, self._rules, self._online, cascades, tables=tables, merges=merges
            ),
            counters=self.counters,
            source_id=config.source_id,
            flavor=flavor,
            load=load_state(config),
            keys=cascades.followed_keys(self._address, store),
            cancel_reload=self._cancel_reload,
        )
        self.reloads = Reloads(
            config,
            context,
            self._address,
            self._rules,
            change=self.asked,
            wake=self._interrupt,
            pace=self._pace,
        )
        opened.callback(self.reloads.stop)
        if config.mode == "full":
            log.info("source %s has loaded its tables, and ends", config.source_id)
            self._stopped.set()
        else:
            opened.callback(self._relay_log.close)
        return store, context, checkpoint

    def _connected(self, security: Security) -> PumpClient:
        return PumpClient.connect(
            self._config.etcd_urls,
            strategy=self._config.sync.strategy,
            tls=security.tls,
            options=Options(
                pd_address=self._config.pd_address or None,
                etcd_tls=security.etcd_tls,
                pd_tls=security.pd_tls,
            ),
        )

    def _cancel_reload(self, names: Sequence[Name]) -> None:
        if self.reloads is not None:
            self.reloads.cancel(names)

    def _look_for_cascades(self, cascades: Cascades, security: Security) -> None:
        try:
            cascades.look_at_server(self._address)
        except NeedsOperator as refused:
            config = self._config
            try:
                with closing(etcd.connect(config.etcd_urls, tls=security.etcd_tls)) as connection:
                    found = SourceStore(connection, config.source_id).load()
            except PenstockError:
                raise refused from None
            left_out = () if found is None else [t.name for t in found.left_out if t.is_whole]
            cascades.look_at_server(self._address, left_out)

    def _checkpoint(
        self, store: SourceStore, tables: Tables, client: PumpClient, cascades: Cascades
    ) -> Checkpoint:
        tables.check_merged()
        root = self._config.relay.dir
        found = store.load()
        if found is None:
            start, gtids = self._config.start, ""
            loads = self._config.mode != "incremental" or is_load_asked(self._config)
            epoch = begin_epoch(self._config, client, store)
            if loads:
                self.counters.state = "loading"
                start, gtids = self._loaded(store, client, epoch)
            found = first_checkpoint(start, root, self._address, self._stream, tables, epoch)
            load = load_state(self._config) if loads else None
            loaded = load.after if load is not None else ""
            found = replace(found, gtids=gtids or found.gtids, loaded=loaded)
            if self._config.mode != "full":  # Changes before this place are not in the stream.
                cascades.look_at_server(self._address)
            save_with_retries(store, self._stopped, found)
        else:
            moved = without_relay(found, root, self._address, self._stream)
            if moved != found:
                save_with_retries(store, self._stopped, moved)
                found = moved
        self._take(found)
        ended = load_state(self._config)
        self.counters.load = None
        self.counters.loaded = ended.report if ended is not None else {}
        log.info("source %s continues after %s", self._config.source_id, found.done)
        return found

    def _loaded(self, store: SourceStore, client: PumpClient, epoch: int) -> tuple[str, str]:
        while True:
            try:
                return load_tables(
                    self._config, client, self._rules, self._stopped, store.is_ours, epoch,
                    show=lambda progress: setattr(self.counters, "load", progress),
                )  # fmt: skip
            except Retryable as error:
                if self._stopped.is_set() or not store.is_lost():
                    raise
                log.warning("%s", error)
                own_once_back(store, self._stopped)

    def _change(self, store: SourceStore) -> None:
        with self._news:
            edits, self._edits = self._edits, []
        for edit, done in edits:
            if not done.set_running_or_notify_cancel():
                continue
            try:
                found = store.load()
                assert found is not None, "a checkpoint comes before the first run"
                changed, text = edit(found)
                store.save(changed)
            except PenstockError as error:
                done.set_exception(error)
                continue
            self._take(changed)
            log.warning("source %s: %s", self._config.source_id, text.strip())
            done.set_result(text)
            if self.counters.state == "failed":
                self.resume()

    def _take(self, checkpoint: Checkpoint) -> None:
        counters = self.counters
        counters.checkpoint = counters.stored = checkpoint
        counters.rulings, counters.left_out = checkpoint.rulings, checkpoint.left_out

    def _needed(self) -> Location | None:
        checkpoint = self.counters.stored
        if checkpoint is None:
            return None
        needed = None if self.reloads is None else self.reloads.needed
        return _begin(checkpoint) if needed is None else min(needed, _begin(checkpoint))

    def _live(self, context: SyncContext, checkpoint: Checkpoint) -> None:
        settle(context.client.session, context.journal)
        place = _begin(checkpoint)
        relay = self._relay_log.begin(place, checkpoint.accepts)
        if self.reloads is not None:
            self.reloads.see(checkpoint, relay.growth)
        reader = RelayReader(self._config.relay.dir, place, relay.growth)
        self._syncer = Syncer(context, reader, checkpoint, self._config.sync.group_count_max)
        self.counters.state, self.counters.runs = "syncing", self.counters.runs + 1
        self.counters.statement_place = ""
        is_wanted = not (self._stopped.is_set() or self._paused or self._edits)
        if not is_wanted or self._relay_log.failure is not None:
            self._syncer.stop()
        try:
            self._syncer.run()
        finally:
            self._syncer = None
        if self._relay_log.failure is not None and not self._paused:
            raise self._relay_log.failure

    def _retry_later(self, error: Retryable, failures: int) -> None:
        pace = self._pace
        wait_s = spread_s(failures, pace.retry_s_min, pace.retry_s_max)
        log.warning("source %s: %s; again in %.1f s", self._config.source_id, error, wait_s)
        self.counters.problem, self.counters.code = str(error), str(error.code)
        deadline_s = time.monotonic() + wait_s
        with self._news:
            self._news.wait_for(
                lambda: self._stopped.is_set() or self._edits or time.monotonic() > deadline_s,
                wait_s,
            )
        self.counters.problem = self.counters.code = ""

    def _failed(self, error: PenstockError) -> None:
        counters = self.counters
        counters.state, counters.problem = "failed", getattr(error, "problem", str(error))
        counters.hint, counters.code = getattr(error, "hint", ""), str(error.code)
        counters.overrides = ()
        if isinstance(error, Refused):
            counters.overrides = choices(error, counters.rulings, flags=self._config.as_flags)
            counters.statement_place = place_text(error.place) if error.place else ""
        if isinstance(error, Corrupt) and Path(error.path).is_relative_to(self._relay_log.dir):
            counters.hint = _DAMAGED_HINT
        log.error(
            "source %s waits for an operator: %s%s",
            self._config.source_id,
            error,
            "".join(f"; {each}" for each in counters.overrides),
        )

    def _wait_until_wanted(self, store: SourceStore) -> Checkpoint | None:
        """Wait out a pause or a failure; return the checkpoint to continue from."""

        def is_wanted() -> bool:
            is_idle = self._paused or (self.counters.state == "failed" and self.counters.problem)
            return self._stopped.is_set() or bool(self._edits) or not is_idle

        while True:
            self._change(store)
            if self._paused and self.counters.state != "failed":
                self.counters.state = "paused"
            with self._news:
                self._news.wait_for(is_wanted, _WAIT_S)
            if store.is_lost():
                own_once_back(store, self._stopped)
            if is_wanted() and not self._edits:
                break
        return None if self._stopped.is_set() else load_with_retries(store, self._stopped)


def _begin(checkpoint: Checkpoint) -> Location:
    return Location.parse(checkpoint.restart) if checkpoint.restart else checkpoint.place
