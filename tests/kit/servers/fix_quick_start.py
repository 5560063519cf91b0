"""A page of docs/start, followed command by command as it stands there.

Its programs run with default settings; here each has a port of its own, from the environment where
that can be and else in the text.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.local.process import free_port
from tests.kit.wait import eventually

DOCS = Path(__file__).resolve().parents[3] / "docs" / "start"
ETCD = "127.0.0.1:2379"
COMMANDS_MAX = 9
"""From nothing to the first row, by hand; installing takes three of them."""
INSTALLING = 3
WAIT_S = 90


class Reader:
    """Someone who types a page's commands into a shell, and looks again when it is too early."""

    def __init__(self, page: str, home: Path, **replaced: str) -> None:
        self.text = (DOCS / page).read_text()
        self._home = home
        etcd = replaced.get(ETCD, f"127.0.0.1:{free_port()}")
        self._replaced = {ETCD: etcd, **replaced}
        self._running: list[subprocess.Popen[str]] = []
        self.typed = 0
        node = {name: f"127.0.0.1:{free_port()}" for name in ("pump", "drainer", "source")}
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PENSTOCK_ETCD_URLS": etcd,
            "ETCD_LISTEN_CLIENT_URLS": f"http://{etcd}",
            "ETCD_ADVERTISE_CLIENT_URLS": f"http://{etcd}",
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
        found = re.findall(rf'```{kind}(?: title="(.*?)")?\n(.*?)```', self.text, re.DOTALL)
        return [(title, self._here(text)) for title, text in found]

    def follow(self, first: int = 0, last: int | None = None) -> None:
        """Do all that the page says, or that a range of its blocks of commands does."""
        for title, text in self.blocks("python"):
            if title:  # The others show a part of a program.
                (self._home / title).write_text(text)
        for _, text in self.blocks("console")[first:last]:
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
