"""GTID_TAGGED, since MySQL 8.3: a GTID with a tag, in the `mysql::serialization` format.

The body is a message: version 1, its size, the last field a reader must know, then fields, each
behind its number. All numbers have variable length: the trailing one-bits of the first byte count
the bytes that follow, the value is what lies above them and the zero that ends them; nine bytes
begin with 0xff. Signed ones are folded: the lowest bit is the sign, a negative n is -1 - n.

    0   flags                              7   first commit, µs, when it differs
    1   server uuid, 16 numbers            8   bytes of the transaction
    2   transaction number, signed         9   version of the server
    3   tag: a length, then its bytes      10  version of the first server, when it differs
    4   last_committed, signed             11  ticket of the commit group
    5   sequence number, signed
    6   commit time, µs
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pumpclient.mysql.events.field_reader import BodyReader
from pumpclient.mysql.events.gtids import CommitInfo, Gtid
from pumpclient.mysql.gtid import MysqlGtid

_VERSION = 1
_SIGNED = {2, 4, 5}
_UUID_FIELD, _TAG_FIELD, _LAST_FIELD = 1, 3, 11
_LONG = 0xFF


def decode_tagged(data: bytes) -> Gtid:
    """Read a body; raise `Malformed` when it is none, or has a field that must be known."""
    body = BodyReader(data, "GTID_TAGGED")
    version, size, needed = _number(body), _number(body), _number(body)
    if version != _VERSION or size > len(data) or needed > _LAST_FIELD:
        raise body.malformed(f"version {version}, {size} bytes, fields up to {needed}")
    body.end = size
    fields: dict[int, Any] = {}
    while body.left:
        key = _number(body)
        if key > _LAST_FIELD:
            break  # Later than all that must be known.
        fields[key] = _field(body, key)
    missing = {0, 1, 2, 3, 4, 5, 6, 8, 9} - fields.keys()
    if missing:
        raise body.malformed(f"fields {sorted(missing)} are missing")
    return Gtid(
        MysqlGtid(fields[1], fields[2], fields[3]),
        fields[0],
        fields[4],
        fields[5],
        CommitInfo(
            immediate_us=fields[6],
            original_us=fields.get(7, fields[6]),
            transaction_bytes=fields[8],
            immediate_version=fields[9],
            original_version=fields.get(10, fields[9]),
            ticket=fields.get(11),
        ),
    )


def encode_tagged(event: Gtid) -> bytes:
    """Return the body; the event must have a GTID and its commit's data."""
    gtid, commit = event.gtid, event.commit
    assert gtid is not None, "only a GTID can have a tag"
    assert commit is not None, "servers that know tags tell about the commit"
    tag = gtid.tag.encode("ascii")
    fields = [
        (0, _pack(event.flags)),
        (1, b"".join(map(_pack, gtid.source.bytes))),
        (2, _pack_signed(gtid.number)),
        (3, _pack(len(tag)) + tag),
        (4, _pack_signed(event.last_committed)),
        (5, _pack_signed(event.sequence)),
        (6, _pack(commit.immediate_us)),
    ]
    if commit.original_us != commit.immediate_us:
        fields.append((7, _pack(commit.original_us)))
    fields += [(8, _pack(commit.transaction_bytes)), (9, _pack(commit.immediate_version))]
    if commit.original_version != commit.immediate_version:
        fields.append((10, _pack(commit.original_version)))
    if commit.ticket is not None:
        fields.append((11, _pack(commit.ticket)))
    rest = b"".join(_pack(key) + value for key, value in fields)
    size = 0
    while True:  # The size counts itself.
        head = _pack(_VERSION) + _pack(size) + _pack(_TAG_FIELD)
        if len(head) + len(rest) == size:
            return head + rest
        size = len(head) + len(rest)


def _field(body: BodyReader, key: int) -> Any:
    if key == _UUID_FIELD:
        numbers = [_number(body) for _ in range(16)]
        if max(numbers) > 0xFF:
            raise body.malformed("a uuid with a number above 255")
        return UUID(bytes=bytes(numbers))
    if key == _TAG_FIELD:
        return body.take(_number(body)).decode("ascii", "replace")
    number = _number(body)
    if key in _SIGNED:
        return -1 - (number >> 1) if number & 1 else number >> 1
    return number


def _number(body: BodyReader) -> int:
    first = body.uint(1)
    if first == _LONG:
        return body.uint(8)
    more = (~first & (first + 1)).bit_length() - 1
    return (first | body.uint(more) << 8) >> (more + 1)


def _pack(number: int) -> bytes:
    more = max(number.bit_length() - 1, 0) // 7
    if more >= 8:
        return bytes([_LONG]) + number.to_bytes(8, "little")
    return (number << (more + 1) | (1 << more) - 1).to_bytes(more + 1, "little")


def _pack_signed(number: int) -> bytes:
    return _pack((-1 - number) << 1 | 1 if number < 0 else number << 1)
