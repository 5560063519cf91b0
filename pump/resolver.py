"""What became of a transaction whose Prewrite waits here and whose writer went silent.

A Prewrite without its Commit holds up everything this Pump received after it. So after a second
somebody is asked, and again with growing pauses, outside the write path; the answer enters the log
as a Commit or Rollback of the Pump's own, through the same group commit as everything else.

    unmatched for 1 s ──> Resolver ──> COMMITTED(ts)  a Commit binlog
                              ├──────> ROLLED_BACK    a Rollback binlog; a later Commit is refused
                              └──────> UNKNOWN        asked again after 1, 2, 4 … 30 s
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from penstock.codec import decode_binlog, encode_binlog
from penstock.errors import PenstockError
from penstock.model import Binlog, BinlogType
from penstock.schema import DdlJob
from penstock.ts import seconds_between
from pump.record import Record

if TYPE_CHECKING:
    from pump.storage import Storage, Unmatched
    from pump.writer import Writer

log = logging.getLogger(__name__)

ASK_AFTER_S = 1.0
_BACK_OFF_S_MAX = 30.0
_TICK_S = 0.25
_AT_ONCE_MAX = 64


class Outcome(Enum):
    """What a resolver can say about a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Resolution:
    """An outcome, with the commit_ts when it is COMMITTED."""

    outcome: Outcome
    commit_ts: int = 0


UNKNOWN = Resolution(Outcome.UNKNOWN)
ROLLED_BACK = Resolution(Outcome.ROLLED_BACK)


class Resolver(Protocol):
    """Whoever can say what became of a transaction."""

    async def resolve(self, start_ts: int, prewrite: Binlog) -> Resolution:
        """Return what is known now; UNKNOWN is asked about again. May raise `Retryable`."""


class TimeoutResolver:
    """Knows nothing but the time: a transaction older than the timeout is rolled back.

    A writer acknowledges a commit to its caller only when the Pump has acknowledged the Commit
    binlog, and gives up within ten minutes: so what is dropped here nobody was promised.
    """

    def __init__(self, now_ts: Callable[[], int], *, txn_timeout_s: float) -> None:
        self._now_ts = now_ts
        self._txn_timeout_s = txn_timeout_s

    async def resolve(self, start_ts: int, prewrite: Binlog) -> Resolution:
        """Return ROLLED_BACK once the transaction is older than the timeout in cluster time."""
        age_s = seconds_between(start_ts, self._now_ts())
        return ROLLED_BACK if age_s > self._txn_timeout_s else UNKNOWN


class DdlResolver:
    """Finds a DDL's outcome in the DDL history, and passes everything else on."""

    def __init__(self, job: Callable[[int], Awaitable[DdlJob | None]], otherwise: Resolver) -> None:
        self._job = job
        self._otherwise = otherwise

    async def resolve(self, start_ts: int, prewrite: Binlog) -> Resolution:
        """Return COMMITTED at the job's `finished_ts` when the history holds the job."""
        if prewrite.is_ddl:
            job = await self._job(prewrite.ddl_job_id)
            if job is not None and job.finished_ts > start_ts:
                return Resolution(Outcome.COMMITTED, job.finished_ts)
        return await self._otherwise.resolve(start_ts, prewrite)


@dataclass(slots=True)
class _Pause:
    until_s: float
    length_s: float


class Resolving:
    """The task that asks about unmatched Prewrites and writes down the answers."""

    def __init__(self, storage: Storage, writer: Writer, resolver: Resolver) -> None:
        self._storage = storage
        self._writer = writer
        self._resolver = resolver
        self._pauses: dict[int, _Pause] = {}
        self.resolved = 0

    async def run(self) -> None:
        """Ask and write, for ever; log failures and try again."""
        while True:
            await asyncio.sleep(_TICK_S)
            await self.ask()

    async def ask(self) -> None:
        """Ask once about every Prewrite that is due."""
        loop = asyncio.get_running_loop()
        unmatched = self._storage.unmatched(older_than_s=ASK_AFTER_S)
        waiting = {prewrite.start_ts for prewrite in unmatched}
        self._pauses = {ts: pause for ts, pause in self._pauses.items() if ts in waiting}
        due = [u for u in unmatched if self._is_due(u.start_ts, loop.time())][:_AT_ONCE_MAX]
        await asyncio.gather(*(self._settle(prewrite) for prewrite in due))

    def _is_due(self, start_ts: int, now_s: float) -> bool:
        pause = self._pauses.get(start_ts)
        return pause is None or now_s >= pause.until_s

    async def _settle(self, unmatched: Unmatched) -> None:
        start_ts = unmatched.start_ts
        loop = asyncio.get_running_loop()
        last = self._pauses.get(start_ts)
        length_s = min(last.length_s * 2, _BACK_OFF_S_MAX) if last else ASK_AFTER_S
        self._pauses[start_ts] = _Pause(loop.time() + length_s, length_s)
        try:
            payload = await loop.run_in_executor(None, unmatched.payload_reader)
            resolution = await self._resolver.resolve(start_ts, decode_binlog(payload))
            if resolution.outcome is not Outcome.UNKNOWN:
                await self._write(start_ts, resolution)
        except (PenstockError, OSError) as error:
            log.warning("transaction %d stays open, trying again: %s", start_ts, error)

    async def _write(self, start_ts: int, resolution: Resolution) -> None:
        committed = resolution.outcome is Outcome.COMMITTED
        tp = BinlogType.COMMIT if committed else BinlogType.ROLLBACK
        commit_ts = resolution.commit_ts
        payload = encode_binlog(Binlog(tp=tp, start_ts=start_ts, commit_ts=commit_ts))
        await self._writer.write([Record(tp, start_ts, commit_ts, payload, False)])
        self.resolved += 1
        log.info("transaction %d is %s, says the resolver", start_ts, resolution.outcome.value)
