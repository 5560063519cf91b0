"""A private SQL server: MariaDB or MySQL with its own data folder, loopback only, durable
commits.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import pymysql

from penstock.codes import Code
from penstock.errors import Retryable
from penstock_local.process import ServerProcess, free_port

USER = "penstock"


class SqlProcess(ServerProcess):
    """A process that speaks MySQL's protocol; its port and its password stay the same."""

    host = "127.0.0.1"
    user = USER
    port: int
    password: str
    start_s_max = 90.0

    @property
    def url(self) -> str:
        """The server as a sink URL, password included; it must not be logged."""
        return f"mysql://{self.user}:{quote(self.password, safe='')}@{self.host}:{self.port}/"

    def start(self) -> Self:
        """Start it and wait until it answers; raise `Retryable` with its log when it does not."""
        super().start()
        deadline = time.monotonic() + self.start_s_max
        while time.monotonic() < deadline and self.is_running:
            try:
                self.connect().close()
                return self
            except pymysql.err.OperationalError:
                time.sleep(0.02)
        raise Retryable(
            f"{type(self).__name__} does not start: {self.log_tail()}", Code.CHILD_FAILED
        )

    def connect(self, **options: Any) -> pymysql.connections.Connection[Any]:
        """Open a connection, with autocommit unless `options` say otherwise."""
        options = {"autocommit": True, "charset": "utf8mb4", **options}
        return pymysql.connect(
            host=self.host, port=self.port, user=self.user, password=self.password, **options
        )

    def query(self, sql: str, **options: Any) -> list[tuple[Any, ...]]:
        connection = self.connect(**options)
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def run(self, *statements: str) -> None:
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()


class SqlServer(SqlProcess):
    """One server whose port, password and data stay the same over restarts."""

    def __init__(self, home: Path, program: list[str], options: list[str]) -> None:
        """`program` is the command with its own options; `options` come last and override."""
        self.home = home
        self.port = free_port()
        # Awkward on purpose: it must survive a URL.
        self.password = secrets.token_urlsafe(12) + ":/@#"
        self.as_root = ["--user=root"] if os.geteuid() == 0 else []
        super().__init__(
            [
                *program,
                *self.as_root,
                f"--datadir={home / 'data'}",
                f"--socket={home / 's'}",
                f"--pid-file={home / 'pid'}",
                # In a shared folder a starting server deletes the others' files.
                f"--tmpdir={home}",
                f"--init-file={home / 'init.sql'}",
                f"--bind-address={self.host}",
                f"--port={self.port}",
                "--skip-name-resolve",
                "--skip-log-bin",
                "--performance-schema=OFF",
                "--innodb-flush-log-at-trx-commit=1",
                "--innodb-lock-wait-timeout=5",
                "--max-connections=100",
                *options,
            ],
            log=home / "server.log",
        )

    def write_users(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        who = f"'{self.user}'@'%'"
        (self.home / "init.sql").write_text(
            f"CREATE USER IF NOT EXISTS {who} IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {who} WITH GRANT OPTION;\n"
        )

    def end(self) -> tuple[str, int]:
        """Return the newest binlog file and its size; the server must write a binlog."""
        file, position, *_ = self.query("SHOW BINARY LOGS")[-1]
        return str(file), int(position)
