"""Lines that say how far a load is; and a brake on its rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]


@dataclass(slots=True)
class Progress:
    """Counts, and a line of them each `every_s`; estimates of rows are the server's."""

    tables: int
    rows_estimated: int
    say: Callable[[str], None]
    every_s: float = 5.0
    clock: Clock = time.monotonic
    rows: int = 0
    bytes: int = 0
    tables_done: int = 0
    _begun_s: float = field(init=False)
    _said_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Take the time."""
        self._begun_s = self._said_s = self.clock()

    def add(self, rows: int, bytes_: int) -> None:
        """Count rows that are durable; say so when it is time."""
        self.rows += rows
        self.bytes += bytes_
        if self.clock() - self._said_s >= self.every_s:
            self._said_s = self.clock()
            self.say(self.line())

    def line(self) -> str:
        """Return how far it is, its rate, and the rest of the time at this rate."""
        seconds = max(self.clock() - self._begun_s, 1e-9)
        rate = self.rows / seconds
        share = min(self.rows / self.rows_estimated, 1.0) if self.rows_estimated else 1.0
        left_rows = max(self.rows_estimated - self.rows, 0)
        left = f"about {left_rows / rate:.0f} s left" if rate else "time left unknown"
        return (
            f"{100 * share:3.0f} %  {self.rows} rows, {self.tables_done} of {self.tables} tables,"
            f" {rate:.0f} rows/s, {self.bytes / seconds / 1e6:.1f} MB/s, {left}"
        )


@dataclass(slots=True)
class Brake:
    """Keeps to a rate by waiting; None does not."""

    bytes_per_s: int | None
    clock: Clock = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _free_s: float = 0.0

    def take(self, bytes_: int) -> None:
        """Wait until this many bytes may go."""
        if self.bytes_per_s is None:
            return
        now_s = self.clock()
        if self._free_s > now_s:
            self.sleep(self._free_s - now_s)
        self._free_s = max(self._free_s, now_s) + bytes_ / self.bytes_per_s
