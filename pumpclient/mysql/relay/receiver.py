"""Keeps a relay log up to date from a server's stream, reconnecting as needed.

    stream ── Transformer: what to keep, what is complete ── RelayWriter ── sync ── meta ── ACK
                └─ TransactionTracker: where transactions end

Only this thread writes. After a lost connection it reconnects and continues after the last complete
transaction: repeated events are compared with the existing bytes and dropped. A sync puts the data
on the disk before relay.meta refers to it, and before the server gets an acknowledgement.

    type                                     written   consequence
    ROTATE, FORMAT_DESCRIPTION               by the writer's own rules
    HEARTBEAT, HEARTBEAT_V2                  no        the server has no new events
    all others made for the stream           no
    PREVIOUS_GTIDS, GTID_LIST                yes       all earlier files' GTIDs are known
    XID, XA_PREPARE, TRANSACTION_PAYLOAD,
    QUERY that is a DDL, COMMIT or ROLLBACK  yes       a transaction ends: its GTID counts
    all others                               yes

Each event's checksum is verified before any of this. A reader in this process takes written events
from memory, and verifies them no more. All that the server commits within `linger_s` is read,
written and reported together. With semi-sync each commit waits for it, and the reader gathers.
"""

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from zlib import crc32

from penstock.codes import Code
from penstock.errors import Malformed, PenstockError, Retryable
from penstock.waiting import spread_s
from pumpclient.mysql.events.frame import (
    CRC_OF_WHOLE,
    HEADER,
    HEADER_SIZE,
    EventFlag,
    EventType,
    FormatDescription,
    Header,
    checksum_holds,
)
from pumpclient.mysql.gtid import GtidSet
from pumpclient.mysql.protocol.server import RELOAD_ALL, ServerAddress, ServerIdentity
from pumpclient.mysql.protocol.stream import BinlogStream, StreamOptions
from pumpclient.mysql.relay.boundaries import Recovered, TransactionTracker
from pumpclient.mysql.relay.layout import FIRST_POSITION, FileName, Location, Meta, RelayFolder
from pumpclient.mysql.relay.reader import Growth
from pumpclient.mysql.relay.resume import ResumeFinder, Start
from pumpclient.mysql.relay.writer import RelayWriter

_HEARTBEATS = frozenset({EventType.HEARTBEAT, EventType.HEARTBEAT_V2})
_FRAMES = frozenset({EventType.ROTATE, EventType.FORMAT_DESCRIPTION})
_OF_STREAM = _HEARTBEATS | _FRAMES
_ARTIFICIAL = int(EventFlag.ARTIFICIAL)  # An IntFlag's own `&` takes a microsecond.


class Transformer:
    """Feeds a writer and a tracker; the complete part ends at `safe` of the writer's file."""

    def __init__(self, writer: RelayWriter, tracker: TransactionTracker) -> None:
        self.writer = writer
        self.tracker = tracker
        self.safe = FIRST_POSITION
        self.last_event_s = 0
        self.is_idle = False

    def take(self, events: Iterable[bytes]) -> None:
        """Process events as received; raise `Malformed` for an event that is not intact."""
        unpack, put, handlers = HEADER.unpack_from, self.writer.put, self.tracker.handlers
        writer, tracker = self.writer, self.tracker
        for event in events:
            if len(event) < HEADER_SIZE:
                raise self._damaged("shorter than a header")
            timestamp_s, type_, _, size, end_position, flags = unpack(event)
            if size != len(event):
                raise self._damaged(f"{len(event)} bytes long, its header says {size}")
            if flags & _ARTIFICIAL or type_ in _OF_STREAM:
                if type_ in _FRAMES:
                    self._frame(event)
                elif type_ in _HEARTBEATS:
                    self.is_idle = True
                continue
            if writer.checksum and crc32(event) != CRC_OF_WHOLE:
                raise self._damaged("its checksum does not hold")
            put(event, end_position, size)
            if type_ in handlers:
                handlers[type_](type_, event)
            if not tracker.inside:
                self.safe = writer.at
            self.last_event_s = timestamp_s
            self.is_idle = False

    def _frame(self, event: bytes) -> None:
        header = Header._make(HEADER.unpack_from(event))
        if header.type == EventType.ROTATE:
            if self.writer.checksum and not self._is_rotate_whole(event, header):
                raise self._damaged("its checksum does not hold")
            self.writer.rotate(event, header)
        else:
            file = self.writer.file
            description = FormatDescription.decode(event[HEADER_SIZE:])
            if description.checksum and not checksum_holds(event):
                raise self._damaged("its checksum does not hold")
            self.writer.describe(event, header, description)
            self.tracker.begin_file(description.checksum)
            if file != self.writer.file:
                self.safe = FIRST_POSITION
        if not self.tracker.inside and self.writer.is_open:
            self.safe = max(self.safe, min(self.writer.at, self.writer.offset))

    def _is_rotate_whole(self, event: bytes, header: Header) -> bool:
        # An event made for the stream follows the session's checksum, not the file's.
        return header.timestamp_s == 0 or header.is_artificial or checksum_holds(event)

    def _damaged(self, what: str) -> Malformed:
        return Malformed(
            f"the event at {self.writer.at} of the server's {self.writer.file} is damaged: {what}",
            "mariadb-binlog or mysqlbinlog with --verify-binlog-checksum on the server tells"
            f" whether its file is; if so, {RELOAD_ALL}",
            Code.EVENT_MALFORMED,
        )


logger = logging.getLogger(__name__)

_POSITION_END = 1 << 32
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LIVE_BYTES_MAX = 64 << 10
"""A larger batch at once is of the past, and more is waiting."""


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """Settings of the relay: when to sync (the first bound reached), the pause of retries."""

    stream: StreamOptions = field(default_factory=StreamOptions)
    start: Start = field(default_factory=Start)
    sync_bytes_max: int = 64 << 20
    sync_interval_s: float = 1.0
    linger_s: float = 0.010
    """Transactions that the server commits within this time are read and sent as one group."""
    retry_s_min: float = 0.1
    retry_s_max: float = 30.0


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """Progress of the relay log; `gtids` as of the last sync, 0 s behind when idle.

    While the server sends nothing, `behind_s` grows with the time.
    """

    server: ServerIdentity | None = None
    connected: bool = False
    heard: bool = False
    """Whether anything arrived since it is connected."""
    end: Location | None = None
    gtids: str = ""
    relayed_bytes: int = 0
    bytes_per_s: float = 0.0
    behind_s: float = 0.0
    reconnects: int = 0
    problem: str = ""


class RelayReceiver:
    """One relay log. `run` until `stop`, which may come from any thread."""

    def __init__(self, root: Path, address: ServerAddress, options: RelayOptions) -> None:
        # With semi-sync each commit of the server waits until it is read.
        self.growth = Growth(options.linger_s if options.stream.semi_sync else 0.0)
        self._root = root
        self._address = address
        self._options = options
        self._stopped = threading.Event()
        self._folder: RelayFolder | None = None
        self._stream: BinlogStream | None = None
        self._transformer: Transformer | None = None
        self._saved: Meta | None = None
        self._synced_s = time.monotonic()
        self._measured = (time.monotonic(), 0)
        self._damaged_at: tuple[str, int] | None = None
        self._status = RelayStatus()
        self._heard_s = time.monotonic()
        self._woken_s = 0.0

    def status(self) -> RelayStatus:
        status = self._status
        if status.heard:
            return status
        return replace(status, behind_s=status.behind_s + time.monotonic() - self._heard_s)

    def stop(self) -> None:
        """Make `run` return soon, with everything synced."""
        self._stopped.set()
        stream = self._stream
        if stream is not None:
            stream.close()

    def run(self) -> None:
        """Relay until `stop`; raise `NeedsOperator` or `Corrupt` if a retry cannot help."""
        failures = 0
        while not self._stopped.is_set():
            relayed_bytes = self._status.relayed_bytes
            try:
                self._connect_and_relay()
                continue
            except Retryable as error:
                problem: Exception = error
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                problem = error
                self._abandon()
            except Malformed as error:
                self._once_only(error)
                problem = error
            except PenstockError as error:
                self._fail(error)
                raise
            finally:
                self._leave()
            failures = 0 if self._status.relayed_bytes > relayed_bytes else failures + 1
            self._retry_later(problem, failures)
        self._finish()

    def _retry_later(self, problem: Exception, failures: int) -> None:
        if self._stopped.is_set():
            return
        wait_s = spread_s(failures, self._options.retry_s_min, self._options.retry_s_max)
        logger.warning("relay of %s: %s; again in %.1f s", self._address, problem, wait_s)
        self._status = replace(self._status, problem=str(problem))
        self._stopped.wait(wait_s)
        self._status = replace(self._status, reconnects=self._status.reconnects + 1)

    def _once_only(self, error: Malformed) -> None:
        """Allow one resend of a damaged event: the network may be at fault, or the server."""
        writer = self._transformer.writer if self._transformer else None
        at = (str(writer.file), writer.at) if writer else ("", 0)
        if at == self._damaged_at:
            self._fail(error)
            raise error
        self._damaged_at = at

    def _fail(self, error: Exception) -> None:
        self._status = replace(self._status, problem=str(error))
        self._abandon()

    def _abandon(self) -> None:
        if self._transformer is not None:
            self._transformer.writer.abandon()
        self._transformer = None

    def _leave(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._status = replace(self._status, connected=False, heard=False)

    def _finish(self) -> None:
        if self._transformer is not None:
            self._sync(self._transformer)
            self._transformer.writer.close()
            self._transformer = None

    def _connect_and_relay(self) -> None:
        stream = self._stream = BinlogStream(self._address, self._options.stream)
        if self._stopped.is_set():
            return
        if self._folder is None:
            self._folder = RelayFolder(self._root, stream.identity.flavor)
            for purged in self._folder.trim():
                logger.info("%s was purged and leaves the index", purged)
        file, position = self._place(self._folder, stream)
        stream.start_at(file, position if position < _POSITION_END else FIRST_POSITION)
        transformer = self._transformer
        assert transformer is not None
        self._status = replace(self._status, server=stream.identity, connected=True, problem="")
        for batch in stream.batches():
            transformer.take(batch)
            transformer.writer.flush()
            transformer.is_idle = transformer.is_idle or not batch
            self._report(transformer, batch)
            self._sync_when_due(transformer, stream)
            self._linger(batch)

    def _linger(self, batch: list[bytes]) -> None:
        options = self._options
        if batch and not options.stream.semi_sync and sum(map(len, batch)) < _LIVE_BYTES_MAX:
            time.sleep(max(0.0, self._woken_s + options.linger_s - time.monotonic()))
        self._woken_s = time.monotonic()

    def _place(self, folder: RelayFolder, stream: BinlogStream) -> tuple[str, int]:
        """Return where the dump starts, and position the writer there."""
        known = self._complete()
        self.growth.forget()
        origin = ResumeFinder(folder, self._address, self._options.stream)
        found = origin.find(stream.identity, self._options.start, known)
        assert folder.current is not None
        assert found.file is not None
        suffix, growth = folder.current.suffix, self.growth

        def written(file: FileName, begin: int, events: list[bytes], size: int) -> None:
            growth.hand_over(Location(suffix, file, begin), events, size)

        writer = RelayWriter(folder.path(folder.current), written)
        self._transformer = Transformer(writer, TransactionTracker(found.gtids.copy()))
        self._saved = None
        growth.report(Location(suffix, found.file, found.position))
        return str(found.file), found.position

    def _complete(self) -> Recovered | None:
        """Close the writer; return the end of its last complete transaction, if it is known."""
        transformer, self._transformer = self._transformer, None
        if transformer is None or transformer.writer.file is None:
            return None
        self._sync(transformer)
        file = transformer.writer.file
        transformer.writer.close()
        return Recovered(file, transformer.safe, transformer.tracker.gtids)

    def _report(self, transformer: Transformer, batch: list[bytes]) -> None:
        assert self._folder is not None
        assert self._folder.current is not None
        writer = transformer.writer
        now_s = time.monotonic()
        relayed_bytes = self._status.relayed_bytes + sum(map(len, batch))
        begun_s, begun_bytes = self._measured
        rate = self._status.bytes_per_s
        if now_s - begun_s >= 1:
            rate = (relayed_bytes - begun_bytes) / (now_s - begun_s)
            self._measured = (now_s, relayed_bytes)
        behind_s = 0.0 if transformer.is_idle else max(0.0, time.time() - transformer.last_event_s)
        end = self._status.end
        if writer.file is not None:
            end = Location(self._folder.current.suffix, writer.file, writer.offset)
        self._heard_s = now_s
        self._status = replace(
            self._status,
            heard=True,
            end=end,
            relayed_bytes=relayed_bytes,
            bytes_per_s=rate,
            behind_s=behind_s,
        )
        if end is not None:
            self.growth.report(end)

    def _sync_when_due(self, transformer: Transformer, stream: BinlogStream) -> None:
        writer = transformer.writer
        if stream.ack_wanted and writer.is_open:
            writer.sync()
            stream.ack(str(writer.file), writer.at)
        late = time.monotonic() - self._synced_s >= self._options.sync_interval_s
        if late or writer.unsynced_bytes >= self._options.sync_bytes_max:
            self._sync(transformer)

    def _sync(self, transformer: Transformer) -> None:
        """Sync the data to disk, then the meta that refers to it."""
        self._synced_s = time.monotonic()
        writer = transformer.writer
        if writer.file is None or self._folder is None:
            return
        writer.sync()
        gtids: GtidSet = transformer.tracker.gtids
        saved = self._saved
        if (
            saved is not None
            and saved.file == str(writer.file)
            and saved.position >= transformer.safe
        ):
            return
        meta = Meta(str(writer.file), transformer.safe, gtids.copy())
        self._folder.save(meta)
        self._saved = meta
        self._status = replace(self._status, gtids=str(gtids))


def start_thread(receiver: RelayReceiver, failed: Callable[[Exception], None]) -> threading.Thread:
    """Run the receiver in its own thread; `failed` receives the exception `run` raised."""

    def run() -> None:
        try:
            receiver.run()
        except (PenstockError, OSError) as error:
            failed(error)

    thread = threading.Thread(target=run, name="mysql relay", daemon=True)
    thread.start()
    return thread
