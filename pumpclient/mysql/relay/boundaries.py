"""Boundaries of transactions in a run of events, and the GTIDs that are complete.

A transaction starts with its GTID, or with BEGIN where servers have no GTIDs. It ends with XID,
XA_PREPARE or TRANSACTION_PAYLOAD, with COMMIT or ROLLBACK as a statement, or, without BEGIN, with
its one statement. No SQL is parsed: the first words of a statement suffice.

`recover` cuts the newest relay file to the end of its last complete transaction.
"""

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from zlib import crc32

from penstock.codes import Code
from penstock.errors import Corrupt, Malformed, NeedsOperator
from penstock.log.files import sync_data
from pumpclient.mysql.events.frame import (
    CRC_OF_WHOLE,
    FILE_MAGIC,
    HEADER,
    HEADER_SIZE,
    ROWS_TYPES,
    Checksum,
    EventType,
    FormatDescription,
    body_of,
    checksum_holds,
)
from pumpclient.mysql.events.transactions import (
    MARIADB_BEGIN,
    GtidFlag,
    Query,
    listed_gtids,
    mysql_gtid_of,
)
from pumpclient.mysql.gtid import Gtid, GtidSet, MariadbGtid, add_gtid, union
from pumpclient.mysql.relay.layout import FIRST_POSITION, FileName, Meta, files_in

_SHOWN_BYTES = 64
_STANDALONE = int(GtidFlag.STANDALONE)  # An IntFlag's own `&` takes a microsecond.

_ENDS = frozenset({EventType.XID, EventType.XA_PREPARE, EventType.TRANSACTION_PAYLOAD})
_LISTS = frozenset({EventType.PREVIOUS_GTIDS, EventType.GTID_LIST})
_BEGINS = frozenset({EventType.TABLE_MAP, *ROWS_TYPES})
_QUERIES = frozenset({EventType.QUERY, EventType.QUERY_COMPRESSED})
_GTIDS = frozenset({EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED})


class Inside(IntEnum):
    """The place of a run of events relative to a transaction."""

    NONE = 0
    GTID = 1  # After a GTID: a statement without BEGIN is the whole transaction.
    TRANSACTION = 2


class TransactionTracker:
    """Follows one run of events; `gtids` grows only where transactions end."""

    def __init__(self, gtids: GtidSet) -> None:
        """Start outside of a transaction; `gtids` are already complete."""
        self.gtids = gtids
        self.inside = Inside.NONE
        self.checksum = Checksum.NONE
        self._pending: Gtid | None = None
        # All types but these change nothing.
        self.handlers: dict[int, Callable[[int, bytes], None]] = {
            EventType.MARIADB_GTID: self._mariadb_gtid,
            **dict.fromkeys(_BEGINS, self._begin),
            **dict.fromkeys(_ENDS, self._xid),
            **dict.fromkeys(_QUERIES, self._query),
            **dict.fromkeys(_GTIDS, self._gtid),
            **dict.fromkeys(_LISTS, self._list),
        }

    def begin_file(self, checksum: Checksum) -> None:
        """Continue with a file, or resume after a complete transaction."""
        self.checksum = checksum
        self.inside = Inside.NONE
        self._pending = None

    def take(self, type_: int, event: bytes) -> None:
        handle = self.handlers.get(type_)
        if handle is not None:
            handle(type_, event)

    def _begin(self, type_: int, event: bytes) -> None:
        self.inside = Inside.TRANSACTION

    def _mariadb_gtid(self, type_: int, event: bytes) -> None:
        server, sequence, domain, flags = MARIADB_BEGIN.unpack_from(event)
        self._pending = MariadbGtid(domain, server, sequence)
        self.inside = Inside.GTID if flags & _STANDALONE else Inside.TRANSACTION

    def _xid(self, type_: int, event: bytes) -> None:
        self._end()

    def _gtid(self, type_: int, event: bytes) -> None:
        self._pending = mysql_gtid_of(type_, event, self.checksum)
        self.inside = Inside.GTID

    def _end(self) -> None:
        self.inside = Inside.NONE
        gtid, self._pending = self._pending, None
        if gtid is not None:
            add_gtid(self.gtids, gtid)

    def _list(self, type_: int, event: bytes) -> None:
        self.gtids = union(self.gtids, listed_gtids(type_, body_of(event, self.checksum)))

    def _query(self, type_: int, event: bytes) -> None:
        is_compressed = type_ == EventType.QUERY_COMPRESSED
        decode = Query.decode_compressed if is_compressed else Query.decode
        statement = decode(body_of(event, self.checksum)).statement
        words = statement[:_SHOWN_BYTES].upper().split()
        if self.inside is Inside.TRANSACTION:
            if _is_end(words):
                self._end()
        elif _is_beginning(words) or statement[-_SHOWN_BYTES:].upper().split()[-2:] == _START:
            self.inside = Inside.TRANSACTION
        elif words[:1] != [b"SAVEPOINT"]:
            self._end()


_START = [b"START", b"TRANSACTION"]  # The end of CREATE TABLE ... SELECT since MySQL 8.0.21.


def _is_beginning(words: list[bytes]) -> bool:
    return words == [b"BEGIN"] or words[:2] in ([b"XA", b"START"], [b"XA", b"BEGIN"], _START)


def _is_end(words: list[bytes]) -> bool:
    if words[:1] == [b"ROLLBACK"]:
        return b"TO" not in words[1:3]
    return words[:1] == [b"COMMIT"] or words[:2] in ([b"XA", b"COMMIT"], [b"XA", b"ROLLBACK"])


_SHORT_HINT = (
    "files were lost or cut behind our back: move the relay log away, it is fetched again from the"
    " server"
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The end of a sub-directory after recovery; `file` is None when it has no file yet."""

    file: FileName | None
    position: int
    gtids: GtidSet
    cut_bytes: int = 0


def recover(folder: Path, meta: Meta) -> Recovered:
    """Cut the newest file to its last complete transaction, and return where that is.

    Raises `NeedsOperator` when the files end before the place in `meta`, and `Corrupt` when data
    before that place is damaged: only data after it may be torn.
    """
    files = files_in(folder)
    wanted = FileName.parse(meta.file) if meta.file else None
    if wanted is not None and (not files or files[-1] < wanted):
        raise NeedsOperator(f"{folder} has no {wanted}", _SHORT_HINT, Code.RELAY_DAMAGED)
    if not files:
        return Recovered(None, FIRST_POSITION, meta.gtids)
    path = folder / str(files[-1])
    trusted = meta.position if files[-1] == wanted else 0
    size = path.stat().st_size
    if size < trusted:
        raise NeedsOperator(
            f"{path} has {size} bytes, {trusted} were relayed", _SHORT_HINT, Code.RELAY_DAMAGED
        )
    tracker = TransactionTracker(meta.gtids.copy())
    end = complete_until(path, tracker, trusted)
    return _cut(path, end, Recovered(files[-1], max(end, FIRST_POSITION), tracker.gtids))


def cut(folder: Path, known: Recovered) -> Recovered:
    """Cut the file of `known` after the last complete transaction that its writer recorded."""
    path = folder / str(known.file)
    # A file without its FORMAT_DESCRIPTION restarts from its beginning.
    end = known.position if known.position > FIRST_POSITION else 0
    return _cut(path, end, known)


def _cut(path: Path, end: int, found: Recovered) -> Recovered:
    size = path.stat().st_size
    assert end <= size, f"{path} is shorter than what was written"
    if end < size:
        os.truncate(path, end)
        _sync(path)
    return replace(found, cut_bytes=size - end)


def complete_until(path: Path, tracker: TransactionTracker, trusted: int = 0) -> int:
    """Return where the last complete transaction of a file ends, 0 when it has no beginning.

    `tracker` has taken the events up to there, and perhaps beyond, but no GTID of events beyond.
    Raises `Corrupt` for damage before `trusted`.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(FIRST_POSITION) != FILE_MAGIC:
            if size >= FIRST_POSITION or trusted:
                raise Corrupt(
                    str(path),
                    0,
                    "no binlog file: its first bytes are others",
                    code=Code.RELAY_DAMAGED,
                )
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _scan(path, data, tracker, trusted)


def _scan(path: Path, data: mmap.mmap, tracker: TransactionTracker, trusted: int) -> int:
    at, safe, size = FIRST_POSITION, 0, len(data)
    problem = ""
    while not problem and at < size:
        if size - at < HEADER_SIZE:
            problem = "it ends within a header"
            break
        _, type_, _, event_size, _, _ = HEADER.unpack_from(data, at)
        if event_size < HEADER_SIZE or at + event_size > size:
            problem = f"an event of {event_size} bytes, {size - at} are there"
            break
        event = data[at : at + event_size]
        problem = _take(type_, event, tracker)
        at += 0 if problem else event_size
        if not tracker.inside and not problem:
            safe = at
    if problem and at < trusted:
        raise Corrupt(
            str(path), at, f"{problem}, before what relay.meta counts on", code=Code.RELAY_DAMAGED
        )
    return safe


def _take(type_: int, event: bytes, tracker: TransactionTracker) -> str:
    """Process one event; return a description of its defect."""
    if type_ == EventType.FORMAT_DESCRIPTION:
        try:
            checksum = FormatDescription.decode(event[HEADER_SIZE:]).checksum
        except Malformed as error:
            return error.problem
        if checksum and not checksum_holds(event):
            return "a checksum that does not hold"
        tracker.begin_file(checksum)
    elif tracker.checksum and crc32(event) != CRC_OF_WHOLE:
        return "a checksum that does not hold"
    else:
        try:
            tracker.take(type_, event)
        except Malformed as error:
            return error.problem
    return ""


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        sync_data(file.fileno())
