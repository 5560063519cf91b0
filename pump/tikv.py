"""TiKV: asks the PD and the TiKV of a TiDB cluster for the status of a transaction.

*Keys.* A key of TiDB is bytes that it chose for their sort order:

    row      t  table id, 8 bytes   _r  handle
    index    t  table id, 8 bytes   _i  index id, values
    meta     m  a name, memcomparable   …                      where DDL jobs are kept

PD and TiKV put another encoding around all keys, memcomparable, in which no key is a prefix of
another key: groups of 8 bytes, the last padded with zeros, each followed by 255 less the number
of bytes of padding. A key of a multiple of 8 bytes, including the empty key, ends with a group of
padding only:

    a b c                  a b c 0 0 0 0 0  250
    a b c d e f g h        a b c d e f g h  255  0 0 0 0 0 0 0 0  247

*Channels* of gRPC lead to the PDs and stores, one for each address, opened when needed. A failed
channel is thrown away; the next one resolves the name and reads the certificates again. An address
that did not answer is not asked for a second, so that many questions to it cost the time of one.

*Placement* asks PD for the current place of a key, and for TiKV's GC safe point:

    key ── memcomparable ── GetRegion ──> region, its epoch, the peer that leads it
                            GetStore  ──> that peer's store: host:port

Little of it is cached, because only stuck transactions are asked about, and regions split, merge
and move. A store's address is kept for a second, for the many questions after a TiDB has died. The
leader of the PDs is kept until a PD does not answer or has an error.

*Transaction status*, asked at the transaction's primary key:

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
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import grpc

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.oracle.client import CHANNEL_OPTIONS, PdLeader
from penstock.pb import metapb_pb2, pdpb_pb2, tikvpb_pb2
from penstock.security.refusal import refusal_of
from penstock.security.tls import Tls, open_aio_channel
from penstock.waiting import doubling

_GROUP_BYTES = 8
_FULL = 0xFF
_TABLE_PREFIX_BYTES = 9
_META_MARK_AT = 1 + _GROUP_BYTES


def memcomparable(key: bytes) -> bytes:
    encoded = bytearray()
    for begin in range(0, len(key) + 1, _GROUP_BYTES):
        group = key[begin : begin + _GROUP_BYTES]
        encoded += group.ljust(_GROUP_BYTES, b"\0")
        encoded.append(_FULL - (_GROUP_BYTES - len(group)))
    return bytes(encoded)


def is_of_tidb(key: bytes) -> bool:
    """Return whether a Prewrite's key is made by TiDB.

    No key of an outbox is, and no text: the bytes at the end of a meta key's first group occur in
    no UTF-8.
    """
    if key[:1] == b"t":
        kind = key[_TABLE_PREFIX_BYTES : _TABLE_PREFIX_BYTES + 2]
        return kind in (b"_r", b"_i") and len(key) > _TABLE_PREFIX_BYTES + 2
    mark = key[_META_MARK_AT : _META_MARK_AT + 1]
    return key[:1] == b"m" and mark >= bytes((_FULL - _GROUP_BYTES,))


_OPEN_MAX = 64
_AWAY_S = 1.0
_SLOW_S = 0.5
"""A node that had less time than this to answer is not taken for unreachable."""

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Channel:
    """A gRPC channel; closing it would cancel the calls of others in progress on it."""

    grpc: Any
    calls: int = 0
    is_given_up: bool = False


class Channels:
    """The open channels; for one event loop."""

    def __init__(
        self, tls: Tls | None, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._tls = tls
        self._monotonic_s = monotonic_s
        self._open: OrderedDict[str, _Channel] = OrderedDict()
        self._away: dict[str, tuple[float, str]] = {}

    async def call(
        self, address: str, method: str, request: Any, answer: type[Answer], timeout_s: float
    ) -> Answer:
        """Return the answer of the node at `address`; raise `Retryable` when it does not answer.

        Raises `NeedsOperator` when it refuses our certificate, or we refuse its certificate.
        """
        known = self._away.get(address)
        if known is not None and self._monotonic_s() < known[0]:
            raise Retryable(known[1], Code.RESOLVER_AWAY)
        channel = self._channel(address)
        call = channel.grpc.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,  # type: ignore[attr-defined]
        )
        channel.calls += 1
        try:
            found: Answer = await call(request, timeout=timeout_s)
        except grpc.RpcError as error:
            self._give_up(address, channel)
            why = f"{address} does not answer {method}: {error.code().name}: {error.details()}"
            code = error.code()
            is_slow = code is grpc.StatusCode.DEADLINE_EXCEEDED and timeout_s >= _SLOW_S
            if is_slow or code is grpc.StatusCode.UNAVAILABLE:
                if len(self._away) >= _OPEN_MAX:
                    self._away.clear()
                self._away[address] = (self._monotonic_s() + _AWAY_S, why)
            if self._tls is not None:
                refusal = await asyncio.to_thread(refusal_of, address, self._tls, error)
                if refusal is not None:
                    raise refusal from error
            raise Retryable(why, Code.RESOLVER_AWAY) from error
        finally:
            channel.calls -= 1
            if channel.is_given_up and channel.calls == 0:
                await channel.grpc.close()
        self._away.pop(address, None)
        return found

    async def close(self) -> None:
        while self._open:
            await self._open.popitem()[1].grpc.close()

    def _channel(self, address: str) -> _Channel:
        channel = self._open.get(address)
        if channel is None:
            channel = _Channel(open_aio_channel(address, self._tls, CHANNEL_OPTIONS))
            self._open[address] = channel
            if len(self._open) > _OPEN_MAX:
                oldest = next(iter(self._open))
                self._give_up(oldest, self._open[oldest])
        self._open.move_to_end(address)
        return channel

    def _give_up(self, address: str, channel: _Channel) -> None:
        channel.is_given_up = True
        if self._open.get(address) is channel:
            del self._open[address]


_FIND_S_MAX = 1.0
_FAILURE_STANDS_S = 1.0
_ADDRESS_STANDS_S = 1.0
_ADDRESSES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Place:
    """A region, and the peer of it to ask, with the address of its store."""

    region: metapb_pb2.Region
    peer: metapb_pb2.Peer
    address: str

    def __str__(self) -> str:
        return f"region {self.region.id} at {self.address}"


class Placement:
    """Asks the leading PD; for one event loop."""

    def __init__(
        self,
        find_leader: PdLeader,
        channels: Channels,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_leader = find_leader
        self._channels = channels
        self._monotonic_s = monotonic_s
        self._leader: tuple[str, int] | None = None
        self._finding = asyncio.Lock()
        self._failed: tuple[float, PenstockError] | None = None
        self._addresses: dict[int, tuple[float, str]] = {}

    async def of(self, key: bytes, attempt: int, left_s: float) -> Place:
        """Return the place of `key`; `Retryable` when no PD knows it.

        If PD knows no leader of the region, `attempt` selects one of its peers.
        """
        until_s = self._monotonic_s() + left_s
        request = pdpb_pb2.GetRegionRequest(region_key=memcomparable(key))
        found = await self._ask("GetRegion", request, pdpb_pb2.GetRegionResponse, left_s)
        if not found.region.id or not found.region.peers:
            raise Retryable(f"PD knows no region of the key {key.hex()}", Code.RESOLVER_AWAY)
        peer = found.leader
        if not peer.store_id:
            peer = found.region.peers[attempt % len(found.region.peers)]
        return await self.at(found.region, peer, until_s - self._monotonic_s())

    async def at(self, region: metapb_pb2.Region, peer: metapb_pb2.Peer, left_s: float) -> Place:
        """Return the place of a known peer; `Retryable` if no PD knows its store."""
        known = self._addresses.get(peer.store_id)
        if known is not None and self._monotonic_s() < known[0]:
            return Place(region, peer, known[1])
        request = pdpb_pb2.GetStoreRequest(store_id=peer.store_id)
        found = await self._ask("GetStore", request, pdpb_pb2.GetStoreResponse, left_s)
        address = found.store.address
        if not address:
            raise Retryable(f"PD knows no address of store {peer.store_id}", Code.RESOLVER_AWAY)
        if len(self._addresses) >= _ADDRESSES_MAX:
            self._addresses.clear()
        self._addresses[peer.store_id] = (self._monotonic_s() + _ADDRESS_STANDS_S, address)
        return Place(region, peer, address)

    async def gc_safe_point(self, left_s: float) -> int:
        request, answer = pdpb_pb2.GetGCSafePointRequest(), pdpb_pb2.GetGCSafePointResponse
        found = await self._ask("GetGCSafePoint", request, answer, left_s)
        return int(found.safe_point)

    async def _ask(self, method: str, request: Any, answer: type[Answer], left_s: float) -> Answer:
        until_s = self._monotonic_s() + left_s
        address, cluster_id = await self._led_by(left_s)
        request.header.cluster_id = cluster_id
        try:
            found = await self._channels.call(
                address, f"/pdpb.PD/{method}", request, answer, until_s - self._monotonic_s()
            )
            header = found.header  # type: ignore[attr-defined]
            if header.error.type:
                raise Retryable(
                    f"PD at {address} refuses {method}: {header.error.message}", Code.RESOLVER_AWAY
                )
        except PenstockError:
            self._leader = None
            raise
        return found

    async def _led_by(self, left_s: float) -> tuple[str, int]:
        """Return the leader, found by one task for all; a failure is cached for a second."""
        async with self._finding:
            if self._leader is not None:
                return self._leader
            if self._failed is not None and self._monotonic_s() < self._failed[0]:
                raise Retryable(str(self._failed[1]), Code.RESOLVER_AWAY)
            try:
                each_s = max(min(left_s, _FIND_S_MAX), 0.01)
                self._leader = await asyncio.to_thread(self._find_leader, each_s)
            except PenstockError as error:
                self._failed = (self._monotonic_s() + _FAILURE_STANDS_S, error)
                raise
            self._failed = None
            return self._leader


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
                leader, region, place = answer.region_error.not_leader.leader, place.region, None
                if leader.store_id:
                    with suppress(Retryable):
                        place = await self.placement.at(region, leader, left_s)
                if place is not None and attempt < len(region.peers):
                    attempt += 1
                    continue
                place = None
            attempt += 1
            await asyncio.sleep(min(next(pauses), max(until_s - self._monotonic_s(), 0)))
        raise Retryable(f"no answer from TiKV: {problem}", Code.RESOLVER_AWAY)

    async def gc_safe_point(self) -> int:
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
            "the Prewrite stays open; look at the log of the TiKV",
            Code.TIKV_ANSWER,
        )
    if answer.commit_version:
        if answer.commit_version <= start_ts:
            raise NeedsOperator(
                f"TiKV says that transaction {start_ts} committed at {answer.commit_version}",
                "a commit_ts is above the start_ts: are the timestamps of one PD?",
                Code.TIKV_ANSWER,
            )
        return TransactionStatus(State.COMMITTED, answer.commit_version)
    if answer.lock_ttl or answer.lock_info.lock_version:
        is_async = answer.lock_info.use_async_commit
        return TransactionStatus(State.LOCKED, ttl_ms=answer.lock_ttl, is_async_commit=is_async)
    if answer.action in _FINAL_ROLLBACKS:
        return TransactionStatus(State.ROLLED_BACK)
    raise NeedsOperator(
        f"TiKV did something unknown, {answer.action}, with transaction {start_ts}",
        "the Prewrite stays open; this TiKV is newer than what this Pump knows",
        Code.TIKV_ANSWER,
    )
