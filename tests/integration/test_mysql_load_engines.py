"""Tables of engines without transactions are loaded as they are at the place of the load."""

import json
import threading
from pathlib import Path

import pytest

from penstock.errors import NeedsOperator
from pumpclient.mysql.load.readers import snapshot
from pumpclient.mysql.load.tables import Fetch, SourceTable, base_tables, check_engines
from pumpclient.mysql.source.__main__ import main
from tests.integration.test_mysql_source import downstream
from tests.kit.servers.binlog_server import (
    MARIADB,
    MYSQL,
    AnyBinlogServer,
    make_server,
    numbers,
    on_servers,
    running,
)
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.fix_source import LONG_S, SourceProcess, rows_of
from tests.kit.wait import eventually

ENGINES = {"isam": "MyISAM", "memory": "MEMORY", "csv": "CSV"}
OF_MARIADB = {**ENGINES, "aria": "Aria"}
OF_MYSQL = {**ENGINES, "archive": "ARCHIVE"}


def prepare(server: AnyBinlogServer, engines: dict[str, str]) -> None:
    server.run(
        "DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop", "USE shop",
        "CREATE TABLE film (id INT PRIMARY KEY, v VARCHAR(200))",
        *(f"CREATE TABLE {name} (id INT NOT NULL, v VARCHAR(200) NOT NULL) ENGINE={engine}"
          for name, engine in engines.items()),
        "ALTER TABLE isam ADD PRIMARY KEY (id)",
        # With GTIDs, a MySQL refuses transactions that change tables of both kinds.
        f"CREATE TRIGGER copy BEFORE INSERT ON film FOR EACH ROW"
        f" {'INSERT INTO isam VALUES (NEW.id, NEW.v)' if 'aria' in engines else 'SET @film = 1'}",
        "CREATE VIEW all_films AS SELECT * FROM film",
        *(f"INSERT INTO {name} SELECT seq, REPEAT('x', 200) FROM {numbers(2000)}"
          for name in engines),
    )  # fmt: skip


class Writer(threading.Thread):
    """Inserts into all tables until it is to stop; half of its transactions are rolled back."""

    def __init__(self, server: AnyBinlogServer, engines: dict[str, str]) -> None:
        super().__init__()
        self._server, self._engines = server, engines
        self.is_over = threading.Event()
        self.count = 0

    def run(self) -> None:
        with self._server.connect() as connection, connection.cursor() as cursor:
            while not self.is_over.wait(0.005):
                self.count += 1
                number = 10_000 + self.count
                cursor.execute("BEGIN")
                cursor.execute(f"INSERT INTO shop.film VALUES ({number}, 'w')")
                cursor.execute("COMMIT" if self.count % 2 else "ROLLBACK")
                for name in self._engines:
                    cursor.execute(f"INSERT INTO shop.{name} VALUES ({20_000 + self.count}, 'w')")


@pytest.mark.fault(
    "rows of tables without transactions change while a load begins, and the source is killed",
    "each table is what the server's is; a rolled back transaction leaves what it leaves there",
    cases="1",
)
@pytest.mark.thorough
@pytest.mark.parametrize("kind", on_servers(MARIADB))
def test_tables_without_transactions_are_what_they_are_at_the_place_of_the_load(
    kind: str, nodes: Nodes, tmp_path: Path
) -> None:
    pumps = [nodes.add_pump()]
    engines = OF_MYSQL if kind == MYSQL else OF_MARIADB
    state = tmp_path / "source" / "db-1.load.json"
    with running(make_server(tmp_path / "server", kind=kind)) as server:
        prepare(server, engines)
        source = SourceProcess(
            tmp_path / "source", nodes.url, server, mode="all", load_rate_bytes_per_s=300_000
        )
        writer = Writer(server, engines)
        writer.start()
        try:
            eventually(lambda: writer.count > 20, LONG_S)
            source.start()
            eventually(lambda: state.exists() and json.loads(state.read_text())["begun"], LONG_S)
            source.kill()
            source = SourceProcess(tmp_path / "source", nodes.url, server, mode="all")
            source.start()
            eventually(lambda: json.loads(state.read_text())["is_complete"], LONG_S)
            begun = writer.count
            eventually(lambda: writer.count > begun + 20, LONG_S)
        finally:
            writer.is_over.set()
            writer.join()
        try:
            source.catch_up(server)
        finally:
            assert source.stop() == 0
        assert "writes to" in source.text()
        found = downstream(nodes.etcd, nodes.url, pumps)
        for name in ("film", *engines):
            assert found.rows(f"shop.{name}") == rows_of(server, f"shop.{name}"), name
        assert found.repeated == 0
        assert ("shop", "all_films") not in found.tables


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(MARIADB, marks=pytest.mark.mariadb),
        pytest.param(MYSQL, marks=[pytest.mark.mysql, pytest.mark.thorough]),
    ],
)
def test_locks_last_from_the_snapshot_until_they_are_released(
    source_server: AnyBinlogServer,
) -> None:
    server = source_server
    server.run(
        "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT) ENGINE=MyISAM",
        "CREATE TABLE shop.u (id INT)", "INSERT INTO shop.t VALUES (1)",
    )  # fmt: skip

    def lockable(fetch: Fetch) -> list[SourceTable]:
        return [each for each in base_tables(fetch) if each.needs_lock]

    with snapshot(server.address, 2, lockable) as (_, place, sessions, locks):
        assert [each.name for each in locks.tables] == ["t"]
        server.run("INSERT INTO shop.u VALUES (1)")  # It is part of the snapshot, and not locked.
        writer = threading.Thread(target=lambda: server.run("INSERT INTO shop.t VALUES (2)"))
        writer.start()

        def waits() -> bool:
            shown = server.query("SHOW PROCESSLIST")
            return any("lock" in str(row[6]).lower() for row in shown if "shop.t" in str(row[7]))

        eventually(waits, LONG_S)
        reading = locks.tables[0].reading
        assert sessions[0].fetch(f"{reading} id FROM shop.t") == [(1,)]
        assert sessions[1].fetch("SELECT id FROM shop.u") == []
        assert server.end()[1] > place.position
        locks.release()
        writer.join()
    assert server.query("SELECT id FROM shop.t") == [(1,), (2,)]


@pytest.mark.mariadb
def test_a_check_names_tables_that_cannot_be_replicated_and_the_flag_that_leaves_them_out(
    mariadb_binlog: MariadbServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = mariadb_binlog
    server.drop_user_databases()
    server.run(
        "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT) ENGINE=MyISAM",
        "CREATE TABLE shop.all_of_them (id INT) ENGINE=MERGE UNION=(shop.t)",
    )  # fmt: skip
    config = tmp_path / "source.toml"
    (tmp_path / "secret").write_text(server.password)
    config.write_text(
        f'mode = "all"\ndata-dir = "{tmp_path}"\n[source]\nport = {server.port}\n'
        f'user = "{server.user}"\npassword-file = "{tmp_path}/secret"\n'
    )
    check = ["check", "--config", str(config)]
    assert main(check) == 2
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "FAILED   engines: the changes of these tables are not in the binlog as rows" in lines
    assert {"shop.all_of_them (mrg_myisam)", "shop.t (myisam)"} <= set(lines)
    flag = "--ignore-table shop.all_of_them"
    assert flag in lines
    assert main([*check, *flag.split()]) == 0
    assert "shop.t (myisam)" in capsys.readouterr().out
    with pytest.raises(NeedsOperator, match=r"shop\.all_of_them \(MRG_MyISAM\)") as refused:
        check_engines(base_tables(lambda sql: server.query(sql)))
    assert flag in refused.value.hint
