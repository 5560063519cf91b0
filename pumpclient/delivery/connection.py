"""Connection: carries binlogs to one Pump, batches in flight, acknowledgements in order.

    put ──> WriteQueue ──> sender (gRPC's thread, pulls batches) ──> penstock.Pump/Write
                 ^                                                          │
                 └──────────── receiver (our thread, opens gates) <── acks ─┘

The receiver also connects, and on each connection first asks the Pump for its node id. A Pump
may die and another be started on its address: a Commit that went there would be lost, and a
Rollback could undo a transaction that is none of its business. Nothing is sent to another node.

TiDB-Binlog's Pumps have neither batches nor a node id to ask for: they answer UNIMPLEMENTED and
get one unary call per binlog, a window of calls at a time.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc

from penstock.pb import penstock_pb2, penstock_pb2_grpc, pump_pb2, pump_pb2_grpc
from penstock.security.refusal import refusal_of
from penstock.wire.batch import encode_write_batch, encode_write_piece
from pumpclient.delivery.payload import LargePrewrite
from pumpclient.delivery.write_queue import InFlight, PendingWrite, WriteQueue
from pumpclient.errors import Failure, Reason
from pumpclient.options import Options, Tls, open_channel

log = logging.getLogger(__name__)

_CALLS_AT_ONCE: Final = 64
_UNARY_CALL_S: Final = 15.0

# A Pump that failed to write may still have part of it in its file, and find it after a restart.
_MAYBE_STORED: Final = frozenset({Reason.ERROR, Reason.TIMED_OUT, Reason.BROKEN})
_REASONS: Final = {
    penstock_pb2.Refusal.UNKNOWN: Reason.ERROR,
    penstock_pb2.Refusal.RETRYABLE: Reason.ERROR,
    penstock_pb2.Refusal.NOT_ONLINE: Reason.NOT_ONLINE,
    penstock_pb2.Refusal.RESOURCE_EXHAUSTED: Reason.NO_SPACE,
    penstock_pb2.Refusal.INVALID: Reason.INVALID,
    penstock_pb2.Refusal.CLUSTER_MISMATCH: Reason.CLUSTER_MISMATCH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The Pump that a writer is for."""

    node_id: str
    address: str
    cluster_id: int
    tls: Tls | None = None


class _NotReached(Exception):
    """No connection to the Pump came about, so nothing was sent."""

    def __init__(self, problem: str, reason: Reason = Reason.BROKEN) -> None:
        super().__init__(problem)
        self.reason = reason


class PumpWriter:
    """Writes binlogs to one Pump for all threads; connects by itself, as often as needed."""

    def __init__(self, target: Target, options: Options) -> None:
        self.target = target
        self._options = options
        self._queue = WriteQueue(
            batch_count_max=options.batch_count_max,
            batch_bytes_max=options.batch_bytes_max,
            in_flight_max=options.batches_in_flight_max,
            bytes_max=options.queue_bytes_max,
        )
        self._one_by_one = not options.coalesce
        # True once the connected node has given its id, which TiDB-Binlog's Pumps cannot.
        self._is_known = False
        self._call_lock = threading.Lock()
        self._call: Any = None
        self._channel: grpc.Channel | None = None
        self._is_closing = False
        self._receiver = threading.Thread(
            target=self._run, name=f"pumpclient {target.node_id}", daemon=True
        )
        self._receiver.start()

    def submit(self, pending: PendingWrite, timeout_s: float) -> None:
        """Queue a write, waiting for room no longer than that."""
        self._queue.put(pending, timeout_s)

    def submit_all(self, pendings: Sequence[PendingWrite], timeout_s: float) -> None:
        """Queue many writes at once: cheaper than one by one."""
        self._queue.put_all(pendings, timeout_s)

    def drop_connection(self) -> None:
        """Break the connection, failing what is in flight; the next write opens a new one."""
        with self._call_lock:
            if self._call is not None:
                self._call.cancel()

    def close(self, timeout_s: float) -> None:
        """Send what is queued, wait for its answers no longer than that, and end the thread."""
        self._queue.close()
        self._receiver.join(timeout_s)
        if self._receiver.is_alive():
            self.drop_connection()
            with self._call_lock:
                self._is_closing = True
                if self._channel is not None:
                    self._channel.close()
            self._receiver.join()

    def _run(self) -> None:
        idle = InFlight()
        while self._queue.wait_for_work(idle):
            try:
                with self._connect() as channel:
                    while self._converse(channel):
                        pass
            except _NotReached as error:
                self._queue.fail_queued(Failure(error.reason, str(error), maybe_stored=False))

    def _connect(self) -> grpc.Channel:
        """Return a channel whose other end is the node we want."""
        channel = open_channel(self.target.address, self.target.tls)
        with self._call_lock:
            self._channel = channel
            is_closing = self._is_closing
        try:
            if is_closing:
                raise _NotReached("the client is closing")
            self._ask_who(channel)
        except BaseException:
            channel.close()
            raise
        return channel

    def _ask_who(self, channel: grpc.Channel) -> None:
        ask = penstock_pb2_grpc.PumpStub(channel).Status  # type: ignore[no-untyped-call]
        try:
            reply = ask(penstock_pb2.StatusRequest(), timeout=self._options.connect_timeout_s)
        except grpc.RpcError as error:
            refusal = refusal_of(self.target.address, self.target.tls, error)
            if refusal is not None:
                raise _NotReached(str(refusal), Reason.CERTIFICATE) from error
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise _NotReached(text_of(error)) from error
            log.info("pump %s takes one binlog per call only", self.target.node_id)
            self._one_by_one = True
            self._is_known = False
            return
        except ValueError as error:  # The channel was closed under us by close().
            raise _NotReached("the client is closing") from error
        if reply.node_id != self.target.node_id:
            raise _NotReached(f"{self.target.address} now is {reply.node_id}")
        self._is_known = True

    def _converse(self, channel: grpc.Channel) -> bool:
        """Send and receive until the connection ends; True to continue in the other manner."""
        in_flight = InFlight()
        converse = self._call_by_call if self._one_by_one else self._stream
        try:
            error = converse(channel, in_flight)
        except ValueError:  # gRPC's way to say that close() closed the channel meanwhile.
            error = None
        lost = self._queue.end(in_flight)
        unknown_method = error is not None and error.code() is grpc.StatusCode.UNIMPLEMENTED
        if unknown_method and not self._one_by_one:
            self._one_by_one = True
            self._queue.put_back(lost)
            return True
        message = text_of(error) if error is not None else "the Pump ended the stream"
        for pending in lost:
            pending.finish(Failure(Reason.BROKEN, message, maybe_stored=True))
        self._queue.fail_queued(Failure(Reason.BROKEN, message, maybe_stored=False))
        return False

    def _stream(self, channel: grpc.Channel, in_flight: InFlight) -> grpc.RpcError | None:
        write = channel.stream_stream(
            "/penstock.Pump/Write", None, penstock_pb2.WriteAck.FromString
        )
        with self._call_lock:  # As soon as it sends anything, it can be broken.
            call = self._call = write(self._batches(in_flight))
        try:
            for ack in call:
                self._acknowledge(in_flight, ack)
        except grpc.RpcError as error:
            return error
        finally:
            with self._call_lock:
                self._call = None
        return None

    def _batches(self, in_flight: InFlight) -> Iterator[bytes]:
        """Yield batches as they fill; runs in gRPC's own thread and ends with the session."""
        for seq in itertools.count(1):
            batch = self._queue.take(in_flight)
            if batch is None:
                return
            payloads = [pending.payload for pending in batch]
            yield encode_write_batch(self.target.cluster_id, seq, payloads)

    def _acknowledge(self, in_flight: InFlight, ack: penstock_pb2.WriteAck) -> None:
        batch = self._queue.acked(in_flight)
        refused = {refusal.index: failure_of(refusal) for refusal in ack.refusals}
        if not refused:
            for pending in batch:
                pending.finish(None)
            return
        for index, pending in enumerate(batch):
            pending.finish(refused.get(index))

    def _call_by_call(self, channel: grpc.Channel, in_flight: InFlight) -> grpc.RpcError | None:
        stub = pump_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
        while (batch := self._queue.take(in_flight)) is not None:
            for start in range(0, len(batch), _CALLS_AT_ONCE):
                window = [p for p in batch[start : start + _CALLS_AT_ONCE] if self._may_send(p)]
                calls = [self._call_one(stub, pending) for pending in window]
                for pending, call in zip(window, calls, strict=True):
                    failure = _result_of(call)
                    pending.finish(failure)
                    if failure is not None and failure.reason is Reason.BROKEN:
                        return call.exception()
            self._queue.acked(in_flight)
        return None

    def _may_send(self, pending: PendingWrite) -> bool:
        if self._is_known or not pending.needs_known:
            return True
        pending.finish(Failure(Reason.INVALID, "it cannot give its id", maybe_stored=False))
        return False

    def _call_one(self, stub: pump_pb2_grpc.PumpStub, pending: PendingWrite) -> Any:
        request = pump_pb2.WriteBinlogReq(clusterID=self.target.cluster_id, payload=pending.payload)
        return stub.WriteBinlog.future(request, timeout=_UNARY_CALL_S)


def _result_of(call: Any) -> Failure | None:
    """Wait for a unary call; the errors of TiDB-Binlog's Pumps are recognised by their text."""
    error = call.exception()
    if error is None:
        message = call.result().errmsg
        return _failure_by_text(message) if message else None
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return Failure(Reason.BROKEN, text_of(error), maybe_stored=True)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Failure(Reason.TIMED_OUT, text_of(error), maybe_stored=True)
    return _failure_by_text(f"{error.code().name}: {error.details()}")


def _failure_by_text(message: str) -> Failure:
    squeezed = message.lower().replace("_", "")
    for needle, reason in (
        ("larger than max", Reason.INVALID),
        ("resourceexhausted", Reason.NO_SPACE),
        ("no available space", Reason.NO_SPACE),
        ("no online", Reason.NOT_ONLINE),
        ("cluster id are mismatch", Reason.CLUSTER_MISMATCH),
    ):
        if needle in squeezed:
            return Failure(reason, message, maybe_stored=False)
    return Failure(Reason.ERROR, message, maybe_stored=True)


def failure_of(refusal: penstock_pb2.Refusal) -> Failure:
    """Return what a refusal means for the writer."""
    reason = _REASONS.get(refusal.code, Reason.ERROR)
    return Failure(reason, refusal.message, maybe_stored=reason in _MAYBE_STORED)


def text_of(error: grpc.RpcError) -> str:
    """Return code and details of a failed call."""
    return f"{error.code().name}: {error.details()}"


class _LargeMessages:
    """The messages of one try, and how it went from our side."""

    def __init__(self, cluster_id: int, prewrite: LargePrewrite) -> None:
        self._cluster_id = cluster_id
        self._prewrite = prewrite
        self.is_complete = False  # True once the Pump may have all of it.
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        prewrite, sent = self._prewrite, 0
        try:
            for data in prewrite.chunks():
                fields = (0, 0, 0) if sent else (self._cluster_id, prewrite.start_ts, len(prewrite))
                sent += len(data)
                self.is_complete = sent >= len(prewrite)
                yield encode_write_piece(*fields, data)
        except Exception as error:
            self.error = error
            raise


def write_large(
    target: Target, options: Options, prewrite: LargePrewrite, timeout_s: float
) -> Failure | None:
    """Try once to make a large Prewrite durable on a Pump; None means that it is.

    It has a connection of its own, so that no small write waits for it, and the same question
    first: is the node at this address the one that is meant? Raises what reading the rows raises.
    """
    messages = _LargeMessages(target.cluster_id, prewrite)
    with open_channel(target.address, target.tls) as channel:
        try:
            ask = penstock_pb2_grpc.PumpStub(channel).Status  # type: ignore[no-untyped-call]
            reply = ask(penstock_pb2.StatusRequest(), timeout=options.connect_timeout_s)
            if reply.node_id != target.node_id:
                problem = f"{target.address} now is {reply.node_id}"
                return Failure(Reason.BROKEN, problem, maybe_stored=False)
            write = channel.stream_unary(
                "/penstock.Pump/WriteLarge", None, penstock_pb2.WriteAck.FromString
            )
            ack = write(iter(messages), timeout=timeout_s)
        except grpc.RpcError as error:
            if messages.error is not None:
                raise messages.error from error
            refusal = refusal_of(target.address, target.tls, error)
            if refusal is not None:
                return Failure(Reason.CERTIFICATE, str(refusal), messages.is_complete)
            return _large_failure(error, messages.is_complete)
    for refusal in ack.refusals:
        failure = failure_of(refusal)
        return replace(failure, maybe_stored=failure.maybe_stored and messages.is_complete)
    return None


def _large_failure(error: grpc.RpcError, maybe_stored: bool) -> Failure:
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        problem = "it has no method WriteLarge, so it takes no large transactions"
        return Failure(Reason.TOO_OLD, problem, maybe_stored=False)
    is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    reason = Reason.TIMED_OUT if is_late else Reason.BROKEN
    return Failure(reason, text_of(error), maybe_stored=maybe_stored)
