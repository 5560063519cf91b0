"""Batches applied by the Drainer, against other ways of bringing the same changes into MariaDB.

    apply.merge.<kind>.t<n>   against TiDB-Binlog's way, table count by table count
    apply.merge.existing      the same over ten-column rows, all of them updated
    apply.load_data.insert    new rows, against LOAD DATA, both into an empty table
    apply.replica.mixed       against MariaDB's own parallel replica, from one history

The three ways have copies of the same tables. The classic one gets the beginning of the history,
as much as it can do in some seconds, and is then brought to its end by `snapshot`, so that all
copies can be compared. 100 tables have 10,000 rows each, not 100,000: else filling would take
longer than all else. Where others work on the machine, sixteen connections get more of it than one:
there `cpu_ratio` says more than the ratio of the wall clock.

The replica's primary runs the history, transaction by transaction, with its binlog on. The replica
first fetches all of that binlog; its time begins when its appliers may start. The Drainer's begins
with row bytes. Both end with the last commit, and both write into the same server.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pymysql.constants import CLIENT

from drainer.task.compaction import plan_units
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import MYSQL
from drainer.task.work_unit import in_order
from penstock.datum.rows.row_codec import RowCodec
from penstock.local import sql_server as local
from penstock.wire.binlog import MutationType
from tests.bench.apply_sides import (
    CHANGES_PER_TRANSACTION,
    KINDS,
    Change,
    RowWriter,
    Tables,
    Transaction,
    against,
    batches,
    classic,
    database,
    fill,
    measured,
    parallel,
    snapshot,
    warm_up,
)
from tests.bench.rig import Figure, running, sized
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.workloads.changes import batch_of, table_of

COUNTS = (1, 10, 100)
ROWS = sized(100_000, 2_000)
ROWS_MAX = sized(1_000_000, 20_000)
CHANGES = sized(200_000, 4_000)
CLASSIC_CHANGES = sized(16_000, 1_600)
_SCHEMAS = ("classic", "snapshot", "parallel")
CLASSIC = "16 connections, one row per statement, 20 rows per transaction"


def names(count: int) -> str:
    """Return the names of the figures for so many tables; asking for one measures all of them."""
    cells = " ".join(f"apply.merge.{kind}.t{count}" for kind in KINDS)
    return f"{cells} drainer.apply.t{count}"


def measure_cells(count: int, home: Path) -> Iterator[Figure]:
    """Yield rows/s of each kind of history; the baseline is the classic way."""
    tables = Tables(count, min(ROWS, ROWS_MAX // count))
    with database(home / "mariadb") as server:
        fill(server, tables, _SCHEMAS)
        first = 1
        for kind in KINDS:
            history = tables.history(kind, CHANGES)
            yield _measured(server, tables, history, f"apply.merge.{kind}.t{count}", first)
            first += len(history)
        ensure_equal(server, tables, _SCHEMAS)


def _measured(
    server: MariadbServer, tables: Tables, history: list[Transaction], name: str, first: int
) -> Figure:
    some = CLASSIC_CHANGES // CHANGES_PER_TRANSACTION
    warm_up(next(batches(tables, history, "snapshot", first)))
    theirs = classic(server, tables.infos, "classic", history[:some])
    ours = snapshot(server, list(batches(tables, history, "snapshot", first)), cluster_id=1)
    split = parallel(server, list(batches(tables, history, "parallel", first)), cluster_id=2)
    snapshot(server, list(batches(tables, history[some:], "classic", first)), cluster_id=3)
    return against(
        name, ours, split, theirs, CLASSIC,
        baseline_rows=theirs.rows, rows_per_table=tables.first_rows,
    )  # fmt: skip


def ensure_equal(server: MariadbServer, tables: Tables, schemas: Sequence[str]) -> None:
    """Raise when a way has not ended with the rows that the upstream has."""
    first, *others = schemas
    for number in range(len(tables.infos)):
        checksums = [
            server.query(f"CHECKSUM TABLE {schema}.sbtest{number}")[0][1] for schema in schemas
        ]
        assert len(set(checksums)) == 1, f"{first} and {others} differ in table {number}"
    held = server.query(f"SELECT * FROM {first}.sbtest0 ORDER BY id")
    assert held == tables.rows_of(0), f"{first} does not hold what the upstream has"


LOADED_ROWS = sized(200_000, 4_000)
_LOADED = ("loaded", "snapshot", "parallel")


def measure_load_data(home: Path) -> Iterator[Figure]:
    """Yield rows/s; the baseline is one LOAD DATA of a file that lies there."""
    tables = Tables(1, 0)
    file = home / "rows"
    with database(home / "mariadb") as server:
        fill(server, tables, _LOADED)
        history = tables.history("insert", LOADED_ROWS)
        made, split = (list(batches(tables, history, name, 1)) for name in _LOADED[1:])
        file.write_text("".join(f"{i}\t{k}\t{c}\t{pad}\n" for i, k, c, pad in tables.rows_of(0)))
        warm_up(made[0])
        with server.connect(local_infile=True) as connection:
            load = f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE loaded.sbtest0"
            loaded = measured(server, LOADED_ROWS, lambda: connection.query(load))
        ours = snapshot(server, made, cluster_id=1)
        parted = parallel(server, split, cluster_id=2)
        ensure_equal(server, tables, _LOADED)
    baseline = "LOAD DATA LOCAL of a file with the final rows, in key order"
    yield against("apply.load_data.insert", ours, parted, loaded, baseline)


REPLICA_CHANGES = sized(60_000, 1_600)
THREADS = 16
FETCH_S_MAX = 120.0
_PRIMARY = ("--log-bin=mysql-bin", "--binlog-format=ROW", "--server-id=1", "--sync-binlog=0")
_REPLICA = (
    "--server-id=2",
    f"--slave-parallel-threads={THREADS}",
    "--slave-parallel-mode=optimistic",
    "--slave-parallel-max-queued=16777216",
)


def measure_replica(home: Path) -> Iterator[Figure]:
    """Yield rows/s of a mixed history on one table; the baseline is the replica."""
    tables = Tables(1, ROWS)
    with database(home / "primary", *_PRIMARY) as primary:
        fill(primary, tables, ("replica",))
        with database(home / "replica", *_REPLICA) as server:
            fill(server, tables, ("replica", "snapshot", "parallel"))
            history = tables.history("mixed", REPLICA_CHANGES)
            rows = sum(map(len, history))
            made, split = (
                list(batches(tables, history, name, 1)) for name in ("snapshot", "parallel")
            )
            start = position(primary)
            run(primary, tables, history)
            end = position(primary)
            fetch(server, primary, start, end)
            theirs = measured(server, rows, lambda: applied(server, end))
            server.query("STOP SLAVE")
            warm_up(made[0])
            ours = snapshot(server, made, cluster_id=1)
            parted = parallel(server, split, cluster_id=2)
            retried = server.query("SHOW GLOBAL STATUS LIKE 'Slave_retried_transactions'")
            ensure_equal(server, tables, ("replica", "snapshot", "parallel"))
    yield against(
        "apply.replica.mixed", ours, parted, theirs,
        f"slave_parallel_threads={THREADS}, optimistic, from its own relay log",
        baseline_retried_transactions=int(retried[0][1]), transactions=len(history),
    )  # fmt: skip


def run(primary: MariadbServer, tables: Tables, history: Sequence[Transaction]) -> None:
    """Run the history on the primary, each transaction in one message."""
    writers = [RowWriter("replica", table) for table in tables.infos]
    with primary.connect(client_flag=CLIENT.MULTI_STATEMENTS) as connection:
        connection.query("SET sql_mode = '', binlog_row_image = 'FULL'")
        connection.query("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        for transaction in history:
            statements = [writers[change.table].statement(change) for change in transaction]
            connection.query(b";".join([b"BEGIN", *statements, b"COMMIT"]))
            while connection.next_result():
                pass


def position(primary: MariadbServer) -> tuple[str, int]:
    """Return the file and the offset at which the primary's binlog ends."""
    file, offset, *_ = primary.query("SHOW MASTER STATUS")[0]
    return file, int(offset)


def fetch(
    server: local.MariadbServer,
    primary: local.MariadbServer,
    start: tuple[str, int],
    end: tuple[str, int],
) -> None:
    """Let the replica have the binlog from start to end on its own disk, and apply nothing."""
    server.query(
        f"CHANGE MASTER TO MASTER_HOST='{primary.host}', MASTER_PORT={primary.port},"
        f" MASTER_USER='{primary.user}', MASTER_PASSWORD='{primary.password}',"
        f" MASTER_LOG_FILE='{start[0]}', MASTER_LOG_POS={start[1]}, MASTER_USE_GTID=no"
    )
    server.query("START SLAVE IO_THREAD")
    deadline = time.monotonic() + FETCH_S_MAX
    while (has := status(server))["Master_Log_File"] != end[0] or (
        has["Read_Master_Log_Pos"] < end[1]
    ):
        assert time.monotonic() < deadline, f"the replica does not fetch: {has['Last_IO_Error']}"
        time.sleep(0.05)


def applied(
    server: local.MariadbServer, end: tuple[str, int], timeout_s: float = FETCH_S_MAX
) -> None:
    """Let the replica apply what it has; return once it is there."""
    server.query("START SLAVE SQL_THREAD")
    waited = server.query(f"SELECT MASTER_POS_WAIT('{end[0]}', {end[1]}, {timeout_s:.0f})")
    has = status(server)
    assert waited[0][0] not in (None, -1), f"the replica does not apply: {has['Last_SQL_Error']}"


def status(server: local.MariadbServer) -> dict[str, Any]:
    """Return the replica's state by name."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW SLAVE STATUS")
        row = cursor.fetchone()
        assert row is not None
        assert cursor.description is not None
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


SQL = (
    "CREATE TABLE t (id BIGINT PRIMARY KEY, ref BIGINT, name VARCHAR(40), city VARCHAR(40),"
    " qty INT, price DECIMAL(12,2), score DOUBLE, at DATETIME, note VARCHAR(255),"
    " raw VARBINARY(64), KEY qty (qty))"
)
EXISTING_ROWS = sized(20_000, 1_000)
BATCHES = 8


def _ten_columns(i: int, version: int) -> tuple[Any, ...]:
    """Return one of the rows; a version changes half of its columns, the indexed ones apart."""
    return (
        i, i * 7 + version, f"name {i % 977}", f"it's city {i % 53}",
        i * 31 % 1000, f"{i % 10_000}.{version % 10}5", i / 7 + version,
        f"2022-04-27 04:05:{version % 60:02d}", f"a note of some length about row {i} " * 2,
        (i * 2654435761 + version).to_bytes(32, "little"),
    )  # fmt: skip


def measure_existing(home: Path) -> Iterator[Figure]:
    """Yield rows/s over existing rows; the baseline updates the same rows as TiDB-Binlog does."""
    table = table_of(SQL)
    codec = RowCodec(table)
    first = [
        (MutationType.INSERT, codec.encode_insert(_ten_columns(i, 0))) for i in range(EXISTING_ROWS)
    ]
    updates = [
        [
            (MutationType.UPDATE, codec.encode_update(_ten_columns(i, n), _ten_columns(i, n + 1)))
            for i in range(EXISTING_ROWS)
        ]
        for n in range(BATCHES)
    ]
    history = [
        [[Change(0, kind, data, i)] for i, (kind, data) in enumerate(some)] for some in updates
    ]
    with running(MariadbServer(home / "mariadb")) as server:
        for schema in ("ours", "theirs"):
            server.query(f"CREATE DATABASE {schema}")
            server.query(SQL.replace("TABLE t", f"TABLE {schema}.t"))
            with server.connect() as connection:
                connection.query("SET sql_mode = ''")
                units = plan_units(batch_of(table, first, schema=schema), MYSQL)
                for statement in in_order(generate(unit) for unit in units):
                    connection.query(statement)
        theirs = classic(server, [table], "theirs", history[0])
        made = [batch_of(table, some, schema="ours", number=n) for n, some in enumerate(updates, 1)]
        ours = snapshot(server, made, cluster_id=1)
        classic(server, [table], "theirs", [each for some in history[1:] for each in some])
        same = [server.query(f"CHECKSUM TABLE {name}.t")[0][1] for name in ("ours", "theirs")]
        assert same[0] == same[1], "the two ways ended with different rows"
    detail = {
        "cpu_us_per_row": ours.cpu_us_per_row,
        "baseline_cpu_us_per_row": theirs.cpu_us_per_row,
        "baseline": CLASSIC,
    }
    yield Figure("apply.merge.existing", ours.rate, "rows/s", theirs.rate, detail)
