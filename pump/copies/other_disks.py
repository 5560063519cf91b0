"""Other disks: what they have of a log, for one on which bytes of it have rotted.

The disks that the log's entry lists come first, its primary's before the others; then all other
disks that there are. One that was put off the list may be whole in the very place that is asked
for, and what it sends proves itself (`penstock/log/mending.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

from google.protobuf.message import DecodeError

from penstock.cluster.disks import Disk
from penstock.cluster.log_entry import LogEntry
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.http2.client.calls import unary
from penstock.http2.client.channel import CallFailed, Channel
from penstock.security.tls import Tls
from pump.replicas.wire import (
    READ_BYTES_MAX,
    READ_METHOD,
    Name,
    Stretch,
    decode_bytes,
    encode_read,
)

_CONNECT_S = 1.0
_ANSWER_S = 5.0


class Around(NamedTuple):
    """What has to be known to ask other disks."""

    cluster_id: int
    disk: str
    """The own one."""
    tls: Tls | None
    entry: Callable[[str], LogEntry | None]
    """Who has a log, as it was seen last."""
    disks: Callable[[], Mapping[str, Disk]]
    """Where disks are reached now."""


class OtherDisks:
    """The disks of other Pumps."""

    def __init__(self, around: Around) -> None:
        self._around = around

    @contextmanager
    def of(self, node_id: str) -> Iterator[list[OtherDisk]]:
        """Return the disks that may have the log of a Pump, best first; none is asked yet."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(
                    closing(
                        OtherDisk(
                            disk, self._around, Name(self._around.cluster_id, node_id, disk.id)
                        )
                    )
                )
                for disk in self._in_order(node_id)
            ]

    def _in_order(self, node_id: str) -> list[Disk]:
        entry, disks = self._around.entry(node_id), dict(self._around.disks())
        disks.pop(self._around.disk, None)
        listed = () if entry is None else entry.copies_known
        first = [disks.pop(copy.disk) for copy in listed if copy.disk in disks]
        return [*first, *(disk for _, disk in sorted(disks.items()))]


class OtherDisk:
    """One of them; it is connected to when it is asked first, and once it failed, no more."""

    def __init__(self, disk: Disk, around: Around, name: Name) -> None:
        self._disk = disk
        self._around = around
        self._name = name
        self._channel: Channel | None = None
        self._failed: Retryable | None = None

    def fetch(self, number: int, begin: int, end: int) -> bytes:
        """Return bytes of a segment, fewer if there are no more; raises `Retryable`."""
        if self._failed is not None:
            raise self._failed
        parts = []
        try:
            while begin < end:
                wanted = Stretch(number, begin, min(end - begin, READ_BYTES_MAX))
                data = self._read(wanted)
                parts.append(data)
                begin += len(data)
                if len(data) < wanted.length:
                    break
        except (CallFailed, DecodeError, OSError) as error:
            text = error.details() if isinstance(error, CallFailed) else str(error)
            failed = Retryable(f"pump {self._disk.pump}: {text}", code=Code.BYTES_NOT_HERE)
            if self._channel is None:  # It is not waited for again.
                self._failed = failed
            raise failed from error
        return b"".join(parts)

    def close(self) -> None:
        """Let go of the connection."""
        if self._channel is not None:
            self._channel.close()

    def _read(self, wanted: Stretch) -> bytes:
        if self._channel is None:
            channel = Channel(self._disk.host, self._around.tls)
            channel.connect(_CONNECT_S)
            self._channel = channel
        request = encode_read(self._name, wanted)
        return decode_bytes(unary(self._channel, READ_METHOD, request, timeout_s=_ANSWER_S))
