"""The rates and lags that a console has seen during the last hour, in bounded memory.

Pure.

    Track      720 slots of 5 s, each the mean (or the maximum) of its values, or nothing
    Chronicle  a track for each node and quantity; rates are made of counters that only grow

A counter that falls has been reset, as when a node was restarted. A quantity without a value for an
hour is forgotten, and beyond `TRACKS_MAX` no new track is started.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

STEP_S: Final = 5.0
SLOTS: Final = 720
SPAN_S: Final = STEP_S * SLOTS
TRACKS_MAX: Final = 2000
_NOW_SLOTS: Final = 2
_NOTHING: Final = float("nan")


class Track:
    """One quantity over the last hour."""

    def __init__(self, *, is_greatest: bool = False) -> None:
        """Start empty; a slot keeps the mean of its values, or their maximum."""
        self._is_greatest = is_greatest
        self._values = array("d", [_NOTHING]) * SLOTS
        self._count = 0
        self._last = -1

    def note(self, at_s: float, value: float) -> None:
        """Record a value; times must not decrease."""
        slot = int(at_s / STEP_S)
        if slot != self._last:
            for passed in range(max(self._last + 1, slot - SLOTS + 1), slot + 1):
                self._values[passed % SLOTS] = _NOTHING
            self._last, self._count = slot, 0
        index = slot % SLOTS
        before = self._values[index]
        self._count += 1
        if self._count == 1:
            self._values[index] = value
        elif self._is_greatest:
            self._values[index] = max(before, value)
        else:
            self._values[index] = before + (value - before) / self._count

    def last(self, now_s: float, slots: int) -> list[float | None]:
        """Return the last slots up to now, oldest first; None for a slot without a value."""
        end = int(now_s / STEP_S)
        return [self._at(slot) for slot in range(end - min(slots, SLOTS) + 1, end + 1)]

    def now(self, now_s: float) -> float | None:
        """Return the current value: the mean of the last slots that have a value."""
        found = [value for value in self.last(now_s, _NOW_SLOTS + 1) if value is not None]
        return sum(found[-_NOW_SLOTS:]) / len(found[-_NOW_SLOTS:]) if found else None

    def is_over(self, now_s: float) -> bool:
        return int(now_s / STEP_S) - self._last >= SLOTS

    def _at(self, slot: int) -> float | None:
        if not self._last - SLOTS < slot <= self._last:
            return None
        value = self._values[slot % SLOTS]
        return None if value != value else value  # NaN differs from itself.


@dataclass(slots=True)
class _Counter:
    at_s: float
    count: float


class Chronicle:
    """All tracks of one console; times are seconds of a clock that never goes back."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self._tracks: dict[tuple[str, str], Track] = {}
        self._counters: dict[tuple[str, str], _Counter] = {}

    def gauge(self, node: str, name: str, at_s: float, value: float | None) -> None:
        """Record a gauge; a slot keeps its maximum, and None is ignored."""
        if value is not None:
            self._note(node, name, at_s, value, is_greatest=True)

    def counter(self, node: str, name: str, at_s: float, count: float | None) -> None:
        """Record a counter, whose rate in 1/s is the quantity; None is ignored."""
        if count is None:
            return
        before = self._counters.get((node, name))
        self._counters[node, name] = _Counter(at_s, count)
        if before is not None and at_s > before.at_s and count >= before.count:
            rate = (count - before.count) / (at_s - before.at_s)
            self._note(node, name, at_s, rate, is_greatest=False)

    def now(self, node: str, name: str, now_s: float) -> float | None:
        track = self._tracks.get((node, name))
        return None if track is None else track.now(now_s)

    def points(self, node: str, name: str, now_s: float) -> Sequence[float | None]:
        """Return a quantity since the console began, oldest first, for an hour at most."""
        track = self._tracks.get((node, name))
        return [] if track is None else track.last(now_s, self._slots(now_s))

    def span_s(self, now_s: float) -> float:
        return self._slots(now_s) * STEP_S

    def forget(self, now_s: float) -> None:
        for key in [key for key, track in self._tracks.items() if track.is_over(now_s)]:
            del self._tracks[key]
        for key in [k for k, each in self._counters.items() if now_s - each.at_s > SPAN_S]:
            del self._counters[key]

    def _slots(self, now_s: float) -> int:
        return min(SLOTS, 1 + int(now_s / STEP_S) - int(self.began_s / STEP_S))

    def _note(self, node: str, name: str, at_s: float, value: float, *, is_greatest: bool) -> None:
        track = self._tracks.get((node, name))
        if track is None:
            if len(self._tracks) >= TRACKS_MAX:
                return
            track = self._tracks[node, name] = Track(is_greatest=is_greatest)
        track.note(at_s, value)
