"""TiKV resolver: finds a TiDB transaction's outcome by the lock or record at its primary key.

TiDB sends the Prewrite to a Pump and its locks to TiKV at the same time, waits for both, takes a
commit_ts, commits in TiKV, and only then sends the Commit to the Pump, without waiting for that. So
the binlogs at a Pump say nothing about the outcome, and TiKV decides alone:

    COMMITTED, ROLLED_BACK   final in TiKV, and therefore here, however early it is asked
    LOCKED                   the transaction may still commit. A running TiDB renews its lock. The
                             lock of a dead TiDB ends with its TTL, and then TiKV rolls the
                             transaction back when it is asked (3 s after the start of a small
                             optimistic transaction, up to 20 s after the last sign of any other)
    ABSENT                   the lock has not come yet, or never will

**When an absent lock can no longer come.** Waiting alone never makes that certain: a TiDB may have
stood still, a message may be on its way. TiKV's rollback record makes it certain, which TiKV leaves
when it is asked with `rollback_if_not_exist`. A lock that comes later finds the record and is
refused as a write conflict, by Percolator's rule. This also holds for a pessimistic transaction;
the record is kept as long as such a lock can come (TiKV protects it). TiKV orders the lock and the
record: if the lock had come first, the answer would be LOCKED. The record also refuses one-phase
and async commit, in which a lock alone may already be a commit. TiDB uses neither while it writes
binlogs, and the lock of an async commit counts here as a lock that never ends.

So the wait before is not for safety. It keeps a Pump from interrupting a TiDB that runs and is
only slow. `_LOCK_WAIT_S`, 2 s, makes 3 s with the second before the first question. TiDB allows
itself the same time, the TTL of its smallest locks. The wait counts from the first of an unbroken
run of answers ABSENT. While a region cannot answer, its locks cannot come either, and a TiDB that
waits for it must have its turn first. A transaction of many rows may have its regions split before
it sets any lock, for which TiDB waits some two minutes: `_SPLIT_S`. A transaction that is
interrupted nevertheless gets an ordinary write conflict, and TiDB or its client repeats it.

**When the absence of a record says nothing.** TiKV collects old versions, and the record of a
commit with them, up to PD's GC safe point. Above it nothing has been collected. So an absence
counts only when the transaction began above the safe point, read *after* TiKV answered. When the
record is finally left, no absent transaction can have been committed and collected since: a commit
takes a commit_ts above that point in time, and the safe point is minutes behind. A Prewrite from
before the safe point that TiKV does not know stays open and stops the stream, because both guesses
could be wrong. That requires a Pump that was away for longer than TiDB's `tidb_gc_life_time`
(10 min). An operator who has compared its rows may give it up by its start_ts, which has no effect
on any transaction that TiKV does know.

The current time is a timestamp of PD, since TTLs are judged by it. One timestamp serves for a fifth
of a second; a late timestamp only lets a lock last longer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from penstock.codes import Code
from penstock.errors import PenstockError, Retryable, coded
from penstock.oracle.client import PdLeader, pd_tls_of
from penstock.security.tls import Tls
from penstock.ts import physical_ms
from pump.cluster.resolver import ROLLED_BACK, Outcome, Question, Resolution, Resolver
from pump.config import ResolverConfig
from pump.tikv import Channels, Placement, State, Tikv, TransactionStatus, is_of_tidb

log = logging.getLogger(__name__)

_ASKED_AT_ONCE_MAX = 64
_AGAIN_S = 2.0
_LOCK_WAIT_S = 2.0
"""A lock may end in a commit at any moment, whose Commit may be lost."""
_JUST_AFTER_S = 0.05
_FORGOTTEN_AGAIN_S = 5.0
_TIME_STANDS_S = 0.2
_LARGE_BYTES = 4 << 20
_SPLIT_S = 150.0
"""TiDB splits a region before it sets more than 32 MiB of locks in it, and waits 20 s for the
split and 120 s for each part to be moved away. Indexes can make eight times as much of a
Prewrite."""
_REMEMBERED_MAX = 4096
_RUN_BREAKS_S = 60.0


class TikvResolver:
    """Resolves transactions with a key of TiDB, including DDL; passes the others on."""

    def __init__(
        self,
        store: Tikv,
        next_ts: Callable[[], Awaitable[int]],
        otherwise: Resolver,
        *,
        lock_wait_s: float = _LOCK_WAIT_S,
        given_up: Iterable[int] = (),
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._given_up = frozenset(given_up)
        self._next_ts = next_ts
        self._otherwise = otherwise
        self._lock_wait_s = lock_wait_s
        self._monotonic_s = monotonic_s
        self._slots = asyncio.Semaphore(_ASKED_AT_ONCE_MAX)
        self._absences: dict[int, tuple[float, float]] = {}
        """The first and the last of an unbroken run of answers with neither lock nor record."""
        self._telling_time = asyncio.Lock()
        self._last_ts, self._last_s = 0, float("-inf")

    async def resolve(self, question: Question) -> Resolution:
        """Return TiKV's answer once it is final; neither age nor a failure decides."""
        if not is_of_tidb(question.prewrite_key):
            return await self._otherwise.resolve(question)
        async with self._slots:
            try:
                resolution = await self._ask(question)
            except PenstockError as error:
                self._absences.pop(question.start_ts, None)
                return _unknown(coded(error), again_s=_AGAIN_S, failure=True)
        if resolution.outcome is not Outcome.UNKNOWN:
            self._absences.pop(question.start_ts, None)
        return resolution

    async def close(self) -> None:
        await self._store.close()
        await self._otherwise.close()

    async def _ask(self, question: Question) -> Resolution:
        key, start_ts = question.prewrite_key, question.start_ts
        now_ts = await self._now_ts()
        found = await self._store.status(key, start_ts, now_ts)
        if found.state is not State.ABSENT:
            self._absences.pop(start_ts, None)
            return _resolution(found, start_ts, now_ts)
        wait_s = self._lock_wait_s
        if question.size_bytes >= _LARGE_BYTES:
            wait_s = max(wait_s, _SPLIT_S)
        left_s = wait_s - self._absent_for_s(start_ts)
        if left_s > 0:
            why = f"TiKV has no lock and no record of it yet; waiting for {left_s:.1f} s more"
            return _unknown(why, again_s=min(left_s + _JUST_AFTER_S, _AGAIN_S))
        safe_point = await self._store.gc_safe_point()
        if start_ts <= safe_point:
            return self._forgotten(question, safe_point)
        now_ts = await self._now_ts()
        found = await self._store.status(key, start_ts, now_ts, forbid=True)
        if found.state is State.ABSENT:
            raise Retryable(
                "TiKV was asked to leave a rollback record, and has left none", Code.TIKV_ANSWER
            )
        return _resolution(found, start_ts, now_ts)

    async def _now_ts(self) -> int:
        async with self._telling_time:
            if self._monotonic_s() - self._last_s > _TIME_STANDS_S:
                self._last_ts = await self._next_ts()
                self._last_s = self._monotonic_s()
            return self._last_ts

    def _forgotten(self, question: Question, safe_point: int) -> Resolution:
        """Return UNKNOWN with a remediation, unless an operator gave the transaction up."""
        about = (
            f"TiKV knows nothing of transaction {question.start_ts} with the key"
            f" {question.prewrite_key.hex()}, and may have forgotten that it committed: it began"
            f" before the GC safe point {safe_point}"
        )
        if question.start_ts in self._given_up:
            log.error(
                "%s. It is left out, as resolver.given-up says: %d bytes",
                about,
                question.size_bytes,
            )
            return ROLLED_BACK
        hint = (
            f"nothing overtakes it; its rows are at /debug/binlog/{question.start_ts} of this Pump:"
            " compare them with TiDB, and see 'With a TiDB' in pump/README.md"
        )
        return _unknown(f"{about} ({hint})", again_s=_FORGOTTEN_AGAIN_S, failure=True)

    def _absent_for_s(self, start_ts: int) -> float:
        now_s = self._monotonic_s()
        first_s, last_s = self._absences.get(start_ts, (now_s, float("-inf")))
        if now_s - last_s > _RUN_BREAKS_S:
            first_s = now_s
            if len(self._absences) >= _REMEMBERED_MAX:
                known = self._absences.items()
                self._absences = {ts: run for ts, run in known if now_s - run[1] <= _RUN_BREAKS_S}
        self._absences[start_ts] = (first_s, now_s)
        return now_s - first_s


def _resolution(found: TransactionStatus, start_ts: int, now_ts: int) -> Resolution:
    if found.state is State.COMMITTED:
        return Resolution(Outcome.COMMITTED, found.commit_ts)
    if found.state is State.ROLLED_BACK:
        return ROLLED_BACK
    left_s = (physical_ms(start_ts) + found.ttl_ms - physical_ms(now_ts)) / 1000
    if found.is_async_commit:
        return _unknown("its lock in TiKV is that of an async commit", again_s=_AGAIN_S)
    why = f"its lock in TiKV lasts {max(left_s, 0):.1f} s more, unless it is renewed"
    return _unknown(why, again_s=min(max(left_s, 0) + _JUST_AFTER_S, _AGAIN_S))


def _unknown(why: str, *, again_s: float, failure: bool = False) -> Resolution:
    return Resolution(Outcome.UNKNOWN, why=why, again_s=again_s, failure=failure)


def open_tikv_resolver(
    pd_address: str,
    pd_tls: Tls | None,
    next_ts: Callable[[], Awaitable[int]],
    otherwise: Resolver,
    config: ResolverConfig,
) -> TikvResolver:
    """Return the resolver for the cluster of these PDs; nothing is connected yet.

    TiKV is asked with the same TLS as PD, because a TiDB cluster has one switch for TLS.
    """
    tls = pd_tls_of(pd_address, pd_tls)
    channels = Channels(tls)
    placement = Placement(PdLeader(pd_address, tls), channels)
    tikv = Tikv(placement, channels, timeout_s=config.timeout_s)
    return TikvResolver(tikv, next_ts, otherwise, given_up=map(int, config.given_up))
