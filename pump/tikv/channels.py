"""Channels: gRPC to the PDs and stores of a TiDB cluster, one for each address, opened when needed.

A failed channel is thrown away; the next one resolves the name and reads the certificates again. An
address that did not answer is not asked for a second, so that many questions to it cost the time of
one.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.oracle.pd import CHANNEL_OPTIONS
from penstock.security.refusal import refusal_of
from penstock.security.tls import Tls, open_aio_channel

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
            raise Retryable(known[1], code=Code.RESOLVER_AWAY)
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
            self._note_away(address, error.code(), timeout_s, why)
            if refusal := await self._refusal(address, error):
                raise refusal from error
            raise Retryable(why, code=Code.RESOLVER_AWAY) from error
        finally:
            channel.calls -= 1
            await _close_unused(channel)
        self._away.pop(address, None)
        return found

    async def close(self) -> None:
        """Close all channels, even with calls in progress."""
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

    def _note_away(self, address: str, code: Any, timeout_s: float, why: str) -> None:
        is_slow = code is grpc.StatusCode.DEADLINE_EXCEEDED and timeout_s >= _SLOW_S
        if is_slow or code is grpc.StatusCode.UNAVAILABLE:
            if len(self._away) >= _OPEN_MAX:
                self._away.clear()
            self._away[address] = (self._monotonic_s() + _AWAY_S, why)

    async def _refusal(self, address: str, error: Any) -> NeedsOperator | None:
        if self._tls is None:
            return None
        return await asyncio.to_thread(refusal_of, address, self._tls, error)


async def _close_unused(channel: _Channel) -> None:
    if channel.is_given_up and channel.calls == 0:
        await channel.grpc.close()
