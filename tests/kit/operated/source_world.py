"""Twins of what is around a source: its server's snapshots, the cluster, etcd, and its commands.

What decides is the real thing: `SourceService` with its syncer, journal, recovery, reloads and
overrides, the commands of `penstock source`, the reader and the purger of a relay log on the disk.
A process is killed before any of its calls to the world: from then on all of them fail, and nothing
of its memory is kept.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from penstock.cluster.history import History
from penstock.cluster.node_registry import SOURCES
from penstock.codes import Code
from penstock.ddl import plan_ddl
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.log.files import replace_file
from penstock.node.http_status import HttpStatus
from penstock.schema.model import DdlJob
from penstock.wire.binlog import Binlog, BinlogType, MutationType, Origin
from pumpclient.changes import Changes, ChangeSet
from pumpclient.delivery.group_commit import GroupWriter, PendingTransaction
from pumpclient.errors import Failure, Reason
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.journal import Journal, settle
from pumpclient.mysql.load import state as load_state
from pumpclient.mysql.load.state import LoadState, read_state, write_state
from pumpclient.mysql.protocol.server import BinlogPlace, ServerAddress
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.relay.reader import RelayReader
from pumpclient.mysql.source import command
from pumpclient.mysql.source import service as source_unit
from pumpclient.mysql.source.config import RelayConfig, SourceConfig
from pumpclient.mysql.source.ddl import table_mapping
from pumpclient.mysql.source.ddl.cascades import Cascades
from pumpclient.mysql.source.ddl.session import ServerDefaults
from pumpclient.mysql.source.pages import Pages
from pumpclient.mysql.source.relay_log import Purger
from pumpclient.mysql.source.service import SourceService
from pumpclient.mysql.source.state import checkpoint as checkpoint_store
from pumpclient.mysql.source.state.checkpoint import Checkpoint, SourceStore, SourceTaken
from pumpclient.mysql.source.sync import loading, reload
from pumpclient.mysql.source.sync.reload import Pace
from pumpclient.options import Options
from pumpclient.schema import Schemas
from tests.kit.fakes.etcd import MemoryEtcd
from tests.kit.fakes.pump import ROLLED_BACK, FakePump
from tests.kit.operated.memory_server import SCHEMA, UUID, MemoryServer

T = TypeVar("T")

SOURCE = "db-1"
TURN_S = 0.002
PACE = Pace(retry_s_min=TURN_S, reload_poll_s=TURN_S, reload_retry_s=TURN_S, edit_s_max=5.0)
WITHIN_S = 60.0
_LOADED_AT_ONCE = 3


class Incarnation:
    """One process; from its death on nothing that it asks of the world happens."""

    def __init__(self) -> None:
        self.is_dead = False
        self.calls_left: int | None = None
        """The process is killed before the call after so many."""
        self._lock = threading.Lock()

    def touch(self) -> None:
        """Count a call; raise `Retryable` when the process is dead."""
        with self._lock:
            if self.calls_left is not None and not self.is_dead:
                self.calls_left -= 1
                self.is_dead = self.calls_left < 0
            if self.is_dead:
                raise Retryable("killed", code=Code.ETCD_AWAY)


class Outside:
    """The server, the cluster, etcd, and the source that may run."""

    def __init__(self, folder: Path) -> None:
        self.server = MemoryServer(folder / "relay")
        self.history = History(MemoryEtcd())
        self.committed: list[tuple[int, Binlog | DdlJob]] = []
        """With their commit_ts."""
        self.saved: list[Checkpoint] = []
        self.etcd = _Etcd(self)
        self.ts = 0
        self.pump = _Pump(self)
        self.fence = _Fence()
        self.lock = threading.RLock()
        self.incarnation = Incarnation()
        self.config = SourceConfig(
            source_id=SOURCE, data_dir=folder / "data", relay=RelayConfig(dir=folder / "relay")
        )
        self.unit: SourceService | None = None
        self.ended: PenstockError | None = None
        """Why the process ended by itself."""
        self.while_loading: Callable[[], None] = lambda: None
        """Called by each load of a table, once its snapshot is taken."""

    def next_ts(self, count: int = 1) -> range:
        """Return timestamps that no one else gets."""
        with self.lock:
            self.ts += count
            return range(self.ts - count + 1, self.ts + 1)

    def commit(self, commit_ts: int, what: Binlog | DdlJob) -> None:
        with self.lock:
            self.committed.append((commit_ts, what))


class _Pump(FakePump):
    """Takes what a source writes."""

    def __init__(self, world: Outside) -> None:
        super().__init__(self._taken)
        self._world = world
        self._prewrites: dict[int, Any] = {}
        self._ended: dict[int, int] = {}
        """commit_ts by start_ts, 0 for what was rolled back."""
        self.refuses: int | None = None
        """The Commit after so many others finds its transaction rolled back."""

    def _taken(self, binlog: Any) -> Failure | None:
        try:
            self._world.incarnation.touch()
        except Retryable:
            return Failure(Reason.INVALID, "killed", maybe_stored=False)
        start_ts = binlog.start_ts
        with self._world.lock:
            ended = self._ended.get(start_ts)
            if binlog.tp is BinlogType.PREWRITE:
                self._prewrites[start_ts] = binlog
            elif binlog.tp is BinlogType.ROLLBACK:
                if ended:
                    return Failure(Reason.INVALID, "is committed", maybe_stored=False)
                self._ended[start_ts] = 0
            elif ended is None and self._is_too_late():
                self._ended[start_ts] = 0
                return ROLLED_BACK
            elif ended == 0 or start_ts not in self._prewrites:
                return ROLLED_BACK
            elif ended is None:
                self._ended[start_ts] = binlog.commit_ts
                self._world.commit(binlog.commit_ts, self._prewrites[start_ts])
        return None

    def _is_too_late(self) -> bool:
        if self.refuses is None:
            return False
        self.refuses = self.refuses - 1 if self.refuses else None
        return self.refuses is None

    def roll_back(self, start_ts: int) -> None:
        self._ended.setdefault(start_ts, 0)


class _Fence:
    """Keeps DDL and transactions apart."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._pins = 0

    @contextmanager
    def pin(self) -> Iterator[int]:
        with self._news:
            self._pins += 1
        try:
            yield 0
        finally:
            with self._news:
                self._pins -= 1
                self._news.notify_all()

    @contextmanager
    def raised(self) -> Iterator[None]:
        with self._news:
            assert self._news.wait_for(lambda: not self._pins, WITHIN_S)
            yield


class _Client:
    """A `PumpClient` of one incarnation."""

    def __init__(self, world: Outside) -> None:
        self._world, self._incarnation = world, world.incarnation
        schemas = Schemas(world.history)
        self.session: Any = SimpleNamespace(
            oracle=SimpleNamespace(get_many=world.next_ts),
            schemas=schemas,
            fence=SimpleNamespace(pin=self._pin),
            pumps=SimpleNamespace(
                all=[world.pump],
                pick=lambda start_ts, retry: world.pump,
                report=lambda pump, failure: None,
                report_prewrite=lambda pump, failure: None,
            ),
            deliveries=SimpleNamespace(add=lambda delivery: True),
            options=Options(commit_retry_s=0.001),
            roll_back=self._roll_back,
        )

    def _pin(self) -> Any:
        self.session.schemas.catch_up()
        return self._world.fence.pin()

    def _roll_back(self, pump: _Pump, start_ts: int) -> None:
        with suppress(Retryable):
            self._incarnation.touch()
            pump.roll_back(start_ts)

    def execute_ddl(
        self,
        sql: str,
        schema: str | None = None,
        *,
        origin: Origin | None = None,
        context: Any = None,
    ) -> list[int]:
        world, history = self._world, self._world.history
        with history.lock("twin"):
            self._incarnation.touch()
            last = None if origin is None else history.last_origin(origin.source)
            if origin is not None and last is not None and origin.place <= last.place:
                return []
            catalog = self.session.schemas.catalog()
            found = []
            for job in plan_ddl(sql, schema, catalog, lambda: history.next_ids(1)):
                with world.fence.raised(), world.lock:
                    done = replace(job, finished_ts=world.next_ts()[0], origin=origin)
                    history.append(done)
                    world.commit(done.finished_ts, done)
                found.append(done.finished_ts)
        self._incarnation.touch()  # It is done, and no one heard of it.
        self.session.schemas.catch_up()
        return found

    def last_ddl_origin(self, source: str) -> Origin | None:
        self._incarnation.touch()
        return self._world.history.last_origin(source)

    def close(self) -> None:
        """Keep nothing open."""


class _Etcd(MemoryEtcd):
    """A dead process gets no answer; every checkpoint that is stored is kept."""

    def __init__(self, world: Outside) -> None:
        super().__init__()
        self._world = world

    def call(self, work: Callable[[], T], *, may_be_late: bool = False) -> T:
        self._world.incarnation.touch()
        return super().call(work)

    def _apply(self, operations: Sequence[Any]) -> list[Any]:
        answers = super()._apply(operations)
        stored = self.keys.get(key := SOURCES + SOURCE)
        if stored is not None and stored.mod_revision == self.revision:
            self._world.saved.append(Checkpoint.parse(stored.value, key))
        return answers

    def end_leases(self) -> None:
        """Forget what a process that was killed had for a time."""
        for key in [key for key, kv in self.keys.items() if kv.lease]:
            self.put_by_hand(key, None)


class _Store(SourceStore):
    """A process that was killed knows that it has nothing any more."""

    world: Outside

    def own_again(self) -> None:
        raise SourceTaken("killed", code=Code.SOURCE_TAKEN)

    def is_ours(self) -> bool:
        return super().is_ours() and not self.world.incarnation.is_dead

    def is_lost(self) -> bool:
        return super().is_lost() or self.world.incarnation.is_dead


class _Relay:
    """The relay log's end, which the server writes itself."""

    def __init__(self, world: Outside, needed: Any) -> None:
        self.failure: PenstockError | None = None
        self.dir = world.config.relay.dir
        self.growth = world.server.growth
        self.receiver = self
        self.purger = Purger(self.dir, needed)

    def begin(self, place: Location, accepts: str) -> _Relay:
        return self

    def status(self) -> Any:
        unused = {"relayed_bytes": 0, "bytes_per_s": 0, "reconnects": 0, "problem": "", "gtids": ""}
        here = {"connected": True, "end": self.growth.end, "behind_s": 0.0, "server": None}
        return SimpleNamespace(**unused, **here)

    def close(self) -> None:
        """Keep nothing open."""


class _Cascades(Cascades):
    def look_at_server(self, address: Any, left_out: Any = (), only: Any = None) -> None:
        """Find none: the tables have no foreign keys."""


class _Load:
    """Loads one table from a copy of it, with the origins and the state of a real load."""

    def __init__(
        self, address: Any, client: _Client, path: Path, options: Any, *, is_stopped: Any
    ) -> None:
        self._world = client._world
        self._client, self._path, self._options = client, path, options
        self._journal, self._is_stopped = path.with_suffix(".journal"), is_stopped

    def run(self, source: str, epoch: int) -> LoadState:
        server, ((schema, name),) = self._world.server, self._options.only
        with server.lock:
            found, end = server.tables.get(name), server.end
            rows = [] if found is None else [dict(row) for row in found.rows.values()]
            columns = [] if found is None else list(found.columns)
            sql = "" if found is None else found.definition(name)
        place = BinlogPlace(str(end.file), end.position)
        self._options.before_changes(place, frozenset() if found else self._options.only)
        state = read_state(self._path)
        assert state is not None
        state = state.next_attempt(place)
        write_state(self._path, state)
        self._world.while_loading()
        numbers = iter(range(1, 1 << 20))
        for each in (f"DROP TABLE IF EXISTS {schema}.{name}", *filter(None, [sql])):
            self._client.execute_ddl(each, origin=state.origin(next(numbers)))
        session = self._client.session
        journal = Journal(self._journal)
        settle(session, journal)
        writer = GroupWriter(session, journal, may_commit=self._options.may_commit, decides=False)
        try:
            for begin in range(0, len(rows), _LOADED_AT_ONCE):
                if self._is_stopped():
                    raise Retryable("stopped", code=Code.ETCD_AWAY)
                table = session.schemas.table(schema, name)
                changes = ChangeSet(1 << 20, None)
                noted = changes.tables[table.info.id] = Changes(table)
                for row in rows[begin : begin + _LOADED_AT_ONCE]:
                    values = [row.get(column) for column in columns]
                    noted.note(MutationType.INSERT, table.codec.encode_insert(values))
                writer.submit(
                    [PendingTransaction(changes, state.origin(next(numbers)))], lambda: None
                )
                writer.drain()
        finally:
            writer.close()
            journal.close()
        done = replace(state, loaded={(schema, name): place}, is_complete=True)
        done = replace(done, rows={(schema, name): len(rows)} if found else {})
        write_state(self._path, done)
        return done


def _served(world: Outside) -> Any:
    def answer(status_addr: str, method: str, path: str) -> str:
        if world.unit is None or world.incarnation.is_dead or world.ended is not None:
            raise Retryable("no source answers", code=Code.ETCD_AWAY)
        pages = HttpStatus("twin")
        Pages(world.unit, SOURCE).add_to(pages)
        for route in pages._routes:
            names = route.match(path) if route.method == method else None
            if names is not None:
                return str(asyncio.run(route.page(names)).body)  # type: ignore[arg-type]
        raise AssertionError(f"no page {method} {path}")

    return answer


def _journal_of(world: Outside) -> type[Journal]:
    class LivingJournal(Journal):
        """A journal that only a process that is alive writes."""

        def __init__(self, path: Path) -> None:
            self._incarnation = world.incarnation
            super().__init__(path)

        def _write(self, record: dict[str, object], *, is_durable: bool = False) -> None:
            self._incarnation.touch()
            super()._write(record, is_durable=is_durable)

        def settled(self) -> None:
            self._incarnation.touch()
            super().settled()

    return LivingJournal


def _server_of(world: Outside, patch: pytest.MonkeyPatch) -> None:

    @contextmanager
    def session(address: Any) -> Iterator[None]:
        yield

    def define(client: _Client, connection: Any, name: tuple[str, str], target: Any) -> None:
        with world.server.lock:
            found = world.server.tables.get(name[1])
            if found is None:
                raise NeedsOperator(
                    f"{'.'.join(name)} is no table", hint="leave it out", code=Code.DDL_UNSUPPORTED
                )
            client.execute_ddl(found.definition(name[1], "IF NOT EXISTS "))

    def names(connection: Any) -> list[tuple[str, str]]:
        return [(SCHEMA, name) for name in world.server.tables]

    def relay(config: Any, address: Any, stream: Any, needed: Any, ended: Any) -> _Relay:
        return _Relay(world, needed)

    cascades = _Cascades("accept", lambda *_: False, None, lambda: True)
    begin = Checkpoint(epoch=1, server=UUID, done="mysql-bin|000001.000001:4")
    patch.setattr(ServerAddress, "session", session)
    patch.setattr(source_unit, "checked_flavor", lambda address: Flavor.MARIADB)
    patch.setattr(source_unit, "first_checkpoint", lambda *_: begin)
    patch.setattr(source_unit, "RelayLog", relay)
    patch.setattr(source_unit, "Cascades", SimpleNamespace(of=lambda config: cascades))
    patch.setattr(reload, "Load", _Load)
    patch.setattr(loading, "server_tables", names)
    patch.setattr(table_mapping, "define_table", define)
    patch.setattr(table_mapping, "database_collation", lambda *_: "utf8mb4_general_ci")
    defaults = ServerDefaults()
    patch.setattr(table_mapping, "server_defaults", lambda connection: defaults)


@contextmanager
def twins(world: Outside) -> Iterator[None]:
    """Let a source's own code meet the twins of this world, and lose no time."""

    def replaced(path: Path, data: bytes) -> None:
        world.incarnation.touch()
        replace_file(path, data)

    class Store(_Store):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self.world = world

    def reader(*args: Any) -> RelayReader:
        return RelayReader(*args, poll_s=TURN_S)

    etcd = SimpleNamespace(connect=lambda *_, **__: world.etcd)
    client = SimpleNamespace(connect=lambda *_, **__: _Client(world))
    with pytest.MonkeyPatch.context() as patch:
        _server_of(world, patch)
        for module in (source_unit, command):
            patch.setattr(module, "etcd", etcd)
            patch.setattr(module, "SourceStore", Store)
        for module in (source_unit, reload):
            patch.setattr(module, "RelayReader", reader)
            patch.setattr(module, "Journal", _journal_of(world))
        for module in (checkpoint_store, load_state):
            patch.setattr(module, "replace_file", replaced)
        patch.setattr(source_unit, "PumpClient", client)
        patch.setattr(command, "_answer", _served(world))
        yield
