"""MySQL, MariaDB or TiDB as the downstream; the checkpoint is a row of `tidb_binlog.checkpoint`.

A batch is one transaction: lock the checkpoint row, compare it with what this run last wrote, run
the statements, store the new checkpoint, commit. When the connection breaks, nobody can tell
whether the commit happened; the next attempt reads the row, under a lock that waits for the end
of whatever the server still does, and so finds out. That makes every retry safe.

The session's sql_mode is part of the literals' format (`drainer.apply.literals`):
NO_BACKSLASH_ESCAPES so that only quotes are special, STRICT_ALL_TABLES so that a value that does
not fit is an error and not another value, NO_AUTO_VALUE_ON_ZERO and ALLOW_INVALID_DATES so that 0
and '2021-02-31' arrive as they are. DDL text comes from elsewhere and keeps backslash escapes.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pymysql
from pymysql.constants import ER

from drainer.apply.literals import MYSQL
from drainer.sinks.checkpoint import Checkpoint, Ledger, Standing
from drainer.sinks.mysql_ddl import ALREADY_CODES, Progress, ensure_repeatable, progress
from drainer.sinks.mysql_url import Target, parse_url
from penstock.errors import NeedsOperator, Retryable
from penstock.schema import DdlType
from penstock.ts import physical_ms

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange

log = logging.getLogger(__name__)

ROWS_SQL_MODE = (
    "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION,"
    "NO_BACKSLASH_ESCAPES"
)
DDL_SQL_MODE = ROWS_SQL_MODE.removesuffix(",NO_BACKSLASH_ESCAPES")

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 5.0
_PACKET_SPARE_BYTES = 1024
# Errors that pass: the server goes, comes, is full, is read-only for a fail-over, or chose us in a
# deadlock. The last block is TiDB's: write conflicts, regions and schemas on the move.
_PASSING = {
    0, ER.CON_COUNT_ERROR, ER.DISK_FULL, ER.SERVER_SHUTDOWN, ER.LOCK_WAIT_TIMEOUT,
    ER.LOCK_DEADLOCK, ER.ERROR_DURING_COMMIT, ER.OPTION_PREVENTS_STATEMENT,
    ER.TOO_MANY_USER_CONNECTIONS, ER.NET_READ_ERROR, ER.NET_READ_INTERRUPTED,
    ER.NET_ERROR_ON_WRITE, ER.NET_WRITE_INTERRUPTED, ER.QUERY_INTERRUPTED, ER.RECORD_FILE_FULL,
    1836, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 3100, 3101, 4031,
    8002, 8022, 8027, 8028, 9001, 9002, 9003, 9004, 9005, 9006, 9007, 9008,
}  # fmt: skip

Connection = Any  # PyMySQL's stubs make the connection generic over its cursor.
T = TypeVar("T")


class MysqlSink:
    """See `Sink`; one connection, opened when it is first needed and again when it was lost."""

    dialect = MYSQL

    def __init__(self, url: str, *, cluster_id: int, retry_s_max: float) -> None:
        self._target: Target = parse_url(url)
        self._cluster_id = cluster_id
        self._retry_s_max = retry_s_max
        self._ledger = Ledger()
        self._connection: Connection | None = None
        self._packet_bytes_max = 0
        self._closing = threading.Event()
        self._using = threading.Lock()
        self._table = f"`{self._target.checkpoint_schema}`.`{self._target.checkpoint_table}`"

    # --- the promise -----------------------------------------------------------------------

    def load_checkpoint(self) -> Checkpoint | None:
        """Return where to continue; create the checkpoint table when there is none."""

        def attempt(connection: Connection, retried: bool) -> str | None:
            try:
                return self._stored(connection, "")
            except pymysql.err.MySQLError as error:
                if _code(error) not in (ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE):
                    raise
            schema = self._target.checkpoint_schema
            connection.query(f"CREATE DATABASE IF NOT EXISTS `{schema}`")
            connection.query(
                f"CREATE TABLE IF NOT EXISTS {self._table}"
                " (clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)"
            )
            return None

        return self._ledger.loaded(self._retrying(attempt))

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store `checkpoint` alone."""
        self.apply((), checkpoint)

    def apply(self, statements: Sequence[str | bytes], checkpoint: Checkpoint) -> None:
        """Run all statements and store `checkpoint` in one transaction, exactly once."""
        text, doubtful = self._ledger.attempt(checkpoint)

        def attempt(connection: Connection, retried: bool) -> None:
            self._check_sizes(statements)
            connection.begin()
            stored = self._stored(connection, " FOR UPDATE")
            standing = self._ledger.standing(stored, text, retried=retried or doubtful)
            if standing is Standing.ALREADY_WRITTEN:
                connection.rollback()
                log.info("the commit whose answer was lost did happen (%s)", checkpoint)
                return
            for statement in statements:
                connection.query(statement)
            self._store(connection, text)
            connection.commit()

        self._retrying(attempt)
        self._ledger.wrote(text)

    def run_ddl(self, change: SchemaChange, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        """Save the intent, run the job's query, save `checkpoint`.

        MySQL commits a DDL by itself, so a crash can leave it done without a checkpoint. The
        intent says which DDL that may be; what it was to create or drop says whether it is.
        """
        last = self._ledger.last
        intended = last is not None and last.ddl_intent_ts == checkpoint.commit_ts
        doubtful = maybe_done or intended
        self.save_checkpoint(self._ledger.intent(checkpoint))

        def attempt(connection: Connection, retried: bool) -> None:
            if not (doubtful or retried):
                self._execute_ddl(connection, change)
                return
            if progress(connection, change) is Progress.DONE:
                log.info("DDL job %d was done before: %s", change.job.id, change.job.query)
                return
            ensure_repeatable(change)
            try:
                self._execute_ddl(connection, change)
            except pymysql.err.MySQLError as error:
                done = progress(connection, change) in (Progress.DONE, Progress.UNKNOWN)
                if not (done and _code(error) in ALREADY_CODES):
                    raise
                log.info("DDL job %d was done before: %s", change.job.id, error)

        self._retrying(attempt)
        self.save_checkpoint(checkpoint)

    def close(self) -> None:
        """Close the connection; a call that waits in another thread ends with `Retryable`."""
        self._closing.set()
        if not self._using.acquire(blocking=False):
            self._hang_up()
            self._using.acquire()
        try:
            self._disconnect()
        finally:
            self._using.release()

    # --- pieces ----------------------------------------------------------------------------

    def _stored(self, connection: Connection, lock: str) -> str | None:
        where = f"WHERE clusterID = {self._cluster_id}{lock}"
        row = _one(connection, f"SELECT checkPoint FROM {self._table} {where}")  # noqa: S608
        return row[0] if row else None

    def _store(self, connection: Connection, text: str) -> None:
        value = "'" + text.replace("'", "''") + "'"
        if self._ledger.is_new:
            sql = f"INSERT INTO {self._table} VALUES ({self._cluster_id}, {value})"  # noqa: S608
        else:
            where = f"WHERE clusterID = {self._cluster_id}"
            sql = f"UPDATE {self._table} SET checkPoint = {value} {where}"  # noqa: S608
        connection.query(sql)

    def _execute_ddl(self, connection: Connection, change: SchemaChange) -> None:
        job = change.job
        if not job.query:
            return
        if job.schema_name and job.type not in (DdlType.CREATE_SCHEMA, DdlType.DROP_SCHEMA):
            connection.select_db(job.schema_name)
        connection.query(f"SET SESSION sql_mode = '{DDL_SQL_MODE}'")
        # The upstream's moment, so that DEFAULT CURRENT_TIMESTAMP fills old rows alike everywhere.
        connection.query(f"SET TIMESTAMP = {physical_ms(job.finished_ts) / 1000:.3f}")
        connection.query(job.query)
        connection.query("SET TIMESTAMP = DEFAULT")
        connection.query(f"SET SESSION sql_mode = '{ROWS_SQL_MODE}'")

    def _check_sizes(self, statements: Sequence[str | bytes]) -> None:
        largest = max(map(len, statements), default=0)
        if largest + _PACKET_SPARE_BYTES > self._packet_bytes_max:
            raise NeedsOperator(
                f"a statement of {largest} bytes does not fit into the downstream's"
                f" max_allowed_packet of {self._packet_bytes_max}",
                hint="raise max_allowed_packet on the downstream; a single row can be that large",
            )

    # --- the connection --------------------------------------------------------------------

    def _retrying(self, attempt: Callable[[Connection, bool], T]) -> T:
        """Return what `attempt` returns; try again, on a new connection, while errors may pass."""
        with self._using:
            return self._until_it_passes(attempt)

    def _until_it_passes(self, attempt: Callable[[Connection, bool], T]) -> T:
        deadline = time.monotonic() + self._retry_s_max
        pause_s = _PAUSE_S_MIN
        retried = False
        while True:
            try:
                return attempt(self._connected(), retried)
            except (pymysql.err.MySQLError, OSError) as error:
                # A transaction that was open ends with its connection, whatever happened to it.
                self._disconnect()
                if not _passes(error):
                    raise _refused(error) from error
                problem = error
            except BaseException:
                self._disconnect()
                raise
            retried = True
            if time.monotonic() + pause_s > deadline:
                raise Retryable(
                    f"downstream {self._target.name}: {problem}, for {self._retry_s_max:.0f} s"
                ) from problem
            log.warning("downstream %s: %s; trying again", self._target.name, problem)
            if self._closing.wait(pause_s):
                raise Retryable("the sink was closed while it waited") from problem
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _connected(self) -> Connection:
        if self._closing.is_set():
            raise Retryable("the sink is closed")
        if self._connection is None:
            self._connection = connection = pymysql.connect(**self._target.options)
            _keep_alive(connection)
            connection.query(
                f"SET SESSION sql_mode = '{ROWS_SQL_MODE}', time_zone = '+00:00',"
                " foreign_key_checks = 0"
            )
            connection.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            self._packet_bytes_max = int(_one(connection, "SELECT @@max_allowed_packet")[0])
        return self._connection

    def _hang_up(self) -> None:
        """End a statement that another thread waits for, by ending its connection."""
        connection = self._connection
        sock = None if connection is None else connection._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(pymysql.err.MySQLError, OSError):
                connection.close()


def _one(connection: Connection, sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def _keep_alive(connection: Connection) -> None:
    """Notice within a minute that the server's machine is gone; statements may take hours."""
    sock = connection._sock
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _code(error: BaseException) -> int:
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) else 0


def _passes(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return True
    return _code(error) in _PASSING


def _refused(error: BaseException) -> NeedsOperator:
    code = _code(error)
    hint = "compare the downstream's schema and data with the upstream's"
    if code in (ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR):
        hint = "check the user, the password and the grants of the downstream's account"
    elif code in ALREADY_CODES:
        hint = "the downstream's schema is not the upstream's at the checkpoint; make it so"
    return NeedsOperator(f"the downstream refused: {error}", hint=hint)
