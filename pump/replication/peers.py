"""Peers: the disks of other Pumps, as etcd lists them: for new replicas, and to read a log from.

The disks that a log's entry lists are read first, its primary's before the others, followed by all
other registered disks. A disk that was removed from the list may be intact in the requested place,
and its answer proves itself (`penstock/log/repair.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager

from google.protobuf.message import DecodeError
from google_crc32c import value

from penstock.cluster.log_entry import Copy, Disk, LogEntry, spare_disk
from penstock.cluster.node_registry import NodeKind, NodeState, Registry
from penstock.codes import Code
from penstock.errors import PenstockError, Retryable
from penstock.http2.client.calls import unary
from penstock.http2.client.channel import CallFailed, Channel
from penstock.log.frame import HEADER_SIZE, decode_header
from penstock.log.segment import BEGIN, Head
from penstock.security.tls import Tls
from pump.replication.protocol.chain import Chain, Link, Seen
from pump.replication.protocol.messages import (
    READ_BYTES_MAX,
    READ_METHOD,
    Name,
    Stretch,
    decode_bytes,
    encode_read,
)

_CONNECT_S = 1.0
_ANSWER_S = 5.0
_SEEN_S = 1.0
"""A start does not wait for a slow disk, which may be the one that failed."""


class Peers:
    """The logs, the disks and the Pumps of a cluster, as last seen in etcd."""

    def __init__(
        self,
        cluster_id: int,
        own: Copy,
        *,
        registry: Registry | None = None,
        tls: Tls | None = None,
        apart: str = "",
    ) -> None:
        """`own` names this Pump and its disk.

        `apart` is the label in which the replicas of a log must differ; empty for none.
        """
        self.cluster_id = cluster_id
        self.own = own
        self.tls = tls
        self.apart = apart
        self._registry = registry
        self.logs: Mapping[str, LogEntry] = {}
        """The entries of all logs, by the names of their Pumps."""
        self.disks: Mapping[str, Disk] = {}
        """The disks whose Pumps run, by id."""

    @property
    def draining(self) -> set[str]:
        return {disk.id for disk in self.disks.values() if disk.is_draining}

    def epoch(self, node_id: str) -> int | None:
        entry = self.logs.get(node_id)
        return None if entry is None else entry.epoch

    def state(self, node_id: str) -> NodeState | None:
        """Return the state of a Pump, asking etcd; None for a Pump that died while it started.

        etcd also lists such a Pump as paused, but a clean shutdown leaves a last word. May be
        `Retryable`.
        """
        assert self._registry is not None
        status = self._registry.get(NodeKind.PUMP, node_id)
        if status is None:
            return None
        if status.state is NodeState.PAUSED and node_id not in self._registry.last_words():
            return None
        return status.state

    def candidate(
        self, entry: LogEntry, *, excluded: Collection[str] = (), moves_to: str = ""
    ) -> Disk | None:
        """Return the disk for the next replica of a log, None if no disk is suitable.

        A disk that had a replica before is preferred. The disk that the log `moves_to` comes before
        it, and the primary's own disk is then not counted as staying.
        """
        disks, draining = self.disks, self.draining
        listed = [copy.disk for copy in (entry.primary, *entry.replicas)]
        barred = {*listed, *draining, *excluded}
        if moves_to in disks and moves_to not in (*listed, *draining):
            return disks[moves_to]
        for copy in entry.eligible:
            if copy.disk in disks and copy.disk not in barred:
                return disks[copy.disk]
        stay = [] if moves_to else listed[:1]
        stay += [disk for disk in listed[1:] if disk not in draining]
        load = Counter(copy.disk for other in self.logs.values() for copy in other.replicas)
        return spare_disk(disks.values(), stay, barred=barred, apart=self.apart, load=load)

    @contextmanager
    def sources(self, node_id: str) -> Iterator[list[PeerDisk]]:
        """Yield the other disks that may have a Pump's log, best first, without asking any."""
        entry, disks = self.logs.get(node_id), dict(self.disks)
        disks.pop(self.own.disk, None)
        listed = () if entry is None else entry.copies_known
        first = [disks.pop(copy.disk) for copy in listed if copy.disk in disks]
        in_order = [*first, *(disk for _, disk in sorted(disks.items()))]
        with ExitStack() as stack:
            yield [stack.enter_context(closing(PeerDisk(d, self, node_id))) for d in in_order]


class PeerDisk:
    """One other disk; it is connected on the first request, and never again after a failure."""

    def __init__(self, disk: Disk, peers: Peers, node_id: str) -> None:
        self._disk = disk
        self.pump = disk.pump
        self._tls = peers.tls
        self._name = Name(peers.cluster_id, node_id, disk.id)
        self._channel: Channel | None = None
        self._failed: Retryable | None = None
        self._answer_s = _ANSWER_S

    def fetch(self, number: int, begin: int, end: int) -> bytes:
        """Return bytes of a segment, fewer at its end; raises `Retryable`."""
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
            failed = Retryable(f"pump {self._disk.pump}: {text}", Code.BYTES_NOT_HERE)
            if self._channel is None:  # Not connected: do not wait for it again.
                self._failed = failed
            raise failed from error
        return b"".join(parts)

    def seen(self, chain: Chain) -> Seen | None:
        """Return the disk's log from where it parts from another log on; None without an answer.

        The end of the last segment is looked up only as far as it matters: whether a frame comes
        after the end of the same segment in that log.
        """
        self._answer_s = _SEEN_S
        try:
            return self._seen(chain)
        except (CallFailed, DecodeError, OSError, PenstockError):
            return None
        finally:
            self._answer_s = _ANSWER_S

    def edges(self) -> Seen | None:
        """Return the first and the last segment that the disk has; None without an answer."""
        try:
            heads = self._edges()
        except (CallFailed, DecodeError, OSError, PenstockError):
            return None
        links = (_link(head, BEGIN) for head in heads if head is not None)
        return Seen(Copy(self._disk.pump, self._disk.id), tuple(links))

    def _edges(self) -> tuple[Head | None, Head | None]:
        edges = self._read(Stretch(0, 0, 2 * BEGIN, edges=True))
        return Head.received(edges[:BEGIN]), Head.received(edges[BEGIN:])

    def _seen(self, chain: Chain) -> Seen:
        copy = Copy(self._disk.pump, self._disk.id)
        first, last = self._edges()
        if first is None or last is None:
            return Seen(copy, ())
        own = chain.find(last.number)
        begin = own.end if own is not None and own.is_same(_link(last, own.end)) else BEGIN
        at = self._read(Stretch(last.number, begin, HEADER_SIZE))
        is_longer = decode_header(at, 0, offset=begin, seed=value(last.encoded())) is not None
        links, head = [_link(last, begin + is_longer)], last
        while head.number > first.number and not self._is_in(chain, links[0]):
            end = head.previous_end
            before = Head.received(self._read(Stretch(head.number - 1, 0, BEGIN)))
            if before is None:  # Purged in the meantime, or damaged.
                break
            head = before
            links.insert(0, _link(head, end))
        if first.number < links[0].number:
            links.insert(0, _link(first, BEGIN))
        return Seen(copy, tuple(links))

    @staticmethod
    def _is_in(chain: Chain, link: Link) -> bool:
        own = chain.find(link.number)
        return link.end > BEGIN and own is not None and own.is_same(link)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def _read(self, wanted: Stretch) -> bytes:
        if self._channel is None:
            channel = Channel(self._disk.host, self._tls)
            channel.connect(_CONNECT_S)
            self._channel = channel
        request = encode_read(self._name, wanted)
        return decode_bytes(unary(self._channel, READ_METHOD, request, timeout_s=self._answer_s))


def _link(head: Head, end: int) -> Link:
    return Link(head.number, head.epoch, end, head.epoch_id)
