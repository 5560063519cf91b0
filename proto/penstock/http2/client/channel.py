"""Channel: one connection to a gRPC server, for threads that block.

    any thread ── queue ──> ClientConnection ── flush ──> socket     the one that finds it idle
                                  │                                  sends, for all that have queued
    reader ── recv ── receive ────┘                                  the reader calls the handlers
    rest   ── poll, send                                             only while the socket is full

Only these two threads ever wait for the socket, so a server that does not read delays no other
thread's deadline. A caller that makes single calls needs no reader thread: its thread reads while
it waits. With `start` a thread reads, and any thread may call.

A broken connection stays broken; a caller makes another channel. Nothing is resent automatically;
`CallFailed.never_reached` shows where a resend is safe.

Reading, sending and waiting share one socket and one state, and so one module.

Locks, taken in this order: `_reading` (of the thread that reads), `_sending` (of the thread that
sends), `_lock` (the state of the connection), the TLS end's. Handlers are called under `_reading`
only.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self

import grpc

from penstock.http2.client.client_connection import (
    ClientConnection,
    ClientLimits,
    ClientStream,
    Event,
    Outcome,
    Piece,
)
from penstock.http2.client.tls_end import TlsEnd
from penstock.http2.header_blocks import UNAVAILABLE, encode_request
from penstock.http2.messages import metadata_in
from penstock.security.tls import Tls

Metadata = Sequence[tuple[str, str | bytes]]
Wait = Callable[[float | None], object]

_READ_BYTES: Final = 256 << 10
_JOIN_BYTES: Final = 128 << 10
"""Up to this much, one copy costs less than a list of pieces for the kernel."""
_SMALL_BYTES: Final = 16 << 10
_FEW_PIECES: Final = 8
_PIECES_MAX: Final = 512
_TLS_BYTES: Final = 256 << 10
_TICK_S: Final = 1.0
"""How often the reader checks deadlines when nothing comes."""
_BACKLOG_BYTES: Final = 4 << 20
"""`ClientCall.send` waits while more than this is unsent."""
_CLOSED: Final = "the channel is closed"
_USER_AGENT: Final = "grpc-python-penstock"
_STATUS: Final = {status.value[0]: status for status in grpc.StatusCode}
_TIMEVAL: Final = struct.Struct("ll")


class CallFailed(grpc.RpcError):  # type: ignore[misc]
    """A call that ended with a status other than OK; has the methods of gRPC's own errors."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{_STATUS[outcome.status].name}: {outcome.text}")
        self.outcome = outcome

    @property
    def never_reached(self) -> bool:
        """True when the server has certainly not seen the call, so that it may be retried."""
        return self.outcome.never_reached

    def code(self) -> grpc.StatusCode:
        return _STATUS[self.outcome.status]

    def details(self) -> str:
        return self.outcome.text

    def trailing_metadata(self) -> Metadata:
        return metadata_in(self.outcome.metadata)


class Handler(Protocol):
    """Receives the events of a call; the reader calls it, so it must be quick and never raise."""

    def on_message(self, message: bytes) -> None:
        """Take ownership of a message."""

    def on_end(self, error: CallFailed | None) -> None:
        """Handle the end of the call; `error` is None if the status is OK."""


class ClientCall:
    """One call on a channel."""

    __slots__ = ("_channel", "deadline_s", "handler", "stream")

    def __init__(
        self, channel: Channel, stream: ClientStream, handler: Handler, deadline_s: float | None
    ) -> None:
        self._channel = channel
        self.stream = stream
        self.handler: Handler | None = handler
        """None once it knows the end."""
        self.deadline_s = deadline_s

    def queue(self, pieces: Sequence[bytes], *, is_last: bool = False) -> None:
        """Queue a message, in pieces that must not change; `flush` sends it.

        It does no I/O. A message for a call that is over is dropped; its handler knows the end.
        """
        with self._channel._lock:
            self._channel._connection.send(self.stream, pieces, is_last=is_last)

    def flush(self) -> None:
        """Send queued data as far as the socket accepts it; the rest follows automatically."""
        self._channel.flush()

    def send(self, message: bytes) -> None:
        """Send a message, blocking while too much is unsent, at most until the call's deadline."""
        if self._channel.wait_for_room(self.stream, self.deadline_s):
            self.queue((message,))
            self._channel.flush()
        else:
            self.expire()

    def end(self) -> None:
        with self._channel._lock:
            self._channel._connection.end(self.stream)
        self._channel.flush()

    def cancel(self, status: grpc.StatusCode = grpc.StatusCode.CANCELLED, text: str = "") -> None:
        """End the call immediately with that status, unless it is already over."""
        with self._channel._lock:
            was_open = self._channel._connection.cancel(self.stream)
        if was_open:
            self._channel.flush()
            self.end_with(CallFailed(Outcome(status.value[0], text or "cancelled")))

    def end_with(self, error: CallFailed | None) -> None:
        """Report the end to the handler, once.

        Stream, call and handler refer to each other until then, and the garbage collector of some
        processes runs rarely.
        """
        handler, self.handler, self.stream.user = self.handler, None, None
        if handler is not None:
            handler.on_end(error)

    def expire(self) -> None:
        self.cancel(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


class Channel:
    """One connection; made without I/O, then `connect`, then calls, then `close`."""

    def __init__(
        self, address: str, tls: Tls | None = None, *, limits: ClientLimits | None = None
    ) -> None:
        self.address = address
        self._host, self._port = address_parts(address)
        self._tls = tls
        self._connection = ClientConnection(limits)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting_for_room = 0
        self._sending = threading.Lock()
        self._plain: list[Piece] = []
        self._unsent: list[Piece] = []
        self._taken_bytes = 0
        self._is_full = False
        self._is_full_now = threading.Event()
        self._rest: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._end: TlsEnd | None = None
        self._blocks: dict[str, bytes] = {}
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._reader: threading.Thread | None = None
        self._reading = threading.RLock()
        self._is_aborted = False
        self._is_closed = False
        self._is_over = False
        self._next_tick_s = 0.0

    def connect(self, timeout_s: float) -> None:
        """Connect, and wait for the server's settings; raises `CallFailed` (UNAVAILABLE).

        The certificates are read again. Raises `NeedsOperator` if they were never readable.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            self._open_socket(deadline_s)
            self.flush()
            assert self._socket is not None
            with self._reading:
                while not self._connection.is_ready:
                    self._socket.settimeout(_left_s(deadline_s))
                    if not self._read():
                        raise ConnectionResetError(self._connection.ending)
            self._socket.settimeout(None)
            self._set_receive_timeout(_TICK_S)
        except (OSError, ValueError) as error:
            self.close()
            problem = f"failed to connect to {self.address}: {text_of(error)}"
            raise CallFailed(Outcome(UNAVAILABLE, problem, (), True)) from error
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start reading in the channel's own thread, so that any thread may make calls."""
        self._reader = threading.Thread(
            target=self.serve, name=f"penstock channel {self.address}", daemon=True
        )
        self._reader.start()

    @property
    def ending(self) -> str | None:
        """Why no more calls can be made; None while they can be made."""
        return self._connection.ending

    def serve(self, is_done: Callable[[], bool] = lambda: False) -> None:
        """Read in this thread and call handlers until `is_done` or the connection ends."""
        with self._reading:
            while not is_done() and self._read():
                pass

    def call(self, method: str, handler: Handler, *, timeout_s: float | None = None) -> ClientCall:
        """Start a call, whose head is sent with its first message; `handler` gets its events.

        The server knows the deadline, and the reader ends a late call, to the second.
        """
        block = self._blocks.get(method)
        if block is None:
            is_tls = self._tls is not None
            block = self._blocks[method] = request_block(method, self.address, is_tls=is_tls)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            ending = self._connection.ending
            if ending is None:
                stream = self._connection.open(block, timeout_s)
                call = stream.user = ClientCall(self, stream, handler, deadline_s)
                return call
        handler.on_end(CallFailed(Outcome(UNAVAILABLE, ending, (), True)))
        return ClientCall(self, ClientStream.never_opened(), handler, deadline_s)

    def flush(self) -> None:
        """Send queued data of all threads, unless another thread is already sending."""
        while self._is_open and not self._is_full and self._has_output():
            if not self._sending.acquire(blocking=False):
                return  # The thread that has it looks again after giving it back.
            try:
                self._send_now()
            finally:
                self._sending.release()

    def abort(self) -> None:
        """Break the connection from any thread, without waiting; its calls end in `serve`."""
        self._is_aborted = True
        if self._socket is not None:
            # Not `close`: another thread is in `recv`, and the number must stay taken.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection and all its calls; wait for the threads that use it."""
        self._is_closed = True
        self.abort()
        with self._reading:  # The reader notices the end of the socket.
            self._lose(_CLOSED)
        self._is_full_now.set()
        for thread in (self._reader, self._rest):
            if thread is not None and thread is not threading.current_thread():
                thread.join()
        if self._socket is not None:
            with self._sending:
                self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def wait(
        self, is_done: Callable[[], bool], deadline_s: float | None, wait: Wait | None = None
    ) -> bool:
        """Wait for an effect of a handler; False when the deadline is over.

        `wait` waits at most as long as its argument, while another thread reads. This thread reads
        unless the channel has a thread for that.
        """
        if self._reader is not None:
            assert wait is not None, "this channel's calls are for threads that read themselves"
            if not is_done():
                wait(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))
            return is_done()
        with self._reading:
            while not is_done() and not self._is_over:
                left_s = _TICK_S if deadline_s is None else deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._set_receive_timeout(min(left_s, _TICK_S))
                self._read()
            self._set_receive_timeout(_TICK_S)
        return is_done()

    def wait_for_room(self, stream: ClientStream, deadline_s: float | None) -> bool:
        """Wait until little is unsent or the stream is over; False if the deadline expires."""
        if self._backlog(stream) < _BACKLOG_BYTES:
            return True
        with self._room:
            self._waiting_for_room += 1
            try:
                return self._room.wait_for(
                    lambda: stream.is_over or self._backlog(stream) < _BACKLOG_BYTES,
                    None if deadline_s is None else max(0.0, deadline_s - time.monotonic()),
                )
            finally:
                self._waiting_for_room -= 1

    def _backlog(self, stream: ClientStream) -> int:
        return stream.unsent_bytes + self._connection.unsent_bytes + self._taken_bytes

    def _open_socket(self, deadline_s: float) -> None:
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        problem: OSError | None = None
        for family, kind, protocol, _, address in found:
            self._socket = opened = socket.socket(family, kind, protocol)
            try:
                if self._is_aborted:
                    raise ConnectionAbortedError(_CLOSED)
                opened.settimeout(_left_s(deadline_s))
                opened.connect(address)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    self._end = TlsEnd(self._tls.client_context(), self._host)
                    agreed = self._end.shake_hands(opened)
                    if agreed not in ("h2", None):
                        raise ConnectionRefusedError(f"the peer speaks {agreed} and not HTTP/2")
                return
            except OSError as error:
                opened.close()
                problem = problem or error
        try:
            raise problem or OSError("the host has no address")
        finally:
            problem = None  # Otherwise the error and this frame refer to each other.

    def _read(self) -> bool:
        """Read once and call the handlers of received frames; False when the connection is over.

        Raises `TimeoutError` only while the socket has its own time-out.
        """
        assert self._socket is not None
        try:
            size = self._socket.recv_into(self._buffer)
            data = bytes(self._view[:size])
            if self._end is not None and size:
                data = self._end.decrypt(data)
        except BlockingIOError:  # The time-out of `SO_RCVTIMEO`.
            return self._tick()
        except TimeoutError:
            raise
        except OSError as error:
            return self._lose(self._lost_text(error))
        if not size:
            return self._lose(self._lost_text(None))
        with self._lock:
            events = self._connection.receive(data)
            if self._waiting_for_room:
                self._room.notify_all()
        self._dispatch(events)
        self.flush()
        if (fault := self._connection.fault) is not None:
            return self._lose(f"the server broke a rule of HTTP/2: {fault}")
        return self._tick() if time.monotonic() >= self._next_tick_s else True

    def _lost_text(self, error: OSError | None) -> str:
        is_ready, is_tls = self._connection.is_ready, self._tls is not None
        return lost_text(error, is_ready=is_ready, is_tls=is_tls)

    def _dispatch(self, events: Sequence[Event]) -> None:
        for stream, what in events:
            call = stream.user
            if not isinstance(call, ClientCall):
                continue  # Another thread has cancelled it.
            if isinstance(what, Outcome):
                call.end_with(CallFailed(what) if what.status else None)
            elif (handler := call.handler) is not None:
                handler.on_message(what)

    def _tick(self) -> bool:
        now_s = time.monotonic()
        self._next_tick_s = now_s + _TICK_S
        with self._lock:
            streams = self._connection.streams
        for stream in streams:
            call = stream.user
            if not isinstance(call, ClientCall) or call.deadline_s is None:
                continue
            if call.deadline_s <= now_s:
                call.expire()
        return True

    def _lose(self, problem: str) -> bool:
        self._is_over = True
        with self._lock:
            # A server may answer our own close with a reset, which is not the reason why calls end.
            events = self._connection.lost(_CLOSED if self._is_closed else problem)
            self._room.notify_all()
        self._is_full_now.set()
        self._dispatch(events)
        return False

    def _has_output(self) -> bool:
        return bool(
            self._connection.has_output
            or self._unsent
            or self._plain
            or (self._end is not None and self._end.has_output)
        )

    def _send_now(self) -> None:
        """Send until nothing is left or the socket is full; the caller holds `_sending`."""
        try:
            while self._is_open and (self._unsent or self._take()):
                self._send_some()
                if self._waiting_for_room:
                    with self._lock:
                        self._room.notify_all()
        except BlockingIOError:
            self._is_full = True
            if self._rest is None:
                self._rest = threading.Thread(
                    target=self._send_rest, name=f"penstock rest {self.address}", daemon=True
                )
                self._rest.start()
            self._is_full_now.set()
        except OSError:
            self.abort()  # Received bytes may still be read; then the reader ends all calls.
        except BaseException:
            self.abort()  # An interrupt: the amount sent is unknown.
            raise

    @property
    def _is_open(self) -> bool:
        return not self._is_aborted and not self._is_over

    def _take(self) -> bool:
        with self._lock:
            pieces = self._connection.take()
        if self._end is None:
            self._unsent = packed(pieces)
        else:
            self._plain += packed(pieces)
            size, taken = 0, []
            while self._plain and size < _TLS_BYTES:
                taken.append(self._plain.pop(0))
                size += len(taken[-1])
            data = self._end.encrypt(taken)
            self._unsent = [data] if data else []
        self._taken_bytes = sum(map(len, self._unsent)) + sum(map(len, self._plain))
        return bool(self._unsent)

    def _send_some(self) -> None:
        """Send without blocking; raises `BlockingIOError` when the socket accepts nothing."""
        assert self._socket is not None
        pieces = self._unsent
        if len(pieces) == 1:
            sent = self._socket.send(pieces[0], socket.MSG_DONTWAIT)
        else:
            sent = self._socket.sendmsg(pieces[:_PIECES_MAX], (), socket.MSG_DONTWAIT)
        self._taken_bytes -= sent
        done = 0
        while done < len(pieces) and sent >= len(pieces[done]):
            sent -= len(pieces[done])
            done += 1
        del pieces[:done]
        if sent:
            pieces[0] = memoryview(pieces[0])[sent:]

    def _send_rest(self) -> None:
        assert self._socket is not None
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while self._is_full_now.wait() and self._is_open:
            self._is_full_now.clear()
            while self._is_open and not poll.poll(_TICK_S * 1000):
                pass
            with self._sending:
                self._is_full = False
                self._send_now()
            self.flush()

    def _set_receive_timeout(self, timeout_s: float) -> None:
        assert self._socket is not None
        seconds, rest = divmod(max(timeout_s, 1e-3), 1.0)
        timeval = _TIMEVAL.pack(int(seconds), int(rest * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


def address_parts(address: str) -> tuple[str, str]:
    """Return host and port of `host:port`; an IPv6 host is in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), port


def request_block(method: str, address: str, *, is_tls: bool) -> bytes:
    scheme = "https" if is_tls else "http"
    return encode_request(method, address, scheme=scheme, user_agent=_USER_AGENT)


def packed(pieces: list[Piece]) -> list[Piece]:
    """Return the same bytes in fewer pieces: small pieces joined, large pieces not copied."""
    if len(pieces) <= 1:
        return pieces
    if sum(map(len, pieces)) < _SMALL_BYTES:
        return [b"".join(pieces)]
    if len(pieces) <= _FEW_PIECES:
        return pieces
    result: list[Piece] = []
    small: list[Piece] = []
    size = 0
    for piece in pieces:
        if len(piece) < _SMALL_BYTES:
            small.append(piece)
            size += len(piece)
            if size < _JOIN_BYTES:
                continue
            piece = b""
        if small:
            result.append(b"".join(small))
            small, size = [], 0
        if len(piece):
            result.append(piece)
    if small:
        result.append(b"".join(small))
    return result


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s


def lost_text(error: Exception | None, *, is_ready: bool, is_tls: bool) -> str:
    """Describe the end of a connection; if the server closed it early, suggest a reason."""
    if not is_ready and (error is None or isinstance(error, ConnectionError)):
        early = "it closed the connection before it spoke HTTP/2"
        return early if is_tls else f"{early}; does it want TLS?"
    return "the connection is closed" if error is None else text_of(error)


def text_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}"
    return str(getattr(error, "strerror", None) or error)
