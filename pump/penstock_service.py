"""Penstock service: `penstock.Pump`, with batched writes and pulls, and the operator's commands.

A unary call costs this server some 200 µs whatever it carries, a binlog in a batch a few. Batches
of one stream are pipelined: the next is read and queued while the one before is on its way to the
disk; acknowledgements leave in the order of the batches.

    Write:  read ──> admit ──> group commit ──> answers (bounded queue) ──> durable ──> WriteAck
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, Message

from penstock.errors import NeedsOperator, PenstockError, Retryable, coded
from penstock.log.chunks import DATA_BYTES
from penstock.pb import binlog_pb2
from penstock.pb import penstock_pb2 as pb
from penstock.wire.batch import decode_write_batch, encode_pull_batch, encode_pull_piece
from penstock.wire.binlog import BinlogType
from pump.service.admission import Refused, invalid, undecodable
from pump.service.decided_writes import SchemaChanged
from pump.service.grpc_server import abort, parsed
from pump.store.record import OutOfSpace

if TYPE_CHECKING:
    from pump.operator import Operator
    from pump.service.admission import Admission
    from pump.service.decided_writes import DecidedWrites
    from pump.service.group_commit import GroupCommit, Refusals
    from pump.service.large_transactions import LargeWrites
    from pump.service.pull_binlogs import Pulls
    from pump.store.stream import Pulled

log = logging.getLogger(__name__)

_COMMIT = int(BinlogType.COMMIT)
_BATCHES_IN_FLIGHT_MAX = 32


@dataclass(slots=True)
class _Answer:
    """A batch on its way to the disk: `taken` are the positions of the queued binlogs."""

    seq: int
    refusals: list[pb.Refusal] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    done: asyncio.Future[Refusals] | None = None


class PenstockService:
    """The handlers of `penstock.Pump`."""

    def __init__(
        self,
        group_commit: GroupCommit,
        large: LargeWrites,
        decided: DecidedWrites,
        pulls: Pulls,
        admission: Admission,
        operator: Operator,
    ) -> None:
        self._group_commit = group_commit
        self._large = large
        self._decided = decided
        self._pulls = pulls
        self._admission = admission
        self._operator = operator
        self.whole_bytes_max = 16 << 20
        """A binlog that is larger is sent in chunks, even if it was stored in one frame."""
        self.chunk_bytes = DATA_BYTES

    def methods(self) -> dict[str, Any]:
        return {
            "Write": grpc.stream_stream_rpc_method_handler(self.write),
            "WriteLarge": grpc.stream_unary_rpc_method_handler(self.write_large),
            "WriteDecided": grpc.unary_unary_rpc_method_handler(self.write_decided),
            "Pull": grpc.unary_stream_rpc_method_handler(self.pull),
            "Fetch": grpc.unary_stream_rpc_method_handler(self.fetch),
            "Advance": grpc.unary_unary_rpc_method_handler(self.advance),
            "Status": grpc.unary_unary_rpc_method_handler(self.status),
            "Pause": self._command(pb.PauseRequest, self._pause),
            "Close": self._command(pb.CloseRequest, self._close),
            "MoveLog": self._command(pb.MoveLogRequest, self._move_log),
            "TriggerGc": self._command(pb.TriggerGcRequest, self._trigger_gc),
            "Scrub": self._command(pb.ScrubRequest, self._scrub),
        }

    async def write(self, requests: AsyncIterable[bytes], context: Any) -> None:
        """Acknowledge the batches one by one, each once its binlogs are durable or refused."""
        answers: asyncio.Queue[_Answer | None] = asyncio.Queue(_BATCHES_IN_FLIGHT_MAX)
        reading = asyncio.create_task(self._read(requests, context, answers))
        try:
            while (answer := await answers.get()) is not None:
                await self._until_durable(answer)
                ack = pb.WriteAck(seq=answer.seq, refusals=answer.refusals)
                await context.write(ack.SerializeToString())
            await reading
        finally:
            reading.cancel()

    async def _read(
        self, requests: AsyncIterable[bytes], context: Any, answers: asyncio.Queue[_Answer | None]
    ) -> None:
        try:
            async for data in requests:
                try:
                    cluster_id, seq, payloads = decode_write_batch(data)
                except DecodeError as error:
                    await abort(context, undecodable(pb.WriteBatch, data, error))
                del data  # The payloads are copies; a large batch need not be kept twice.
                await self._group_commit.room()
                await answers.put(self._accept(cluster_id, seq, payloads, context.peer))
        except Exception:
            await answers.put(None)  # Not when cancelled: no one takes answers then.
            raise
        await answers.put(None)

    def _accept(
        self, cluster_id: int, seq: int, payloads: Sequence[bytes], peer: Callable[[], str]
    ) -> _Answer:
        """Queue the binlogs that can be stored; never awaits, so that batches keep their order."""
        answer = _Answer(seq)
        try:
            self._admission.check_cluster(cluster_id, peer)
        except Refused as refused:
            answer.refusals = [_refusal(i, refused) for i in range(len(payloads))]
            return answer
        records = []
        admit = self._admission.admit
        for index, payload in enumerate(payloads):
            try:
                record = admit(payload)
            except PenstockError as error:
                answer.refusals.append(_refusal(index, error))
                continue
            if record is not None:
                records.append(record)
                answer.taken.append(index)
        if records:
            answer.done = self._group_commit.submit(records)
        return answer

    async def _until_durable(self, answer: _Answer) -> None:
        if answer.done is None:
            return
        try:
            refused = await answer.done
        except (PenstockError, OSError) as error:
            answer.refusals += [_refusal(index, error) for index in answer.taken]
        else:
            answer.refusals += [_refusal(answer.taken[i], why) for i, why in refused.items()]
        answer.refusals.sort(key=lambda refusal: refusal.index)

    async def write_large(self, messages: AsyncIterable[bytes], context: Any) -> bytes:
        """Answer once the chunked binlog is durable, or with the reason why it is not."""
        ack = pb.WriteAck()
        try:
            await self._large.write(aiter(messages), context.peer)
        except (PenstockError, OSError) as error:
            ack.refusals.append(_refusal(0, error))
        return ack.SerializeToString()

    async def write_decided(self, data: bytes, context: Any) -> bytes:
        """Answer with the commit_ts once all transactions are durable, or with the reason."""
        batch, reply = await parsed(context, pb.DecidedBatch, data), pb.DecidedReply()
        try:
            self._admission.check_cluster(batch.cluster_id, context.peer)
            if batch.payloads:
                written = await self._decided.write(batch.schema_version, batch.payloads)
                reply.commit_ts.extend(written)
        except (PenstockError, OSError) as error:
            reply.refusal.CopyFrom(_refusal(0, error))
        return reply.SerializeToString()

    async def pull(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        request = await parsed(context, pb.PullRequest, data)
        metadata = Metadata() if request.metadata_only else None
        pieces = request.pieces
        try:
            self._admission.check_cluster(request.cluster_id, context.peer)
            name = request.drainer_id or context.peer()
            batches = self._pulls.batches(
                name, request.after_ts, request.batch_bytes_max, pauses=request.metadata_only
            )
            async with aclosing(batches):
                async for pulled in batches:
                    is_whole = metadata is None or self._is_cut(pulled, pieces)
                    if metadata is not None and not is_whole:
                        metadata.add(pulled)
                        if metadata.size_bytes < METADATA_BYTES and pulled.commit_ts:
                            continue
                    if metadata:
                        yield metadata.taken()
                    if is_whole:
                        async for message in self._messages(pulled, pieces):
                            yield message
        except (PenstockError, OSError) as error:
            if metadata:
                yield metadata.taken()
            await abort(context, error)

    def _is_cut(self, pulled: Pulled, pieces: bool) -> bool:
        """Return whether one of the binlogs is sent in pieces."""
        pairs = zip(pulled.prewrites, pulled.outcomes, strict=True)
        return pulled.large is not None or (
            pieces and any(len(one) + len(end) > self.whole_bytes_max for one, end in pairs)
        )

    async def _messages(self, pulled: Pulled, pieces: bool) -> AsyncIterator[bytes]:
        large, offset = pulled.large, 0
        if large is not None and pieces:
            async for chunk in self._pulls.chunks(large):
                yield encode_pull_piece(large.commit_ts, large.size_bytes, offset, chunk)
                offset += len(chunk)
        elif large is not None:
            yield encode_pull_batch([large.commit_ts], [await self._pulls.whole(large)], [b""])
        elif self._is_cut(pulled, pieces):
            for message in self._cut(pulled.commit_ts, pulled.payloads):
                yield message
        else:
            yield encode_pull_batch(pulled.commit_ts, pulled.prewrites, pulled.outcomes)

    async def fetch(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        request = await parsed(context, pb.FetchRequest, data)
        try:
            self._admission.check_cluster(request.cluster_id, context.peer)
            wanted = list(request.commit_ts)
            if wanted != sorted(set(wanted)):
                raise invalid("the commit_ts to fetch do not rise")
            name = request.drainer_id or context.peer()
            async with aclosing(self._pulls.fetched(name, wanted)) as batches:
                async for pulled in batches:
                    yield encode_pull_batch(pulled.commit_ts, pulled.prewrites, pulled.outcomes)
        except (PenstockError, OSError) as error:
            await abort(context, error)

    async def advance(self, data: bytes, context: Any) -> bytes:
        """Have a watermark sent soon, unless the stream has passed the requested time."""
        request = await parsed(context, pb.AdvanceRequest, data)
        try:
            self._admission.check_cluster(request.cluster_id, context.peer)
        except Refused as error:
            await abort(context, error)
        self._pulls.ask(request.past_ts)
        return pb.AdvanceReply().SerializeToString()

    async def status(self, data: bytes, context: Any) -> bytes:
        await parsed(context, pb.StatusRequest, data)
        reply = self._operator.status()
        if ddl_ts := reply.newest_ddl.commit_ts:
            reply.newest_ddl.query = await asyncio.to_thread(self._operator.query_of, ddl_ts)
        return reply.SerializeToString()

    def _command(self, kind: type[Message], run: Callable[[Any], Awaitable[Message]]) -> Any:
        async def handle(data: bytes, context: Any) -> bytes:
            request = await parsed(context, kind, data)
            try:
                return (await run(request)).SerializeToString()
            except PenstockError as error:
                await abort(context, error)

        return grpc.unary_unary_rpc_method_handler(handle)

    async def _pause(self, request: pb.PauseRequest) -> pb.PauseReply:
        """Answer once the Pump refuses Prewrites; it ends soon after."""
        await self._operator.pause(request.node_id)
        return pb.PauseReply()

    async def _close(self, request: pb.CloseRequest) -> pb.CloseReply:
        """Answer once the Pump refuses Prewrites; it ends when all Drainers have everything."""
        skipped, empty_disk = request.skip_drainers, request.empty_disk
        await self._operator.close(request.node_id, skipped, empty_disk=empty_disk)
        return pb.CloseReply()

    async def _move_log(self, request: pb.MoveLogRequest) -> pb.MoveLogReply:
        return pb.MoveLogReply(to=await self._operator.move_log(request.node_id, request.to))

    async def _trigger_gc(self, request: pb.TriggerGcRequest) -> pb.TriggerGcReply:
        return pb.TriggerGcReply(message=await self._operator.trigger_gc())

    async def _scrub(self, request: pb.ScrubRequest) -> pb.ScrubReply:
        return pb.ScrubReply(message=self._operator.scrub(request.node_id))

    def _cut(self, stamps: Sequence[int], payloads: Sequence[bytes]) -> Iterator[bytes]:
        for commit_ts, payload in zip(stamps, payloads, strict=True):
            if len(payload) <= self.whole_bytes_max:
                yield encode_pull_batch([commit_ts], [payload], [b""])
                continue
            for offset in range(0, len(payload), self.chunk_bytes):
                chunk = payload[offset : offset + self.chunk_bytes]
                yield encode_pull_piece(commit_ts, len(payload), offset, chunk)


def _refusal(index: int, error: BaseException) -> pb.Refusal:
    return pb.Refusal(index=index, code=_code(error), message=coded(error))  # type: ignore[arg-type]


def _code(error: BaseException) -> int:
    if isinstance(error, Refused):
        return error.refusal
    if isinstance(error, SchemaChanged):
        return pb.Refusal.SCHEMA_CHANGED
    if isinstance(error, OutOfSpace):
        return pb.Refusal.RESOURCE_EXHAUSTED
    if isinstance(error, Retryable):
        return pb.Refusal.RETRYABLE
    return pb.Refusal.INVALID if isinstance(error, NeedsOperator) else pb.Refusal.RETRYABLE


METADATA_BYTES = 64 << 10
"""A message of metadata grows to this size before it is sent, unless the puller has all of it."""
_METADATA_SIZE = 24


class Metadata:
    """The next `PullBatch` with metadata for a Drainer whose tasks fetch the rows.

        rows only                 its size and its start_ts
        rows passed on (origin)   the same, and the binlog without its row changes
        DDL, fake binlogs         the whole binlog, size 0

    An invalid binlog is sent whole, and its reader reports the error. The payloads are read for
    this, because no index knows whether a Prewrite is a DDL.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._batch = pb.PullBatch()

    def __len__(self) -> int:
        return len(self._batch.commit_ts)

    def add(self, pulled: Pulled) -> None:
        if pulled.commit_ts:
            heads, sizes, start_ts = zip(*map(_metadata, pulled.payloads), strict=True)
            batch = self._batch
            batch.payloads.extend(heads)
            batch.commit_ts.extend(pulled.commit_ts)
            batch.sizes.extend(sizes)
            batch.start_ts.extend(start_ts)
            self.size_bytes += sum(map(len, heads)) + _METADATA_SIZE * len(heads)

    def taken(self) -> bytes:
        message = self._batch.SerializeToString()
        self._batch.Clear()
        self.size_bytes = 0
        return message


def _metadata(payload: bytes) -> tuple[bytes, int, int]:
    """Return the part of a payload to send, its size unless that is all, and its start_ts."""
    try:
        binlog = binlog_pb2.Binlog.FromString(payload)
    except DecodeError:
        return payload, 0, 0
    start_ts = binlog.start_ts
    if binlog.tp != _COMMIT or binlog.ddl_job_id > 0 or binlog.ddl_query:
        return payload, 0, start_ts
    if not binlog.HasField("origin"):
        return b"", len(payload), start_ts
    binlog.ClearField("prewrite_value")
    return binlog.SerializeToString(), len(payload), start_ts
