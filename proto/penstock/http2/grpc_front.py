"""gRPC front: listens, accepts, and serves gRPC on plain sockets and over TLS.

It has the methods of `grpc.aio.Server` that add services, listen, start and stop, so either server
can serve the same services. In addition it has `add_fast_unary`.

    accept ─► TLS, at most 5 s ─► ServerConnection ─► calls
      │          └─ fails: a line in the log
      └─ too many connections: closed immediately

A stop takes four steps. The ports are closed; every connection announces its last call by GOAWAY.
Calls in progress get the grace to end, then UNAVAILABLE. Pending output is sent, and the
connections are closed. Nothing remains in the event loop after that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import grpc

from penstock.http2 import frames
from penstock.http2.server_calls import ServerCall
from penstock.http2.server_connection import ServerConnection
from penstock.http2.server_limits import ServerLimits
from penstock.http2.server_stream import Load, Receiver, ServerStream
from penstock.http2.unary import UnaryHandler
from penstock.security.tls import common_names

log = logging.getLogger(__name__)

ContextSource = Callable[[], ssl.SSLContext]
"""Returns the context for the next handshake."""

_BACKLOG: Final = 1024
_ACCEPTS_A_TURN: Final = 64
_NO_FILES_PAUSE_S: Final = 0.5
_SWEEP_S: Final = 1.0
_LINGER_S: Final = 0.5
_HIGH_WATER_BYTES: Final = 256 << 10
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NO_SUCH_FAMILY: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class GrpcFront:
    """A gRPC server on asyncio; for one event loop."""

    def __init__(self, limits: ServerLimits, interceptors: Sequence[Any] = ()) -> None:
        """Interceptors are those of `grpc.aio`.

        The fast path serves only callers that each interceptor admits by its method `admits`, which
        takes the path and the result of `ServerCall.auth_context`. An interceptor without that
        method admits no caller.
        """
        self._limits = limits
        self._load = Load(limits)
        self._interceptors = tuple(interceptors)
        self._generic: list[Any] = []
        self._by_path: dict[str, Any] = {}
        self._fast: dict[bytes, UnaryHandler] = {}
        self._ports: list[tuple[socket.socket, ContextSource | None]] = []
        self.links: set[_Link] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._stopped: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns: _Turns | None = None
        self._turned_away = 0
        self._has_no_files = False

    # The interface of grpc.aio.Server.

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Serve the methods that these generic handlers know; earlier handlers are asked first."""
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Serve methods by name, if no generic handler knows them."""
        self._by_path.update({f"/{service}/{name}": each for name, each in handlers.items()})

    def add_insecure_port(self, address: str) -> int:
        """Listen without TLS on host:port and return the port; OSError if it is not available."""
        return self._listen(address, None)

    def add_tls_port(self, address: str, context: ContextSource) -> int:
        """Listen with TLS on host:port, and return the port; OSError if it is not available.

        `context` is called before each handshake.
        """
        return self._listen(address, context)

    async def start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._turns = _Turns(loop)
        for port, context in self._ports:
            loop.add_reader(port, self._accept, port, context)
        self._sweeper = loop.create_task(self._sweep())

    async def stop(self, grace: float | None) -> None:
        """Stop accepting, let calls end within `grace` seconds, then close; idempotent."""
        if self._stopped is not None:
            await self._stopped.wait()
            return
        self._stopped = asyncio.Event()
        try:
            await self._stop(grace or 0.0)
        finally:
            self._stopped.set()

    # The fast path.

    def add_fast_unary(self, path: str, handle: UnaryHandler) -> None:
        """Serve a unary method, `/package.Service/Method`, from the reader itself.

        The same method must also be among the other handlers: they serve callers that an
        interceptor must see, and compressed messages.
        """
        self._fast[path.encode("ascii")] = handle

    def flush(self) -> None:
        """Send all answers now; otherwise they are sent in the loop's next turn."""
        if self._turns is not None:
            self._turns.run()

    @property
    def calls(self) -> int:
        return self._load.calls

    @property
    def connections(self) -> int:
        return len(self.links)

    # Listening.

    def _listen(self, address: str, context: ContextSource | None) -> int:
        host, _, text = address.rpartition(":")
        host, port = host.strip("[]"), int(text)
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        opened: list[socket.socket] = []
        problem: OSError | None = None
        try:
            for family, _, _, _, where in dict.fromkeys(found):
                if port == 0 and opened:
                    where = (where[0], opened[0].getsockname()[1], *where[2:])
                try:
                    opened.append(_bound(family, where, is_only=len(found) == 1))
                except OSError as error:
                    problem = error
                    if error.errno not in _NO_SUCH_FAMILY:
                        raise
            if not opened:
                raise problem or OSError(errno.EADDRNOTAVAIL, f"{address} has no address")
        except OSError:
            for each in opened:
                each.close()
            raise
        self._ports += [(each, context) for each in opened]
        bound: int = opened[0].getsockname()[1]
        return bound

    def _accept(self, port: socket.socket, context: ContextSource | None) -> None:
        assert self._loop is not None
        for _ in range(_ACCEPTS_A_TURN):
            try:
                accepted, _ = port.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if not self._has_no_files:
                    log.error("cannot accept connections: %s", error)
                if error.errno not in _NO_FILES:  # A connection that failed before it was accepted.
                    return
                self._has_no_files = True
                self._loop.remove_reader(port)
                self._loop.call_later(_NO_FILES_PAUSE_S, self._accept_again, port, context)
                return
            self._has_no_files = False
            if self._is_full:
                if not self._turned_away:
                    log.warning("new connections are closed: there are %d", self.connections)
                self._turned_away += 1
                accepted.close()
                continue
            task = self._loop.create_task(self._connect(accepted, context))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    @property
    def _is_full(self) -> bool:
        return len(self.links) + len(self._handshakes) >= self._limits.connections_max

    def _accept_again(self, port: socket.socket, context: ContextSource | None) -> None:
        if self._stopped is None and self._loop is not None:
            self._loop.add_reader(port, self._accept, port, context)

    async def _connect(self, accepted: socket.socket, source: ContextSource | None) -> None:
        assert self._loop is not None
        with contextlib.suppress(OSError):  # Already gone.
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            context = source() if source is not None else None
        except Exception:
            log.exception("there is nothing to begin TLS with")
            accepted.close()
            return
        try:
            await self._loop.connect_accepted_socket(
                lambda: _Link(self),
                accepted,
                ssl=context,
                ssl_handshake_timeout=self._limits.begin_s if context is not None else None,
            )
        except ssl.SSLError as error:
            log.warning("the TLS handshake of a caller failed: %s", reason_of(error))
            forget_frames(error)
        except OSError as error:
            log.info("a caller left before its connection was made: %s", error)
            forget_frames(error)

    # Connections, as `_Link` needs it.

    def link_up(self, link: _Link, transport: asyncio.Transport) -> ServerConnection:
        assert self._turns is not None
        auth = _auth_of(transport.get_extra_info("ssl_object"))
        fast = {
            path: handle
            for path, handle in self._fast.items()
            if all(_admits(each, auth, path.decode("ascii")) for each in self._interceptors)
        }
        connection = ServerConnection(
            transport,
            self._load,
            peer=peer_name(transport.get_extra_info("peername")),
            fast=fast,
            open_call=self._open_call,
            later=self._turns.call_soon,
            now_s=self._turns.time,
        )
        connection.auth = auth
        self.links.add(link)
        if self._stopped is not None:
            connection.leave()
            transport.close()
        return connection

    def _open_call(
        self, connection: ServerConnection, stream: ServerStream, timeout: bytes
    ) -> Receiver:
        call = ServerCall(connection, stream, partial(self._find, self._interceptors), timeout)
        self._calls.add(call.task)
        call.task.add_done_callback(self._calls.discard)
        return call

    async def _find(self, interceptors: Sequence[Any], details: Any) -> Any:
        """Return a method's handler, through the interceptors; None for an unknown method."""
        if interceptors:
            rest = partial(self._find, interceptors[1:])
            return await interceptors[0].intercept_service(rest, details)
        for generic in self._generic:
            if (handler := generic.service(details)) is not None:
                return handler
        return self._by_path.get(details.method)

    async def _sweep(self) -> None:
        """Every second, end connections that do not start or answer; ping silent connections."""
        assert self._loop is not None
        while True:
            await asyncio.sleep(_SWEEP_S)
            if self._turned_away and not self._is_full:
                log.warning("connections are taken again: %d were closed", self._turned_away)
                self._turned_away = 0
            now_s = self._loop.time()
            for link in list(self.links):
                link.check(now_s, self._limits)

    async def _stop(self, grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        for port, _ in self._ports:
            loop.remove_reader(port)
            port.close()
        others = [*self._handshakes, *([self._sweeper] if self._sweeper is not None else [])]
        for task in others:
            task.cancel()
        await self._end_calls(loop.time() + grace_s)
        for link in self.links:
            link.finish()
        await self._until_closed()
        for link in self.links:
            link.abort()
        await self._until_closed()
        await asyncio.gather(*others, return_exceptions=True)

    async def _end_calls(self, deadline_s: float) -> None:
        links = list(self.links)
        for link in links:
            link.leave()
        for link in links:
            await _until(link.idle, deadline_s)
        for link in links:
            link.refuse_all()
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=_LINGER_S)

    async def _until_closed(self) -> None:
        deadline_s = asyncio.get_running_loop().time() + _LINGER_S
        for link in list(self.links):
            await _until(link.closed, deadline_s)


class _Turns:
    """Has all connections with output send together, in the loop's next turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[Callable[[], None]] = []
        self.time = loop.time

    def call_soon(self, function: Callable[[], None], /) -> None:
        if not self._due:
            self._loop.call_soon(self.run)
        self._due.append(function)

    def run(self) -> None:
        due, self._due = self._due, []
        for function in due:
            function()


class _Link(asyncio.Protocol):
    """A connection's transport on one side, its `ServerConnection` on the other."""

    def __init__(self, front: GrpcFront) -> None:
        self._front = front
        self._transport: asyncio.Transport | None = None
        self.connection: ServerConnection | None = None
        loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.idle: asyncio.Future[None] = loop.create_future()
        self._since_s = loop.time()
        self._is_asked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self.connection = self._front.link_up(self, transport)
        self.data_received = self.connection.receive  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        assert self.connection is not None
        self.connection.receive(data)

    def pause_writing(self) -> None:
        if self.connection is not None:
            self.connection.block()

    def resume_writing(self) -> None:
        if self.connection is not None:
            self.connection.unblock()

    def connection_lost(self, error: Exception | None) -> None:
        if self.connection is not None:
            self.connection.close()
        self._front.links.discard(self)
        for future in (self.closed, self.idle):
            if not future.done():
                future.set_result(None)

    def check(self, now_s: float, limits: ServerLimits) -> None:
        connection = self.connection
        if connection is None:
            return
        if connection.is_over:  # The peer does not even read the reason.
            if now_s - self._since_s > limits.begin_s:
                self.abort()
            return
        if connection.has_begun and connection.is_heard:
            connection.is_heard, self._is_asked, self._since_s = False, False, now_s
            return
        silent_s = now_s - self._since_s
        if not connection.has_begun:
            if silent_s > limits.begin_s:
                log.info("%s did not begin to speak HTTP/2", connection.peer())
                self._drop(connection)
        elif self._is_asked and silent_s > limits.ping_after_s + limits.ping_answer_s:
            log.info("%s does not answer: the connection is closed", connection.peer())
            self._drop(connection)
        elif not self._is_asked and silent_s > limits.ping_after_s:
            self._is_asked = True
            connection.out.send(frames.ping(b"penstock"))

    def _drop(self, connection: ServerConnection) -> None:
        connection.close()
        self.abort()

    def leave(self) -> None:
        if self.connection is not None:
            self.connection.on_idle = self._note_idle
            self.connection.leave()
            if not self.connection.streams:
                self._note_idle()

    def _note_idle(self) -> None:
        if not self.idle.done():
            self.idle.set_result(None)

    def refuse_all(self) -> None:
        if self.connection is not None:
            self.connection.refuse_all(grpc.StatusCode.UNAVAILABLE, "the server is stopping")

    def finish(self) -> None:
        """Send pending output, and close.

        Closing a socket with unread input discards output that the peer has not read. This side
        therefore only stops sending, where that is possible, until the peer has closed as well.
        """
        if self._transport is None or self._transport.is_closing():
            return
        if self.connection is not None:
            self.connection.out.flush()
            self.connection.close()
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._transport.close()
        except OSError:  # The peer has closed already.
            self._transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def _until(future: asyncio.Future[None], deadline_s: float) -> None:
    left_s = deadline_s - asyncio.get_running_loop().time()
    if not future.done() and left_s > 0:
        await asyncio.wait([future], timeout=left_s)


def _bound(family: int, where: Any, *, is_only: bool) -> socket.socket:
    port = socket.socket(family, socket.SOCK_STREAM)
    try:
        port.setblocking(False)
        # Otherwise a restart would have to wait for the connections of the last run.
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # All of IPv6 includes all of IPv4, unless that has a separate port.
            is_for_both = is_only and where[0] == "::"
            port.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_for_both)
        port.bind(where)
        port.listen(_BACKLOG)
    except OSError:
        port.close()
        raise
    return port


def _auth_of(tls: Any) -> Mapping[str, Any]:
    if tls is None:
        return {}
    names = common_names(tls.getpeercert())
    auth: dict[str, Any] = {"transport_security_type": [b"ssl"]}
    if names:
        auth["x509_common_name"] = [name.encode("utf-8") for name in names]
    return auth


def _admits(interceptor: Any, auth: Mapping[str, Any], path: str) -> bool:
    admits = getattr(interceptor, "admits", None)
    return admits is not None and bool(admits(auth, path))


def forget_frames(error: BaseException) -> None:
    """Break the cycle of a failed handshake's error and of the frames that asyncio raised it in.

    They hold the handshake's buffers, 256 KiB, until the garbage collector finds them.
    """
    error.__traceback__ = None


def reason_of(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    message = getattr(error, "verify_message", "")
    return f"{reason}: {message}" if message else reason


def peer_name(address: Any) -> str:
    if not isinstance(address, tuple):
        return f"unix:{address}"
    host, port = address[:2]
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    if host.startswith("::ffff:") and "." in host:
        return f"ipv4:{host.removeprefix('::ffff:')}:{port}"
    return f"ipv6:{urllib.parse.quote(f'[{host}]', safe=':')}:{port}"
