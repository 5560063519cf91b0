"""A statement is skipped for the kind of object that it names, not for a word that it contains."""

import pytest

from penstock.errors import NeedsOperator
from pumpclient.mysql.translate.statement_objects import is_routine, skip_reason, temporary_reason
from pumpclient.mysql.translate.statement_text import dialect_of


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW SET NEW.a = 1",
        "CREATE DEFINER = 'a b' @ 'local host' TRIGGER x AFTER UPDATE ON `table` FOR EACH ROW DO 1",
        "create or replace definer = current_user() procedure p() drop table t",
        "CREATE DEFINER=CURRENT_ROLE AGGREGATE FUNCTION IF NOT EXISTS f(x INT) RETURNS INT",
        "CREATE FUNCTION f RETURNS STRING SONAME 'udf.so'",
        "ALTER DEFINER=`view`@`%` EVENT table_cleanup ON SCHEDULE EVERY 1 DAY",
        "CREATE OR REPLACE PACKAGE BODY pkg AS PROCEDURE p AS BEGIN NULL; END; END",
        "DROP PACKAGE BODY IF EXISTS pkg",
        "CREATE USER view IDENTIFIED BY 'x' DEFAULT ROLE index_reader",
        "RENAME USER a TO b",
        "DROP ROLE IF EXISTS sequence",
        "GRANT SELECT ON TABLE d.t TO PUBLIC",
        "REVOKE ALL PRIVILEGES ON d.* FROM PUBLIC",
        "SET DEFAULT ROLE r FOR u",
        "CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (HOST 'h')",
        "CREATE SPATIAL REFERENCE SYSTEM 990777 NAME 'it''s' DEFINITION 'GEOGCS[\"x\"]'",
        "CREATE OR REPLACE SPATIAL REFERENCE SYSTEM 4120 NAME 'Greek' DEFINITION ''",
        "DROP SPATIAL REFERENCE SYSTEM IF EXISTS 4120",
        "CREATE RESOURCE GROUP rg TYPE = USER",
        "CREATE UNDO TABLESPACE u ADD DATAFILE 'u.ibu'",
        "ALTER TABLESPACE ts RENAME TO ts2",
        "CREATE LOGFILE GROUP lg ADD UNDOFILE 'u.dat' ENGINE NDB",
        "ALTER INSTANCE ROTATE INNODB MASTER KEY",
        "INSTALL COMPONENT 'file://component_x' SET GLOBAL x.y = 1",
        "UNINSTALL SONAME 'x'",
        "ANALYZE LOCAL TABLE t UPDATE HISTOGRAM ON v WITH 8 BUCKETS",
        "ANALYZE TABLE t PERSISTENT FOR ALL",
        "CHECK VIEW v",
        "CREATE LIBRARY IF NOT EXISTS lib LANGUAGE JAVASCRIPT AS $$ export function f() {} $$",
        "ALTER LIBRARY lib COMMENT 'drop table t'",
        "CREATE CATALOG c",
        "CREATE OR REPLACE TEMPORARY TABLE t (a INT)",
        "DROP TEMPORARY SEQUENCE s",
        "CREATE NOVELTY n AS 'what a newer server has'",
        "DROP NOVELTY IF EXISTS n",
        *("SAVEPOINT a", "FLUSH TABLES", "OPTIMIZE TABLE t", "DROP TRIGGER x", "DROP FUNCTION f"),
        *("SET PASSWORD FOR a = 'b'", "CREATE OR REPLACE ROLE r", "ALTER EVENT e DISABLE"),
        *("CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DELETE FROM t", "INSTALL PLUGIN p SONAME 'x'"),
        *("CREATE TEMPORARY TABLE t (a INT)", "DROP TEMPORARY TABLE IF EXISTS t", "CREATE USER a"),
    ],
)
def test_what_belongs_to_a_server_is_skipped(sql: str) -> None:
    assert skip_reason(sql), sql


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t (a INT) COMMENT 'TRIGGER'",
        "CREATE TABLE event (server INT, role INT)",
        "CREATE SQL SECURITY DEFINER VIEW v AS SELECT 1",
        "CREATE ALGORITHM=MERGE DEFINER=`user`@`%` SQL SECURITY INVOKER VIEW trigger_v AS SELECT 1",
        "CREATE DEFINER = event VIEW procedure_v AS SELECT 1",
        "ALTER DEFINER=a@b VIEW v AS SELECT 1",
        "CREATE SPATIAL INDEX reference ON t (g)",
        "CREATE UNIQUE INDEX i ON event (a)",
        "CREATE SEQUENCE server",
        "CREATE DATABASE event",
        "ALTER IGNORE TABLE t ADD a INT",
        "ALTER ONLINE TABLE function ADD a INT",
        "ALTER TABLE t TABLESPACE ts",
        "DROP VIEW role, user",
        "DROP INDEX event ON t",
        "RENAME TABLE user TO role",
        "TRUNCATE server",
        "IMPORT TABLE FROM 't.sdi'",
        "ANALYZE UPDATE t SET a = 1",
        "CREATE MATERIALIZED VIEW v AS SELECT 1",
        "CREATE EXTERNAL TABLE t (a INT)",
        "CREATE JSON RELATIONAL DUALITY VIEW v AS SELECT 1",
        "CREATE NOVELTY n ON t (a)",
        "ALTER NOVELTY INDEX n",
    ],
)
def test_what_may_concern_a_table_is_never_skipped(sql: str) -> None:
    assert skip_reason(sql) is None, sql


def test_a_routine_is_known_by_the_words_before_its_name() -> None:
    assert is_routine("CREATE DEFINER = 'a b' @ '%' /* x */ PROCEDURE p() BEGIN SELECT 1; END")
    assert is_routine("CREATE /*!50017 DEFINER=`a`@`b`*/ /*!50003 TRIGGER t BEFORE INSERT ON u */")
    assert is_routine("create or replace aggregate function f(x INT) RETURNS INT # it's open")
    assert not is_routine("CREATE TABLE t (a INT) COMMENT 'FUNCTION'")
    assert not is_routine("CREATE DEFINER=a VIEW `FUNCTION` AS SELECT 1")


def test_a_comment_that_the_server_did_not_run_makes_no_routine() -> None:
    mysql, mariadb = dialect_of("8.4.2"), dialect_of("11.8.2-MariaDB")
    mine = "CREATE /*!50017 DEFINER=`a`@`b`*/ /*!50003 TRIGGER t BEFORE INSERT ON u */"
    assert is_routine(mine, mysql)
    assert is_routine("CREATE /*M!100000 OR REPLACE */ PROCEDURE p() SELECT 1", mariadb)
    assert not is_routine("CREATE /*!99999 TRIGGER t */ TABLE u (a INT)", mysql)
    assert not is_routine("CREATE /*M!100000 EVENT */ TABLE u (a INT)", mysql)
    assert not is_routine("CREATE /*!80000 EVENT */ TABLE u (a INT)", mariadb)


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE t DROP COLUMN b",
        "ALTER IGNORE TABLE d.t ADD x INT",
        "TRUNCATE t",
        "truncate table t",
        "CREATE UNIQUE INDEX x ON t (a)",
        "DROP INDEX x ON t",
    ],
)
def test_a_statement_that_used_a_temporary_table_changed_no_other(sql: str) -> None:
    assert temporary_reason(sql), sql


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE `t` /* generated by server */",
        "CREATE TABLE `t` (`like` INT)",
        "CREATE TABLE z (a INT DEFAULT (connection_id()))",
        "ALTER TABLE z ADD c INT DEFAULT (connection_id())",
        "INSERT INTO t VALUES (1)",
    ],
)
def test_what_the_same_mark_says_of_other_statements_is_no_temporary_table(sql: str) -> None:
    assert temporary_reason(sql) is None, sql


def test_a_copy_of_a_temporary_table_is_refused() -> None:
    with pytest.raises(NeedsOperator, match="copies a temporary table"):
        temporary_reason("CREATE OR REPLACE TABLE d.r LIKE t")
