"""Unnamed CHECKs and foreign keys get the names that upstream's server gave them."""

import pytest

from penstock.ddl.rewrite.constraint_names import as_mariadb_reads, as_server_names
from penstock.ddl.rewrite.foreign import spelled_for
from penstock.ddl.syntax.statements import Flavor
from penstock.schema.model import MysqlType
from penstock.schema.tidb_json import table_from_json, table_to_json
from tests.unit.penstock.ddl_session import DdlSession

BEFORE = (
    "CREATE TABLE p (id INT PRIMARY KEY)",
    "CREATE TABLE t (id INT PRIMARY KEY, v INT, CONSTRAINT t_chk_4 CHECK (v > 0), CHECK (v > 1),"
    " KEY k (v), FOREIGN KEY (v) REFERENCES p (id))",
)


def test_a_new_table_and_its_alters_have_mysqls_names() -> None:
    session = DdlSession(*BEFORE)
    assert session.table().constraints == ("t_chk_4", "t_chk_1", "t_ibfk_1")
    (job,) = session.run(
        "ALTER TABLE t DROP FOREIGN KEY t_ibfk_1, ADD CHECK (v > 2), ADD CONSTRAINT CHECK (v > 3),"
        " ADD x INT, ADD FOREIGN KEY (v) REFERENCES p (id), ADD CONSTRAINT c CHECK (v > 4)"
    )
    for name in (
        "ADD CONSTRAINT `t_chk_5` CHECK (v > 2)",
        "ADD CONSTRAINT `t_chk_6` CHECK (v > 3)",
        "ADD CONSTRAINT `t_ibfk_2` FOREIGN KEY (v)",
        "ADD CONSTRAINT c CHECK",
    ):
        assert name in job.query
    session.run("RENAME TABLE t TO u")
    table = session.table("u")
    assert table.constraints == ("u_chk_4", "u_chk_1", "u_chk_5", "u_chk_6", "u_ibfk_2", "c")
    assert table_from_json(table_to_json(table)) == table


def test_checks_of_columns_get_names_only_beside_others() -> None:
    session = DdlSession()
    (job,) = session.run("CREATE TABLE t (a INT CHECK (a > 0), b INT CHECK (b > 0))")
    assert "CONSTRAINT" not in job.query
    (job,) = session.run("CREATE TABLE u (a INT CHECK (a > 0), CHECK (a > 1))")
    assert "a INT CONSTRAINT `u_chk_1` CHECK (a > 0), CONSTRAINT `u_chk_2` CHECK" in job.query


def test_a_word_before_a_check_is_no_name_of_it() -> None:
    session = DdlSession()
    (job,) = session.run("CREATE TABLE t (a INT NOT NULL CHECK (a > 0), CHECK (a > 1))")
    assert "NOT NULL CONSTRAINT `t_chk_1` CHECK (a > 0), CONSTRAINT `t_chk_2` CHECK" in job.query
    assert session.table().constraints == ("t_chk_1", "t_chk_2")
    session.run("ALTER TABLE t ADD CONSTRAINT IF NOT EXISTS c CHECK (a > 2)")
    assert session.table().constraints == ("t_chk_1", "t_chk_2", "c")


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("CREATE TABLE t (a INT CHECK (a > 0), CHECK (a > 1), CONSTRAINT CHECK (a > 2))",
         "CREATE TABLE t (a INT CHECK (a > 0), CONSTRAINT `CONSTRAINT_1` CHECK (a > 1),"
         " CONSTRAINT `CONSTRAINT_2` CHECK (a > 2))"),
        ("ALTER TABLE t DROP CONSTRAINT CONSTRAINT_2, ADD CHECK (a > 1), ADD CHECK (a > 2)",
         "ALTER TABLE t DROP CONSTRAINT CONSTRAINT_2, ADD CONSTRAINT `CONSTRAINT_2` CHECK (a > 1),"
         " ADD CONSTRAINT `CONSTRAINT_3` CHECK (a > 2)"),
        ("ALTER TABLE other ADD CHECK (a > 1)", "ALTER TABLE other ADD CHECK (a > 1)"),
    ],
)  # fmt: skip
def test_a_mariadb_numbers_the_checks_of_a_table(sql: str, named: str) -> None:
    def known(ref: object) -> tuple[str, ...] | None:
        return ("CONSTRAINT_1", "constraint_2") if getattr(ref, "name", "") == "t" else None

    assert as_mariadb_reads(sql, known) == named


@pytest.mark.parametrize(
    ("sql", "read"),
    [
        ("CREATE TABLE t (a JSON NOT NULL DEFAULT '{}' COMMENT 'x', b JSON CHECK (b <> ''))",
         "CREATE TABLE t (a {text} NOT NULL DEFAULT '{}' COMMENT 'x' CHECK (json_valid(`a`)),"
         " b {text} CHECK (b <> ''))"),
        ("ALTER TABLE t ADD `j``j` JSON AFTER a, MODIFY COLUMN k JSON FIRST",
         "ALTER TABLE t ADD `j``j` {text} CHECK (json_valid(`j``j`)) AFTER a,"
         " MODIFY COLUMN k {text} CHECK (json_valid(`k`)) FIRST"),
        ("ALTER TABLE t ADD (j JSON COLLATE utf8mb4_bin, g JSON AS (j) VIRTUAL)",
         "ALTER TABLE t ADD (j LONGTEXT COLLATE utf8mb4_bin CHECK (json_valid(`j`)),"
         " g {text} AS (j) VIRTUAL)"),
    ],
)  # fmt: skip
def test_a_mariadbs_json_is_the_text_that_it_stores(sql: str, read: str) -> None:
    text = "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    found = as_mariadb_reads(sql, lambda ref: ())
    assert found == read.replace("{text}", text)


def test_a_mysql_gets_that_text_without_the_check_and_with_its_default() -> None:
    sql = as_mariadb_reads(
        "CREATE TABLE t (j JSON DEFAULT '{}', n INT CHECK (n > 0))", lambda _: ()
    )
    session = DdlSession(sql)
    query = session.history[-1].query
    assert " ".join(spelled_for(Flavor.MYSQL, query).sql.split()).startswith(
        "CREATE TABLE `t` (j LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT ('{}') ,"
        " n INT CHECK (n > 0))"
    )
    assert spelled_for(Flavor.MARIADB, query).sql == query
    column = session.table().columns[0]
    assert (column.tp, column.default) == (MysqlType.LONG_BLOB, "{}")


def test_a_number_is_free_again_once_its_check_is_dropped_and_a_foreign_keys_is_not() -> None:
    session = DdlSession(*BEFORE, "ALTER TABLE t DROP CHECK t_chk_4, ADD CHECK (v > 2)")
    assert session.table().constraints == ("t_chk_1", "t_ibfk_1", "t_chk_2")
    session.run("ALTER TABLE t DROP FOREIGN KEY t_ibfk_1, ADD FOREIGN KEY (v) REFERENCES p (id)")
    assert session.table().constraints == ("t_chk_1", "t_chk_2", "t_ibfk_2")


def test_an_alter_that_renames_gives_names_of_the_new_name() -> None:
    session = DdlSession(*BEFORE)
    (job,) = session.run("ALTER TABLE t ADD CHECK (v > 2), RENAME TO u")
    assert "ADD CONSTRAINT `u_chk_5` CHECK (v > 2)" in job.query
    assert session.table("u").constraints == ("u_chk_4", "u_chk_1", "u_ibfk_1", "u_chk_5")


def test_a_column_that_goes_may_take_checks_with_it_so_the_servers_name_those_after_it() -> None:
    session = DdlSession("CREATE TABLE t (a INT, b INT, CHECK (b > 0))")
    (job,) = session.run("ALTER TABLE t DROP COLUMN b, ADD CHECK (a > 0)")
    assert job.query.endswith("ADD CHECK (a > 0)")
    assert session.table().constraints is None
    session.run("CREATE TABLE k (a INT, b INT, FOREIGN KEY (a) REFERENCES p (id))")
    session.run("ALTER TABLE k DROP COLUMN b")
    assert session.table("k").constraints == ("k_ibfk_1",)
    sql = "ALTER TABLE t DROP COLUMN b, ADD CHECK (a > 0)"
    assert as_mariadb_reads(sql, lambda _: ("CONSTRAINT_1",)) == sql


@pytest.mark.parametrize(
    ("elements", "names"),
    [
        ("CHECK (a > 0), CONSTRAINT t_chk_7 CHECK (a > 1), FOREIGN KEY (a) REFERENCES p (id)",
         ("l_chk_1", "l_chk_2")),
        ("CONSTRAINT CONSTRAINT_2 CHECK (a > 0)", ("CONSTRAINT_2",)),
        ("CONSTRAINT own CHECK (a > 0)", None),
        ("FOREIGN KEY (a) REFERENCES p (id)", ()),
    ],
)  # fmt: skip
def test_a_copy_of_a_table_has_the_names_that_a_server_gives_it(
    elements: str, names: tuple[str, ...] | None
) -> None:
    session = DdlSession(f"CREATE TABLE t (a INT, {elements})", "CREATE TABLE l LIKE t")
    assert session.table("l").constraints == names


@pytest.mark.parametrize(
    ("sql", "mysql", "mariadb"),
    [
        ("CREATE TABLE t (a INT CHECK (a > 0), CONSTRAINT `CONSTRAINT_2` CHECK (a > 1))",
         "CREATE TABLE t (a INT CHECK (a > 0), CONSTRAINT `t_chk_2` CHECK (a > 1))", None),
        ("ALTER TABLE t ADD CONSTRAINT CONSTRAINT_3 CHECK (a > 1), RENAME TO u",
         "ALTER TABLE t ADD CONSTRAINT `u_chk_3` CHECK (a > 1), RENAME TO u", None),
        ("ALTER TABLE t DROP CONSTRAINT IF EXISTS CONSTRAINT_4, DROP CONSTRAINT own",
         "ALTER TABLE t DROP CONSTRAINT IF EXISTS `old_chk_4`, DROP CONSTRAINT own",
         "ALTER TABLE t DROP CONSTRAINT IF EXISTS `old_chk_4`, DROP CONSTRAINT own"),
        ("ALTER TABLE t DROP CONSTRAINT t_chk_5, ALTER CHECK t_chk_4 NOT ENFORCED",
         "ALTER TABLE t DROP CONSTRAINT t_chk_5, ALTER CHECK `old_chk_4` NOT ENFORCED",
         "ALTER TABLE t DROP CONSTRAINT t_chk_5, ALTER CHECK `old_chk_4` NOT ENFORCED"),
        ("ALTER TABLE t DROP CONSTRAINT T_CHK_6", None, None),
        ("ALTER TABLE t DROP FOREIGN KEY IF EXISTS t_ibfk_4, DROP FOREIGN KEY t_ibfk_3",
         "ALTER TABLE t DROP FOREIGN KEY IF EXISTS `routed_ibfk_4`, DROP FOREIGN KEY t_ibfk_3",
         "ALTER TABLE t DROP FOREIGN KEY IF EXISTS `routed_ibfk_4`, DROP FOREIGN KEY t_ibfk_3"),
        ("ALTER TABLE t DROP FOREIGN KEY `4`",
         "ALTER TABLE t DROP FOREIGN KEY `routed_ibfk_4`",
         "ALTER TABLE t DROP FOREIGN KEY `routed_ibfk_4`"),
        ("ALTER TABLE t DROP CONSTRAINT t_ibfk_4",
         "ALTER TABLE t DROP CONSTRAINT `routed_ibfk_4`",
         "ALTER TABLE t DROP CONSTRAINT `routed_ibfk_4`"),
    ],
)  # fmt: skip
def test_a_constraint_is_called_as_it_is_called_there(
    sql: str, mysql: str | None, mariadb: str | None
) -> None:
    there = {"old_chk_4": "CHECK", "uk_chk_5": "UNIQUE", "t_chk_6": "CHECK", "v_chk_6": "CHECK",
             "routed_ibfk_4": "FOREIGN KEY"}  # fmt: skip
    found = [as_server_names(sql, lambda _: there, numbers_by_table=n) for n in (True, False)]
    assert found == [mysql or sql, mariadb or sql]


def test_a_foreign_key_that_a_newer_mariadb_numbered_is_dropped_by_its_number() -> None:
    session = DdlSession(*BEFORE)
    (job,) = session.run("ALTER TABLE t DROP FOREIGN KEY IF EXISTS `1`")
    assert "DROP FOREIGN KEY IF EXISTS `1`" in job.query
