"""Carries binlogs to one Pump: batches in flight, acknowledgements in order.

    put ──> WriteQueue ──> (the thread that puts, or the receiver) ──> penstock.Pump/Write
                 ^                                                            │
                 └──────────── receiver (our thread, opens gates) <── acks ───┘

The receiver also connects, and first asks on each connection for the Pump's node id. A Pump may die
and another may be started at its address: a Commit sent there would be lost, and a Rollback could
undo an unrelated transaction. Nothing is sent to a different node.

TiDB-Binlog's Pumps have neither batches nor a node id to ask for: they answer UNIMPLEMENTED and get
one unary call per binlog, a window of calls at a time.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import grpc

from penstock.http2.client.calls import PendingReply, stream_unary, unary
from penstock.http2.client.channel import CallFailed, Channel
from penstock.pb import penstock_pb2, pump_pb2
from penstock.security.refusal import refusal_of
from penstock.wire.batch import encode_write_piece, write_batch_pieces
from pumpclient.delivery.payload import Payload
from pumpclient.delivery.write_queue import InFlight, PendingWrite, WriteQueue
from pumpclient.errors import Failure, Reason
from pumpclient.options import Options, Tls

log = logging.getLogger(__name__)

_STATUS: Final = "/penstock.Pump/Status"
_WRITE: Final = "/penstock.Pump/Write"
_WRITE_LARGE: Final = "/penstock.Pump/WriteLarge"
_WRITE_DECIDED: Final = "/penstock.Pump/WriteDecided"
_WRITE_BINLOG: Final = "/binlog.Pump/WriteBinlog"
_CALLS_AT_ONCE: Final = 64
_UNARY_CALL_S: Final = 15.0

# A Pump that failed to write may have part of the binlog in its file and find it after a restart.
_MAYBE_STORED: Final = frozenset({Reason.ERROR, Reason.TIMED_OUT, Reason.BROKEN})
_REASONS: Final = {
    penstock_pb2.Refusal.UNKNOWN: Reason.ERROR,
    penstock_pb2.Refusal.RETRYABLE: Reason.ERROR,
    penstock_pb2.Refusal.NOT_ONLINE: Reason.NOT_ONLINE,
    penstock_pb2.Refusal.RESOURCE_EXHAUSTED: Reason.NO_SPACE,
    penstock_pb2.Refusal.INVALID: Reason.INVALID,
    penstock_pb2.Refusal.CLUSTER_MISMATCH: Reason.CLUSTER_MISMATCH,
    penstock_pb2.Refusal.SCHEMA_CHANGED: Reason.SCHEMA_CHANGED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The Pump that a writer is for."""

    node_id: str
    address: str
    cluster_id: int
    tls: Tls | None = None


class _NotReached(Exception):
    """The connection to the Pump failed, so nothing was sent."""

    def __init__(self, problem: str, reason: Reason = Reason.BROKEN) -> None:
        super().__init__(problem)
        self.reason = reason


class PumpWriter:
    """Writes binlogs to one Pump for all threads; connects and reconnects automatically."""

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
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._is_closing = False
        self._receiver = threading.Thread(
            target=self._run, name=f"pumpclient {target.node_id}", daemon=True
        )
        self._receiver.start()

    def submit(self, pendings: Sequence[PendingWrite], timeout_s: float) -> None:
        """Queue writes; wait at most `timeout_s` for room."""
        self._queue.put(pendings, timeout_s)

    def drop_connection(self) -> None:
        """Break the connection and fail writes in flight; the next write reconnects."""
        with self._lock:
            channel = self._channel
        if channel is not None:
            channel.abort()

    def close(self, timeout_s: float) -> None:
        """Send queued writes, wait at most `timeout_s` for their answers, and end the thread."""
        self._queue.close()
        self._receiver.join(timeout_s)
        if self._receiver.is_alive():
            with self._lock:
                self._is_closing = True
            self.drop_connection()
            self._receiver.join()

    def _run(self) -> None:
        while self._queue.wait_for_work():
            try:
                with self._connect() as channel:
                    while self._converse(channel):
                        pass
            except _NotReached as error:
                self._queue.fail_queued(Failure(error.reason, str(error), maybe_stored=False))
            with self._lock:
                self._channel = None

    def _connect(self) -> Channel:
        channel = Channel(self.target.address, self.target.tls)
        with self._lock:
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

    def _ask_who(self, channel: Channel) -> None:
        try:
            node_id = _status(channel, self._options.connect_timeout_s).node_id
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
        if node_id != self.target.node_id:
            raise _NotReached(f"{self.target.address} now is {node_id}")
        self._is_known = True

    def _converse(self, channel: Channel) -> bool:
        """Send and receive until the connection ends; True to continue in the other mode."""
        if self._one_by_one:
            error, lost = self._call_by_call(channel)
        else:
            error, lost = _Batches(channel, self._queue, self.target.cluster_id).run()
        unknown_method = error is not None and error.code() is grpc.StatusCode.UNIMPLEMENTED
        if unknown_method and not self._one_by_one:
            self._one_by_one = True
            self._queue.put_back(lost)
            return True
        if error is not None and error.never_reached:
            self._queue.put_back(lost)
            return False
        message = text_of(error) if error is not None else "the Pump ended the stream"
        for pending in lost:
            pending.finish(Failure(Reason.BROKEN, message, maybe_stored=True))
        self._queue.fail_queued(Failure(Reason.BROKEN, message, maybe_stored=False))
        return False

    def _call_by_call(self, channel: Channel) -> tuple[CallFailed | None, list[PendingWrite]]:
        channel.start()
        windows = _Windows()
        in_flight = InFlight(windows)
        self._queue.begin(in_flight)
        error = None
        while error is None and (batch := windows.get()) is not None:
            for start in range(0, len(batch), _CALLS_AT_ONCE):
                error = self._call_window(channel, batch[start : start + _CALLS_AT_ONCE])
                if error is not None:
                    break
            else:
                self._queue.acked(in_flight)
        return error, self._queue.end(in_flight)

    def _call_window(self, channel: Channel, batch: Sequence[PendingWrite]) -> CallFailed | None:
        calls: list[tuple[PendingWrite, PendingReply]] = []
        for pending in batch:
            if pending.needs_known and not self._is_known:
                failure = Failure(Reason.INVALID, "it cannot give its id", maybe_stored=False)
                pending.finish(failure)
                continue
            request = pump_pb2.WriteBinlogReq(
                clusterID=self.target.cluster_id, payload=pending.payload
            ).SerializeToString()
            call = PendingReply.to(channel, _WRITE_BINLOG, request, timeout_s=_UNARY_CALL_S)
            calls.append((pending, call))
        for pending, call in calls:
            try:
                message = pump_pb2.WriteBinlogResp.FromString(call.result()).errmsg
            except CallFailed as error:
                failure = _failure_by_code(error)
                pending.finish(failure)
                if failure.reason is Reason.BROKEN:
                    return error
            else:
                pending.finish(_failure_by_text(message) if message else None)
        return None


class DecidedCalls:
    """Calls with decided transactions on one connection, each read by the thread that makes it."""

    def __init__(self, target: Target, options: Options) -> None:
        self.target = target
        self._options = options
        self._channel: Channel | None = None

    def write(
        self, version: int, payloads: Sequence[bytes], timeout_s: float
    ) -> Sequence[int] | Failure:
        """Return the commit_ts once all are durable; after a `Failure` some may be."""
        target, is_sent = self.target, False
        try:
            channel = self._connected()
            if isinstance(channel, Failure):
                return channel
            request = penstock_pb2.DecidedBatch(
                cluster_id=target.cluster_id, schema_version=version, payloads=payloads
            ).SerializeToString()
            is_sent = True
            answer = unary(channel, _WRITE_DECIDED, request, timeout_s=timeout_s)
        except grpc.RpcError as error:
            self.close()
            refusal = refusal_of(target.address, target.tls, error)
            if refusal is not None:
                return Failure(Reason.CERTIFICATE, str(refusal), is_sent)
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                problem = f"{target.node_id} has no method WriteDecided"
                return Failure(Reason.TOO_OLD, problem, maybe_stored=False)
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            return Failure(Reason.TIMED_OUT if is_late else Reason.BROKEN, text_of(error), is_sent)
        reply = penstock_pb2.DecidedReply.FromString(answer)
        return failure_of(reply.refusal) if reply.HasField("refusal") else reply.commit_ts

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _connected(self) -> Channel | Failure:
        if self._channel is None or self._channel.ending is not None:
            self.close()
            self._channel = channel = Channel(self.target.address, self.target.tls)
            node_id = _status(channel, self._options.connect_timeout_s).node_id
            if node_id != self.target.node_id:
                self.close()
                problem = f"{self.target.address} now is {node_id}"
                return Failure(Reason.BROKEN, problem, maybe_stored=False)
        return self._channel


class _Batches:
    """The batches of one connection, numbered as they are sent, and their acknowledgements.

    The thread in `run` reads the socket and hands over each message directly.
    """

    def __init__(self, channel: Channel, writes: WriteQueue, cluster_id: int) -> None:
        self._channel = channel
        self._writes = writes
        self._cluster_id = cluster_id
        self._in_flight = InFlight(self)
        self._seq = 0
        self._is_over = self._is_finished = False
        self._error: CallFailed | None = None
        self._call = channel.call(_WRITE, self)

    def run(self) -> tuple[CallFailed | None, list[PendingWrite]]:
        """Send and receive until the call ends; return its error and the unanswered writes."""
        self._writes.begin(self._in_flight)
        self._channel.serve(lambda: self._is_over)
        return self._error, self._writes.end(self._in_flight)

    def queue(self, batch: list[PendingWrite]) -> None:
        self._seq += 1
        payloads = [pending.payload for pending in batch]
        self._call.queue(write_batch_pieces(self._cluster_id, self._seq, payloads))

    def flush(self) -> None:
        if self._is_finished:
            self._call.end()
        self._call.flush()

    def finish(self) -> None:
        self._is_finished = True

    def on_message(self, message: bytes) -> None:
        """Send the writes gathered since, then release the writers of the oldest batch."""
        ack = penstock_pb2.WriteAck.FromString(message)
        batch = self._writes.acked(self._in_flight)
        if not ack.refusals:
            for pending in batch:
                pending.finish(None)
            return
        refused = {refusal.index: failure_of(refusal) for refusal in ack.refusals}
        for index, pending in enumerate(batch):
            pending.finish(refused.get(index))

    def on_end(self, error: CallFailed | None) -> None:
        self._is_over, self._error = True, error


class _Windows:
    """Batches for the thread that makes one call per binlog."""

    def __init__(self) -> None:
        self._batches: queue.SimpleQueue[list[PendingWrite] | None] = queue.SimpleQueue()
        self.get = self._batches.get

    def queue(self, batch: list[PendingWrite]) -> None:
        self._batches.put(batch)

    def flush(self) -> None:
        """Do nothing: the sending thread is awake."""

    def finish(self) -> None:
        self._batches.put(None)


def _status(channel: Channel, timeout_s: float) -> penstock_pb2.StatusReply:
    """Connect and return the peer's status; raises `RpcError`."""
    channel.connect(timeout_s)
    request = penstock_pb2.StatusRequest().SerializeToString()
    return penstock_pb2.StatusReply.FromString(
        unary(channel, _STATUS, request, timeout_s=timeout_s)
    )


def status_of(target: Target, options: Options) -> penstock_pb2.StatusReply | str:
    """Ask a Pump for its status on a separate connection; if it has none, return why."""
    with Channel(target.address, target.tls) as channel:
        try:
            status = _status(channel, options.connect_timeout_s)
        except grpc.RpcError as error:
            return text_of(error)
    is_meant = status.node_id == target.node_id
    return status if is_meant else f"{target.address} now is {status.node_id}"


def _failure_by_code(error: CallFailed) -> Failure:
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return Failure(Reason.BROKEN, text_of(error), maybe_stored=True)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Failure(Reason.TIMED_OUT, text_of(error), maybe_stored=True)
    return _failure_by_text(text_of(error))


def _failure_by_text(message: str) -> Failure:
    """Return the failure that an error of TiDB-Binlog's Pumps means, recognised by its text."""
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
    reason = _REASONS.get(refusal.code, Reason.ERROR)
    return Failure(reason, refusal.message, maybe_stored=reason in _MAYBE_STORED)


def text_of(error: grpc.RpcError) -> str:
    return f"{error.code().name}: {error.details()}"


def write_large(
    target: Target, options: Options, prewrite: Payload, timeout_s: float
) -> Failure | None:
    """Try once to make a large Prewrite durable on a Pump; None means success.

    It uses a dedicated connection, so that no small write waits for it, and first verifies that the
    node at this address is the target. Raises the errors of reading the rows.
    """
    sent = 0

    def messages() -> Iterator[bytes]:
        nonlocal sent
        for data in prewrite.chunks():
            fields = (0, 0, 0) if sent else (target.cluster_id, prewrite.start_ts, len(prewrite))
            sent += len(data)
            yield encode_write_piece(*fields, data)

    with Channel(target.address, target.tls) as channel:
        try:
            node_id = _status(channel, options.connect_timeout_s).node_id
            if node_id != target.node_id:
                problem = f"{target.address} now is {node_id}"
                return Failure(Reason.BROKEN, problem, maybe_stored=False)
            channel.start()
            reply = stream_unary(channel, _WRITE_LARGE, messages(), timeout_s=timeout_s)
        except grpc.RpcError as error:
            is_complete = sent >= len(prewrite)
            refusal = refusal_of(target.address, target.tls, error)
            if refusal is not None:
                return Failure(Reason.CERTIFICATE, str(refusal), is_complete)
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                problem = "it has no method WriteLarge, so it takes no large transactions"
                return Failure(Reason.TOO_OLD, problem, maybe_stored=False)
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            reason = Reason.TIMED_OUT if is_late else Reason.BROKEN
            return Failure(reason, text_of(error), is_complete)
    for refused in penstock_pb2.WriteAck.FromString(reply).refusals:
        failure = failure_of(refused)
        return replace(failure, maybe_stored=failure.maybe_stored and sent >= len(prewrite))
    return None
