"""A real TiDB cluster in front of two real Pumps, and behind them a TiDB, a MariaDB and an SQLite.

`tidb_rig` is one for each file of tests: a PD and a TiKV in one process, two TiDB servers on it, so
that an online DDL of one meets the writes of another, and a Drainer into each downstream.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.cluster.etcd import connect
from penstock.local.sql_server import PdAndTikv, TidbServer
from penstock.oracle.client import OracleClient
from tests.kit.servers.fix_drainer import SERVES, START_S, DrainerProcess
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.table_texts import Side, SqliteSide, SqlSide, difference

CATCH_UP_S_MAX = 180.0
PARTITIONED = "parted"
"""A schema that the Drainer into SQLite leaves out: no DDL on partitions can be followed there."""


class TidbRig:
    """All of it, from TiDB to the downstreams; `start` in the order of dependence."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.pd = PdAndTikv(home / "pd")
        self.pumps: list[PumpProcess] = []
        self.tidbs = [TidbServer(home / f"tidb-{n}", self.pd) for n in (1, 2)]
        self.drainers: dict[str, DrainerProcess] = {}
        self.sides: dict[str, Side] = {}
        self._clock: OracleClient
        self._stack = ExitStack()

    def start(self) -> None:
        """Start everything; what was started is stopped by `stop`, whatever happens."""
        self._stack.callback(self.pd.start().stop)
        self._clock = OracleClient(self.pd.url)
        self._stack.callback(self._clock.close)
        for name in ("pump-1", "pump-2"):
            settings = {"etcd_urls": self.pd.url, "pd_address": self.pd.url}
            self.pumps.append(PumpProcess(self.home / name, name, settings))
            self._stack.callback(self.pumps[-1].start().kill)
        for tidb in self.tidbs:
            self._stack.callback(tidb.start().stop)
        etcd = connect(self.pd.url)
        self._stack.callback(etcd.close)
        for name, (url, more) in self._downstreams().items():
            settings = {"etcd_urls": self.pd.url, "pd_address": self.pd.url, "sink": url, **more}
            drainer = DrainerProcess(etcd, self.home / f"drainer-{name}", name, settings)
            self.drainers[name] = drainer
            self._stack.callback(drainer.stop)
        self.start_drainers()
        # With the first row Spark starts, which takes its time; what tests measure begins after it.
        self.tidbs[0].run(
            "CREATE DATABASE warm",
            "CREATE TABLE warm.t (id INT PRIMARY KEY)",
            "INSERT INTO warm.t VALUES (1)",
        )
        self.catch_up()

    def _downstreams(self) -> dict[str, tuple[str, dict[str, str]]]:
        """Start the servers downstream; return the URL and the Drainer's settings of each."""
        tidb = TidbServer(self.home / "down-tidb")
        self._stack.callback(tidb.start().stop)
        mariadb = MariadbServer(self.home / "down-mariadb")
        mariadb.install()
        self._stack.callback(mariadb.start().stop)
        path = self.home / "down.db"
        self.sides = {
            "upstream": SqlSide(self.tidbs[0]),
            "tidb": SqlSide(tidb),
            "mariadb": SqlSide(mariadb),
            "sqlite": SqliteSide(path),
        }
        return {
            "tidb": (tidb.url, {}),
            "mariadb": (mariadb.url, {}),
            "sqlite": (f"sqlite:///{path}", {"ignore_schemas": f"mysql,{PARTITIONED}"}),
        }

    def start_drainers(self) -> None:
        """Start all of them side by side, and wait until each serves."""
        for drainer in self.drainers.values():
            drainer.spawn()
        for drainer in self.drainers.values():
            drainer.addr = drainer.wait_for(SERVES, START_S)[2]

    def stop(self) -> None:
        self._stack.close()

    def now_ts(self) -> int:
        return self._clock.get_ts()

    def catch_up(self) -> None:
        """Return once every downstream has all that is committed by now."""
        until_ts = self.now_ts()
        for drainer in self.drainers.values():
            drainer.wait_until(until_ts, CATCH_UP_S_MAX)

    def check(self, schema: str) -> dict[str, int]:
        """Hold every table of a schema equal in all downstreams; return its rows by table."""
        self.catch_up()
        upstream = self.sides["upstream"]
        tables = upstream.tables(schema)
        assert tables, f"{schema} has no table"
        columns = {table: upstream.columns(schema, table) for table in tables}
        for name, side in self.sides.items():
            if side is upstream or (schema == PARTITIONED and name == "sqlite"):
                continue
            assert side.tables(schema) == tables, name
            for table in tables:
                # Generated columns are left out of SQLite.
                there = side.column_names(schema, table)
                both = [column for column in columns[table] if column.name in there]
                expected, found = (each.rows(schema, table, both) for each in (upstream, side))
                assert found == expected, difference(name, f"{schema}.{table}", found, expected)
        return {table: upstream.rows(schema, table, columns[table]).total() for table in tables}


@pytest.fixture(scope="module")
def tidb_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidbRig]:
    """All of it, running; a test that kills a part of it starts that again."""
    rig = TidbRig(tmp_path_factory.mktemp("tidb"))
    try:
        rig.start()
        yield rig
    finally:
        rig.stop()
