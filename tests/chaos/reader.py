"""The reader downstream: one consistent snapshot after the other, all the time."""

import json
import threading
import time
from contextlib import closing

import pymysql
from pymysql.cursors import DictCursor

from penstock.local.sql_server import SqlServer
from tests.chaos.history import ACCOUNTS, CAPITAL, COLUMNS, checksum_sql
from tests.chaos.judge import Final, Snapshot
from tests.kit.workloads.bank_reader import AGAIN, NOT_YET

_EVERY_S = 0.5
_ANSWER_S = 20


class Reader(threading.Thread):
    """Reads until stopped; what it has seen may be looked at meanwhile."""

    def __init__(self, server: SqlServer) -> None:
        super().__init__(name="reader", daemon=True)
        self._server = server
        self._stopping = threading.Event()
        self.snapshots: list[Snapshot] = []
        """Those that differ from the one before, in the order of their reading."""
        self.checks = 0
        self.advances: list[tuple[float, int]] = []
        """When the checkpoint was seen to be further, by `time.time`, and where it was."""
        self.problem = ""

    def stop(self) -> None:
        """End after the read under way."""
        self._stopping.set()
        self.join()

    def run(self) -> None:
        """Read on, whatever happens to the server; another error is a problem."""
        while not self._stopping.wait(_EVERY_S):
            try:
                snapshot = self.read()
            except Exception as error:
                code = error.args[0] if isinstance(error, pymysql.err.MySQLError) else None
                if code not in AGAIN | NOT_YET:
                    self.problem = f"the reader cannot read: {error!r}"
            else:
                if snapshot is not None:
                    self._note(snapshot)

    def _note(self, snapshot: Snapshot) -> None:
        self.checks += 1
        if not self.advances or snapshot.commit_ts > self.advances[-1][1]:
            self.advances.append((time.time(), snapshot.commit_ts))
        if not self.snapshots or snapshot != self.snapshots[-1]:
            self.snapshots.append(snapshot)
        if snapshot.total not in (0, CAPITAL):
            self.problem = f"a total of {snapshot.total} at {snapshot.commit_ts}, not {CAPITAL}"

    def read(self) -> Snapshot | None:
        """Return what one consistent read sees; None before there is a checkpoint."""
        with (
            closing(self._server.connect(read_timeout=_ANSWER_S)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
            checkpoint = cursor.fetchone()
            if checkpoint is None:
                return None
            total, sums = 0, {}
            for table in ACCOUNTS:
                cursor.execute(f"SELECT COALESCE(SUM(balance), 0) FROM {table}")
                total += int(cursor.fetchall()[0][0])
            for table in COLUMNS:
                cursor.execute(checksum_sql(table))
                ((count, checksum),) = cursor.fetchall()
                sums[table] = int(count), int(checksum)
        return Snapshot(json.loads(checkpoint[0])["commitTS"], total, sums)


def final_tables(server: SqlServer) -> Final:
    found = Final()
    with closing(server.connect(cursorclass=DictCursor)) as connection:
        for schema in ("bank", "shop"):
            with connection.cursor() as cursor:
                cursor.execute(f"SHOW TABLES FROM {schema}")
                names = [next(iter(row.values())) for row in cursor.fetchall()]
                for name in names:
                    cursor.execute(f"SELECT * FROM {schema}.{name}")
                    found.rows[f"{schema}.{name}"] = list(cursor.fetchall())
    return found
