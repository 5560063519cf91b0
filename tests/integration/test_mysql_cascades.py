"""Foreign keys by which a MariaDB changes rows below its binlog: none gets past a source unseen."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from penstock.cluster.etcd import read
from penstock.cluster.node_registry import SOURCES
from penstock.errors import NeedsOperator
from penstock.local.sql_server import SqlServer
from pumpclient.mysql.source.__main__ import main
from pumpclient.mysql.source.command import ask, load
from pumpclient.mysql.source.ddl.cascades import Cascades
from pumpclient.mysql.source.service import SourceService
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.servers.fix_source import LONG_S, SourceRig, rows_of
from tests.kit.wait import eventually

KEY = "CONSTRAINT fk FOREIGN KEY (p) REFERENCES shop.p (id)"
NAMED = "shop.c: fk ON DELETE CASCADE ON UPDATE SET NULL"


@pytest.fixture
def server(mariadb_binlog: MariadbServer) -> Iterator[MariadbServer]:
    """The shared server with one table; the test that has it next finds no such keys."""
    server = mariadb_binlog
    server.drop_user_databases()
    server.run("RESET MASTER", "CREATE DATABASE shop", "CREATE TABLE shop.p (id INT PRIMARY KEY)")
    yield server
    server.drop_user_databases()


def test_check_and_start_find_them_with_the_least_privileges(
    server: MariadbServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.run(
        f"CREATE TABLE shop.c (p INT, {KEY} ON DELETE CASCADE ON UPDATE SET NULL)",
        "CREATE TABLE shop.inline (p INT REFERENCES shop.p (id) ON UPDATE CASCADE)",
        f"CREATE TABLE shop._c_new (p INT, {KEY.replace('fk', '_fk')} ON DELETE CASCADE)",
        f"CREATE TABLE shop.fine (p INT, {KEY.replace('fk', 'ok')} ON DELETE RESTRICT)",
        f"CREATE OR REPLACE USER 'reader'@'%' IDENTIFIED BY '{server.password}'",
        "GRANT SELECT, RELOAD, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'reader'@'%'",
    )
    config = tmp_path / "source.toml"
    (tmp_path / "secret").write_text(server.password)
    config.write_text(
        f'[source]\nport = {server.port}\nuser = "reader"\npassword-file = "{tmp_path}/secret"\n'
    )

    def check(*more: str) -> tuple[int, list[str]]:
        code = main(["check", "--config", str(config), *more])
        lines = capsys.readouterr().out.partition("foreign keys: ")[2].splitlines()
        return code, [line.strip() for line in lines[:3]]

    try:
        code, lines = check()
        assert code == 2
        assert lines == [
            "2 change rows that the binlog does not have", NAMED,
            "shop.inline: inline_ibfk_1 ON UPDATE CASCADE",
        ]  # fmt: skip
        assert check("--cascades", "accept") == (0, lines)
        assert check("--mode", "full") == (0, [])
        with pytest.raises(NeedsOperator, match="inline_ibfk_1") as stopped:
            SourceService(load(["--config", str(config)])).run()
        assert NAMED in stopped.value.problem
        accepting = load(["--config", str(config), "--cascades", "accept"])
        Cascades.of(accepting).look_at_server(accepting.source.address())
        assert NAMED in caplog.text
        assert "inline_ibfk_1" in caplog.text
        with config.open("a") as file:
            file.write('[filter]\nignore-tables = [{ db-name = "shop", tbl-name = "~^(c|in)" }]\n')
        code, lines = check()
        assert (code, lines) == (0, ["none changes rows by itself"])
    finally:
        server.run("DROP USER 'reader'@'%'")


@pytest.mark.thorough
def test_a_server_that_logs_what_its_keys_change_is_followed(
    rig: SourceRig, mysql: SqlServer
) -> None:
    mysql.run(
        "RESET BINARY LOGS AND GTIDS",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.p (id INT PRIMARY KEY, y YEAR, n INT, u INT UNSIGNED)",
        f"CREATE TABLE shop.c (id INT PRIMARY KEY, p INT, {KEY} ON DELETE CASCADE)",
        "INSERT INTO shop.p VALUES (1, 2020, -5, 7), (2, NULL, -6, 8)",
        "INSERT INTO shop.c VALUES (10, 1), (20, 2)",
    )
    source = rig.begin(mysql)
    source.catch_up(mysql)
    altered = f"ADD {KEY.replace('fk', 'again')} ON DELETE CASCADE ON UPDATE CASCADE"
    mysql.run(
        f"ALTER TABLE shop.c DROP FOREIGN KEY fk, {altered}",
        "DELETE FROM shop.p WHERE id = 1",
        "UPDATE shop.p SET id = 3 WHERE id = 2",
    )
    source.catch_up(mysql)
    assert source.stop() == 0
    found = rig.downstream()
    assert found.rows("shop.p") == rows_of(mysql, "shop.p") == [(3, None, -6, 8)]
    assert found.rows("shop.c") == rows_of(mysql, "shop.c") == [(20, 3)]


@pytest.mark.thorough
def test_one_that_comes_in_the_stream_stops_it_until_somebody_decides(
    rig: SourceRig, server: MariadbServer
) -> None:
    source = rig.begin(server)
    key = KEY.replace("fk", "again")
    altered = f"ALTER TABLE shop.c DROP FOREIGN KEY fk, ADD {key} ON DELETE CASCADE"
    server.run(f"CREATE TABLE shop.c (id INT PRIMARY KEY, p INT, {KEY})")
    source.catch_up(server)
    server.run(
        altered,
        "INSERT INTO shop.p VALUES (1), (2)",
        "INSERT INTO shop.c VALUES (10, 1), (20, 2)",
        "DELETE FROM shop.p WHERE id = 1",
    )
    status = source.fails()
    assert "shop.c: again ON DELETE CASCADE" in status["problem"]
    assert "penstock verify --repair" in status["hint"]
    assert "noted" in ask(["replace", altered, "--status-addr", source.address])
    source.catch_up(server)
    assert "shop.c: again ON DELETE CASCADE" in source.text()
    found = rig.downstream()
    assert found.rows("shop.p") == rows_of(server, "shop.p") == [(2,)]
    assert rows_of(server, "shop.c") == [(20, 2)]
    assert found.rows("shop.c") == [(10, 1), (20, 2)], "no binlog has row 10"
    reload = ["reload", "shop.c", "--wait", "--status-addr", source.address]
    with pytest.raises(NeedsOperator, match="again ON DELETE CASCADE"):
        ask(reload)
    restricted = f"ADD {KEY.replace('fk', 'third')} ON DELETE RESTRICT"
    server.run(f"ALTER TABLE shop.c DROP FOREIGN KEY again, {restricted}")
    assert "1 rows loaded" in ask(reload)
    assert source.stop() == 0
    found = rig.downstream()
    assert found.rows("shop.c") == rows_of(server, "shop.c") == [(20, 2)]


@pytest.mark.thorough
@pytest.mark.fault(
    "`penstock source` is killed after it read parents' changes, and the key is dropped meanwhile",
    "each table that the key may have changed stays noted until it is repaired or loaded again",
    cases="1",
)
def test_what_a_key_may_have_changed_is_noted_until_it_is_repaired_or_loaded_again(
    rig: SourceRig, server: MariadbServer
) -> None:
    again = KEY.replace("fk", "again")
    server.run(
        f"CREATE TABLE shop.hidden (id INT PRIMARY KEY, p INT, {KEY} ON DELETE CASCADE)",
        "CREATE TABLE shop.c (id INT PRIMARY KEY, p INT, CONSTRAINT c_p FOREIGN KEY (p)"
        " REFERENCES shop.hidden (id) ON DELETE SET NULL)",
        "CREATE TABLE shop.d (id INT PRIMARY KEY, p INT)",
        "INSERT INTO shop.p VALUES (1), (2), (3), (4), (5)",
        "INSERT INTO shop.hidden VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
        "INSERT INTO shop.c VALUES (1, 1), (2, 2), (3, 3)",
        "INSERT INTO shop.d VALUES (1, 6), (2, 5)",
    )
    hides = '[filter]\nignore-tables = [{ db-name = "shop", tbl-name = "hidden" }]\n'
    source = rig.make(server, config=hides, start="current", cascades="repair")

    def noted() -> dict[str, int]:
        source.catch_up(server)
        return {table: note["rows"] for table, note in source.status()["cascaded"].items()}

    def repaired(table: str, place: str) -> str:
        path = f"/repaired/{table}/{quote(place, safe='')}"
        request = Request(f"http://{source.address}{path}", method="POST")
        with urlopen(request) as answer:
            return str(answer.read().decode())

    source.start()
    assert noted() == {}
    server.run("SET foreign_key_checks = 0", "DELETE FROM shop.hidden WHERE id = 4")
    server.run("DELETE FROM shop.p WHERE id = 4", "INSERT INTO shop.p VALUES (6)")
    assert noted() == {"shop.c": 1}, "a parent's row is deleted with checks, whatever it reaches"
    server.run("DELETE FROM shop.p WHERE id = 1")
    assert noted() == {"shop.c": 2}
    place = source.status()["cascaded"]["shop.c"]["last"]
    source.kill()
    server.run(
        f"ALTER TABLE shop.d ADD {again} ON DELETE CASCADE",
        "DELETE FROM shop.p WHERE id IN (2, 5)",
        "ALTER TABLE shop.hidden DROP FOREIGN KEY fk",
        "ALTER TABLE shop.d DROP FOREIGN KEY again",
    )
    source.is_killed_at("source.before_checkpoint=kill@1")
    source.start()
    assert noted() == {"shop.c": 4, "shop.d": 2}, "the keys are gone, and known from before"
    assert "foreign keys may have changed rows of shop.d" in source.text()
    assert "to be repaired again" in repaired("shop.c", place)
    assert "is repaired up to" in repaired("shop.c", source.status()["cascaded"]["shop.c"]["last"])
    assert noted() == {"shop.d": 2}
    assert "1 rows loaded" in ask(["reload", "shop.d", "--wait", "--status-addr", source.address])
    assert noted() == {}, "the snapshot has what the key did"
    source.stop()
    source.start()
    eventually(lambda: b"again" not in (read(rig.etcd, f"{SOURCES}db-1/keys") or b""), LONG_S)
    server.run("DELETE FROM shop.p WHERE id IN (3, 6)")
    assert noted() == {}, "keys are forgotten once the server is known to have none"
