"""Names that no MySQL or MariaDB takes are refused by the writer, not by a Drainer later."""

from dataclasses import replace

import pytest

from penstock.codes import Code
from penstock.errors import NeedsOperator
from tests.unit.penstock.ddl_session import DdlSession

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v INT)"


@pytest.mark.fault(
    "a writer creates databases, tables, columns or indexes with names that no MySQL or"
    " MariaDB takes",
    "refused before a job is made; what is there can be renamed and dropped",
    cases="29",
)
@pytest.mark.parametrize(
    "sql",
    [
        "CREATE DATABASE `😀`",
        "CREATE TABLE `emo😀` (id INT PRIMARY KEY)",
        "CREATE TABLE a (`k😀` INT PRIMARY KEY)",
        "CREATE TABLE a (id INT, INDEX `i😀` (id))",
        "CREATE TABLE a (id INT, CONSTRAINT `c😀` CHECK (id > 0))",
        "CREATE TABLE \U00020000 (id INT)",
        "CREATE TABLE `a\0b` (id INT)",
        "CREATE TABLE `a\ud800` (id INT)",
        "CREATE VIEW `v😀` AS SELECT * FROM t",
        "ALTER TABLE t ADD COLUMN `c😀` INT",
        "ALTER TABLE t RENAME COLUMN v TO `c😀`",
        "ALTER TABLE t CHANGE v `c😀` INT",
        "ALTER TABLE t ADD INDEX `i😀` (v)",
        "CREATE INDEX `i😀` ON t (v)",
        "RENAME TABLE t TO `t😀`",
        "ALTER TABLE t RENAME TO `t😀`",
        "CREATE TABLE `a ` (id INT)",
        "CREATE TABLE a (`b\t` INT)",
        f"CREATE TABLE {'x' * 65} (id INT)",
        f"CREATE TABLE `{'商' * 51}` (id INT)",
        f"RENAME TABLE t TO `{'商' * 51}`",
        f"CREATE DATABASE `{'商' * 51}`",
        "CREATE TABLE `#mysql50#a` (id INT)",
    ],
)
def test_a_new_name_that_no_server_takes_is_refused(sql: str) -> None:
    session = DdlSession(TABLE)
    with pytest.raises(NeedsOperator) as refused:
        session.run(sql)
    assert refused.value.code is Code.DDL_DEFINITION
    assert [table.name for _, table in session.catalog.tables()] == ["t"]


@pytest.mark.parametrize(
    "sql",
    [
        f"CREATE TABLE `{'商' * 50}` (`{'品' * 64}` INT)",
        f"CREATE TABLE `{'é' * 64}` (id INT)",
        "CREATE TABLE a (id INT COMMENT '😀', v VARCHAR(9) DEFAULT '😀')",
        "CREATE TABLE a (id INT) /* 😀 */",
        "CREATE TABLE `\uffff\x01.a/b` (id INT)",
    ],
)
def test_names_that_servers_take_and_characters_elsewhere_are_not_refused(sql: str) -> None:
    assert DdlSession(TABLE).run(sql)


def test_a_table_that_has_such_a_name_already_can_be_renamed_and_dropped() -> None:
    session = DdlSession(TABLE)
    old = session.table()
    (job,) = session.plan("CREATE TABLE b (id INT)")
    table = replace(old, id=job.table_id, name="t😀")
    session.catalog.apply(replace(job, table=table, table_name="t😀"))
    session.run("RENAME TABLE `t😀` TO c", "RENAME TABLE t TO d", "DROP TABLE c")
