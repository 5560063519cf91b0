"""The upstream is gone, the downstream is behind, and the relay log has the rest."""

import json
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.local.etcd import EtcdServer
from pumpclient import PumpClient
from tests.kit.servers.fix_drainer import DrainerFactory, DrainerProcess
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication
from tests.kit.wait import eventually
from tests.kit.workloads.random_writer import RandomWriter, State, in_mariadb, in_sqlite

pytestmark = [pytest.mark.fault, pytest.mark.thorough]


class Downstream:
    """SQLite or MariaDB: its rows, its checkpoint, and a way to hold up what is committed."""

    def __init__(self, path: Path, server: MariadbServer | None) -> None:
        self._path = path
        self._server = server
        self.url = server.url if server else f"sqlite:///{path}"

    def state(self) -> State:
        return in_mariadb(self._server) if self._server else in_sqlite(self._path)

    def checkpoint(self) -> dict[str, Any]:
        if self._server:
            ((text,),) = self._server.query("SELECT checkPoint FROM tidb_binlog.checkpoint")
        else:
            with closing(sqlite3.connect(self._path)) as connection:
                query = 'SELECT checkPoint FROM "tidb_binlog.checkpoint"'
                ((text,),) = connection.execute(query).fetchall()
        found: dict[str, Any] = json.loads(text)
        return found

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no transaction commit, as one that is stuck in the middle would not."""
        connection: Any
        if self._server:
            connection = self._server.connect()
            with closing(connection):
                connection.begin()
                connection.query("SELECT * FROM tidb_binlog.checkpoint FOR UPDATE")
                yield
        else:
            with closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                yield
                other.execute("ROLLBACK")


@pytest.fixture(
    params=[
        pytest.param("sqlite", marks=pytest.mark.slow),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def downstream(request: pytest.FixtureRequest, tmp_path: Path) -> Downstream:
    server = request.getfixturevalue("mariadb") if request.param == "mariadb" else None
    return Downstream(tmp_path / "down.db", server)


class Diary:
    """What the writer had written after each commit."""

    def __init__(self, writer: RandomWriter) -> None:
        self.writer = writer
        self.states: dict[int, State] = {}

    def transact(self, transactions: int) -> None:
        for _ in range(transactions):
            commit_ts = self.writer.transact(1)
            self.states[commit_ts] = self.writer.expected()

    def ddl(self, sql: str) -> None:
        commit_ts = self.writer.execute_ddl(sql)
        self.states[commit_ts] = self.writer.expected()

    def at(self, commit_ts: int) -> State:
        return self.states[max(ts for ts in self.states if ts <= commit_ts)]


def bytes_in(folder: Path) -> int:
    """Count what was written: a file is extended ahead of that, by zeros."""
    return sum(len(path.read_bytes().rstrip(b"\0")) for path in folder.glob("*.seg"))


def relayed(folder: Path) -> dict[str, Any]:
    return {
        "relay_log_dir": folder,
        "relay_max_file_size": 2_000,
        "relay_upstream_timeout_s": 2,
        "batch_rows_max": 40,
    }


def left_behind(
    drainer: DrainerProcess, diary: Diary, downstream: Downstream, folder: Path
) -> None:
    """Kill the Drainer while a batch is stuck and more of it is in the relay log."""
    before = bytes_in(folder)
    with downstream.held():
        diary.transact(20)
        diary.ddl("ALTER TABLE shop.note ADD COLUMN extra INT DEFAULT 7")
        diary.ddl("ALTER TABLE shop.note DROP COLUMN extra")
        diary.transact(20)
        eventually(lambda: bytes_in(folder) > before, 90)
        time.sleep(0.5)
        drainer.kill()


@pytest.mark.fault(
    "the Drainer is killed in a batch, then the Pump and etcd are gone",
    "the next start applies the relay log to its end, DDL included, sets `consistent`, exit"
    " code 0; on MariaDB, in the long sweeps on SQLite too",
)
def test_without_the_upstream_the_relay_log_makes_the_downstream_consistent(
    fresh_etcd: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
    downstream: Downstream,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "relay"
    pump = pump_factory(fresh_etcd.url)
    drainer = drainer_factory(fresh_etcd.url, downstream.url, **relayed(folder))
    with PumpClient.connect(fresh_etcd.url) as client:
        diary = Diary(RandomWriter(client, seed=21))
        diary.writer.create()
        diary.transact(60)
        drainer.wait_until(diary.writer.last_ts)
        # What is downstream is not kept, but for the file that is being written.
        eventually(lambda: not (folder / "000000.seg").exists(), 90)
        left_behind(drainer, diary, downstream, folder)
    then = downstream.checkpoint()
    assert then["consistent"] is False
    assert then["commitTS"] < diary.writer.last_ts
    pump.kill()
    fresh_etcd.kill()

    assert drainer.spawn().wait(150) == 0
    log = drainer.log_text()
    assert "applying (" in log
    assert "came from the relay log" in log
    now = downstream.checkpoint()
    assert now["consistent"] is True
    assert now["commitTS"] > then["commitTS"]
    assert downstream.state() == diary.at(now["commitTS"])

    # With a consistent downstream it waits for the upstream, as ever; and continues with it.
    drainer.spawn().wait_for("the downstream is consistent, so wait for it", 120)
    fresh_etcd.start()
    pump.start()
    drainer.wait_until(diary.writer.last_ts)
    assert downstream.state() == diary.writer.expected()
    assert downstream.checkpoint()["consistent"] is False
    assert drainer.stop() == 0
    assert downstream.checkpoint()["consistent"] is True


@pytest.mark.fault(
    "the last group is torn at every byte: a range is missing, before or behind; a real"
    " Drainer's log is damaged or torn"
)
@pytest.mark.slow
def test_a_relay_log_that_lacks_a_range_or_is_damaged_says_so_and_changes_nothing(
    fresh_etcd: EtcdServer, pump_factory: Any, drainer_factory: DrainerFactory, tmp_path: Path
) -> None:
    folder, downstream = tmp_path / "relay", Downstream(tmp_path / "down.db", None)
    pump_factory(fresh_etcd.url)
    drainer = drainer_factory(fresh_etcd.url, downstream.url, **relayed(folder))
    with PumpClient.connect(fresh_etcd.url) as client:
        diary = Diary(RandomWriter(client, seed=22))
        diary.writer.create()
        diary.transact(60)
        drainer.wait_until(diary.writer.last_ts)
        eventually(lambda: not (folder / "000000.seg").exists(), 90)
        left_behind(drainer, diary, downstream, folder)
    fresh_etcd.kill()
    then, state = downstream.checkpoint(), downstream.state()
    oldest, newest = (sorted(folder.glob("*.seg"))[at] for at in (0, -1))

    put_checkpoint(tmp_path / "down.db", {**then, "commitTS": 5})
    assert drainer.spawn().wait(120) == 2
    assert re.search(r"begins after \d+: \(5, \d+\] is missing", drainer.log_text())
    put_checkpoint(tmp_path / "down.db", {**then, "commitTS": then["commitTS"] * 2})
    assert drainer.spawn().wait(120) == 2
    assert "all after the checkpoint" in drainer.log_text()
    put_checkpoint(tmp_path / "down.db", then)

    intact = oldest.read_bytes()
    oldest.write_bytes(intact[:200] + bytes([intact[200] ^ 1]) + intact[201:])
    assert drainer.spawn().wait(120) == 1
    assert re.search(rf"stopped: {oldest}, offset \d+", drainer.log_text())
    assert (downstream.checkpoint(), downstream.state()) == (then, state)
    oldest.write_bytes(intact)

    newest.write_bytes(newest.read_bytes()[:-10])
    assert drainer.spawn().wait(120) == 0
    assert "cut the torn end" in drainer.log_text()
    now = downstream.checkpoint()
    assert now["consistent"] is True
    assert now["commitTS"] > then["commitTS"]
    assert downstream.state() == diary.at(now["commitTS"])


@pytest.mark.fault(
    "the checkpoint is damaged: ahead of every Pump",
    "exit code 2, the range in the log, the row unchanged",
)
@pytest.mark.slow
def test_a_checkpoint_ahead_of_every_pump_is_refused_with_the_range(
    replication: Replication, tmp_path: Path
) -> None:
    downstream = Downstream(tmp_path / "down.db", None)
    drainer = replication.start()
    writer = RandomWriter(replication.connect(), seed=23)
    drainer.wait_until(writer.create())
    assert drainer.stop() == 0
    then = downstream.checkpoint()
    assert then["consistent"] is True
    ahead = then["commitTS"] + (1 << 40)
    put_checkpoint(tmp_path / "down.db", {**then, "commitTS": ahead})
    assert drainer.spawn().wait(120) == 2
    assert re.search(rf"what commits in \(\d+, {ahead}\]", drainer.log_text())
    assert downstream.checkpoint()["commitTS"] == ahead


def put_checkpoint(path: Path, fields: dict[str, Any]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        update = 'UPDATE "tidb_binlog.checkpoint" SET checkPoint = ?'
        connection.execute(update, (json.dumps(fields),))
