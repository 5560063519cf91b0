"""What the parts of a Pump count while they work, cheap enough for every call; no thread, no clock.

Metrics are made of it when somebody asks (`observe/metrics.py`); nothing here knows how they look.
Counting takes no lock: each figure has one thread that writes it.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from penstock.errors import Retryable
from penstock.node.histogram import Distribution
from penstock.pb import penstock_pb2
from pump.store.record import Contradiction, NoPrewrite, OutOfSpace, TooManyOpen

SECONDS = tuple(5e-5 * 2**n for n in range(18))
"""The original's bounds, 50 µs to 6.6 s."""
SIZES_BYTES = tuple(16.0 * 2**n for n in range(25))
COUNTS = tuple(float(2**n) for n in range(16))


class Figures:
    """All that one Pump counts since it started."""

    def __init__(self) -> None:
        self.calls: defaultdict[tuple[str, ...], Distribution] = defaultdict(
            lambda: Distribution(SECONDS)
        )
        """Seconds of a call, by method and `succ` or `fail`."""
        self.acknowledge_s = Distribution(SECONDS)
        """From a submission to its acknowledgement."""
        self.append_s = Distribution(SECONDS)
        self.write_s = Distribution(SECONDS)
        self.sync_s = Distribution(SECONDS)
        self.rotate_s = Distribution(SECONDS)
        """From one segment to the next: its header on the disk under its name."""
        self.write_bytes = Distribution(SIZES_BYTES)
        self.group_records = Distribution(COUNTS)
        self.refused: Counter[str] = Counter()
        self.failed_groups = 0
        self.failed_writes = 0
        """What was submitted in failed groups."""
        self.failed_indexing = 0

    def refuse(self, error: BaseException) -> None:
        """Count a binlog that was not taken."""
        self.refused[reason_of(error)] += 1

    def refused_text(self) -> str:
        """Return the refusals by reason on one line."""
        by_reason = sorted(list(self.refused.items()))
        return ", ".join(f"{count} {reason}" for reason, count in by_reason) or "0"


_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (TooManyOpen, "too_many_open"),
    (OutOfSpace, "no_space"),
    (NoPrewrite, "no_prewrite"),
    (Contradiction, "contradiction"),
    (Retryable, "overloaded"),
)


def reason_of(error: BaseException) -> str:
    """Return one word for why a binlog was not taken."""
    code = getattr(error, "code", None)
    if isinstance(code, int):
        return penstock_pb2.Refusal.Code.Name(code).lower()
    return next((word for kind, word in _REASONS if isinstance(error, kind)), "other")
