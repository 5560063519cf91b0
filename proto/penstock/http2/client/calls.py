"""Calls: gRPC's four kinds of call on a channel, for threads that wait.

    unary            PendingReply(channel, method, request).result()
    client stream    stream_unary(channel, method, messages)
    server stream    for message in MessageStream(channel, method).send_all([request])
    both             MessageStream(channel, method), with send, end and iteration in any order

All messages are bytes. Failures are `CallFailed`. Deadlines are also enforced here, whether or not
the server enforces them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Self

from penstock.http2.client.channel import CallFailed, Channel, ClientCall, Metadata
from penstock.http2.client.client_connection import Outcome
from penstock.http2.client.response_heads import UNKNOWN


class PendingReply:
    """The one message that answers a call; a handler of it."""

    def __init__(
        self, channel: Channel, method: str, *, timeout_s: float | None, metadata: Metadata = ()
    ) -> None:
        self._channel = channel
        self._message: bytes | None = None
        self._error: CallFailed | None = None
        self._is_over = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self.call: ClientCall = channel.call(method, self, timeout_s=timeout_s, metadata=metadata)

    @classmethod
    def to(
        cls,
        channel: Channel,
        method: str,
        request: bytes,
        *,
        timeout_s: float | None,
        metadata: Metadata = (),
    ) -> Self:
        pending = cls(channel, method, timeout_s=timeout_s, metadata=metadata)
        pending.call.queue((request,), is_last=True)
        pending.call.flush()
        return pending

    def on_message(self, message: bytes) -> None:
        self._message = message

    def on_end(self, error: CallFailed | None) -> None:
        if not self._is_over:
            self._error = error
            self._is_over = True
            self._gate.release()

    @property
    def is_over(self) -> bool:
        return self._is_over

    def result(self) -> bytes:
        """Wait for the response; raises `CallFailed`. Only a single thread may wait."""
        if not self._channel.wait(lambda: self._is_over, self._wait, self.call.deadline_s):
            self.call.expire()
            if not self._is_over:  # It just ended, and the reader has not reported it yet.
                self._wait(None)
        if self._error is not None:
            raise CallFailed(self._error.outcome)  # Raising the original would cause a cycle.
        if self._message is None:
            raise CallFailed(Outcome(UNKNOWN, "the answer has no message"))
        return self._message

    def _wait(self, timeout_s: float | None) -> None:
        self._gate.acquire(timeout=-1 if timeout_s is None else timeout_s)


def unary(
    channel: Channel,
    method: str,
    request: bytes,
    *,
    timeout_s: float | None,
    metadata: Metadata = (),
) -> bytes:
    made = PendingReply.to(channel, method, request, timeout_s=timeout_s, metadata=metadata)
    return made.result()


def stream_unary(
    channel: Channel,
    method: str,
    messages: Iterable[bytes],
    *,
    timeout_s: float | None,
    metadata: Metadata = (),
) -> bytes:
    """Send messages and return the answer, which may come before all are sent.

    The channel must have a thread that reads. An error of `messages` is raised here, after the call
    was cancelled.
    """
    pending = PendingReply(channel, method, timeout_s=timeout_s, metadata=metadata)
    try:
        for message in messages:
            pending.call.send(message)
            if pending.is_over:
                break
        else:
            pending.call.end()
        return pending.result()
    except BaseException:
        pending.call.cancel()
        raise


class MessageStream:
    """The messages that answer a call, in order, on request; a handler of it.

    No more is read ahead than the stream's window has room for.
    """

    def __init__(
        self,
        channel: Channel,
        method: str,
        *,
        timeout_s: float | None = None,
        metadata: Metadata = (),
    ) -> None:
        self._channel = channel
        self._came: queue.SimpleQueue[bytes | CallFailed | None] = queue.SimpleQueue()
        self._end: CallFailed | None = None
        self._is_over = False
        self.call: ClientCall = channel.call(
            method, self, timeout_s=timeout_s, metadata=metadata, is_held=True
        )

    def on_message(self, message: bytes) -> None:
        self._came.put(message)

    def on_end(self, error: CallFailed | None) -> None:
        self._came.put(error)

    def send(self, message: bytes) -> None:
        """Send a message, blocking while too much is unsent."""
        self.call.send(message)

    def end(self) -> None:
        self.call.end()

    def send_all(self, messages: Iterable[bytes]) -> Self:
        for message in messages:
            self.send(message)
        self.end()
        return self

    def cancel(self) -> None:
        """Cancel the call immediately; messages already received may still be read."""
        self.call.cancel()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Wait for the next message; raises `CallFailed` when the call ends with an error."""
        if self._is_over:
            if self._end is not None:
                raise CallFailed(self._end.outcome)  # As in `PendingReply.result`.
            raise StopIteration
        came = self._next()
        if isinstance(came, bytes):
            self.call.consumed(came)
            return came
        self._is_over, self._end = True, came
        return next(self)

    def _next(self) -> bytes | CallFailed | None:
        deadline_s = self.call.deadline_s
        if self._channel.reads_by_itself:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            try:
                return self._came.get(timeout=left_s)
            except queue.Empty:
                self.call.expire()
        elif not self._channel.wait(lambda: not self._came.empty(), _never, deadline_s):
            self.call.expire()
        return self._came.get()


def _never(timeout_s: float | None) -> None:
    raise AssertionError("a channel without a reader has its callers read")
