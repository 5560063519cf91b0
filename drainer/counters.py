"""Counters of a Drainer at work, under TiDB-Binlog's headings; they use no thread and no clock.

Sizes and delays are recorded once per message of a Pump, not per binlog. Sums and counts of sizes
are exact, and each size is counted in the bucket of its message's mean. A message's delay is that
of its last binlog.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from penstock.node.metrics import Distribution

DELAYS_S = tuple(0.001 * 2**n for n in range(22))
"""TiDB-Binlog's bounds of its checkpoint delay, 1 ms to 35 minutes."""
SECONDS = tuple(5e-5 * 2**n for n in range(18))
"""TiDB-Binlog's bounds of its execution time, 50 µs to 6.6 s."""
SIZES_BYTES = tuple(16.0 * 2**n for n in range(25))


class Counters:
    """All counters of one Drainer since it started."""

    def __init__(self) -> None:
        self.reach_s: defaultdict[str, Distribution] = defaultdict(lambda: Distribution(DELAYS_S))
        """Seconds from the commit_ts to the arrival here, by Pump."""
        self.binlog_bytes: defaultdict[str, Distribution] = defaultdict(
            lambda: Distribution(SIZES_BYTES)
        )
        self.checkpoint_delay_s = Distribution(DELAYS_S)
        self.execute_s = Distribution(SECONDS)
        """Seconds that a batch or a DDL took downstream."""
        self.errors: Counter[str] = Counter()
        self.ddl = 0
        self.savepoints = 0

    def arrived(self, pump: str, count: int, size_bytes: int, delay_s: float) -> None:
        self.reach_s[pump].note(delay_s)
        self.binlog_bytes[pump].note(size_bytes / count, count)

    def broke(self) -> None:
        self.errors["pull"] += 1

    def committed(
        self, commit_s: float, delay_s: float, *, is_ddl: bool, has_changes: bool
    ) -> None:
        self.checkpoint_delay_s.note(delay_s)
        self.savepoints += 1
        if is_ddl:
            self.ddl += 1
        if has_changes:
            self.execute_s.note(commit_s)
