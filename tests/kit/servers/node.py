"""A node of ours as a process: started from settings, judged by its log, killed at will."""

import re
import time
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from penstock.failpoints import VARIABLE
from penstock.local.process import STOP_S_MAX, ServerProcess, flags, free_port, python_module
from tests.kit.wait import busy, deadline

CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
]
WAIT_S = 90.0
_LOG_SHOWN = 5000


class NodeProcess(ServerProcess):
    """One node; after the first start it keeps its port, its name and its data directory."""

    module: str

    def __init__(self, data_dir: Path, node_id: str, settings: dict[str, Any]) -> None:
        super().__init__([], log=data_dir.with_name(f"{data_dir.name}.log"))
        self.node_id = node_id
        self.data_dir = data_dir
        self.addr: str = settings.get("addr", "")
        self._settings = {"node_id": node_id, "data_dir": data_dir, **settings}
        self._log_begin = 0

    def spawn(self, failpoints: str = "") -> Self:
        """Start it, with faults if there are to be any, and wait for nothing: it may refuse."""
        settings = {**self._settings, "addr": self.addr or f"127.0.0.1:{free_port()}"}
        environment = [f"{VARIABLE}={failpoints}"] if failpoints else []
        self.command = ["env", *environment, *python_module(self.module, *flags(settings))]
        self._log_begin = self.log.stat().st_size if self.log.exists() else 0
        ServerProcess.start(self)
        return self

    def wait(self, timeout_s: float = STOP_S_MAX) -> int:
        return super().wait(timeout_s * busy())

    def wait_for(self, pattern: str | re.Pattern[str], timeout_s: float = WAIT_S) -> re.Match[str]:
        """Return the first match in the log since the last start; fail the test without one."""
        deadline_s = deadline(timeout_s)
        while True:
            running = self.is_running
            found = re.search(pattern, self.log_text())
            if found:
                return found
            if not running or time.monotonic() > deadline_s:
                self.fail(f"no {pattern!r} in its log")
            time.sleep(0.01)

    def fail(self, problem: str) -> None:
        pytest.fail(f"{self.node_id}: {problem}:\n{self.log_text()[-_LOG_SHOWN:]}")

    def log_text(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._log_begin)
            return log.read().decode(errors="replace")

    def channel(self) -> grpc.Channel:
        """Return a new connection; to be closed, or used in a `with`."""
        return grpc.insecure_channel(self.addr, options=CHANNEL_OPTIONS)
