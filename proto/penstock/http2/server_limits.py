"""Server limits: the bounds of everything that a peer can make a server hold, or do."""

from collections.abc import Callable
from dataclasses import dataclass

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
