"""Rounds of random kills on a standalone Spark cluster, with two Drainers, each into a server.

A round kills or freezes something at random, up to half a second after both Drainers have moved on.
After every few rounds the writer pauses, and both downstreams must be equal to its model. A table
without a key shows each change that was applied twice. The rows of each second are enough for
partitions, which tasks commit. The servers are two MariaDBs, or a MariaDB and a TiDB.

    PENSTOCK_ROUNDS=100 .venv/bin/python -m pytest tests/fault/test_spark_rounds.py -m slow -s
"""

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.local.sql_server import PdAndTikv, SqlProcess, TidbServer
from tests.fault.test_spark_loss import kill_jvm, past
from tests.kit.servers.binlog_server import MARIADB, TIDB
from tests.kit.servers.fix_drainer import DrainerProcess
from tests.kit.servers.fix_mariadb import MariadbServer, installed
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.fix_spark import HarmedCluster, committed_by_tasks
from tests.kit.workloads.random_writer import (
    ITEMS_MAX,
    in_mariadb,
    write_partitions,
    writing_meanwhile,
)

pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.mariadb]

ROUNDS = int(os.environ.get("PENSTOCK_ROUNDS", "6"))
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))
ROUNDS_PER_CHECK = 5
MOVES_ON_S_MAX = 400.0
HARMS = {"task": 4, "executor": 4, "worker": 2, "frozen": 2, "driver": 1, "master": 1,
         "drainer": 2, "downstream": 1}  # fmt: skip
"""Each harm with its weight."""
FROZEN_S_MAX = 5.0


@pytest.fixture(params=[MARIADB, pytest.param(TIDB, marks=pytest.mark.tidb)])
def second(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlProcess]:
    if request.param == MARIADB:
        yield from installed(MariadbServer(tmp_path / "second"))
        return
    with ExitStack() as stack:
        store = PdAndTikv(tmp_path / "store")  # It keeps what a killed TiDB has committed.
        stack.callback(store.start().stop)
        server = TidbServer(tmp_path / "second", store, is_upstream=False)
        stack.callback(server.start().stop)
        yield server


def url_of(server: SqlProcess) -> str:
    return server.url_without_password if isinstance(server, MariadbServer) else server.url


class Harms:
    """What can be killed: the Spark cluster, two Drainers and their downstreams."""

    def __init__(
        self,
        rng: random.Random,
        spark: HarmedCluster,
        pairs: list[tuple[DrainerProcess, SqlProcess]],
    ) -> None:
        self._rng, self._spark, self._pairs = rng, spark, pairs

    def one(self, kind: str) -> None:
        drainer, server = self._rng.choice(self._pairs)
        if kind == "drainer":
            drainer.kill()
            drainer.start()
        elif kind == "downstream":
            server.restart()
        elif kind == "driver":
            kill_jvm(drainer)
        elif kind == "master":
            self._spark.master.restart()
        elif kind == "frozen":
            self._freeze()
        else:
            self._spark.kill_one(kind, self._rng)

    def _freeze(self) -> None:
        tasks = self._spark.tasks(self._rng.choice(self._spark.workers))
        for process in self._rng.sample(tasks, min(1, len(tasks))):
            try:
                process.suspend()
                time.sleep(self._rng.random() * FROZEN_S_MAX)
                process.resume()
            except psutil.NoSuchProcess:
                pass  # Its executor has just ended.


@pytest.mark.fault(
    "rounds of random kills of tasks, executors, workers, the master, driver JVMs, Drainers and"
    " MariaDB servers, and frozen tasks, with two Drainers on one standalone cluster whose tasks"
    " commit",
    "after every fifth round both downstreams are equal; a table without a key too",
    cases="6, PENSTOCK_ROUNDS=100 for a hundred; with a TiDB",
)
def test_rounds_of_random_kills_on_a_cluster_leave_two_downstreams_equal(
    replication: Replication,
    spark_cluster: HarmedCluster,
    mariadb: MariadbServer,
    second: SqlProcess,
) -> None:
    rng = random.Random(SEED)
    for _ in range(3):
        replication.add_pump()
    way: dict[str, Any] = {
        "spark_master": spark_cluster.url,
        "spark_tasks": 2,
        "batch_rows_max": 2_000,
        "apply_mode": "parallel",
    }
    servers: tuple[SqlProcess, ...] = (mariadb, second)
    pairs = [(replication.drain_into(url_of(server), **way), server) for server in servers]
    for drainer, _ in pairs:
        drainer.wait_for("2 in all", MOVES_ON_S_MAX)
    writer = replication.begin(seed=SEED)
    writer.bulk(ITEMS_MAX)
    committed = dict.fromkeys(servers, 0)
    harms = Harms(rng, spark_cluster, pairs)
    kinds = rng.choices(list(HARMS), list(HARMS.values()), k=ROUNDS)
    for first in range(0, ROUNDS, ROUNDS_PER_CHECK):
        began_s = time.monotonic()
        with writing_meanwhile(writer, write_partitions):
            for kind in kinds[first : first + ROUNDS_PER_CHECK]:
                for drainer, _ in pairs:
                    past(drainer, MOVES_ON_S_MAX)
                time.sleep(rng.random() / 2)
                harms.one(kind)
        write_partitions(writer, 5)  # The writer may have had no time for enough rows.
        for drainer, server in pairs:
            drainer.wait_until(writer.last_ts, MOVES_ON_S_MAX)
            assert in_mariadb(server) == writer.expected(), f"{drainer.node_id} after round {first}"
            before, committed[server] = committed[server], committed_by_tasks(server)
            assert committed[server] > before, f"no task of {drainer.node_id} committed anything"
        took_s = time.monotonic() - began_s
        done = kinds[first : first + ROUNDS_PER_CHECK]
        print(f"rounds to {first + len(done)}: {done}, equal after {took_s:.0f} s", flush=True)  # noqa: T201
    for drainer, _ in pairs:
        assert drainer.stop() == 0
