"""Server calls: a task for each call that is not on the fast path, and the context of its handler.

Handlers are those of `grpc.aio`: of the four kinds, made by `grpc.…_rpc_method_handler`, found
through the same generic handlers, behind the same interceptors. A context has the part of
`grpc.aio.ServicerContext` that handlers use, and its texts are those of grpcio.

    a handler returns        OK, or the code it has set
    `context.abort`          that status immediately; `grpc.aio.AbortError` where it was called
    another exception        UNKNOWN `Unexpected <class …>: …`, and a traceback in the log
    the caller resets        the handler is cancelled, its generators are closed
    the deadline passes      DEADLINE_EXCEEDED, and the handler is cancelled
    the connection is gone   the handler is cancelled

A call and its context are two views of one object, hence one module; half of it is the many small
methods of `ServicerContext`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from penstock.http2.frames import MESSAGE_HEAD
from penstock.http2.header_blocks import encode
from penstock.http2.messages import BadMessage, metadata_in, metadata_out, timeout_s
from penstock.http2.server_connection import HEADERS_OK, ServerConnection, trailers
from penstock.http2.server_stream import ServerStream
from penstock.http2.unary import MessageBlock

log = logging.getLogger(__name__)

_TIMER_S_MAX: Final = 86_400.0 * 24
_YIELD_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class CallDetails:
    """The details of a call for a generic handler and an interceptor."""

    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...]


class CallHandlers:
    """Finds a method's handler, through the interceptors."""

    def __init__(self, interceptors: Sequence[Any] = ()) -> None:
        self._interceptors = tuple(interceptors)
        self._generic: list[Any] = []
        self._by_path: dict[str, Any] = {}

    def add_generic(self, handlers: Sequence[Any]) -> None:
        self._generic.extend(handlers)

    def add_methods(self, service: str, handlers: Mapping[str, Any]) -> None:
        self._by_path.update({f"/{service}/{name}": h for name, h in handlers.items()})

    async def find(self, details: CallDetails) -> Any:
        if not self._interceptors:
            return self._found(details)
        return await self._continued(self._interceptors, details)

    async def _continued(self, interceptors: Sequence[Any], details: Any) -> Any:
        if not interceptors:
            return self._found(details)

        async def rest(details: Any) -> Any:
            return await self._continued(interceptors[1:], details)

        return await interceptors[0].intercept_service(rest, details)

    def _found(self, details: Any) -> Any:
        for generic in self._generic:
            if (handler := generic.service(details)) is not None:
                return handler
        return self._by_path.get(details.method)


class ServerCall:
    """One call: its task, and the reports of its connection. Its context is `CallContext`."""

    def __init__(
        self,
        connection: ServerConnection,
        stream: ServerStream,
        handlers: CallHandlers,
        timeout: bytes,
    ) -> None:
        """Start immediately; `timeout` is the header field, empty if there is no timeout."""
        self.connection = connection
        self.stream = stream
        self._handlers = handlers
        self._loop = asyncio.get_running_loop()
        self._message: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self.deadline_s: float | None = None
        self._pushed = 0
        self.is_over = False
        self.was_cancelled = False
        self.context = CallContext(self)
        self._timer: asyncio.TimerHandle | None = None
        self._timeout = timeout
        self.task = self._loop.create_task(self._run())
        self.task.add_done_callback(self._release)

    # Reports of the connection.

    def wake(self) -> None:
        _resolve(self._message)

    def let_send(self) -> None:
        _resolve(self._room)

    def close(self) -> None:
        if not self.is_over:
            self.was_cancelled = True
            self._finish()
            self.task.cancel()

    def end_with(self, status: grpc.StatusCode, text: str) -> None:
        if not self.is_over:
            self.was_cancelled = True
            self.finish(status, text)
            self.task.cancel()

    def give_up(self) -> None:
        text = "the server has too much that its peers do not take"
        self.end_with(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    # Steps of the task.

    async def _run(self) -> None:
        try:
            if self.stream.prepared is not None:
                await self._send_headers(HEADERS_OK)
                await self.send_message(self.stream.prepared.message)
                self.finish(grpc.StatusCode.OK, "")
                return
            if self.stream.refusal is not None:
                await self._refuse_http(*self.stream.refusal)
                return
            self._set_deadline(self._timeout)
            await self._call()
        except BadMessage as error:
            self.finish(error.status, str(error))
        except grpc.aio.AbortError:
            pass  # The status has been sent.
        except asyncio.CancelledError:
            if not self.is_over:  # By the handler itself, or by a caller that stops the loop.
                self.finish(grpc.StatusCode.CANCELLED, "the call was cancelled by the server")
                raise
        except Exception as error:
            self._report(error)

    def _release(self, task: asyncio.Task[None]) -> None:
        """Break reference cycles with context and task, which would be collected late."""
        del self.context, self.task

    async def _refuse_http(self, status: bytes, text: str) -> None:
        while not self.stream.is_request_over:
            await self._wait_for_message()
        fields = [(b":status", status), (b"content-type", b"text/plain")]
        await self._send_headers(encode(fields))
        if self.stream.head.method != b"HEAD":
            await self._send(f"{text}\n".encode())
        self.finish(grpc.StatusCode.INTERNAL, text)

    def _report(self, error: Exception) -> None:
        path = self.stream.head.path.decode("latin-1")
        context = self.context
        if context.status is not grpc.StatusCode.OK:  # As generated services do.
            self.finish(context.status, context.text)
            return
        log.error("Unexpected [%s] raised by servicer method [%s]", error, path, exc_info=error)
        self.finish(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")

    def _set_deadline(self, timeout: bytes) -> None:
        if not timeout:
            return
        seconds = timeout_s(timeout)
        if seconds is None:
            text = f"grpc-timeout is {timeout.decode('latin-1')!r}"
            raise BadMessage(grpc.StatusCode.INTERNAL, text)
        self.deadline_s = self._loop.time() + seconds
        self._timer = self._loop.call_later(min(seconds, _TIMER_S_MAX), self._expire)

    def _expire(self) -> None:
        self.end_with(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    async def _call(self) -> None:
        path = self.stream.head.path.decode("utf-8", "replace")
        details = CallDetails(path, self.context.invocation_metadata())
        handler = await self._handlers.find(details)
        if handler is None:
            self.finish(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        self.context.prepare(handler)
        request = self.context.requests() if handler.request_streaming else await self._request()
        await self._answer(handler, request)
        if not self.is_over:
            await self._send_headers(self.context.headers())
            self.finish(self.context.status, self.context.text)

    async def _request(self) -> Any:
        # Taken only at the end, so that it counts as unfinished until then.
        while not self.stream.is_request_over and len(self.stream.messages) < 2:
            await self._wait_for_message()
        message = await self.receive()
        if message is None:
            text = "the request has no message, and the method takes one"
            raise BadMessage(grpc.StatusCode.UNIMPLEMENTED, text)
        if self.stream.messages:
            text = "the request has more than one message, and the method takes one"
            raise BadMessage(grpc.StatusCode.UNIMPLEMENTED, text)
        return self.context.decoded(message)

    async def _answer(self, handler: Any, request: Any) -> None:
        method = _method_of(handler)
        result = method(request, self.context)
        if handler.response_streaming:
            await self._stream(result)
            return
        response = await result if inspect.isawaitable(result) else result
        if self.is_over:
            return
        if response is None:
            if self.context.status is grpc.StatusCode.OK:
                raise TypeError("the handler returned no message")
            return
        await self.context.write(response)

    async def _stream(self, result: Any) -> None:
        if hasattr(result, "__aiter__"):
            async with _closing(result):
                async for response in result:
                    await self.context.write(response)
        elif inspect.isawaitable(result):
            await result
        else:
            for response in result:
                await self.context.write(response)

    async def receive(self) -> bytes | None:
        while True:
            message = self.connection.next_message(self.stream)
            if message is not None:
                return message
            if self.stream.is_request_over:
                return None
            await self._wait_for_message()

    async def _wait_for_message(self) -> None:
        self._check_open()
        self._message = self._loop.create_future()
        try:
            await self._message
        finally:
            self._message = None

    async def send_message(self, message: bytes) -> None:
        """Send a message; blocks while the peer does not accept more."""
        if len(message) < _YIELD_BYTES:
            await self._send(MESSAGE_HEAD.pack(0, len(message)) + message)
        else:
            await self._send(MESSAGE_HEAD.pack(0, len(message)), behind_bytes=len(message))
            await self._send(message)

    async def send_block(self, block: MessageBlock) -> None:
        """Send preassembled messages; blocks while the peer does not accept more."""
        await self._send(block.data)

    async def _send(self, data: bytes | bytearray | memoryview, *, behind_bytes: int = 0) -> None:
        """Send; `behind_bytes` of the same message are held until this has left."""
        view, out, stream = memoryview(data), self.connection.out, self.stream
        sent = out.push(stream, view)
        if sent < len(view):
            await self._send_rest(view[sent:], behind_bytes)
        self._pushed += len(data)
        if self._pushed >= _YIELD_BYTES:  # Lets other tasks run.
            self._pushed = 0
            await asyncio.sleep(0)

    async def _send_rest(self, view: memoryview, behind_bytes: int) -> None:
        """Send data that the peer did not accept yet; it counts against the server's budget."""
        load, out = self.connection.load, self.connection.out
        try:
            while len(view):
                self._check_open()
                if sent := out.push(self.stream, view):
                    view = view[sent:]
                    load.proceed(self)
                else:
                    load.wait(self, len(view) + behind_bytes)
                    await self._wait_for_room()
        finally:
            load.proceed(self)

    async def _wait_for_room(self) -> None:
        self._check_open()
        self._room = self._loop.create_future()
        self.connection.waiting[self] = None
        try:
            await self._room
        finally:
            self.connection.waiting.pop(self, None)
            self._room = None

    def _check_open(self) -> None:
        if self.is_over:
            raise asyncio.CancelledError

    async def _send_headers(self, block: bytes) -> None:
        if not self.context.has_sent_headers and not self.is_over:
            self.context.has_sent_headers = True
            self.connection.out.send_block(self.stream.id, block, 0)

    def finish(self, status: grpc.StatusCode, text: str) -> None:
        """Send the status, at most a single time."""
        if self.is_over:
            return
        block = trailers(status, text, tuple(self.context.trailing_fields))
        if not self.context.has_sent_headers:
            block = HEADERS_OK + block
        self._finish()
        self.connection.end(self.stream, block)

    def _finish(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.context.run_callbacks()


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _method_of(handler: Any) -> Callable[[Any, Any], Any]:
    kind = ("stream" if handler.request_streaming else "unary") + "_"
    kind += "stream" if handler.response_streaming else "unary"
    method: Callable[[Any, Any], Any] = getattr(handler, kind)
    return method


@contextlib.asynccontextmanager
async def _closing(generator: Any) -> AsyncIterator[None]:
    try:
        yield
    finally:
        if hasattr(generator, "aclose"):
            await generator.aclose()


class CallContext:
    """A handler's view of its call, like `grpc.aio.ServicerContext`."""

    takes_message_blocks = True
    """A handler that streams may yield or write a `MessageBlock`."""

    def __init__(self, call: ServerCall) -> None:
        self._call = call
        self.status = grpc.StatusCode.OK
        self.text = ""
        self.has_sent_headers = False
        self.trailing_fields: list[tuple[bytes, bytes]] = []
        self._trailing: Any = ()
        self._fields: list[tuple[bytes, bytes]] = []
        self._callbacks: list[Callable[[Any], None]] = []
        self._decode: Callable[[bytes], Any] | None = None
        self._encode: Callable[[Any], bytes] | None = None

    def prepare(self, handler: Any) -> None:
        self._decode, self._encode = handler.request_deserializer, handler.response_serializer

    def decoded(self, message: bytes) -> Any:
        if self._decode is None:
            return message
        try:
            return self._decode(message)
        except Exception as error:
            log.exception("a request cannot be decoded")
            text = "Exception deserializing request!"
            raise BadMessage(grpc.StatusCode.INTERNAL, text) from error

    async def requests(self) -> AsyncIterator[Any]:
        while (message := await self._call.receive()) is not None:
            yield self.decoded(message)

    async def read(self) -> Any:
        """Return the next message of the request, `grpc.aio.EOF` at its end."""
        message = await self._call.receive()
        return grpc.aio.EOF if message is None else self.decoded(message)

    async def write(self, message: Any) -> None:
        """Send a message or a `MessageBlock`; blocks while the peer does not accept more."""
        call = self._call
        if call.is_over:
            raise asyncio.CancelledError
        if not self.has_sent_headers:
            self.has_sent_headers = True
            call.connection.out.send_block(call.stream.id, self.headers(), 0)
        if isinstance(message, MessageBlock):
            await call.send_block(message)
        elif self._encode is None:
            await call.send_message(message)
        else:
            await call.send_message(self._encode(message))

    def headers(self) -> bytes:
        return HEADERS_OK + encode(self._fields) if self._fields else HEADERS_OK

    async def send_initial_metadata(self, metadata: Any) -> None:
        if self.has_sent_headers:
            raise grpc.aio.UsageError("initial metadata has been sent")
        self._fields = metadata_out(metadata)
        self.has_sent_headers = True
        if not self._call.is_over:
            self._call.connection.out.send_block(self._call.stream.id, self.headers(), 0)

    def set_trailing_metadata(self, metadata: Any) -> None:
        self._trailing = tuple(metadata)
        self.trailing_fields = metadata_out(metadata)

    def trailing_metadata(self) -> Any:
        return self._trailing

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return metadata_in(self._call.stream.head.metadata)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        if code is grpc.StatusCode.OK:
            code, details = grpc.StatusCode.UNKNOWN, "abort was called with OK"
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        self._call.finish(code, details)
        raise grpc.aio.AbortError(f"{code.name}: {details}")

    async def abort_with_status(self, status: Any) -> NoReturn:
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    def set_code(self, code: grpc.StatusCode) -> None:
        self.status = code

    def code(self) -> grpc.StatusCode:
        return self.status

    def set_details(self, details: str) -> None:
        self.text = details

    def details(self) -> str:
        return self.text

    def peer(self) -> str:
        return self._call.connection.peer()

    def auth_context(self) -> Mapping[str, Any]:
        return self._call.connection.auth

    def peer_identities(self) -> Any:
        return self.auth_context().get(self.peer_identity_key() or "")

    def peer_identity_key(self) -> str | None:
        return "x509_common_name" if "x509_common_name" in self.auth_context() else None

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, at least 0; None without a deadline."""
        deadline_s = self._call.deadline_s
        if deadline_s is None:
            return None
        return max(0.0, deadline_s - asyncio.get_running_loop().time())

    def cancelled(self) -> bool:
        """Return whether the call has ended before its handler."""
        return self._call.was_cancelled

    def done(self) -> bool:
        return self._call.is_over

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._call.is_over:
            asyncio.get_running_loop().call_soon(callback, self)
        else:
            self._callbacks.append(callback)

    def run_callbacks(self) -> None:
        """Call the callbacks in the next turn, a single time."""
        loop = asyncio.get_running_loop()
        for callback in self._callbacks:
            loop.call_soon(callback, self)
        self._callbacks.clear()

    def set_compression(self, compression: Any) -> None:
        """Do nothing: answers are never compressed, which gRPC allows."""

    def disable_next_message_compression(self) -> None:
        """Do nothing: answers are never compressed."""
