from dataclasses import replace

import pytest

from penstock.ddl import Catalog
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlJob, DdlType, TableInfo
from penstock.schema.tidb_json import job_from_json, job_to_json
from tests.unit.penstock.ddl_session import DdlSession, check_invariants

MOMENT_TS = 1_651_032_307_250 << 18 | 7  # 2022-04-27 04:05:07.250 UTC


def session_with_tables() -> DdlSession:
    return DdlSession(
        "CREATE DATABASE e",
        "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(5))",
        "CREATE TABLE e.t (a INT)",
        "CREATE TABLE T2 (a INT)",
    )


def test_tables_are_found_by_name_and_by_id() -> None:
    session = session_with_tables()
    table = session.table("t", "e")
    assert session.catalog.table_by_id(table.id) == ("e", table)
    assert session.catalog.table("d", "T") == session.table("t")
    assert session.catalog.table("D", "t2") == session.table("T2")
    assert session.catalog.table("d", "nope") is None
    assert session.catalog.table("nope", "t") is None
    assert session.catalog.table_by_id(999) is None
    assert [(s, t.name) for s, t in session.catalog.tables()] == [
        ("d", "t"),
        ("d", "T2"),
        ("e", "t"),
    ]
    assert [t.name for _, t in session.catalog.tables("e")] == ["t"]
    assert session.catalog.tables("nope") == ()


def test_a_name_as_written_comes_before_one_that_differs_in_case() -> None:
    session = session_with_tables()
    other = TableInfo(id=900, name="t2")
    session.catalog.apply(_job(session, DdlType.CREATE_TABLE, table=other))
    assert session.table("t2").id == 900
    assert session.table("T2").id != 900


def _job(session: DdlSession, tp: int, table: TableInfo | None = None, **fields: object) -> DdlJob:
    job = DdlJob(
        id=1000,
        type=tp,
        schema_id=1,
        schema_name="d",
        query="",
        schema_version=session.catalog.version + 1,
        table=table,
        table_id=table.id if table else 0,
    )
    return replace(job, **fields)  # type: ignore[arg-type]


def test_a_copy_changes_for_itself() -> None:
    session = session_with_tables()
    copy = session.catalog.copy()
    session.run("DROP TABLE t")
    assert copy.table("d", "t") is not None
    assert copy.version == session.catalog.version - 1


def test_changes_name_what_came_and_went() -> None:
    session = session_with_tables()
    t, t2 = session.table("t"), session.table("T2")
    session.changes.clear()
    session.run(
        "ALTER TABLE t ADD c INT", "RENAME TABLE t TO e.u", "TRUNCATE T2", "DROP DATABASE e"
    )
    altered, renamed, truncated, dropped = session.changes
    assert altered.altered[0][:2] == ("d", t)
    assert [c.name for c in altered.altered[0][2].columns] == ["a", "b", "c"]
    assert [(b, x.name, a, y.name) for b, x, a, y in renamed.renamed] == [("d", "t", "e", "u")]
    assert truncated.dropped == (("d", t2),)
    assert [(s, x.name) for s, x in truncated.created] == [("d", "T2")]
    assert dropped.schemas_dropped == ("e",)
    assert [(s, x.name) for s, x in dropped.dropped] == [("e", "t"), ("e", "u")]
    check_invariants(session.catalog)


def test_a_swap_of_names_is_two_renames() -> None:
    session = session_with_tables()
    session.run("RENAME TABLE t TO x, T2 TO t, x TO T2")
    pairs = [(before.name, after.name) for _, before, _, after in session.changes[-1].renamed]
    assert pairs == [("t", "T2"), ("T2", "t")]


def test_a_replaced_view_is_dropped_and_created() -> None:
    session = DdlSession("CREATE VIEW v AS SELECT 1", "CREATE OR REPLACE VIEW v AS SELECT 2")
    change = session.changes[-1]
    assert [len(change.dropped), len(change.created)] == [1, 1]
    assert session.table("v").is_view


def test_old_rows_read_the_time_of_the_ddl_where_the_default_is_now() -> None:
    session = DdlSession("CREATE TABLE t (a INT)")
    (job,) = session.plan(
        "ALTER TABLE t ADD (b DATETIME DEFAULT NOW(), c TIMESTAMP(3) DEFAULT NOW(3), d DATE)"
    )
    session.catalog.apply(replace(job, finished_ts=MOMENT_TS))
    origins = [c.origin_default for c in session.table().columns[1:]]
    assert origins == ["2022-04-27 04:05:07", "2022-04-27 04:05:07.250", None]
    assert session.table().columns[1].default == "CURRENT_TIMESTAMP"


def test_the_time_of_the_ddl_stays_when_a_later_job_was_planned_before_it_was_known() -> None:
    session = DdlSession("CREATE TABLE t (a INT)")
    first, second = session.plan(
        "ALTER TABLE t ADD b DATETIME DEFAULT NOW(); ALTER TABLE t ADD c INT"
    )
    session.catalog.apply(replace(first, finished_ts=MOMENT_TS))
    session.catalog.apply(replace(second, finished_ts=MOMENT_TS + (1 << 40)))
    assert session.table().columns[1].origin_default == "2022-04-27 04:05:07"


def test_a_failed_job_changes_nothing() -> None:
    session = session_with_tables()
    before = session.catalog.version
    failed = _job(session, DdlType.DROP_TABLE, session.table("t"), state=3)
    assert session.catalog.apply(failed).is_nothing
    assert (session.catalog.version, session.table("t").name) == (before, "t")


@pytest.mark.parametrize("tp", [27, 31, 51, 59, 68])
def test_jobs_that_touch_no_table_move_the_version_only(tp: int) -> None:
    session = session_with_tables()
    before = session.catalog.version
    assert session.catalog.apply(_job(session, tp)).is_nothing
    assert session.catalog.version == before + 1


@pytest.mark.parametrize("tp", [7, 9, 15, 19, 61, 999])
def test_other_jobs_replace_the_table_they_carry(tp: int) -> None:
    session = session_with_tables()
    after = replace(session.table("t"), comment="new")
    change = session.catalog.apply(_job(session, tp, after))
    assert [a for _, _, a in change.altered] == [after]


def test_create_tables_of_tidb_adds_them_all() -> None:
    session = session_with_tables()
    made = tuple(("e", TableInfo(id=i, name=f"x{i}")) for i in (901, 902))
    change = session.catalog.apply(_job(session, 60, tables=made))
    assert change.created == made


@pytest.mark.parametrize(
    ("tp", "fields"),
    [
        (DdlType.CREATE_SCHEMA, {}),
        (DdlType.DROP_SCHEMA, {"schema_name": "nope", "schema_id": 77}),
        (DdlType.MODIFY_SCHEMA_CHARSET, {}),
        (DdlType.CREATE_TABLE, {}),
        (DdlType.CREATE_TABLE, {"table": TableInfo(id=900, name="t")}),
        (DdlType.CREATE_VIEW, {"table": TableInfo(id=900, name="t", is_view=True)}),
        (DdlType.CREATE_TABLE, {"table": TableInfo(id=900, name="x"), "schema_name": "nope"}),
        (DdlType.DROP_TABLE, {"table_id": 999}),
        (DdlType.TRUNCATE_TABLE, {}),
        (DdlType.ADD_COLUMN, {}),
        (DdlType.ADD_COLUMN, {"table": TableInfo(id=999, name="t")}),
        (DdlType.RENAME_TABLE, {"table": TableInfo(id=999, name="t")}),
        (42, {}),
        (62, {}),
        (63, {}),
    ],
)
def test_a_job_that_does_not_fit_is_refused_and_changes_nothing(
    tp: int, fields: dict[str, object]
) -> None:
    session = session_with_tables()
    before, version = session.catalog.tables(), session.catalog.version
    with pytest.raises(NeedsOperator, match="does not fit"):
        session.catalog.apply(_job(session, tp, **fields))  # type: ignore[arg-type]
    assert (session.catalog.tables(), session.catalog.version) == (before, version)


def test_a_history_read_back_from_json_leaves_the_same_catalog() -> None:
    session = session_with_tables()
    session.run(
        "ALTER TABLE t ADD c BIT(9) NOT NULL DEFAULT b'101', ADD d ENUM('x','y') AFTER a",
        "ALTER TABLE t ADD KEY (b)",
        "ALTER TABLE t ADD g INT AS (a + 1) STORED COMMENT 'g', ADD h VARCHAR(40) BINARY",
        "RENAME TABLE t TO x, T2 TO t, x TO T2",
        "CREATE VIEW v AS SELECT 1",
        "ALTER DATABASE e CHARSET latin1",
        "TRUNCATE t",
        "DROP TABLE e.t",
    )
    catalog = Catalog()
    for job in session.history:
        again = job_from_json(job_to_json(job))
        assert again == job
        catalog.apply(again)
    assert catalog.tables() == session.catalog.tables()
    assert catalog.schemas() == session.catalog.schemas()
    assert catalog.version == session.catalog.version
