"""System-versioned tables are tracked, and made downstream, as plain ones."""

import pytest

from penstock.errors import NeedsOperator
from penstock.schema.tidb_json import table_from_json, table_to_json
from tests.unit.penstock.ddl_session import DdlSession

NAMED = (
    "CREATE TABLE t (id INT, u INT, s TIMESTAMP(6) GENERATED ALWAYS AS ROW START INVISIBLE,"
    " e TIMESTAMP(6) AS ROW END, PERIOD FOR SYSTEM_TIME (s, e), PRIMARY KEY (id, e),"
    " KEY k (e), UNIQUE KEY x (e, u)) ENGINE=InnoDB WITH SYSTEM VERSIONING"
)


def queries(*statements: str) -> list[str]:
    session = DdlSession(*statements)
    return [job.query for job in session.history[1:]]


def altered(before: str, sql: str) -> tuple[str | None, tuple[str, ...], list[str]]:
    """Return what an ALTER TABLE runs downstream, the table's period after it, and its columns."""
    session = DdlSession(before)
    count = len(session.history)
    session.run(sql)
    made = [job.query for job in session.history[count:]]
    assert len(made) <= 1
    table = session.table()
    return next(iter(made), None), table.period, [c.name for c in table.columns]


def test_versioning_is_left_out_and_known() -> None:
    session = DdlSession(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT WITHOUT SYSTEM VERSIONING DEFAULT 3)"
        " COMMENT 'c' WITH SYSTEM VERSIONING PARTITION BY SYSTEM_TIME LIMIT 10"
        " (PARTITION h HISTORY, PARTITION c CURRENT)"
    )
    table = session.table()
    assert table.period == ("row_start", "row_end")
    assert table.partitions == ()
    assert table.comment == "c"
    assert table_from_json(table_to_json(table)) == table
    query = session.history[-1].query
    assert "VERSIONING" not in query
    assert "SYSTEM_TIME" not in query
    assert "DEFAULT 3" in query
    assert DdlSession(query).table().columns == table.columns


def test_a_column_with_versioning_makes_the_table_versioned() -> None:
    table = DdlSession("CREATE TABLE t (a INT, b INT WITH SYSTEM VERSIONING)").table()
    assert table.period == ("row_start", "row_end")


@pytest.mark.parametrize(
    "sql",
    [
        NAMED,
        "CREATE TABLE t (s TIMESTAMP(6) AS ROW START, e TIMESTAMP(6) AS ROW END,"
        " PERIOD FOR SYSTEM_TIME (s, e), KEY k (s), id INT, u INT, PRIMARY KEY (e, id),"
        " UNIQUE KEY x (u, E)) WITH SYSTEM VERSIONING",
        "CREATE TABLE t (KEY k (e), s TIMESTAMP(6) AS ROW START, id INT,"
        " e TIMESTAMP(6) AS ROW END, u INT, PERIOD FOR SYSTEM_TIME (`s`, `e`),"
        " PRIMARY KEY (id), UNIQUE x (u)) WITH SYSTEM VERSIONING",
    ],
)
def test_the_columns_of_system_time_are_left_out_of_columns_and_keys(sql: str) -> None:
    session = DdlSession(sql)
    table = session.table()
    assert table.period == ("s", "e")
    assert [c.name for c in table.columns] == ["id", "u"]
    key = table.primary_key
    assert key is not None
    assert [part.name for part in key.columns] == ["id"]
    assert [(i.name, [c.name for c in i.columns]) for i in table.indexes if not i.primary] == [
        ("x", ["u"])
    ]
    again = DdlSession(session.history[-1].query).table()
    assert (again.columns, again.indexes, again.period) == (table.columns, table.indexes, ())


def test_a_period_of_the_application_stays_beside_that_of_the_system() -> None:
    (query,) = queries(
        "CREATE TABLE t (s TIMESTAMP(6) AS ROW START, e TIMESTAMP(6) AS ROW END, a DATE, b DATE,"
        " PERIOD FOR p (a, b), PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING"
    )
    assert "PERIOD FOR p (a, b)" in query
    assert "SYSTEM" not in query


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("CREATE TABLE t (a INT, s BIGINT UNSIGNED AS ROW START, e BIGINT UNSIGNED AS ROW END,"
         " PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING", "logged as statements"),
        (NAMED.replace("(id, e)", "(id, s)"), "unique key over ROW START"),
        (NAMED.replace("(id, e)", "(id), CHECK (e > s)"), "expression over 'e'"),
        (NAMED.replace("(id, e)", "(id), g TIMESTAMP(6) AS (s)"), "expression over 's'"),
        ("ALTER TABLE t ADD (s TIMESTAMP(6) AS ROW START, KEY (a))", "one by one"),
        ("ALTER TABLE t ADD (s TIMESTAMP(6) AS ROW START, b INT)", "one by one"),
        ("ALTER TABLE t MODIFY s TIMESTAMP(6) AS ROW START", "ROW START or ROW END changes"),
    ],
)  # fmt: skip
def test_what_current_rows_alone_cannot_follow_is_refused_by_name(sql: str, what: str) -> None:
    with pytest.raises(NeedsOperator) as caught:
        queries(sql)
    assert what in f"{caught.value.problem} {caught.value.hint}"


PLAIN = "CREATE TABLE t (id INT PRIMARY KEY) COMMENT 'it''s'"
IMPLICIT = "CREATE TABLE t (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING"
BOTH = ("row_start", "row_end")


@pytest.mark.parametrize(
    ("before", "sql", "query", "period"),
    [
        (PLAIN, "ADD SYSTEM VERSIONING", "COMMENT = 'it''s'", BOTH),
        (PLAIN, "ADD SYSTEM VERSIONING, ADD COLUMN v INT", "ADD COLUMN v INT", BOTH),
        (PLAIN, "ADD COLUMN s TIMESTAMP(6) AS ROW START, ADD COLUMN e TIMESTAMP(6) GENERATED"
         " ALWAYS AS ROW END, ADD PERIOD FOR SYSTEM_TIME(s, e), ADD SYSTEM VERSIONING,"
         " ADD KEY (e)", "COMMENT = 'it''s'", ("s", "e")),
        (PLAIN, "ADD SYSTEM VERSIONING PARTITION BY SYSTEM_TIME (PARTITION h HISTORY, PARTITION c"
         " CURRENT)", "COMMENT = 'it''s'", BOTH),
        (IMPLICIT, "DROP SYSTEM VERSIONING", "COMMENT = ''", ()),
        (IMPLICIT, "ADD COLUMN w INT WITHOUT SYSTEM VERSIONING", "ADD COLUMN w INT", BOTH),
        (IMPLICIT, "MODIFY v BIGINT WITH SYSTEM VERSIONING", "MODIFY v BIGINT", BOTH),
        (IMPLICIT, "PARTITION BY SYSTEM_TIME INTERVAL 1 DAY (PARTITION h HISTORY, PARTITION c"
         " CURRENT)", None, BOTH),
        (IMPLICIT, "ADD PARTITION (PARTITION h2 HISTORY)", None, BOTH),
        (IMPLICIT, "ADD PARTITION PARTITIONS 2", None, BOTH),
        (IMPLICIT, "DROP PARTITION h", None, BOTH),
        (IMPLICIT, "REMOVE PARTITIONING", None, BOTH),
        (f"{IMPLICIT} PARTITION BY HASH (id) PARTITIONS 2", "PARTITION BY SYSTEM_TIME LIMIT 5",
         "REMOVE PARTITIONING", BOTH),
        (NAMED, "DROP COLUMN s, DROP COLUMN e, DROP SYSTEM VERSIONING", "COMMENT = ''", ()),
        (NAMED, "DROP COLUMN s, DROP COLUMN e, DROP PERIOD FOR SYSTEM_TIME, DROP SYSTEM"
         " VERSIONING, DROP COLUMN u", "DROP COLUMN u", ()),
        (NAMED, "RENAME COLUMN e TO f", "COMMENT = ''", ("s", "f")),
    ],
)  # fmt: skip
def test_alter_table_follows_versioning(
    before: str, sql: str, query: str | None, period: tuple[str, ...]
) -> None:
    found, after, columns = altered(before, f"ALTER TABLE t {sql}")
    assert after == period
    assert not {"s", "e", "f", "row_start"} & set(columns)
    if query is None:
        assert found is None
    else:
        assert found == f"ALTER TABLE `t` {query}"


@pytest.mark.parametrize("sql", ["TRUNCATE PARTITION c", "CONVERT PARTITION c TO TABLE u"])
def test_what_may_touch_current_rows_of_a_partition_by_time_is_refused(sql: str) -> None:
    with pytest.raises(NeedsOperator, match="partitioned by SYSTEM_TIME"):
        altered(IMPLICIT, f"ALTER TABLE t {sql}")


def test_a_table_like_a_versioned_one_is_versioned() -> None:
    session = DdlSession(IMPLICIT, "CREATE TABLE u LIKE t")
    assert session.table("u").period == BOTH


@pytest.mark.parametrize(
    "sql", ["ADD KEY (u, e)", "ADD COLUMN n INT AFTER e", "ADD COLUMN g TIMESTAMP(6) AS (E)"]
)
def test_a_later_operation_over_a_column_of_system_time_is_refused_with_a_hint(sql: str) -> None:
    with pytest.raises(NeedsOperator, match="names 'e', a column of SYSTEM_TIME") as caught:
        altered(NAMED, f"ALTER TABLE t {sql}")
    assert "without it" in str(caught.value.hint)
