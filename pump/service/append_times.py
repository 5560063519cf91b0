"""Append times: measures the disk, to decide whether the event loop may append directly.

An append in the event loop is cheaper than handing it to a thread; a slow disk gets a thread, so
that pulls continue. The decision depends on how long an append waits, not on its processor time: a
thread would need the same processor time, and keep the event loop waiting for the interpreter. It
uses the median of the last few waits, not their mean. On a busy machine some waits are ten times as
long because the process is not scheduled, which says nothing about the disk.

A thread's wait includes the wait for the interpreter, and so looks long. Unless the median is ten
times the limit, every 32nd append is done in the event loop to measure the disk.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_KEPT: Final = 15
_PROBE_EVERY: Final = 32
_PROBE_BELOW: Final = 10
_EWMA_WEIGHT: Final = 0.1


class AppendTimes:
    """The last appends of one Pump; times are seconds."""

    def __init__(self, inline_below_s: float) -> None:
        """The event loop appends at first, and while the median wait is below `inline_below_s`."""
        self._inline_below_s = inline_below_s
        self._last = deque([0.0] * _KEPT, _KEPT)
        self._median_s = 0.0
        self._until_probe = _PROBE_EVERY
        self.average_s = 0.0
        """The average duration, for status and score; newer appends count more."""

    @property
    def are_short(self) -> bool:
        return self._median_s < self._inline_below_s

    def probe_is_due(self) -> bool:
        self._until_probe -= 1
        if self._until_probe > 0:
            return False
        self._until_probe = _PROBE_EVERY
        return self._median_s < _PROBE_BELOW * self._inline_below_s

    def note(self, took_s: float, waited_s: float, *, in_loop: bool) -> None:
        if in_loop and waited_s < self._inline_below_s and not self.are_short:
            self._last.extend([waited_s] * _KEPT)
            self.average_s = took_s
        self._last.append(waited_s)
        self._median_s = sorted(self._last)[_KEPT // 2]
        self.average_s += _EWMA_WEIGHT * (took_s - self.average_s)
