"""An upsert on a real MariaDB meets another row than the one that was meant: nothing is changed."""

from contextlib import closing
from typing import Any

import pytest

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import open_table_sink
from drainer.sinks.protocol import Refused
from drainer.task.sql.literals import MYSQL
from drainer.task.sql.upserts import table_sql
from tests.integration.test_apply_mariadb import content, create
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.workloads.changes import table_of

START = Checkpoint(0, 0)
_CI = "VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"

TABLES: dict[str, tuple[str, list[Any], list[Any], list[Any], str]] = {
    # Columns; rows that are there; what upstream writes; what is there then; a conflicting value.
    "a number": (
        "id INT PRIMARY KEY, u INT UNIQUE, v VARCHAR(9)",
        [(1, 10, "old"), (2, None, "old")],
        [(1, 11, "it's"), (2, None, "new"), (3, None, "new")],
        [(1, 11, "it's"), (2, None, "new"), (3, None, "new")],
        "`id` = 1 of `guard`.`t` holds a value of the row `id` = 7: u is unique",
    ),
    "two columns, one of texts that are the same in any case": (
        f"a {_CI} NOT NULL, b INT NOT NULL, u BIGINT UNIQUE, v ENUM('x','y'), PRIMARY KEY (a, b)",
        [("Ab", 1, 10, "x")],
        [("Ab", 1, 11, "y"), ("ab", 2, None, "x")],
        [("Ab", 1, 11, "y"), ("ab", 2, None, "x")],
        "`a` = 'Ab', `b` = 1 of `guard`.`t` holds a value of the row `a` = 'c', `b` = 7: u is",
    ),
    "all columns": (
        "a INT, b INT UNIQUE, PRIMARY KEY (a, b)",
        [(1, 11)],
        [(1, 11), (2, 12)],
        [(1, 11), (2, 12)],
        "`a` = 1, `b` = 11 of `guard`.`t` holds a value of the row `a` = 7, `b` = 11: b is unique",
    ),
    "texts only, and an index on a beginning": (
        "a CHAR(9) PRIMARY KEY, u VARCHAR(40), UNIQUE KEY `u``` (u(3)), v TEXT",
        [("a", "xyz11", "old")],
        [("a", "xyz12", "new"), ("b", "x", "new")],
        [("a", "xyz12", "new"), ("b", "x", "new")],
        "`a` = 'a' of `guard`.`t` holds a value of the row `a` = 'c': u` is unique, and the latter"
        " is to have `u` = 'xyz'",
    ),
}
STRANGE = {
    "a number": (7, 11, "x"),
    "two columns, one of texts that are the same in any case": ("c", 7, 11, "x"),
    "all columns": (7, 11),
    "texts only, and an index on a beginning": ("c", "xyz", "x"),
}


@pytest.mark.main_case("strict")
@pytest.mark.parametrize("mode", ["", "ANSI"], ids=["strict", "lenient"])
@pytest.mark.parametrize("name", TABLES)
def test_the_row_meant_is_written_and_a_conflicting_row_that_holds_its_value_stops_it(
    mariadb: MariadbServer, name: str, mode: str
) -> None:
    columns, before, written, after, message = TABLES[name]
    create(mariadb, f"CREATE TABLE t ({columns})", "guard")
    sql = table_sql(MYSQL, "guard", "t", table_of(f"CREATE TABLE t ({columns})"))

    def upserts(rows: list[Any]) -> list[str]:
        texts = ",".join(map(sql.row_text, rows))
        return [sql._upsert_head + texts + sql._upsert_tail]

    url = f"{mariadb.url}?sql-mode={mode}" if mode else mariadb.url
    with (
        closing(open_table_sink(url, cluster_id=9)) as sink,
        closing(mariadb.connect(autocommit=True)) as connection,
    ):
        sink.save_checkpoint(sink.load_checkpoint() or START)
        sink.apply(upserts(before), Checkpoint(1, 1))
        assert content(connection, "guard") == before
        sink.apply(upserts(written), Checkpoint(2, 1))
        assert content(connection, "guard") == after
        with pytest.raises(Refused) as found:
            sink.apply(upserts([written[-1], STRANGE[name]]), Checkpoint(3, 1))
        assert message in found.value.problem
        assert content(connection, "guard") == after


_PADDED = "VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_520_ci"

MERGED: dict[str, tuple[str, list[Any], list[Any], str]] = {
    # Columns downstream; what is there; what upstream writes as another row; what is said.
    "a space at the end": (
        f"k {_PADDED} PRIMARY KEY, v INT",
        [("x", 1)],
        [("x ", 2)],
        "row `k` = 'x' of `guard`.`t` holds a value of the row `k` = 'x ': PRIMARY is unique",
    ),
    "a capital, in a key of two columns": (
        f"n INT, k {_PADDED}, PRIMARY KEY (n, k)",
        [(1, "abc")],
        [(1, "ABC")],
        "row `n` = 1, `k` = 'abc' of `guard`.`t` holds a value of the row `n` = 1, `k` = 'ABC'",
    ),
    "both new": (
        f"k {_PADDED} PRIMARY KEY, v INT",
        [],
        [("x", 1), ("y", 2), ("x ", 3)],
        "row `k` = 'x' of `guard`.`t`, which upstream changed at the same time, has a value of the"
        " row `k` = 'x '",
    ),
    "both new, in another index": (
        f"id INT PRIMARY KEY, u {_PADDED}, UNIQUE KEY u (u)",
        [],
        [(1, "x"), (2, "y"), (3, "X ")],
        "row `id` = 1 of `guard`.`t`, which upstream changed at the same time, has a value of the"
        " row `id` = 3: u is unique, and the latter is to have `u` = 'X '",
    ),
}


@pytest.mark.main_case("mariadb")
@pytest.mark.parametrize("name", MERGED)
@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_two_rows_that_only_the_downstream_takes_for_one_stop_it_and_none_is_lost(
    request: pytest.FixtureRequest, server: str, name: str
) -> None:
    """The table there was made by hand, or letters compare otherwise in another Unicode version."""
    columns, before, written, message = MERGED[name]
    running = request.getfixturevalue(server)
    create(running, f"CREATE TABLE t ({columns})", "guard")
    sql = table_sql(MYSQL, "guard", "t", table_of(f"CREATE TABLE t ({columns})"))
    with (
        closing(open_table_sink(running.url, cluster_id=9)) as sink,
        closing(running.connect(autocommit=True)) as connection,
    ):
        sink.save_checkpoint(sink.load_checkpoint() or START)
        for rows in filter(None, (before, before)):
            texts = ",".join(map(sql.row_text, rows))
            sink.apply([sql._upsert_head + texts + sql._upsert_tail], Checkpoint(1, 1))
        texts = ",".join(map(sql.row_text, written))
        with pytest.raises(Refused) as found:
            sink.apply([sql._upsert_head + texts + sql._upsert_tail], Checkpoint(2, 1))
        assert message in found.value.problem
        assert "1690" not in found.value.problem
        assert "collation" in found.value.hint
        assert content(connection, "guard") == before
