"""Tables that are left out: which statements are theirs, where a RENAME takes them, what counts."""

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.errors import NeedsOperator
from pumpclient.mysql.source.state.skipped import SkippedTable, SkippedTables, Verdict, judged
from pumpclient.mysql.translate.ddl_pieces import Translator
from pumpclient.mysql.translate.online_ddl import OnlineDdl
from pumpclient.mysql.translate.statement_objects import changed_tables

T, U = ("shop", "t"), ("shop", "u")


def left_out(*names: tuple[str, str], **figures: Any) -> SkippedTables:
    made = (
        SkippedTable(schema=s, table=t, since="a|000001.000001:4", is_whole=True, **figures)
        for s, t in names
    )
    return SkippedTables(made)


def verdict(sql: str, tables: SkippedTables, here: tuple[tuple[str, str], ...] = (T, U)) -> Verdict:
    found = Translator(online=None).translate(sql, "shop", {})
    return judged(found, tables, lambda name: name in here)


def sql_of(found: Verdict) -> list[str]:
    return [piece.sql for piece in found.pieces if piece is not None]


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("ALTER TABLE t ADD c INT", (T,)),
        ("ALTER TABLE t RENAME TO u", (T, U)),
        ("RENAME TABLE t TO u", (T, U)),
        ("ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES u (a)", (T,)),
        ("CREATE TABLE t LIKE u", (T,)),
        ("ALTER TABLE t ADD c NOSUCHTYPE(7)", (T,)),
        ("ALTER ONLINE TABLE IF EXISTS `t` WHAT EVER", (T,)),
        ("ALTER TABLE other.`t.x` WHAT EVER, RENAME COLUMN a TO b", (("other", "t.x"),)),
        ("CREATE TABLE IF NOT EXISTS shop.t (v NOSUCHTYPE(3))", (T,)),
        ("CREATE OR REPLACE ALGORITHM=MERGE VIEW t AS WHAT EVER", (T,)),
        ("CREATE WHATEVER INDEX i ON t (a)", (T,)),
        ("SET STATEMENT x=1 FOR ALTER TABLE t WHAT EVER", (T,)),
        ("TRUNCATE t", (T,)),
        ("ALTER TABLE t WHAT EVER, RENAME u", ()),
        ("ALTER TABLE t WHAT EVER, RENAME AS u", ()),
        ("ALTER TABLE t WHAT EVER EXCHANGE PARTITION p WITH TABLE u", ()),
        ("DROP TABLE t, u WHAT EVER", ()),
        ("RENAME TABLE t WHAT EVER TO u", ()),
        ("SOMETHING TABLE t", ()),
    ],
)
def test_the_tables_that_a_statement_changes_are_named_where_that_is_sure(
    sql: str, names: tuple[tuple[str, str], ...]
) -> None:
    assert changed_tables(sql, "shop") == names


@pytest.mark.parametrize(
    "sql", ["ALTER TABLE t ADD c INT", "TRUNCATE TABLE t", "CREATE TABLE t (id INT)"]
)
def test_what_changes_a_table_that_is_left_out_is_counted_and_not_run(sql: str) -> None:
    assert verdict(sql, left_out(T)) == Verdict((None,), counted=(T,))
    assert len(verdict(sql, left_out(U)).pieces) == 1


def test_a_foreign_key_of_another_table_to_one_that_is_left_out_is_followed() -> None:
    found = verdict("ALTER TABLE u ADD FOREIGN KEY (a) REFERENCES t (a)", left_out(T))
    assert (len(found.pieces), found.counted) == (1, ())


def test_a_swap_takes_the_table_that_is_left_out_along_here_and_downstream() -> None:
    tables = left_out(T, rows=3)
    found = verdict("RENAME TABLE t TO tmp, u TO t, tmp TO u", tables)
    assert sql_of(found) == [
        "RENAME TABLE `shop`.`t` TO `shop`.`tmp`",
        "RENAME TABLE `shop`.`u` TO `shop`.`t`",
        "RENAME TABLE `shop`.`tmp` TO `shop`.`u`",
    ]
    for old, new in found.renamed:
        tables.rename(old, new)
    assert (tables.has(*T), tables.has(*U)) == (False, True)
    moved = tables.of(U)
    assert moved is not None
    assert moved.rows == 3


def test_a_rename_within_an_alter_moves_the_table_and_counts_what_else_it_does() -> None:
    found = verdict("ALTER TABLE t ADD c INT, RENAME TO u", left_out(T))
    assert sql_of(found) == ["RENAME TABLE `shop`.`t` TO `shop`.`u`"]
    assert (found.counted, found.renamed) == ((T,), ((T, U),))


def test_what_the_cluster_never_had_is_neither_renamed_nor_dropped_there() -> None:
    assert verdict("RENAME TABLE t TO u", left_out(T), here=()).pieces == (None,)
    assert verdict("DROP TABLE t", left_out(T), here=()).pieces == (None,)
    assert len(sql_of(verdict("DROP TABLE t", left_out(T)))) == 1
    for here, sql in (((T, U), "`shop`.`t`, `shop`.`u`"), ((U,), "`shop`.`u`")):
        found = verdict("DROP TABLE t, u", left_out(T), here=here)
        assert (sql_of(found), found.moved) == ([f"DROP TABLE {sql}"], (T, U))


@pytest.mark.parametrize("sql", ["DROP TABLE t", "DROP TABLE IF EXISTS u, t", "DROP DATABASE shop"])
@pytest.mark.parametrize("here", [(T, U), ()])
def test_the_drop_of_a_left_out_table_is_noted_until_the_table_is_there_again(
    sql: str, here: tuple[tuple[str, str], ...]
) -> None:
    tables = left_out(T, reload=1)
    found = verdict(sql, tables, here)
    assert (found.dropped, T in found.moved) == ((T,), True)
    tables.drop(T, "a|000001.000001:9")
    again = verdict("CREATE TABLE t (id INT)", tables)
    assert (again.counted, again.moved) == ((T,), (T,))
    tables.add_statement([T], "a|000001.000001:19")
    assert tables.of(T) == SkippedTable(
        schema="shop", table="t", since="a|000001.000001:4", is_whole=True, reload=1, statements=1
    )
    assert verdict("CREATE TABLE IF NOT EXISTS t (id INT)", tables).moved == ()


def test_a_followed_table_that_takes_a_left_out_name_stays_followed() -> None:
    tables = left_out(T)
    found = verdict("RENAME TABLE u TO t", tables)
    assert sql_of(found) == ["RENAME TABLE `shop`.`u` TO `shop`.`t`"]
    for old, new in found.renamed:
        tables.rename(old, new)
    assert not tables.has(*T)


def test_a_copy_of_a_definition_that_is_stale_is_refused() -> None:
    assert len(verdict("CREATE TABLE u LIKE t", left_out(T)).pieces) == 1
    with pytest.raises(NeedsOperator, match=r"shop\.t, which is skipped"):
        verdict("CREATE TABLE u LIKE t", left_out(T, statements=1))


def test_what_gh_ost_did_to_a_copy_of_a_left_out_table_is_left_out() -> None:
    translator, tables = Translator(online=OnlineDdl()), left_out(T)
    kept: dict[str, Sequence[str]] = {}
    for sql in ("CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho ADD c INT"):
        kept = dict(translator.translate(sql, "shop", kept).kept)
    swap = translator.translate("RENAME TABLE t TO _t_del, _t_gho TO t", "shop", kept)
    found = judged(swap, tables, lambda name: True)
    assert (sql_of(found), found.counted, found.renamed) == ([], (T,), ())


def test_rows_count_with_the_end_of_their_transaction_only() -> None:
    tables = left_out(T)
    tables.add(T, 3)
    tables.drop_open()
    tables.add(T, 2)
    tables.add(T, None)
    tables.add(U, 1)
    assert tables.finish("a|000001.000001:99")
    assert not tables.finish("a|000001.000001:100")
    figures = {each.name: (each.rows, each.events, each.is_whole) for each in tables.tables}
    assert figures == {T: (2, 1, True), U: (1, 0, False)}


def test_a_table_that_is_created_where_a_reload_puts_others_joins_it() -> None:
    def target(name: tuple[str, str]) -> tuple[str, str]:
        return "shop", name[1].rstrip("0123456789")

    def found(sql: str, tables: SkippedTables) -> Verdict:
        made = Translator(online=None).translate(sql, "shop", {})
        return judged(made, tables, lambda name: name == ("shop", "t"), target)

    joined = found("CREATE TABLE t2 (id INT)", left_out(("shop", "t1"), reload=7))
    assert joined.pieces == (None,)
    assert joined.joined == ((("shop", "t2"), 7),)
    assert joined.counted == (("shop", "t2"),)
    for sql, tables in (
        ("CREATE TABLE u2 (id INT)", left_out(("shop", "t1"), reload=7)),
        ("CREATE TABLE t2 (id INT)", left_out(("shop", "t1"))),
        ("ALTER TABLE t2 ADD c INT", left_out(("shop", "t1"), reload=7)),
    ):
        assert not found(sql, tables).joined
        assert len(sql_of(found(sql, tables))) == 1
