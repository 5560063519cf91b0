"""Recovers the newest relay file: cuts it to the end of its last complete transaction."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

from penstock.codes import Code
from penstock.errors import Corrupt, Malformed, NeedsOperator
from pumpclient.mysql.events.files import FormatDescription
from pumpclient.mysql.events.frame import (
    CRC_OF_WHOLE,
    FILE_MAGIC,
    HEADER,
    HEADER_SIZE,
    EventType,
    checksum_holds,
)
from pumpclient.mysql.gtid import GtidSet
from pumpclient.mysql.relay.boundaries import TransactionTracker
from pumpclient.mysql.relay.layout import FIRST_POSITION, FileName, Meta, is_meta

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


def files_in(folder: Path) -> list[FileName]:
    """Return a sub-directory's binlog files in order; raise `Malformed` for another file."""
    return sorted(
        FileName.parse(child.name) for child in folder.iterdir() if not is_meta(child.name)
    )


def recover(folder: Path, meta: Meta) -> Recovered:
    """Cut the newest file to its last complete transaction, and return where that is.

    Raises `NeedsOperator` when the files end before the place in `meta`, and `Corrupt` when data
    before that place is damaged: only data after it may be torn.
    """
    files = files_in(folder)
    wanted = FileName.parse(meta.file) if meta.file else None
    if wanted is not None and (not files or files[-1] < wanted):
        raise NeedsOperator(f"{folder} has no {wanted}", hint=_SHORT_HINT, code=Code.RELAY_DAMAGED)
    if not files:
        return Recovered(None, FIRST_POSITION, meta.gtids)
    path = folder / str(files[-1])
    trusted = meta.position if files[-1] == wanted else 0
    size = path.stat().st_size
    if size < trusted:
        raise NeedsOperator(
            f"{path} has {size} bytes, {trusted} were relayed",
            hint=_SHORT_HINT,
            code=Code.RELAY_DAMAGED,
        )
    tracker = TransactionTracker(meta.gtids.copy())
    end = complete_until(path, tracker, trusted)
    return _cut(path, end, Recovered(files[-1], max(end, FIRST_POSITION), tracker.gtids))


def cut(folder: Path, known: Recovered) -> Recovered:
    """Cut the file of `known` after its last complete transaction, as its writer recorded."""
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
        os.fsync(file.fileno())
