"""Decided writes: transactions that arrive complete, stored in one group with their own timestamps.

A source passes on transactions that its upstream has committed. Two phases would only cost it
timestamps, syncs and round trips.

    admit all ── hold the stream ── pin the schema ── timestamps ── unpin ── one group ── commit_ts

Order. The timestamps are taken before the Prewrites are stored, so a fake binlog or a Commit with a
larger commit_ts may be appended in between, or a larger watermark be published. The hold keeps the
stream below all of them until the group is stored (`pump/store/transactions.py`), or is certain not
to be. A Pump that another one has deposed cannot know that, and its stream stays.

Schema. The rows must be valid at their commit_ts. This Pump is therefore a writer at the fence: it
pins the schema from before the timestamps are taken until they are known, and refuses rows for
another version. This also holds for a request that is late, whose caller has given it up. The fence
is joined with the first request, so a DDL waits for no other Pump.

Repetition. A caller that gets no answer sends the transactions again, here or to another Pump. Both
may be stored. Drainers take the one with the smaller commit_ts, because the origin of the other one
is not new. A transaction without an origin is therefore refused. After any failure, those that are
stored are the first of the request: the records of a group are refused from one on.

A group that a crash has torn ends the log within one transaction; the resolver rolls back a
Prewrite of which the Commit is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock import failpoints
from penstock.codes import Code
from penstock.errors import PenstockError, Retryable
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from penstock.wire.protowire import encode_uvarint
from pump.service.admission import PREWRITE_HEAD
from pump.store.record import Record

if TYPE_CHECKING:
    from penstock.cluster.fence import WriterFence
    from penstock.oracle.client import Oracle
    from pump.service.admission import Admission
    from pump.service.group_commit import GroupCommit
    from pump.store.storage import Storage

_FENCE_WAIT_S = 1.0
T = TypeVar("T")
_after_timestamps = failpoints.point("pump.after_timestamps")


class SchemaChanged(Retryable):
    """The rows are not encoded for the newest schema version; nothing was stored."""


class DecidedWrites:
    """Stores decided transactions; for one event loop."""

    def __init__(
        self,
        storage: Storage,
        group_commit: GroupCommit,
        admission: Admission,
        *,
        oracle: Oracle,
        take_now: Callable[[int], range | None],
        open_fence: Callable[[], WriterFence],
        on_released: Callable[[], None],
    ) -> None:
        """`on_released` is called after a hold, when the stream may have moved.

        `take_now` returns timestamps without a call, None if this process cannot.
        """
        self._storage = storage
        self._group_commit = group_commit
        self._admission = admission
        self._oracle = oracle
        self._take_now = take_now
        self._open_fence = open_fence
        self._on_released = on_released
        self._fence: WriterFence | None = None
        self._tasks = set[asyncio.Task[range]]()
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, "pump-decided")

    async def write(self, version: int, payloads: Sequence[bytes]) -> range:
        """Return the commit_ts of the transactions, in their order, once all are durable.

        Raises `SchemaChanged` and `Refused` if nothing was stored, and otherwise a `PenstockError`
        or an `OSError`. What has begun goes on if the caller goes away.
        """
        for payload in payloads:
            self._admission.check_decided(payload)
        await self._group_commit.room()
        task = asyncio.create_task(self._stored(version, payloads))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Refuse what has no timestamps yet, and leave the fence; before the group commit ends."""
        self._is_closed = True
        self._thread.shutdown(wait=False)
        if self._fence is not None:
            await asyncio.to_thread(self._fence.close)

    async def _stored(self, version: int, payloads: Sequence[bytes]) -> range:
        if self._is_closed:
            raise Retryable("the Pump is closing", Code.CLOSED)
        held = self._storage.hold()
        try:
            loop, count = asyncio.get_running_loop(), 2 * len(payloads)
            taken = self._taken_now(version, count)
            if taken is None:
                taken = await loop.run_in_executor(self._thread, self._awaited, version, count)
            if self._is_closed:
                raise Retryable("the Pump is closing", Code.CLOSED)
            held.start_ts = taken[::2]
            records: list[Record] = []
            for start_ts, commit_ts, payload in zip(taken[::2], taken[1::2], payloads, strict=True):
                records += _records(start_ts, commit_ts, payload)
            await self._group_commit.write(records)
        except BaseException as error:
            if not _may_be_stored(error):
                self._storage.release(held)
                self._on_released()
            raise
        return taken[1::2]

    def _taken_now(self, version: int, count: int) -> range | None:
        """Return timestamps as `_awaited` does, None if that means to wait, or fails."""
        if self._fence is None:
            return None
        try:
            return self._taken(self._fence, version, partial(self._take_now, count), 0)
        except PenstockError:
            return None

    def _awaited(self, version: int, count: int) -> range:
        """Return timestamps, taken while the schema has this version."""
        if self._fence is None:
            self._fence = self._open_fence()
        take = partial(self._oracle.get_many, count)
        return self._taken(self._fence, version, take, _FENCE_WAIT_S)

    def _taken(self, fence: WriterFence, version: int, take: Callable[[], T], wait_s: float) -> T:
        with fence.pin(wait_s) as now:
            if now != version:
                raise SchemaChanged(
                    f"the schema has version {now}, not {version}", Code.TRANSACTION_ROLLED_BACK
                )
            taken = take()
        _after_timestamps()
        return taken


def _may_be_stored(error: BaseException) -> bool:
    """Return whether the group may be in the log of the next primary; then there is one."""
    return isinstance(error, PenstockError) and error.code is Code.LOG_DEPOSED


def _records(start_ts: int, commit_ts: int, payload: bytes) -> tuple[Record, Record]:
    """Return the Prewrite, which also names its commit_ts, and the Commit."""
    stamps = b"\x10" + encode_uvarint(start_ts) + b"\x18" + encode_uvarint(commit_ts)
    prewrite = PREWRITE_HEAD[:2] + stamps + payload[len(PREWRITE_HEAD) :]
    commit = encode_binlog(Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts))
    return (
        Record(BinlogType.PREWRITE, start_ts, 0, prewrite),
        Record(BinlogType.COMMIT, start_ts, commit_ts, commit),
    )
