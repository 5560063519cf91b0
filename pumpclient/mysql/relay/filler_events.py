"""Events that fill a hole: the server left something out that its file holds. Pure.

Replicas pass over them: a USER_VAR that is NULL where there is little room, else a QUERY that is
one comment. Sizes in bytes, with CRC-32; without it, 4 less:

    29 to 37   USER_VAR: header 19, length 4, name 1 to 9, is null 1, checksum 4
    38 and up  QUERY: header 19, fixed part 13, end of the schema 1, comment, checksum 4
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import Malformed
from pumpclient.mysql.events.frame import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    Checksum,
    EventFlag,
    EventType,
    Header,
    make_event,
)
from pumpclient.mysql.events.notes import UserVar
from pumpclient.mysql.events.query import Query

_NAME = b"!dummyvar"
_COMMENT = b"# events that the server did not send: "
_QUERY_SIZE_MIN = HEADER_SIZE + 13 + 1 + 1
_VARIABLE_SIZE_MIN = HEADER_SIZE + 4 + 1 + 1
_POSITION_MASK = 0xFFFF_FFFF
DUMMY_BYTES_MAX = 16 << 20
"""A larger hole takes several."""


def dummies(size: int, start: int, near: Header, checksum: Checksum) -> Iterator[bytes]:
    """Yield events of `size` bytes in all for a hole at offset `start`, dated as their neighbour.

    Raises `Malformed` when the hole is smaller than the smallest event.
    """
    while size > 2 * DUMMY_BYTES_MAX:
        yield _dummy(DUMMY_BYTES_MAX, start, near, checksum)
        size, start = size - DUMMY_BYTES_MAX, start + DUMMY_BYTES_MAX
    yield _dummy(size, start, near, checksum)


def _dummy(size: int, start: int, near: Header, checksum: Checksum) -> bytes:
    protected = CHECKSUM_SIZE if checksum else 0
    if size < _VARIABLE_SIZE_MIN + protected:
        raise Malformed(
            f"a hole of {size} bytes at {start}, which no event fits into",
            hint="the server's file is damaged, or the relay log is not of this server",
        )
    flags = EventFlag.SUPPRESS_USE | EventFlag.RELAY_LOG
    end = (start + size) & _POSITION_MASK
    header = near._replace(end_position=end, flags=int(flags))
    room = size - protected - _QUERY_SIZE_MIN + 1
    if room < 1:
        name = _NAME[: size - protected - _VARIABLE_SIZE_MIN + 1]
        body = UserVar(name, None).encode()
        return make_event(EventType.USER_VAR, body, header=header, checksum=checksum)
    comment = _COMMENT[:room].ljust(room, b".")
    return make_event(
        EventType.QUERY, Query(b"", comment).encode(), header=header, checksum=checksum
    )
