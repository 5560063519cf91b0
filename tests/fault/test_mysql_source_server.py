"""What befalls the server that a source reads, through the source to the Pumps: rows come once."""

import datetime as dt
import json
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pymysql
import pytest

from penstock.cluster.node_registry import SOURCES
from penstock.codes import Code
from penstock.errors import NeedsOperator
from pumpclient.mysql.source import command
from tests.kit.crash.slow_proxy import SlowProxy
from tests.kit.servers.binlog_server import (
    MARIADB,
    MYSQL,
    AnyBinlogServer,
    make_server,
    module_server,
    on_servers,
)
from tests.kit.servers.fix_source import LONG_S, SourceRig, bulk, cleared
from tests.kit.wait import eventually, present

pytestmark = pytest.mark.fault


shared = module_server(on_servers(MARIADB))


@pytest.fixture
def server(shared: AnyBinlogServer) -> AnyBinlogServer:
    return cleared(shared)


def wait_for_epoch(rig: SourceRig, epoch: int) -> None:
    """Wait until the source is in another history; fail with what keeps it from that."""

    def is_there() -> bool:
        status = rig.source.status()
        assert rig.source.is_running, rig.source.log_tail()
        assert status.get("state") != "failed", status
        return status.get("epoch") == epoch

    eventually(is_there, LONG_S)


def port_of(proxy: SlowProxy) -> int:
    return int(proxy.url.rpartition(":")[2])


def kill_dumps(server: AnyBinlogServer) -> None:
    for thread in server.dump_threads():
        # It may have ended by itself, as it does when its connection is cut.
        with suppress(pymysql.err.MySQLError):
            server.run(f"KILL {thread}")


@pytest.mark.fault(
    "the connection is reset within transactions, the dump thread is killed",
    "neither gap nor duplicate",
    cases="0 / 20",
)
@pytest.mark.slow
def test_a_connection_that_is_cut_twenty_times_within_transactions_brings_each_once(
    server: AnyBinlogServer, rig: SourceRig
) -> None:
    rng = random.Random(20)
    with SlowProxy(f"127.0.0.1:{server.port}") as proxy:
        source = rig.begin(server, source_port=port_of(proxy))
        source.catch_up(server)
        for round_ in range(20):
            bulk(server, 500, round_ * 1000, 1000)
            server.insert(3, first=round_ * 1000 + 600)
            server.run(f"UPDATE shop.t SET v = 'u' WHERE id % {round_ + 3} = 0")
            if round_ % 2:
                kill_dumps(server)
            else:
                time.sleep(rng.random() * 0.02)
                proxy.reset()
        source.catch_up(server)
        assert source.status()["relay"]["reconnects"] > 0
        assert source.stop() == 0
    assert rig.check(server).repeated == 0


@pytest.mark.fault(
    "the server's clock jumps back behind the moment that a source began at",
    "nothing later is left out, also after a restart",
    cases="2",
)
@pytest.mark.thorough
def test_a_source_that_begins_at_a_moment_leaves_out_what_was_before_it_and_nothing_later(
    server: AnyBinlogServer, rig: SourceRig
) -> None:
    ((now_s,),) = server.query("SELECT UNIX_TIMESTAMP()")
    server.insert(3)
    server.run(f"SET timestamp = {now_s + 999}", "INSERT INTO shop.t VALUES (10, 'a second early')")
    server.run(f"SET timestamp = {now_s + 1000}", "INSERT INTO shop.t VALUES (20, 'in time')")
    moment = dt.datetime.fromtimestamp(now_s + 1000, dt.UTC).isoformat()
    source = rig.begin(server, start=moment)
    source.catch_up(server)
    server.run("INSERT INTO shop.t VALUES (21, 'the clock jumped back')")
    source.catch_up(server)
    source.kill()
    server.run("FLUSH BINARY LOGS", "INSERT INTO shop.t VALUES (22, 'after a restart')")
    source.start()
    source.finish(server)
    assert [row[0] for row in rig.downstream().rows("shop.t")] == [20, 21, 22]


@pytest.mark.fault(
    "the server stops in order, and is killed, in: The same through `penstock source` to a Pump",
    "followed",
    cases="0 / 4",
)
@pytest.mark.slow
def test_a_server_that_restarts_and_is_killed_under_a_source_is_followed(
    server: AnyBinlogServer, rig: SourceRig
) -> None:
    source = rig.begin(server)
    for round_ in range(4):
        # A server that is killed must itself have what its binlog has.
        server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1, GLOBAL sync_binlog = 1")
        server.insert(20, first=round_ * 100)
        source.catch_up(server)
        server.insert(20, first=round_ * 100 + 50)
        if round_ % 2:
            server.restart()
        else:
            server.stop()
            server.start()
    source.catch_up(server)
    rig.check(server)


def replicate(replica: AnyBinlogServer, server: AnyBinlogServer) -> None:
    if server.is_mysql:
        replica.run(
            f"CHANGE REPLICATION SOURCE TO source_host='127.0.0.1', source_port={server.port},"
            f" source_user='{server.user}', source_password='{server.password}',"
            " source_auto_position=1, get_source_public_key=1",
            "START REPLICA",
        )
        return
    replica.run(
        f"CHANGE MASTER TO master_host='127.0.0.1', master_port={server.port},"
        f" master_user='{server.user}', master_password='{server.password}',"
        " master_use_gtid=slave_pos",
        "START SLAVE",
    )


def promote(replica: AnyBinlogServer, server: AnyBinlogServer) -> None:
    """Let the replica have all that the server has, and lead from now on."""
    wait = "WAIT_FOR_EXECUTED_GTID_SET" if server.is_mysql else "MASTER_GTID_WAIT"
    assert replica.query(f"SELECT {wait}('{server.gtids}', {LONG_S})") == [(0,)]
    name = "REPLICA" if server.is_mysql else "SLAVE"
    replica.run(f"STOP {name}", f"RESET {name} ALL")


@pytest.fixture
def replica(tmp_path: Path, server: AnyBinlogServer) -> Iterator[AnyBinlogServer]:
    made = new_replica(tmp_path / "replica", 2, server)
    try:
        yield made
    finally:
        made.stop()


def new_replica(folder: Path, number: int, server: AnyBinlogServer) -> AnyBinlogServer:
    kind = MYSQL if server.is_mysql else MARIADB
    made = make_server(folder, number, "--binlog-row-metadata=FULL", kind=kind)
    made.password = server.password  # One address leads to both.
    made.install()
    made.start()
    made.reset_binlog()
    replicate(made, server)
    return made


@pytest.mark.fault(
    "a promoted replica answers instead; then RESET MASTER there, also under an open dump",
    "another epoch each time, what is known is left out by its GTID; the reset one is"
    " followed once an operator accepts it",
    cases="1 / 2, the source killed at each step",
)
@pytest.mark.parametrize("dies", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_promoted_replica_continues_where_its_master_was_and_a_reset_one_if_accepted(
    dies: bool, server: AnyBinlogServer, replica: AnyBinlogServer, rig: SourceRig
) -> None:
    with SlowProxy(f"127.0.0.1:{server.port}") as proxy:
        source = rig.begin(server, source_port=port_of(proxy))
        server.insert(30)
        server.run("ALTER TABLE shop.t ADD COLUMN n INT", "FLUSH BINARY LOGS")
        server.run("UPDATE shop.t SET n = id WHERE id % 3 = 0")
        source.catch_up(server)
        begun = source.status()["epoch"]
        # These are only read, perhaps, before the other one answers.
        server.run("INSERT INTO shop.t VALUES (100, 'x', 1)", "DELETE FROM shop.t WHERE id = 4")
        if dies:
            source.kill()
        promote(replica, server)
        proxy.redirect(f"127.0.0.1:{replica.port}")
        proxy.reset()
        if dies:
            source.start()
        replica.run("INSERT INTO shop.t VALUES (101, 'y', 2)", "FLUSH BINARY LOGS")
        replica.run("ALTER TABLE shop.t ADD COLUMN m INT", "UPDATE shop.t SET m = 5")
        wait_for_epoch(rig, begun + 1)
        source.catch_up(replica)
        rig.check(replica)
        if dies:
            source.kill()
        replica.reset_binlog()
        replica.run("INSERT INTO shop.t VALUES (102, 'z', 3, 4)")
        proxy.reset()
        if dies:
            source.start()
        assert source.fails()["code"] in (
            str(Code.SERVER_RESET), str(Code.SERVER_POSITION_LOST),
        )  # fmt: skip
        command.ask(["continue", "--accept-gap", "--status-addr", source.address])
        wait_for_epoch(rig, begun + 2)
        source.catch_up(replica)
        source.kill()
        source.start()
        replica.run("DELETE FROM shop.t WHERE id % 5 = 0")
        source.finish(replica)
    rig.check(replica)


@pytest.mark.fault(
    "a replica is promoted; then the relay log is lost, and the source's checkpoint in etcd is that"
    " of before the promotion, or of before the last transactions; the replica or another one"
    " answers",
    "the same replica is followed and nothing comes twice; of another one, or if the checkpoint"
    " lacks transactions, a Drainer stops at the first transaction (PS-6015)",
    cases="1 / 3",
)
@pytest.mark.parametrize(
    "case",
    [
        "another server",
        pytest.param("same server", marks=pytest.mark.thorough),
        pytest.param("older checkpoint", marks=pytest.mark.thorough),
    ],
)
def test_an_epoch_that_comes_again_is_recognised_or_stops_the_drainer(
    case: str, server: AnyBinlogServer, replica: AnyBinlogServer, rig: SourceRig, tmp_path: Path
) -> None:
    key = SOURCES + "db-1"
    with SlowProxy(f"127.0.0.1:{server.port}") as proxy:
        source = rig.begin(server, source_port=port_of(proxy))
        server.insert(5)
        source.finish(server)
        stored = present(rig.etcd.get(key)[0])
        if case == "older checkpoint":
            server.insert(5, first=50)
            source.start()
            source.finish(server)
        promote(replica, server)
        proxy.redirect(f"127.0.0.1:{replica.port}")
        replica.insert(5, first=100)
        if case != "older checkpoint":
            source.start()
            finish_after(stored, rig, replica)
            assert {each[0] for each in rig.downstream().origins} == {
                epoch_in(stored),
                epoch_in(stored) + 1,
            }
        rig.etcd.put(key, stored)
        shutil.rmtree(rig.folder / "relay")
        if case != "another server":
            source.start()
            replica.insert(5, first=200)
            finish_after(stored, rig, replica)
            if case == "same server":
                assert rig.check(replica).repeated > 0
                return
            with pytest.raises(NeedsOperator, match="in an epoch that begins after"):
                rig.downstream()
            return
        other = new_replica(tmp_path / "other", 3, server)
        try:
            promote(other, server)
            other.insert(5, first=300)
            proxy.redirect(f"127.0.0.1:{other.port}")
            source.start()
            finish_after(stored, rig, other)
        finally:
            other.stop()
    with pytest.raises(NeedsOperator, match="in which another server's binlog was read"):
        rig.downstream()


def finish_after(stored: bytes, rig: SourceRig, server: AnyBinlogServer) -> None:
    """Stop the source once it has all that a server has, in the epoch after that of `stored`."""
    wait_for_epoch(rig, epoch_in(stored) + 1)
    rig.source.finish(server)


def epoch_in(stored: bytes) -> int:
    epoch: int = json.loads(stored)["epoch"]
    return epoch


@pytest.mark.fault(
    "a promoted replica that lacks transactions which were read, and has others",
    "stops, naming both histories and what is missing",
    cases="1",
)
@pytest.mark.thorough
def test_a_replica_that_lacks_what_was_read_does_not_take_its_primarys_place(
    server: AnyBinlogServer, replica: AnyBinlogServer, rig: SourceRig
) -> None:
    with SlowProxy(f"127.0.0.1:{server.port}") as proxy:
        source = rig.begin(server, source_port=port_of(proxy))
        server.insert(5)
        promote(replica, server)
        server.insert(3, first=50)
        source.catch_up(server)
        replica.insert(30, first=100)
        proxy.redirect(f"127.0.0.1:{replica.port}")
        proxy.reset()
        status = source.fails()
        assert status["code"] == str(Code.SERVER_RESET)
        assert "another history" in status["problem"]
        assert source.stop() == 0


@pytest.mark.fault(
    "XA transactions are prepared, the source is killed three times; they are committed or"
    " rolled back later, in other files",
    "rows with the XA COMMIT only",
    cases="4",
)
@pytest.mark.thorough
def test_xa_transactions_are_committed_or_rolled_back_long_after_the_source_was_killed(
    server: AnyBinlogServer, rig: SourceRig
) -> None:
    source = rig.begin(server)
    for name, number in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        server.run(
            f"XA START '{name}'", f"INSERT INTO shop.t VALUES ({number}, '{name}')",
            f"UPDATE shop.t SET v = 'xa' WHERE id = {number}",
            f"XA END '{name}'", f"XA PREPARE '{name}'",
        )  # fmt: skip
        server.insert(3, first=number * 100)
    source.catch_up(server)
    source.kill()
    server.run("FLUSH BINARY LOGS", "CREATE TABLE shop.later (id INT PRIMARY KEY)")
    server.run("INSERT INTO shop.later VALUES (1)", "XA COMMIT 'a'")
    source.start()
    server.run("XA ROLLBACK 'b'")
    source.catch_up(server)
    source.kill()
    source.start()
    source.catch_up(server)
    server.run("INSERT INTO shop.later VALUES (2)")
    source.catch_up(server)
    source.kill()
    server.run("XA ROLLBACK 'd'", "XA COMMIT 'c'")
    source.start()
    source.finish(server)
    rig.check(server, "shop.t", "shop.later")


@pytest.mark.fault(
    "files that are needed are purged",
    "`failed`, error 1236 and the hint to load again in `status`; again after `resume`",
    cases="2",
)
@pytest.mark.thorough
def test_files_that_were_purged_leave_a_source_that_says_so_and_can_be_asked(
    server: AnyBinlogServer, rig: SourceRig
) -> None:
    source = rig.begin(server)
    server.insert(3)
    source.catch_up(server)
    source.kill()
    server.run("FLUSH BINARY LOGS")
    server.insert(3, first=10)
    server.run("FLUSH BINARY LOGS")
    server.purge()
    source.start()
    status = source.fails()
    assert "1236" in status["problem"]
    assert "reload --all" in status["hint"]
    assert "1236" in command.ask(["status", "--status-addr", source.address])
    command.ask(["resume", "--status-addr", source.address])
    assert "1236" in source.fails()["problem"]
    assert source.stop() == 0


@pytest.mark.fault(
    "`binlog_row_image=MINIMAL`, in one session and for the server",
    "the rows stop the source with a hint; `check` and a start refuse",
    cases="3",
)
@pytest.mark.thorough
def test_rows_that_lack_columns_stop_a_source_whichever_session_made_them(
    server: AnyBinlogServer, rig: SourceRig, capfd: pytest.CaptureFixture[str]
) -> None:
    server.insert(3)
    source = rig.begin(server)
    source.catch_up(server)
    server.run("SET SESSION binlog_row_image = MINIMAL", "UPDATE shop.t SET v = 'm' WHERE id = 1")
    status = source.fails()
    assert "shop.t" in status["problem"]
    assert "binlog_row_image" in status["problem"] + status["hint"]
    assert source.stop() == 0
    server.run("SET GLOBAL binlog_row_image = MINIMAL")
    try:
        arguments = source.command[source.command.index("--config") :]
        assert command.main(["check", *arguments]) == 2
        assert "FAILED   binlog_row_image: MINIMAL" in capfd.readouterr().out
        source.start()
        eventually(lambda: not source.is_running, LONG_S)
        assert source.wait() == 2
        assert "binlog_row_image is MINIMAL" in source.log_tail()
    finally:
        server.run("SET GLOBAL binlog_row_image = FULL")
