"""Locator: which file of a server a GTID set, or a point in time, leads to."""

from __future__ import annotations

from contextlib import closing

from penstock.errors import NeedsOperator, Retryable
from pumpclient.mysql.events.files import rotate_of
from pumpclient.mysql.events.frame import EventType, read_header
from pumpclient.mysql.gtid import GtidSet
from pumpclient.mysql.protocol.address import ServerAddress
from pumpclient.mysql.protocol.refusals import PURGED_HINT, Purged
from pumpclient.mysql.protocol.server import ServerIdentity, binlog_files
from pumpclient.mysql.protocol.stream import BinlogStream, StreamOptions

_FIRST_POSITION = 4


def description_of(
    address: ServerAddress, options: StreamOptions, file: str
) -> tuple[ServerIdentity, bytes]:
    """Return which server answered, and the FORMAT_DESCRIPTION at the beginning of its `file`."""
    with closing(BinlogStream(address, options)) as stream:
        stream.start_at(file, _FIRST_POSITION)
        for event in stream.events():
            if read_header(event).type == EventType.FORMAT_DESCRIPTION:
                return stream.identity, event
    raise Retryable(f"{address}: the stream ended before {file} began")


def file_after(
    address: ServerAddress, options: StreamOptions, gtids: GtidSet
) -> tuple[ServerIdentity, str]:
    """Return which server answered, and its file with the first transaction not in `gtids`.

    Raises `Purged` when that file is deleted, and `NeedsOperator` when the server never had
    `gtids`.
    """
    with closing(BinlogStream(address, options)) as stream:
        stream.start_after(gtids)
        file = ""
        for event in stream.events():
            if read_header(event).type == EventType.ROTATE:
                file = rotate_of(event).file
            elif file:
                return stream.identity, file  # A refusal would have come instead.
    raise Retryable(f"{address}: the stream ended before it began")


def file_at(address: ServerAddress, options: StreamOptions, time_s: int) -> str:
    """Return the last file that began at or before `time_s` (seconds since 1970).

    Raises `Purged` when even the oldest began later: changes since then are gone.
    """
    with address.session() as connection:
        names = [file.name for file in binlog_files(connection)]
    low, high = 0, len(names)
    while low < high:  # The first file that began after `time_s` is at or after `low`.
        middle = (low + high) // 2
        _, event = description_of(address, options, names[middle])
        if read_header(event).timestamp_s <= time_s:
            low = middle + 1
        else:
            high = middle
    if not names:
        raise NeedsOperator(f"{address} has no binlog", hint="start it with log_bin")
    if low == 0:
        raise Purged(f"{address}: {names[0]} began after {time_s}", hint=PURGED_HINT)
    return names[low - 1]
