"""A MariaDB's changes through a real source and real Pumps: out comes what its tables hold."""

from pathlib import Path
from typing import Any

import pytest

from penstock.codes import Code
from pumpclient import PumpClient
from pumpclient.mysql.source import command
from tests.kit.servers.binlog_server import (
    MARIADB,
    MYSQL,
    AnyBinlogServer,
    module_server,
    on_servers,
)
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.fix_source import LONG_S, Downstream, SourceProcess, SourceRig, rows_of
from tests.kit.wait import eventually

server = module_server(on_servers(MARIADB, MYSQL))


@pytest.fixture
def fresh(server: AnyBinlogServer) -> AnyBinlogServer:
    """The server, without anything that an earlier test made."""
    server.drop_user_databases()
    server.reset_binlog()
    return server


def downstream(etcd: Any, url: str, pumps: list[Any]) -> Downstream:
    with PumpClient.connect(url) as client:
        until_ts = client.session.oracle.get_ts()
    return Downstream(etcd, pumps, until_ts)


def test_rows_and_ddl_come_out_as_they_are_on_the_server(
    nodes: Nodes, fresh: AnyBinlogServer, tmp_path: Path
) -> None:
    pumps = [nodes.add_pump() for _ in range(2)]
    source = SourceProcess(tmp_path / "source", nodes.url, fresh)
    fresh.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v LONGTEXT)")
    fresh.insert(200)
    source.start()
    try:
        source.catch_up(fresh)
        fresh.run(
            "ALTER TABLE shop.t ADD COLUMN n BIGINT UNSIGNED",
            "UPDATE shop.t SET n = id * 2 WHERE id % 3 = 0",
            "DELETE FROM shop.t WHERE id % 7 = 0",
            "INSERT INTO shop.t VALUES (1000, 'x', 18446744073709551615)",
            "BEGIN", "INSERT INTO shop.t VALUES (1001, 'y', 1)", "DELETE FROM shop.t WHERE id = 1",
            "COMMIT",
        )  # fmt: skip
        source.catch_up(fresh)
    finally:
        assert source.stop() == 0
    found = downstream(nodes.etcd, nodes.url, pumps)
    assert found.rows("shop.t") == rows_of(fresh, "shop.t")
    assert found.repeated == 0
    assert found.origins == sorted(set(found.origins))


@pytest.mark.thorough
def test_start_points_filters_and_routes_bring_what_they_should(
    nodes: Nodes, fresh: AnyBinlogServer, tmp_path: Path
) -> None:
    pumps = [nodes.add_pump()]
    fresh.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v LONGTEXT)")
    fresh.run("CREATE TABLE shop.hidden (id INT PRIMARY KEY)")
    fresh.insert(5)
    gtid = fresh.gtids
    fresh.run("FLUSH BINARY LOGS")
    fresh.insert(5, first=10)
    file, position = fresh.end()
    config = """
        [filter]
        do-dbs = ["shop"]
        ignore-tables = [{ db-name = "shop", tbl-name = "hid*" }]
        expressions = [{ schema = "shop", table = "t", insert-value-expr = "id >= 1000" }]
        [[filter.events]]
        schema-pattern = "shop"
        table-pattern = "t"
        events = ["delete"]
        action = "Ignore"
        [[filter.routes]]
        schema-pattern = "shop"
        table-pattern = "t"
        target-schema = "%s"
        target-table = "r"
    """
    starts = {"by_gtid": gtid, "by_place": f"{file}:{position}", "by_current": "current"}
    sources = []
    for name, start in starts.items():
        source = SourceProcess(
            tmp_path / name, nodes.url, fresh, config % name, source_id=name, start=start
        )
        sources.append(source.start())
    try:
        for source in sources:
            source.catch_up(fresh)
        fresh.run("INSERT INTO shop.t VALUES (20, 'x'), (1000, 'y')", "DELETE FROM shop.t")
        fresh.run("INSERT INTO shop.hidden VALUES (1)")
        for source in sources:
            source.catch_up(fresh)
    finally:
        assert [source.stop() for source in sources] == [0, 0, 0]
    found = downstream(nodes.etcd, nodes.url, pumps)
    ids = {name: [row[0] for row in found.rows(f"{name}.r")] for name in starts}
    assert ids == {"by_gtid": [10, 11, 12, 13, 14, 20], "by_place": [20], "by_current": [20]}
    assert not any(name == "hidden" for _, name in found.tables)


@pytest.mark.thorough
def test_a_statement_that_cannot_be_followed_waits_for_a_decision(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    fresh.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, v LONGTEXT)")
    source = rig.begin(fresh)

    def ask(*words: str) -> str:
        return command.ask([*words, "--status-addr", source.address])

    source.catch_up(fresh)
    for sql, decision in (
        ("INSERT INTO shop.t VALUES (1, 'a')", ["skip"]),
        ("DELETE FROM shop.t", ["replace", "ALTER TABLE shop.t ADD COLUMN n INT"]),
    ):
        fresh.run("SET SESSION binlog_format = STATEMENT", sql)
        status = source.fails()
        assert "as a statement" in status["problem"]
        assert status["code"] == str(Code.BINLOG_INCOMPLETE)
        assert status["statement"] in ask("status")
        assert "noted" in ask(*decision)
        source.catch_up(fresh)
    fresh.run("ALTER TABLE shop.t ADD COLUMN n INT")
    assert "'n'" in source.fails()["problem"]
    source.kill()
    source.start()
    place = source.fails()["statement"]
    ask("skip", "--at", place)
    source.catch_up(fresh)
    ask("pause")
    eventually(lambda: source.status()["state"] == "paused", LONG_S)
    fresh.run("INSERT INTO shop.t VALUES (2, 'b', 3)")
    assert not source.has(fresh)
    ask("resume")
    source.catch_up(fresh)
    fresh.run("FLUSH BINARY LOGS", "UPDATE shop.t SET n = 4")
    source.catch_up(fresh)
    # Not before the checkpoint that is stored has passed the file.
    eventually(lambda: "mysql-bin.000001" in ask("purge", "inactive"), LONG_S)
    assert 'penstock_source_ddl_total{source="db-1"}' in source.page("metrics")
    assert source.stop() == 0
    assert rig.downstream().rows("shop.t") == [(2, "b", 4)]
