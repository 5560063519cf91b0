"""Programs as child processes: where they are, their logs, their end by signal, their memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.local import FILES

UNPACKED = Path(sys.prefix) / "servers"
"""Where `deploy/servers.sh` unpacks servers, and `deploy/go.sh` leaves links to its builds."""
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


class Needed(NamedTuple):
    """A row of the table that set-up installs from."""

    program: str
    package: str
    wanted_for: frozenset[str]


def needed() -> Iterator[Needed]:
    for line in (FILES / "packages.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            program, package, wanted_for = line.split()
            yield Needed(program, package, frozenset(wanted_for.split(",")))


def program(name: str, *others: str) -> str:
    """Return the path of a program, by its name or one of its `others`, older names.

    Raises `NeedsOperator` with the package to install when it is not found.
    """
    for each in (name, *others):
        found = shutil.which(each) or shutil.which(each, path=_SBIN)
        if found:
            return found
    package = next(row.package for row in needed() if row.program == name)
    raise NeedsOperator(
        f"no {name} here", f"as root, apt-get install {package}", Code.PACKAGE_MISSING
    )


class Unpacked:
    """A server of another release, run by the loader and the libraries that came with it."""

    def __init__(self, name: str) -> None:
        """Locate the directory; raise `NeedsOperator` if it is missing."""
        self.root = UNPACKED / name / "usr"
        if not self.root.is_dir():
            raise NeedsOperator(
                f"no {name} in {UNPACKED}",
                f"deploy/servers.sh {UNPACKED} {name}",
                Code.PACKAGE_MISSING,
            )

    def command(self, program: str) -> list[str]:
        libraries = next(self.root.glob("lib/*-linux-gnu"))
        loader = next(self.root.glob("lib*/ld-linux-*.so.*"))
        return [str(loader), "--library-path", str(libraries), str(self.root / program)]


def built(name: str, program: str) -> str:
    path = UNPACKED / name / program
    if not path.exists():
        raise NeedsOperator(
            f"no {program} in {path.parent}",
            f"deploy/go.sh {UNPACKED} {name}",
            Code.PACKAGE_MISSING,
        )
    return str(path)


def completed(command: Sequence[str], **options: Any) -> None:
    """Run a command to its end; raise `NeedsOperator` with its output if it fails."""
    done = subprocess.run(command, capture_output=True, check=False, text=True, **options)
    if done.returncode != 0:
        raise NeedsOperator(
            f"{Path(command[0]).name} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}",
            "see the lines above",
            Code.CHILD_FAILED,
        )


STOP_S_MAX = 30.0
_PORT_MIN = 10_000
_SHARES = 64
_GIVEN_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_turns = itertools.count(secrets.randbelow(_PORT_MIN))


def free_port() -> int:
    """Return a port of 127.0.0.1 that is unused, and that will not be given to a connection.

    The kernel assigns ports of its own range to connections; such a port could be taken before a
    server listens, or while a server is down. To avoid conflicts each process has every 64th port,
    one after the other, and the odd thousands are excluded: a node without a setting for it has its
    status pages 1000 above its own port, where another server would not expect them.
    """
    given_from = int(_GIVEN_PORTS.read_text().split()[0])
    end = given_from if given_from > 2 * _PORT_MIN else 65_536
    own = range(_PORT_MIN + os.getpid() % _SHARES, end, _SHARES)
    ports = [port for port in own if port // 1000 % 2 == 0]
    while True:
        port = ports[next(_turns) % len(ports)]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def python_module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def flags(settings: dict[str, Any]) -> list[str]:
    arguments = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            arguments += [f"--{flag}", str(value)]
    return arguments


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def open_local(url: str, *, timeout_s: float) -> Any:
    """Open a page of a local server, bypassing any proxy; raises `OSError`."""
    return _direct.open(url, timeout=timeout_s)


_TAIL_BYTES_MAX = 1 << 20


def tail_of(log: Path, lines: int) -> str:
    """Return the last lines of a log, empty if there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES_MAX))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


class ServerProcess:
    """A program that runs until it is asked to stop; a restart runs the same command again."""

    def __init__(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Without an `environment` it has that of this process, as of its start."""
        self.command = list(command)
        self.log = log
        self.environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; only while it runs."""
        assert self._process is not None, f"{self.command[0]} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the process; its output goes to the log file. It must not run already."""
        assert not self.is_running, f"{self.command[0]} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment
            )
        return self

    def until(self, is_ready: Callable[[], bool], within_s: float) -> Self:
        """Return once `is_ready`, for which an `OSError` means no.

        Raises `Retryable` with the log once the process has ended, or kills it after `within_s`.
        """
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s and self.is_running:
            with contextlib.suppress(OSError):
                if is_ready():
                    return self
            time.sleep(0.05)
        self.kill()
        raise Retryable(f"{self.log.stem} does not start: {self.log_tail()}", Code.CHILD_FAILED)

    def until_answers(self, url: str, within_s: float) -> Self:
        """As `until`, for a page at `url`."""
        return self.until(lambda: open_local(url, timeout_s=1).close() is None, within_s)

    def send(self, number: signal.Signals) -> None:
        if self.is_running:
            os.kill(self.pid, number)

    def stop(self, timeout_s: float = STOP_S_MAX) -> int | None:
        """Shut the process down cleanly and return its exit code; kill it after `timeout_s`."""
        return self._end(signal.SIGTERM, timeout_s)

    def wait(self, timeout_s: float = STOP_S_MAX) -> int:
        assert self._process is not None, f"{self.command[0]} was never started"
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        self._end(signal.SIGKILL, STOP_S_MAX)

    def restart(self) -> Self:
        """Kill the process if it runs, and start it again."""
        self.kill()
        return self.start()

    def freeze(self) -> None:
        """Freeze the process with its connections open; return once it is stopped."""
        self.send(signal.SIGSTOP)
        with contextlib.suppress(psutil.NoSuchProcess):
            while self.is_running and psutil.Process(self.pid).status() != psutil.STATUS_STOPPED:
                time.sleep(0.001)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def _end(self, number: signal.Signals, timeout_s: float) -> int | None:
        if self._process is None:
            return None
        self.send(number)
        self.thaw()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def rss_bytes(self) -> int:
        """Return the process's resident memory without its children; 0 if it is gone."""
        try:
            rss: int = psutil.Process(self.pid).memory_info().rss
        except psutil.Error:
            return 0
        return rss

    def log_tail(self, lines: int = 20) -> str:
        return tail_of(self.log, lines)
