"""Tables of one server's collations on servers that have others: mapped, refused, never merged."""

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import open_sink
from drainer.sinks.protocol import Sink
from penstock.ddl import Catalog, plan_ddl
from penstock.errors import NeedsOperator
from penstock.local.sql_server import SqlServer

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]

Run = Callable[..., Sink]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs DDL downstream, as a Drainer would; a sink of its own for each server and policy."""
    ids, clock = itertools.count(1), itertools.count(1)
    sinks: dict[str, tuple[Sink, Catalog]] = {}

    def made(server: SqlServer, *statements: str, policy: str = "map") -> Sink:
        url = f"{server.url}?collations={policy}"
        if url not in sinks:
            sink = open_sink(url, cluster_id=1, retry_s_max=5)
            sink.load_checkpoint()
            sinks[url] = sink, Catalog()
        sink, catalog = sinks[url]
        for sql in statements:
            for job in plan_ddl(sql, "shop", catalog, lambda: next(ids)):
                change = catalog.copy().apply(job)
                sink.run_ddl(change, Checkpoint(next(clock), 1), maybe_done=False)
                catalog.apply(job)
        return sink

    yield made
    for sink, _ in sinks.values():
        sink.close()


def collations(server: SqlServer, table: str) -> dict[str, str]:
    return dict(
        server.query(
            "SELECT column_name, collation_name FROM information_schema.columns"
            f" WHERE table_schema = 'shop' AND table_name = '{table}' AND collation_name <> ''"
        )
    )


def knows_mysql_s(server: SqlServer) -> bool:
    """Return whether a MariaDB has names for most of MySQL's collations, as from 11.4 on."""
    wanted = "SELECT 1 FROM information_schema.collations WHERE collation_name = '{}'"
    return bool(server.query(wanted.format("utf8mb4_0900_ai_ci")))


def test_a_mysql_s_defaults_have_counterparts_without_padding_on_mariadb(
    mariadb: SqlServer, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        sink = run(
            mariadb,
            "CREATE DATABASE shop COLLATE utf8mb4_0900_ai_ci",
            "CREATE TABLE t (k VARCHAR(20) PRIMARY KEY, b VARCHAR(9) COLLATE utf8mb4_0900_bin,"
            " s VARCHAR(9) COLLATE utf8mb4_sv_0900_as_cs UNIQUE, is_abc INT AS (b = 'abc') STORED,"
            " x VARCHAR(20) AS (k COLLATE utf8mb4_0900_as_ci) VIRTUAL)",
            "ALTER TABLE t ADD COLUMN g VARCHAR(9) CHARACTER SET gb18030",
        )
    has_own = knows_mysql_s(mariadb)
    assert collations(mariadb, "t") == {
        "k": "utf8mb4_0900_ai_ci" if has_own else "utf8mb4_uca1400_nopad_ai_ci",
        "b": "utf8mb4_0900_bin" if has_own else "utf8mb4_nopad_bin",
        "s": "utf8mb4_sv_0900_as_cs" if has_own else "utf8mb4_uca1400_swedish_nopad_as_cs",
        "x": "utf8mb4_0900_ai_ci" if has_own else "utf8mb4_uca1400_nopad_ai_ci",
        "g": "utf8mb4_unicode_520_ci",
    }
    mariadb.run("INSERT INTO shop.t (k, s) VALUES ('x', 'a'), ('x ', 'A'), ('ß', 'b')")
    name = "gb18030_chinese_ci" if has_own else "utf8mb4_0900_ai_ci"
    assert name in sink.stand_ins()
    assert sum(f"collation {name}" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.thorough
def test_a_newer_mariadb_takes_mysql_s_names_itself(mariadb_new: SqlServer, run: Run) -> None:
    sink = run(
        mariadb_new,
        "CREATE DATABASE shop COLLATE utf8mb4_0900_ai_ci",
        "CREATE TABLE t (k VARCHAR(20) PRIMARY KEY, r VARCHAR(9) COLLATE utf8mb4_ru_0900_ai_ci)",
    )
    assert sink.stand_ins() == {"utf8mb4_ru_0900_ai_ci": "utf8mb4_uca1400_nopad_ai_ci"}
    assert set(collations(mariadb_new, "t")) == {"k", "r"}


@pytest.mark.thorough
def test_a_mariadb_s_collations_have_counterparts_on_mysql(mysql: SqlServer, run: Run) -> None:
    run(
        mysql,
        "CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_uca1400_ai_ci",
        "CREATE TABLE t (k VARCHAR(20) PRIMARY KEY, n VARCHAR(9) COLLATE utf8mb4_nopad_bin UNIQUE,"
        " s VARCHAR(9) COLLATE uca1400_swedish_as_ci, l TEXT COLLATE latin1_swedish_nopad_ci,"
        " u VARCHAR(9) CHARACTER SET utf8mb3 COLLATE utf8mb3_uca1400_as_cs,"
        " o VARCHAR(9) COLLATE utf8_general_ci)",
    )
    assert collations(mysql, "t") == {
        "k": "utf8mb4_unicode_520_ci",
        "n": "utf8mb4_0900_bin",
        "s": "utf8mb4_sv_0900_as_cs",
        "l": "latin1_swedish_ci",
        "u": "utf8mb3_unicode_520_ci",
        "o": "utf8mb3_general_ci",
    }


REFUSED = [
    "CREATE TABLE u (k VARCHAR(20) COLLATE latin1_swedish_nopad_ci PRIMARY KEY)",
    "CREATE TABLE u (id INT PRIMARY KEY, v VARCHAR(9) COLLATE utf8mb3_uca1400_as_cs, UNIQUE (v))",
    "ALTER TABLE t ADD UNIQUE KEY (plain)",
    "ALTER TABLE t MODIFY named VARCHAR(20) COLLATE utf8mb4_general_nopad_ci",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_a_substitute_that_could_make_two_keys_one_is_refused_before_it_runs(
    mysql: SqlServer, run: Run, sql: str
) -> None:
    run(
        mysql,
        "CREATE DATABASE shop COLLATE utf8mb4_bin",
        "CREATE TABLE t (id INT PRIMARY KEY, plain VARCHAR(9) COLLATE latin1_swedish_nopad_ci,"
        " named VARCHAR(20) UNIQUE)",
    )
    before = mysql.query("SHOW CREATE TABLE shop.t")
    with pytest.raises(NeedsOperator, match="takes texts for equal that upstream tells apart"):
        run(mysql, sql)
    assert mysql.query("SHOW CREATE TABLE shop.t") == before
    assert mysql.query("SHOW TABLES FROM shop LIKE 'u'") == []


@pytest.mark.thorough
def test_what_stands_in_may_be_switched_off(mariadb: SqlServer, run: Run) -> None:
    run(mariadb, "CREATE DATABASE shop COLLATE utf8mb4_bin", policy="stop")
    with pytest.raises(NeedsOperator, match="has no collation utf8mb4_ru_0900_ai_ci") as refused:
        run(
            mariadb,
            "CREATE TABLE t (id INT PRIMARY KEY, s TEXT COLLATE utf8mb4_ru_0900_ai_ci)",
            policy="stop",
        )
    assert "apply.collations" in refused.value.hint
    assert "utf8mb4_uca1400_nopad_ai_ci" in refused.value.hint


@pytest.mark.thorough
def test_tables_that_were_there_before_a_start_are_reported_too(
    mariadb: SqlServer, run: Run
) -> None:
    catalog = Catalog()
    ids = itertools.count(1)
    for sql in ("CREATE DATABASE d", "CREATE TABLE d.t (s TEXT COLLATE utf8mb4_ru_0900_ai_ci)"):
        for job in plan_ddl(sql, None, catalog, lambda: next(ids)):
            catalog.apply(job)
    with closing(open_sink(mariadb.url, cluster_id=1, retry_s_max=5)) as sink:
        assert sink.stand_ins() == {}
        sink.look_at(catalog)
        assert sink.stand_ins() == {"utf8mb4_ru_0900_ai_ci": "utf8mb4_uca1400_nopad_ai_ci"}
