import pytest

from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnFlag, TableInfo
from tests.unit.penstock.ddl_session import DdlSession

F = ColumnFlag


def create(body: str) -> TableInfo:
    return DdlSession(f"CREATE TABLE t ({body})").table()


def keys(table: TableInfo) -> list[tuple[str, list[str], bool]]:
    return [(i.name, [c.name for c in i.columns], i.unique) for i in table.indexes]


def flags(table: TableInfo) -> list[ColumnFlag]:
    mask = F.PRI_KEY | F.UNIQUE_KEY | F.MULTIPLE_KEY | F.NOT_NULL
    return [c.flag & mask for c in table.columns]


@pytest.mark.parametrize("tp", ["TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT UNSIGNED"])
def test_a_primary_key_of_one_integer_is_the_handle_without_an_index(tp: str) -> None:
    table = create(f"id {tp}, PRIMARY KEY (id)")
    assert (table.pk_is_handle, table.is_common_handle, table.indexes) == (True, False, ())
    assert table.primary_key is not None
    assert table.columns[0].flag & (F.PRI_KEY | F.NOT_NULL) == F.PRI_KEY | F.NOT_NULL


@pytest.mark.parametrize("tp", ["VARCHAR(10)", "DECIMAL(5)", "DATETIME", "YEAR", "BIT(3)"])
def test_any_other_primary_key_is_the_common_handle(tp: str) -> None:
    table = create(f"id {tp} PRIMARY KEY")
    assert (table.pk_is_handle, table.is_common_handle) == (False, True)
    assert keys(table) == [("PRIMARY", ["id"], True)]


def test_a_primary_key_of_two_integers_is_the_common_handle() -> None:
    table = create("a INT, b INT, c INT, PRIMARY KEY (b, a)")
    assert table.is_common_handle
    assert flags(table) == [F.PRI_KEY | F.NOT_NULL, F.PRI_KEY | F.NOT_NULL, F(0)]


def test_without_a_primary_key_the_row_id_is_hidden() -> None:
    table = create("a INT UNIQUE")
    assert (table.pk_is_handle, table.is_common_handle, table.primary_key) == (False, False, None)


def test_key_flags_are_those_of_mysql() -> None:
    table = create("a INT, b INT, c INT, d INT, UNIQUE (a), UNIQUE (b, c), KEY (c, d), KEY (d)")
    assert flags(table) == [F.UNIQUE_KEY, F.MULTIPLE_KEY, F.MULTIPLE_KEY, F.MULTIPLE_KEY]


def test_unnamed_keys_are_named_after_their_first_column() -> None:
    table = create("a INT UNIQUE, b INT, KEY (a), KEY a_3 (b), KEY (A, b), CONSTRAINT c UNIQUE (b)")
    assert [name for name, _, _ in keys(table)] == ["a", "a_2", "a_3", "a_4", "c"]


def test_ids_count_from_one_in_the_order_written() -> None:
    table = create("a INT, b INT UNIQUE, KEY k (a), PRIMARY KEY (a)")
    assert [c.id for c in table.columns] == [1, 2]
    assert [i.id for i in table.indexes] == [1, 2]
    assert (table.max_column_id, table.max_index_id) == (2, 2)


def test_prefixes_are_kept_unless_they_are_the_whole_column() -> None:
    table = create("a VARCHAR(10), b TEXT, c BLOB, KEY (a(9)), KEY (a(10)), KEY (b(5), c(6) DESC)")
    assert [[c.length for c in i.columns] for i in table.indexes] == [[9], [-1], [5, 6]]


def test_a_foreign_key_brings_an_index_where_none_serves() -> None:
    session = DdlSession("CREATE TABLE p (id INT PRIMARY KEY)")
    (job,) = session.run(
        "CREATE TABLE t (a INT, b INT, c INT, FOREIGN KEY (a) REFERENCES p (id),"
        " CONSTRAINT f FOREIGN KEY (b) REFERENCES p (id), FOREIGN KEY (c) REFERENCES p (id),"
        " KEY serves (c, a))"
    )
    assert [name for name, _, _ in keys(session.table())] == ["serves", "a", "f"]
    assert "REFERENCES p (id), KEY `a` (`a`)," in job.query
    assert "REFERENCES p (id), KEY `f` (`b`)," in job.query


def test_an_inline_reference_is_read_and_left_out_as_in_mysql() -> None:
    session = DdlSession("CREATE TABLE p (id INT PRIMARY KEY)")
    (job,) = session.run("CREATE TABLE t (a INT REFERENCES p (id) ON DELETE CASCADE, b INT)")
    assert "REFERENCES" not in job.query
    assert session.table().indexes == ()


def test_options_that_change_no_row_are_read_and_passed_on() -> None:
    session = DdlSession()
    (job,) = session.run(
        "CREATE TABLE t (a INT CHECK (a > 0), CHECK (a < 9)) ENGINE=InnoDB AUTO_INCREMENT 7"
        " ROW_FORMAT=DYNAMIC, COMMENT='x' PARTITION BY HASH (a) PARTITIONS 4"
    )
    assert session.table().comment == "x"
    for clause in ("CHECK (a > 0)", "CHECK (a < 9)", "AUTO_INCREMENT 7", "PARTITION BY HASH (a)"):
        assert clause in job.query


def test_a_key_that_is_kept_as_a_hash_serves_no_foreign_key() -> None:
    session = DdlSession(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE t (p INT, note VARCHAR(1000), UNIQUE long_one (p, note))",
        "CREATE TABLE u (p INT, note VARCHAR(100), UNIQUE short (p, note))",
    )
    for table in "tu":
        session.run(f"ALTER TABLE {table} ADD CONSTRAINT of_p FOREIGN KEY (p) REFERENCES p (id)")
    assert [index.name for index in session.table("t").indexes] == ["long_one", "of_p"]
    assert [index.name for index in session.table("u").indexes] == ["short"]


def test_a_comma_behind_an_option_that_is_left_out_goes_with_it() -> None:
    (job,) = DdlSession().run("CREATE TABLE t (a INT) DATA DIRECTORY='/x', CHECKSUM=1, COMMENT='c'")
    assert "," not in job.query
    assert "CHECKSUM=1" in job.query


def test_a_column_that_counts_for_each_value_before_it_is_the_second_of_a_key() -> None:
    session = DdlSession(
        "CREATE TABLE t (shelf INT, n INT AUTO_INCREMENT, KEY (shelf, n)) ENGINE=MyISAM"
    )
    assert [part.name for part in session.table().indexes[0].columns] == ["shelf", "n"]


def test_comments_are_as_long_as_a_lax_server_keeps_them() -> None:
    session = DdlSession()
    (job,) = session.run(
        f"CREATE TABLE t (a INT COMMENT '{'é' * 1030}', KEY (a) COMMENT '{'k' * 1025}')"
        f" COMMENT '{'t' * 2050}'"
    )
    table = session.table()
    assert (table.columns[0].comment, table.comment) == ("é" * 1024, "t" * 2048)
    assert job.query.count("k") == 1024
    assert session.run("ALTER TABLE t COMMENT 'short'")[0].query.endswith("COMMENT 'short'")


def test_create_like_copies_all_but_the_id() -> None:
    session = DdlSession(
        "CREATE TABLE t (a INT, b INT UNIQUE) CHARSET latin1 COMMENT 'c'",
        "ALTER TABLE t DROP a, ADD c INT NOT NULL DEFAULT 3",
        "CREATE TABLE u LIKE t",
    )
    t, u = session.table("t"), session.table("u")
    assert u.id != t.id
    assert [(c.id, c.name, c.default) for c in u.columns] == [(2, "b", None), (3, "c", "3")]
    assert [c.origin_default for c in u.columns] == [None, None]
    assert (u.indexes, u.charset, u.comment, u.max_column_id) == (t.indexes, "latin1", "c", 3)


@pytest.mark.parametrize(
    "body",
    [
        "a INT, A INT",
        "a INT, KEY (b)",
        "a INT, KEY (a, a)",
        "a INT, KEY k (a), KEY K (a)",
        "a INT PRIMARY KEY, b INT PRIMARY KEY",
        "a INT, KEY `primary` (a)",
        "a INT, KEY (a(3))",
        "a VARCHAR(5), KEY (a(6))",
        "a VARCHAR(5), KEY (a(0))",
        "a TEXT, KEY (a)",
        "a VARCHAR(800), KEY (a)",
        "a INT, SPATIAL KEY (a)",
        "a POINT, SPATIAL KEY (a)",
        "a POINT NOT NULL, b POINT NOT NULL, SPATIAL KEY (a, b)",
        "a POINT NOT NULL, SPATIAL KEY (a(5))",
        "a POINT NOT NULL PRIMARY KEY",
        "a GEOMETRY, UNIQUE (a(5))",
        "a POINT, FULLTEXT (a)",
        "a INT AUTO_INCREMENT, b INT AUTO_INCREMENT, KEY (a), KEY (b)",
        "a INT AUTO_INCREMENT, b INT, KEY (b)",
        "KEY (a)",
        "",
        "a INT,",
        "select INT",
        "a INT FIRST",
        "`a ` INT",
        "`` INT",
        f"`{'x' * 65}` INT",
    ],
)
def test_what_mysql_would_refuse_is_refused(body: str) -> None:
    with pytest.raises(NeedsOperator):
        create(body)


@pytest.mark.parametrize(
    "tail", ["AS SELECT 1", "SELECT 1", "FROBNICATE=1", "PARTITION BY MAGIC (id)"]
)
def test_what_penstock_cannot_follow_after_a_table_is_refused(tail: str) -> None:
    with pytest.raises(NeedsOperator):
        DdlSession(f"CREATE TABLE t (a INT) {tail}")


def test_paths_of_one_server_are_left_out() -> None:
    session = DdlSession("CREATE TABLE t (a INT) DATA DIRECTORY='/x' INDEX DIRECTORY = '/y'")
    assert "DIRECTORY" not in session.history[-1].query
