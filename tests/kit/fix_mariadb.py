"""A private MariaDB for the tests that need a real downstream.

`mariadb_server` is one server for the whole session, on a free port of 127.0.0.1, with its data
below pytest's temporary directory. `mariadb` is the same server with every user database dropped
and running again if the test before left it dead. Whoever uses either is marked `mariadb`.

Durability is the real thing (`innodb_flush_log_at_trx_commit=1`), because the tests kill it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pymysql.cursors
import pytest

_START_S_MAX = 30.0
_STOP_S_MAX = 30.0
_SYSTEM_SCHEMAS = {"mysql", "information_schema", "performance_schema", "sys"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "mariadb_server" in names or "mariadb" in names:
            item.add_marker(pytest.mark.mariadb)


def _program(*names: str) -> str:
    for name in names:
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
        if found:
            return found
    pytest.fail(f"none of {', '.join(names)} is installed; the MariaDB tests need it")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class MariadbServer:
    """One server process; the port and the data stay the same over restarts."""

    host = "127.0.0.1"
    user = "penstock"
    password = "p:e/n@s#t"  # Awkward on purpose: it has to survive a URL.

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = _free_port()
        self.socket = str(home / "s")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The server as a sink's URL."""
        return f"mysql://{self.user}:p%3Ae%2Fn%40s%23t@{self.host}:{self.port}/"

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True while the process lives."""
        return self._process is not None and self._process.poll() is None

    def install(self) -> None:
        """Create the data directory."""
        program = _program("mariadb-install-db", "mysql_install_db")
        command = [program, "--no-defaults", f"--datadir={self.home / 'data'}"]
        command += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        command += ["--skip-name-resolve", "--innodb-log-file-size=32M", *_as_root()]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        grants = self.home / "init.sql"
        who = f"'{self.user}'@'%'"
        grants.write_text(
            f"CREATE USER IF NOT EXISTS {who} IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {who} WITH GRANT OPTION;\n"
        )

    def start(self) -> None:
        """Start the server and wait until it answers."""
        assert not self.is_running, "the server runs already"
        command = [_program("mariadbd", "mysqld"), "--no-defaults", *_as_root()]
        command += [
            f"--datadir={self.home / 'data'}",
            f"--socket={self.socket}",
            f"--pid-file={self.home / 'pid'}",
            f"--init-file={self.home / 'init.sql'}",
            f"--bind-address={self.host}",
            f"--port={self.port}",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--performance-schema=OFF",
            "--character-set-server=utf8mb4",
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-log-file-size=32M",
            "--innodb-buffer-pool-size=128M",
            "--innodb-lock-wait-timeout=5",
            "--max-connections=100",
        ]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_S_MAX
        while True:
            try:
                self.connect().close()
                return
            except pymysql.err.OperationalError as error:
                if not self.is_running or time.monotonic() > deadline:
                    tail = (self.home / "log").read_text(errors="replace")[-3000:]
                    raise AssertionError(f"MariaDB does not start: {error}\n{tail}") from error
            time.sleep(0.02)

    def stop(self) -> None:
        """Shut the server down in order; do nothing when it is down."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server where it stands, as a power cut would."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            self._process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self) -> None:
        """Stop in order and start again on the same port."""
        self.stop()
        self.start()

    def connect(self, **options: Any) -> pymysql.connections.Connection[Any]:
        """Open a connection of the test's own; it commits each statement by itself."""
        options.setdefault("autocommit", True)
        options.setdefault("charset", "utf8mb4")
        return pymysql.connect(
            host=self.host, port=self.port, user=self.user, password=self.password, **options
        )

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement on a connection of its own and return its rows."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def drop_user_databases(self) -> None:
        """Drop every database that a test may have made."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET foreign_key_checks = 0")
                cursor.execute("SHOW DATABASES")
                for (name,) in cursor.fetchall():
                    if name not in _SYSTEM_SCHEMAS:
                        quoted = name.replace("`", "``")
                        cursor.execute(f"DROP DATABASE `{quoted}`")
        finally:
            connection.close()


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariadbServer]:
    """One MariaDB for the session; a test that stops it starts it again."""
    server = MariadbServer(tmp_path_factory.mktemp("mariadb"))
    server.install()
    server.start()
    yield server
    server.stop()
    shutil.rmtree(server.home / "data", ignore_errors=True)


@pytest.fixture
def mariadb(mariadb_server: MariadbServer) -> MariadbServer:
    """The session's MariaDB, running and without any user database."""
    if not mariadb_server.is_running:
        mariadb_server.start()
    mariadb_server.drop_user_databases()
    return mariadb_server
