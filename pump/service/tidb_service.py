"""TiDB service: `binlog.Pump`, as TiDB-Binlog's clients and Drainers call it, one binlog a call.

`WriteBinlog` has a second handler, for our own server's fast path, without a task or a
future per call:

    calls ──> gathered ──> admit each ──> one submission ──> group commit ──> answer each
                               └─ refused: answered immediately

The calls of one turn of the event loop are admitted and submitted together in the next turn, and
the append starts in that same turn. Statuses, texts and counters are those of the other handler,
`TidbService.write_binlog`.

Merged binlogs are encoded as messages of `PullBinlogs`, a whole batch in one buffer:

    00 length u32   0a length        12 length  Prewrite  Commit   22 length  08 start 10 commit
    gRPC's prefix   PullBinlogResp   Entity: the payload           its Meta, two timestamps

Protobuf would parse each payload for its start_ts and copy it four times, at three times the cost
of the rest of a pull. Here a payload is copied once, by the join of all payloads, and the
timestamps are not even decoded: a Commit has both as varints in its first fields, exactly as Meta
needs them. Any other form of a Commit is left to protobuf; the bytes are the same.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc

from penstock.errors import PenstockError, code_fields, coded
from penstock.http2.frames import MESSAGE_HEAD
from penstock.http2.unary import MessageBlock, Reply
from penstock.pb import binlog_pb2, pump_pb2
from penstock.wire.protowire import encode_uvarint
from pump.counters import Counters
from pump.service.grpc_server import abort, parsed, status_of

if TYPE_CHECKING:
    from penstock.http2.unary import MessageBlock, UnaryCall
    from pump.service.admission import Admission
    from pump.service.group_commit import GroupCommit, Refusals
    from pump.service.pull_binlogs import Pulls
    from pump.store.record import Record


_VARINT = rb"([\x80-\xff]{0,8}[\x01-\x7f])"
_BEGINNING = re.compile(
    rb"\x08[\x00-\x7f]\x10" + _VARINT + rb"\x18" + _VARINT + rb"(?:\x22([\x00-\x7f]))?", re.DOTALL
)
"""type, start_ts, commit_ts, and the length of the prewrite_key, which a TiDB's Commits have."""

_ZEROES = b"\x38\x00\x40\x00"
"""ddl_job_id and ddl_schema_state, which a TiDB writes even where they are zero."""

_COMMIT_TS = b"\x10"


def encode_entities(
    commit_ts: Sequence[int], prewrites: Sequence[bytes], outcomes: Sequence[bytes]
) -> MessageBlock:
    """Return a `PullBinlogResp` for each merged binlog: a Prewrite's bytes, then its Commit's.

    `outcomes` must be well-formed; `prewrites` may be empty, such as those of fake binlogs.
    """
    parts: list[bytes] = []
    frames: dict[tuple[int, int], tuple[bytes, bytes]] = {}  # Many are alike.
    begins = _BEGINNING.match
    for ts, prewrite, outcome in zip(commit_ts, prewrites, outcomes, strict=True):
        found = begins(outcome)
        if found:
            start, commit, key = found.groups()
            left = len(outcome) - found.end() - (key[0] if key else 0)
        if not found or (left and (left != len(_ZEROES) or not outcome.endswith(_ZEROES))):
            payload = prewrite + outcome
            start_ts = binlog_pb2.Binlog.FromString(payload).start_ts
            message = encode_entity(start_ts, ts, payload)
            parts += (MESSAGE_HEAD.pack(0, len(message)), message)
            continue
        sizes = len(prewrite) + len(outcome), len(start) + len(commit)
        frame = frames.get(sizes)
        if frame is None:
            frame = frames[sizes] = _frame(*sizes)
        parts += (frame[0], prewrite, outcome, frame[1], start, _COMMIT_TS, commit)
    return MessageBlock(b"".join(parts))


def _frame(size: int, varints_size: int) -> tuple[bytes, bytes]:
    """Return the bytes before a payload of `size` bytes, and between it and its start_ts."""
    beginning = b"\x12" + encode_uvarint(size)
    between = b"\x22%c\x08" % (varints_size + 2)
    size += len(beginning) + len(between) + varints_size + len(_COMMIT_TS)
    envelope = b"\x0a" + encode_uvarint(size)
    return MESSAGE_HEAD.pack(0, len(envelope) + size) + envelope + beginning, between


def encode_entity(start_ts: int, commit_ts: int, payload: bytes) -> bytes:
    """Return one `PullBinlogResp`, without gRPC's prefix."""
    meta = pump_pb2.Meta(startTs=start_ts, commitTs=commit_ts)
    entity = pump_pb2.Entity(payload=payload, meta=meta)
    return pump_pb2.PullBinlogResp(entity=entity).SerializeToString()


log = logging.getLogger(__name__)

WRITE_METHOD: Final = "WriteBinlog"
WRITTEN = Reply(pump_pb2.WriteBinlogResp().SerializeToString())

_SUBMISSION_BYTES = 256 << 10
"""A larger gathering is submitted in pieces, of which a group takes as many as it may hold."""

_Call = tuple[bytes, "UnaryCall", float]
"""The request, the waiting call, and its arrival time."""


class FastWrites:
    """The calls of one Pump that wait to be submitted; for one event loop."""

    def __init__(
        self,
        group_commit: GroupCommit,
        admission: Admission,
        counters: Counters,
        *,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        """`flush` sends the given answers; by default they leave in the loop's next turn."""
        self._group_commit = group_commit
        self._flush = flush
        self._admission = admission
        self._gathered: list[_Call] = []
        self._succeeded = counters.calls[WRITE_METHOD, "succ"]
        self._failed = counters.calls[WRITE_METHOD, "fail"]

    def handle(self, data: bytes, call: UnaryCall) -> None:
        """Accept a `WriteBinlogReq`; answer once the binlog is durable or refused."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._submit_gathered)
        self._gathered.append((data, call, time.perf_counter()))

    def _submit_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        admit = self._admission.admit_request
        records: list[Record] = []
        calls: list[_Call] = []
        size_bytes = 0
        for waiting in gathered:
            data = waiting[0]
            try:
                record = admit(data, waiting[1])
            except Exception as error:
                self._fail(waiting, error)
                continue
            if record is None:  # A probe waits for nothing.
                self._answer([waiting])
                continue
            records.append(record)
            calls.append(waiting)
            size_bytes += len(data)
            if size_bytes >= _SUBMISSION_BYTES:
                self._submit(records, calls)
                records, calls, size_bytes = [], [], 0
        if records:
            self._submit(records, calls)
        self._group_commit.begin()

    def _submit(self, records: list[Record], calls: list[_Call]) -> None:
        try:
            self._group_commit.enqueue(records, partial(self._settle, calls), calls=len(calls))
        except PenstockError as error:
            self._settle(calls, error)

    def _settle(self, calls: list[_Call], outcome: Refusals | BaseException) -> None:
        if not outcome:
            self._answer(calls)
            self._flush()
            return
        for i, waiting in enumerate(calls):
            error = outcome if isinstance(outcome, BaseException) else outcome.get(i)
            if error is None:
                self._answer([waiting])
            else:
                self._fail(waiting, error)

    def _answer(self, calls: list[_Call]) -> None:
        for _, call, _ in calls:
            call.answer(WRITTEN)
        now_s = time.perf_counter()
        self._succeeded.note_sorted([now_s - begin_s for _, _, begin_s in calls])

    def _fail(self, waiting: _Call, error: BaseException) -> None:
        _, call, begin_s = waiting
        if not isinstance(error, PenstockError | OSError):
            log.error("WriteBinlog failed", exc_info=error)
        call.fail(status_of(error), coded(error), code_fields(error))
        self._failed.note(time.perf_counter() - begin_s)


TIDB_SERVICE: Final = "binlog.Pump"


class TidbService:
    """The handlers of `binlog.Pump`."""

    def __init__(
        self, group_commit: GroupCommit, pulls: Pulls, admission: Admission, counters: Counters
    ) -> None:
        self._group_commit = group_commit
        self._pulls = pulls
        self._admission = admission
        self._succeeded = counters.calls[WRITE_METHOD, "succ"]
        self._failed = counters.calls[WRITE_METHOD, "fail"]

    def methods(self) -> dict[str, Any]:
        return {
            WRITE_METHOD: grpc.unary_unary_rpc_method_handler(self.write_binlog),
            "PullBinlogs": grpc.unary_stream_rpc_method_handler(self.pull_binlogs),
        }

    async def write_binlog(self, data: bytes, context: Any) -> bytes:
        begin_s, outcome = time.perf_counter(), self._failed
        try:
            record = self._admission.admit_request(data, context)
            if record is not None:
                await self._group_commit.write([record])
            outcome = self._succeeded
        except (PenstockError, OSError) as error:
            await abort(context, error)
        finally:
            outcome.note(time.perf_counter() - begin_s)
        return WRITTEN.message

    async def pull_binlogs(self, data: bytes, context: Any) -> AsyncIterator[bytes | MessageBlock]:
        """Stream merged binlogs after a commit_ts, one per message, until the Pump closes.

        A server that accepts blocks of messages gets blocks.
        """
        request = await parsed(context, pump_pb2.PullBinlogReq, data)
        takes_blocks = getattr(context, "takes_message_blocks", False)
        try:
            self._admission.check_cluster(request.clusterID, context.peer)
            batches = self._pulls.batches(context.peer(), request.startFrom.offset)
            async with aclosing(batches):
                async for pulled in batches:
                    if (large := pulled.large) is not None:
                        payload = await self._pulls.whole(large)
                        yield encode_entity(large.chunk_list.start_ts, large.commit_ts, payload)
                        continue
                    block = encode_entities(pulled.commit_ts, pulled.prewrites, pulled.outcomes)
                    if takes_blocks:
                        yield block
                        continue
                    for message in block.messages():
                        yield message
        except (PenstockError, OSError) as error:
            await abort(context, error)
