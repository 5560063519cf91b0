import json
from dataclasses import replace

import pytest

from penstock.ddl.parse.parser import parse
from penstock.ddl.rewrite.explicit import as_made
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlType
from penstock.schema.tidb_json import job_from_json, job_to_json
from tests.unit.penstock.ddl_session import DdlSession


def queries(session: DdlSession, sql: str) -> list[str]:
    return [" ".join(job.query.split()) for job in session.run(sql)]


@pytest.fixture
def session() -> DdlSession:
    return DdlSession(
        "CREATE DATABASE e CHARSET latin1",
        "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(5))",
        "CREATE TABLE Mixed (a INT)",
        "CREATE VIEW v AS SELECT 1",
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("create schema x", ["CREATE DATABASE `x` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"]),
        (
            "CREATE DATABASE IF NOT EXISTS x CHARACTER SET = utf8",
            ["CREATE DATABASE IF NOT EXISTS `x` CHARACTER SET utf8 COLLATE utf8_bin"],
        ),
        ("CREATE DATABASE IF NOT EXISTS d", []),
        ("DROP DATABASE IF EXISTS nope", []),
        ("DROP SCHEMA IF EXISTS e;", ["DROP DATABASE `e`"]),
        (
            "ALTER DATABASE CHARACTER SET utf8",
            ["ALTER DATABASE `d` CHARACTER SET utf8 COLLATE utf8_bin"],
        ),
        ("CREATE TABLE IF NOT EXISTS t (a INT)", []),
        (
            "create table if not exists x (a int) -- comment",
            ["create table `x` (a int) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"],
        ),
        (
            "CREATE TABLE e.x (a VARCHAR(3) CHARSET utf8 NOT NULL)",
            [
                "CREATE TABLE `x` (a VARCHAR(3) CHARSET utf8 COLLATE utf8_bin NOT NULL)"
                " DEFAULT CHARSET=latin1 COLLATE=latin1_bin"
            ],
        ),
        (
            "CREATE TABLE x (a INT) ENGINE=InnoDB CHARSET=utf8 COMMENT='c'",
            ["CREATE TABLE `x` (a INT) ENGINE=InnoDB CHARSET=utf8 COLLATE utf8_bin COMMENT='c'"],
        ),
        ("CREATE TABLE e.x LIKE t", ["CREATE TABLE `x` LIKE `d`.`t`"]),
        ("CREATE TABLE x (LIKE MIXED)", ["CREATE TABLE `x` LIKE `Mixed`"]),
        ("DROP TABLE t, mixed", ["DROP TABLE `t`, `Mixed`"]),
        ("DROP TABLE IF EXISTS nope, t, e.nope, nope.nope", ["DROP TABLE `t`"]),
        ("DROP TABLE IF EXISTS v", []),
        ("DROP VIEW IF EXISTS v, t", ["DROP VIEW `v`"]),
        ("TRUNCATE mixed", ["TRUNCATE TABLE `Mixed`"]),
        ("RENAME TABLE t TO u", ["RENAME TABLE `t` TO `u`"]),
        ("RENAME TABLE t TO e.u", ["RENAME TABLE `d`.`t` TO `e`.`u`"]),
        ("RENAME TABLE t TO x, Mixed TO t", ["RENAME TABLE `t` TO `x`, `Mixed` TO `t`"]),
        ("ALTER TABLE T ADD c INT", ["ALTER TABLE `t` ADD c INT"]),
        ("ALTER TABLE t RENAME e.u", ["ALTER TABLE `d`.`t` RENAME `u`"]),
        ("ALTER TABLE t ADD IF NOT EXISTS b INT", []),
        ("ALTER TABLE t ADD IF NOT EXISTS b INT, ADD c INT", ["ALTER TABLE `t` ADD c INT"]),
        ("ALTER TABLE t ADD IF NOT EXISTS c INT", ["ALTER TABLE `t` ADD c INT"]),
        ("ALTER TABLE t DROP IF EXISTS z, ALGORITHM=INPLACE", []),
        (
            "ALTER TABLE t ALTER INDEX k INVISIBLE, LOCK=NONE",
            ["ALTER TABLE `t` ALTER INDEX k INVISIBLE"],
        ),
        ("ALTER TABLE t ALTER KEY k NOT IGNORED", ["ALTER TABLE `t` ALTER KEY k VISIBLE"]),
        ("ALTER TABLE t ALTER INDEX IF EXISTS z IGNORED", []),
        ("ALTER TABLE t", []),
        (
            "ALTER TABLE t ADD c INT /*!50500 NOT NULL */, LOCK=NONE, ENGINE=InnoDB",
            ["ALTER TABLE `t` ADD c INT NOT NULL, ENGINE=InnoDB"],
        ),
        (
            "ALTER TABLE t CONVERT TO CHARACTER SET DEFAULT",
            ["ALTER TABLE `t` CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"],
        ),
        ("ALTER TABLE t CHARSET = latin1", ["ALTER TABLE `t` CHARSET = latin1 COLLATE latin1_bin"]),
        ("ALTER TABLE t DROP CHECK c", ["ALTER TABLE `t` DROP CONSTRAINT c"]),
        (
            "ALTER TABLE t ADD c INT PARTITION BY HASH (a)",
            ["ALTER TABLE `t` ADD c INT PARTITION BY HASH (a)"],
        ),
        ("CREATE INDEX i ON T (b) INVISIBLE LOCK=NONE", ["CREATE INDEX i ON `t` (b) INVISIBLE"]),
        ("CREATE INDEX i ON t (b) IGNORED", ["CREATE INDEX i ON `t` (b) INVISIBLE"]),
        (
            "CREATE UNIQUE INDEX i USING HASH ON t (b)",
            ["CREATE UNIQUE INDEX i USING HASH ON `t` (b)"],
        ),
        ("DROP INDEX IF EXISTS i ON t", []),
        ("CREATE VIEW e.w AS SELECT * FROM d.t", ["CREATE VIEW `w` AS SELECT * FROM d.t"]),
        ("CREATE OR REPLACE VIEW v AS SELECT 2", ["CREATE OR REPLACE VIEW `v` AS SELECT 2"]),
        ("CREATE VIEW IF NOT EXISTS v AS SELECT 2", []),
        (
            "CREATE OR REPLACE TABLE T LIKE Mixed",
            ["DROP TABLE `t`", "CREATE TABLE `T` LIKE `Mixed`"],
        ),
        (
            "CREATE OR REPLACE TABLE x (a INT) CHARSET=utf8mb4 COLLATE utf8mb4_bin",
            ["CREATE TABLE `x` (a INT) CHARSET=utf8mb4 COLLATE utf8mb4_bin"],
        ),
        (
            "CREATE TABLE x (a INT); ALTER TABLE x ADD b INT; DROP TABLE x",
            [
                "CREATE TABLE `x` (a INT) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
                "ALTER TABLE `x` ADD b INT",
                "DROP TABLE `x`",
            ],
        ),
    ],
)
def test_a_statement_becomes_the_queries_to_run_downstream(
    session: DdlSession, sql: str, expected: list[str]
) -> None:
    assert queries(session, sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "", ";", "SELECT 1", "INSERT INTO t VALUES (1)", "GRANT ALL ON *.* TO x",
        "CREATE DATABASE d", "CREATE DATABASE D", "DROP DATABASE nope", "CREATE TABLE t (a INT)",
        "CREATE TABLE T (a INT)", "CREATE TABLE nope.x (a INT)", "CREATE TABLE x LIKE v",
        "CREATE TABLE x LIKE nope", "CREATE TEMPORARY TABLE x (a INT)",
        "CREATE OR REPLACE TABLE v (a INT)", "CREATE OR REPLACE TABLE t LIKE t",
        "CREATE OR REPLACE TABLE IF NOT EXISTS t (a INT)",
        "CREATE OR REPLACE TABLE t (a INT) SELECT 1 AS b", "CREATE TABLE x AS SELECT 1 AS a",
        "CREATE TRIGGER x BEFORE INSERT ON t FOR EACH ROW SET @a = 1",
        "CREATE DEFINER=root@localhost PROCEDURE p() SELECT 1", "CREATE USER x",
        "CREATE SEQUENCE s START WITH x", "CREATE SEQUENCE t", "ALTER SEQUENCE t RESTART",
        "DROP SEQUENCE t", "CREATE SPATIAL INDEX i ON t (a)", "CREATE VIEW t AS SELECT 1",
        "CREATE VIEW v AS SELECT 1", "CREATE OR REPLACE VIEW t AS SELECT 1",
        "ALTER VIEW nope AS SELECT 1", "ALTER TABLE v ADD a INT", "ALTER TABLE nope ADD a INT",
        "ALTER IGNORE TABLE t ADD UNIQUE (b)", "DROP TABLE nope", "DROP TABLE v", "DROP TABLE t, t",
        "DROP VIEW t", "DROP INDEX nope ON t", "DROP TRIGGER x", "TRUNCATE v", "TRUNCATE nope",
        "RENAME TABLE nope TO x", "RENAME TABLE t TO Mixed", "RENAME TABLE t TO t",
        "RENAME TABLE v TO e.v", "RENAME USER a TO b", "CREATE VIEW e.w AS SELECT * FROM t",
        "CREATE TABLE x (a INT) nonsense", "CREATE TABLE x (a INT",
        "CREATE TABLE x (a INT); CREATE TABLE x (a INT)",
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_with_a_hint(session: DdlSession, sql: str) -> None:
    before = session.catalog.tables()
    with pytest.raises(NeedsOperator) as refusal:
        session.plan(sql)
    assert refusal.value.hint
    assert session.catalog.tables() == before


def test_names_without_a_schema_need_a_current_database(session: DdlSession) -> None:
    with pytest.raises(NeedsOperator, match="no database is chosen"):
        session.plan("DROP TABLE t", schema=None)
    assert [j.schema_name for j in session.plan("DROP TABLE d.t", schema=None)] == ["d"]


def test_jobs_have_ids_and_versions_of_their_own(session: DdlSession) -> None:
    version = session.catalog.version
    jobs = session.plan("DROP TABLE t, Mixed; CREATE TABLE x (a INT)")
    assert [job.schema_version - version for job in jobs] == [1, 2]
    assert len({job.id for job in jobs}) == 2
    assert session.catalog.version == version


def test_truncate_gives_the_table_a_new_id(session: DdlSession) -> None:
    before = session.table()
    (job,) = session.run("TRUNCATE TABLE t")
    assert (job.type, job.table_id) == (DdlType.TRUNCATE_TABLE, before.id)
    assert session.table().id != before.id
    assert session.table().columns == before.columns


def test_renames_may_swap_names_and_are_one_job(session: DdlSession) -> None:
    t, mixed = session.table("t"), session.table("Mixed")
    (job,) = session.run("RENAME TABLE t TO x, Mixed TO t, x TO Mixed")
    assert job.type == DdlType.RENAME_TABLES
    assert session.table("Mixed").id == t.id
    assert session.table("t").id == mixed.id


def test_a_drop_of_several_tables_is_one_job_that_names_all_of_them(session: DdlSession) -> None:
    ids = [session.table("t").id, session.table("Mixed").id]
    (job,) = session.run("DROP TABLE t, Mixed")
    assert (job.type, job.table_id, job.table_name) == (DdlType.DROP_TABLE, 0, "")
    assert [table.id for _, table in job.tables] == ids
    assert [table.id for _, table in session.changes[-1].dropped] == ids
    assert job_from_json(json.loads(json.dumps(job_to_json(job)))) == job
    session.run("CREATE TABLE a (x INT)", "CREATE TABLE e.b (x INT)", "CREATE SEQUENCE s")
    (job,) = session.run("DROP TABLE e.b, a, s")
    assert (job.schema_name, job.query) == ("e", "DROP TABLE `b`, `d`.`a`, `d`.`s`")
    assert session.catalog.table("e", "b") is None


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ADD KEY (b), ADD INDEX USING HASH (b)",
         "ADD KEY `b` (b), ADD INDEX `b_2` USING HASH (b)"),
        ("ADD UNIQUE(b), ADD CONSTRAINT UNIQUE (b)",
         "ADD UNIQUE `b`(b), ADD CONSTRAINT UNIQUE `b_2` (b)"),
        ("ADD CONSTRAINT c UNIQUE (b)", "ADD CONSTRAINT c UNIQUE (b)"),
        ("ADD c INT UNIQUE KEY NOT NULL AFTER b, ADD d INT",
         "ADD c INT NOT NULL AFTER b, ADD UNIQUE KEY `c` (`c`), ADD d INT"),
        ("MODIFY b CHAR(3) CHARSET latin1 UNIQUE",
         "MODIFY b CHAR(3) CHARSET latin1 COLLATE latin1_bin, ADD UNIQUE KEY `b` (`b`)"),
        ("MODIFY a SERIAL", "MODIFY a BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,"
         " ADD UNIQUE KEY `a` (`a`)"),
        ("ADD KEY ((b + 1)), ADD FULLTEXT (b)",
         "ADD KEY `functional_index` ((b + 1)), ADD FULLTEXT `b` (b)"),
        ("ADD `primary` INT, ADD KEY (`primary`)",
         "ADD `primary` INT, ADD KEY `primary_2` (`primary`)"),
    ],
)  # fmt: skip
def test_a_key_without_a_name_has_the_one_that_the_server_chose(sql: str, expected: str) -> None:
    session = DdlSession("CREATE TABLE k (a INT PRIMARY KEY, b VARCHAR(3))")
    (job,) = session.run(f"ALTER TABLE k {sql}")
    assert job.query == f"ALTER TABLE `k` {expected}"


def test_the_keys_of_a_new_table_are_named_in_their_order() -> None:
    session = DdlSession("CREATE TABLE k (a INT UNIQUE, b INT, KEY (b, a), KEY (b), c SERIAL)")
    assert session.history[-1].query.startswith(
        "CREATE TABLE `k` (a INT, UNIQUE KEY `a` (`a`), b INT, KEY `b` (b, a), KEY `b_2` (b),"
        " c BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, UNIQUE KEY `c` (`c`))"
    )
    again = DdlSession(session.history[-1].query)
    assert again.table("k").indexes == session.table("k").indexes


def test_a_peer_that_knows_one_table_a_job_refuses_a_drop_of_several(session: DdlSession) -> None:
    (job,) = session.plan("DROP TABLE t, Mixed")
    with pytest.raises(NeedsOperator, match="table id 0 does not exist"):
        session.catalog.apply(replace(job, tables=()))


def test_a_rename_in_two_steps_is_one_rename(session: DdlSession) -> None:
    (job,) = session.run("RENAME TABLE t TO x, x TO e.y")
    assert (job.type, job.schema_name) == (DdlType.RENAME_TABLE, "e")
    assert job.query == "RENAME TABLE `d`.`t` TO `d`.`x`, `d`.`x` TO `e`.`y`"


def test_a_tidbs_statement_gets_the_names_of_the_keys_that_it_made() -> None:
    session = DdlSession("CREATE TABLE k (a INT, b INT, KEY b (a), KEY (a))")
    sql = "ALTER TABLE k ADD KEY(a), ADD UNIQUE (a), ADD INDEX (b) /*T! x */, ADD KEY own (b)"
    session.run(sql.replace(" /*T! x */", ""))
    assert as_made(sql, session.table("k")) == (
        "ALTER TABLE k ADD KEY `a_2`(a), ADD UNIQUE `a_3` (a), ADD INDEX `b_2` (b) /*T! x */,"
        " ADD KEY own (b)"
    )
    inline = "CREATE TABLE k2 (a INT UNIQUE, KEY (a)) CHARSET=latin1 COLLATE=latin1_bin"
    session.run(inline)
    assert as_made(inline, session.table("k2")) == inline.replace("KEY (a)", "KEY `a_2` (a)")


def test_a_statement_that_is_parsed_again_is_the_same_and_refused_again() -> None:
    sql = "CREATE TABLE t (a INT)"
    first = parse(sql)[1]
    kept = [*first]
    first.clear()
    assert parse(sql)[1] == kept
    for _ in range(2):
        with pytest.raises(NeedsOperator, match="cannot read"):
            parse("CREATE TABLE t (a INT")
