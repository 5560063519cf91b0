"""What a TiDB brings back after it was dropped is brought back in a TiDB, or refused by name."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from drainer.__main__ import main
from penstock.cluster.etcd import connect
from penstock.local.sql_server import PdAndTikv, TidbServer
from penstock.oracle.client import OracleClient
from tests.kit.servers.fix_drainer import DrainerProcess
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.table_texts import SqlSide, difference

pytestmark = [pytest.mark.tidb, pytest.mark.alone]

STOPPED_S_MAX = 180.0
NEEDS_OPERATOR = 2


@dataclass
class Pair:
    """A TiDB, a Pump, a Drainer, and a TiDB downstream that keeps what is dropped for a while."""

    up: TidbServer
    down: TidbServer
    drainer: DrainerProcess
    clock: OracleClient
    settings: list[str]

    def catch_up(self) -> None:
        """Return once the downstream has all that is committed by now."""
        self.drainer.wait_until(self.clock.get_ts())

    def rows(self, schema: str) -> dict[str, int]:
        """Hold every table of a schema equal on both sides; return its rows by table."""
        self.catch_up()
        upstream, downstream = SqlSide(self.up), SqlSide(self.down)
        tables = upstream.tables(schema)
        assert downstream.tables(schema) == tables
        counts = {}
        for table in tables:
            columns = upstream.columns(schema, table)
            expected, found = (side.rows(schema, table, columns) for side in (upstream, downstream))
            assert found == expected, difference("downstream", table, found, expected)
            counts[table] = expected.total()
        return counts


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("recovery")
    with ExitStack() as stack:
        pds = [PdAndTikv(home / f"pd-{n}") for n in (1, 2)]
        for pd in pds:
            stack.callback(pd.start().stop)
        at = {"etcd_urls": pds[0].url, "pd_address": pds[0].url}
        stack.callback(PumpProcess(home / "pump-1", "pump-1", at).start().kill)
        up = TidbServer(home / "up", pds[0])
        down = TidbServer(home / "down", pds[1], is_upstream=False)
        for server in (up, down):
            stack.callback(server.start().stop)
        etcd = connect(pds[0].url)
        stack.callback(etcd.close)
        drainer = DrainerProcess(etcd, home / "drainer-1", "drainer-1", {**at, "sink": down.url})
        stack.callback(drainer.start().stop)
        clock = OracleClient(pds[0].url)
        stack.callback(clock.close)
        settings = ["--etcd-urls", pds[0].url, "--pd-address", pds[0].url, "--sink", down.url]
        settings += ["--data-dir", str(drainer.data_dir)]
        made = Pair(up, down, drainer, clock, settings)
        made.catch_up()
        yield made


@pytest.mark.fault(
    "a table is recovered, or flashed back under its name or another",
    "it is downstream again with its rows",
    cases="3",
)
def test_a_table_that_is_recovered_or_flashed_back_has_its_rows_again(pair: Pair) -> None:
    pair.up.run(
        "CREATE DATABASE lost",
        "USE lost",
        "CREATE TABLE a (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(20), KEY (v))",
        "CREATE TABLE b (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE c (v VARCHAR(20))",
        "INSERT INTO a (v) VALUES ('x'), ('y'), ('z')",
        "INSERT INTO b VALUES (1, 'one'), (2, 'two')",
        "INSERT INTO c VALUES ('same'), ('same')",
        "DROP TABLE a",
        "FLASHBACK TABLE a",
        "INSERT INTO a (v) VALUES ('after')",
        "TRUNCATE TABLE b",
        "INSERT INTO b VALUES (2, 'new two')",
        "FLASHBACK TABLE b TO b_before",
        "UPDATE b_before SET v = 'changed' WHERE id = 1",
        "DROP TABLE c",
        "RECOVER TABLE c",
        "DELETE FROM c LIMIT 1",
    )
    assert pair.rows("lost") == {"a": 4, "b": 1, "b_before": 2, "c": 1}


@pytest.mark.fault(
    "a database is flashed back",
    "the Drainer stops before it; after a skip it continues without that database",
    cases="1",
)
def test_a_flashback_of_a_database_stops_the_drainer_which_continues_after_a_skip(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.up.run(
        "CREATE DATABASE whole",
        "CREATE TABLE whole.t (id INT PRIMARY KEY)",
        "INSERT INTO whole.t VALUES (1)",
        "CREATE DATABASE other",
        "CREATE TABLE other.t (id INT PRIMARY KEY)",
        "DROP DATABASE whole",
        "FLASHBACK DATABASE whole",
        "INSERT INTO whole.t VALUES (2)",
        "INSERT INTO other.t VALUES (1)",
    )
    assert pair.drainer.wait(STOPPED_S_MAX) == NEEDS_OPERATOR
    log = pair.drainer.log_text()
    assert "brings back rows without a binlog" in log
    assert "FLASHBACK DATABASE" in log
    number = log.split("penstock drainer ddl skip ")[-1].split()[0]
    assert main(["ddl", "skip", number, *pair.settings]) == 0, capsys.readouterr()
    pair.drainer.start()
    assert pair.rows("other") == {"t": 1}
    assert SqlSide(pair.down).tables("whole") == []
