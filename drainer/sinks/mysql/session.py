"""Session: one connection to a MySQL downstream, opened when needed and reopened after a loss.

The session's sql_mode is part of the literals' format (`drainer.task.sql.literals`):
STRICT_ALL_TABLES makes a value that does not fit an error and not another value.
NO_AUTO_VALUE_ON_ZERO and ALLOW_INVALID_DATES keep 0 and '2021-02-31' unchanged.
NO_BACKSLASH_ESCAPES must not be set: a MySQL reads the stored expressions of a table (defaults,
generated columns, CHECKs) in the mode of the session that opens it, and a backslash in an
expression would be doubled. FOUND_ROWS makes an UPDATE count the rows that it found. An operator's
own sql_mode replaces all modes but NO_AUTO_VALUE_ON_ZERO, without which a 0 would become another
number.

With loop-back control every transaction first changes the session's row in the table of marks,
whichever call starts it. Every transaction of a session is therefore marked.

**TiDB.** A server is a TiDB if its version says so, or if the operator calls it `tidb`
(`server-version` in tidb.toml can hide it). It speaks MySQL's protocol, and differs here:

    session        `TIDB_VARIABLES` are set, each if the server knows it; `params` come after them
    a transaction  is bounded in bytes (`too_large`)
    shared locks   do not exist: each worker queue locks a dedicated row (`side_connections`)
    DDL            is a job of the cluster: it continues after the session that began it has ended
                   (`ddl_progress`)

Transactions are pessimistic; those of TiDB-Binlog are optimistic. The checkpoint's row is locked at
their start, also in MySQL, so a replaced Drainer finds out before it has written a batch and not
through a conflict at its end. The server never re-runs a transaction
(`tidb_disable_txn_auto_retry`), which would not check the checkpoint again; therefore
`stmt-count-limit`, which bounds only such transactions, does not apply.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pymysql
from pymysql.constants import CLIENT, ER
from pymysql.err import MySQLError

from drainer.settings.targets import MysqlTarget
from drainer.sinks.patience import Patience
from drainer.sinks.protocol import Refused
from drainer.task.row_changes import MARK_SCHEMA, MARK_TABLE
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.security.databases import (
    AWAY_HINT,
    CERTIFICATE_HINT,
    MISMATCH,
    MISMATCH_HINT,
    UNREACHED,
    SqlTls,
)

TIDB_VARIABLES = (
    ("allow_auto_random_explicit_insert", "1"),
    ("tidb_txn_mode", "pessimistic"),
    ("tidb_disable_txn_auto_retry", "1"),
    ("tidb_placement_mode", "ignore"),
)
"""Rows keep their AUTO_RANDOM keys; each cluster decides its own placement."""

TIDB_PASSING = frozenset({
    8002, 8005, 8022, 8027, 8028, 8113, 8120, 8201, 8229,
    9001, 9002, 9003, 9004, 9005, 9006, 9007, 9008, 9010, 9011,
})  # fmt: skip
"""Transient errors: write conflicts, schemas, moving regions and leaders, lost locks."""

_TXN_TOO_LARGE, _ENTRY_TOO_LARGE, _TXN_MEMORY = 8004, 8025, 8175
_OUT_OF_MEMORY = re.compile(r"out of memory quota|memory quota for a|memory limit", re.IGNORECASE)
_UNKNOWN_ERROR = 1105
_TXN_BYTES_DEFAULT = 100 << 20
_BYTES_PER_BYTE = 8
"""Transaction bytes per byte of a row: the row, its indexes, and their old entries."""


def is_tidb(version: object) -> bool:
    """Return whether a server's version is a TiDB's, such as 5.7.25-TiDB-v7.0.0."""
    return "tidb" in str(version).lower()


def too_large(code: int, message: str) -> str:
    if code == _ENTRY_TOO_LARGE:
        return (
            "a single row is above what the downstream takes: raise txn-entry-size-limit of its"
            " [performance] (6 MiB by default, 120 MiB at most) and raftstore.raft-entry-max-size"
            " of its TiKVs, on each server; nothing was changed"
        )
    if code == _TXN_TOO_LARGE:
        return (
            "raise txn-total-size-limit of the downstream's [performance] (100 MiB by default), on"
            " each of its servers; or, where a batch has many transactions, lower --batch-bytes-max"
            " or --batch-rows-max; nothing was changed"
        )
    if code == _TXN_MEMORY or (code == _UNKNOWN_ERROR and _OUT_OF_MEMORY.search(message)):
        return (
            "the downstream had no memory left for one transaction: raise tidb_mem_quota_query"
            " there (SET GLOBAL, or in params); or, where a batch has many transactions, lower"
            " --batch-bytes-max or --batch-rows-max; nothing was changed"
        )
    return ""


def batch_bytes_max(connection: Any) -> int:
    """Return how many bytes of the stream fit one transaction, by the server's limit."""
    limit = _TXN_BYTES_DEFAULT
    # Hidden from this account, or of another form: then the default is the best guess.
    with contextlib.suppress(MySQLError, KeyError, TypeError, ValueError):
        settings = json.loads(one(connection, "SELECT @@tidb_config")[0])
        limit = int(settings["performance"]["txn-total-size-limit"])
    return max(1, limit // _BYTES_PER_BYTE)


SQL_MODE = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION"
_NEEDED_MODE = "NO_AUTO_VALUE_ON_ZERO"
_EXCLUDED_MODE = "NO_BACKSLASH_ESCAPES"

# Transient errors: the server stops, starts, is full, is read-only for a failover, or chose us in a
# deadlock.
_PASSING = TIDB_PASSING | {
    0, ER.CON_COUNT_ERROR, ER.DISK_FULL, ER.SERVER_SHUTDOWN, ER.LOCK_WAIT_TIMEOUT,
    ER.LOCK_DEADLOCK, ER.ERROR_DURING_COMMIT, ER.OPTION_PREVENTS_STATEMENT,
    ER.TOO_MANY_USER_CONNECTIONS, ER.NET_READ_ERROR, ER.NET_READ_INTERRUPTED,
    ER.NET_ERROR_ON_WRITE, ER.NET_WRITE_INTERRUPTED, ER.QUERY_INTERRUPTED, ER.RECORD_FILE_FULL,
    1836, 1927, 2002, 2003, 2006, 2013, 2014, 2055, 3100, 3101, 4031,
}  # fmt: skip

_READ_ONLY_HINT = "SET GLOBAL read_only = OFF there, or name the server that takes writes"
_PASSING_HINTS = {ER.OPTION_PREVENTS_STATEMENT: _READ_ONLY_HINT, 1836: _READ_ONLY_HINT}

_WRITE_ERRORS = {3, ER.CANT_CREATE_FILE, ER.CANT_CREATE_TABLE, ER.ERROR_ON_WRITE, ER.GET_ERRNO}
_NO_SPACE = re.compile(r"no space left|quota exceeded|error 28\b", re.IGNORECASE)
"""The cause of a write error, such as of a transaction's temporary file, that room can end."""

_CONNECT_TIMEOUT_S = 5
"""For the connection, and for each answer until the login is done."""
_PACKET_SPARE_BYTES = 1024

OWN_ENGINE = "ENGINE=InnoDB"
"""The engine of our own tables: a server's default may be an engine without transactions."""

OUT_OF_RANGE = 1690
"""The error of a guard, see `drainer.task.sql.upserts`, or of the downstream's arithmetic."""
_DUPLICATE = {ER.DUP_ENTRY, ER.DUP_KEY}
_UNFIT = {
    ER.DATA_TOO_LONG, ER.WARN_DATA_OUT_OF_RANGE, ER.TRUNCATED_WRONG_VALUE_FOR_FIELD,
    ER.WARN_DATA_TRUNCATED, ER.TRUNCATED_WRONG_VALUE, ER.BAD_NULL_ERROR, ER.NO_DEFAULT_FOR_FIELD,
}  # fmt: skip

_CHECKS = (3819, 4025)
"""A row breaks a CHECK: MySQL's and TiDB's number, and MariaDB's."""

_MARIADB_UNKNOWN_VIEW, _MARIADB_UNKNOWN_SEQUENCE = 4092, 4091
_SAME_NAME_CONSTRAINT = 1826
# Not partitioned, bounds do not rise, no such partition, the last one, a name twice.
_PARTITION_CODES = (1505, 1493, 1507, 1508, 1517)
ALREADY_CODES = {
    ER.DB_CREATE_EXISTS, ER.DB_DROP_EXISTS, ER.BAD_DB_ERROR, ER.TABLE_EXISTS_ERROR,
    ER.BAD_TABLE_ERROR, ER.BAD_FIELD_ERROR, ER.DUP_FIELDNAME, ER.DUP_KEYNAME,
    ER.MULTIPLE_PRI_KEY, ER.CANT_DROP_FIELD_OR_KEY, ER.NO_SUCH_TABLE, ER.KEY_DOES_NOT_EXITS,
    _MARIADB_UNKNOWN_VIEW, _MARIADB_UNKNOWN_SEQUENCE,
    *_PARTITION_CODES, _SAME_NAME_CONSTRAINT,
}  # fmt: skip
"""MySQL's errors for a DDL that it has already done."""

_MARKS = f"`{MARK_SCHEMA}`.`{MARK_TABLE}`"
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_session_numbers = itertools.count()

Connection = Any  # PyMySQL's stubs make the connection generic over its cursor.
T = TypeVar("T")


class _MarkingConnection(pymysql.connections.Connection):
    """A connection that starts each transaction with `mark`, if a mark is set."""

    mark = ""

    def begin(self) -> None:
        super().begin()
        if self.mark:
            self.query(self.mark)


class MysqlSession:
    """A connection for one thread at a time; another thread may call `close`."""

    def __init__(
        self,
        target: MysqlTarget,
        *,
        retry_s_max: float,
        closing: threading.Event,
        changed: Callable[[], None] | None = None,
        mark_from: int = 0,
    ) -> None:
        """Do not connect yet; `closing` ends the waits of all sessions that share it.

        `changed` is called when `problem` has changed. `mark_from` keeps the marks of processes
        apart, so that none waits for another's.
        """
        self._target = target
        self._connection: Connection | None = None
        # A transaction that was open ends with its connection, whatever happened to it.
        self._patience = Patience(
            f"downstream {target.name}",
            retry_s_max=retry_s_max,
            let_go=self.disconnect,
            passing=self._passing,
            closing=closing,
            changed=changed,
        )
        self._number = mark_from + next(_session_numbers)
        self.packet_bytes_max = 0
        self.is_tidb = target.is_tidb
        """True for a TiDB, as far as is known: a server reports its kind when it is reached."""

    def retrying(self, attempt: Callable[[Connection, bool], T]) -> T:
        """Return the result of `attempt`; retry transient errors on a new connection."""
        return self._patience.retrying(lambda retried: attempt(self._connected(), retried))

    @property
    def problem(self) -> str:
        """The problem being waited out, in the downstream's words; empty if there is none."""
        return self._patience.problem

    def close(self) -> None:
        """Close the connection; a call waiting in another thread raises `Retryable`."""
        assert self._patience.closing.is_set(), "the caller would only try again"
        if self._patience.using.locked():
            self._hang_up()
        self._patience.close()

    def _passing(self, error: Exception) -> str:
        if not isinstance(error, pymysql.err.MySQLError | OSError):
            raise error
        if not passes(error):
            raise refused(error) from error
        hint = _PASSING_HINTS.get(error.args[0] if error.args else 0)
        return f"{error} ({hint})" if hint else str(error)

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connection = _logged_in(connect_options(self._target))
            sock = connection._sock
            # Detect within a minute that the server's machine is gone; statements may take hours.
            if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            self.is_tidb |= is_tidb(version_of(connection))
            for name, value in TIDB_VARIABLES if self.is_tidb else ():
                _set_if_known(connection, name, value)
            for name, value in self._target.variables:
                set_variable(connection, name, value)
            connection.query("SET SESSION time_zone = '+00:00', foreign_key_checks = 0")
            set_variable(connection, "sql_mode", rows_sql_mode(self._target))
            # A MariaDB upstream may hold rows that a CHECK of theirs refuses.
            _set_if_known(connection, "check_constraint_checks", "0")
            _set_if_known(connection, "default_storage_engine", "InnoDB")
            if (channel := self._target.loopback_channel) is not None:
                _create_marks(connection)
                connection.mark = (
                    f"INSERT INTO {_MARKS} VALUES ({self._number}, {channel}, 1, 'penstock')"  # noqa: S608
                    " ON DUPLICATE KEY UPDATE val = val + 1"
                )
            connection.query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            self.packet_bytes_max = int(one(connection, "SELECT @@max_allowed_packet")[0])
        return self._connection

    def _hang_up(self) -> None:
        connection = self._connection
        sock = connection and connection._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def check_sizes(self, statements: Sequence[str | bytes]) -> None:
        """Raise `NeedsOperator` for a statement that is above the server's limit."""
        largest = max(map(len, statements), default=0)
        if largest + _PACKET_SPARE_BYTES > self.packet_bytes_max:
            raise NeedsOperator(
                f"a statement of {largest} bytes does not fit into the downstream's"
                f" max_allowed_packet of {self.packet_bytes_max}",
                "raise max_allowed_packet on the downstream; a single row can be that large",
                Code.ROW_TOO_LARGE,
            )

    def disconnect(self) -> None:
        """Close the connection; the next attempt opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(pymysql.err.MySQLError, OSError):
                connection.close()


def _logged_in(options: dict[str, Any]) -> Connection:
    limits = {**options, "read_timeout": _CONNECT_TIMEOUT_S}
    try:
        connection: Connection = _MarkingConnection(**limits, client_flag=CLIENT.FOUND_ROWS)
    except pymysql.err.OperationalError as error:
        number, *text = error.args
        if number in UNREACHED and not _is_of_certificate(error):
            error.args = (number, f"{', '.join(map(str, text))} ({AWAY_HINT})")
        raise
    connection._read_timeout = options.get("read_timeout")
    return connection


def connect_options(target: MysqlTarget) -> dict[str, Any]:
    ca, cert, key = (
        Path(each) if each else None for each in (target.ssl_ca, target.ssl_cert, target.ssl_key)
    )
    options: dict[str, Any] = {
        "host": target.host,
        "port": target.port,
        "user": target.user,
        "password": target.current_password(),
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": _CONNECT_TIMEOUT_S,
    }
    if target.read_timeout_s > 0:
        options["read_timeout"] = target.read_timeout_s
    if target.unix_socket:
        options["unix_socket"] = target.unix_socket
    if ca or cert:
        options["ssl"] = SqlTls(ca, cert, key, target.ssl_verify).context()
    return options


def rows_sql_mode(target: MysqlTarget) -> str:
    if not target.sql_mode:
        return SQL_MODE
    modes = [mode for mode in target.sql_mode.split(",") if mode.strip().upper() != _EXCLUDED_MODE]
    return ",".join([*modes, _NEEDED_MODE])


def ddl_sql_mode(target: MysqlTarget) -> str:
    return target.sql_mode or SQL_MODE


def set_variable(connection: Connection, name: str, value: str) -> None:
    literal = value if _NUMBER.fullmatch(value) else connection.escape(value)
    connection.query(f"SET SESSION `{name}` = {literal}")


def version_of(connection: Connection) -> str:
    return str(connection.get_server_info()).removeprefix("5.5.5-")


def is_mariadb(version: str) -> bool:
    return "mariadb" in version.lower()


def _set_if_known(connection: Connection, name: str, value: str) -> None:
    try:
        set_variable(connection, name, value)
    except pymysql.err.MySQLError as error:
        if code_of(error) != ER.UNKNOWN_SYSTEM_VARIABLE:
            raise


def _create_marks(connection: Connection) -> None:
    """Create the mark table only if missing: a no-op CREATE would also be logged."""
    try:
        one(connection, f"SELECT 1 FROM {_MARKS} LIMIT 0")  # noqa: S608
    except pymysql.err.MySQLError as error:
        if code_of(error) not in (ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE):
            raise
        connection.query(f"CREATE DATABASE IF NOT EXISTS `{MARK_SCHEMA}`")
        connection.query(
            f"CREATE TABLE IF NOT EXISTS {_MARKS} (id BIGINT NOT NULL, channel_id BIGINT NOT NULL"
            " DEFAULT 0, val BIGINT DEFAULT 0, channel_info VARCHAR(64),"
            f" PRIMARY KEY (id, channel_id)) {OWN_ENGINE}"
        )


def one(connection: Connection, sql: str, *values: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, values or None)
        return cursor.fetchone()


def many(connection: Connection, sql: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


@contextmanager
def unhurried(connection: Connection) -> Iterator[None]:
    """Remove the read timeout, for example for a DDL that may rewrite a whole table."""
    limit_s = connection._read_timeout
    connection._read_timeout = None
    yield  # After an error the connection is not used any more.
    connection._read_timeout = limit_s


def code_of(error: BaseException) -> int:
    """Return the error number of the server or client, or 0 if there is none."""
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) else 0


def passes(error: BaseException) -> bool:
    """Return whether a retry can help."""
    if _is_of_certificate(error):
        return False
    if isinstance(error, OSError):
        return True
    code = code_of(error)
    return code in _PASSING or (code in _WRITE_ERRORS and bool(_NO_SPACE.search(str(error))))


def _is_of_certificate(error: BaseException) -> bool:
    cause = getattr(error, "original_exception", error)
    return isinstance(cause, ssl.SSLCertVerificationError)


def refused(error: BaseException, row: str = "") -> Refused:
    """Return the error to report for a permanent failure; `row` is table and key."""
    code = code_of(error)
    hint = "compare the downstream's schema and data with the upstream's"
    if _is_of_certificate(error):
        is_name = re.search(MISMATCH, str(error), re.IGNORECASE)
        hint = MISMATCH_HINT if is_name else CERTIFICATE_HINT
    elif code in (ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR):
        hint = "check the user, the password and the grants of the downstream's account"
    elif code in _DUPLICATE:
        hint = (
            "the row is there already, or another one holds its unique value: compare the tables,"
            " or let it be replaced with strategy statements and safe-mode"
        )
    elif code in _UNFIT:
        hint = "the value does not fit the downstream's column: compare the definitions"
    elif code in _CHECKS:
        hint = (
            "upstream holds the row, so it did not enforce the CHECK: ALTER TABLE … ALTER CHECK …"
            " NOT ENFORCED downstream, with the names of the error"
        )
    elif code == OUT_OF_RANGE:
        hint = (
            "a generated column subtracts unsigned numbers, and upstream had the sql_mode"
            " NO_UNSIGNED_SUBTRACTION: ALTER TABLE … MODIFY the column downstream, with"
            " CAST(… AS DECIMAL(20)) around each of these numbers"
        )
    elif row and code == ER.BAD_FIELD_ERROR:
        hint = "the downstream's table may have more columns than upstream's, but not fewer: add it"
    elif limit := too_large(code, str(error)):
        hint = limit
    elif code in ALREADY_CODES:
        hint = "the downstream's schema is not the upstream's at the checkpoint; make it so"
    return Refused(
        f"the downstream refused{row and ' ' + row}: {error}", hint=hint, code=Code.SINK_REFUSES
    )
