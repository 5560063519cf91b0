"""Keys that a statement leaves without a name have, downstream, the names that upstream chose."""

import itertools
from contextlib import closing

import pymysql
import pytest

from penstock.ddl import Catalog, plan_ddl
from penstock.local.sql_server import SqlServer

BOTH = (
    "CREATE TABLE t (id SERIAL, a INT UNIQUE, b VARCHAR(9) CHARSET latin1 UNIQUE KEY, c INT,"
    " KEY (a, b), UNIQUE (c), KEY USING BTREE (c), FULLTEXT (b))",
    "CREATE TABLE p (id INT PRIMARY KEY, `primary` INT, KEY (`primary`))",
    "ALTER TABLE t ADD INDEX (c), ADD UNIQUE KEY (a), ADD d INT UNIQUE AFTER a",
    "ALTER TABLE t ADD (e INT UNIQUE, f INT, KEY (f), UNIQUE (f, e))",
    "ALTER TABLE t DROP INDEX c_2, ADD KEY (c), RENAME COLUMN f TO g, ADD KEY (g)",
    "ALTER TABLE t MODIFY e BIGINT UNIQUE, CHANGE g h INT UNIQUE FIRST",
    "ALTER TABLE p ADD q INT, ADD FOREIGN KEY (q) REFERENCES p (id), ADD KEY (`primary`)",
    "ALTER TABLE p ADD r INT, ADD CONSTRAINT UNIQUE (r), ADD CONSTRAINT own UNIQUE (r)",
)
ONLY = {
    "mariadb": ("ALTER TABLE t ADD INDEX IF NOT EXISTS (h), ADD KEY IF NOT EXISTS h_9 (h)",),
    "mysql": (
        "ALTER TABLE t ADD KEY ((a + c)), ADD INDEX ((c * 2), d)",
        "CREATE TABLE x (a INT, KEY ((a + 1)), KEY functional_index_2 (a), KEY ((a + 2)))",
    ),
}


class Sides:
    """Two databases of one server: statements as written, and what their jobs run."""

    def __init__(self, server: SqlServer) -> None:
        self.server = server
        server.run("CREATE DATABASE up", "CREATE DATABASE down")
        self._catalog, self._ids = Catalog(), itertools.count(1)
        self._planned("CREATE DATABASE up")

    def _planned(self, sql: str) -> list[str]:
        jobs = plan_ddl(sql, "up", self._catalog, lambda: next(self._ids))
        for job in jobs:
            self._catalog.apply(job)
        return [job.query for job in jobs]

    def run(self, sql: str) -> None:
        for schema, statements in (("up", [sql]), ("down", self._planned(sql))):
            with closing(self.server.connect()) as connection, connection.cursor() as cursor:
                connection.select_db(schema)
                for each in statements:
                    cursor.execute(each)

    def keys(self, schema: str) -> list[tuple[object, ...]]:
        return self.server.query(
            "SELECT table_name, index_name, seq_in_index, column_name, non_unique, index_type"
            f" FROM information_schema.statistics WHERE table_schema = '{schema}' ORDER BY 1, 2, 3"
        )


@pytest.fixture(
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_keys_have_the_names_of_upstream(request: pytest.FixtureRequest, kind: str) -> None:
    sides = Sides(request.getfixturevalue(kind))
    for sql in (*BOTH, *ONLY[kind]):
        sides.run(sql)
        assert sides.keys("down") == sides.keys("up"), sql
    assert len(sides.keys("up")) > 20


@pytest.mark.fault(
    "a key without a name, and an index that only the downstream has",
    "the key has upstream's name; a name that is taken stops the Drainer instead of another one",
    cases="2",
)
def test_an_index_that_was_added_downstream_is_met_and_not_evaded(
    request: pytest.FixtureRequest, kind: str
) -> None:
    sides = Sides(request.getfixturevalue(kind))
    sides.run("CREATE TABLE t (a INT, b INT, c INT)")
    sides.server.run("CREATE INDEX b ON down.t (a)", "CREATE INDEX c ON down.t (a)")
    for sql in ("ALTER TABLE t ADD KEY (b)", "ALTER TABLE t MODIFY c BIGINT UNIQUE"):
        with pytest.raises(pymysql.err.OperationalError, match="1061"):
            sides.run(sql)
    assert [key[1] for key in sides.keys("down")] == ["b", "c"]
