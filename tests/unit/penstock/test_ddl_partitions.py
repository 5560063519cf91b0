"""Partitions and sequences: what jobs they come to, and that no table changes by them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drainer.sinks.mysql_ddl import ensure_repeatable
from penstock.ddl import Catalog
from penstock.errors import NeedsOperator
from penstock.schema import DdlType
from tests.unit.penstock.ddl_session import DdlSession

TABLE = "CREATE TABLE t (a INT PRIMARY KEY) PARTITION BY HASH (a) PARTITIONS 3"


@pytest.mark.parametrize(
    ("operation", "type_"),
    [
        ("ADD PARTITION PARTITIONS 2", DdlType.ADD_PARTITION),
        ("ADD PARTITION (PARTITION p VALUES LESS THAN (3))", DdlType.ADD_PARTITION),
        ("DROP PARTITION p0, p1", DdlType.DROP_PARTITION),
        ("DROP PARTITION IF EXISTS p0", DdlType.DROP_PARTITION),
        ("TRUNCATE PARTITION ALL", DdlType.TRUNCATE_PARTITION),
        ("COALESCE PARTITION 1", DdlType.REORGANIZE_PARTITION),
        ("REORGANIZE PARTITION", DdlType.REORGANIZE_PARTITION),
        ("REBUILD PARTITION ALL", DdlType.REORGANIZE_PARTITION),
    ],
)
def test_an_operation_on_partitions_is_one_job_and_leaves_the_table(
    operation: str, type_: DdlType
) -> None:
    session = DdlSession(TABLE)
    before = session.table()
    (job,) = session.run(f"ALTER TABLE t {operation}")
    assert (job.type, job.query) == (type_, f"ALTER TABLE `t` {operation}")
    assert session.table() == before


def test_exchange_names_both_tables_as_the_catalog_does() -> None:
    session = DdlSession(TABLE, "CREATE DATABASE e", "CREATE TABLE e.U (a INT PRIMARY KEY)")
    (job,) = session.run("ALTER TABLE T EXCHANGE PARTITION p0 WITH TABLE e.u WITHOUT VALIDATION")
    assert job.type == DdlType.EXCHANGE_PARTITION
    assert job.query == "ALTER TABLE `t` EXCHANGE PARTITION p0 WITH TABLE `e`.`U`"


def test_tables_of_different_columns_exchange_nothing() -> None:
    session = DdlSession(TABLE, "CREATE TABLE u (a BIGINT PRIMARY KEY)")
    with pytest.raises(NeedsOperator, match="different columns"):
        session.run("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE u")


@pytest.mark.parametrize("operation", ["COALESCE PARTITION 1", "ADD PARTITION PARTITIONS 2"])
def test_after_a_crash_nobody_repeats_what_would_count_twice(operation: str) -> None:
    session = DdlSession(TABLE, f"ALTER TABLE t {operation}")
    with pytest.raises(NeedsOperator, match="cannot be told"):
        ensure_repeatable(session.changes[-1])


def test_a_table_of_tidb_s_that_becomes_partitioned_keeps_its_rows_under_a_new_id() -> None:
    session = DdlSession("CREATE TABLE t (a INT)")
    table = session.table()
    job = replace(
        session.history[-1],
        type=DdlType.ALTER_PARTITIONING,
        schema_version=9,
        table=replace(table, id=77),
    )
    change = session.catalog.apply(job)
    assert [(b.id, a.id) for _, b, a in change.altered] == [(table.id, 77)]
    assert session.catalog.table_by_id(table.id) is None


def test_sequences_come_change_and_go() -> None:
    session = DdlSession("CREATE DATABASE e")
    session.run("CREATE SEQUENCE e.s START WITH 5 INCREMENT BY 2 NOMAXVALUE NO CYCLE CACHE 10")
    found = session.catalog.table("e", "s")
    assert found is not None
    assert found.kind == "SEQUENCE"
    (altered,) = session.run("ALTER SEQUENCE e.S RESTART 7")
    assert (altered.type, altered.query) == (
        DdlType.ALTER_SEQUENCE,
        "ALTER SEQUENCE `s` RESTART 7",
    )
    assert session.run("CREATE SEQUENCE IF NOT EXISTS e.s") == []
    session.run("CREATE OR REPLACE SEQUENCE e.s")
    session.run("CREATE TABLE t (a INT DEFAULT NEXT VALUE FOR e.s, b INT DEFAULT nextval(e.s))")
    with pytest.raises(NeedsOperator, match="is a sequence"):
        session.run("TRUNCATE e.s")
    (dropped,) = session.run("DROP SEQUENCE IF EXISTS e.s, e.nope")
    assert dropped.type == DdlType.DROP_SEQUENCE
    replayed = Catalog()
    for job in session.history:
        replayed.apply(job)
    assert replayed.tables() == session.catalog.tables()


def test_what_a_server_notes_about_a_database_is_left_to_it() -> None:
    session = DdlSession("CREATE DATABASE e COMMENT 'x' DEFAULT ENCRYPTION='N' CHARSET latin1")
    assert "latin1" in session.history[-1].query
    assert "COMMENT" not in session.history[-1].query
