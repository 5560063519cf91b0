"""A server's address and connections to it, with PyMySQL's errors converted to ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import pymysql

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.security.databases import PasswordFile, SqlTls
from pumpclient.mysql.protocol.refusals import refusal

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
    connect_timeout_s: float = 10.0
    statement_timeout_s: float = 30.0
    password_file: PasswordFile | None = None
    """Replaces the password; read again for each session."""

    def __str__(self) -> str:
        """Return host and port, which may be logged."""
        return f"{self.host}:{self.port}"

    def connect(self) -> Connection:
        """Open a session; raise `Retryable` or `NeedsOperator`, as `refusals` classifies errors."""
        with server_errors(self):
            return pymysql.connect(
                host=self.host,
                port=self.port,
                user=self.user,
                password=self.password_file.password() if self.password_file else self.password,
                ssl=self.tls.context() if self.tls else None,
                connect_timeout=self.connect_timeout_s,
                read_timeout=self.statement_timeout_s,
                write_timeout=self.statement_timeout_s,
                autocommit=True,
                charset="utf8mb4",
                program_name="penstock source",
            )

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
        raise NeedsOperator(
            f"the {what} is no URL of a server",
            hint="write mysql://user:password@host:port/ and percent-encode special characters",
            code=Code.URL_INVALID,
        )
    user = unquote(parts.username or "root")
    return ServerAddress(host, port, user, unquote(parts.password or "") or password)


@contextmanager
def server_errors(address: object) -> Iterator[None]:
    """Convert PyMySQL and network errors to Penstock's."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        number = error.args[0] if error.args else 0
        if isinstance(error, pymysql.err.InternalError) and number not in range(1000, 5000):
            raise Retryable(f"{address}: {error}", code=Code.SERVER_AWAY) from error
        if len(error.args) > 1 and isinstance(number, int):
            raise _located(refusal(number, str(error.args[1])), address) from error
        raise Retryable(f"{address}: {error}", code=Code.SERVER_AWAY) from error
    except OSError as error:
        raise Retryable(
            f"{address}: {error or type(error).__name__}", code=Code.SERVER_AWAY
        ) from error


def _located(error: PenstockError, address: object) -> PenstockError:
    if isinstance(error, NeedsOperator):
        return type(error)(f"{address}: {error.problem}", hint=error.hint, code=error.code)
    return type(error)(f"{address}: {error}", code=error.code)


def rows(connection: Connection, sql: str, *parameters: object) -> list[dict[str, Any]]:
    """Return a statement's rows, by lower-case column name."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        names = [column[0].lower() for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
