"""Pulls: serves the pullers of this Pump, and wakes each when a write has something for it.

A puller asks for binlogs after its `commit_ts`; at the end it waits until the Pump's greatest
commit_ts moves. Storage reads run in a few threads, so that a cold disk does not delay writes. If
little was written while a puller waited, the event loop reads it, because it is in the system's
cache. A watermark is sent without a read, as a fake binlog.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from pump.store.record import PurgedRange
from pump.store.stream import Pulled

if TYPE_CHECKING:
    from penstock.log.segments import Place
    from pump.store.storage import Storage
    from pump.store.stream import Large

PULL_BATCH_BYTES = 1 << 20
"""The maximum size of a message to a Drainer."""
_COUNT_MAX = 4096
_THREADS = 4
_HERE_BYTES_MAX = 64 << 10


@dataclass(slots=True)
class Puller:
    """One open pull: the puller's name, and the greatest commit_ts sent to it."""

    name: str
    after_ts: int


class Pulls:
    """All open pulls of one Pump; for one event loop."""

    def __init__(
        self,
        storage: Storage,
        *,
        batch_bytes_max: int,
        message_bytes_max: int = 512 << 20,
        late_max: int = 1000,
    ) -> None:
        self._storage = storage
        self._batch_bytes_max = batch_bytes_max
        self._message_bytes_max = message_bytes_max
        self._late_max = late_max
        self._threads = ThreadPoolExecutor(_THREADS, "pump-pull")
        self._moved = asyncio.Event()
        self._seen_ts, self._logged_ts = storage.max_commit_ts, storage.logged_ts
        self._closed = False
        self.moved_at_s = self.logged_at_s = float("-inf")
        """When the stream moved; when it moved by a binlog in the log."""
        self.puller_waits = asyncio.Event()
        self.asked = asyncio.Event()
        """Set by each request for more, see `ask`."""
        self.asked_ts = 0
        self.open: dict[int, Puller] = {}
        self.failed = 0
        """Reads that ended with an error, other than for purged binlogs."""
        self.late: Counter[str] = Counter()
        """How often each puller asked for purged binlogs; no more than `late_max` of them."""

    def wake(self) -> None:
        if self._storage.max_commit_ts != self._seen_ts:
            self._seen_ts = self._storage.max_commit_ts
            self.moved_at_s = asyncio.get_running_loop().time()
            if self._storage.logged_ts != self._logged_ts:
                self._logged_ts, self.logged_at_s = self._storage.logged_ts, self.moved_at_s
            self._wake_all()

    def ask(self, past_ts: int) -> None:
        """Record that a merge waits for the stream to pass `past_ts`; a watermark answers it."""
        self.asked_ts = max(self.asked_ts, past_ts)
        self.asked.set()

    def close(self) -> None:
        """End every pull without an error, after the message being sent."""
        self._closed = True
        self._wake_all()
        self._threads.shutdown(wait=False)

    def _wake_all(self) -> None:
        self.puller_waits.clear()
        self._moved.set()
        self._moved = asyncio.Event()

    async def batches(
        self, name: str, after_ts: int, bytes_max: int = 0, *, pauses: bool = False
    ) -> AsyncGenerator[Pulled]:
        """Yield non-empty batches after `after_ts`, without end, until the Pump closes.

        With `pauses`, an empty one comes before each wait for further binlogs.

        Raises `PurgedRange` when binlogs after `after_ts` are gone, `Corrupt` when
        the stored bytes are damaged.
        """
        bytes_max = min(bytes_max or self._batch_bytes_max, self._batch_bytes_max)
        loop, puller = asyncio.get_running_loop(), Puller(name, after_ts)
        had: Place | None = None

        def read(after_ts: int, bytes_max: int) -> Pulled:
            return self._storage.pull(after_ts, bytes_max=bytes_max, count_max=_COUNT_MAX)

        self.open[id(puller)] = puller
        try:
            while not self._closed:
                moved = self._moved
                if self._storage.max_commit_ts <= puller.after_ts:
                    if pauses:
                        yield Pulled([], [], [], puller.after_ts)
                    self.puller_waits.set()
                    had = self._storage.log.end
                    await moved.wait()
                    continue
                pulled = self._storage.pull_watermark(puller.after_ts)
                try:
                    if pulled is None and self._is_little_since(had):
                        pulled = read(puller.after_ts, bytes_max)
                    elif pulled is None:
                        after_ts = puller.after_ts
                        pulled = await loop.run_in_executor(
                            self._threads, read, after_ts, bytes_max
                        )
                except (PenstockError, OSError) as error:
                    self._note(name, error)
                    raise
                assert pulled.last_ts > puller.after_ts, "a pull must move on"
                if pulled.commit_ts or pulled.large:
                    yield pulled
                puller.after_ts = pulled.last_ts
        finally:
            del self.open[id(puller)]

    def _is_little_since(self, had: Place | None) -> bool:
        end = self._storage.log.end
        if had is None or had.segment != end.segment:
            return False
        return end.offset - had.offset <= _HERE_BYTES_MAX

    async def fetched(self, name: str, wanted: Sequence[int]) -> AsyncGenerator[Pulled]:
        """Yield the wanted binlogs in batches; raise as `batches` does, or as `Stream.fetch`."""
        loop, fetch = asyncio.get_running_loop(), self._storage.stream.fetch
        while wanted:
            if self._closed:
                raise Retryable("the Pump is closing", Code.CLOSED)
            try:
                pulled = await loop.run_in_executor(
                    self._threads, fetch, wanted, self._batch_bytes_max
                )
            except (PenstockError, OSError) as error:
                self._note(name, error)
                raise
            yield pulled
            wanted = wanted[len(pulled.commit_ts) :]

    def _note(self, name: str, error: Exception) -> None:
        if not isinstance(error, PurgedRange):
            self.failed += 1
        elif name in self.late or len(self.late) < self._late_max:
            self.late[name] += 1

    async def chunks(self, large: Large) -> AsyncIterator[bytes]:
        """Yield a large binlog's chunks, reading one at a time; raise as `batches` does."""
        loop, chunks = asyncio.get_running_loop(), self._storage.stream.chunks(large)
        chunk = b"-"
        while chunk:
            if self._closed:
                raise Retryable("the Pump is closing", Code.CLOSED)
            try:
                chunk = await loop.run_in_executor(self._threads, next, chunks, b"")
            except (PenstockError, OSError) as error:
                self.failed += not isinstance(error, PurgedRange)
                raise
            if chunk:
                yield chunk

    async def whole(self, large: Large) -> bytes:
        """Return all of a large binlog; raise `NeedsOperator` if no message can hold it."""
        if large.size_bytes > self._message_bytes_max:
            raise NeedsOperator(
                f"the binlog at commit_ts {large.commit_ts} has {large.size_bytes} bytes, a message"
                f" at most {self._message_bytes_max}",
                "pull with penstock.Pump/Pull and `pieces`, as a Drainer of this version does",
                Code.BINLOG_TOO_LARGE,
            )
        return b"".join([chunk async for chunk in self.chunks(large)])
