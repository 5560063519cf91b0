"""The outcomes of a write, and the failures that only a writer of binlogs can meet.

After a failed attempt a client must know whether the Pump may have stored the binlog, because only
then must something be cleaned up. `Failure.maybe_stored` answers this; in doubt it is true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError


class Reason(Enum):
    """Why a Pump did not accept a binlog; each reason implies the client's next step."""

    BROKEN = "the connection broke"  # Try another Pump; use this Pump again when a probe succeeds.
    TIMED_OUT = "no answer in time"  # As for BROKEN.
    BUSY = "the queue to the Pump is full"  # Try another Pump; this Pump is not at fault.
    ERROR = "the Pump failed"  # Retry on this or another Pump.
    NOT_ONLINE = "the Pump is not online"  # Try another Pump; Commits are still accepted.
    NO_SPACE = "the Pump is out of space"  # Try another Pump, never this one for this binlog.
    CERTIFICATE = "a certificate is refused"  # Try another Pump, never this one for this binlog.
    INVALID = "the Pump refuses the binlog"  # No Pump will accept it.
    TOO_OLD = "the Pump cannot take it"  # Try another Pump, never this one for this binlog.
    SCHEMA_CHANGED = "the rows are of an older schema"  # Encode them again, then repeat.
    CLUSTER_MISMATCH = "the Pump is of another cluster"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt on one Pump."""

    reason: Reason
    message: str
    maybe_stored: bool

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.message}" if self.message else self.reason.value


class NoPump(NeedsOperator):
    """No Pump exists that could accept a binlog."""


def closed() -> NeedsOperator:
    return NeedsOperator("the client is closed", "connect again", Code.CLOSED)


class OutcomeUnknown(PenstockError):
    """The commit was decided and sent, but not acknowledged: it is probably, but not surely, done.

    The client keeps delivering it in the background. Do not run the transaction again before `wait`
    has shown its outcome, because that could apply it twice.
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
