"""What TiDB's sessions write, and alter meanwhile, is equal in a TiDB, a MariaDB and an SQLite."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pymysql
import pytest

from penstock.local.sql_server import TidbServer
from tests.kit.servers.fix_tidb import PARTITIONED, TidbRig
from tests.kit.wait import eventually
from tests.kit.workloads.tidb_writers import TidbWriters, changes, changes_without_key, either

T = (
    "CREATE TABLE {0}.t (id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0, v VARCHAR(40), extra INT)",
    "INSERT INTO {0}.t (id, n, v, extra) VALUES (1, 1, 'one', 11), (2, 2, 'two', 22)",
)
H = ("CREATE TABLE {0}.h (n INT, v VARCHAR(40))",)


@dataclass(frozen=True)
class Kind:
    """A kind of DDL: the tables it begins with, and statements that run while rows change.

    `names` are those of the table; while it has none of them, sessions write to another one.
    """

    name: str
    ddl: tuple[str, ...]
    tables: tuple[str, ...] = T
    names: tuple[str, ...] = ("t",)


KINDS = (
    Kind("add column", ("ALTER TABLE {0}.t ADD COLUMN w INT NOT NULL DEFAULT 7",)),
    Kind(
        "add column in the middle", ("ALTER TABLE {0}.t ADD COLUMN w CHAR(3) DEFAULT 'x' AFTER id",)
    ),
    Kind("drop column", ("ALTER TABLE {0}.t DROP COLUMN extra",)),
    Kind("rename column", ("ALTER TABLE {0}.t RENAME COLUMN extra TO further",)),
    Kind("set default", ("ALTER TABLE {0}.t ALTER COLUMN extra SET DEFAULT 5",)),
    Kind("widen", ("ALTER TABLE {0}.t MODIFY COLUMN v VARCHAR(80), MODIFY COLUMN extra BIGINT",)),
    Kind(
        "modify with data", ("ALTER TABLE {0}.t MODIFY COLUMN n DECIMAL(12,2) NOT NULL DEFAULT 0",)
    ),
    Kind("change with data", ("ALTER TABLE {0}.t CHANGE COLUMN extra further VARCHAR(20)",)),
    Kind("add index", ("ALTER TABLE {0}.t ADD INDEX n_1 (n)", "ALTER TABLE {0}.t DROP INDEX n_1")),
    Kind("add unique", ("ALTER TABLE {0}.t ADD UNIQUE INDEX u (id, n)",)),
    Kind("rename index", ("CREATE INDEX a ON {0}.t (v)", "ALTER TABLE {0}.t RENAME INDEX a TO b")),
    Kind(
        "several at once",
        ("ALTER TABLE {0}.t ADD COLUMN w INT DEFAULT 1, DROP COLUMN extra, ADD INDEX v_1 (v)",),
    ),
    Kind(
        "rename table",
        ("RENAME TABLE {0}.t TO {0}.away", "RENAME TABLE {0}.away TO {0}.t"),
        (*T, *H),
        ("t", "away"),
    ),
    Kind("truncate", ("TRUNCATE TABLE {0}.t",)),
    Kind("drop and create", ("DROP TABLE {0}.t", T[0]), (*T, *H)),
    Kind("comment and counter", ("ALTER TABLE {0}.t COMMENT = 'more'", "ALTER TABLE {0}.t CACHE")),
    Kind(
        "without a key",
        ("ALTER TABLE {0}.h ADD COLUMN w INT DEFAULT 3", "ALTER TABLE {0}.h DROP COLUMN w"),
        (*T, *H),
    ),
)
PARTED = (
    "CREATE TABLE {0}.t (id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0, v VARCHAR(40))"
    " PARTITION BY RANGE (id)"
    " (PARTITION p0 VALUES LESS THAN (50), PARTITION p1 VALUES LESS THAN (100))",
    "INSERT INTO {0}.t (id, n, v) VALUES (1, 1, 'one'), (60, 2, 'two')",
)
OUTSIDE = (
    "CREATE TABLE {0}.ex (id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0, v VARCHAR(40))",
    "INSERT INTO {0}.ex (id, n, v) VALUES (51, 7, 'from outside')",
)
OF_PARTITIONS = (
    "ALTER TABLE {0}.t ADD PARTITION (PARTITION p2 VALUES LESS THAN (1000))",
    "ALTER TABLE {0}.t DROP PARTITION p0",
)
OF_A_QUIET_PARTITION = (
    "ALTER TABLE {0}.t EXCHANGE PARTITION p1 WITH TABLE {0}.ex",
    "ALTER TABLE {0}.t TRUNCATE PARTITION p1",
)
"""Rows that a session still writes into it by the schema before would be elsewhere in the TiDB."""


def schema_of(kind: Kind) -> str:
    return "ddl_" + kind.name.replace(" ", "_")


@pytest.mark.fault(
    "rows change while a DDL runs, on both servers", "every row has its values", cases="18"
)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_that_change_while_a_ddl_runs_are_equal(kind: Kind, tidb_rig: TidbRig) -> None:
    one, other = tidb_rig.tidbs
    schema = schema_of(kind)
    one.run(f"CREATE DATABASE {schema}", *(sql.format(schema) for sql in kind.tables))
    transaction = either(*(changes(f"{schema}.{name}") for name in kind.names))
    if kind.tables != T:
        transaction = either(transaction, changes_without_key(f"{schema}.h"))
    with TidbWriters((one, other), transaction) as writers:
        for statement in kind.ddl:
            writers.wait_for(5)
            other.run(statement.format(schema))
        if "CACHE" in kind.ddl[-1]:
            other.run(f"ALTER TABLE {schema}.t NOCACHE")
        writers.wait_for(5)
    assert tidb_rig.check(schema)["t"] > 0


MULTI = (
    "ALTER TABLE {0}.t MODIFY COLUMN n VARCHAR(20), ADD COLUMN w INT DEFAULT 4",
    "ALTER TABLE {0}.t DROP COLUMN extra, ADD COLUMN x INT DEFAULT 5",
    "ALTER TABLE {0}.t CHANGE COLUMN n m INT, MODIFY COLUMN w VARCHAR(9), DROP COLUMN x",
    "ALTER TABLE {0}.t CHANGE COLUMN m n VARCHAR(20), ADD COLUMN x INT DEFAULT 6",
)


def test_rows_after_the_swap_of_a_multi_schema_change_and_before_its_binlog_are_equal(
    tidb_rig: TidbRig,
) -> None:
    one, other = tidb_rig.tidbs
    one.run("CREATE DATABASE swapped", *(sql.format("swapped") for sql in T))
    values = ", ".join(f"({n}, {n}, 'v', {n})" for n in range(1000, 1300))
    one.run(f"INSERT INTO swapped.t (id, n, v, extra) VALUES {values}")
    transaction = either(
        changes("swapped.t"),
        *(
            lambda rng, name=name: [
                f"UPDATE swapped.t SET {name} = {rng.randrange(999)}"
                f" WHERE id = {rng.randrange(1000, 1300)}",
                f"REPLACE INTO swapped.t (id, {name}) VALUES"
                f" ({rng.randrange(1300, 1400)}, {rng.randrange(999)})",
            ]
            for name in "wxnm"
        ),
        lambda rng: [f"UPDATE swapped.t SET v = 'w' WHERE id > {rng.randrange(1200, 1300)}"],
    )
    with TidbWriters((one, other), transaction, threads=6) as writers:
        for statement in MULTI:
            writers.wait_for(5)
            other.run(statement.format("swapped"))
        writers.wait_for(5)
    assert tidb_rig.check("swapped")["t"] > 300


def test_rows_that_change_while_partitions_come_and_go_are_equal(tidb_rig: TidbRig) -> None:
    one, other = tidb_rig.tidbs
    before = (*PARTED, *OUTSIDE)
    one.run(f"CREATE DATABASE {PARTITIONED}", *(sql.format(PARTITIONED) for sql in before))
    for statements, keys in ((OF_A_QUIET_PARTITION, 44), (OF_PARTITIONS, 95)):
        with TidbWriters((one, other), changes(f"{PARTITIONED}.t", keys)) as writers:
            for statement in statements:
                writers.wait_for(5)
                other.run(statement.format(PARTITIONED))
            writers.wait_for(5)
    counts = tidb_rig.check(PARTITIONED)
    assert counts["ex"] == 1
    assert counts["t"] > 0


@pytest.mark.fault(
    "a DDL fails at its data; is cancelled midway, held up by an open transaction",
    "nothing runs",
    cases="6",
)
def test_a_ddl_that_fails_leaves_the_stream_as_it_was(tidb_rig: TidbRig) -> None:
    one, other = tidb_rig.tidbs
    one.run("CREATE DATABASE failing", *(sql.format("failing") for sql in T))
    one.run("INSERT INTO failing.t (id, n) VALUES (1001, 5), (1002, 5)")
    with TidbWriters((one, other), changes("failing.t")) as writers:
        writers.wait_for(5)
        with pytest.raises(pymysql.err.IntegrityError):
            other.run("ALTER TABLE failing.t ADD UNIQUE INDEX n_1 (n)")
        with pytest.raises(pymysql.MySQLError):
            other.run("ALTER TABLE failing.t MODIFY COLUMN v DATETIME")
        writers.wait_for(5)
    assert tidb_rig.check("failing")["t"] > 2


CANCELLED_DDL_JOB = 8214
TO_BE_CANCELLED = (
    Kind("add column", ("ALTER TABLE {0}.t ADD COLUMN w INT NOT NULL DEFAULT 7",)),
    Kind("add index", ("ALTER TABLE {0}.t ADD UNIQUE INDEX u (id, n)",)),
    Kind(
        "modify with data", ("ALTER TABLE {0}.t MODIFY COLUMN n DECIMAL(12,2) NOT NULL DEFAULT 0",)
    ),
    Kind("several at once", ("ALTER TABLE {0}.t ADD COLUMN w INT DEFAULT 1, ADD INDEX v_1 (v)",)),
)


@contextmanager
def under_way(server: TidbServer, schema: str, statement: str) -> Iterator[int]:
    """Run a DDL that an open transaction holds up in its middle; yield its job, which then ends.

    A transaction that has read a table lets it change by one schema version only.
    """
    met: list[BaseException] = []

    def alter() -> None:
        try:
            server.run(statement)
        except pymysql.MySQLError as error:
            met.append(error)

    jobs = (
        "SELECT job_id FROM information_schema.ddl_jobs WHERE state = 'running'"
        f" AND schema_state <> 'none' AND db_name = '{schema}'"
    )
    with closing(server.connect(autocommit=False)) as reader, reader.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {schema}.t LIMIT 1")
        altering = threading.Thread(target=alter)
        altering.start()
        eventually(lambda: server.query(jobs) != [], 60)
        ((job_id,),) = server.query(jobs)
        yield int(job_id)
        reader.rollback()
        altering.join()
    assert [error.args[0] for error in met] == [CANCELLED_DDL_JOB]


@pytest.mark.parametrize("kind", TO_BE_CANCELLED, ids=lambda kind: kind.name)
def test_a_ddl_that_is_cancelled_midway_leaves_the_stream_as_it_was(
    kind: Kind, tidb_rig: TidbRig
) -> None:
    one, other = tidb_rig.tidbs
    schema = f"cancelled_{schema_of(kind)}"
    one.run(f"CREATE DATABASE {schema}", *(sql.format(schema) for sql in T))
    with TidbWriters((one, other), changes(f"{schema}.t")) as writers:
        writers.wait_for(5)
        with under_way(other, schema, kind.ddl[0].format(schema)) as job_id:
            writers.wait_for(5)
            other.run(f"ADMIN CANCEL DDL JOBS {job_id}")
        writers.wait_for(5)
    assert tidb_rig.check(schema)["t"] > 0
    names = tidb_rig.sides["upstream"].column_names(schema, "t")
    assert names == {"id", "n", "v", "extra"}


def test_what_several_sessions_write_is_equal(tidb_rig: TidbRig) -> None:
    one, other = tidb_rig.tidbs
    one.run(
        "CREATE DATABASE shop",
        *(sql.format("shop") for sql in (*T, *H)),
        "CREATE TABLE shop.c (id VARCHAR(20), n INT, v VARCHAR(40) UNIQUE,"
        " PRIMARY KEY (id, n) CLUSTERED)",
        "CREATE TABLE shop.k (id BIGINT PRIMARY KEY NONCLUSTERED, n INT, v VARCHAR(40), KEY (n))",
    )
    transactions = either(
        changes("shop.t"),
        changes("shop.k"),
        changes_without_key("shop.h"),
        lambda rng: [
            f"INSERT IGNORE INTO shop.c VALUES ('{rng.randrange(50)}', 1, '{rng.randrange(50)}')",
            f"UPDATE shop.c SET id = CONCAT(id, 'x'), n = n + 1 WHERE v = '{rng.randrange(50)}'"
            " AND n < 9",
            f"DELETE FROM shop.c WHERE v = '{rng.randrange(50)}'",
        ],
    )
    with TidbWriters((one, other), transactions, threads=6) as writers:
        writers.wait_for(60)
    assert all(tidb_rig.check("shop").values())


TYPES = (
    "b BIT(9), t TINYINT, u BIGINT UNSIGNED, d DECIMAL(20,6), f FLOAT, g DOUBLE, y YEAR, a DATE,"
    " i TIME(3), m DATETIME(6), s TIMESTAMP(2) NULL, c CHAR(5), x VARCHAR(30) COLLATE utf8mb4_bin,"
    " r BINARY(4), w VARBINARY(9), o LONGTEXT, l BLOB, e ENUM('red','green'), z SET('p','q','r'),"
    " j JSON"
)
NAMES = ", ".join(column.split()[0] for column in TYPES.split(", "))
VALUES = (
    "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
    " NULL, NULL, NULL, NULL, NULL",
    "b'101', -128, 18446744073709551615, -12345678901234.000001, 1.5, -2.25e-9, 2026, '2026-02-28',"
    " '-838:59:59.000', '9999-12-31 23:59:59.999999', '2026-11-22 10:00:00.25', 'ä', 'straße',"
    " X'00FF', X'', REPEAT('long ', 5000), X'0001FE', 'green', 'p,r', '{\"k\": [1, null, 2.5]}'",
    "b'0', 127, 0, 0, 0, 0, 1901, '0001-01-01', '00:00:00.001', '1000-01-01', '1970-01-02', '', '',"
    " X'00000000', X'00', '', X'', 'red', '', '[]'",
)


def test_values_of_every_type_are_equal(tidb_rig: TidbRig) -> None:
    tidb_rig.tidbs[0].run(
        "CREATE DATABASE types",
        f"CREATE TABLE types.t (id INT PRIMARY KEY AUTO_INCREMENT, {TYPES},"
        " g1 INT AS (t + 1) VIRTUAL, g2 INT AS (t * 2) STORED)",
        *(f"INSERT INTO types.t ({NAMES}) VALUES ({values})" for values in VALUES),
        "UPDATE types.t SET t = 5, j = JSON_SET(j, '$.n', 1) WHERE id = 2",
        "UPDATE types.t SET id = 100 WHERE id = 3",
    )
    assert tidb_rig.check("types") == {"t": len(VALUES)}
