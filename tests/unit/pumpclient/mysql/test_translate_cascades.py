"""Which foreign keys change rows that a binlog does not have, and what a source does then."""

import logging

import pytest

from penstock.errors import NeedsOperator
from pumpclient.mysql.source.config import ACCEPT, STOP, SourceConfig
from pumpclient.mysql.source.ddl.cascades import Cascades
from pumpclient.mysql.translate.ddl_pieces import Override, Piece, Translator, Verb
from pumpclient.mysql.translate.foreign_keys import cascades_of_statement, cascades_of_table
from pumpclient.mysql.translate.online_ddl import OnlineDdl
from pumpclient.mysql.translate.statement_text import Dialect, dialect_of

MYSQL, MARIADB = dialect_of("8.0.36"), dialect_of("10.11.6-MariaDB-log")
OLD_MARIADB, NEW_MYSQL = dialect_of("10.4.34-MariaDB"), dialect_of("9.0.1")
KEY = "FOREIGN KEY (p) REFERENCES p (id)"
INLINE = "CREATE TABLE c (id INT, p INT REFERENCES p (id) ON DELETE CASCADE)"


def pieces(
    sql: str, override: Override | None = None, translator: Translator | None = None
) -> tuple[Piece, ...]:
    return (translator or Translator()).translate(sql, "d", {}, override).pieces


def found(sql: str, dialect: Dialect = MARIADB, translator: Translator | None = None) -> list[str]:
    return [
        str(each)
        for piece in pieces(sql, translator=translator)
        for each in cascades_of_statement(piece.tables[0], piece.sql, dialect)
    ]


def cascades(policy: str) -> Cascades:
    return Cascades(policy, lambda schema, table: True, OnlineDdl(), lambda: False)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        (f"CREATE TABLE c (p INT, CONSTRAINT f {KEY} ON DELETE CASCADE)",
         ["d.c: f ON DELETE CASCADE"]),
        (f"CREATE OR REPLACE TABLE c (p INT, {KEY} ON UPDATE SET NULL ON DELETE NO ACTION)",
         ["d.c: FOREIGN KEY (p) ON UPDATE SET NULL"]),
        (f"ALTER TABLE e.c ADD x INT, ADD CONSTRAINT f {KEY} on delete set null on update cascade",
         ["e.c: f ON DELETE SET NULL ON UPDATE CASCADE"]),
        (f"ALTER TABLE c ADD CONSTRAINT f {KEY} ON DELETE CASCADE, ADD CONSTRAINT g {KEY},"
         f" ADD CONSTRAINT h {KEY} ON UPDATE CASCADE",
         ["d.c: f ON DELETE CASCADE", "d.c: h ON UPDATE CASCADE"]),
        (INLINE, ["d.c: column p ON DELETE CASCADE"]),
        ("ALTER TABLE c ADD COLUMN p INT REFERENCES p (id) ON UPDATE CASCADE",
         ["d.c: column p ON UPDATE CASCADE"]),
        (f"CREATE TABLE c (p INT, {KEY})", []),
        (f"CREATE TABLE c (p INT, {KEY} ON DELETE RESTRICT ON UPDATE NO ACTION)", []),
        (f"CREATE TABLE c (p INT DEFAULT 1, {KEY} ON DELETE SET DEFAULT)", []),
        ("CREATE TABLE c (p INT COMMENT 'ON DELETE CASCADE')", []),
        ("ALTER TABLE c DROP COLUMN p CASCADE, DROP FOREIGN KEY f", []),
        ("RENAME TABLE a TO b", []),
    ],
)  # fmt: skip
def test_keys_that_change_rows_by_themselves_are_found_in_ddl(sql: str, names: list[str]) -> None:
    assert found(sql) == names


def test_an_inline_reference_counts_where_the_server_heeds_it() -> None:
    heeds = {dialect: bool(found(INLINE, dialect)) for dialect in (MYSQL, OLD_MARIADB, NEW_MYSQL)}
    assert heeds == {MYSQL: False, OLD_MARIADB: False, NEW_MYSQL: True}


def test_names_are_those_of_the_server_and_tables_left_out_do_not_count() -> None:
    sql = f"CREATE TABLE c (p INT, CONSTRAINT f {KEY} ON DELETE CASCADE)"
    renaming = Translator(target=lambda s, t: ("x", "y"))
    assert found(sql, translator=renaming) == ["d.c: f ON DELETE CASCADE"]
    assert found(sql, translator=Translator(is_replicated=lambda s, t: False)) == []


def test_a_copy_of_an_online_ddl_counts_when_it_takes_the_tables_place() -> None:
    translator = Translator()
    alter = f"ALTER TABLE _c_new ADD CONSTRAINT f {KEY} ON DELETE CASCADE"
    begun = translator.translate(alter, "d", {})
    cascades(STOP).look_at(begun.pieces, MYSQL)
    ended = translator.translate("RENAME TABLE c TO _c_old, _c_new TO c", "d", begun.kept)
    with pytest.raises(NeedsOperator, match=r"d\.c: f ON DELETE CASCADE"):
        cascades(STOP).look_at(ended.pieces, MYSQL)


def test_what_show_create_table_writes_is_read() -> None:
    text = (
        "CREATE TABLE `c` (\n  `p` int(11) DEFAULT NULL COMMENT 'SET NULL',\n  KEY `p` (`p`),\n"
        "  CONSTRAINT `c_ibfk_1` FOREIGN KEY (`p`) REFERENCES `p` (`id`) %s\n) ENGINE=InnoDB"
    )
    (one,) = cascades_of_table(("shop", "c"), text % "ON DELETE SET NULL ON UPDATE NO ACTION")
    assert str(one) == "shop.c: c_ibfk_1 ON DELETE SET NULL"
    assert cascades_of_table(("shop", "c"), text % "") == []


def test_a_source_stops_unless_they_are_accepted_and_then_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    sql = f"ALTER TABLE c ADD CONSTRAINT f {KEY} ON DELETE CASCADE"
    with pytest.raises(NeedsOperator, match=r"d\.c: f ON DELETE CASCADE") as stopped:
        cascades(STOP).look_at(pieces(sql), MYSQL)
    for advice in ("penstock source reload", 'cascades = "repair"', "penstock verify --repair"):
        assert advice in stopped.value.hint
    assert not caplog.messages
    accepting = cascades(ACCEPT)
    for _ in range(2):
        accepting.look_at(pieces(sql), MYSQL)
    assert len(caplog.messages) == 1
    assert "d.c: f ON DELETE CASCADE" in caplog.text


def test_a_server_that_logs_what_its_keys_change_stops_no_source(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sql = f"ALTER TABLE c ADD CONSTRAINT f {KEY} ON DELETE CASCADE"
    logged = Cascades(STOP, lambda schema, table: True, OnlineDdl(), lambda: True)
    logged.look_at(pieces(sql), MYSQL)
    assert not caplog.messages


def test_what_an_operator_decided_runs_with_a_warning_and_nothing_else_of_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = "CONSTRAINT f FOREIGN KEY (p) REFERENCES d.p (id) ON DELETE CASCADE"
    sql = f"ALTER TABLE d.c ADD {key}"
    replaced = pieces("CREATE TABLE d.x (a INT)", Override(Verb.REPLACE, (sql,)))
    cascades(STOP).look_at(replaced, MYSQL)
    assert "d.c: f ON DELETE CASCADE" in caplog.text
    injected = pieces(sql, Override(Verb.INJECT, ("ALTER TABLE d.c ADD x INT",)))
    with pytest.raises(NeedsOperator, match=r"d\.c: f"):
        cascades(STOP).look_at(injected, MYSQL)


def test_no_other_policy_is_taken() -> None:
    with pytest.raises(NeedsOperator, match="cascades"):
        SourceConfig(cascades="ignore")
