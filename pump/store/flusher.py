"""Makes the index durable now and then, so that a restart never has much to replay."""

from __future__ import annotations

import logging
import threading

from penstock.errors import PenstockError
from pump.store.index import Index
from pump.store.replay_point import Checkpoint

log = logging.getLogger(__name__)

_RECORDS_MAX = 100_000
_BYTES_MAX = 128 << 20
"""A restart replays little more than this: about a second's work."""


class Flusher:
    """Flushes in a thread of its own, which lives no longer than a flush."""

    def __init__(self, index: Index, checkpoint: Checkpoint) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._records = self._bytes = 0
        self.flushed = checkpoint
        """From where a restart would replay; never ahead of what is durable."""

    @property
    def is_due(self) -> bool:
        """True once much was indexed since the last flush began, and that one is over."""
        much = self._records >= _RECORDS_MAX or self._bytes >= _BYTES_MAX
        return much and (self._thread is None or not self._thread.is_alive())

    def note(self, records: int, size_bytes: int) -> None:
        """Count what was indexed."""
        self._records += records
        self._bytes += size_bytes

    def begin(self, checkpoint: Checkpoint) -> None:
        """Make the index durable up to `checkpoint` in a thread; none may be running."""
        self._records = self._bytes = 0
        self._thread = threading.Thread(
            target=self.flush, args=(checkpoint,), name="pump-index-flush"
        )
        self._thread.start()

    def flush(self, checkpoint: Checkpoint) -> None:
        """Make the index durable up to `checkpoint`; a failure only lengthens the next replay."""
        with self._lock:
            if checkpoint.pointer <= self.flushed.pointer:
                return
            try:
                self._index.flush(checkpoint)
            except PenstockError as error:
                log.warning("the index could not be flushed: %s", error)
            else:
                self.flushed = checkpoint

    def join(self) -> None:
        """Return once no flush is running."""
        if self._thread is not None:
            self._thread.join()
