"""Large transactions: accepts Prewrites that are too large for a message, chunk by chunk.

    WritePiece ──> chunks of 1 MiB ──> group commit, a few at a time among others ──> durable
    after the last byte, when all chunks are durable:  the chunk list, a small separate record

The chunk list is acknowledged, indexed and replayed: see `penstock/log/chunks.py`. A stream that
breaks off leaves meaningless chunks, which go with the next purge of their segment.

Memory is bounded: a handful of streams, each with a few chunks on their way to the disk; further
streams are refused. Time is bounded as well: a sender may be silent for a minute, and may let the
Pump wait altogether for a minute and the time that its bytes take at 64 KiB/s. Other writers wait
no longer than for the chunks that are in the queue before them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from google_crc32c import extend

from penstock.codes import Code
from penstock.errors import Malformed, PenstockError, Retryable
from penstock.log.chunks import (
    DATA_BYTES,
    ChunkList,
    encode_chunk,
    encode_chunk_list,
    head_of,
    parsed_head,
)
from penstock.pb import penstock_pb2 as pb
from penstock.wire.binlog import BinlogType
from pump.counters import Counters
from pump.service.admission import Refused, invalid
from pump.store.record import CHUNK, IN_ONE, ChunkRecord, OutOfSpace, Record
from pump.store.space import IncomingTransaction

if TYPE_CHECKING:
    from pump.service.admission import Admission
    from pump.service.group_commit import GroupCommit, Refusals
    from pump.store.storage import Storage

STREAMS_MAX = 4
"""Large binlogs that are accepted at the same time."""

WIRE_BYTES_MAX = 4 << 20
"""The most bytes that one message may carry."""

_IN_FLIGHT_MAX = 4
_BYTES_PER_S_MIN = 64 << 10
_OnTheWay = tuple[ChunkRecord, "asyncio.Future[Refusals]"]


class LargeWrites:
    """The handler's part of `WriteLarge`; for one event loop."""

    def __init__(
        self,
        storage: Storage,
        group_commit: GroupCommit,
        admission: Admission,
        *,
        bytes_max: int,
        data_bytes: int = DATA_BYTES,
        counters: Counters | None = None,
    ) -> None:
        self._storage = storage
        self._group_commit = group_commit
        self._admission = admission
        self._bytes_max = bytes_max
        self._data_bytes = data_bytes
        self.silence_s_max = 60.0
        self._counters = counters or Counters()

    async def write(self, messages: AsyncIterator[bytes], peer: Callable[[], str]) -> None:
        """Return once the binlog in `messages` is durable; raise `PenstockError` when it is not.

        After an error nothing of the binlog counts, even if chunks were stored. `peer` names the
        sender.
        """
        first = await self._next(messages, self.silence_s_max)
        if first is None:
            raise self._refused("a large binlog without a single chunk")
        self._admission.check_cluster(first.cluster_id, peer)
        self._admission.check_large(first.start_ts, first.bytes, self._bytes_max)
        head = self._head(first)
        incoming = IncomingTransaction(first.start_ts, first.bytes)
        self._check_room(incoming)
        self._storage.incoming.add(incoming)
        try:
            crc = await self._store(incoming, first, messages)
            # It may be closing by now.
            self._admission.check_large(first.start_ts, first.bytes, self._bytes_max)
            chunk_list = ChunkList(
                incoming.start_ts, incoming.size_bytes, crc, tuple(incoming.positions), head
            )
            record = Record(
                BinlogType.PREWRITE,
                incoming.start_ts,
                0,
                encode_chunk_list(chunk_list),
                chunk_list.first_segment,
            )
            await self._group_commit.room()
            await self._group_commit.write([record])
        finally:
            self._storage.incoming.discard(incoming)

    def _head(self, first: pb.WritePiece) -> bytes:
        try:
            head = head_of(first.data, first.bytes)
            fields = parsed_head(head)
        except Malformed as error:
            raise self._refused(str(error)) from error
        if int(fields.tp) != BinlogType.PREWRITE or fields.commit_ts:
            raise self._refused("only a Prewrite can be written in chunks")
        if not 0 < first.start_ts == fields.start_ts:
            raise self._refused(
                f"announced with start_ts {first.start_ts}, but the binlog has {fields.start_ts}"
            )
        try:
            self._admission.check_outbox(fields.prewrite_key)
        except Refused as refused:
            self._counters.refuse(refused)
            raise
        return head

    def _check_room(self, incoming: IncomingTransaction) -> None:
        others = self._storage.incoming
        left_bytes = sum(each.size_bytes - each.stored_bytes for each in others)
        error: PenstockError | None = None
        if len(others) >= STREAMS_MAX:
            error = Retryable(
                f"the Pump is overloaded: {STREAMS_MAX} large transactions are being written",
                Code.PUMP_OVERLOADED,
            )
        else:
            try:
                self._storage.check_space(incoming.size_bytes + left_bytes)
            except OutOfSpace as full:
                error = OutOfSpace(
                    f"{full}; announced are {incoming.size_bytes} bytes, besides"
                    f" {left_bytes} of other large transactions",
                    code=Code.DISK_FULL,
                )
        if error is not None:
            self._counters.refuse(error)
            raise error

    async def _store(
        self, incoming: IncomingTransaction, first: pb.WritePiece, messages: AsyncIterator[bytes]
    ) -> int:
        on_the_way: deque[_OnTheWay] = deque()
        buffer, crc, received, begun = bytearray(), 0, 0, 0
        loop, left_s = asyncio.get_running_loop(), self.silence_s_max
        message: pb.WritePiece | None = first
        while message is not None:
            received += len(message.data)
            if received > incoming.size_bytes:
                raise self._refused(f"more bytes came than the announced {incoming.size_bytes}")
            crc = extend(crc, message.data)
            buffer += message.data
            while len(buffer) >= self._data_bytes or (buffer and received == incoming.size_bytes):
                data = bytes(buffer[: self._data_bytes])
                del buffer[: self._data_bytes]
                payload = encode_chunk(incoming.start_ts, begun, begun * self._data_bytes, data)
                begun += 1
                await self._submit(incoming, payload, on_the_way)
            left_s += len(message.data) / _BYTES_PER_S_MIN
            began_s = loop.time()
            message = await self._next(messages, min(left_s, self.silence_s_max))
            left_s -= loop.time() - began_s
        if received < incoming.size_bytes:
            raise self._refused(f"the stream ended after {received} of {incoming.size_bytes} bytes")
        while on_the_way:
            await self._placed(incoming, *on_the_way.popleft())
        return crc

    async def _submit(
        self, incoming: IncomingTransaction, payload: bytes, on_the_way: deque[_OnTheWay]
    ) -> None:
        if len(on_the_way) >= _IN_FLIGHT_MAX:
            await self._placed(incoming, *on_the_way.popleft())
        await self._group_commit.room()
        record = ChunkRecord(CHUNK, incoming.start_ts, 0, payload, IN_ONE)
        if incoming.first is None:
            incoming.first = record
        on_the_way.append((record, self._group_commit.submit([record])))

    async def _placed(
        self, incoming: IncomingTransaction, record: ChunkRecord, done: asyncio.Future[Refusals]
    ) -> None:
        for refusal in (await done).values():
            raise refusal
        assert record.position is not None, "what is stored has a place"
        incoming.positions.append(record.position)
        incoming.stored_bytes += len(record.payload)

    async def _next(self, messages: AsyncIterator[bytes], within_s: float) -> pb.WritePiece | None:
        """Return the next message, None at the end; raise `Refused` if it is bad or overdue."""
        try:
            async with asyncio.timeout(max(0.0, within_s)):
                data = await anext(messages, None)
        except TimeoutError as error:
            problem = f"no chunk came for {self.silence_s_max:g} s"
            if within_s < self.silence_s_max:
                problem = f"chunks came at less than {_BYTES_PER_S_MIN >> 10} KiB/s"
            raise self._refused(problem) from error
        if data is None:
            return None
        try:
            message = pb.WritePiece.FromString(data)
        except DecodeError as error:
            text = f"undecodable WritePiece of {len(data)} bytes: {error}"
            raise self._refused(text) from error
        if not 0 < len(message.data) <= WIRE_BYTES_MAX:
            raise self._refused(
                f"a chunk of {len(message.data)} bytes: it must have 1 to {WIRE_BYTES_MAX}"
            )
        return message

    def _refused(self, problem: str) -> PenstockError:
        refused = invalid(problem)
        self._counters.refuse(refused)
        return refused
