"""A server: its address, connections, the meaning of its errors, and its state.

Each error means either that a retry may help, or that an operator must act, and how. Error 1236
ends a dump for many reasons, which only its text distinguishes. The texts are those of MySQL 5.7 to
9 and MariaDB 10 to 12; a text without a match remains an error for a person.

The state is the server's identity, the end of its binlog, GTID sets and files.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

import pymysql

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.security.databases import (
    AWAY_HINT,
    CERTIFICATE_HINT,
    MISMATCH,
    MISMATCH_HINT,
    UNREACHED,
    PasswordFile,
    SqlTls,
)
from penstock.settings.setting import did_you_mean
from pumpclient.mysql.gtid import Flavor, GtidSet, parse_gtid_set

RELOAD_ALL = "stop the source and load all tables again (penstock source reload --all)"
PURGED_HINT = (
    f"the server deleted what is still needed: {RELOAD_ALL}, and let the server keep its binlogs"
    " for longer (binlog_expire_logs_seconds)"
)


class ServerIdTaken(Retryable):
    """Another replica uses our server id, and the server keeps only one of the two."""


class Purged(NeedsOperator):
    """The server no longer has the files, or the GTIDs, that are needed next."""


class PositionLost(NeedsOperator):
    """The server's file is not the file of our position."""


class Refusal(NamedTuple):
    """One row: an error and its meaning; a missing hint means that waiting may help."""

    number: int
    text: re.Pattern[str]
    code: Code
    hint: str | None = None
    kind: type[NeedsOperator] | type[Retryable] = NeedsOperator


def _row(
    number: int,
    text: str,
    code: Code,
    hint: str | None = None,
    kind: type[NeedsOperator] | type[Retryable] | None = None,
) -> Refusal:
    chosen = kind or (Retryable if hint is None else NeedsOperator)
    return Refusal(number, re.compile(text, re.IGNORECASE | re.DOTALL), code, hint, chosen)


GRANT = "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO the user"
_POSITION_HINT = (
    f"the server was reset, put back or replaced, or has lost the end of its binlog: {RELOAD_ALL}"
)
_GTID_HINT = (
    "the server never had these transactions: it is not a replica of the one before, or it lost"
    f" some at a failover; {RELOAD_ALL}"
)

REFUSALS = (
    _row(1236, "same server_uuid/server_id|same server.?_?id|same server uuid",
         Code.SERVER_ID_TAKEN, kind=ServerIdTaken),
    _row(1236, "could not find first log file", Code.SERVER_POSITION_LOST, PURGED_HINT, Purged),
    _row(1236, "purged (binary logs|required)|purged the binary log|(has|have) been purged"
         "|(master|source) has purged|required binary logs",
         Code.SERVER_POSITION_LOST, PURGED_HINT, Purged),
    _row(1236, "could not find GTID state requested by slave.*probably",
         Code.SERVER_POSITION_LOST, PURGED_HINT, Purged),
    _row(1236, "slave has more GTIDs|replica has more GTIDs", Code.SERVER_RESET, _GTID_HINT),
    _row(1236, "which is not in the master'?s binlog|not in the source'?s binlog"
         "|diverged|alternate future", Code.SERVER_RESET, _GTID_HINT),
    _row(1236, "impossible position|position > file size|beyond the end of|log position",
         Code.SERVER_POSITION_LOST,
         _POSITION_HINT, PositionLost),
    _row(1236, "checksum that (master|source) is configured", Code.SERVER_SETTING,
         "its binlog_checksum was changed while the dump began; if this stays, set it to CRC32"),
    _row(1236, "event read from binlog did not pass|checksum verification failed|crc check",
         Code.EVENT_MALFORMED,
         "the server's own binlog file is damaged: copy the file from a replica of it; or"
         f" {RELOAD_ALL}"),
    _row(1236, "bogus data in log event|log event entry exceeded max_allowed_packet"
         "|larger than max_allowed_packet|net_store_length|corrupted|truncated",
         Code.EVENT_MALFORMED,
         "either the position is not the beginning of an event, or an event is larger than the"
         " server's max_allowed_packet (set it to 1G; if it is, no replica can have that event:"
         f" {RELOAD_ALL}), or its file is damaged"
         " (mariadb-binlog --verify-binlog-checksum tells)"),
    _row(1236, "binary log is not open|binlog is not open|logging not enabled", Code.SERVER_SETTING,
         "start the server with log_bin, binlog_format=ROW"),
    _row(1236, "misconfigured (master|source)|server id was not set", Code.SERVER_SETTING,
         "give the server a server_id that is not 0"),
    _row(1236, "gtid_mode|GTID_MODE = OFF|auto.?position", Code.SERVER_SETTING,
         "set gtid_mode=ON and enforce_gtid_consistency=ON, or start by file and position"),
    _row(1236, "could not open log file|I/O error|errno|failed to read", Code.SERVER_REFUSES,
         "the server cannot read its own binlog file: look at its error log and disk"),
    _row(1236, "memory allocation|out of memory", Code.SERVER_AWAY),
    # RESET MASTER under a dump: a new request discovers the current files.
    _row(1236, "could not find next log", Code.SERVER_AWAY),
    _row(1236, "start replication from earlier|encrypt|decrypt", Code.SERVER_REFUSES,
         "the server cannot decrypt its binlog: look at its error log and key management"),
    _row(1044, "", Code.SERVER_GRANT, GRANT),
    _row(1045, "",
         Code.SERVER_REFUSES, "check user and password, and from which hosts the user may come"),
    _row(1130, "", Code.SERVER_REFUSES, "let the user connect from this host"),
    _row(1142, "", Code.SERVER_GRANT, GRANT),
    _row(1227, "", Code.SERVER_GRANT, GRANT),
    _row(1698, "", Code.SERVER_REFUSES, "the user may only come over a socket: give it a password"),
    _row(1820, "", Code.SERVER_REFUSES, "the user's password has expired: set a new one"),
    _row(1862, "", Code.SERVER_REFUSES, "the user's password has expired: set a new one"),
    _row(1373, "", Code.SERVER_POSITION_LOST, PURGED_HINT, Purged),
    _row(1381, "", Code.SERVER_SETTING, "start the server with log_bin, binlog_format=ROW"),
    _row(1193, "",
         Code.SERVER_SETTING,
         "the server does not know a variable that is needed: versions since MySQL 5.7"
         " and MariaDB 10.4 do"),
    _row(2003, MISMATCH, Code.TLS_MISMATCH, MISMATCH_HINT),
    _row(2003, "certificate|ssl|tls", Code.TLS_NOT_TRUSTED, CERTIFICATE_HINT),
    _row(2026, "", Code.TLS_NOT_TRUSTED, CERTIFICATE_HINT),
    _row(2054, "",
         Code.SERVER_REFUSES,
         "the server wants an authentication plug-in that PyMySQL lacks: install"
         " PyMySQL[rsa] or PyMySQL[ed25519]"),
    _row(2059, "",
         Code.SERVER_REFUSES,
         "the server wants an authentication plug-in that PyMySQL lacks: install"
         " PyMySQL[rsa] or PyMySQL[ed25519]"),
    *(_row(code, "", Code.SERVER_AWAY) for code in
      (1040, 1053, 1077, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1226, 1317, 1927,
       2002, 2003, 2005, 2006, 2013, 2055, 4031)),
)  # fmt: skip
"""The first matching row decides."""


def refusal(number: int, message: str) -> PenstockError:
    """Return the error to raise for a server's error; an unknown one needs an operator."""
    for row in REFUSALS:
        if row.number == number and row.text.search(message):
            problem = f"error {number}: {message}"
            if issubclass(row.kind, Retryable):
                return row.kind(problem, code=row.code)
            hint = row.hint or "see the server's documentation"
            return row.kind(problem, hint=hint, code=row.code)
    return NeedsOperator(
        f"the server refuses: error {number}: {message}",
        "look the number up in the server's documentation",
        Code.SERVER_REFUSES,
    )


_SCHEMES = ("mysql", "mariadb", "tidb")
"""The same as for a Drainer's sink; the server reports its own kind."""

Connection: TypeAlias = "pymysql.connections.Connection[Any]"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's address and the login. `tls` None: encrypted when the server offers it."""

    host: str
    port: int = 3306
    user: str = ""
    password: str = field(default="", repr=False)
    tls: SqlTls | None = None
    connect_timeout_s: float = 5.0
    """For the connection, and for each answer until the login is done."""
    statement_timeout_s: float = 30.0
    password_file: PasswordFile | None = None
    """Replaces the password; read again for each session."""

    def __str__(self) -> str:
        """Return host and port, which may be logged."""
        return f"{self.host}:{self.port}"

    def connect(self, client_flag: int = 0) -> Connection:
        """Open a session; raise `Retryable` or `NeedsOperator`, as `refusal` classifies errors."""
        with server_errors(self, f" ({AWAY_HINT})"):
            connection: Any = pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=self.password_file.password() if self.password_file else self.password,
                ssl=self.tls.context() if self.tls else None,
                connect_timeout=self.connect_timeout_s,
                read_timeout=self.connect_timeout_s,
                write_timeout=self.statement_timeout_s,
                autocommit=True,
                charset="utf8mb4",
                client_flag=client_flag,
                program_name="penstock source",
            )
            connection._read_timeout = self.statement_timeout_s
            return connection  # type: ignore[no-any-return]

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Open a session for the `with`; errors within it are also converted."""
        connection = self.connect()
        try:
            with server_errors(self):
                yield connection
        finally:
            connection.close()


def address_in(url: str, what: str, password: str = "") -> ServerAddress:
    """Parse a server's URL, in which the password may be missing; `what` names it in an error.

    Raises `NeedsOperator` for an invalid URL, without repeating it.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 3306
    except ValueError:
        host, port = None, 0
    if host is None or parts.scheme not in _SCHEMES:
        wanted = "write mysql://user:password@host:port/ and percent-encode special characters"
        if host is not None:
            wanted = did_you_mean(parts.scheme, _SCHEMES, wanted, "{}://".format)
        raise NeedsOperator(f"the {what} is no URL of a server", wanted, Code.URL_INVALID)
    user = unquote(parts.username or "root")
    return ServerAddress(host, port, user, unquote(parts.password or "") or password)


@contextmanager
def server_errors(address: object, away_hint: str = "") -> Iterator[None]:
    """Convert errors; `away_hint` is the end of the text for a server that is not reached."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        number = error.args[0] if error.args else 0
        if isinstance(error, pymysql.err.InternalError) and number not in range(1000, 5000):
            raise Retryable(f"{address}: {error}", Code.SERVER_AWAY) from error
        if len(error.args) > 1 and isinstance(number, int):
            hint = away_hint if number in UNREACHED else ""
            raise _located(refusal(number, str(error.args[1])), address, hint) from error
        raise Retryable(f"{address}: {error}{away_hint}", Code.SERVER_AWAY) from error
    except OSError as error:
        problem = f"{address}: {error or type(error).__name__}{away_hint}"
        raise Retryable(problem, Code.SERVER_AWAY) from error


def _located(error: PenstockError, address: object, away_hint: str = "") -> PenstockError:
    if isinstance(error, NeedsOperator):
        return type(error)(f"{address}: {error.problem}", hint=error.hint, code=error.code)
    return type(error)(f"{address}: {error}{away_hint}", code=error.code)


def rows(connection: Connection, sql: str, *parameters: object) -> list[dict[str, Any]]:
    """Return a statement's rows, by lower-case column name."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        names = [column[0].lower() for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


_SYNTAX_ERROR = 1064
_ACCESS_DENIED = 1227
_HINT = "start the server with log_bin, and grant the user REPLICATION CLIENT"


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server's identity. MariaDB has no uuid: its domain and server id stand for it."""

    uuid: str
    server_id: int
    flavor: Flavor
    version: str


@dataclass(frozen=True, slots=True)
class BinlogPlace:
    """A place in a server's binlog, and every GTID before it, as text."""

    file: str
    position: int
    gtids: str = ""

    @property
    def floor(self) -> tuple[int, int]:
        """Number in the file's name, and position."""
        return int(self.file.rpartition(".")[2]), self.position

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"


def version_of(connection: Connection) -> str:
    greeted: Any = connection
    return str(greeted.server_version)


def is_tidb(connection: Connection) -> bool:
    return "tidb" in version_of(connection).lower()


def cluster_ts(connection: Connection) -> int:
    """Return a current TiDB timestamp; all earlier commits have lower timestamps."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT @@tidb_current_ts")
        (ts,) = cursor.fetchone() or (0,)
        cursor.execute("ROLLBACK")
    return int(ts)


def identify(connection: Connection) -> ServerIdentity:
    (row,) = rows(connection, "SELECT VERSION() AS version, @@global.server_id AS id")
    version, server_id = row["version"], int(row["id"])
    flavor = Flavor.of_version(version)
    if flavor is Flavor.MARIADB:
        (row,) = rows(connection, "SELECT @@global.gtid_domain_id AS domain")
        return ServerIdentity(f"{row['domain']}-{server_id}", server_id, flavor, version)
    (row,) = rows(connection, "SELECT @@global.server_uuid AS uuid")
    return ServerIdentity(row["uuid"], server_id, flavor, version)


def first_known(connection: Connection, *statements: str) -> list[dict[str, object]]:
    """Return the rows of the first statement that the server can parse."""
    for statement in statements[:-1]:
        try:
            return rows(connection, statement)
        except pymysql.err.ProgrammingError as error:
            if error.args[0] != _SYNTAX_ERROR:
                raise
    return rows(connection, statements[-1])


def master_status(connection: Connection, flavor: Flavor) -> BinlogPlace:
    """Return the end of the binlog; raise `NeedsOperator` if the server writes no binlog."""
    found = first_known(connection, "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")
    if not found:
        raise NeedsOperator("the server writes no binlog", _HINT, Code.SERVER_SETTING)
    row = found[0]
    if flavor is Flavor.MARIADB:
        gtids = binlog_gtids(connection, flavor)
    else:
        gtids = parse_gtid_set(str(row["executed_gtid_set"]), flavor)
    return BinlogPlace(str(row["file"]), int(str(row["position"])), str(gtids))


def binlog_gtids(connection: Connection, flavor: Flavor) -> GtidSet:
    """Return every GTID that the server's binlog contains or once contained."""
    name = "gtid_binlog_state" if flavor is Flavor.MARIADB else "gtid_executed"
    (row,) = rows(connection, f"SELECT @@global.{name} AS gtids")
    return parse_gtid_set(row["gtids"], flavor)


def binlog_files(connection: Connection) -> dict[str, int]:
    """Return the server's files with their sizes in bytes, oldest first."""
    found = rows(connection, "SHOW BINARY LOGS")
    return {str(row["log_name"]): int(row["file_size"]) for row in found}


def logs_cascades(connection: Connection) -> bool:
    """Return whether the binlog has the rows that foreign keys change.

    From 9.6 on MySQL does CASCADE and SET NULL above its storage engine unless it was started with
    `innodb_native_foreign_keys`, which older servers and MariaDB do not know.
    """
    found = rows(connection, "SHOW GLOBAL VARIABLES LIKE 'innodb\\_native\\_foreign\\_keys'")
    return [str(row["value"]).upper() for row in found] == ["OFF"]


def replica_ids(connection: Connection) -> set[int]:
    """Return the server ids in use: the server's own and those of its replicas.

    MariaDB shows its replicas only to an administrator, which a source need not be. In that case a
    drawn number collides with another source's with a chance of 1 in 100,000.
    """
    try:
        found = first_known(connection, "SHOW SLAVE HOSTS", "SHOW REPLICAS")
    except pymysql.err.OperationalError as error:
        if error.args[0] != _ACCESS_DENIED:
            raise
        found = []
    taken = {int(str(row["server_id"])) for row in found}
    (row,) = rows(connection, "SELECT @@global.server_id AS id")
    return taken | {int(row["id"])}
