"""Tasks of a real Spark cluster commit into a real MariaDB, with the executors' own credentials."""

from pathlib import Path
from typing import Any

import pytest

from drainer.settings.targets import MYSQL_PASSWORD
from tests.fault.test_tasks_apply import ROWS, TASKS_S
from tests.kit.servers.fix_drainer import DrainerProcess
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.fix_spark import HarmedCluster, committed_by_tasks, kill_tree
from tests.kit.workloads.random_writer import RandomWriter

pytestmark = [pytest.mark.fault, pytest.mark.slow]

FIRST, SECOND = "the-first-secret", "the-second-secret"


def account(server: MariadbServer) -> str:
    """Create an account with the first password; return its URL without one."""
    server.query(f"CREATE OR REPLACE USER tasks@'127.0.0.1' IDENTIFIED BY '{FIRST}'")
    server.query("GRANT ALL ON *.* TO tasks@'127.0.0.1'")
    return f"mysql://tasks@127.0.0.1:{server.port}/"


def change_password(server: MariadbServer) -> None:
    server.query(f"ALTER USER tasks@'127.0.0.1' IDENTIFIED BY '{SECOND}'")


def kill_sessions(server: MariadbServer) -> None:
    asked = "SELECT id FROM information_schema.processlist WHERE user = 'tasks'"
    for (number,) in server.query(asked):
        server.query(f"KILL {number}")


def way(cluster: HarmedCluster) -> dict[str, Any]:
    return {"spark_master": cluster.url, "spark_tasks": 2, "apply_mode": "parallel"}


def commit(drainer: DrainerProcess, writer: RandomWriter, server: MariadbServer) -> None:
    """Write a batch and return once tasks have committed it."""
    before_ts = committed_by_tasks(server) if writer.items else 0
    drainer.wait_until(writer.bulk(ROWS))
    assert committed_by_tasks(server) > before_ts


def holders(folder: Path) -> list[Path]:
    """Return the files below a folder in which a password is to be found."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    secrets = [each.encode() for each in (FIRST, SECOND)]
    return [path for path in files if any(each in path.read_bytes() for each in secrets)]


@pytest.mark.fault(
    "on a Spark cluster, the downstream's password and its file change between two batches, and all"
    " sessions are lost",
    "executors and Drainer read the file again",
    cases="1",
)
def test_a_password_that_changes_between_two_batches_reaches_executors_by_its_file(
    replication: Replication, spark_cluster: HarmedCluster, mariadb: MariadbServer, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{FIRST}\n")
    replication.start(mariadb, started=False)
    url = f"{account(mariadb)}?password-file={file}"
    drainer = replication.drain_into(url, **way(spark_cluster))
    drainer.wait_for("2 in all", TASKS_S)
    writer = replication.begin(seed=64)
    commit(drainer, writer, mariadb)
    change_password(mariadb)
    file.write_text(f"{SECOND}\n")
    kill_sessions(mariadb)
    commit(drainer, writer, mariadb)
    replication.check(drainer)
    assert drainer.stop() == 0
    assert holders(tmp_path) == [file]


@pytest.mark.fault(
    "on a Spark cluster, the downstream's password changes between two batches, and MYSQL_PSWD of"
    " the workers' environment with it",
    "the executors of the restarted workers use the new one; no file contains either of them",
    cases="1",
)
def test_a_password_that_changes_between_two_batches_reaches_executors_by_their_environment(
    replication: Replication,
    mariadb: MariadbServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(MYSQL_PASSWORD, FIRST)
        cluster = HarmedCluster(tmp_path / "spark-cluster")
    replication.start(mariadb, started=False)
    url = account(mariadb)
    with cluster:
        first = replication.drain_into(url.replace("@", f":{FIRST}@", 1), **way(cluster))
        first.wait_for("2 in all", TASKS_S)
        writer = replication.begin(seed=65)
        commit(first, writer, mariadb)
        assert first.stop() == 0
        change_password(mariadb)
        kill_sessions(mariadb)
        for worker in cluster.workers:
            worker.environment = {**(worker.environment or {}), MYSQL_PASSWORD: SECOND}
            kill_tree(worker)
            worker.start()
        second = replication.drain_into(url.replace("@", f":{SECOND}@", 1), **way(cluster))
        second.wait_for("2 in all", TASKS_S)
        commit(second, writer, mariadb)
        replication.check(second)
        assert second.stop() == 0
    assert holders(tmp_path) == []
