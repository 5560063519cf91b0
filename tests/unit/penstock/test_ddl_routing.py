"""DDL under other names reads as the same DDL about other tables."""

from dataclasses import fields, is_dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from penstock.ddl import Catalog, rename_tables, route_change
from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax.statements import TableRef, Value, ValueKind
from penstock.errors import NeedsOperator
from tests.unit.penstock.ddl_session import DdlSession
from tests.unit.penstock.test_ddl_property import SEEDS, run

STATEMENTS = [
    line
    for line in (Path(__file__).parents[2] / "integration/ddl_mariadb.sql").read_text().splitlines()
    if line and not line.startswith("--")
]


def turned(schema: str, table: str) -> tuple[str, str]:
    return schema + "_2", table and f"`{table}`.new"


def names(value: Any, schema: str) -> list[tuple[str, str]]:
    return [(ref.schema or schema, ref.name) for ref in value.refs]


def shape(value: Any) -> Any:
    if isinstance(value, TableRef):
        return "a table"
    if isinstance(value, Value) and value.kind is ValueKind.EXPRESSION:
        return "an expression, which may name a sequence"
    if isinstance(value, tuple):
        return tuple(shape(v) for v in value)
    if is_dataclass(value) and not isinstance(value, type):
        places = {"start", "end", "at", "name_at", "edits", "refs", "select_start", "period_at"}
        named = "Schema" in type(value).__name__
        skipped = places | ({"name"} if named else set())
        inside = [(f.name, shape(getattr(value, f.name))) for f in fields(value)
                  if f.name not in skipped]  # fmt: skip
        return type(value).__name__, inside
    return value


def check(sql: str) -> None:
    after = rename_tables(sql, "d", turned)
    _, old = parse(sql)
    _, new = parse(after)
    assert len(old) == len(new)
    for before, renamed in zip(old, new, strict=True):
        assert shape(before) == shape(renamed), after
        # With no current database left: every table says whose it is.
        assert [turned(*n) for n in names(before, "d")] == names(renamed, "")
    assert rename_tables(after, None, lambda s, t: (s, t)) == after


@pytest.mark.parametrize("sql", STATEMENTS)
def test_every_statement_keeps_its_meaning_under_other_names(sql: str) -> None:
    check(sql)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_any_history_routed_leaves_the_routed_schema(seed: int) -> None:
    session = run(seed)
    routed, ids = Catalog(), count(10_000)
    for change in session.changes:
        check(change.job.query)
        job = route_change(change, turned).job
        for planned in DdlSession.planned(job.query, None, routed, ids):
            routed.apply(planned)
    there = [(s, t.name, t.columns, len(t.indexes)) for s, t in routed.tables()]
    for schema, table in session.catalog.tables():
        new_schema, name = turned(schema, table.name)
        found = [t for t in there if t[:2] == (new_schema, name)]
        assert [c.name for c in found[0][2]] == [c.name for c in table.columns]
        assert found[0][3] == len(table.indexes)
    assert len(there) == len(session.catalog.tables())


def test_the_tables_within_a_view_are_renamed_and_its_columns_still_mean_them() -> None:
    sql = (
        "CREATE VIEW v AS WITH c AS (SELECT 1 AS one) SELECT t.a, d.t.b, x.c, 't' AS t FROM t"
        " JOIN e.u AS x ON x.a = t.a JOIN c"
    )
    assert rename_tables(sql, "d", lambda s, t: ("n", t + "9")) == (
        "CREATE VIEW `n`.`v9` AS WITH c AS (SELECT 1 AS one) SELECT t.a, t.b, x.c, 't' AS t FROM"
        " `n`.`t9` AS `t` JOIN `n`.`u9` AS x ON x.a = t.a JOIN c"
    )


def test_two_tables_of_one_name_in_a_view_are_refused_without_aliases() -> None:
    with pytest.raises(NeedsOperator, match="two tables called 't'"):
        rename_tables("CREATE VIEW v AS SELECT 1 FROM d.t, e.t", "d", turned)


def test_a_change_is_routed_with_its_job_and_all_its_tables() -> None:
    session = DdlSession("CREATE TABLE t (a INT)", "TRUNCATE t", "RENAME TABLE t TO u")
    created, truncated, renamed = (route_change(c, turned) for c in session.changes[1:])
    assert created.job.schema_name == "d_2"
    assert [(s, t.name) for s, t in created.created] == [("d_2", "`t`.new")]
    assert truncated.job.query == "TRUNCATE TABLE `d_2`.```t``.new`"
    assert [(s, t.name) for s, t in truncated.dropped] == [("d_2", "`t`.new")]
    assert [(a, b.name, c, d.name) for a, b, c, d in renamed.renamed] == [
        ("d_2", "`t`.new", "d_2", "`u`.new")
    ]


def test_a_name_without_any_database_is_refused() -> None:
    with pytest.raises(NeedsOperator, match="has no database"):
        rename_tables("DROP TABLE t", None, turned)
