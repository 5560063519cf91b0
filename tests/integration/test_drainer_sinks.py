"""From writers to a downstream through real Pumps, a real Drainer and real Spark tasks."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.ts import seconds_between
from tests.kit.servers.fix_drainer import DrainerProcess
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.pages import asked, scraped
from tests.kit.wait import eventually


@pytest.mark.alone
def test_random_transactions_reach_mariadb_exactly(
    replication: Replication, mariadb: MariadbServer
) -> None:
    drainer = replication.start(mariadb, pumps=3)
    writer = replication.begin()
    writer.transact(150)
    replication.check(drainer)
    # A DDL in the middle of the stream, rows of both schemas around it.
    writer.transact(20)
    writer.execute_ddl("ALTER TABLE shop.item ADD COLUMN extra INT DEFAULT 7 FIRST")
    with replication.client.begin("shop") as txn:
        txn.insert("item", {"id": 10**9, "code": "extra"})
    writer.execute_ddl("ALTER TABLE shop.item DROP COLUMN extra")
    with replication.client.begin("shop") as txn:
        row = dict.fromkeys(("id", "code", "price", "sold", "note"))
        txn.delete("item", {**row, "id": 10**9, "code": "extra"})
    writer.transact(50)
    replication.check(drainer)
    # TRUNCATE gives the table a new id; what was in it must not come back.
    writer.execute_ddl("TRUNCATE TABLE shop.item")
    writer.items.clear()
    drainer.wait_until(writer.bulk(3000))
    replication.check()
    ((checkpoint,),) = mariadb.query("SELECT checkPoint FROM tidb_binlog.checkpoint")
    assert json.loads(checkpoint)["commitTS"] >= writer.last_ts


@pytest.mark.alone
def test_everything_reaches_sqlite_and_a_clean_stop_is_consistent_and_continued(
    replication: Replication,
) -> None:
    drainer = replication.start(pumps=2)
    writer = replication.begin(seed=2)
    writer.transact(80)
    replication.check(drainer)

    pids = [child.pid for child in drainer.children()]
    assert len(pids) >= 3  # The JVM and two tasks.
    assert drainer.stop() == 0
    assert drainer.state() == "paused"
    assert _checkpoint(replication.path)["consistent"] is True
    _assert_gone(pids)
    _assert_private(replication.path)

    writer.transact(40)
    drainer.start()
    replication.check(drainer)
    assert _checkpoint(replication.path)["consistent"] is False


@pytest.mark.thorough
@pytest.mark.alone
def test_the_checkpoint_of_an_idle_cluster_moves_and_an_operator_can_stop_the_drainer(
    replication: Replication,
) -> None:
    drainer = replication.start(synced_check_time=0)
    eventually(lambda: drainer.checkpoint_ts() > 0, 20)
    seen = drainer.checkpoint_ts()
    eventually(lambda: seconds_between(seen, drainer.checkpoint_ts()) > 1, 20)

    status = drainer.status()
    assert (status.node_id, status.state) == ("drainer-1", "online")
    assert "online, ok" in status.details["pump pump-1"]
    url = status.details["status_pages"]
    page = json.loads(asked(url + "status")[1])
    assert (page["Synced"], page["self"]["state"]) == (True, "online")
    assert page["PumpPos"]["pump-1"] >= page["LastTS"] >= seen
    assert json.loads(asked(url + "commit_ts")[1])["data"]["ts"] >= page["LastTS"]
    eventually(lambda: asked(url + "readyz") == (200, "ok\n"), 30)  # Spark starts.
    found = scraped(url)
    assert found["penstock_drainer_state{state=online}"] == 1
    assert 0 <= found["penstock_drainer_lag_seconds"] < 5
    assert found["binlog_drainer_checkpoint_tso"] >= page["LastTS"] >> 18
    assert found["binlog_drainer_pump_position{nodeID=pump-1}"] >= page["LastTS"] >> 18
    (about,) = page["self"]["pumps"]
    assert (about["node_id"], about["condition"]) == ("pump-1", "ok")
    assert about["received_ts"] >= page["LastTS"]
    assert isinstance(page["self"]["lag_s"], float)
    for verb, code, problem in (
        ("state/somebody-else/pause", 404, "not somebody-else"),
        ("state/drainer-1/dance", 400, "invalid action dance"),
    ):
        answered, text = asked(url + verb, "PUT")
        refused = json.loads(text)
        assert (answered, refused["code"], problem in refused["message"]) == (code, 3, True)
    with drainer.channel() as channel:
        stub = penstock_pb2_grpc.DrainerStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(Exception, match="not somebody-else"):
            stub.Pause(penstock_pb2.PauseRequest(node_id="somebody-else"))
        stub.Close(penstock_pb2.CloseRequest(node_id="drainer-1"))
    assert drainer.wait() == 0
    assert drainer.state() == "offline"


@pytest.mark.thorough
def test_spark_ends_with_a_killed_drainer(replication: Replication) -> None:
    drainer = replication.start()
    drainer.wait_for("2 in all")
    pids = [child.pid for child in drainer.children()]
    assert len(pids) >= 3
    drainer.kill()
    _assert_gone(pids)


def test_a_killed_task_is_replaced_and_changes_nothing(replication: Replication) -> None:
    drainer = replication.start()
    drainer.wait_for("2 in all")
    writer = replication.begin(seed=3)
    writer.transact(30)
    _task(drainer).kill()
    writer.transact(60)
    replication.check(drainer)
    drainer.wait_for("is lost")


def _task(drainer: DrainerProcess) -> psutil.Process:
    """Return one resident task: a Python process whose parent is one, too."""
    workers = [child for child in drainer.children() if "drainer.task.work_loop" in child.cmdline()]
    return next(worker for worker in workers if worker.parent() in workers)


def _checkpoint(path: Path) -> dict[str, Any]:
    connection = sqlite3.connect(path)
    try:
        ((text,),) = connection.execute('SELECT checkPoint FROM "tidb_binlog.checkpoint"')
    finally:
        connection.close()
    checkpoint: dict[str, Any] = json.loads(text)
    return checkpoint


def _assert_gone(pids: list[int]) -> None:
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 10)


def _assert_private(downstream: Path) -> None:
    """All that Pumps and the Drainer have created is for their account alone."""
    homes = [each.parent for each in downstream.parent.glob("*/.node")]
    assert len(homes) >= 3, homes
    made = [each for home in homes for each in (home, *home.rglob("*"))]
    made += downstream.parent.glob(f"{downstream.name}*")
    assert {".seg", ".log", ".db"} <= {path.suffix for path in made}
    others = [path for path in made if not path.is_symlink() and path.stat().st_mode & 0o077]
    assert not others
