"""Real Pumps: `python -m pump` processes that can be killed, stopped and started on their data."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from penstock.pb import penstock_pb2, penstock_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
]
_SERVES = re.compile(r"pump (\S+) serves at (\S+),")
_ONLINE = re.compile(r"pump (\S+) is online at (\S+)")


class PumpProcess:
    """One Pump; after the first start it keeps its port, its name and its data directory."""

    def __init__(
        self, etcd_url: str, data_dir: Path, node_id: str, settings: dict[str, Any]
    ) -> None:
        self.node_id = node_id
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(f"{data_dir.name}.log")
        self.addr = settings.get("addr", "")
        self.process: subprocess.Popen[bytes] | None = None
        self._settings = {
            "etcd_urls": etcd_url,
            "node_id": node_id,
            "data_dir": data_dir,
            **settings,
        }
        self._log_begin = 0

    def start(self, *, online: bool = True, timeout_s: float = 30) -> PumpProcess:
        """Start it and wait until it is online, or only until it serves."""
        self.spawn()
        self.addr = self.wait_for(_ONLINE if online else _SERVES, timeout_s)[2]
        return self

    def spawn(self) -> PumpProcess:
        """Start it and wait for nothing."""
        assert self.process is None
        self.log_path.touch()
        self._log_begin = self.log_path.stat().st_size
        addr = {"addr": self.addr or "127.0.0.1:0"}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pump", *_flags({**self._settings, **addr})],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        return self

    def wait_for(self, pattern: str | re.Pattern[str], timeout_s: float = 30) -> re.Match[str]:
        """Return the first match in the log since the last start; fail the test without one."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            found = re.search(pattern, self.log_text())
            if found:
                return found
            running = self.process is not None and self.process.poll() is None
            if not running or time.monotonic() > deadline_s:
                pytest.fail(
                    f"{self.node_id}: no {pattern!r} in its log:\n{self.log_text()[-3000:]}"
                )
            time.sleep(0.01)

    def log_text(self) -> str:
        """Return the log since the last start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_begin)
            return log.read().decode(errors="replace")

    def kill9(self) -> None:
        """Kill it on the spot; does nothing when it is not running."""
        self._end(signal.SIGKILL)

    def stop(self, timeout_s: float = 30) -> int:
        """Ask it to stop and return its exit code."""
        return self._end(signal.SIGTERM, timeout_s)

    def wait(self, timeout_s: float = 30) -> int:
        """Return the exit code once it has ended by itself."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        self.process = None
        return code

    def restart(self, *, online: bool = True) -> PumpProcess:
        """Kill it if it runs, and start it on its old data and port."""
        self.kill9()
        return self.start(online=online)

    def freeze(self) -> None:
        """Keep its process from running, its connections staying open."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process run on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def rss_bytes(self) -> int:
        """Return the memory that the process holds."""
        assert self.process is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def status(self) -> penstock_pb2.StatusReply:
        """Return what it says about itself."""
        with self.channel() as channel:
            stub = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
            reply: penstock_pb2.StatusReply = stub.Status(
                penstock_pb2.StatusRequest(), timeout=10, wait_for_ready=True
            )
            return reply

    def channel(self) -> grpc.Channel:
        """Return a new connection; to be closed, or used in a `with`."""
        return grpc.insecure_channel(self.addr, options=CHANNEL_OPTIONS)

    def _end(self, how: signal.Signals, timeout_s: float = 30) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(how)
        self.process.send_signal(signal.SIGCONT)
        return self.wait(timeout_s)


def _flags(settings: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


@pytest.fixture
def pump_factory(tmp_path: Path) -> Iterator[Callable[..., PumpProcess]]:
    """Make Pumps: `pump_factory(etcd_url, online=True, **settings)`; killed after the test.

    `waiting=False` returns at once, then `addr` is only known when it is among the settings.
    """
    pumps: list[PumpProcess] = []

    def make(
        etcd_url: str, *, online: bool = True, waiting: bool = True, **settings: Any
    ) -> PumpProcess:
        node_id = settings.pop("node_id", f"pump-{len(pumps) + 1}")
        data_dir = settings.pop("data_dir", tmp_path / node_id)
        pump = PumpProcess(etcd_url, data_dir, node_id, settings)
        pumps.append(pump)
        return pump.start(online=online) if waiting else pump.spawn()

    yield make
    for pump in pumps:
        pump.kill9()
