"""How long a Pump that has no space is left alone, so that refusals do not cost every transaction.

    refused ── 1 s ── asked again, refused ── 2 s ── asked again ── 4 s … 30 s ── taken: no rest

Pure but for the clock that it is given. Refusals of transactions that were under way together
count once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pumpclient.errors import Failure, Reason


class Rest:
    """The pause of one Pump."""

    def __init__(
        self, first_s: float, most_s: float, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._monotonic_s = monotonic_s
        self._length_s = 0.0
        self._until_s = float("-inf")

    @property
    def is_on(self) -> bool:
        """True while the Pump is to be left alone."""
        return self._monotonic_s() < self._until_s

    def note(self, failure: Failure | None) -> bool:
        """Note how a Prewrite went; True when a rest begins with it."""
        if failure is None:
            self._length_s, self._until_s = 0.0, float("-inf")
        elif failure.reason is Reason.NO_SPACE and not self.is_on:
            self._length_s = min(self._length_s * 2, self._most_s) or self._first_s
            self._until_s = self._monotonic_s() + self._length_s
            return True
        return False
