"""The Drainer's default way against MariaDB's own parallel replica, from one history.

A primary runs the history, transaction by transaction, with its binlog on. The replica first
fetches all of that binlog; its time begins when its appliers may start. The Drainer's begins with
row bytes. Both end with the last commit, and both write into the same server.
"""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pymysql.constants import CLIENT

from penstock_local import sql_server as local
from tests.bench.apply_cells import ROWS, ensure_equal
from tests.bench.apply_sides import RowWriter, measured, parallel, snapshot, warm_up
from tests.bench.figure import Figure
from tests.bench.sysbench import Tables, Transaction, batches, fill, running
from tests.kit.servers.fix_mariadb import MariadbServer

CHANGES = 60_000
THREADS = 16
FETCH_S_MAX = 120.0
_PRIMARY = ("--log-bin=mysql-bin", "--binlog-format=ROW", "--server-id=1", "--sync-binlog=0")
_REPLICA = (
    "--server-id=2",
    f"--slave-parallel-threads={THREADS}",
    "--slave-parallel-mode=optimistic",
    "--slave-parallel-max-queued=16777216",
)


def measure(home: Path) -> Iterator[Figure]:
    """Yield rows/s of a mixed history on one table; the baseline is the replica."""
    tables = Tables(1, ROWS)
    with running(home / "primary", *_PRIMARY) as primary:
        fill(primary, tables, ("replica",))
        with running(home / "replica", *_REPLICA) as server:
            fill(server, tables, ("replica", "snapshot", "parallel"))
            history = tables.history("mixed", CHANGES)
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
    yield Figure(
        name="apply.replica.mixed",
        value=ours.rate,
        unit="rows/s",
        baseline=theirs.rate,
        detail={
            "cpu_us_per_row": ours.cpu_us_per_row,
            "baseline_cpu_us_per_row": theirs.cpu_us_per_row,
            "cpu_ratio": ours.cpu_ratio(theirs),
            "baseline_retried_transactions": int(retried[0][1]),
            "parallel_rows_per_s": round(parted.rate),
            "parallel_cpu_us_per_row": parted.cpu_us_per_row,
            "rows": rows,
            "transactions": len(history),
            "machine_load": round(os.getloadavg()[0], 1),
            "baseline": f"slave_parallel_threads={THREADS}, optimistic, from its own relay log",
        },
    )


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
