"""Statements of MySQL and MariaDB become Penstock's DDL, or nothing, or a stop that says why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ddl.syntax.lexer import Kind, read
from penstock.errors import NeedsOperator
from penstock.wire.binlog import Origin
from pumpclient.mysql.events.transactions import Query, StatusVariables
from pumpclient.mysql.translate.ddl_pieces import Override, Translator, Verb, origins_of
from pumpclient.mysql.translate.online_ddl import Kept, OnlineDdl
from pumpclient.mysql.translate.statement_objects import left_by_failed, may_have_failed
from pumpclient.mysql.translate.statement_text import (
    ANSI_QUOTES,
    NO_BACKSLASH_ESCAPES,
    PIPES_AS_CONCAT,
    REAL_AS_FLOAT,
    dialect_of,
    plain_text,
    statement_text,
    with_utf8mb4,
)
from tests.kit.mysql.encoding import encode_status
from tests.unit.penstock.ddl_session import DdlSession

MYSQL, MARIADB = dialect_of("8.0.36"), dialect_of("10.11.6-MariaDB-log")


def executed(sql: str, translator: Translator | None = None) -> list[str]:
    found = (translator or Translator()).translate(sql, "d", {})
    return [piece.sql for piece in found.pieces]


@pytest.mark.parametrize(
    ("text", "mode", "plain"),
    [
        ('CREATE TABLE "a""b`" (x INT)', ANSI_QUOTES, 'CREATE TABLE `a"b``` (x INT)'),
        ('ALTER TABLE t COMMENT "x"', 0, 'ALTER TABLE t COMMENT "x"'),
        (r"ALTER TABLE t COMMENT 'a\'", NO_BACKSLASH_ESCAPES, r"ALTER TABLE t COMMENT 'a\\'"),
        (r"ALTER TABLE t COMMENT 'a\'-- b'", 0, r"ALTER TABLE t COMMENT 'a\'-- b'"),
        ("CREATE TABLE t (r REAL)", REAL_AS_FLOAT, "CREATE TABLE t (r FLOAT)"),
        ("DROP TABLE t; ", 0, "DROP TABLE t"),
        ("DROP /* why */ TABLE t -- so\n", 0, "DROP   TABLE t"),
    ],
)
def test_a_statement_becomes_plain(text: str, mode: int, plain: str) -> None:
    assert plain_text(text, mode, MYSQL) == plain


@pytest.mark.parametrize(
    ("text", "mysql", "mariadb"),
    [
        ("A /*!40100 B */ C", "A B C", "A B C"),
        ("A /*! B */ C", "A B C", "A B C"),
        ("A /*!80016 B */ C", "A B C", "A C"),
        ("A /*!99999 B */ C", "A C", "A C"),
        ("A /*!100100 B */ C", "A C", "A B C"),
        ("A /*M! B */ C", "A C", "A B C"),
        ("A /*M!110400 B */ C", "A C", "A C"),
        ("A /*!40000 B /* inner */ D */ C", "A B D C", "A B D C"),
        ("A /*!99999 '*/' */ C", "A C", "A C"),
    ],
)
def test_comments_are_what_their_server_ran(text: str, mysql: str, mariadb: str) -> None:
    assert " ".join(plain_text(text, 0, MYSQL).split()) == mysql
    assert " ".join(plain_text(text, 0, MARIADB).split()) == mariadb


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_text_in_quotes_keeps_its_meaning_in_every_mode(value: str) -> None:
    doubled = value.replace("'", "''")
    plain = plain_text(f"X '{doubled}'", NO_BACKSLASH_ESCAPES, MYSQL)
    tokens = [token for token in read(plain).tokens if token.kind is Kind.STRING]
    assert [token.text for token in tokens] == [value]


def test_what_never_ends_and_what_joins_texts_stops() -> None:
    for text in ("DROP TABLE `t", "A /*! B", "A 'b"):
        with pytest.raises(NeedsOperator, match="never ends"):
            plain_text(text, 0, MYSQL)
    with pytest.raises(NeedsOperator, match="joins"):
        plain_text("CREATE TABLE t (a TEXT AS (b || c))", PIPES_AS_CONCAT, MYSQL)


def test_a_statement_is_read_in_its_sessions_charset() -> None:
    status = encode_status(StatusVariables(charsets=(8, 8, 45)))
    assert (
        statement_text(Query(b"d", "DROP TABLE `é`".encode("latin-1"), status)) == "DROP TABLE `é`"
    )
    with pytest.raises(NeedsOperator, match="character set"):
        statement_text(Query(b"d", b"DROP TABLE `\xe9`"))


def test_what_belongs_to_a_server_is_skipped_with_a_reason() -> None:
    found = Translator().translate("DROP TRIGGER x", "d", {})
    assert (found.pieces, bool(found.skipped)) == ((), True)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("DROP TABLE IF EXISTS a, x.b",
         ["DROP TABLE IF EXISTS `d`.`a`, `x`.`b`"]),
        ("DROP VIEW a, b RESTRICT", ["DROP VIEW `d`.`a`, `d`.`b`"]),
        ("RENAME TABLE a TO b, b TO c",
         ["RENAME TABLE `d`.`a` TO `d`.`b`, `d`.`b` TO `d`.`c`"]),
        ("RENAME TABLE IF EXISTS a WAIT 5 TO tmp, b NOWAIT TO a, tmp TO b",
         ["RENAME TABLE IF EXISTS `d`.`a` TO `d`.`tmp`, `d`.`b` TO `d`.`a`, `d`.`tmp` TO `d`.`b`"]),
        ("CREATE TABLE t (event INT, `trigger` INT)",
         ["CREATE TABLE `d`.`t` (event INT, `trigger` INT)"]),
        ("CREATE OR REPLACE TABLE t (a INT)",
         ["DROP TABLE IF EXISTS `d`.`t`", "CREATE TABLE `d`.`t` (a INT)"]),
        ("CREATE OR REPLACE SCHEMA e CHARACTER SET latin1",
         ["DROP DATABASE IF EXISTS `e`", "CREATE SCHEMA `e` CHARACTER SET latin1"]),
        ("CREATE OR REPLACE UNIQUE INDEX k ON t (a)",
         ["DROP INDEX IF EXISTS `k` ON `d`.`t`", "CREATE UNIQUE INDEX k ON `d`.`t` (a)"]),
        ("CREATE OR REPLACE INDEX k ON t (a) WAIT 5",
         ["DROP INDEX IF EXISTS `k` ON `d`.`t`", "CREATE INDEX k ON `d`.`t` (a) WAIT 5"]),
        ("CREATE TABLE t (a INT) START TRANSACTION", ["CREATE TABLE `d`.`t` (a INT)"]),
        ("CREATE DATABASE e", ["CREATE DATABASE `e`"]),
        ("TRUNCATE t", ["TRUNCATE `d`.`t`"]),
        ("ALTER TABLE t ADD a INT, DROP b", ["ALTER TABLE `d`.`t` ADD a INT, DROP b"]),
    ],
)  # fmt: skip
def test_a_statement_is_split_and_names_its_tables(text: str, pieces: list[str]) -> None:
    assert executed(text) == pieces


def test_pieces_of_one_statement_come_to_one_job_each() -> None:
    session = DdlSession("CREATE TABLE a (x INT)", "CREATE TABLE b (x INT, KEY k (x))")
    for text in (
        "CREATE OR REPLACE INDEX k ON b (x)",
        "CREATE OR REPLACE TABLE b (y INT)",
        "RENAME TABLE a TO c, b TO a",
        "DROP TABLE a, c",
        "CREATE OR REPLACE DATABASE d",
    ):
        for sql in executed(text):
            assert len(session.run(sql)) == 1


def test_of_a_drop_an_online_ddls_copies_and_merged_tables_are_dropped_one_by_one() -> None:
    merging = Translator(is_merged=lambda schema, table: table.startswith("m"))
    assert executed("DROP TABLE a, m1, _a_gho, b, m2", merging) == [
        "DROP TABLE `d`.`m1`",
        "DROP TABLE `d`.`m2`",
        "DROP TABLE `d`.`a`, `d`.`b`",
    ]


def test_filters_and_routes_hold_for_ddl() -> None:
    def is_replicated(schema: str, table: str) -> bool:
        return schema == "d" and table != "private"

    def target(schema: str, table: str) -> tuple[str, str]:
        return "all", table.rstrip("0123456789")

    rules = Translator(is_replicated=is_replicated, target=target)
    assert executed("DROP TABLE t1, private, other.t", rules) == ["DROP TABLE `all`.`t`"]
    assert executed("DROP TABLE t1, private, u", rules) == ["DROP TABLE `all`.`t`, `all`.`u`"]
    assert executed("DROP TABLE private, other.t", rules) == []
    assert executed("CREATE DATABASE other", rules) == []
    with pytest.raises(NeedsOperator, match="filters skip"):
        executed("RENAME TABLE t TO private", rules)


def test_a_rename_leaves_out_whole_pairs_and_is_split_where_tables_are_merged() -> None:
    without_other = Translator(is_replicated=lambda schema, table: schema != "other")
    sql = "RENAME TABLE a TO tmp, other.x TO other.y, b TO a, tmp TO b"
    assert executed(sql, without_other) == [
        "RENAME TABLE `d`.`a` TO `d`.`tmp`, `d`.`b` TO `d`.`a`, `d`.`tmp` TO `d`.`b`"
    ]
    assert executed("RENAME TABLE other.x TO other.y, other.z TO other.x", without_other) == []
    with pytest.raises(NeedsOperator, match="filters skip"):
        executed("RENAME TABLE a TO other.a, b TO a", without_other)
    merged = Translator(is_merged=lambda schema, table: table == "a")
    assert executed("RENAME TABLE IF EXISTS a TO b, c TO a", merged) == [
        "RENAME TABLE IF EXISTS `d`.`a` TO `d`.`b`",
        "RENAME TABLE IF EXISTS `d`.`c` TO `d`.`a`",
    ]


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("INSERT INTO t VALUES (1)", "shop"),
        ("INSERT INTO shop.t VALUES (1)", "other"),
        ("INSERT IGNORE `shop`.`t` SELECT * FROM other.t", ""),
        ("REPLACE LOW_PRIORITY INTO shop . t SET a = 1", "other"),
        ("UPDATE other.t, shop.t SET t.a = 1", "other"),
        ("UPDATE other.t AS o JOIN shop.t ON o.a = t.a SET o.a = 1", "other"),
        ("UPDATE (other.t) SET a = 1", "other"),
        ("DELETE FROM shop.t WHERE a = 1", "other"),
        ("DELETE t FROM other.t JOIN shop.t", "other"),
        ("DELETE FROM t USING shop.t JOIN other.t", "other"),
        ("WITH c AS (SELECT 1) DELETE FROM other.t", "other"),
        ("CALL p()", "other"),
        ("SELECT f()", "other"),
        ("LOAD DATA INFILE 'x' INTO TABLE other.t", "other"),
    ],
)
def test_rows_as_a_statement_stop_where_a_replicated_table_may_change(
    text: str, schema: str
) -> None:
    shop = Translator(is_replicated=lambda schema, table: schema == "shop")
    with pytest.raises(NeedsOperator, match="as a statement"):
        shop.translate(text, schema, {})


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("INSERT INTO mysql.rds_heartbeat2(id, value) VALUES (1, 7) ON DUPLICATE KEY UPDATE"
         " value = 7", "mysql.rds_heartbeat2"),
        ("REPLACE other.t SELECT * FROM shop.t", "other.t"),
        ("UPDATE IGNORE `a.b`.t x, other.u SET x.a = 'FROM shop.t'", "a.b.t, other.u"),
        ("DELETE QUICK FROM other.t LIMIT 1", "other.t"),
    ],
)  # fmt: skip
def test_rows_as_a_statement_are_left_out_where_all_tables_are(text: str, tables: str) -> None:
    shop = Translator(is_replicated=lambda schema, table: schema == "shop")
    assert shop.translate(text, "shop", {}).skipped == f"{tables}: not replicated"
    hidden = Translator(is_replicated=shop.is_replicated, side_effects=lambda changed: "a trigger")
    with pytest.raises(NeedsOperator, match="a trigger"):
        hidden.translate(text, "shop", {})


def test_what_is_unknown_stops_and_an_operator_decides() -> None:
    with pytest.raises(NeedsOperator, match="run one of the listed commands"):
        executed("FROBNICATE TABLE t")
    translator = Translator()
    skip = translator.translate("FROBNICATE TABLE t", "d", {}, Override(Verb.SKIP))
    assert skip.pieces == ()
    statements = ("ALTER TABLE d.t ADD a INT", "DROP TABLE d.u, d.v")
    replaced = translator.translate("FROBNICATE", "d", {}, Override(Verb.REPLACE, statements))
    assert [piece.sql for piece in replaced.pieces] == [
        "ALTER TABLE d.t ADD a INT",
        "DROP TABLE d.u, d.v",
    ]
    inject = Override(Verb.INJECT, ("TRUNCATE d.u",))
    injected = translator.translate("DROP TABLE t", "d", {}, inject)
    assert [piece.sql for piece in injected.pieces] == ["TRUNCATE d.u", "DROP TABLE `d`.`t`"]


@pytest.mark.parametrize(
    ("shadow", "trash"), [("_t_gho", "_t_del"), ("_t_new", "_t_old")], ids=["gh-ost", "pt-osc"]
)
def test_an_online_ddl_comes_out_as_its_alters_at_the_rename(shadow: str, trash: str) -> None:
    translator = Translator()
    kept: Kept = {}
    out: list[str] = []
    for sql in (
        f"CREATE TABLE {shadow} LIKE t",
        f"ALTER TABLE {shadow} ADD a INT",
        f"ALTER TABLE d.{shadow} DROP b",
        "CREATE TABLE _t_ghc (id INT)",
        f"RENAME TABLE t TO {trash}, {shadow} TO t",
        f"DROP TABLE IF EXISTS {trash}",
    ):
        found = translator.translate(sql, "d", kept)
        kept = found.kept
        out += [piece.sql for piece in found.pieces]
    assert out == ["ALTER TABLE `d`.`t` ADD a INT", "ALTER TABLE `d`.`t` DROP b"]
    assert kept == {}


def test_an_online_ddl_whose_beginning_was_not_seen_stops() -> None:
    with pytest.raises(NeedsOperator, match="nothing is known"):
        executed("RENAME TABLE _t_gho TO t")
    with pytest.raises(NeedsOperator, match="becomes a copy"):
        executed("RENAME TABLE t TO _t_gho")
    assert executed("CREATE TABLE _t_new (a INT)", Translator(online=None)) == [
        "CREATE TABLE `d`.`_t_new` (a INT)"
    ]
    with pytest.raises(NeedsOperator, match="one group"):
        OnlineDdl(shadow=("^_x$",))


def test_pieces_have_growing_origins_that_end_at_the_statements() -> None:
    origin = Origin(source="s", epoch=1, file=2, position=500)
    assert [each.position for each in origins_of(origin, 3)] == [498, 499, 500]


@pytest.mark.parametrize(
    ("sql", "mode"),
    [("CREATE TABLE t (a TIMESTAMP)", 1 << 12), ("CREATE TABLE t (a DATE)", 1 << 9)],
)
def test_a_type_that_means_another_under_a_sql_mode_is_refused(sql: str, mode: int) -> None:
    with pytest.raises(NeedsOperator, match="means another type"):
        plain_text(sql, mode, MARIADB)
    assert plain_text(sql, mode, MYSQL) == sql


@pytest.mark.parametrize("options", ["CHARACTER SET utf8", "COMMENT 'x' COLLATE utf8mb4_bin"])
def test_a_database_that_is_altered_without_its_name_is_the_current_one(options: str) -> None:
    found = Translator().translate(f"ALTER DATABASE {options}", "sh`op", {})
    assert [piece.sql for piece in found.pieces] == [f"ALTER DATABASE `sh``op` {options}"]
    assert found.pieces[0].tables == (("sh`op", ""),)


@pytest.mark.parametrize(
    ("sql", "done"),
    [
        ("CREATE OR REPLACE TABLE t (a INT AS (b))", "DROP TABLE IF EXISTS `t`"),
        ("create or replace table `e`.t", "DROP TABLE IF EXISTS `e`.`t`"),
        ("CREATE OR REPLACE TABLE t SELECT * FROM u", "DROP TABLE IF EXISTS `t`"),
        ("DROP TABLE t, u", "DROP TABLE IF EXISTS t, u"),
        ("drop view if exists t, u", "drop view if exists t, u"),
        ("DROP VIEW t", "DROP VIEW IF EXISTS t"),
        ("CREATE TABLE t (a INT)", "CREATE TABLE t (a INT)"),
    ],
)
def test_a_failed_statement_is_what_it_did_before_it_failed(sql: str, done: str) -> None:
    assert left_by_failed(sql) == done


@pytest.mark.parametrize(
    ("written", "error_code", "wanted"),
    [
        ("DROP TABLE `a`,`nope` /* generated by server */", 0, True),
        ("DROP SEQUENCE `a`,`nope` /* generated by server */", 0, True),
        ("DROP TABLE a, nope", 1051, True),
        ("DROP TABLE a", 0, False),
        ("ALTER TABLE t ADD a INT /* generated by server */", 0, False),
    ],
)
def test_a_drop_that_the_server_wrote_may_have_met_tables_that_do_not_exist(
    written: str, error_code: int, wanted: bool
) -> None:
    assert may_have_failed(written, error_code) is wanted


@pytest.mark.parametrize(
    ("sql", "meant"),
    [
        ("ALTER TABLE t ADD a TEXT CHARSET utf8", "ALTER TABLE t ADD a TEXT CHARSET utf8mb4"),
        ("CREATE TABLE t (a INT) CHARSET=UTF8 COLLATE = 'utf8_bin'",
         "CREATE TABLE t (a INT) CHARSET=utf8mb4 COLLATE = utf8mb4_bin"),
        ("ALTER TABLE t CONVERT TO CHARSET `utf8`", "ALTER TABLE t CONVERT TO CHARSET utf8mb4"),
        ("CREATE TABLE t (a CHAR DEFAULT CONVERT(b USING utf8))",
         "CREATE TABLE t (a CHAR DEFAULT CONVERT(b USING utf8mb4))"),
        ("CREATE TABLE t (a CHAR DEFAULT _utf8'x')", "CREATE TABLE t (a CHAR DEFAULT _utf8mb4'x')"),
        ("CREATE TABLE utf8 (utf8 INT COMMENT 'utf8', utf8_b NCHAR, c CHAR CHARSET utf8mb3)",) * 2,
    ],
)  # fmt: skip
def test_the_alias_utf8_is_spelled_as_its_server_means_it(sql: str, meant: str) -> None:
    assert with_utf8mb4(sql) == meant
