"""How an elected oracle makes timestamps: a clock that never goes back, and a counter below it."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.ts import LOGICAL_END, compose, physical_ms

WINDOW_MS = 3000
"""How far ahead of time an oracle saves its limit."""


class Allocator:
    """Hands out timestamps from `floor_ms` on, below a limit that moves up. Pure but for its clock.

    Time follows the wall clock forward. When that jumps back, or the floor lies ahead of it, time
    goes on at half speed until the wall clock has caught up: ages keep growing, order keeps.
    """

    def __init__(
        self,
        floor_ms: int,
        *,
        wall_ms: Callable[[], float] = lambda: time.time() * 1000,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall_ms = wall_ms
        self._monotonic_s = monotonic_s
        self._clock_ms = float(floor_ms)
        self._seen_s = monotonic_s()
        self._next = compose(floor_ms, 0)
        self.limit_ms = floor_ms

    def now_ms(self) -> int:
        """Return the milliseconds that a timestamp taken now would carry at least."""
        now_s = self._monotonic_s()
        crawled_ms = self._clock_ms + (now_s - self._seen_s) * 500
        self._clock_ms = max(self._wall_ms(), crawled_ms)
        self._seen_s = now_s
        return int(self._clock_ms)

    def take(self, count: int) -> int | None:
        """Return the last of `count` new consecutive timestamps, None if the limit forbids it."""
        first = max(self._next, compose(self.now_ms(), 0))
        if first % LOGICAL_END + count > LOGICAL_END:
            first = compose(physical_ms(first) + 1, 0)
        if physical_ms(first) >= self.limit_ms:
            return None
        self._next = first + count
        return first + count - 1

    def wanted_limit_ms(self) -> int:
        """Return the limit that leaves room for the next `WINDOW_MS`."""
        return max(self.now_ms(), physical_ms(self._next)) + WINDOW_MS
