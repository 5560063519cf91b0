"""Resolver: finds out the outcome of a transaction whose writer went silent.

A Prewrite without its Commit blocks everything that this Pump received after it. After a second a
resolver is asked, and again with growing pauses, outside the write path. The answer enters the log
as this Pump's Commit or Rollback, through the same group commit as everything else.

    unmatched for 1 s ──> Resolver ──> COMMITTED(ts)  a Commit binlog
                              ├──────> ROLLED_BACK    a Rollback binlog; a later Commit is refused
                              └──────> UNKNOWN        asked again after 1, 2, 4 … 30 s, or when
                                                      the resolver says that it will know more

Each question is a separate task, so waiting for one answer delays no other question; a resolver
bounds its questions in progress. A Prewrite is read once, for the facts that a question needs, and
a tick reads at most `_FIRST_MAX` of them.

Questions about live writers would slow an overloaded Pump further. Commits that arrive after more
than a second show that writers are alive and slow. While several have arrived recently, a
transaction is first asked about after twice their median age, at the latest after `PATIENCE_S_MAX`:
a writer that died among slow writers delays the stream by so much.

The age of a Prewrite is measured by this Pump's monotonic clock, and starts from zero when the Pump
starts. The cluster's time may jump, and must not make a transaction old.

A decided transaction is in one group with its Commit (`pump/service/decided_writes.py`). Its
Prewrite alone is the remainder of a group that a crash cut off and no one has seen acknowledged. It
names its commit_ts, which no other Prewrite does, and is rolled back immediately.

One answer cannot be written as it is: COMMITTED at or below the end of this Pump's stream when the
Prewrite arrived (its floor, see `store/transactions.py`). A writer asks for its commit_ts after
some Pump acknowledged the Prewrite. If that Pump had been this one, it would have had the Prewrite
before anyone had that commit_ts or a later one, and the floor would be smaller. So the Prewrite
here is a duplicate that arrived late. Another Pump commits the transaction, and this Pump rolls it
back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Protocol

from penstock.errors import PenstockError, coded
from penstock.node.output import time_text
from penstock.schema.model import DdlJob
from penstock.ts import compose
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog, encode_binlog
from pump.store.record import Record

if TYPE_CHECKING:
    from penstock.cluster.history import History
    from pump.service.group_commit import GroupCommit
    from pump.store.storage import Storage, Unmatched


log = logging.getLogger(__name__)

ASK_AFTER_S = 1.0
PATIENCE_S_MAX = 10.0
_LATE_MIN, _LATE_MAX = 8, 64
"""Late Commits that count as evidence, and that are remembered."""
_LATE_S = 10.0
_FIRST_MAX = 64
_BACK_OFF_S_MAX = 30.0
_TICK_S = 0.25
_AWAKE_S_MAX = 2.0
"""The most time that one tick counts for."""
_ASKING_MAX = 1024
_COMPLAIN_EVERY_S = 5.0


class Outcome(Enum):
    """The possible answers about a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Resolution:
    """An outcome, with the commit_ts when it is COMMITTED.

    An UNKNOWN resolution says `why`, for people, and after how long to ask again; 0 leaves that to
    the asker. `failure` is true when a service that should have answered did not.
    """

    outcome: Outcome
    commit_ts: int = 0
    why: str = field(default="", compare=False)
    again_s: float = field(default=0.0, compare=False)
    failure: bool = field(default=False, compare=False)


UNKNOWN = Resolution(Outcome.UNKNOWN)
ROLLED_BACK = Resolution(Outcome.ROLLED_BACK)


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a resolver; `waited_s` is how long the Prewrite has been open here."""

    start_ts: int
    prewrite_key: bytes = b""
    ddl_job_id: int = 0
    waited_s: float = ASK_AFTER_S
    size_bytes: int = 0
    """The size of the Prewrite; for chunks, of the part before its row changes."""
    is_torn: bool = False
    """True for a decided transaction of which a crash has left only the Prewrite."""


class Resolver(Protocol):
    """Finds a transaction's outcome: by its age, the DDL history, or the writers' databases."""

    async def resolve(self, question: Question) -> Resolution:
        """Return what is known now; an UNKNOWN transaction is asked about again.

        May raise a `PenstockError`. COMMITTED and ROLLED_BACK are final: the opposite can never
        become true.
        """

    async def close(self) -> None: ...


class TimeoutResolver:
    """Decides by age alone: a transaction open for longer than the timeout is rolled back.

    A writer acknowledges a commit to its caller only after the Pump has acknowledged the Commit
    binlog, and stops trying within ten minutes. A transaction that is dropped here was therefore
    promised to no caller.
    """

    def __init__(self, *, txn_timeout_s: float) -> None:
        self._txn_timeout_s = txn_timeout_s

    async def resolve(self, question: Question) -> Resolution:
        """Return ROLLED_BACK once the transaction has been open here for the timeout."""
        left_s = self._txn_timeout_s - question.waited_s
        if left_s < 0:
            return ROLLED_BACK
        why = f"no one knows what became of it; it is rolled back in {left_s:.0f} s"
        return Resolution(Outcome.UNKNOWN, why=why)

    async def close(self) -> None: ...


class DdlResolver:
    """Finds a DDL's outcome in the DDL history, and passes everything else on."""

    def __init__(self, history: History, otherwise: Resolver) -> None:
        self._history = history
        self._otherwise = otherwise

    async def resolve(self, question: Question) -> Resolution:
        """Return COMMITTED at the job's `finished_ts` when the history holds the job.

        Returns ROLLED_BACK when it does not and never will. Otherwise a writer that died within a
        DDL, and repeats it or runs the next DDL, would wait for the other resolver's timeout. When
        the other resolver rolls back, the history decides: it holds the job, or never will.
        """
        job_id = question.ddl_job_id
        if job_id <= 0:
            return await self._otherwise.resolve(question)
        job = await asyncio.to_thread(self._history.get, job_id)
        if job is None and await asyncio.to_thread(self._history.is_overtaken, job_id):
            return ROLLED_BACK
        if job is None or not _is_of(job, question):
            found = await self._otherwise.resolve(question)
            if found.outcome is not Outcome.ROLLED_BACK:
                return found
            job = await asyncio.to_thread(self._history.roll_back, job_id)
            if job is None or not _is_of(job, question):
                return found
        return Resolution(Outcome.COMMITTED, job.finished_ts)

    async def close(self) -> None:
        await self._otherwise.close()


def _is_of(job: DdlJob, question: Question) -> bool:
    """Return whether a job is this Prewrite's; a restored etcd may have reused the job's id.

    Jobs of older versions have no start_ts.
    """
    return job.finished_ts > question.start_ts and job.start_ts in (0, question.start_ts)


@dataclass(slots=True)
class _Case:
    first_s: float
    """In seconds for which this Pump has been awake."""
    until_s: float
    length_s: float = 0.0
    about: Question | None = None
    why: str = ""
    resolved: bool = False
    since_s: float = field(default_factory=lambda: time.time() - ASK_AFTER_S)
    """When it was opened here, by this machine's clock: about its arrival, or this Pump's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction whose Commit has not arrived; `key` is in hexadecimal, or "none"."""

    start_ts: int
    key: str
    open_since: str
    waits: str


class Resolving:
    """The task that asks about unmatched Prewrites and writes the answers."""

    def __init__(self, storage: Storage, group_commit: GroupCommit, resolver: Resolver) -> None:
        self._storage = storage
        self._group_commit = group_commit
        self._resolver = resolver
        self._cases: dict[int, _Case] = {}
        # When a writer ended a transaction of more than a second, and the transaction's age.
        self._late = deque[tuple[float, float]](maxlen=_LATE_MAX)
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._complain_at_s = float("-inf")
        self._awake_s = 0.0
        self._ticked_s = float("inf")
        self._unsaid = 0
        self._failure: BaseException | None = None
        self.resolved = 0
        self.asked = 0

    def waiting(self) -> list[OpenTransaction]:
        """Return the transactions that have been open for more than a second, oldest first."""
        return [
            OpenTransaction(
                start_ts=start_ts,
                key=(case.about and case.about.prewrite_key.hex()) or "none",
                open_since=time_text(compose(int(case.since_s * 1000), 0)),
                waits=case.why
                or ("it is being asked about" if case.length_s else "writers are slow at present"),
            )
            for start_ts, case in self._cases.items()
        ]

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(_TICK_S)
                self._ask_due()
                if self._failure is not None:
                    raise self._failure
        finally:
            for task in self._asking.values():
                task.cancel()
            await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def ask(self) -> None:
        """Ask once about every due Prewrite; return when all questions are answered."""
        self._ask_due()
        await asyncio.gather(*self._asking.values())

    def _ask_due(self) -> None:
        now_s = asyncio.get_running_loop().time()
        # While this process was suspended, its writers waited for it, so that time does not count.
        self._awake_s += max(0.0, min(now_s - self._ticked_s, _AWAKE_S_MAX))
        self._ticked_s = now_s
        unmatched = self._storage.unmatched(older_than_s=ASK_AFTER_S)
        before, awake_s = self._cases, self._awake_s
        self._cases = {
            u.start_ts: before.get(u.start_ts) or _Case(awake_s, now_s) for u in unmatched
        }
        self._late.extend(
            (awake_s, self._age_s(case))
            for start_ts, case in before.items()
            if start_ts not in self._cases and not case.resolved
        )
        patience_s, first_left = self._patience_s(), _FIRST_MAX
        for prewrite in unmatched:
            if len(self._asking) >= _ASKING_MAX:
                return
            start_ts = prewrite.start_ts
            case = self._cases[start_ts]
            if start_ts in self._asking or now_s < case.until_s:
                continue
            if not case.length_s:
                if self._age_s(case) < patience_s or not first_left:
                    return  # All that follow are younger.
                first_left -= 1
            case.length_s = min(case.length_s * 2, _BACK_OFF_S_MAX) or ASK_AFTER_S
            case.until_s = now_s + case.length_s
            task = asyncio.create_task(self._settle(prewrite, case))
            self._asking[start_ts] = task
            task.add_done_callback(partial(self._answered, start_ts))

    def _age_s(self, case: _Case) -> float:
        return self._awake_s - case.first_s + ASK_AFTER_S

    def _patience_s(self) -> float:
        """Return the age from which a transaction is asked about."""
        since_s = self._awake_s - _LATE_S
        ages = [age_s for at_s, age_s in self._late if at_s >= since_s]
        if len(ages) < _LATE_MIN:
            return ASK_AFTER_S
        return min(2 * median(ages), PATIENCE_S_MAX)

    def _answered(self, start_ts: int, task: asyncio.Task[None]) -> None:
        del self._asking[start_ts]
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure

    async def _settle(self, unmatched: Unmatched, case: _Case) -> None:
        start_ts = unmatched.start_ts
        waited_s = self._age_s(case)
        try:
            if case.about is None:
                case.about = await asyncio.to_thread(_question, unmatched)
            about = case.about
            self.asked += 1
            if about.is_torn:
                resolution = ROLLED_BACK
            else:
                resolution = await self._resolver.resolve(replace(about, waited_s=waited_s))
            if resolution.outcome is not Outcome.UNKNOWN:
                case.resolved = True
                await self._write(unmatched, resolution, about.ddl_job_id)
                return
            case.why = resolution.why
            if resolution.again_s:
                case.until_s = asyncio.get_running_loop().time() + resolution.again_s
            if resolution.failure:
                self._complain(start_ts, resolution.why)
        except (PenstockError, OSError) as error:
            case.why = coded(error)
            self._complain(start_ts, case.why)

    async def _write(self, unmatched: Unmatched, resolution: Resolution, job_id: int) -> None:
        start_ts, commit_ts = unmatched.start_ts, resolution.commit_ts
        outcome = resolution.outcome.value
        if commit_ts and commit_ts <= unmatched.floor_ts:
            outcome = f"rolled back here, as another Pump has its Commit at {commit_ts}"
            commit_ts = 0
        tp = BinlogType.COMMIT if commit_ts else BinlogType.ROLLBACK
        job_id = job_id if commit_ts else 0
        verdict = Binlog(tp=tp, start_ts=start_ts, commit_ts=commit_ts, ddl_job_id=job_id)
        record = Record(tp, start_ts, commit_ts, encode_binlog(verdict), ddl_job_id=job_id)
        await self._group_commit.write([record])
        self.resolved += 1
        log.info("transaction %d is %s, says the resolver", start_ts, outcome)

    def _complain(self, start_ts: int, why: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._complain_at_s:
            self._unsaid += 1
            return
        others = f" (and {self._unsaid} questions failed before)" if self._unsaid else ""
        log.warning("transaction %d stays open, trying again: %s%s", start_ts, why, others)
        self._complain_at_s, self._unsaid = now_s + _COMPLAIN_EVERY_S, 0


def _question(unmatched: Unmatched) -> Question:
    payload = unmatched.payload_reader()
    prewrite = decode_binlog(payload)
    key, job_id = prewrite.prewrite_key, prewrite.ddl_job_id
    is_torn = prewrite.commit_ts > 0 and prewrite.origin is not None
    return Question(unmatched.start_ts, key, job_id, size_bytes=len(payload), is_torn=is_torn)
