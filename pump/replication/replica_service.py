"""Replica service: `penstock.Replica`, the calls of Pumps to a Pump that has the same log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from penstock.codes import Code
from penstock.errors import PenstockError, Retryable, code_fields, coded
from penstock.http2.grpc_front import GrpcFront
from penstock.http2.unary import Reply
from penstock.pb import penstock_pb2 as pb
from pump.replication.protocol.messages import (
    FOLLOW_METHOD,
    Answer,
    Name,
    Prepend,
    decode_read,
    decode_request,
    encode_answer,
    encode_bytes,
    link_of,
)
from pump.replication.replicas import Replicas
from pump.service.admission import invalid, undecodable
from pump.service.grpc_server import abort, add_service, status_of

if TYPE_CHECKING:
    from penstock.http2.unary import UnaryCall


log = logging.getLogger(__name__)

REPLICA_SERVICE = "penstock.Replica"
_SILENCE_S_MAX = 60.0
"""The time-out for the next piece of a segment; a live primary sends it without delay."""


class ReplicaService:
    """The handlers of `penstock.Replica`."""

    def __init__(self, logs: Replicas) -> None:
        self._logs = logs

    def add_to(self, server: Any) -> None:
        add_service(server, REPLICA_SERVICE, self.methods())
        if isinstance(server, GrpcFront):
            server.add_fast_unary(FOLLOW_METHOD, self.follow_fast)

    def methods(self) -> dict[str, Any]:
        return {
            "Follow": grpc.unary_unary_rpc_method_handler(self.follow),
            "Prepend": grpc.stream_unary_rpc_method_handler(self.prepend),
            "Read": grpc.unary_unary_rpc_method_handler(self.read),
        }

    async def follow(self, data: bytes, context: Any) -> bytes:
        """Answer once the request is executed and its data is on disk."""
        try:
            name, request, sent = decode_request(data)
        except DecodeError as error:
            await abort(context, undecodable(pb.FollowRequest, data, error))
        except PenstockError as error:
            await abort(context, error)
        try:
            begun = self._logs.begin(name, request, sent)
            answer = await begun if isinstance(begun, asyncio.Future) else begun
        except (PenstockError, OSError) as error:
            await abort(context, error)
        return encode_answer(request.epoch, answer)

    def follow_fast(self, data: bytes, call: UnaryCall) -> None:
        """Do as `follow` does, on the fast path: no task for each group of each log."""
        try:
            name, request, sent = decode_request(data)
            begun = self._logs.begin(name, request, sent)
        except DecodeError as error:
            _fail(call, undecodable(pb.FollowRequest, data, error))
        except (PenstockError, OSError) as error:
            _fail(call, error)
        else:
            if isinstance(begun, asyncio.Future):
                begun.add_done_callback(partial(_settle, call, request.epoch))
            else:
                call.answer(Reply(encode_answer(request.epoch, begun)))

    async def prepend(self, messages: AsyncIterable[bytes], context: Any) -> bytes:
        """Answer once the whole segment is on disk, before the first segment."""
        pieces = _pieces(aiter(messages))
        try:
            first = await anext(pieces, None)
            if first is None:
                raise invalid("a call without a piece of a segment")
            request = Prepend(first.epoch, link_of(first.link))
            answer = await self._logs.prepend(Name.of(first.log), request, _contents(first, pieces))
        except (PenstockError, OSError) as error:
            await abort(context, error)
        return encode_answer(request.epoch, answer)

    async def read(self, data: bytes, context: Any) -> bytes:
        try:
            name, wanted = decode_read(data)
        except DecodeError as error:
            await abort(context, undecodable(pb.ReadRequest, data, error))
        try:
            found = await self._logs.read(name, wanted)
        except (PenstockError, OSError) as error:
            await abort(context, error)
        return encode_bytes(found)


def _settle(call: UnaryCall, epoch: int, done: asyncio.Future[Answer]) -> None:
    error = asyncio.CancelledError() if done.cancelled() else done.exception()
    if error is None:
        call.answer(Reply(encode_answer(epoch, done.result())))
    else:
        _fail(call, error)


def _fail(call: UnaryCall, error: BaseException) -> None:
    if not isinstance(error, PenstockError | OSError | asyncio.CancelledError):
        log.error("Follow failed", exc_info=error)
    call.fail(status_of(error), coded(error), code_fields(error))


async def _pieces(messages: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    while True:
        try:
            data = await asyncio.wait_for(anext(messages), _SILENCE_S_MAX)
            yield pb.PrependPiece.FromString(data)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise Retryable(
                f"no piece of the segment came for {_SILENCE_S_MAX:.0f} s", Code.COPY_NOT_FOLLOWED
            ) from error
        except DecodeError as error:
            raise undecodable(pb.PrependPiece, data, error) from error


async def _contents(first: Any, pieces: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    yield first.data
    async for piece in pieces:
        yield piece.data
