"""Puller: pulls one Pump's binlogs while the Pump takes part, across its restarts.

    connect ──> Pull(after the last received binlog) ──> batches ──> the merge
       ^                                                    │ error, silence, end of stream
       └── 100 ms … 1 s later, or when its address changes ─┘

When the merge waits for this Pump, the puller asks it to advance, and the Pump sends a fake binlog,
which need not be in its log.
A new stream starts after the last received binlog, so a broken stream loses and repeats nothing. A
Pump without `penstock.Pump` (TiDB-Binlog's) is pulled one binlog per message. Errors that retrying
cannot resolve (a wrong cluster, purged binlogs, damaged bytes) stop the Drainer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import grpc

from drainer.intake.payload import Payload, RemoteRun
from drainer.intake.spool import Run, Spool, chunk_of
from drainer.task.row_fetch import HINTS
from penstock.codes import Code
from penstock.errors import NeedsOperator, code_of_call, coded
from penstock.http2.client.async_channel import AsyncChannel, AsyncStream
from penstock.http2.client.channel import CallFailed
from penstock.pb import penstock_pb2, pump_pb2
from penstock.security.refusal import refusal_of
from penstock.security.tls import Tls
from penstock.waiting import doubling, set_within

log = logging.getLogger(__name__)

RETRY_S_MIN = 0.1
RETRY_S_MAX = 1.0
SILENCE_S_MAX = 20.0
"""A Pump with a waiting puller sends at least a fake binlog every 3 s; a silent stream is dead.

This also detects a connection that was cut silently. At 64 kB/s the largest message takes 16 s.
"""
BATCH_BYTES_MIN = 64 << 10
"""Minimum size limit of a message, however slow the link; at 4 kB/s it arrives in time."""

_ASK_AGAIN_S = 0.1
"""Pause before the next request; a Pump that has not moved has an open transaction or is busy."""

_RUN_MAX = 256
"""Maximum number of single binlogs of TiDB-Binlog's stream that are passed on together."""
_UNIMPLEMENTED: Final = grpc.StatusCode.UNIMPLEMENTED.value[0]
_RUN_BYTES_MAX = 1 << 20
"""Maximum number of bytes that are passed on together."""


class Receiver(Protocol):
    """The receiver of a puller's binlogs."""

    def received_ts(self, pump: str) -> int:
        """Return the largest `commit_ts` received from a Pump: pulling continues after it."""

    async def receive(
        self, pump: str, commit_ts: Sequence[int], payloads: Sequence[Payload]
    ) -> None:
        """Take a run; return when there is room for the next."""


@dataclass(frozen=True, slots=True)
class Who:
    """The puller's identity for a Pump, the bytes it wants per message, and its TLS.

    Binlogs too large for memory go to the `spool`.
    """

    cluster_id: int
    drainer_id: str
    spool: Spool
    batch_bytes_max: int = 1 << 20
    tls: Tls | None = None
    metadata_only: bool = False
    """Rows stay on the Pumps; Spark's tasks fetch them."""
    hints: Mapping[grpc.StatusCode, str] = field(default_factory=lambda: HINTS)
    silence_s_max: float = SILENCE_S_MAX
    retry_s_min: float = RETRY_S_MIN


class Puller:
    """The stream from one Pump; `address` may change while it runs."""

    def __init__(self, pump: str, address: str, who: Who, receiver: Receiver) -> None:
        self.pump = pump
        self._address = address
        self._moved = asyncio.Event()
        self.problem = "not connected yet"
        self._who = who
        self._receiver = receiver
        self._batched = True
        self._batch_bytes_max = who.batch_bytes_max
        self._channel: AsyncChannel | None = None
        self._asking: AsyncStream | None = None
        self._asked: tuple[int, float] = (-1, 0.0)  # received_ts of a request, its time.
        self.on_break: Callable[[], None] = _nothing
        """Called when a stream is lost or cannot be opened."""

    async def run(self) -> None:
        """Pull until cancelled; raise `NeedsOperator` if a retry cannot help."""
        pauses = doubling(self._who.retry_s_min, RETRY_S_MAX)
        while True:
            got = 0
            try:
                async with aclosing(self._stream()) as runs:
                    async for commit_ts, payloads in runs:
                        self._found()
                        await self._receiver.receive(self.pump, commit_ts, payloads)
                        got += 1
                self._lost("the Pump ended the stream")
            except CallFailed as error:
                if self._is_old_pump(error):
                    continue
                self._stop_if_hopeless(error)
                tls = self._who.tls
                refusal = await asyncio.to_thread(refusal_of, self.address, tls, error)
                if refusal is None:
                    details = f"{error.code().name}: {error.details()}"
                    self._lost(details, code_of_call(error))
                else:
                    self._lost(coded(refusal), refusal.code)
            except TimeoutError:
                if not got:  # Perhaps not even the first message could arrive in time.
                    self._batch_bytes_max = max(self._batch_bytes_max // 4, BATCH_BYTES_MIN)
                self._lost(f"nothing arrived for {self._who.silence_s_max:.0f} s")
            pauses = doubling(self._who.retry_s_min, RETRY_S_MAX) if got else pauses
            await set_within(self._moved, next(pauses))
            self._moved.clear()

    @property
    def address(self) -> str:
        """The Pump's current address; after a change the puller reconnects without a pause."""
        return self._address

    @address.setter
    def address(self, address: str) -> None:
        if address != self._address:
            self._address = address
            self._moved.set()

    def ask(self, past_ts: int) -> None:
        """Ask the Pump to advance its stream past `past_ts`; nothing waits for the answer.

        Does nothing during an earlier request, and until the Pump has moved or a while has passed.
        """
        channel, asking, now_s = self._channel, self._asking, time.monotonic()
        if channel is None or not self._batched:
            return
        if asking is not None:
            if asking.outcome is None or asking.outcome.status == _UNIMPLEMENTED:
                return
            asking.take()
        received_ts = self._receiver.received_ts(self.pump)
        asked_at_ts, asked_s = self._asked
        if received_ts == asked_at_ts and now_s < asked_s + _ASK_AGAIN_S:
            return
        self._asked = received_ts, now_s
        request = penstock_pb2.AdvanceRequest(cluster_id=self._who.cluster_id, past_ts=past_ts)
        self._asking = channel.server_stream("/penstock.Pump/Advance", request.SerializeToString())

    @property
    def is_original(self) -> bool:
        """True for a Pump found to know only TiDB-Binlog's methods."""
        return not self._batched

    def _found(self) -> None:
        if self.problem:
            log.info("pulling from Pump %s at %s", self.pump, self.address)
            self.problem = ""

    def _lost(self, problem: str, code: Code | None = None) -> None:
        if not self.problem:
            fields = None if code is None else {"code": str(code)}
            log.warning("lost Pump %s at %s: %s", self.pump, self.address, problem, extra=fields)
        self.problem = problem
        self.on_break()

    def _is_old_pump(self, error: CallFailed) -> bool:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED or not self._batched:
            return False
        log.info("Pump %s knows only TiDB-Binlog's methods", self.pump)
        self._batched = False
        return True

    def _stop_if_hopeless(self, error: CallFailed) -> None:
        hint = self._who.hints.get(error.code())
        if hint is not None:
            details = f"Pump {self.pump} at {self.address} refuses: {error.details()}"
            code = code_of_call(error) or Code.PULL_REFUSED
            raise NeedsOperator(details, hint, code) from error

    async def _stream(self) -> AsyncGenerator[Run]:
        after_ts = self._receiver.received_ts(self.pump)
        self._asking = self._channel = None
        async with AsyncChannel(self.address, self._who.tls) as channel:
            self._channel = channel
            if self._batched:
                who = replace(self._who, batch_bytes_max=self._batch_bytes_max)
                runs = _pull_batches(channel, self.pump, who, after_ts)
            else:
                runs = _pull_singles(channel, self._who, after_ts)
            spool = self._who.spool
            async with aclosing(runs):
                async for run in runs:
                    whole = run[1].heads if isinstance(run[1], RemoteRun) else run[1]
                    if max(map(len, whole), default=0) <= spool.bytes_max:
                        yield run
                        continue
                    async with aclosing(spool.keep_large(self.pump, run)) as parts:
                        async for part in parts:
                            yield part


def _nothing() -> None: ...


async def _pull_batches(
    channel: AsyncChannel, pump: str, who: Who, after_ts: int
) -> AsyncGenerator[Run]:
    request = penstock_pb2.PullRequest(
        cluster_id=who.cluster_id,
        after_ts=after_ts,
        batch_bytes_max=who.batch_bytes_max,
        drainer_id=who.drainer_id,
        pieces=True,
        metadata_only=who.metadata_only,
    )
    call = channel.server_stream("/penstock.Pump/Pull", request.SerializeToString())

    async def read() -> Any:
        message = await _read(call, who.silence_s_max)
        return None if message is None else penstock_pb2.PullBatch.FromString(message)

    while (batch := await read()) is not None:
        chunk = chunk_of(batch)
        if chunk is None:
            yield list(batch.commit_ts), _payloads(pump, batch)
            continue
        run = await who.spool.receive(pump, chunk, read)
        if run is None:
            return
        yield run


def _payloads(pump: str, batch: Any) -> Sequence[Payload]:
    if not batch.sizes:  # A Pump that ignores metadata_only sends everything, which is accepted.
        return list(batch.payloads)
    return RemoteRun.of(pump, batch.sizes, batch.start_ts, list(batch.payloads))


async def _pull_singles(channel: AsyncChannel, who: Who, after_ts: int) -> AsyncGenerator[Run]:
    position = pump_pb2.Pos(offset=after_ts)
    request = pump_pb2.PullBinlogReq(clusterID=who.cluster_id, startFrom=position)
    call = channel.server_stream("/binlog.Pump/PullBinlogs", request.SerializeToString())
    while (message := await _read(call, who.silence_s_max)) is not None:
        entities, size = [], 0
        # Messages that have arrived by now are passed on together.
        while message is not None:
            entities.append(pump_pb2.PullBinlogResp.FromString(message).entity)
            size += len(message)
            full = len(entities) >= _RUN_MAX or size >= _RUN_BYTES_MAX
            message = None if full else call.take()
        yield [e.meta.commitTs for e in entities], [e.payload for e in entities]


async def _read(call: AsyncStream, silence_s_max: float) -> bytes | None:
    """Return the next message, None at the end of the stream; TimeoutError when none comes."""
    message = call.take()
    if message is not None:
        return message
    async with asyncio.timeout(silence_s_max):
        return await call.read()
