"""What only some servers can read: followed, and spelled for each downstream."""

import pytest

from penstock.ddl.rewrite.foreign import spelled_for
from penstock.ddl.syntax.statements import Flavor
from penstock.errors import NeedsOperator
from penstock.schema.model import MysqlType
from penstock.schema.tidb_json import table_from_json, table_to_json
from tests.unit.penstock.ddl_session import DdlSession

TAIL = "DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"


def queries(*statements: str) -> list[str]:
    session = DdlSession(*statements[:-1])
    return [job.query for job in session.run(statements[-1])]


def spelled(flavor: Flavor, *statements: str) -> list[str]:
    return [" ".join(spelled_for(flavor, sql).sql.split()) for sql in queries(*statements)]


@pytest.mark.parametrize(
    ("definition", "written"),
    [
        ("VARCHAR(36) DEFAULT uuid()", "VARCHAR(36) DEFAULT (uuid())"),
        ("DATE DEFAULT curdate()", "DATE DEFAULT (curdate())"),
        ("DATE DEFAULT CURRENT_DATE", "DATE DEFAULT (CURRENT_DATE)"),
        ("DATE DEFAULT now()", "DATE DEFAULT (now())"),
        ("CHAR(9) DEFAULT REVERSE('aha')", "CHAR(9) DEFAULT (REVERSE('aha'))"),
        ("TIMESTAMP(6) DEFAULT NOW()", "TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6)"),
        ("DATETIME DEFAULT NOW() ON UPDATE NOW(3)",
         "DATETIME DEFAULT NOW() ON UPDATE CURRENT_TIMESTAMP"),
        ("DECIMAL(10.2)", "DECIMAL(10)"),
        ("VARCHAR(3) COLLATE DEFAULT", "VARCHAR(3) COLLATE utf8mb4_general_ci"),
        ("VARCHAR(3) CHARACTER SET DEFAULT", "VARCHAR(3) "),
        ("INT AS (j->>'$.b') PERSISTENT", "INT AS (JSON_UNQUOTE(JSON_EXTRACT(j, '$.b'))) STORED"),
    ],
)  # fmt: skip
def test_what_flavors_spell_differently_is_written_as_both_read_it(
    definition: str, written: str
) -> None:
    (query,) = queries(f"CREATE TABLE t (a {definition})")
    assert " ".join(query.split()) == f"CREATE TABLE `t` (a {written}) {TAIL}"


def test_a_column_that_counts_has_no_nulls_although_an_old_dump_says_so() -> None:
    session = DdlSession("CREATE TABLE t (id INT UNSIGNED NULL AUTO_INCREMENT, PRIMARY KEY (id))")
    assert session.table().columns[0].is_not_null
    assert "NULL" not in session.history[-1].query


def test_an_index_over_an_expression_is_known_by_its_name_only() -> None:
    session = DdlSession(
        "CREATE TABLE t (a INT PRIMARY KEY, j JSON, KEY k ((a + 1), a), KEY ((a * 2)),"
        " UNIQUE u ((a + 2)), INDEX mv ((CAST(j->'$.x' AS UNSIGNED ARRAY))))"
    )
    assert session.table().expression_indexes == ("k", "functional_index", "u", "mv")
    assert session.table().indexes == ()
    assert table_from_json(table_to_json(session.table())) == session.table()
    session.run("ALTER TABLE t DROP INDEX k, RENAME INDEX mv TO mv2", "CREATE INDEX k ON t ((a))")
    assert session.table().expression_indexes == ("functional_index", "u", "mv2", "k")
    for refused in ("CREATE INDEX K ON t (a)", "DROP INDEX mv ON t"):
        with pytest.raises(NeedsOperator):
            session.run(refused)


def test_a_mariadb_gets_no_index_over_an_expression_and_no_check_that_is_a_remark() -> None:
    sql = (
        "CREATE TABLE t (a INT CHECK (a > 1) NOT ENFORCED, KEY k ((a + 1)), b INT,"
        " CONSTRAINT c CHECK (b > 0) NOT ENFORCED, CHECK (b > 2))"
    )
    assert spelled(Flavor.MARIADB, sql) == [
        f"CREATE TABLE `t` (a INT , b INT, CONSTRAINT `t_chk_2` CHECK (b > 2)) {TAIL}"
    ]
    statement = spelled_for(Flavor.MARIADB, queries(sql)[0])
    assert statement.lacking == ("CHECK … NOT ENFORCED", "indexes over expressions")
    alter = (
        "ALTER TABLE t ADD INDEX ((a)), ADD x INT, ALTER CHECK c ENFORCED, ALTER a SET INVISIBLE"
    )
    assert spelled(Flavor.MARIADB, sql, alter) == ["ALTER TABLE `t` ADD x INT"]
    assert spelled(Flavor.MARIADB, sql, "CREATE INDEX e ON t ((a))") == [""]
    gone = spelled_for(
        Flavor.MARIADB, "ALTER TABLE `t` DROP KEY k, ALTER KEY k VISIBLE, DROP KEY l", ["K"]
    )
    assert gone.sql == "ALTER TABLE `t` DROP KEY l"
    dropped = spelled(Flavor.MARIADB, sql, "ALTER TABLE t DROP CHECK c")
    assert dropped == ["ALTER TABLE `t` DROP CONSTRAINT IF EXISTS c"]


def test_no_downstream_keeps_rows_unique_by_an_expression() -> None:
    sql = "CREATE TABLE t (a INT, UNIQUE KEY u ((a + 1)), UNIQUE v ((a + 2)))"
    (made,) = spelled(Flavor.MYSQL, sql)
    assert made == f"CREATE TABLE `t` (a INT, KEY u ((a + 1)), KEY v ((a + 2))) {TAIL}"
    assert spelled(Flavor.MYSQL, sql, "CREATE UNIQUE INDEX w ON t ((a))") == [
        "CREATE INDEX w ON `t` ((a))"
    ]


def test_a_mysql_gets_texts_for_types_that_only_a_mariadb_has() -> None:
    sql = "CREATE TABLE t (u UUID PRIMARY KEY, i INET6 NOT NULL, f INET4)"
    ascii_ = "CHARACTER SET ascii COLLATE ascii_bin"
    assert spelled(Flavor.MYSQL, sql) == [
        f"CREATE TABLE `t` (u CHAR(36) {ascii_} PRIMARY KEY, i CHAR(39) {ascii_} NOT NULL,"
        f" f CHAR(15) {ascii_}) {TAIL}"
    ]
    assert spelled(Flavor.MARIADB, sql) == queries(sql)
    columns = DdlSession(sql).table().columns
    assert [(c.native, c.tp, c.flen) for c in columns] == [
        ("UUID", MysqlType.STRING, 36),
        ("INET6", MysqlType.VARCHAR, 39),
        ("INET4", MysqlType.VARCHAR, 15),
    ]
    assert table_from_json(table_to_json(DdlSession(sql).table())) == DdlSession(sql).table()


def test_a_mysql_gives_older_rows_of_a_new_column_the_zero_of_its_type() -> None:
    session = DdlSession("CREATE TABLE t (id INT PRIMARY KEY)")
    added = (
        "ALTER TABLE t ADD u UUID NOT NULL, ADD COLUMN (i INET6 NOT NULL COMMENT 'x', f INET4),"
        " ADD g INET4 NOT NULL AFTER id, ADD d UUID NOT NULL DEFAULT UUID()"
    )
    with pytest.raises(NeedsOperator):
        session.run(added)  # Each row has another UUID.
    (job,) = session.run(added.replace("UUID()", "'123e4567-e89b-12d3-a456-426655440000'"))
    zero = "00000000-0000-0000-0000-000000000000"
    ascii_ = "CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
    assert spelled_for(Flavor.MYSQL, job.query).sql == (
        f"ALTER TABLE `t` ADD u CHAR(36) {ascii_} DEFAULT '{zero}',"
        f" ADD COLUMN (i CHAR(39) {ascii_} COMMENT 'x' DEFAULT '::',"
        " f CHAR(15) CHARACTER SET ascii COLLATE ascii_bin),"
        f" ADD g CHAR(15) {ascii_} DEFAULT '0.0.0.0' AFTER id,"
        f" ADD d CHAR(36) {ascii_} DEFAULT '123e4567-e89b-12d3-a456-426655440000'"
    )
    assert "DEFAULT '::'" not in spelled_for(Flavor.MARIADB, job.query).sql
    origins = {column.name: column.origin_default for column in session.table().columns}
    assert (origins["u"], origins["i"], origins["f"], origins["g"]) == (zero, "::", None, "0.0.0.0")


@pytest.mark.parametrize(
    ("sql", "made"),
    [
        ("DROP FOREIGN KEY IF EXISTS nope, ADD x INT", "ADD x INT"),
        ("DROP CONSTRAINT IF EXISTS nope, ADD x INT", "ADD x INT"),
        ("DROP FOREIGN KEY IF EXISTS F", "DROP FOREIGN KEY F"),
        ("DROP CONSTRAINT IF EXISTS c", "DROP CONSTRAINT c"),
        ("ADD CONSTRAINT IF NOT EXISTS C CHECK (a > 9), ADD x INT", "ADD x INT"),
        ("ADD CONSTRAINT IF NOT EXISTS f FOREIGN KEY (b) REFERENCES t (a), ADD x INT",
         "ADD x INT"),
        ("ADD CONSTRAINT IF NOT EXISTS d CHECK (a > 9)", "ADD CONSTRAINT d CHECK (a > 9)"),
    ],
)  # fmt: skip
def test_a_mysql_drops_and_adds_the_constraints_that_the_table_lacks_or_has(
    sql: str, made: str
) -> None:
    table = (
        "CREATE TABLE t (a INT PRIMARY KEY, b INT, CONSTRAINT c CHECK (a > 0),"
        " CONSTRAINT f FOREIGN KEY (b) REFERENCES t (a))"
    )
    assert spelled(Flavor.MYSQL, table, f"ALTER TABLE t {sql}") == [f"ALTER TABLE `t` {made}"]


def test_a_text_may_have_a_literal_as_default_which_a_mysql_gets_as_an_expression() -> None:
    table = "CREATE TABLE t (a TEXT NOT NULL DEFAULT 'it''s', b BLOB DEFAULT (x'41'), c TEXT)"
    (made,) = spelled(Flavor.MYSQL, table)
    assert "DEFAULT ('it''s'), b BLOB DEFAULT ((x'41')), c TEXT" in made
    assert spelled(Flavor.MARIADB, table) == queries(table)
    for sql, written in (
        ("ALTER TABLE t ALTER a SET DEFAULT 'x'", "ALTER TABLE `t` ALTER a SET DEFAULT ('x')"),
        ("ALTER TABLE t CHANGE a z TEXT, ALTER c SET DEFAULT 7",
         "ALTER TABLE `t` CHANGE a z TEXT, ALTER c SET DEFAULT (7)"),
        ("ALTER TABLE t ALTER c SET DEFAULT NULL", "ALTER TABLE `t` ALTER c SET DEFAULT NULL"),
    ):  # fmt: skip
        assert spelled(Flavor.MYSQL, table, sql) == [written]


def test_a_mysql_does_not_rename_sequences() -> None:
    names = [("d", "s")]
    for sql, made in (
        ("RENAME TABLE `s` TO `x`", ""),
        ("RENAME TABLE `t` TO `x`, `s` TO `t`, `t` TO `y`, `x` TO `t`",
         "RENAME TABLE `t` TO `x`, `x` TO `t`"),
        ("RENAME TABLE d.s TO e.s, e.s TO f.s, e.t TO e.u", "RENAME TABLE `e`.`t` TO `e`.`u`"),
    ):  # fmt: skip
        found = spelled_for(Flavor.MYSQL, sql, sequences=names)
        assert (found.sql, found.lacking) == (made, ("sequences",))
        assert spelled_for(Flavor.MARIADB, sql, sequences=names).sql == sql


def test_a_mysql_gets_no_sequences_and_no_defaults_of_them() -> None:
    sequence = "CREATE SEQUENCE s"
    table = "CREATE TABLE t (a INT DEFAULT NEXTVAL(s), b INT DEFAULT (NEXT VALUE FOR d.s + 1))"
    assert spelled(Flavor.MYSQL, sequence) == [""]
    assert spelled(Flavor.MYSQL, sequence, table) == [f"CREATE TABLE `t` (a INT , b INT ) {TAIL}"]
    assert spelled(Flavor.MYSQL, sequence, "DROP SEQUENCE s") == [""]
    assert spelled(Flavor.MARIADB, sequence, table) == queries(sequence, table)


def test_a_tidb_gets_its_own_words_and_sequences_but_not_what_only_a_mariadb_has() -> None:
    own = [
        "CREATE TABLE t (a INT /*T![auto_rand] AUTO_RANDOM(5) */ PRIMARY KEY) /*T! SHARD 1 */",
        "CREATE SEQUENCE s",
        "CREATE TABLE t (a INT DEFAULT NEXTVAL(s))",
    ]
    assert [spelled_for(Flavor.TIDB, sql).sql for sql in own] == own
    foreign = spelled_for(Flavor.TIDB, "CREATE TABLE t (a TEXT COMPRESSED, u UUID)")
    assert foreign.sql.startswith("CREATE TABLE t (a TEXT , u CHAR(36)")
    assert foreign.lacking == ("columns that are COMPRESSED", "columns of type UUID")


def test_a_mysql_gets_no_options_that_only_a_mariadb_has() -> None:
    sql = "CREATE TABLE t (a TEXT COMPRESSED=zlib, y YEAR(2)) ENGINE=Aria TRANSACTIONAL=1"
    assert spelled(Flavor.MYSQL, sql) == [f"CREATE TABLE `t` (a TEXT , y YEAR) {TAIL}"]
    bound = "CREATE TABLE t (a INT CHECK (a > 0), CONSTRAINT c CHECK (a > 1),"
    bound += " CONSTRAINT f FOREIGN KEY (a) REFERENCES t (a))"
    drop = "ALTER TABLE t DROP CONSTRAINT IF EXISTS c, DROP FOREIGN KEY IF EXISTS f"
    assert queries(sql, drop) == []
    assert queries(bound, drop) == [drop.replace("TABLE t", "TABLE `t`")]
    assert spelled(Flavor.MYSQL, bound, drop) == [
        "ALTER TABLE `t` DROP CONSTRAINT c, DROP FOREIGN KEY f"
    ]


@pytest.mark.parametrize(
    ("sql", "made"),
    [
        ("RENAME TABLE IF EXISTS nope TO n, t NOWAIT TO u", ["RENAME TABLE `t` TO `u`"]),
        ("RENAME TABLE IF EXISTS nope TO n", []),
        ("ALTER TABLE IF EXISTS nope ADD x INT", []),
        ("ALTER TABLE t WAIT 5 RENAME COLUMN IF EXISTS z TO y, ADD x INT",
         ["ALTER TABLE `t` ADD x INT"]),
        ("ALTER TABLE t RENAME INDEX IF EXISTS z TO y, ALTER COLUMN IF EXISTS z SET DEFAULT 1", []),
        ("DROP TABLE t WAIT 10", ["DROP TABLE `t`"]),
        ("RENAME TABLE t TO d.select", ["RENAME TABLE `t` TO `select`"]),
        ("TRUNCATE TABLE t NOWAIT", ["TRUNCATE TABLE `t`"]),
        ("CREATE INDEX i ON t WAIT 1 (a)", ["CREATE INDEX i ON `t` (a)"]),
        ("ALTER TABLE t SECONDARY_LOAD", []),
        ("ALTER TABLE t SECONDARY_UNLOAD PARTITION (p0, p1)", []),
        ("CREATE INDEX i ON t (a) WAIT 1 COMMENT 'x'", ["CREATE INDEX i ON `t` (a) COMMENT 'x'"]),
        ("ALTER TABLE .`t` ADD x INT", ["ALTER TABLE `t` ADD x INT"]),
        ("RENAME TABLE .t TO .u", ["RENAME TABLE `t` TO `u`"]),
        ("DROP INDEX k ON t NOWAIT", ["DROP INDEX k ON `t`"]),
        ("CREATE OR REPLACE INDEX k ON t (a, b)",
         ["DROP INDEX `k` ON `t`", "CREATE INDEX k ON `t` (a, b)"]),
        ("CREATE OR REPLACE UNIQUE INDEX n ON t (b)", ["CREATE UNIQUE INDEX n ON `t` (b)"]),
        ("ALTER TABLE t CHARACTER SET DEFAULT", [f"ALTER TABLE `t` {TAIL}"]),
        ("CREATE OR REPLACE DATABASE e",
         ["DROP DATABASE `e`", "CREATE DATABASE `e` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"]),
    ],
)  # fmt: skip
def test_clauses_of_mariadb_are_followed(sql: str, made: list[str]) -> None:
    found = queries("CREATE DATABASE e", "CREATE TABLE t (a INT, b INT, KEY k (a))", sql)
    assert [" ".join(query.split()) for query in found] == made


def test_partitions_may_be_listed_without_the_word() -> None:
    session = DdlSession(
        "CREATE TABLE t (a INT) PARTITION BY RANGE (a) (p0 VALUES LESS THAN (1),"
        " p1 VALUES LESS THAN (9))"
    )
    assert session.table().partitions == ("p0", "p1")
    assert "(PARTITION p0 VALUES LESS THAN (1), PARTITION p1 " in session.history[-1].query


def test_dropping_tables_drops_sequences_too_and_a_sequence_may_replace_a_table() -> None:
    session = DdlSession("CREATE SEQUENCE s", "CREATE TABLE t (a INT)", "DROP TABLE s")
    assert session.history[-1].query == "DROP SEQUENCE `s`"
    session.run("CREATE SEQUENCE old", "ALTER TABLE old RENAME TO renamed")
    assert session.table("renamed").is_sequence
    assert session.history[-1].query == "RENAME TABLE `old` TO `renamed`"
    session.run("CREATE OR REPLACE SEQUENCE t")
    assert session.table().is_sequence


def test_the_columns_of_a_period_have_no_nulls() -> None:
    sql = "CREATE TABLE t (id INT, s DATE, e DATE, PERIOD FOR p (s, e), KEY (id))"
    columns = DdlSession(sql).table().columns
    assert [c.is_not_null for c in columns] == [False, True, True]
    assert spelled(Flavor.MARIADB, sql) == queries(sql)
    assert "PERIOD" not in spelled(Flavor.MYSQL, sql)[0]


def test_a_unique_key_may_be_longer_than_any_index() -> None:
    session = DdlSession("CREATE TABLE t (a TEXT UNIQUE, b VARCHAR(4000), UNIQUE (b, a))")
    assert [i.name for i in session.table().indexes] == ["a", "b"]
    assert all(p.length == -1 for i in session.table().indexes for p in i.columns)


def test_names_of_an_enum_may_be_equal_but_for_case() -> None:
    column = DdlSession("CREATE TABLE t (e ENUM('a', 'A') COLLATE utf8mb4_bin)").table().columns[0]
    assert column.elems == ("a", "A")


def test_a_decimal_may_have_as_many_decimals_as_a_mariadb_allows() -> None:
    assert DdlSession("CREATE TABLE t (d DECIMAL(65,38))").table().columns[0].decimal == 38


def test_merge_tables_are_refused_and_other_engines_do_not_heed_a_union() -> None:
    with pytest.raises(NeedsOperator, match="MERGE tables"):
        queries("CREATE TABLE t (a INT) ENGINE=MERGE UNION=(x, y)")
    (query,) = queries("CREATE TABLE t (a INT) ENGINE=InnoDB UNION=(x, y)")
    assert "UNION" not in query


OVERLAPS = (
    "CREATE TABLE t (id INT, s DATE, e DATE, PERIOD FOR p (s, e), UNIQUE (id, p WITHOUT OVERLAPS))"
)


def test_a_key_without_overlaps_is_one_over_both_ends() -> None:
    session = DdlSession(OVERLAPS)
    table = session.table()
    assert [part.name for part in table.indexes[0].columns] == ["id", "e", "s"]
    assert table.indexes[0].unique
    assert table.own_period == ("p", "s", "e")
    assert table_from_json(table_to_json(table)) == table
    assert "UNIQUE `id` (id, `e`, `s`)" in session.history[-1].query
    assert "UNIQUE `id` (id, `e`, `s`)" in spelled(Flavor.MYSQL, OVERLAPS)[0]


def test_a_period_is_known_to_later_statements() -> None:
    session = DdlSession(
        "CREATE TABLE t (id INT, s DATE, e DATE)",
        "ALTER TABLE t ADD PERIOD FOR p (s, e)",
        "ALTER TABLE t CHANGE s since DATE NOT NULL",
        "ALTER TABLE t ADD PRIMARY KEY (id, P WITHOUT OVERLAPS)",
    )
    assert session.history[-1].query == "ALTER TABLE `t` ADD PRIMARY KEY (id, `e`, `since`)"
    key = session.table().primary_key
    assert key is not None
    assert [part.name for part in key.columns] == ["id", "e", "since"]
    with pytest.raises(NeedsOperator, match="period 'q' does not exist"):
        session.run("ALTER TABLE t ADD UNIQUE (id, q WITHOUT OVERLAPS)")
    session.run("ALTER TABLE t DROP PERIOD FOR p")
    assert session.table().own_period == ()


@pytest.mark.parametrize(
    ("sent", "mariadb", "mysql"),
    [
        (
            "ALTER TABLE t ALTER INDEX k INVISIBLE, ADD b INT, ALTER INDEX l VISIBLE",
            "ALTER TABLE t ALTER INDEX k IGNORED, ADD b INT, ALTER INDEX l NOT IGNORED",
            "ALTER TABLE t ALTER INDEX k INVISIBLE, ADD b INT, ALTER INDEX l VISIBLE",
        ),
        (
            "CREATE INDEX k ON t (a) INVISIBLE",
            "CREATE INDEX k ON t (a) IGNORED",
            "CREATE INDEX k ON t (a) INVISIBLE",
        ),
        (
            "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u WITHOUT VALIDATION",
            "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u",
            "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u WITHOUT VALIDATION",
        ),
        (
            "CREATE GLOBAL TEMPORARY TABLE t (a INT) ON COMMIT DELETE ROWS",
            "CREATE  TABLE t (a INT)",
            "CREATE  TABLE t (a INT)",
        ),
    ],
)
def test_a_tidbs_statement_reaches_a_mariadb_and_a_mysql_in_words_that_they_read(
    sent: str, mariadb: str, mysql: str
) -> None:
    assert spelled_for(Flavor.MARIADB, sent).sql == mariadb
    assert spelled_for(Flavor.MYSQL, sent).sql == mysql
    if "TEMPORARY" not in sent:
        assert spelled_for(Flavor.TIDB, sent).sql == sent


@pytest.mark.parametrize("flavor", [Flavor.MYSQL, Flavor.TIDB])
def test_only_a_mariadb_reads_alter_key(flavor: Flavor) -> None:
    sent = "ALTER TABLE t ALTER KEY k NOT IGNORED"
    assert spelled_for(flavor, sent).sql == "ALTER TABLE t ALTER INDEX k VISIBLE"
    assert spelled_for(Flavor.MARIADB, sent).sql == sent


def test_an_invisible_index_over_an_expression_is_left_out_as_a_whole() -> None:
    sql = "CREATE TABLE t (a INT, KEY k (a) INVISIBLE, KEY f ((a + 1)) INVISIBLE)"
    (found,) = spelled(Flavor.MARIADB, sql)
    assert "(a INT, KEY k (a) IGNORED)" in found
