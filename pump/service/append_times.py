"""Append times: how fast the disk is, and so whether the event loop may append by itself.

An append in the event loop is cheaper than handing it to a thread; a slow disk gets a thread, so
that pulls continue. What decides is how long an append waits, and not the processor time that it
needs: a thread would need that, too, and keep the event loop waiting for the interpreter. Of the
waits it is the median of the last few and not their mean: on a busy machine some are ten times as
long because the process is not let run, which says nothing about the disk.

A thread's wait includes that for the interpreter, and so looks long. Unless the median is ten
times the limit, each 32nd append is done in the event loop to see how fast the disk is.
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
        """How long one takes, for status and score; younger appends count more."""

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
