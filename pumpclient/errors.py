"""Errors: what can become of a write, and the failures that only a writer of binlogs can meet.

The one question that matters after a failed try is whether the Pump may have stored the binlog:
only then is there something to clean up. `Failure.maybe_stored` answers it, on the safe side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError


class Reason(Enum):
    """Why a Pump did not take a binlog, by what a client should do next."""

    BROKEN = "the connection broke"  # Another Pump now; this one when a probe succeeds.
    TIMED_OUT = "no answer in time"  # Likewise.
    BUSY = "the queue to the Pump is full"  # Another Pump, no blame.
    ERROR = "the Pump failed"  # This or another Pump again.
    NOT_ONLINE = "the Pump is not online"  # Another Pump; Commits are accepted.
    NO_SPACE = "the Pump is out of space"  # Another Pump, never this one again for this binlog.
    CERTIFICATE = "a certificate is refused"  # Another Pump, never this one again for this binlog.
    INVALID = "the Pump refuses the binlog"  # No Pump will take it.
    TOO_OLD = "the Pump cannot take it"  # Another Pump, never this one again for this binlog.
    CLUSTER_MISMATCH = "the Pump is of another cluster"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed try on one Pump."""

    reason: Reason
    message: str
    maybe_stored: bool

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.message}" if self.message else self.reason.value


class NoPump(NeedsOperator):
    """There is no Pump that could take a binlog."""


def closed() -> NeedsOperator:
    return NeedsOperator("the client is closed", hint="connect again", code=Code.CLOSED)


class OutcomeUnknown(PenstockError):
    """The commit was decided and sent, but no answer came: it is most likely, not surely, done.

    The client continues delivering it in the background. Do not run the transaction again before
    `wait` has shown its outcome: that could apply it twice.
    """

    def __init__(
        self, problem: str, *, start_ts: int, commit_ts: int, wait: Callable[[float], bool]
    ) -> None:
        super().__init__(problem, code=Code.OUTCOME_UNKNOWN)
        self.start_ts = start_ts
        self.commit_ts = commit_ts
        self._wait = wait

    def wait(self, timeout_s: float) -> bool:
        """Wait for the background delivery; True once the transaction is surely committed."""
        return self._wait(timeout_s)
