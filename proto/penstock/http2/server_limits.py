"""Server limits: bounds everything that a peer can make a server hold, or do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.http2.frames import WINDOW_MAX, ConnectionFault, ErrorCode


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Bounds of a server and of each of its connections; bytes unless the name says otherwise."""

    message_bytes_max: int = 4 << 20
    """The largest request; RESOURCE_EXHAUSTED above it."""
    calls_max: int = 20_000
    """Concurrent calls on the whole server; RESOURCE_EXHAUSTED above it."""
    streams_max: int = 1_000
    """Concurrent calls on one connection; REFUSED_STREAM above it."""
    connections_max: int = 10_000
    """Further connections are closed as soon as they are accepted."""
    frame_bytes_max: int = 128 << 10
    """The largest frame that a peer may send."""
    header_bytes_max: int = 32 << 10
    """The largest header block, packed as well as unpacked; ENHANCE_YOUR_CALM above it."""
    header_table_bytes: int = 0
    """The dynamic table with which a peer may pack header blocks.

    Without a table, equal blocks mean the same and are recognised by their bytes.
    """
    stream_window: int = 4 << 20
    """The bytes that a peer may send on a stream before its handler takes them."""
    connection_window: int = 64 << 20
    """The same for all streams of a connection."""
    partial_bytes_max: int = 1 << 30
    """Bytes of incomplete messages, on the whole server; RESOURCE_EXHAUSTED above it.

    One message of `message_bytes_max` always fits.
    """
    unsent_bytes_max: int = 4 << 20
    """Bytes of answers that the peer has not read; above it nothing more is read from the peer."""
    noise_max: int = 4_000
    """Frames that cause work without data: resets, pings, settings, empty frames.

    A connection that sends more, not counting those that `noise_per_s` forgives, is ended by
    ENHANCE_YOUR_CALM. Each answer forgives some as well.
    """
    noise_per_s: int = 500
    waiting_bytes_max: int = 256 << 20
    """Bytes of messages that wait for their peers' windows, on the whole server. Above it, the
    call with the longest time without progress ends with RESOURCE_EXHAUSTED, unless it waits
    alone."""
    begin_s: float = 5.0
    """How long a caller may take for TLS and then for the first bytes of HTTP/2."""
    ping_after_s: float = 20.0
    """A connection that was silent for this long is pinged."""
    ping_answer_s: float = 10.0
    """A connection that is silent for this long after the ping is ended."""

    def __post_init__(self) -> None:
        """Refuse a window beyond the HTTP/2 maximum, which every peer would refuse."""
        assert 0 < self.stream_window <= WINDOW_MAX
        assert 0 < self.connection_window <= WINDOW_MAX


def connections_within(files_max: int) -> int:
    """Return the connection limit that leaves a quarter of the descriptors for other use."""
    return min(ServerLimits.connections_max, files_max - files_max // 4)


class Waiting(Protocol):
    """A call that waits for its peer, as the load needs it."""

    def give_up(self) -> None: ...


class Counted(Protocol):
    """A stream, as the load needs it."""

    counted_bytes: int

    @property
    def loose_bytes(self) -> int:
        """Bytes kept for the stream that none of its windows bounds."""


class Load:
    """The data that all connections of a server hold together; in the event loop's thread only."""

    __slots__ = (
        "_given_up",
        "_waiting",
        "calls",
        "ending_bytes",
        "limits",
        "partial_bytes",
        "waiting_bytes",
    )

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.calls = 0
        self.partial_bytes = 0
        self.waiting_bytes = 0
        self.ending_bytes = 0
        """Bytes of calls that were given up and whose tasks have not run since."""
        self._waiting: dict[Waiting, int] = {}
        self._given_up: dict[Waiting, int] = {}

    def wait(self, call: Waiting, size: int) -> None:
        """Count bytes that a call cannot send now, until `proceed`; may end it or earlier calls.

        An ended call releases its bytes in the next turn of the loop. If a turn brings more than
        twice the budget, the call that brings it is ended, which frees it in this turn.
        """
        if call in self._waiting:
            return
        most = self.limits.waiting_bytes_max
        held = self.waiting_bytes + self.ending_bytes
        if held and held + size > 2 * most:
            call.give_up()
            return
        self._waiting[call] = size
        self.waiting_bytes += size
        while self.waiting_bytes > most and len(self._waiting) > 1:
            first = next(iter(self._waiting))
            size = self._given_up[first] = self._waiting.pop(first)
            self.waiting_bytes -= size
            self.ending_bytes += size
            first.give_up()

    def proceed(self, call: Waiting) -> None:
        """Stop counting a call's bytes: it could send some, or has ended."""
        self.waiting_bytes -= self._waiting.pop(call, 0)
        self.ending_bytes -= self._given_up.pop(call, 0)

    def count(self, stream: Counted) -> bool:
        """Count the bytes that a stream now keeps; return whether that growth is allowed."""
        more = stream.loose_bytes - stream.counted_bytes
        stream.counted_bytes += more
        self.partial_bytes += more
        limits = self.limits
        most = max(limits.partial_bytes_max, limits.message_bytes_max)
        return more <= 0 or self.partial_bytes <= most

    def forget(self, stream: Counted) -> None:
        self.partial_bytes -= stream.counted_bytes
        stream.counted_bytes = 0


class Noise:
    """Counts a peer's frames without data, and ends the connection at too many."""

    __slots__ = ("_count", "_limits", "_now_s", "_since_s")

    def __init__(self, limits: ServerLimits, now_s: Callable[[], float]) -> None:
        self._limits = limits
        self._now_s = now_s
        self._since_s = now_s()
        self._count = 0

    def add(self, what: str, weight: int = 1) -> None:
        """Count a frame; raise `ConnectionFault` after too many."""
        self._count += weight
        if self._count <= self._limits.noise_max:
            return
        now_s = self._now_s()
        self.forgive(int((now_s - self._since_s) * self._limits.noise_per_s))
        self._since_s = now_s
        if self._count > self._limits.noise_max:
            problem = f"too many frames that bring nothing, the last of them {what}"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, problem)

    def forgive(self, count: int) -> None:
        self._count = max(0, self._count - count)
