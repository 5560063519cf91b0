"""A Pump as `pumpclient.delivery.group_commit` sees one."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from penstock.wire.codec import decode_binlog
from pumpclient.errors import Failure, Reason

LOST = Failure(Reason.BROKEN, "cut", maybe_stored=True)
ROLLED_BACK = Failure(Reason.INVALID, "was rolled back", maybe_stored=False)


@dataclass(eq=False)
class FakePump:
    """Answers as `verdict` says, after it has logged what it takes."""

    verdict: Callable[[Any], Failure | None] = lambda binlog: None
    node_id: str = "pump-1"
    host: str = "10.0.0.1:8250"
    log: list[tuple[str, int]] = field(default_factory=list)
    decided: Callable[[int, list[Any]], Failure | None] | None = None
    """The answer to decided transactions; None is a Pump that has no such call."""

    def submit(self, pending: Any, timeout_s: float) -> None:
        binlog = decode_binlog(pending.payload)
        failure = self.verdict(binlog)
        if failure is None or failure is LOST:
            self.log.append((binlog.tp.name, binlog.start_ts))
        pending.finish(failure)

    def submit_all(self, pendings: Any, timeout_s: float) -> None:
        for pending in pendings:
            self.submit(pending, timeout_s)

    def decided_calls(self) -> Any:
        return self

    @property
    def target(self) -> Any:
        return SimpleNamespace(address=self.host)

    def write(self, version: int, payloads: list[bytes], timeout_s: float) -> Any:
        """Take decided transactions as far as `decided` says, if it is not a Pump without that."""
        if self.decided is None:
            return Failure(Reason.TOO_OLD, "it has no such method", maybe_stored=False)
        binlogs = [decode_binlog(payload) for payload in payloads]
        failure = self.decided(version, binlogs)
        return list(range(1, len(binlogs) + 1)) if failure is None else failure

    def close(self) -> None:
        pass

    def wait_until_moved(self, host: str, timeout_s: float) -> None:
        threading.Event().wait(timeout_s)
