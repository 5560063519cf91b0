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

A call is its own context; half of it is the many small methods of `ServicerContext`.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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


FindHandler = Callable[[CallDetails], Awaitable[Any]]
"""Returns a method's handler, None for an unknown method."""


class ServerCall:
    """One call: its task, the reports of its connection, and its handler's context."""

    takes_message_blocks = True
    """A handler that streams may yield or write a `MessageBlock`."""

    def __init__(
        self, connection: ServerConnection, stream: ServerStream, find: FindHandler, timeout: bytes
    ) -> None:
        """Start immediately; `timeout` is the header field, empty if there is no timeout."""
        self._connection = connection
        self._stream = stream
        self._find = find
        self._loop = asyncio.get_running_loop()
        self._message: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._pushed = 0
        self._is_over = False
        self._status, self._text = grpc.StatusCode.OK, ""
        self._has_sent_headers = False
        self._fields: list[tuple[bytes, bytes]] = []
        self._trailing_fields: list[tuple[bytes, bytes]] = []
        self._decode: Callable[[bytes], Any] | None = None
        self._encode: Callable[[Any], bytes] | None = None
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
        if not self._is_over:
            self._stop()
            self.task.cancel()

    def end_with(self, status: grpc.StatusCode, text: str) -> None:
        if not self._is_over:
            self._finish(status, text)
            self.task.cancel()

    def give_up(self) -> None:
        text = "the server has too much that its peers do not take"
        self.end_with(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    # Steps of the task.

    async def _run(self) -> None:
        try:
            if self._stream.prepared is not None:
                self._send_headers(HEADERS_OK)
                await self._send_message(self._stream.prepared.message)
                self._finish(grpc.StatusCode.OK, "")
                return
            if self._stream.refusal is not None:
                await self._refuse_http(*self._stream.refusal)
                return
            self._set_deadline(self._timeout)
            await self._call()
        except BadMessage as error:
            self._finish(error.status, str(error))
        except grpc.aio.AbortError:
            pass  # The status has been sent.
        except asyncio.CancelledError:
            if not self._is_over:  # By the handler itself, or by a caller that stops the loop.
                self._finish(grpc.StatusCode.CANCELLED, "the call was cancelled by the server")
                raise
        except Exception as error:
            self._report(error)

    def _release(self, task: asyncio.Task[None]) -> None:
        """Break the reference cycle with the task, which would be collected late."""
        del self.task

    async def _refuse_http(self, status: bytes, text: str) -> None:
        while not self._stream.is_request_over:
            await self._wait_for_message()
        fields = [(b":status", status), (b"content-type", b"text/plain")]
        self._send_headers(encode(fields))
        if self._stream.head.method != b"HEAD":
            await self._send(f"{text}\n".encode())
        self._finish(grpc.StatusCode.INTERNAL, text)

    def _report(self, error: Exception) -> None:
        path = self._stream.head.path.decode("latin-1")
        if self._status is not grpc.StatusCode.OK:  # As generated services do.
            self._finish(self._status, self._text)
            return
        log.error("Unexpected [%s] raised by servicer method [%s]", error, path, exc_info=error)
        self._finish(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")

    def _set_deadline(self, timeout: bytes) -> None:
        if not timeout:
            return
        seconds = timeout_s(timeout)
        if seconds is None:
            text = f"grpc-timeout is {timeout.decode('latin-1')!r}"
            raise BadMessage(grpc.StatusCode.INTERNAL, text)
        self._timer = self._loop.call_later(
            min(seconds, _TIMER_S_MAX),
            self.end_with,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            "Deadline Exceeded",
        )

    async def _call(self) -> None:
        path = self._stream.head.path.decode("utf-8", "replace")
        handler = await self._find(CallDetails(path, self.invocation_metadata()))
        if handler is None:
            self._finish(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        self._decode, self._encode = handler.request_deserializer, handler.response_serializer
        request = self._requests() if handler.request_streaming else await self._request()
        await self._answer(handler, request)
        if not self._is_over:
            self._send_headers(self._headers())
            self._finish(self._status, self._text)

    async def _requests(self) -> AsyncIterator[Any]:
        while (message := await self._receive()) is not None:
            yield self._decoded(message)

    async def _request(self) -> Any:
        # Taken only at the end, so that it counts as unfinished until then.
        while not self._stream.is_request_over and len(self._stream.messages) < 2:
            await self._wait_for_message()
        message = await self._receive()
        if message is None:
            text = "the request has no message, and the method takes one"
            raise BadMessage(grpc.StatusCode.UNIMPLEMENTED, text)
        if self._stream.messages:
            text = "the request has more than one message, and the method takes one"
            raise BadMessage(grpc.StatusCode.UNIMPLEMENTED, text)
        return self._decoded(message)

    def _decoded(self, message: bytes) -> Any:
        if self._decode is None:
            return message
        try:
            return self._decode(message)
        except Exception as error:
            log.exception("a request cannot be decoded")
            text = "Exception deserializing request!"
            raise BadMessage(grpc.StatusCode.INTERNAL, text) from error

    async def _answer(self, handler: Any, request: Any) -> None:
        kind = ("stream" if handler.request_streaming else "unary") + "_"
        kind += "stream" if handler.response_streaming else "unary"
        result = getattr(handler, kind)(request, self)
        if handler.response_streaming:
            await self._write_all(result)
            return
        response = await result if inspect.isawaitable(result) else result
        if self._is_over:
            return
        if response is None:
            if self._status is grpc.StatusCode.OK:
                raise TypeError("the handler returned no message")
            return
        await self.write(response)

    async def _write_all(self, result: Any) -> None:
        if hasattr(result, "__aiter__"):
            try:
                async for response in result:
                    await self.write(response)
            finally:
                if hasattr(result, "aclose"):
                    await result.aclose()
        elif inspect.isawaitable(result):
            await result
        else:
            for response in result:
                await self.write(response)

    async def _receive(self) -> bytes | None:
        while True:
            message = self._connection.next_message(self._stream)
            if message is not None:
                return message
            if self._stream.is_request_over:
                return None
            await self._wait_for_message()

    async def _wait_for_message(self) -> None:
        self._check_open()
        self._message = self._loop.create_future()
        try:
            await self._message
        finally:
            self._message = None

    async def _send_message(self, message: bytes) -> None:
        if len(message) < _YIELD_BYTES:
            await self._send(MESSAGE_HEAD.pack(0, len(message)) + message)
        else:
            await self._send(MESSAGE_HEAD.pack(0, len(message)), behind_bytes=len(message))
            await self._send(message)

    async def _send(self, data: bytes | bytearray | memoryview, *, behind_bytes: int = 0) -> None:
        """Send; `behind_bytes` of the same message are held until this has left."""
        view, out, stream = memoryview(data), self._connection.out, self._stream
        sent = out.push(stream, view)
        if sent < len(view):
            await self._send_rest(view[sent:], behind_bytes)
        self._pushed += len(data)
        if self._pushed >= _YIELD_BYTES:  # Lets other tasks run.
            self._pushed = 0
            await asyncio.sleep(0)

    async def _send_rest(self, view: memoryview, behind_bytes: int) -> None:
        """Send data that the peer did not accept yet; it counts against the server's budget."""
        load, out = self._connection.load, self._connection.out
        try:
            while len(view):
                self._check_open()
                if sent := out.push(self._stream, view):
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
        self._connection.waiting[self] = None
        try:
            await self._room
        finally:
            self._connection.waiting.pop(self, None)
            self._room = None

    def _check_open(self) -> None:
        if self._is_over:
            raise asyncio.CancelledError

    def _headers(self) -> bytes:
        return HEADERS_OK + encode(self._fields) if self._fields else HEADERS_OK

    def _send_headers(self, block: bytes) -> None:
        if not self._has_sent_headers and not self._is_over:
            self._has_sent_headers = True
            self._connection.out.send_block(self._stream.id, block, 0)

    def _finish(self, status: grpc.StatusCode, text: str) -> None:
        if self._is_over:
            return
        block = trailers(status, text, tuple(self._trailing_fields))
        if not self._has_sent_headers:
            block = HEADERS_OK + block
        self._stop()
        self._connection.end(self._stream, block)

    def _stop(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # The context, for handlers and interceptors.

    async def write(self, message: Any) -> None:
        """Send a message or a `MessageBlock`; blocks while the peer does not accept more."""
        self._check_open()
        if not self._has_sent_headers:
            self._send_headers(self._headers())
        if isinstance(message, MessageBlock):
            await self._send(message.data)
        elif self._encode is None:
            await self._send_message(message)
        else:
            await self._send_message(self._encode(message))

    async def send_initial_metadata(self, metadata: Any) -> None:
        if self._has_sent_headers:
            raise grpc.aio.UsageError("initial metadata has been sent")
        self._fields = metadata_out(metadata)
        self._send_headers(self._headers())

    def set_trailing_metadata(self, metadata: Any) -> None:
        self._trailing_fields = metadata_out(metadata)

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return metadata_in(self._stream.head.metadata)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        if code is grpc.StatusCode.OK:
            code, details = grpc.StatusCode.UNKNOWN, "abort was called with OK"
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        self._finish(code, details)
        raise grpc.aio.AbortError(f"{code.name}: {details}")

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline, at least 0; None without a deadline."""
        return None if self._timer is None else max(0.0, self._timer.when() - self._loop.time())

    def set_code(self, code: grpc.StatusCode) -> None:
        self._status = code

    def set_details(self, details: str) -> None:
        self._text = details

    def peer(self) -> str:
        return self._connection.peer()

    def auth_context(self) -> Mapping[str, Any]:
        return self._connection.auth


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
