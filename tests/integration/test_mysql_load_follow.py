"""A source that loads first and then follows: out comes what the server has, whatever happens."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_mysql_source import downstream
from tests.kit.servers.binlog_server import (
    MARIADB,
    AnyBinlogServer,
    make_server,
    numbers,
    on_servers,
    running,
)
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.fix_source import LONG_S, SourceProcess, rows_of
from tests.kit.wait import eventually

pytestmark = pytest.mark.thorough

BIG = 4000


def prepare(server: AnyBinlogServer) -> None:
    server.run(
        "DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop", "USE shop",
        "CREATE TABLE a (id INT PRIMARY KEY, v LONGTEXT)",
        "CREATE TABLE big (id INT PRIMARY KEY, v LONGTEXT)",
        "CREATE TABLE gone (id INT PRIMARY KEY)",
        f"INSERT INTO a SELECT seq, 'a' FROM {numbers(50)}",
        f"INSERT INTO big SELECT seq, REPEAT('x', 200) FROM {numbers(BIG)}",
        "INSERT INTO gone VALUES (1)",
    )  # fmt: skip


class Writer(threading.Thread):
    """Changes rows of all tables until it is to stop."""

    def __init__(self, server: AnyBinlogServer) -> None:
        super().__init__()
        self.server = server
        self.is_over = threading.Event()

    def run(self) -> None:
        with self.server.connect() as connection, connection.cursor() as cursor:
            n = 0
            while not self.is_over.is_set():
                n += 1
                cursor.execute("BEGIN")
                cursor.execute(f"INSERT INTO shop.a (id, v) VALUES ({1000 + n}, 'w')")
                cursor.execute(f"UPDATE shop.big SET v = 'u{n}' WHERE id = {n * 37 % BIG + 1}")
                cursor.execute(f"DELETE FROM shop.big WHERE id = {n * 53 % BIG + 1}")
                cursor.execute("COMMIT")
                self.is_over.wait(0.01)


@pytest.mark.fault(
    "the source is killed while it loads, rows change all the while, tables are altered,"
    " dropped and made in between",
    "each table is what the server's is once the binlog has passed the load; nothing comes twice",
    cases="1",
)
@pytest.mark.parametrize("kind", on_servers(MARIADB))
def test_rows_that_change_during_a_load_that_is_killed_come_out_as_they_are(
    kind: str, nodes: Nodes, tmp_path: Path
) -> None:
    pumps = [nodes.add_pump()]
    state = tmp_path / "source" / "db-1.load.json"
    with running(make_server(tmp_path / "server", kind=kind)) as server:
        prepare(server)
        settings: dict[str, Any] = {"mode": "all"}
        slow: dict[str, Any] = {"load_rate_bytes_per_s": 100_000, "load_readers": 2}
        source = SourceProcess(tmp_path / "source", nodes.url, server, **settings, **slow)
        writer = Writer(server)
        writer.start()
        try:
            source.start()
            eventually(lambda: state.exists() and ["shop", "a"] in loaded(state), LONG_S)
            source.kill()
            # `big` is begun and not done: it is loaded again, at a place behind these.
            server.run(
                "ALTER TABLE shop.big ADD COLUMN n INT", "DROP TABLE shop.gone",
                "ALTER TABLE shop.a ADD COLUMN n INT",
                "CREATE TABLE shop.late (id INT PRIMARY KEY)", "INSERT INTO shop.late VALUES (1)",
            )  # fmt: skip
            source = SourceProcess(tmp_path / "source", nodes.url, server, **settings)
            source.start()
            eventually(lambda: json.loads(state.read_text())["is_complete"], LONG_S)
        finally:
            writer.is_over.set()
            writer.join()
        server.run("INSERT INTO shop.late VALUES (2)")
        try:
            source.catch_up(server)
        finally:
            assert source.stop() == 0
        found = downstream(nodes.etcd, nodes.url, pumps)
        for table in ("shop.a", "shop.big", "shop.late"):
            assert found.rows(table) == rows_of(server, table)
        assert found.repeated == 0
        assert found.origins == sorted(set(found.origins))
        assert ["shop", "big"] in loaded(state)


def loaded(state: Path) -> list[list[str]]:
    return [each[:2] for each in json.loads(state.read_text())["loaded"]]
