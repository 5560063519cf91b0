"""Shipper: carries a primary's requests to one replica, one at a time, and returns the answers.

    connect ── connected ──> ask, append, append …  one call in progress
       ^                         │ nothing to send: a sign of life
       └──── 0.1 s ── broken <───┘ silent, once that has lasted for the time-out

If a machine refuses the connection, no Pump runs there, and a part of the time-out is enough. A
replica that reports its position and then refuses the data sent to it, such as on a full disk,
counts as silent.

A joining replica is sent data that was acknowledged long ago and may have become corrupted. A
segment is therefore checked, and repaired, before any part of it is sent that all others have.

Requests that were queued without a connection are dropped; the core asks again when it hears
`connected`. An older segment goes over a separate connection, so that live groups need not wait.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Protocol

from google.protobuf.message import DecodeError

from penstock.cluster.log_entry import Copy
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable, code_of_call
from penstock.http2.client.calls import stream_unary, unary
from penstock.http2.client.channel import CallFailed, Channel
from penstock.log.segments import Place
from penstock.pb import penstock_pb2 as pb
from pump.replication.peers import Peers
from pump.replication.protocol.messages import (
    FOLLOW_METHOD,
    PREPEND_METHOD,
    Answer,
    Append,
    Ask,
    Followed,
    Name,
    Prepend,
    Request,
    SignOfLife,
    decode_answer,
    encode_request,
    link_message,
)

log = logging.getLogger(__name__)

_RECONNECT_S = 0.1
_SIGN_OF_LIFE_S = 0.2
_REFUSED_WITHIN_S = 0.1
_REFUSED_SHARE = 0.25
_SEGMENT_WITHIN_S = 600.0
_OLDER_PAUSE_S_MAX = 30.0
_PIECE_BYTES = 1 << 20
_Failures = (CallFailed, DecodeError, NeedsOperator, Retryable, OSError)


class ShippedLog(Protocol):
    """The log that a primary ships, and the receiver of answers; `Shipping` implements it."""

    repair: Callable[[int], bool]
    acknowledged: Place

    @property
    def epoch(self) -> int: ...

    @property
    def is_well(self) -> bool: ...

    def read(self, number: int, begin: int, end: int) -> bytes: ...

    def connected(self, disk: str) -> None: ...

    def answered(self, disk: str, answer: Answer) -> None: ...

    def silent(self, disk: str) -> None: ...

    def failed(self, what: str) -> None: ...


class Shipper:
    """The calls to one replica."""

    def __init__(
        self, copy: Copy, log: ShippedLog, *, peers: Peers, node_id: str, timeout_s: float
    ) -> None:
        self.copy = copy
        self.problem = ""
        """The reason why the replica cannot be reached; empty while it can."""
        self._name = Name(peers.cluster_id, node_id, copy.disk)
        self._peers = peers
        self._log = log
        self._timeout_s = timeout_s
        self._requests: queue.SimpleQueue[Followed | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._heard_s = time.monotonic()
        """When the replica answered last, not counting a replica that refuses data."""
        self._refuses = False
        self._older_problem = ""
        """The reason why the last older segment was refused."""
        self._older_pause_s = timeout_s
        self._checked = -1
        """The last segment that was checked, for this connection, before a part of it was sent."""
        self._thread = threading.Thread(target=self._run, name=f"ship {copy.pump}", daemon=True)
        self._thread.start()

    def send(self, request: Request) -> None:
        if isinstance(request, Prepend):
            threading.Thread(target=self._prepend, args=(request,), daemon=True).start()
        else:
            self._requests.put(request)

    def close(self) -> None:
        """Stop sending; does not wait for a call in progress."""
        self._closed.set()
        self._requests.put(None)

    def _run(self) -> None:
        try:
            self._ship()
        except Exception:
            log.exception("nothing is shipped to pump %s any more", self.copy.pump)
            self._log.failed(f"what ships the log to pump {self.copy.pump}")

    def _ship(self) -> None:
        while not self._closed.is_set():
            begun_s, is_connected = time.monotonic(), False
            try:
                with closing(self._connect()) as channel:
                    is_connected = True
                    self._checked = -1
                    while not self._requests.empty():
                        self._requests.get()
                    self._log.connected(self.copy.disk)
                    self._serve(channel)
            except _Failures as error:
                text = _text(error)
                if not self.problem:
                    log.warning("the copy on pump %s cannot be reached: %s", self.copy.pump, text)
                self.problem = text
            now_s = time.monotonic()
            is_refused = not is_connected and now_s - begun_s < _REFUSED_WITHIN_S
            limit_s = self._timeout_s * (_REFUSED_SHARE if is_refused else 1)
            if now_s - self._heard_s > limit_s and not self._closed.is_set():
                self._heard_s = time.monotonic()
                self._log.silent(self.copy.disk)
            self._closed.wait(_RECONNECT_S)

    def _connect(self) -> Channel:
        disk = self._peers.disks.get(self.copy.disk)
        if disk is None:
            raise OSError(f"pump {self.copy.pump} does not run with this disk")
        channel = Channel(disk.host, self._peers.tls)
        channel.connect(self._timeout_s)
        return channel

    def _serve(self, channel: Channel) -> None:
        while not self._closed.is_set():
            try:
                request = self._requests.get(timeout=_SIGN_OF_LIFE_S)
            except queue.Empty:
                if not self._log.is_well:
                    continue
                request = SignOfLife(self._log.epoch)
            if request is None:
                return
            self._call(channel, request)

    def _call(self, channel: Channel, request: Followed) -> None:
        data = b""
        if isinstance(request, Append):
            is_settled = Place(request.segment, request.offset) < self._log.acknowledged
            if is_settled and request.segment != self._checked:
                self._checked = request.segment
                self._log.repair(request.segment)
            data = self._log.read(request.segment, request.offset, request.end)
        sent = encode_request(self._name, request, data)
        try:
            reply = unary(channel, FOLLOW_METHOD, sent, timeout_s=self._timeout_s)
            answer = decode_answer(reply, request)
        except BaseException:
            self._refuses |= isinstance(request, Append)
            raise
        # A sign of life is sent only when no data waits, so nothing is refused any longer.
        self._refuses &= isinstance(request, Ask)
        if not self._refuses:
            self._heard_s = time.monotonic()
            if self.problem:
                log.info("pump %s answers again for its copy", self.copy.pump)
                self.problem = ""
        if answer is not None:
            self._log.answered(self.copy.disk, answer)

    # Sending an older segment.

    def _prepend(self, request: Prepend) -> None:
        try:
            with closing(self._connect()) as channel:
                channel.start()
                reply = stream_unary(
                    *(channel, PREPEND_METHOD, self._pieces(request)), timeout_s=_SEGMENT_WITHIN_S
                )
            answer = decode_answer(reply)
        except _Failures as error:
            if not self._closed.is_set():
                self._not_prepended(request, error)
            return
        self._older_problem, self._older_pause_s = "", self._timeout_s
        if answer is not None:
            self._log.answered(self.copy.disk, answer)

    def _not_prepended(self, request: Prepend, error: BaseException) -> None:
        problem = _text(error)
        if problem != self._older_problem:
            number = request.link.number
            log.warning("segment %d is not given to pump %s: %s", number, self.copy.pump, problem)
        self._older_problem = problem
        # The replica checks every frame before it accepts it; this side has not checked the bytes.
        if isinstance(error, CallFailed) and code_of_call(error) is Code.COPY_MALFORMED:
            self._log.repair(request.link.number)
        pause_s = self._older_pause_s
        self._older_pause_s = min(2 * pause_s, _OLDER_PAUSE_S_MAX)
        if not self._closed.wait(pause_s):
            self._log.connected(self.copy.disk)

    def _pieces(self, request: Prepend) -> Iterator[bytes]:
        number, end = request.link.number, request.link.end
        for offset in range(0, end, _PIECE_BYTES):
            if self._closed.is_set():
                raise OSError("it is shipped no more")
            piece = pb.PrependPiece(
                data=self._log.read(number, offset, min(end, offset + _PIECE_BYTES))
            )
            if offset == 0:
                piece.log.CopyFrom(self._name.message())
                piece.epoch = request.epoch
                piece.link.CopyFrom(link_message(request.link))
            yield piece.SerializeToString()


def _text(error: BaseException) -> str:
    details = error.details() if isinstance(error, CallFailed) else str(error)
    return str(details)
