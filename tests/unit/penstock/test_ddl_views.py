"""A view's tables are found, and nothing else is taken for one."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ddl import Catalog, plan_ddl, rename_tables
from penstock.ddl.parse.views import TableScan
from penstock.ddl.syntax.lexer import read
from penstock.errors import NeedsOperator
from tests.unit.penstock.ddl_session import DdlSession


def read_by(select: str) -> list[str]:
    found = TableScan(read(select)).tables()
    return [f"{t.schema}.{t.name}" if t.schema else t.name for t in found]


@pytest.mark.parametrize(
    ("select", "tables"),
    [
        ("SELECT 1", []),
        ("SELECT 1 FROM DUAL", []),
        ("SELECT a FROM t WHERE a = 1", ["t"]),
        ("SELECT * FROM a, b AS x, d.c y WHERE 1", ["a", "b", "d.c"]),
        ("SELECT * FROM (a, b) LEFT JOIN (c JOIN d ON c.i = d.i) ON a.i = c.i", list("abcd")),
        ("SELECT * FROM a NATURAL JOIN b STRAIGHT_JOIN c", list("abc")),
        ("SELECT STRAIGHT_JOIN x, y FROM a JOIN b USING (i), c", list("abc")),
        ("SELECT * FROM {OJ a LEFT OUTER JOIN b ON a.i = b.i}", ["a", "b"]),
        ("SELECT (SELECT MAX(x) FROM b) FROM a WHERE i IN (SELECT i FROM c)", list("bac")),
        ("SELECT * FROM (SELECT * FROM (SELECT * FROM a) x) y, b", ["a", "b"]),
        ("SELECT * FROM a, LATERAL (SELECT * FROM b WHERE b.i = a.i) x", ["a", "b"]),
        ("SELECT EXTRACT(DAY FROM d), TRIM(BOTH 'x' FROM s), SUBSTRING(s FROM 2) FROM a", ["a"]),
        ("SELECT EXTRACT(DAY FROM (SELECT d FROM b)) FROM a", ["b", "a"]),
        ("SELECT jt.x FROM t, JSON_TABLE(t.j, '$[*]' COLUMNS (x INT PATH '$')) jt, u", ["t", "u"]),
        ("SELECT * FROM a PARTITION (p0, p1) AS x USE INDEX FOR ORDER BY (i, j), b", ["a", "b"]),
        ("SELECT * FROM a IGNORE KEY (i) FORCE INDEX (j), b", ["a", "b"]),
        ("SELECT * FROM a FOR SYSTEM_TIME AS OF NOW() x, b", ["a", "b"]),
        ("SELECT * FROM a FOR SYSTEM_TIME FROM NOW() TO NOW(), b", ["a", "b"]),
        ("(SELECT i FROM a) UNION ALL (SELECT i FROM b) ORDER BY i, j", ["a", "b"]),
        ("SELECT i FROM a EXCEPT SELECT i FROM b INTERSECT SELECT i FROM c", list("abc")),
        (
            "SELECT ROW_NUMBER() OVER (PARTITION BY x ORDER BY y) FROM a WINDOW w AS (), v AS ()",
            ["a"],
        ),
        ("SELECT i FROM a GROUP BY i WITH ROLLUP HAVING i > 1", ["a"]),
        ("SELECT i FROM a WITH CASCADED CHECK OPTION", ["a"]),
        ("SELECT DEFAULT(i) FROM a", ["a"]),
        ("SELECT NEXT VALUE FOR s, NEXTVAL(d.s2), i FROM a", ["s", "d.s2", "a"]),
        ("TABLE a ORDER BY i, j", ["a"]),
        ("SELECT * FROM (VALUES ROW(1, 2)) v (a, b), t", ["t"]),
        ("SELECT t.from, `select`.x FROM t, `select`", ["t", "select"]),
        ("SELECT x AS offset, y AS window FROM a offset, b AS fetch, c", list("abc")),
        ("WITH c AS (SELECT * FROM a) SELECT * FROM c, b", ["a", "b"]),
        ("WITH c AS (SELECT * FROM c) SELECT * FROM c", ["c"]),
        ("WITH c (x) AS (SELECT 1), d AS (SELECT * FROM c) SELECT * FROM d, x.c", ["x.c"]),
        (
            "WITH RECURSIVE c AS (SELECT 1 UNION SELECT n FROM c JOIN d) SELECT n FROM c, d",
            ["d", "d"],
        ),
        ("SELECT * FROM (WITH c AS (SELECT 1) SELECT * FROM c) x, c", ["c"]),
    ],
)
def test_the_tables_of_a_select_are_what_its_from_clauses_name(
    select: str, tables: list[str]
) -> None:
    assert read_by(select) == tables


def test_a_view_nested_some_thousand_times_is_read_like_any_other() -> None:
    deep = "SELECT * FROM (" * 5000 + "SELECT 1 FROM t" + ") x" * 5000
    assert read_by(deep) == ["t"]
    assert rename_tables(f"CREATE VIEW v AS {deep}", "d", lambda s, t: ("e", t)).count("`e`") == 2
    nested = "SELECT " + "(" * 5000 + "1" + ")" * 5000 + " AS x FROM t"
    assert read_by(nested) == ["t"]


@pytest.mark.parametrize("select", ["SELECT 1 FROM", "SELECT 1 FROM (t", "SELECT 1 FROM t)", "("])
def test_a_select_whose_tables_are_unclear_is_refused_and_can_be_left_out(select: str) -> None:
    with pytest.raises(NeedsOperator, match="unclear"):
        read_by(select)


def test_databases_go_from_columns_only_where_their_table_moves() -> None:
    def mapping(schema: str, table: str) -> tuple[str, str]:
        return ("n", table) if schema == "d" else (schema, table)

    sql = "CREATE VIEW d.v AS SELECT d.t.a, e.t2.b, e.t2.* FROM d.t JOIN e.t2 ON d.t.a = e.t2.a"
    assert rename_tables(sql, None, mapping) == (
        "CREATE VIEW `n`.`v` AS SELECT t.a, e.t2.b, e.t2.* FROM `n`.`t` JOIN `e`.`t2`"
        " ON t.a = e.t2.a"
    )


def test_two_tables_of_one_name_may_stay_where_they_are() -> None:
    sql = "CREATE VIEW d.v AS SELECT d.t.a FROM d.t JOIN e.t"
    same = rename_tables(sql, None, lambda schema, table: (schema, table))
    assert same == "CREATE VIEW `d`.`v` AS SELECT d.t.a FROM `d`.`t` JOIN `e`.`t`"


_WORDS = """
    CREATE VIEW v TABLE t AS SELECT FROM JOIN ( ) ( ) , . ; WITH RECURSIVE c UNION VALUES x DUAL
    JSON_TABLE FOR SYSTEM_TIME AS OF USE INDEX PARTITION BY NEXT VALUE FOR s NEXTVAL ALTER ADD
    COLUMN KEY PRIMARY UNIQUE CHECK NOT NULL DEFAULT INT VARCHAR ENUM 'a' "b" `q` 1 0.5 0x41
    REFERENCES ON DELETE CASCADE GENERATED STORED DROP RENAME TO IF EXISTS OR REPLACE SEQUENCE
    DATABASE CHARACTER SET utf8mb4 COLLATE = + - * MODIFY CHANGE AFTER FIRST TRUNCATE LIKE
    PERIOD SYSTEM VERSIONING WITHOUT OVERLAPS UUID INET6 CONVERT EXCHANGE REORGANIZE INTO RANGE
    LESS THAN MAXVALUE COMMENT INVISIBLE SERIAL TIMESTAMP ( 6 ) NOW CURRENT_TIMESTAMP INTERVAL DAY
    é /*! */ -- # @ { }
"""


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["CREATE VIEW v AS SELECT", "CREATE TABLE t (", "ALTER TABLE t", "CREATE",
                        "ALTER TABLE t ADD", "DROP", "RENAME TABLE", "CREATE TABLE x (a INT"]),
       st.lists(st.sampled_from(_WORDS.split()), max_size=25))  # fmt: skip
def test_any_soup_of_words_is_planned_or_refused_and_never_ends_the_process(
    head: str, words: list[str]
) -> None:
    session = DdlSession("CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(9), KEY (b))")
    sql = " ".join([head, *words])
    with contextlib.suppress(NeedsOperator):
        plan_ddl(sql, "d", session.catalog, iter(range(1000, 9999)).__next__)
    with contextlib.suppress(NeedsOperator):
        rename_tables(sql, "d", lambda schema, table: (schema + "2", table + "2"))


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t (a INT DEFAULT " + "(" * 20000 + "1" + ")" * 20000 + ")",
        "CREATE TABLE t (a INT AS " + "(" * 20000 + "1" + ")" * 20000 + ")",
        "CREATE TABLE t (a INT CHECK " + "(" * 20000 + "1" + ")" * 20000 + ")",
        "CREATE TABLE t (" + "(" * 20000,
        "ALTER TABLE t ADD " + "(" * 20000,
        "CREATE VIEW v AS " + "(" * 20000 + "SELECT 1" + ")" * 20000,
    ],
)
def test_deep_nesting_is_read_or_refused(sql: str) -> None:
    catalog = Catalog()
    with contextlib.suppress(NeedsOperator):
        plan_ddl(sql, "d", catalog, iter(range(9)).__next__)
