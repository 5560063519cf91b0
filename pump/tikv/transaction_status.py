"""Transaction status: TiKV's status of a transaction, asked at its primary key.

    lock, whose TTL is not over      LOCKED      its owner may still commit
    a commit record                  COMMITTED   final
    a rollback record                ROLLED_BACK final: TiKV accepts no lock and no commit for it
    a lock whose TTL is over         ROLLED_BACK TiKV replaces the lock by a rollback record
    neither lock nor record          ABSENT      or, asked to `forbid` it: TiKV leaves a rollback
                                                 record, and it is ROLLED_BACK

A region error answers nothing: the region has split, moved, has no leader, or its store is busy.
Then PD is asked again where the key is, with a pause, until the time of the question is over. A
leader that TiKV names is asked without a pause, because PD learns of it later. Unknown content is
never taken for an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.node.waiting import doubling
from penstock.pb import tikvpb_pb2
from pump.tikv.channels import Channels
from pump.tikv.placement import Place, Placement

_METHOD = "/tikvpb.Tikv/KvCheckTxnStatus"
_FIRST_PAUSE_S = 0.02
_PAUSE_S_MAX = 0.5
_SHORT_S = 0.3
"""With less time left, a time-out says nothing about the cause."""
_FINAL_ROLLBACKS = frozenset({
    tikvpb_pb2.NoAction, tikvpb_pb2.TTLExpireRollback, tikvpb_pb2.LockNotExistRollback,
})  # fmt: skip
"""The other actions with neither a TTL nor a commit_ts concern released pessimistic locks."""


class State(Enum):
    """The state of a transaction in TiKV."""

    LOCKED = "locked"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """TiKV's answer: the commit_ts of a COMMITTED transaction, the whole TTL of a lock."""

    state: State
    commit_ts: int = 0
    ttl_ms: int = 0
    is_async_commit: bool = False


class Tikv:
    """The stores of a TiDB cluster; for one event loop."""

    def __init__(
        self,
        placement: Placement,
        channels: Channels,
        *,
        timeout_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.placement = placement
        self.timeout_s = timeout_s
        self._channels = channels
        self._monotonic_s = monotonic_s

    async def status(
        self, key: bytes, start_ts: int, current_ts: int, *, forbid: bool = False
    ) -> TransactionStatus:
        """Return the status of the transaction with that primary key; `Retryable` if unknown.

        A lock that has outlived its TTL at `current_ts`, a real timestamp, is rolled back by TiKV;
        with `forbid`, so is a transaction with neither lock nor record. Raises `NeedsOperator` for
        an answer that a retry would not change.
        """
        request = tikvpb_pb2.CheckTxnStatusRequest(
            primary_key=key,
            lock_ts=start_ts,
            current_ts=current_ts,
            rollback_if_not_exist=forbid,
            verify_is_primary=True,
        )
        until_s = self._monotonic_s() + self.timeout_s
        attempt, place, problem = 0, None, ""
        pauses = doubling(_FIRST_PAUSE_S, _PAUSE_S_MAX)
        while (left_s := until_s - self._monotonic_s()) > 0.01:
            try:
                place = place or await self.placement.of(key, attempt, left_s)
                answer = await self._ask(place, request, until_s - self._monotonic_s())
            except Retryable as error:
                place = None
                if not problem or left_s > _SHORT_S:
                    problem = str(error)
            else:
                if not answer.HasField("region_error"):
                    return status_of(answer, start_ts)
                problem = f"{place}: {described(answer.region_error)}"
                place = await self._led(place, answer.region_error, left_s)
                if place is not None and attempt < len(place.region.peers):
                    attempt += 1
                    continue
                place = None
            attempt += 1
            await asyncio.sleep(min(next(pauses), max(until_s - self._monotonic_s(), 0)))
        raise Retryable(f"no answer from TiKV: {problem}", code=Code.RESOLVER_AWAY)

    async def gc_safe_point(self) -> int:
        """Return the timestamp up to which TiKV may have dropped history; `Retryable`."""
        return await self.placement.gc_safe_point(self.timeout_s)

    async def close(self) -> None:
        await self._channels.close()

    async def _ask(
        self, place: Place, request: tikvpb_pb2.CheckTxnStatusRequest, left_s: float
    ) -> tikvpb_pb2.CheckTxnStatusResponse:
        context = tikvpb_pb2.Context(
            region_id=place.region.id, region_epoch=place.region.region_epoch, peer=place.peer
        )
        request.context.CopyFrom(context)
        answer = tikvpb_pb2.CheckTxnStatusResponse
        return await self._channels.call(place.address, _METHOD, request, answer, left_s)

    async def _led(
        self, place: Place, error: tikvpb_pb2.RegionError, left_s: float
    ) -> Place | None:
        if not error.HasField("not_leader") or not error.not_leader.leader.store_id:
            return None
        try:
            return await self.placement.at(place.region, error.not_leader.leader, left_s)
        except Retryable:
            return None


def described(error: tikvpb_pb2.RegionError) -> str:
    kinds = [field.name for field, _ in error.ListFields() if field.name != "message"]
    return ", ".join((*kinds, *filter(None, (error.message,)))) or "a region error of no known kind"


def status_of(answer: tikvpb_pb2.CheckTxnStatusResponse, start_ts: int) -> TransactionStatus:
    """Return the status in an answer without a region error; `NeedsOperator` if there is none."""
    if answer.HasField("error"):
        if answer.error.HasField("txn_not_found"):
            return TransactionStatus(State.ABSENT)
        raise NeedsOperator(
            f"TiKV has an error for transaction {start_ts}:"
            f" {' '.join(str(answer.error).split()) or 'of no known kind'}",
            hint="the Prewrite stays open; look at the log of the TiKV",
            code=Code.TIKV_ANSWER,
        )
    if answer.commit_version:
        if answer.commit_version <= start_ts:
            raise NeedsOperator(
                f"TiKV says that transaction {start_ts} committed at {answer.commit_version}",
                hint="a commit_ts is above the start_ts: are the timestamps of one PD?",
                code=Code.TIKV_ANSWER,
            )
        return TransactionStatus(State.COMMITTED, answer.commit_version)
    if answer.lock_ttl or answer.lock_info.lock_version:
        is_async = answer.lock_info.use_async_commit
        return TransactionStatus(State.LOCKED, ttl_ms=answer.lock_ttl, is_async_commit=is_async)
    if answer.action in _FINAL_ROLLBACKS:
        return TransactionStatus(State.ROLLED_BACK)
    raise NeedsOperator(
        f"TiKV did something unknown, {answer.action}, with transaction {start_ts}",
        hint="the Prewrite stays open; this TiKV is newer than what this Pump knows",
        code=Code.TIKV_ANSWER,
    )
