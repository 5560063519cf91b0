"""How far a replay of the log is, for whoever waits for the Pump to start."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_EVERY_S = 2.0


class Progress:
    """Passes bytes done and to do on to a listener, and every two seconds to the log."""

    def __init__(
        self,
        listener: Callable[[int, int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._begun_s = self._told_s = clock()

    def __call__(self, done: int, total: int) -> None:
        """Tell that `done` of `total` bytes are replayed."""
        if self._listener is not None:
            self._listener(done, total)
        now_s = self._clock()
        if now_s - self._told_s < _EVERY_S or not 0 < done < total:
            return
        self._told_s = now_s
        rate = done / (now_s - self._begun_s)
        log.info(
            "replaying the log into the index: %d %% of %d MB, %.0f MB/s, about %.0f s left",
            100 * done // total,
            total // 1_000_000,
            rate / 1e6,
            (total - done) / rate,
        )
