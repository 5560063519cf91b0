"""The events that a DDL is, which DDL passes, and DDL of tables that become one."""

import pytest

from penstock.ddl import SchemaChange
from penstock.errors import NeedsOperator
from penstock.filters import EventRule, FilterConfig, Rules, TablePattern
from penstock.filters.events import operations
from penstock.filters.routes import check_newcomer, routed_table, runs_alter, united
from penstock.schema.model import TableInfo
from tests.unit.penstock.ddl_session import DdlSession

CREATE = "CREATE TABLE t (id INT PRIMARY KEY, n BIGINT, s VARCHAR(20), KEY k (n), UNIQUE u (s))"


def changed(sql: str, *before: str) -> SchemaChange:
    """Return what the last job of `sql` does after the statements `before`."""
    session = DdlSession()
    session.run(*(before or (CREATE,)))
    (job,) = session.plan(sql)
    return session.catalog.copy().apply(job)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("CREATE DATABASE x", [{"create database"}]),
        ("DROP DATABASE d", [{"drop database"}]),
        ("ALTER DATABASE d CHARSET latin1",
         [{"alter database", "modify schema charset and collate"}]),
        ("CREATE TABLE x (id INT)", [{"create table"}]),
        ("DROP TABLE t", [{"drop table"}]),
        ("TRUNCATE TABLE t", [{"truncate table"}]),
        ("RENAME TABLE t TO x", [{"rename table"}]),
        ("ALTER TABLE t RENAME TO x", [{"alter table", "rename table"}]),
        ("CREATE VIEW v AS SELECT * FROM t", [{"create view"}]),
        ("CREATE INDEX i ON t (n)", [{"create index"}]),
        ("CREATE UNIQUE INDEX i ON t (n)", [{"create index"}]),
        ("DROP INDEX k ON t", [{"drop index"}]),
        ("ALTER TABLE t ADD COLUMN c INT", [{"alter table", "add column"}]),
        ("ALTER TABLE t DROP COLUMN n, ALGORITHM=COPY", None),
        ("ALTER TABLE t MODIFY n INT",
         [{"alter table", "modify column", "value range decrease"}]),
        ("ALTER TABLE t RENAME COLUMN n TO m", [{"alter table", "rename column"}]),
        ("ALTER TABLE t ALTER n SET DEFAULT 5",
         [{"alter table", "set default value", "modify default value"}]),
        ("ALTER TABLE t RENAME INDEX k TO l", [{"alter table", "rename index"}]),
        ("ALTER TABLE t DROP INDEX u", [{"alter table", "drop unique key", "drop index"}]),
        ("ALTER TABLE t COMMENT 'ENGINE = x'", [{"alter table", "modify table comment"}]),
        ("ALTER TABLE t ADD COLUMN c INT, DROP INDEX k", [
            {"alter table", "add column", "multi schema change"},
            {"alter table", "drop index", "multi schema change"}]),
    ],
)  # fmt: skip
def test_a_ddl_is_the_events_that_it_causes(sql: str, names: list[set[str]] | None) -> None:
    found = [set(each) for each in operations(changed(sql))]
    if names is None:
        assert any("drop column" in each for each in found)
    else:
        assert found == names


def rules(*events: EventRule, **names: object) -> Rules:
    return Rules(FilterConfig(events=events, **names))  # type: ignore[arg-type]


def ignoring(*events: str, sql: str = "") -> EventRule:
    return EventRule(
        schema_pattern="d", table_pattern="t*", events=events, action="Ignore",
        sql_pattern=(sql,) if sql else (),
    )  # fmt: skip


def test_a_ddl_passes_by_table_event_and_text() -> None:
    assert rules().of_ddl(changed("DROP TABLE t"))
    assert not rules(ignore_dbs=("d",)).of_ddl(changed("DROP TABLE t"))
    assert not rules(ignoring("drop table")).of_ddl(changed("DROP TABLE t"))
    assert rules(ignoring("drop table")).of_ddl(changed("TRUNCATE TABLE t"))
    assert not rules(ignoring(sql="add +column")).of_ddl(changed("ALTER TABLE t ADD COLUMN c INT"))


def test_a_ddl_that_passes_only_in_part_stops_with_a_hint() -> None:
    both = changed("ALTER TABLE t ADD COLUMN c INT, DROP COLUMN n")
    with pytest.raises(NeedsOperator, match="only some of what"):
        rules(ignoring("drop column")).of_ddl(both)
    hidden = TablePattern(db_name="d", tbl_name="x")
    with pytest.raises(NeedsOperator, match=r"concerns d\.t, and other tables"):
        rules(ignore_tables=(hidden,)).of_ddl(changed("RENAME TABLE t TO x"))
    error = EventRule(schema_pattern="d", events=("all ddl",), action="Error")
    with pytest.raises(NeedsOperator, match="says Error"):
        rules(error).of_ddl(both)


# --- several tables into one -------------------------------------------------------------------


def shaped(*alters: str) -> TableInfo:
    session = DdlSession()
    session.run(CREATE, *(f"ALTER TABLE t {each}" for each in alters))
    found = session.catalog.table("d", "t")
    assert found is not None
    return found


PLAIN, WITH_C = shaped(), shaped("ADD COLUMN c INT")


def test_the_first_source_adds_and_the_last_one_drops() -> None:
    assert runs_alter("m.t", PLAIN, WITH_C, [PLAIN, PLAIN])
    assert not runs_alter("m.t", PLAIN, WITH_C, [WITH_C, PLAIN])
    assert not runs_alter("m.t", WITH_C, PLAIN, [WITH_C, PLAIN])
    assert runs_alter("m.t", WITH_C, PLAIN, [PLAIN, PLAIN])


def test_a_changed_column_runs_once_and_may_be_one_change_ahead() -> None:
    wide, wider = shaped("MODIFY s VARCHAR(30)"), shaped("MODIFY s VARCHAR(40)")
    assert runs_alter("m.t", PLAIN, wide, [PLAIN])
    assert not runs_alter("m.t", PLAIN, wide, [wide])
    with pytest.raises(NeedsOperator, match="different shapes of column 's'"):
        runs_alter("m.t", wide, wider, [PLAIN])


def test_what_rows_of_some_sources_would_not_fit_is_refused() -> None:
    with pytest.raises(NeedsOperator, match="NOT NULL, without default"):
        runs_alter("m.t", PLAIN, shaped("ADD COLUMN c INT NOT NULL"), [PLAIN])
    with pytest.raises(NeedsOperator, match="only a part"):
        runs_alter("m.t", PLAIN, shaped("RENAME COLUMN n TO m"), [PLAIN])
    with pytest.raises(NeedsOperator, match="only a part"):
        runs_alter("m.t", PLAIN, shaped("ADD COLUMN c INT, ADD COLUMN e INT"), [WITH_C])


def test_a_new_source_must_have_nothing_new() -> None:
    check_newcomer("m.t", PLAIN, [PLAIN, WITH_C])
    with pytest.raises(NeedsOperator, match="another column 'c'"):
        check_newcomer("m.t", WITH_C, [PLAIN])
    with pytest.raises(NeedsOperator, match="another column 'n'"):
        check_newcomer("m.t", shaped("MODIFY n INT"), [PLAIN])


def test_what_leaves_no_trace_runs_each_time() -> None:
    assert runs_alter("m.t", PLAIN, PLAIN, [PLAIN])


def test_sources_of_one_shape_are_one_table_downstream() -> None:
    other = shaped()
    assert routed_table("m", "t", PLAIN) == routed_table("M", "t", other)
    assert routed_table("m", "t", PLAIN).id != routed_table("m", "u", PLAIN).id
    both = united(PLAIN, [WITH_C])
    assert [c.name for c in both.columns] == ["id", "n", "s", "c"]
    assert [c.offset for c in both.columns] == [0, 1, 2, 3]
