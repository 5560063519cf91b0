import pytest

from penstock.ddl.rewrite.foreign import spelled_for
from penstock.ddl.syntax.statements import Flavor
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnFlag, DdlType, MysqlType, TableInfo
from tests.unit.penstock.ddl_session import DdlSession, check_invariants

BASE = (
    "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(20) NOT NULL DEFAULT 'x', c TEXT,"
    " UNIQUE u (a), KEY ab (a, b), KEY kb (b(5)))"
)


def alter(*operations: str) -> DdlSession:
    session = DdlSession(BASE, *(f"ALTER TABLE t {o}" for o in operations))
    check_invariants(session.catalog)
    return session


def names(table: TableInfo) -> list[str]:
    return [c.name for c in table.columns]


def keys(table: TableInfo) -> dict[str, list[str]]:
    return {i.name: [c.name for c in i.columns] for i in table.indexes}


@pytest.mark.parametrize(
    ("operation", "order"),
    [
        ("ADD z INT", "id a b c z"),
        ("ADD COLUMN z INT FIRST", "z id a b c"),
        ("ADD z INT AFTER a", "id a z b c"),
        ("ADD z INT AFTER A, ADD y INT AFTER z", "id a z y b c"),
        ("ADD (z INT, y INT)", "id a b c z y"),
        (
            "ADD COLUMN (z INT COMMENT 'k, (y', y INT, KEY (z), UNIQUE k (y, z)), DROP c",
            "id a b z y",
        ),
        ("ADD z INT FIRST, ADD y INT FIRST", "y z id a b c"),
        ("MODIFY c TEXT FIRST", "c id a b"),
        ("MODIFY a INT AFTER c", "id b c a"),
        ("CHANGE a z INT AFTER c, ADD y INT AFTER z", "id b c z y"),
        ("CHANGE a z INT", "id z b c"),
        ("RENAME COLUMN a TO z", "id z b c"),
        ("RENAME COLUMN a TO c, RENAME COLUMN c TO a", "id c b a"),
        ("CHANGE a c INT, CHANGE c a TEXT", "id c b a"),
        ("DROP c, ADD c INT FIRST", "c id a b"),
        ("DROP COLUMN c", "id a b"),
        ("DROP c RESTRICT, ADD z INT AFTER b", "id a b z"),
    ],
)
def test_columns_come_go_and_move_as_in_mysql(operation: str, order: str) -> None:
    assert names(alter(operation).table()) == order.split()


def test_a_column_keeps_its_id_whatever_happens_to_it_and_no_id_comes_back() -> None:
    session = alter("RENAME COLUMN a TO z", "MODIFY z BIGINT FIRST", "DROP c", "ADD c INT")
    assert {c.name: c.id for c in session.table().columns} == {"z": 2, "id": 1, "b": 3, "c": 5}
    assert session.table().max_column_id == 5


def test_indexes_follow_their_columns() -> None:
    renamed = keys(alter("RENAME COLUMN a TO z").table())
    assert renamed == {"u": ["z"], "ab": ["z", "b"], "kb": ["b"]}
    assert keys(alter("DROP INDEX u, DROP a").table()) == {"ab": ["b"], "kb": ["b"]}
    assert keys(alter("DROP a").table()) == {"ab": ["b"], "kb": ["b"]}


def test_keys_may_stand_among_the_columns_that_are_added() -> None:
    session = alter("ADD (z INT, KEY kz (z), y INT), ADD UNIQUE (y)")
    assert keys(session.table()) == {"u": ["a"], "ab": ["a", "b"], "kb": ["b"], "kz": ["z"],
                                     "y": ["y"]}  # fmt: skip
    (job,) = session.run("ALTER TABLE t ADD (x INT, KEY (x)), DROP z")
    assert "ADD x INT, ADD KEY `x` (x), DROP z" in job.query


def test_a_prefix_goes_when_the_column_becomes_shorter_or_no_text() -> None:
    def prefix(operation: str) -> int:
        indexes = {i.name: i for i in alter(operation).table().indexes}
        return indexes["kb"].columns[0].length

    assert prefix("MODIFY b VARCHAR(6)") == 5
    assert prefix("MODIFY b VARCHAR(4)") == -1
    assert prefix("MODIFY b INT") == -1


def test_index_ids_never_come_back() -> None:
    table = alter("DROP INDEX kb", "ADD INDEX kb (b)", "RENAME INDEX ab TO ba").table()
    assert {i.name: i.id for i in table.indexes} == {"u": 1, "ba": 2, "kb": 4}


def test_the_handle_follows_the_primary_key() -> None:
    table = alter("DROP PRIMARY KEY").table()
    assert (table.pk_is_handle, table.primary_key) == (False, None)
    assert ColumnFlag.NOT_NULL in table.columns[0].flag
    assert ColumnFlag.PRI_KEY not in table.columns[0].flag
    table = alter("DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)").table()
    assert table.is_common_handle
    table = alter("MODIFY id VARCHAR(10)").table()
    assert (table.pk_is_handle, table.is_common_handle) == (False, True)
    table = alter("MODIFY id VARCHAR(10)", "MODIFY id BIGINT").table()
    assert (table.pk_is_handle, table.is_common_handle) == (True, False)


@pytest.mark.parametrize(
    ("definition", "origin"),
    [
        ("INT", None), ("INT DEFAULT 5", "5"), ("INT NOT NULL", "0"),
        ("DECIMAL(5,2) NOT NULL", "0.00"), ("BIT(3) NOT NULL", "0"), ("YEAR NOT NULL", "0"),
        ("DOUBLE NOT NULL", "0"), ("VARCHAR(5) NOT NULL", ""), ("BINARY(3) NOT NULL", "\0\0\0"),
        ("DATE NOT NULL", "0000-00-00"), ("DATETIME(2) NOT NULL", "0000-00-00 00:00:00.00"),
        ("TIME NOT NULL", "00:00:00"), ("ENUM('p','q') NOT NULL", "p"),
        ("SET('p','q') NOT NULL", ""), ("JSON NOT NULL", "null"), ("JSON", None),
        ("INT AS (a + 1)", None),
    ],
)  # fmt: skip
def test_older_rows_read_a_new_column_as_its_default_or_zero(
    definition: str, origin: str | None
) -> None:
    assert alter(f"ADD z {definition}").table().columns[-1].origin_default == origin


def test_changing_the_default_does_not_change_older_rows() -> None:
    table = alter("ADD z INT DEFAULT 5", "ALTER z SET DEFAULT 6").table()
    assert (table.columns[-1].default, table.columns[-1].origin_default) == ("6", "5")
    table = alter("ADD z INT DEFAULT 5", "ALTER COLUMN z DROP DEFAULT").table()
    assert (table.columns[-1].default, table.columns[-1].origin_default) == (None, "5")


def test_what_older_rows_read_follows_a_change_of_type() -> None:
    table = alter("ADD z INT DEFAULT 5", "MODIFY z VARCHAR(9)").table()
    assert (table.columns[-1].default, table.columns[-1].origin_default) == (None, "5")
    table = alter("ADD z VARCHAR(5) DEFAULT 'x'", "MODIFY z INT NOT NULL").table()
    assert table.columns[-1].origin_default == "0"


def test_modify_forgets_what_is_not_said_again() -> None:
    table = alter("MODIFY b VARCHAR(30)").table()
    assert (table.columns[2].default, table.columns[2].is_not_null) == (None, False)


def test_convert_changes_text_columns_and_lets_text_grow() -> None:
    session = DdlSession(
        "CREATE TABLE t (a VARCHAR(5), b TEXT, c BLOB, d INT, e ENUM('x')) CHARSET latin1",
        "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4",
    )
    table = session.table()
    charsets = [c.charset for c in table.columns]
    assert charsets == ["utf8mb4", "utf8mb4", "binary", "binary", "utf8mb4"]
    assert table.columns[1].tp is MysqlType.MEDIUM_BLOB
    assert table.columns[2].tp is MysqlType.BLOB
    assert (table.charset, table.collate) == ("utf8mb4", "utf8mb4_bin")


def test_a_new_table_charset_is_for_new_columns_only() -> None:
    table = alter("CHARSET = latin1", "ADD z VARCHAR(3)").table()
    assert [c.charset for c in table.columns[2:]] == ["utf8mb4", "utf8mb4", "latin1"]


@pytest.mark.parametrize(
    ("operation", "tp"),
    [
        ("ADD z INT", DdlType.ADD_COLUMN), ("ADD z INT UNIQUE", DdlType.MULTI_SCHEMA_CHANGE),
        ("ADD (z INT, y INT)", DdlType.MULTI_SCHEMA_CHANGE), ("DROP c", DdlType.DROP_COLUMN),
        ("MODIFY c TEXT", DdlType.MODIFY_COLUMN), ("CHANGE c d TEXT", DdlType.MODIFY_COLUMN),
        ("RENAME COLUMN c TO d", DdlType.MODIFY_COLUMN), ("ADD INDEX (a)", DdlType.ADD_INDEX),
        ("ADD UNIQUE (b), ALGORITHM=INPLACE, LOCK=NONE", DdlType.ADD_INDEX),
        ("DROP INDEX u", DdlType.DROP_INDEX), ("DROP CONSTRAINT u", DdlType.DROP_INDEX),
        ("RENAME INDEX u TO v", DdlType.RENAME_INDEX),
        ("DROP PRIMARY KEY", DdlType.DROP_PRIMARY_KEY),
        ("DROP INDEX `primary`", DdlType.DROP_PRIMARY_KEY),
        ("ALTER a SET DEFAULT 3", DdlType.SET_DEFAULT), ("COMMENT 'x'", DdlType.TABLE_COMMENT),
        ("CHARSET utf8", DdlType.MODIFY_TABLE_CHARSET),
        ("CONVERT TO CHARACTER SET utf8", DdlType.MODIFY_TABLE_CHARSET),
        ("RENAME TO u", DdlType.RENAME_TABLE), ("ENGINE=InnoDB", DdlType.MULTI_SCHEMA_CHANGE),
        ("ADD z INT, DROP c", DdlType.MULTI_SCHEMA_CHANGE),
        ("ADD z INT, RENAME TO u", DdlType.MULTI_SCHEMA_CHANGE),
    ],
)  # fmt: skip
def test_an_alter_is_one_job_of_the_right_type(operation: str, tp: DdlType) -> None:
    session = DdlSession(BASE)
    assert [job.type for job in session.run(f"ALTER TABLE t {operation}")] == [tp]


@pytest.mark.parametrize(
    "operation",
    [
        "ADD a INT", "ADD A INT", "ADD z INT AFTER nope", "ADD z INT AFTER y, ADD y INT",
        "DROP nope", "DROP id, DROP a, DROP b, DROP c", "DROP a, DROP a", "DROP a, MODIFY a BIGINT",
        "MODIFY a BIGINT, ALTER a SET DEFAULT 3", "MODIFY nope INT", "CHANGE a b INT",
        "RENAME COLUMN a TO b", "ADD INDEX u (b)", "ADD INDEX (nope)", "ADD INDEX (c)",
        "ADD PRIMARY KEY (a)", "DROP INDEX nope", "RENAME INDEX u TO ab",
        "RENAME INDEX u TO `PRIMARY`", "RENAME INDEX `PRIMARY` TO v",
        "RENAME INDEX `PRIMARY` TO v, DROP PRIMARY KEY",
        "DROP INDEX `PRIMARY`, RENAME INDEX `primary` TO v", "ALTER nope SET DEFAULT 1",
        "ALTER a SET DEFAULT 'x'", "ALTER b SET DEFAULT NULL", "ADD z INT AUTO_INCREMENT UNIQUE",
        "ADD z INT DEFAULT (rand())", "ADD z SERIAL", "ADD z INT NOT NULL DEFAULT NULL",
        "MODIFY a INT AS (id + 1)", "DROP a, ADD a INT", "DROP PARTITION",
        "TRUNCATE PARTITION p0, DROP ab", "DROP ab, DROP PARTITION p0",
        "EXCHANGE PARTITION p0 WITH TABLE x", "EXCHANGE PARTITION p0 WITH TABLE t",
        "DISCARD PARTITION p0 TABLESPACE", "CONVERT PARTITION p0 TO TABLE x", "IMPORT TABLESPACE",
        "DISCARD TABLESPACE", "FROBNICATE", "ADD z INT,", "ADD z INT b", "RENAME TO nope.t",
        "RENAME TO x, RENAME TO y",
    ],
)  # fmt: skip
def test_what_cannot_be_done_or_followed_is_refused_and_changes_nothing(operation: str) -> None:
    session = DdlSession(BASE)
    before = session.table()
    with pytest.raises(NeedsOperator):
        session.run(f"ALTER TABLE t {operation}")
    assert session.table() == before


def test_a_dropped_column_of_a_wider_unique_index_is_refused() -> None:
    session = DdlSession("CREATE TABLE t (a INT, b INT, c INT, UNIQUE (a, b), PRIMARY KEY (b, c))")
    for column in "abc":
        with pytest.raises(NeedsOperator, match="unique index"):
            session.run(f"ALTER TABLE t DROP {column}")


def test_what_a_generated_column_needs_stays() -> None:
    session = DdlSession("CREATE TABLE t (a INT, `b` INT, c INT AS (abs(a) + `B`), f INT)")
    for column in "ab":
        with pytest.raises(NeedsOperator, match="generated column"):
            session.run(f"ALTER TABLE t DROP {column}")
    session.run("ALTER TABLE t DROP c, DROP a", "ALTER TABLE t RENAME COLUMN f TO abs")
    assert names(session.table()) == ["b", "abs"]


def test_a_generated_column_is_over_its_columns_under_their_new_names() -> None:
    session = DdlSession("CREATE TABLE t (net INT, vat INT, total INT AS (abs(net) + `VAT`))")
    session.run("ALTER TABLE t RENAME COLUMN vat TO `v a t`, CHANGE net base BIGINT")
    assert session.table().columns[2].generated_expr == "abs(`base`) + `v a t`"
    session.run("ALTER TABLE t RENAME COLUMN base TO `v a t`, RENAME COLUMN `v a t` TO base")
    assert session.table().columns[2].generated_expr == "abs(`v a t`) + `base`"


@pytest.mark.parametrize(
    ("operations", "runs"),
    [
        ("ADD KEY IF NOT EXISTS (a)", None),
        ("ADD UNIQUE IF NOT EXISTS (A, b)", None),
        ("ADD PRIMARY KEY IF NOT EXISTS (a)", None),
        ("ADD KEY IF NOT EXISTS (b)", "ADD KEY  `b` (b)"),
        ("ADD KEY k (b), ADD KEY IF NOT EXISTS k (b)", "ADD KEY k (b)"),
        ("DROP KEY a, DROP KEY IF EXISTS a", "DROP KEY a"),
        ("DROP COLUMN b, DROP COLUMN IF EXISTS b", "DROP COLUMN b"),
        ("ADD c INT, ADD COLUMN IF NOT EXISTS c INT", "ADD c INT"),
        ("ADD COLUMN IF NOT EXISTS (b INT, c INT, d INT)", "ADD c INT, ADD d INT"),
        ("ADD IF NOT EXISTS (a INT, b INT)", None),
    ],
)
def test_what_is_there_or_gone_by_then_comes_to_nothing_where_that_is_allowed(
    operations: str, runs: str | None
) -> None:
    session = DdlSession("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, KEY (a))")
    jobs = session.run(f"ALTER TABLE t {operations}")
    assert [job.query for job in jobs] == ([f"ALTER TABLE `t` {runs}"] if runs else [])


def test_a_key_of_a_column_that_is_there_already_is_refused() -> None:
    session = DdlSession("CREATE TABLE t (a INT, b INT)")
    for operation in ("ADD IF NOT EXISTS a INT UNIQUE", "ADD IF NOT EXISTS (c INT, b SERIAL)"):
        with pytest.raises(NeedsOperator, match="that is there already"):
            session.run(f"ALTER TABLE t {operation}")
    session.run("ALTER TABLE t ADD UNIQUE (a)")
    assert not session.run("ALTER TABLE t ADD IF NOT EXISTS a INT UNIQUE")


def test_a_column_that_comes_may_get_its_default_by_the_same_statement() -> None:
    session = DdlSession("CREATE TABLE t (a INT)")
    session.run(
        "ALTER TABLE t ADD b INT NOT NULL, ALTER b SET DEFAULT 3,"
        " ADD c INT NOT NULL DEFAULT 2, ALTER COLUMN c DROP DEFAULT"
    )
    _, b, c = session.table().columns
    assert (b.default, b.origin_default) == ("3", "3")
    assert (c.default, c.origin_default) == (None, "0")
    with pytest.raises(NeedsOperator, match="'e' does not exist"):
        session.run("ALTER TABLE t ADD d INT, ALTER e SET DEFAULT 3")


def test_a_table_is_not_converted_and_given_another_character_set_at_once() -> None:
    session = DdlSession("CREATE TABLE t (a CHAR(5))")
    for charset in ("latin1", "DEFAULT"):
        with pytest.raises(NeedsOperator, match="changed twice"):
            session.run(f"ALTER TABLE t CONVERT TO CHARACTER SET ascii, CHARACTER SET {charset}")


def test_a_period_makes_its_columns_not_null() -> None:
    session = DdlSession("CREATE TABLE t (a DATE, z DATE)")
    session.run("ALTER TABLE t CHANGE a since DATE, ADD PERIOD FOR stay (since, z)")
    assert [c.is_not_null for c in session.table().columns] == [True, True]
    jobs = session.run("ALTER TABLE t DROP PERIOD IF EXISTS FOR stay")
    assert jobs[0].query == "ALTER TABLE `t` DROP PERIOD IF EXISTS FOR stay"
    assert not spelled_for(Flavor.MYSQL, jobs[0].query).sql
    session.run("ALTER TABLE t ADD period INT")
    assert names(session.table()) == ["since", "z", "period"]


def test_the_primary_key_goes_by_marias_name_for_it_too() -> None:
    session = DdlSession("CREATE TABLE t (a INT PRIMARY KEY, b INT)")
    (job,) = session.run("ALTER TABLE t DROP CONSTRAINT PRIMARY KEY, ADD PRIMARY KEY (b)")
    assert job.query == "ALTER TABLE `t` DROP PRIMARY KEY, ADD PRIMARY KEY (b)"
    assert keys(session.table()) == {}


def test_a_fulltext_index_over_text_survives_other_changes() -> None:
    session = DdlSession(
        "CREATE TABLE t (a TEXT, b VARCHAR(3000), FULLTEXT f (a), FULLTEXT g (b))",
        "ALTER TABLE t ADD z INT",
    )
    assert keys(session.table()) == {"f": ["a"], "g": ["b"]}


def test_an_index_stays_with_a_renamed_column_unless_a_new_one_stands_before_it() -> None:
    session = DdlSession("CREATE TABLE t (a INT, b INT, KEY k (a))")
    for place in ("ADD a INT, CHANGE a c INT AFTER a", "ADD a INT FIRST, RENAME COLUMN a TO c"):
        with pytest.raises(NeedsOperator, match="whose name a new one takes"):
            session.run(f"ALTER TABLE t {place}")
    session.run("ALTER TABLE t CHANGE a c INT, ADD a INT")
    assert keys(session.table()) == {"k": ["c"]}


def test_the_primary_key_is_not_renamed_even_where_all_its_columns_go() -> None:
    session = DdlSession("CREATE TABLE t (a INT PRIMARY KEY, b INT)")
    with pytest.raises(NeedsOperator, match="PRIMARY"):
        session.run("ALTER TABLE t RENAME INDEX `PRIMARY` TO k, DROP a")


def test_a_spatial_index_survives_other_changes_and_keys_over_geometries_have_a_prefix() -> None:
    session = DdlSession(
        "CREATE TABLE t (p POINT NOT NULL, g GEOMETRY, KEY a (p), KEY b (g), SPATIAL KEY s (p))",
        "ALTER TABLE t ADD z INT, MODIFY p POLYGON NOT NULL",
        "CREATE SPATIAL INDEX s2 ON t (p)",
    )
    lengths = {i.name: i.columns[0].length for i in session.table().indexes}
    assert lengths == {"a": 25, "b": 3072, "s": -1, "s2": -1}
    for refused in ("MODIFY p POLYGON", "MODIFY g INT", "MODIFY z POINT", "ADD UNIQUE (g)"):
        with pytest.raises(NeedsOperator):
            session.run(f"ALTER TABLE t {refused}")
    session.run("ALTER TABLE t DROP KEY s, DROP KEY s2, MODIFY p BLOB, MODIFY g TEXT, DROP KEY b")
