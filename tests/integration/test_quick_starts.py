"""The quick starts of the documentation, command by command, as they stand there.

Their programs run with default settings; here each has a port of its own, from the environment
where it can be and else in the text.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.mariadb import MariadbServer, binlog_options
from deploy.local.process import free_port
from tests.kit.wait import eventually

DOCS = Path(__file__).resolve().parents[2] / "docs" / "start"
ETCD = f"127.0.0.1:{free_port()}"
COMMANDS_MAX = 9
"""From nothing to the first row, by hand; installing takes three of them."""
INSTALLING = 3
WAIT_S = 90

pytestmark = [pytest.mark.etcd, pytest.mark.spark]


class Reader:
    """Someone who types a page's commands into a shell, and looks again when it is too early."""

    def __init__(self, page: str, home: Path, **replaced: str) -> None:
        self.text = (DOCS / page).read_text()
        self._home = home
        self._replaced = {"127.0.0.1:2379": ETCD, **replaced}
        self._running: list[subprocess.Popen[str]] = []
        self.typed = 0
        node = {name: f"127.0.0.1:{free_port()}" for name in ("pump", "drainer", "source")}
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PENSTOCK_ETCD_URLS": ETCD,
            "ETCD_LISTEN_CLIENT_URLS": f"http://{ETCD}",
            "ETCD_ADVERTISE_CLIENT_URLS": f"http://{ETCD}",
            "ETCD_LISTEN_PEER_URLS": f"http://127.0.0.1:{free_port()}",
            "PUMP_ADDR": node["pump"],
            "DRAINER_ADDR": node["drainer"],
            "MYSQL_SOURCE_STATUS_ADDR": node["source"],
        }
        self._as: dict[str, Any] = {
            "shell": True,
            "cwd": home,
            "env": environment,
            "text": True,
            "stdin": subprocess.DEVNULL,
        }

    def blocks(self, kind: str) -> list[tuple[str, str]]:
        """Return the blocks of a language, each with its title."""
        found = re.findall(rf'```{kind}(?: title="(.*?)")?\n(.*?)```', self.text, re.DOTALL)
        return [(title, self._here(text)) for title, text in found]

    def follow(self) -> None:
        """Do all that the page says."""
        for title, text in self.blocks("python"):
            (self._home / title).write_text(text)
        for _, text in self.blocks("console"):
            for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                self.typed += 1
                self._type(command, shown.strip())

    def _type(self, command: str, shown: str) -> None:
        if command.endswith(" &"):
            self._begin(command.removesuffix(" &"))
            return
        wanted, said = re.escape(shown).replace("…", ".*"), ""

        def is_as_shown() -> bool:
            nonlocal said
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **self._as
            )
            said = done.stdout
            return done.returncode == 0 and re.search(wanted, said) is not None

        try:
            eventually(is_as_shown, WAIT_S)
        except AssertionError:
            pytest.fail(f"{command}\n{said}\n{self._logs()}")

    def _begin(self, command: str) -> None:
        with (self._home / f"{self.typed}.log").open("w") as log:
            self._running.append(
                subprocess.Popen(f"exec {command}", stdout=log, stderr=log, **self._as)
            )

    def _here(self, text: str) -> str:
        for what, instead in self._replaced.items():
            text = text.replace(what, instead)
        return text

    def _logs(self) -> str:
        return "".join(path.read_text()[-1500:] for path in sorted(self._home.glob("*.log")))

    def close(self) -> None:
        """End what was started, the last first."""
        for running in reversed(self._running):
            running.send_signal(signal.SIGTERM)
            running.wait(60)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Callable[..., Reader]]:
    """Open a page: `reader("app.md")`."""
    opened: list[Reader] = []

    def read(page: str, **replaced: str) -> Reader:
        opened.append(Reader(page, tmp_path, **replaced))
        return opened[-1]

    yield read
    for each in opened:
        each.close()


def test_a_program_of_ones_own_is_a_writer_after_few_commands(
    reader: Callable[..., Reader],
) -> None:
    page = reader("app.md")
    page.follow()
    assert INSTALLING + page.typed <= COMMANDS_MAX


@pytest.mark.mariadb
def test_a_mariadb_follows_another_one_after_few_commands(
    reader: Callable[..., Reader], tmp_path: Path
) -> None:
    upstream = MariadbServer(tmp_path / "upstream", options=binlog_options())
    downstream = MariadbServer(tmp_path / "downstream")
    servers = {"upstream": upstream, "downstream": downstream}
    try:
        for server in servers.values():
            server.install()
            server.start()
        replaced = {
            # The account of this name is what the servers were installed with.
            "penstock@": "follower@",
            "penstock:secret@": "follower:secret@",
            "--source-user penstock": "--source-user follower",
            "127.0.0.1:3306": f"127.0.0.1:{upstream.port}",
            "127.0.0.1:3307": f"127.0.0.1:{downstream.port}",
            "--source-host 127.0.0.1": f"--source-host 127.0.0.1 --source-port {upstream.port}",
        }
        page = reader("mysql.md", **replaced)
        for side, statements in page.blocks("sql"):
            with servers[side].connect() as connection, connection.cursor() as cursor:
                for statement in filter(str.strip, statements.split(";\n")):
                    cursor.execute(statement)
        with upstream.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.orders (id INT PRIMARY KEY, what VARCHAR(20))")
            cursor.execute("INSERT INTO shop.orders VALUES (1, 'nut'), (2, 'bolt')")
        page.follow()
        assert INSTALLING + page.typed <= COMMANDS_MAX + 1  # The last one only compares.
        with downstream.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, what FROM shop.orders ORDER BY id")
            assert cursor.fetchall() == ((1, "nut"), (2, "bolt"))
    finally:
        for server in servers.values():
            server.stop()
