"""MySQL GTID sets in binary: in `COM_BINLOG_DUMP_GTID` and in the PREVIOUS_GTIDS event.

Classic, for sets without tags (all integers little-endian):

    8       number of servers
    16      server uuid                 } for each
    8       number of intervals         }
    8 + 8   start, stop (exclusive)     } for each interval

With tags, since MySQL 8.3. The last byte of the first eight tells the two apart:

    1       1
    6       number of (server, tag) pairs
    1       1
    16      server uuid                 } for each pair
    1       bytes of the tag, times two }
    n       tag                         }
    8       number of intervals         }
    8 + 8   start, stop (exclusive)     } for each interval
"""

from __future__ import annotations

import struct
from uuid import UUID

from penstock.errors import Malformed
from pumpclient.mysql.gtid.mysql import NUMBER_END, MysqlGtidSet

_U64 = struct.Struct("<Q")
_INTERVAL = struct.Struct("<QQ")
_UUID_SIZE = 16
_TAGGED = 1
_HINT = "the server writes GTID sets in a form that this version does not know, or bytes are lost"


def encode_sids(gtids: MysqlGtidSet) -> bytes:
    """Return the set in binary: the classic form unless a tag needs the other."""
    items = list(gtids.items())
    tagged = any(tag for (_, tag), _ in items)
    if tagged:
        out = [bytes([_TAGGED]) + len(items).to_bytes(6, "little") + bytes([_TAGGED])]
    else:
        out = [_U64.pack(len(items))]
    for (source, tag), intervals in items:
        out.append(source.bytes)
        if tagged:
            out.append(bytes([len(tag) << 1]) + tag.encode("ascii"))
        out.append(_U64.pack(len(intervals)))
        out += [_INTERVAL.pack(start, stop) for start, stop in intervals]
    return b"".join(out)


def decode_sids(data: bytes) -> MysqlGtidSet:
    """Return the set in `data`; raise `Malformed` when it is not exactly one."""
    try:
        found, end = _decode(data)
    except (struct.error, IndexError, ValueError) as error:
        raise Malformed(
            f"undecodable GTID set of {len(data)} bytes: {error}", hint=_HINT
        ) from error
    if end != len(data):
        raise Malformed(f"{len(data) - end} bytes too many behind a GTID set", hint=_HINT)
    return found


def _decode(data: bytes) -> tuple[MysqlGtidSet, int]:
    found = MysqlGtidSet()
    (count,) = _U64.unpack_from(data)
    tagged = data[7] == _TAGGED
    if tagged:
        count = int.from_bytes(data[1:7], "little")
    at = _U64.size
    for _ in range(count):
        source = UUID(bytes=data[at : at + _UUID_SIZE])
        at += _UUID_SIZE
        tag = ""
        if tagged:
            size = data[at] >> 1
            tag = data[at + 1 : at + 1 + size].decode("ascii")
            at += 1 + size
        (intervals,) = _U64.unpack_from(data, at)
        at += _U64.size
        for _ in range(intervals):
            start, stop = _INTERVAL.unpack_from(data, at)
            at += _INTERVAL.size
            if not 1 <= start < stop <= NUMBER_END:
                raise ValueError(f"an interval from {start} to {stop}")
            found.add_interval((source, tag), (start, stop))
    return found, at
