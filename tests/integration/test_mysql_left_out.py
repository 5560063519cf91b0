"""One table that cannot be followed does not stop the others: it is left out, and counted."""

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NeedsOperator
from pumpclient.mysql.source import command
from tests.kit.servers.binlog_server import (
    MARIADB,
    MYSQL,
    AnyBinlogServer,
    module_server,
    on_servers,
)
from tests.kit.servers.fix_source import SourceProcess, SourceRig, cleared, rows_of

server = module_server(on_servers(MARIADB, MYSQL))


@pytest.fixture
def fresh(server: AnyBinlogServer) -> AnyBinlogServer:
    """The server, with `shop.t` and `shop.bad (id, v)` and nothing else."""
    cleared(server).run("CREATE TABLE shop.bad (id INT PRIMARY KEY, v LONGTEXT)")
    return server


def with_vectors() -> list[Any]:
    return [each for each in on_servers(MYSQL) if each.values[0] != MARIADB]


def ask(source: SourceProcess, *words: str) -> str:
    return command.ask([*words, "--status-addr", source.address])


def left_out(source: SourceProcess, table: str) -> tuple[int, int, int]:
    found: dict[str, Any] = source.status()["left_out"][table]
    return found["rows"], found["events"], found["statements"]


MINIMAL = "SET SESSION binlog_row_image = MINIMAL"


@pytest.mark.main_case("mysql-9")
def test_a_table_whose_rows_lack_columns_is_left_out_and_counted_while_others_continue(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    source = rig.begin(fresh)
    fresh.run("INSERT INTO shop.bad VALUES (1, 'a'), (2, 'b')")
    fresh.insert(3)
    source.catch_up(fresh)
    fresh.run(
        MINIMAL, "BEGIN", "INSERT INTO shop.t VALUES (10, 'x')",
        "UPDATE shop.bad SET v = 'c' WHERE id < 3", "INSERT INTO shop.t VALUES (11, 'y')", "COMMIT",
    )  # fmt: skip
    status = source.fails()
    assert "shop.bad" in status["problem"]
    verbs = [each.split(" ")[2].rstrip(":") for each in status["overrides"]]
    assert verbs == ["reload", "skip-table", "skip"]
    assert status["statement"] in status["overrides"][-1]
    assert "skip-table shop.bad" in source.text()
    assert "shop.bad is skipped" in ask(source, "skip-table", "shop.bad")
    source.catch_up(fresh)
    assert left_out(source, "shop.bad") == (2, 0, 0)
    fresh.run(
        MINIMAL, "DELETE FROM shop.bad WHERE id = 2", "ALTER TABLE shop.bad ADD COLUMN n INT",
        "INSERT INTO shop.bad (id) VALUES (5), (6), (7)", "INSERT INTO shop.t VALUES (12, 'z')",
    )  # fmt: skip
    source.catch_up(fresh)
    assert left_out(source, "shop.bad") == (6, 0, 1)
    metrics = source.page("metrics")
    assert 'penstock_source_table_left_out{source="db-1",table="shop.bad"} 1' in metrics
    assert 'penstock_source_left_out_rows_total{source="db-1",table="shop.bad"} 6' in metrics
    source.kill()
    source.start()
    fresh.run("DELETE FROM shop.bad")
    source.catch_up(fresh)
    assert left_out(source, "shop.bad") == (10, 0, 1)
    found = rig.check(fresh, "shop.t")
    assert found.rows("shop.bad") == [(1, "a"), (2, "b")]


@pytest.mark.thorough
def test_a_left_out_table_stays_so_through_a_swap_a_drop_and_a_creation(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    source = rig.begin(fresh)
    fresh.run("INSERT INTO shop.bad VALUES (1, 'a')", "INSERT INTO shop.t VALUES (1, 'a')")
    source.catch_up(fresh)
    ask(source, "skip-table", "shop.bad")
    fresh.run(
        "INSERT INTO shop.bad VALUES (2, 'b')",
        "RENAME TABLE shop.bad TO shop.tmp, shop.t TO shop.bad, shop.tmp TO shop.t",
        "INSERT INTO shop.bad VALUES (2, 'b')",
        "INSERT INTO shop.t VALUES (3, 'c'), (4, 'd')",
    )
    source.catch_up(fresh)
    assert left_out(source, "shop.t") == (3, 0, 0)
    assert list(source.status()["left_out"]) == ["shop.t"]
    found = rig.check(fresh, "shop.bad")
    assert found.rows("shop.t") == [(1, "a")]
    fresh.run(
        "DROP TABLE shop.t", "CREATE TABLE shop.t (id INT PRIMARY KEY, w INT)",
        "INSERT INTO shop.t VALUES (1, 1)", "INSERT INTO shop.bad VALUES (9, 'z')",
    )  # fmt: skip
    source.catch_up(fresh)
    assert left_out(source, "shop.t") == (4, 0, 1)
    assert ("shop", "t") not in rig.check(fresh, "shop.bad").tables


@pytest.mark.thorough
def test_one_event_that_cannot_be_followed_can_be_left_out_alone(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    source = rig.begin(fresh)
    fresh.run("INSERT INTO shop.bad VALUES (1, 'a'), (2, 'b')")
    fresh.run(MINIMAL, "UPDATE shop.bad SET v = 'c'")
    source.fails()
    ask(source, "skip")
    source.catch_up(fresh)
    fresh.run("INSERT INTO shop.bad VALUES (3, 'd')")
    source.catch_up(fresh)
    assert left_out(source, "shop.bad") == (2, 0, 0)
    assert not source.status()["left_out"]["shop.bad"]["is_whole"]
    assert rig.downstream().rows("shop.bad") == [(1, "a"), (2, "b"), (3, "d")]
    assert "an event of shop.bad is skipped, 2 rows" in source.text()


@pytest.mark.thorough
def test_a_statement_that_cannot_be_followed_is_left_out_with_its_table(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    source = rig.begin(fresh)
    fresh.run(
        "SET SESSION sql_log_bin = 0", "ALTER TABLE shop.bad ADD COLUMN n INT",
        "SET SESSION sql_log_bin = 1", "ALTER TABLE shop.bad MODIFY COLUMN n BIGINT",
        "INSERT INTO shop.bad VALUES (1, 'a', 2)",
    )  # fmt: skip
    status = source.fails()
    verbs = [each.split(" ")[2].rstrip(":") for each in status["overrides"]]
    assert verbs == ["replace", "inject", "reload", "skip-table", "skip"]
    ask(source, "skip-table", "shop.bad")
    fresh.insert(2)
    source.catch_up(fresh)
    assert left_out(source, "shop.bad") == (1, 0, 1)
    assert "MODIFY COLUMN n BIGINT" in source.text()
    rig.check(fresh)


@pytest.mark.thorough
def test_an_override_can_be_given_to_a_stopped_source_and_revoked_while_nothing_was_left_out(
    rig: SourceRig, fresh: AnyBinlogServer, tmp_path: Path
) -> None:
    source = rig.begin(fresh)
    fresh.insert(2)
    source.catch_up(fresh)
    path = tmp_path / "source.toml"
    path.write_text(
        f'source-id = "db-1"\netcd-urls = "{rig.etcd_url}"\nstatus-addr = "{source.address}"\n'
    )
    config = str(path)
    assert source.stop() == 0
    assert "is skipped" in command.ask(["skip-table", "shop.bad", "--config", config])
    assert "already" in command.ask(["skip-table", "shop.bad", "--config", config])
    assert "followed again" in command.ask(["revoke", "shop.bad", "--config", config])
    with pytest.raises(NeedsOperator, match=r"no override for shop\.bad"):
        command.ask(["revoke", "shop.bad", "--config", config])
    command.ask(["skip-table", "shop.bad", "--config", config])
    fresh.run("INSERT INTO shop.bad VALUES (1, 'a')")
    source.start()
    source.catch_up(fresh)
    assert left_out(source, "shop.bad") == (1, 0, 0)
    with pytest.raises(NeedsOperator, match=r"1 rows, 0 events and 0 statements"):
        ask(source, "revoke", "shop.bad")
    assert "followed again" in ask(source, "revoke", "shop.bad", "--accept-gap")
    fresh.run("INSERT INTO shop.bad VALUES (2, 'b')")
    source.catch_up(fresh)
    assert rig.check(fresh).rows("shop.bad") == [(2, "b")]
    assert left_out(source, "shop.bad") == (1, 0, 0)
    assert rows_of(fresh, "shop.bad") == [(1, "a"), (2, "b")]


@pytest.mark.thorough
@pytest.mark.parametrize("server", with_vectors(), indirect=True)
def test_a_table_with_a_vector_is_left_out_and_counted_while_others_continue(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    source = rig.begin(fresh)
    fresh.insert(3)
    source.catch_up(fresh)
    number = "STRING_TO_VECTOR" if fresh.is_mysql else "VEC_FromText"
    fresh.run(
        "CREATE TABLE shop.near (id INT PRIMARY KEY, v VECTOR(3))",
        f"INSERT INTO shop.near VALUES (1, {number}('[1,2,3]')), (2, NULL)",
        "INSERT INTO shop.t VALUES (10, 'x')",
    )
    status = source.fails()
    assert "VECTOR" in status["problem"]
    assert "CREATE TABLE shop.near" in status["problem"]
    assert "penstock source skip-table shop.near" in source.text()
    verbs = [each.split(" ")[2].rstrip(":") for each in status["overrides"]]
    assert "skip-table" in verbs
    ask(source, "skip-table", "shop.near")
    source.catch_up(fresh)
    assert left_out(source, "shop.near") == (2, 0, 1)
    fresh.run(
        f"UPDATE shop.near SET v = {number}('[4,5,6]')",
        "DELETE FROM shop.near WHERE id = 2",
        "INSERT INTO shop.bad VALUES (1, 'a')",
        "ALTER TABLE shop.bad ADD COLUMN w VECTOR(2)",
        "INSERT INTO shop.t VALUES (11, 'y')",
    )
    assert "ALTER TABLE shop.bad" in source.fails()["problem"]
    ask(source, "skip-table", "shop.bad")
    fresh.run(f"INSERT INTO shop.bad VALUES (2, 'b', {number}('[1,2]'))")
    source.catch_up(fresh)
    assert left_out(source, "shop.near") == (5, 0, 1)
    assert left_out(source, "shop.bad") == (1, 0, 1)
    found = rig.check(fresh)
    assert ("shop", "near") not in found.tables
    assert found.rows("shop.bad") == [(1, "a")]


@pytest.mark.thorough
def test_dates_that_no_calendar_has_come_out_as_they_are(
    rig: SourceRig, fresh: AnyBinlogServer
) -> None:
    source = rig.begin(fresh)
    lax = "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'"
    fresh.run(
        lax,
        "CREATE TABLE shop.d (id INT PRIMARY KEY, d DATE, t DATETIME(3))",
        "INSERT INTO shop.d VALUES (1, '2020-02-31', '2021-04-31 10:00:00.125')",
        "INSERT INTO shop.d VALUES (2, NULL, '2019-02-29'), (3, '2020-06-31', NULL)",
        "UPDATE shop.d SET d = '2021-09-31' WHERE id = 1",
        "DELETE FROM shop.d WHERE id = 3",
    )
    source.catch_up(fresh)
    texts = "SELECT id, CAST(d AS CHAR), CAST(t AS CHAR) FROM shop.d"
    wanted = [(1, "2021-09-31", "2021-04-31 10:00:00.125"), (2, None, "2019-02-29 00:00:00.000")]
    assert fresh.query(texts) == wanted
    assert rig.downstream().rows("shop.d") == wanted
    # No writer can say such a default: it stops, and has a way out.
    fresh.run(
        lax,
        "ALTER TABLE shop.d ADD COLUMN later DATE NOT NULL DEFAULT '2020-11-31'",
        "INSERT INTO shop.d (id) VALUES (4)",
    )
    status = source.fails()
    assert "2020-11-31" in status["problem"]
    assert status["overrides"][0].startswith("penstock source replace")
    ask(source, "skip-table", "shop.d")
    fresh.insert(2)
    source.catch_up(fresh)
    assert left_out(source, "shop.d") == (1, 0, 1)
    rig.check(fresh)
