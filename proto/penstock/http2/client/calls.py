"""Calls with one answer on a channel, for threads that wait.

All messages are bytes. Failures are `CallFailed`. Deadlines are also enforced here, whether or not
the server enforces them.
"""

import threading
from collections.abc import Iterable
from typing import Self

from penstock.http2.client.channel import CallFailed, Channel, ClientCall
from penstock.http2.client.client_connection import Outcome
from penstock.http2.header_blocks import UNKNOWN


class PendingReply:
    """The one message that answers a call; a handler of it."""

    def __init__(self, channel: Channel, method: str, *, timeout_s: float | None) -> None:
        self._channel = channel
        self._message: bytes | None = None
        self._error: CallFailed | None = None
        self.is_over = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self.call: ClientCall = channel.call(method, self, timeout_s=timeout_s)

    @classmethod
    def to(cls, channel: Channel, method: str, request: bytes, *, timeout_s: float | None) -> Self:
        pending = cls(channel, method, timeout_s=timeout_s)
        pending.call.queue((request,), is_last=True)
        pending.call.flush()
        return pending

    def on_message(self, message: bytes) -> None:
        self._message = message

    def on_end(self, error: CallFailed | None) -> None:
        if not self.is_over:
            self._error = error
            self.is_over = True
            self._gate.release()

    def result(self) -> bytes:
        """Wait for the response; raises `CallFailed`. Only a single thread may wait."""
        if not self._channel.wait(lambda: self.is_over, self.call.deadline_s, self._wait):
            self.call.expire()
            if not self.is_over:  # It just ended, and the reader has not reported it yet.
                self._wait(None)
        if self._error is not None:
            raise CallFailed(self._error.outcome)  # Raising the original would cause a cycle.
        if self._message is None:
            raise CallFailed(Outcome(UNKNOWN, "the answer has no message"))
        return self._message

    def _wait(self, timeout_s: float | None) -> None:
        self._gate.acquire(timeout=-1 if timeout_s is None else timeout_s)


def unary(channel: Channel, method: str, request: bytes, *, timeout_s: float | None) -> bytes:
    return PendingReply.to(channel, method, request, timeout_s=timeout_s).result()


def stream_unary(
    channel: Channel, method: str, messages: Iterable[bytes], *, timeout_s: float | None
) -> bytes:
    """Send messages and return the answer, which may come before all are sent.

    The channel must have a thread that reads. An error of `messages` is raised here, after the call
    was cancelled.
    """
    pending = PendingReply(channel, method, timeout_s=timeout_s)
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
