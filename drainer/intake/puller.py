"""Puller: pulls one Pump's binlogs for as long as the Pump takes part, through its restarts.

    connect ──> Pull(after what was received last) ──> batches ──> the merge
       ^                                                  │ error, silence, end of stream
       └────────────── 100 ms … 1 s later ────────────────┘

What was received is never asked for again, what was not is: a broken stream loses and repeats
nothing. A Pump without `penstock.Pump` (TiDB-Binlog's) is pulled one binlog per message. Errors
that waiting cannot cure (a wrong cluster, purged binlogs, damaged bytes) stop the Drainer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import grpc

from drainer.intake.payload import Payload, Remote
from drainer.intake.spool import Run, Spool, chunk_of
from drainer.pull_refusals import HINTS
from penstock.errors import NeedsOperator
from penstock.pb import penstock_pb2, pump_pb2
from penstock.security.refusal import refusal_of
from penstock.security.tls import Tls, open_aio_channel

log = logging.getLogger(__name__)

RETRY_S_MIN = 0.1
RETRY_S_MAX = 1.0
SILENCE_S_MAX = 20.0
"""A Pump with a waiting puller sends at least a fake binlog every 3 s; a mute stream is dead.

That finds a connection that was cut without a word, too. At 64 kB/s the largest message takes 16 s.
"""
BATCH_BYTES_MIN = 64 << 10
"""What a message may have at least, however slow the way is: 4 kB/s bring it here in time."""

_RUN_MAX = 256
"""How many single binlogs of TiDB-Binlog's stream are handed on at once."""
_RUN_BYTES_MAX = 1 << 20
"""… and after how many bytes no more."""

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    # A channel of our own: back-off left over from an earlier one must not delay this one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # How long a connection may take to come about.
    ("grpc.min_reconnect_backoff_ms", 5_000),
]


class Receiver(Protocol):
    """Where a puller's binlogs go."""

    def received_ts(self, pump: str) -> int:
        """Return the largest `commit_ts` received from a Pump: pulling continues after it."""

    async def receive(
        self, pump: str, commit_ts: Sequence[int], payloads: Sequence[Payload]
    ) -> None:
        """Take a run; return when there is room for the next."""


@dataclass(frozen=True, slots=True)
class Who:
    """What a puller sends a Pump about itself, how much it wants per message, and its TLS.

    What is too large for memory goes to the `spool`.
    """

    cluster_id: int
    drainer_id: str
    spool: Spool
    batch_bytes_max: int = 1 << 20
    tls: Tls | None = None
    metadata_only: bool = False
    """Rows stay on the Pumps, for Spark's tasks to fetch."""
    silence_s_max: float = SILENCE_S_MAX
    retry_s_min: float = RETRY_S_MIN


class Puller:
    """The stream from one Pump; `address` may change while it runs."""

    def __init__(self, pump: str, address: str, who: Who, receiver: Receiver) -> None:
        """Prepare to pull from the Pump `pump`, which listens at `address`."""
        self.pump = pump
        self.address = address
        self.problem = "not connected yet"
        self._who = who
        self._receiver = receiver
        self._batched = True
        self._batch_bytes_max = who.batch_bytes_max
        self.on_break: Callable[[], None] = _nothing
        """Called when a stream is lost, or one could not be had."""

    async def run(self) -> None:
        """Pull until cancelled; raise `NeedsOperator` when trying again cannot help."""
        pause_s = self._who.retry_s_min
        while True:
            got = 0
            try:
                async with aclosing(self._stream()) as runs:
                    async for commit_ts, payloads in runs:
                        self._found()
                        await self._receiver.receive(self.pump, commit_ts, payloads)
                        got += 1
                self._lost("the Pump ended the stream")
            except grpc.aio.AioRpcError as error:
                if self._is_old_pump(error):
                    continue
                self._stop_if_hopeless(error)
                tls = self._who.tls
                refusal = await asyncio.to_thread(refusal_of, self.address, tls, error)
                self._lost(str(refusal or f"{error.code().name}: {error.details()}"))
            except TimeoutError:
                if not got:  # Maybe not even the first message could get here in time.
                    self._batch_bytes_max = max(self._batch_bytes_max // 4, BATCH_BYTES_MIN)
                self._lost(f"nothing arrived for {self._who.silence_s_max:.0f} s")
            pause_s = self._who.retry_s_min if got else min(pause_s * 2, RETRY_S_MAX)
            await asyncio.sleep(pause_s)

    @property
    def is_original(self) -> bool:
        """True for a Pump that turned out to know only TiDB-Binlog's methods."""
        return not self._batched

    def _found(self) -> None:
        if self.problem:
            log.info("pulling from Pump %s at %s", self.pump, self.address)
            self.problem = ""

    def _lost(self, problem: str) -> None:
        if not self.problem:
            log.warning("lost Pump %s at %s: %s", self.pump, self.address, problem)
        self.problem = problem
        self.on_break()

    def _is_old_pump(self, error: grpc.aio.AioRpcError) -> bool:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED or not self._batched:
            return False
        log.info("Pump %s knows only TiDB-Binlog's methods", self.pump)
        self._batched = False
        return True

    def _stop_if_hopeless(self, error: grpc.aio.AioRpcError) -> None:
        hint = HINTS.get(error.code())
        if hint is not None:
            details = f"Pump {self.pump} at {self.address} refuses: {error.details()}"
            raise NeedsOperator(details, hint=hint) from error

    async def _stream(self) -> AsyncGenerator[Run]:
        after_ts = self._receiver.received_ts(self.pump)
        async with open_aio_channel(self.address, self._who.tls, _OPTIONS) as channel:
            if self._batched:
                who = replace(self._who, batch_bytes_max=self._batch_bytes_max)
                runs = _pull_batches(channel, self.pump, who, after_ts)
            else:
                runs = _pull_singles(channel, self._who, after_ts)
            spool = self._who.spool
            async with aclosing(runs):
                async for run in runs:
                    if max(map(len, run[1]), default=0) <= spool.bytes_max:
                        yield run
                        continue
                    async with aclosing(spool.keep_large(self.pump, run)) as parts:
                        async for part in parts:
                            yield part


def _nothing() -> None:
    """Do nothing."""


async def _pull_batches(channel: Any, pump: str, who: Who, after_ts: int) -> AsyncGenerator[Run]:
    pull = channel.unary_stream(
        "/penstock.Pump/Pull",
        request_serializer=penstock_pb2.PullRequest.SerializeToString,
        response_deserializer=penstock_pb2.PullBatch.FromString,
    )
    request = penstock_pb2.PullRequest(
        cluster_id=who.cluster_id,
        after_ts=after_ts,
        batch_bytes_max=who.batch_bytes_max,
        drainer_id=who.drainer_id,
        pieces=True,
        metadata_only=who.metadata_only,
    )
    call = pull(request)
    read = partial(_read, call, who.silence_s_max)
    while (batch := await read()) is not None:
        chunk = chunk_of(batch)
        if chunk is None:
            yield list(batch.commit_ts), _payloads(pump, batch)
            continue
        run = await who.spool.receive(pump, chunk, read)
        if run is None:
            return
        yield run


def _payloads(pump: str, batch: Any) -> list[Payload]:
    """Return a message's payloads; those without their rows as what stands for them."""
    if not batch.sizes:  # A Pump that knows no metadata sends everything, and so it is taken.
        return list(batch.payloads)
    entries = zip(batch.payloads, batch.sizes, batch.start_ts, strict=True)
    return [Remote(pump, size, start, head) if size else head for head, size, start in entries]


async def _pull_singles(channel: Any, who: Who, after_ts: int) -> AsyncGenerator[Run]:
    pull = channel.unary_stream(
        "/binlog.Pump/PullBinlogs",
        request_serializer=pump_pb2.PullBinlogReq.SerializeToString,
        response_deserializer=pump_pb2.PullBinlogResp.FromString,
    )
    position = pump_pb2.Pos(offset=after_ts)
    call = pull(pump_pb2.PullBinlogReq(clusterID=who.cluster_id, startFrom=position))
    reading: asyncio.Task[Any] | None = None
    try:
        while True:
            reading = reading or asyncio.ensure_future(_read(call, who.silence_s_max))
            first = await reading
            reading = None
            if first is None:
                return
            run, size = [first], len(first.entity.payload)
            # What has arrived meanwhile goes along; what has not is waited for next time.
            while len(run) < _RUN_MAX and size < _RUN_BYTES_MAX:
                reading = asyncio.ensure_future(_read(call, who.silence_s_max))
                done, _ = await asyncio.wait((reading,), timeout=0)
                if not done or reading.exception() is not None or reading.result() is None:
                    break
                run.append(reading.result())
                size += len(run[-1].entity.payload)
                reading = None
            entities = [message.entity for message in run]
            yield [e.meta.commitTs for e in entities], [e.payload for e in entities]
    finally:
        if reading is not None:
            reading.cancel()


async def _read(call: Any, silence_s_max: float) -> Any:
    """Return the next message, None at the end of the stream; TimeoutError when none comes."""
    async with asyncio.timeout(silence_s_max):
        message = await call.read()
    return None if message is grpc.aio.EOF else message
