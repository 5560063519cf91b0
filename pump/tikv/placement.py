"""Placement: finds the current place of a key, and TiKV's GC safe point, by asking PD.

    key ── memcomparable ── GetRegion ──> region, its epoch, the peer that leads it
                            GetStore  ──> that peer's store: host:port

Little of it is cached, because only stuck transactions are asked about, and regions split, merge
and move. A store's address is kept for a second, for the many questions after a TiDB has died. The
leader of the PDs is kept until a PD does not answer or has an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.codes import Code
from penstock.errors import PenstockError, Retryable
from penstock.oracle.pd import PdLeader
from penstock.pb import metapb_pb2, pdpb_pb2
from pump.tikv.channels import Channels
from pump.tikv.keys import memcomparable

_FIND_S_MAX = 1.0
_FAILURE_STANDS_S = 1.0
_ADDRESS_STANDS_S = 1.0
_ADDRESSES_MAX = 1024

Answer = TypeVar("Answer")


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
            raise Retryable(f"PD knows no region of the key {key.hex()}", code=Code.RESOLVER_AWAY)
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
            raise Retryable(
                f"PD knows no address of store {peer.store_id}", code=Code.RESOLVER_AWAY
            )
        if len(self._addresses) >= _ADDRESSES_MAX:
            self._addresses.clear()
        self._addresses[peer.store_id] = (self._monotonic_s() + _ADDRESS_STANDS_S, address)
        return Place(region, peer, address)

    async def gc_safe_point(self, left_s: float) -> int:
        """Return the timestamp up to which TiKV may have dropped all but the newest versions."""
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
                    f"PD at {address} refuses {method}: {header.error.message}",
                    code=Code.RESOLVER_AWAY,
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
                raise Retryable(str(self._failed[1]), code=Code.RESOLVER_AWAY)
            try:
                each_s = max(min(left_s, _FIND_S_MAX), 0.01)
                self._leader = await asyncio.to_thread(self._find_leader, each_s)
            except PenstockError as error:
                self._failed = (self._monotonic_s() + _FAILURE_STANDS_S, error)
                raise
            self._failed = None
            return self._leader
