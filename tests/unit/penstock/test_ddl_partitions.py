"""Partitions and sequences: what jobs they come to, and what of a table changes by them."""

import json
from dataclasses import replace

import pytest

from drainer.sinks.mysql.ddl_progress import ensure_repeatable
from penstock.ddl import Catalog
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlType
from penstock.schema.tidb_json import job_from_json, job_to_json
from tests.unit.penstock.ddl_session import DdlSession

TABLE = "CREATE TABLE t (a INT PRIMARY KEY) PARTITION BY HASH (a) PARTITIONS 3"


@pytest.mark.parametrize(
    ("operation", "type_", "left"),
    [
        ("ADD PARTITION PARTITIONS 2", DdlType.ADD_PARTITION, "p0 p1 p2 p3 p4"),
        ("ADD PARTITION (PARTITION p VALUES IN (3))", DdlType.ADD_PARTITION, "p0 p1 p2 p"),
        ("DROP PARTITION P0, p1", DdlType.DROP_PARTITION, "p2"),
        ("DROP PARTITION IF EXISTS p0, p7", DdlType.DROP_PARTITION, "p1 p2"),
        ("TRUNCATE PARTITION ALL", DdlType.TRUNCATE_PARTITION, "p0 p1 p2"),
        ("COALESCE PARTITION 1", DdlType.REORGANIZE_PARTITION, "p0 p1"),
        ("REORGANIZE PARTITION", DdlType.REORGANIZE_PARTITION, "p0 p1 p2"),
        ("REORGANIZE PARTITION p1, p2 INTO (PARTITION a COMMENT = 'x,)', PARTITION p2)",
         DdlType.REORGANIZE_PARTITION, "p0 a p2"),
        ("REBUILD PARTITION ALL", DdlType.REORGANIZE_PARTITION, "p0 p1 p2"),
        ("REMOVE PARTITIONING", DdlType.MULTI_SCHEMA_CHANGE, ""),
        ("PARTITION BY KEY (a)", DdlType.MULTI_SCHEMA_CHANGE, "p0"),
    ],
)  # fmt: skip
def test_an_operation_on_partitions_is_one_job_and_changes_only_their_names(
    operation: str, type_: DdlType, left: str
) -> None:
    session = DdlSession(TABLE)
    before = session.table()
    (job,) = session.run(f"ALTER TABLE t {operation}")
    assert (job.type, job.query) == (type_, f"ALTER TABLE `t` {operation}")
    assert session.table() == replace(before, partitions=tuple(left.split()))


@pytest.mark.parametrize(
    "operation",
    [
        "DROP PARTITION p7", "TRUNCATE PARTITION p0, p7", "REBUILD PARTITION p7",
        "DROP PARTITION p0, p1, p2", "COALESCE PARTITION 3", "EXCHANGE PARTITION p7 WITH TABLE u",
        "ADD PARTITION (PARTITION P1)", "REORGANIZE PARTITION p0, p2 INTO (PARTITION p0)",
        "REORGANIZE PARTITION p0 INTO (PARTITION p1)",
        "CONVERT PARTITION p7 TO TABLE n", "CONVERT PARTITION p0 TO TABLE u",
        "CONVERT TABLE u TO PARTITION p0", "PARTITION BY LIST (a) (PARTITION x, PARTITION X)",
    ],
)  # fmt: skip
def test_what_no_server_would_do_to_these_partitions_is_refused_before(operation: str) -> None:
    session = DdlSession(TABLE, "CREATE TABLE u (a INT PRIMARY KEY)")
    with pytest.raises(NeedsOperator):
        session.run(f"ALTER TABLE t {operation}")
    with pytest.raises(NeedsOperator, match="is not partitioned"):
        session.run("ALTER TABLE u TRUNCATE PARTITION ALL")


def test_partitions_that_a_history_does_not_name_are_the_server_s_affair() -> None:
    session = DdlSession(f"{TABLE[:-13]} SUBPARTITION BY KEY (a) PARTITIONS 2")
    assert session.table().partitions is None
    session.run("ALTER TABLE t DROP PARTITION whatever", "ALTER TABLE t REMOVE PARTITIONING")
    assert session.table().partitions == ()


def test_a_partition_becomes_a_table_and_a_table_a_partition() -> None:
    session = DdlSession(TABLE, "CREATE DATABASE e")
    (job,) = session.run("ALTER TABLE T CONVERT PARTITION p1 TO TABLE e.n")
    assert job.query == "ALTER TABLE `t` CONVERT PARTITION p1 TO TABLE `e`.`n`"
    made = session.table("n", "e")
    assert (made.columns, made.partitions) == (session.table().columns, ())
    assert session.table().partitions == ("p0", "p2")
    (job,) = session.run("ALTER TABLE t CONVERT TABLE e.N TO PARTITION p9 VALUES IN (7)")
    assert job.query == "ALTER TABLE `t` CONVERT TABLE `e`.`n` TO PARTITION p9 VALUES IN (7)"
    assert session.table().partitions == ("p0", "p2", "p9")
    assert session.catalog.table("e", "n") is None
    replayed = Catalog()
    for each in session.history:
        replayed.apply(job_from_json(json.loads(json.dumps(job_to_json(each)))))
    assert replayed.tables() == session.catalog.tables()


def test_exchange_names_both_tables_as_the_catalog_does() -> None:
    session = DdlSession(TABLE, "CREATE DATABASE e", "CREATE TABLE e.U (a INT PRIMARY KEY)")
    (job,) = session.run("ALTER TABLE T EXCHANGE PARTITION p0 WITH TABLE e.u WITHOUT VALIDATION")
    assert job.type == DdlType.EXCHANGE_PARTITION
    assert job.query == "ALTER TABLE `t` EXCHANGE PARTITION p0 WITH TABLE `e`.`U`"


def test_tables_of_different_columns_exchange_nothing() -> None:
    session = DdlSession(TABLE, "CREATE TABLE u (a BIGINT PRIMARY KEY)")
    with pytest.raises(NeedsOperator, match="different columns"):
        session.run("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE u")


@pytest.mark.fault(
    "a DDL that the downstream refuses: after a crash no one can know whether it ran"
    " (partitions counted up or down, exchanged)",
    "an operator is asked",
    cases="2",
)
@pytest.mark.parametrize("operation", ["COALESCE PARTITION 1", "ADD PARTITION PARTITIONS 2"])
def test_after_a_crash_no_one_repeats_what_would_count_twice(operation: str) -> None:
    session = DdlSession(TABLE, f"ALTER TABLE t {operation}")
    with pytest.raises(NeedsOperator, match="is unknown whether"):
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
    assert (altered.type, altered.query) == (DdlType.ALTER_SEQUENCE, "ALTER SEQUENCE `s` RESTART 7")
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
