"""Tasks commit partitions on a real MariaDB, as ordered by a Drainer's strategy.

The tasks are threads of this process with a real connection to the dispatcher and to the server;
their SQL counts how often it runs.
"""

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from drainer.apply.batches import FetchBatch, Generation
from drainer.apply.in_tasks import InTasks
from drainer.apply.strategies import Begins, Prepared
from drainer.settings.targets import MYSQL_PASSWORD, MysqlTarget, target_of
from drainer.sinks.checkpoint import Checkpoint, TakenOver
from drainer.sinks.mysql import side_connections, task_commits
from drainer.sinks.mysql.sink import MysqlSink
from drainer.sinks.mysql.task_commits import TaskCommits
from drainer.sinks.opening import SinkThread
from drainer.sinks.protocol import Refused
from drainer.spark.dispatcher import Dispatcher
from drainer.task.partitions import Partitions
from drainer.task.row_fetch import Cut, Facts, decode_cut, encode_cut
from drainer.task.sql.digests import Digests
from drainer.task.work_loop import _answer_checked, serve
from penstock.errors import Malformed, NeedsOperator
from penstock.local.sql_server import SqlServer, mariadb_binlog_options
from tests.integration.test_apply_mariadb import create
from tests.integration.test_parallel_mariadb import START, opened
from tests.kit.crash.disks import small_volume
from tests.kit.servers.binlog_server import MARIADB, OF_EACH_FLAVOR, numbers, on_downstreams
from tests.kit.servers.fix_mariadb import MariadbServer, installed
from tests.kit.servers.fix_mysql import SINKS
from tests.kit.wait import until


@pytest.fixture(autouse=True)
def executors_environment(mariadb_server: MariadbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the password that a task's settings lack."""
    monkeypatch.setenv(MYSQL_PASSWORD, target(mariadb_server.url).password)


def adds(*ids: int) -> list[bytes]:
    """Statements that show how often they have run."""
    return [f"UPDATE parallel.t SET v = v + 1 WHERE id = {i}".encode() for i in ids]


WORK = Partitions([[adds(1, 2)], [adds(3), adds(4)]], adds(5))
WORKS = {
    b"first": Partitions([[adds(1)], [adds(2)]], adds(5)),
    b"second": Partitions([[adds(3), adds(4)]], adds(5)),
}
"""Other work, by the unit."""


NOTHING = Digests({}, np.zeros(0, np.uint64))


async def applied(batch: Prepared | Begins, ts: int) -> None:
    """Begin and end a batch."""
    end = await batch.begin(Checkpoint(ts, 1)) if isinstance(batch, Begins) else batch
    await end(Checkpoint(ts, 1))


class Task(threading.Thread):
    """A resident task that makes `work` of every unit."""

    def __init__(
        self, where: Dispatcher, number: int, settings: TaskCommits, work: Partitions = WORK
    ) -> None:
        super().__init__(daemon=True)
        self.kept: dict[str, Partitions] = {}
        self.work = work
        self.units = 0
        self.steps: list[str] = []
        """The beginnings and ends of the orders it has obeyed."""
        self.orders: Any = settings.open(self.kept, number)
        self._address = where.host, where.port
        self._token, self._number = where.token, number
        self.start()

    def run(self) -> None:
        def answer(payload: bytes) -> bytes:
            return _answer_checked(self.orders, self.made, payload)

        self._commit, self.orders.commit = self.orders.commit, self._recorded
        with suppress(OSError):
            serve(self._address, self._token, self._number, answer, orders=self.orders)

    def made(self, payload: bytes) -> bytes:
        self.units += 1
        work = WORKS.get(payload, self.work)
        self.kept[work.content] = work
        return encode_cut(work, Facts(rows=5), NOTHING)

    def _recorded(self, order: bytes) -> bytes:
        self.steps.append("begins")
        answer: bytes = self._commit(order)
        self.steps.append("ends")
        return answer

    def dies_at(self, step: str) -> None:
        """Let the connection end before or after the next commit, which is then not reported."""
        commit = self.orders.commit

        def dying(order: bytes) -> bytes:
            if step == "after":
                commit(order)
            self.orders._closing.wait(60)  # Until its connection has ended.
            return b""

        self.orders.commit = dying


class Batch(FetchBatch):
    """A batch whose unit is a text."""

    def __init__(self, unit: bytes = b"unit") -> None:
        self.unit = unit
        self.facts = Facts()
        self.displaced = 0

    def displacing(self) -> FetchBatch:
        self.displaced += 1
        return self

    async def cut(
        self, generation: Generation, connections: int, avoids: Any = ()
    ) -> tuple[Cut, Any]:
        answer, task = await generation.dispatcher.run_on(self.unit, (1, b"catalog"), avoids)
        return decode_cut(answer)[0], task


class Rig:
    """A Drainer's sink and dispatcher."""

    def __init__(self, server: Any, dispatcher: Dispatcher, thread: SinkThread) -> None:
        self.server = server
        self.dispatcher = dispatcher
        self.thread = thread
        self.sink: MysqlSink = opened(server)
        self.tasks: list[Task] = []

    async def add(self, **changes: Any) -> Task:
        work = changes.pop("work", WORK)
        settings = changes.pop("settings", None) or TaskCommits.into(target(self.server.url))
        self.tasks.append(Task(self.dispatcher, len(self.tasks), settings, work))
        await until(lambda: self.dispatcher.tasks == len(self.tasks))
        return self.tasks[-1]

    def strategy(self, silent_s: float = 60, start: Checkpoint = START) -> InTasks:
        generation = Generation(self.dispatcher, dialect="mysql")
        return InTasks(
            generation, self.sink, self.thread, connections=2, start=start, silent_s=silent_s
        )

    async def apply(self, ts: int, silent_s: float = 60) -> None:
        await applied(await self.strategy(silent_s).prepare(Batch()), ts)

    def counts(self) -> list[int]:
        return [v for (v,) in self.server.query("SELECT v FROM parallel.t ORDER BY id")]

    def checkpoint(self) -> Checkpoint:
        ((text,),) = self.server.query("SELECT checkPoint FROM tidb_binlog.checkpoint")
        return Checkpoint.from_json(text)


def target(url: str) -> MysqlTarget:
    return cast(MysqlTarget, target_of(url))


@asynccontextmanager
async def rigged(server: Any, tasks: int = 2) -> AsyncIterator[Rig]:
    create(server, "CREATE TABLE t (id INT PRIMARY KEY, v INT, u INT UNIQUE)", "parallel")
    server.query("INSERT INTO parallel.t VALUES (1,0,1),(2,0,2),(3,0,3),(4,0,4),(5,0,5)")
    dispatcher, thread = Dispatcher(), SinkThread()
    await dispatcher.start()
    rig = Rig(server, dispatcher, thread)
    try:
        for _ in range(tasks):
            await rig.add()
        yield rig
    finally:
        await dispatcher.close()
        for task in rig.tasks:
            await asyncio.to_thread(task.join, 10)
            assert not task.is_alive()
        rig.sink.close()
        assert await thread.close(10)


async def test_a_task_commits_all_partitions_and_the_drainer_the_last_statements(
    mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rigged(mariadb) as rig:
        ran: list[Any] = []
        monkeypatch.setattr(rig.sink._side, "run_partitions", ran.append)
        for ts in (7, 8):
            await rig.apply(ts)
        assert rig.counts() == [2, 2, 2, 2, 2]
        assert not ran
        assert (rig.checkpoint().commit_ts, rig.checkpoint().is_between) == (8, False)
        assert not any(task.kept for task in rig.tasks), "SQL that is committed is released"
        fences = mariadb.query("SELECT part, batch FROM tidb_binlog.checkpoint_fence ORDER BY part")
        assert fences == [(0, 8), (1, 8), (2, 8)]


@pytest.mark.fault(
    "a task is lost before it commits its partitions, or after it and before its report",
    "another task makes the same SQL and commits what is missing; nothing runs twice",
    cases="2",
)
@pytest.mark.parametrize("step", ["before", "after"])
async def test_a_lost_task_s_partitions_are_committed_by_another_one_and_once(
    mariadb: MariadbServer, step: str
) -> None:
    async with rigged(mariadb) as rig:
        commit = await rig.strategy().prepare(Batch())
        (holder,) = (task for task in rig.tasks if task.units)
        holder.dies_at(step)
        committing = asyncio.create_task(applied(commit, 7))
        if step == "after":
            await until(lambda: rig.counts()[3] == 1)
        for connection in list(rig.dispatcher._tasks):
            if connection.partition == rig.tasks.index(holder):
                connection.writer.close()
        await committing
        assert rig.counts() == [1, 1, 1, 1, 1]
        assert rig.dispatcher.lost_tasks == 1


@pytest.mark.fault(
    "a task is silent with locks held, so a second task gets the same order",
    "one of them commits, the other finds it done",
    cases="1",
)
async def test_an_order_that_two_tasks_have_is_done_once(mariadb: MariadbServer) -> None:
    async with rigged(mariadb) as rig:
        with closing(mariadb.connect()) as connection:
            connection.begin()
            connection.query("UPDATE parallel.t SET u = 30 WHERE id = 3")
            committing = asyncio.create_task(rig.apply(7, silent_s=0.3))
            await until(lambda: all(task.steps == ["begins"] for task in rig.tasks))
            connection.rollback()
        await committing
        # The second one may still be waiting for the first one's locks.
        await until(lambda: all(task.steps == ["begins", "ends"] for task in rig.tasks))
        assert rig.counts() == [1, 1, 1, 1, 1]


@pytest.mark.fault(
    "a task waits for a row's lock until the server gives up, loses its connection there, or is"
    " chosen in a deadlock",
    "it tries again, and the status of the Drainer shows why; nothing runs twice",
    cases="3",
)
@pytest.mark.parametrize("harm", ["lock wait", "connection", "deadlock"])
async def test_a_task_tries_again_and_reports_what_it_waits_for(
    mariadb: MariadbServer, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    wait_s = 60 if harm == "deadlock" else 1
    async with rigged(mariadb, tasks=0) as rig:
        url = f"{mariadb.url}?params=innodb_lock_wait_timeout={wait_s}"
        await rig.add(settings=TaskCommits.into(target(url)))
        mariadb.query("CREATE TABLE parallel.other (n INT)")
        with closing(mariadb.connect()) as connection:
            connection.begin()
            # The server ends the transaction that has changed less.
            connection.query(f"INSERT INTO parallel.other SELECT seq FROM {numbers(1000)}")
            connection.query("UPDATE parallel.t SET u = 20 WHERE id = 2")
            committing = asyncio.create_task(rig.apply(7))
            if harm != "lock wait":
                await until(lambda: len(waiting(mariadb)) == 1, 30)
            if harm == "connection":
                for number in waiting(mariadb):
                    with suppress(Exception):
                        mariadb.query(f"KILL {number}")
            elif harm == "deadlock":
                connection.query("UPDATE parallel.t SET u = 10 WHERE id = 1")
            await until(lambda: rig.dispatcher.downstream_waits_for != "", 30)
            assert "Spark task 0 waits for the downstream" in caplog.text
            assert harm != "deadlock" or "Deadlock found" in caplog.text
            assert rig.counts() == [0, 0, 0, 0, 0]
            connection.rollback()
        await committing
        await until(lambda: rig.dispatcher.downstream_waits_for == "")
        assert rig.counts() == [1, 1, 1, 1, 1]


@pytest.mark.fault(
    "one partition of a task finds no room for its table, or for its transaction's temporary file,"
    " on a disk that is full",
    "the other one is committed; it tries again, and the status of the Drainer shows why; the batch"
    " is whole once the disk has room; nothing runs twice",
    cases="2",
)
@pytest.mark.mariadb
@pytest.mark.parametrize("full", ["table", "temporary file"])
async def test_a_partition_that_finds_the_disk_full_is_committed_once_the_disk_has_room(
    full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_volume(tmp_path / "volume", 32 << 20) as volume:
        options: tuple[str, ...] = ()
        place = f" DATA DIRECTORY='{volume.path}'"
        if full == "temporary file":
            options, place = (*mariadb_binlog_options(), f"--tmpdir={volume.path}"), ""
        server = MariadbServer(tmp_path / "server", options=options)
        with contextmanager(installed)(server):
            monkeypatch.setenv(MYSQL_PASSWORD, server.password)
            async with rigged(server, tasks=0) as rig:
                server.query(f"CREATE TABLE parallel.large (id INT, text LONGTEXT){place}")
                large = (
                    f"INSERT INTO parallel.large SELECT seq, REPEAT('x', 8000) FROM {numbers(500)}"
                )
                work = Partitions([[[*adds(1), large.encode()], adds(2)]], adds(5))
                await rig.add(work=work)
                volume.fill()
                committing = asyncio.create_task(rig.apply(7))
                await until(lambda: rig.dispatcher.downstream_waits_for != "", 30)
                await until(lambda: rig.counts() == [0, 1, 0, 0, 0], 30)
                assert re.search("is full|No space left", rig.dispatcher.downstream_waits_for)
                volume.free()
                await committing
                assert rig.counts() == [1, 1, 0, 0, 1]
                assert server.query("SELECT COUNT(*) FROM parallel.large") == [(500,)]
                assert not rig.checkpoint().is_between


def waiting(server: MariadbServer) -> list[int]:
    server.query("DO SLEEP(0.2)")  # InnoDB's list is renewed only if nobody has read it for 0.1 s.
    found = server.query(
        "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx"
        " WHERE trx_state = 'LOCK WAIT'"
    )
    return [number for (number,) in found]


async def test_a_refused_statement_stops_the_batch_with_the_downstream_s_reason(
    mariadb: MariadbServer,
) -> None:
    broken = Partitions([[[b"INSERT INTO parallel.t VALUES (1, 1, 9)"], adds(3)]], [])
    async with rigged(mariadb, tasks=0) as rig:
        await rig.add(work=broken)
        with pytest.raises(Refused, match=r"Spark task 0: the downstream refused.*entry '1'"):
            await rig.apply(7)
        assert rig.checkpoint().commit_ts == 0
        assert rig.checkpoint().applying_ts == 7


@pytest.mark.fault(
    "a task gets the order of a Drainer that was replaced meanwhile",
    "fenced off; it commits nothing",
    cases="1",
)
async def test_a_task_of_a_replaced_drainer_commits_nothing(
    mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rigged(mariadb) as rig:
        strategy = rig.strategy()
        commit = await strategy.prepare(Batch())
        begin = rig.sink.begin_partitions

        def overtaken(*arguments: Any) -> Any:
            passage = begin(*arguments)
            opened(mariadb).close()
            return passage

        monkeypatch.setattr(rig.sink, "begin_partitions", overtaken)
        with pytest.raises(TakenOver, match="fenced off"):
            await applied(commit, 7)
        assert rig.counts() == [0, 0, 0, 0, 0]


async def test_a_task_that_has_dropped_the_sql_makes_it_again(mariadb: MariadbServer) -> None:
    async with rigged(mariadb, tasks=1) as rig:
        commit = await rig.strategy().prepare(Batch())
        rig.tasks[0].kept.clear()
        await applied(commit, 7)
        assert rig.counts() == [1, 1, 1, 1, 1]
        assert rig.tasks[0].units == 2


async def test_two_tasks_that_make_different_sql_of_a_batch_stop_the_drainer(
    mariadb: MariadbServer,
) -> None:
    async with rigged(mariadb, tasks=1) as rig:
        commit = await rig.strategy().prepare(Batch())
        rig.tasks[0].kept.clear()
        rig.tasks[0].work = Partitions([[adds(1), adds(2)]], [])
        with pytest.raises(Malformed, match="different SQL"):
            await applied(commit, 7)
        assert rig.counts() == [0, 0, 0, 0, 0]


async def test_after_a_restart_a_batch_in_progress_is_made_to_displace(
    mariadb: MariadbServer,
) -> None:
    async with rigged(mariadb) as rig:
        strategy = rig.strategy(start=Checkpoint(6, 1, applying_ts=7))
        for ts, displaced in ((7, 1), (8, 0)):
            batch = Batch()
            prepared = await strategy.prepare(batch)
            assert isinstance(prepared, Begins) != bool(displaced), "it is applied alone"
            await applied(prepared, ts)
            assert batch.displaced == displaced


@pytest.mark.parametrize("late", ["first", "second"])
async def test_two_batches_are_committed_at_once_and_end_in_order(
    mariadb: MariadbServer, late: str
) -> None:
    """The end of the first one does not wait for the locks of the second one's partitions."""
    async with rigged(mariadb) as rig:
        strategy = rig.strategy()
        first, second = [await strategy.prepare(Batch(unit)) for unit in (b"first", b"second")]
        assert isinstance(first, Begins)
        assert isinstance(second, Begins)
        with closing(mariadb.connect()) as connection:
            connection.begin()
            connection.query(
                f"UPDATE parallel.t SET u = 30 WHERE id = {2 if late == 'first' else 3}"
            )
            one = asyncio.create_task(first.begin(Checkpoint(7, 1)))
            await until(lambda: rig.counts()[0] == 1)
            other = asyncio.create_task(second.begin(Checkpoint(8, 1)))
            await until(lambda: rig.counts()[3] == 1)
            assert (rig.checkpoint().commit_ts, rig.checkpoint().applying_ts) == (0, 8)
            if late == "second":
                await (await one)(Checkpoint(7, 1))
                assert (rig.checkpoint().commit_ts, rig.checkpoint().applying_ts) == (7, 8)
                assert not other.done()
            else:
                await other
                assert not one.done()
            connection.rollback()
        if late == "first":
            await (await one)(Checkpoint(7, 1))
        await (await other)(Checkpoint(8, 1))
        assert rig.counts() == [1, 1, 1, 1, 2]
        assert (rig.checkpoint().commit_ts, rig.checkpoint().is_between) == (8, False)
        fences = mariadb.query("SELECT part, batch FROM tidb_binlog.checkpoint_fence ORDER BY part")
        apart, reused = [(0, 7), (1, 7), (4, 8), (5, 8)], [(0, 8), (1, 8)]
        assert fences == apart or (late == "second" and fences == reused)


def account(server: MariadbServer, password: str) -> None:
    server.query(f"CREATE OR REPLACE USER tasks@'127.0.0.1' IDENTIFIED BY '{password}'")
    server.query("GRANT ALL ON *.* TO tasks@'127.0.0.1'")


def kill_sessions(server: MariadbServer) -> None:
    for (number,) in server.query(
        "SELECT id FROM information_schema.processlist WHERE user = 'tasks'"
    ):
        server.query(f"KILL {number}")


async def test_a_password_that_changes_between_two_batches_is_read_from_its_file(
    mariadb: MariadbServer, tmp_path: Path
) -> None:
    """The task's connection is lost, too: it must open another one."""
    file = tmp_path / "password"
    settings = TaskCommits.into(
        target(f"mysql://tasks@127.0.0.1:{mariadb.port}/?password-file={file}")
    )
    async with rigged(mariadb, tasks=0) as rig:
        await rig.add(settings=settings)
        for ts, password in ((7, "one"), (8, "two")):
            account(mariadb, password)
            file.write_text(password + "\n")
            kill_sessions(mariadb)
            await rig.apply(ts)
        assert rig.counts() == [2, 2, 2, 2, 2]


async def test_without_a_password_in_its_environment_a_task_refuses_the_first_unit(
    mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MYSQL_PASSWORD, raising=False)
    account(mariadb, "secret")
    settings = TaskCommits.into(target(f"mysql://tasks:secret@127.0.0.1:{mariadb.port}/"))
    assert "secret" not in repr(settings)
    assert settings.target.current_password() == ""
    async with rigged(mariadb, tasks=0) as rig:
        await rig.add(settings=settings)
        with pytest.raises(NeedsOperator, match="MYSQL_PSWD is not set") as caught:
            await rig.apply(7)
        assert "password-file" in caught.value.hint
        monkeypatch.setenv(MYSQL_PASSWORD, "secret")
        await rig.apply(8)
        assert rig.counts() == [1, 1, 1, 1, 1]


@pytest.mark.thorough
async def test_a_task_s_connection_is_encrypted_as_the_settings_demand(
    mysql: SqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = mysql.home / "data" / "ca.pem"
    monkeypatch.setenv(MYSQL_PASSWORD, "secret")
    async with rigged(mysql, tasks=0) as rig:
        mysql.query("CREATE USER tasks@'127.0.0.1' IDENTIFIED BY 'secret' REQUIRE SSL")
        mysql.query("GRANT ALL ON *.* TO tasks@'127.0.0.1'")
        url = f"mysql://tasks:secret@127.0.0.1:{mysql.port}/?ssl-ca={ca}&ssl-verify=ca"
        await rig.add(settings=TaskCommits.into(target(url)))
        await rig.apply(7)
        assert rig.counts() == [1, 1, 1, 1, 1]


@pytest.mark.fault(
    "a task is frozen between the statements of a partition and its commit",
    "the server ends its transaction; another task, or another Drainer, passes",
    cases="1",
)
@pytest.mark.parametrize("kind", on_downstreams(MARIADB, kinds=OF_EACH_FLAVOR))
async def test_the_server_ends_the_transaction_of_a_task_that_stands_still(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = request.getfixturevalue(SINKS[kind])
    monkeypatch.setenv(MYSQL_PASSWORD, server.password)
    monkeypatch.setattr(task_commits, "IDLE_S", 2)
    frozen, thaw = threading.Event(), threading.Event()

    def stands() -> None:
        if not frozen.is_set():
            frozen.set()
            thaw.wait(60)

    monkeypatch.setattr(side_connections, "partition_changed", stands)
    async with rigged(server) as rig:
        committing = asyncio.create_task(rig.apply(7, silent_s=0.5))
        await until(frozen.is_set, 30)
        await committing
        assert rig.counts() == [1, 1, 1, 1, 1]
        thaw.set()
        (slow,) = (task for task in rig.tasks if task.kept)
        await until(lambda: not slow.kept)
        assert rig.counts() == [1, 1, 1, 1, 1]
