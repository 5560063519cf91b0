"""Encoder of binlog events: the bodies that servers write, for scripted servers and round trips."""

import zlib
from collections.abc import Callable
from typing import Any

import zstandard

from pumpclient.mysql.events.frame import HEADER_SIZE, Checksum, pack_number, pack_uint
from pumpclient.mysql.events.transactions import (
    ALTER_COMMITS,
    ALTER_IS_UNDONE,
    GtidFlag,
    StatusVariables,
)
from pumpclient.mysql.gtid import MariadbGtid, MariadbGtidSet, MysqlGtid

XaName = tuple[int, bytes, bytes]


def format_description(
    version: str = "10.11.9-MariaDB", checksum: Checksum = Checksum.CRC32, created_s: int = 1000
) -> bytes:
    """Return the body, without the checksum that `make_event` adds."""
    fixed = pack_uint(4, 2) + version.encode("ascii").ljust(50, b"\0") + pack_uint(created_s, 4)
    return fixed + bytes([HEADER_SIZE]) + bytes(40) + bytes([checksum])


def incident(number: int, message: str) -> bytes:
    data = message.encode()
    return pack_uint(number, 2) + pack_uint(len(data), 1) + data


def xid(number: int) -> bytes:
    return pack_uint(number, 8)


def xa_prepare(one_phase: bool, name: XaName) -> bytes:
    format_, global_id, branch = name
    sizes = pack_uint(len(global_id), 4) + pack_uint(len(branch), 4)
    return bytes([one_phase]) + pack_uint(format_, 4) + sizes + global_id + branch


def rotate(position: int, file: str) -> bytes:
    return pack_uint(position, 8) + file.encode()


def gtid(gtid: MysqlGtid, rest: bytes = bytes([2]) + bytes(16)) -> bytes:
    """Return the body of a GTID, by default with an empty logical clock."""
    return bytes([0]) + gtid.source.bytes + pack_uint(gtid.number, 8) + rest


def tagged_gtid(gtid: MysqlGtid, last_committed: int = 0, commit: tuple[int, ...] = ()) -> bytes:
    """Return the body of a GTID_TAGGED; `commit` are the fields from 6 on."""
    tag = gtid.tag.encode("ascii")
    fields = [
        (0, _pack(1)),
        (1, b"".join(map(_pack, gtid.source.bytes))),
        (2, _pack_signed(gtid.number)),
        (3, _pack(len(tag)) + tag),
        (4, _pack_signed(last_committed)),
        (5, _pack_signed(2)),
        *((6 + n, _pack(number)) for n, number in enumerate(commit)),
    ]
    rest = b"".join(_pack(key) + value for key, value in fields)
    size = 0
    while True:  # The size counts itself.
        head = _pack(1) + _pack(size) + _pack(3)
        if len(head) + len(rest) == size:
            return head + rest
        size = len(head) + len(rest)


def _pack(number: int) -> bytes:
    more = max(number.bit_length() - 1, 0) // 7
    if more >= 8:
        return b"\xff" + number.to_bytes(8, "little")
    return (number << (more + 1) | (1 << more) - 1).to_bytes(more + 1, "little")


def _pack_signed(number: int) -> bytes:
    return _pack((-1 - number) << 1 | 1 if number < 0 else number << 1)


def mariadb_gtid(
    gtid: MariadbGtid, flags: int = GtidFlag.TRANSACTIONAL, xa: XaName | None = None
) -> bytes:
    """Return the body that begins a transaction; the server is the header's."""
    begin = pack_uint(gtid.sequence, 8) + pack_uint(gtid.domain, 4) + bytes([flags])
    if xa is None:
        return begin + bytes(6)
    format_, global_id, branch = xa
    sizes = bytes([len(global_id), len(branch)])
    return begin + pack_uint(format_, 4) + sizes + global_id + branch + bytes(6)


def gtid_list(gtids: MariadbGtidSet) -> bytes:
    entries = list(gtids)
    parts = [pack_uint(1 << 28 | len(entries), 4)]
    for each in entries:
        parts += [pack_uint(each.domain, 4), pack_uint(each.server, 4), pack_uint(each.sequence, 8)]
    return b"".join(parts)


def _short(data: bytes) -> bytes:
    return pack_uint(len(data), 1) + data


def _write_collations(pairs: tuple[tuple[int, int], ...]) -> bytes:
    return bytes([len(pairs)]) + b"".join(pack_uint(n, 2) for pair in pairs for n in pair)


def _write_flags3(flags3: tuple[int, int]) -> bytes:
    flags, number = flags3
    has_number = flags & (ALTER_COMMITS | ALTER_IS_UNDONE)
    return pack_uint(flags, 1) + (pack_uint(number, 8) if has_number else b"")


def _number_of(size: int) -> Callable[[int], bytes]:
    return lambda value: pack_uint(value, size)


def _pairs(values: tuple[int, ...]) -> bytes:
    return b"".join(pack_uint(value, 2) for value in values)


_STATUS: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "flags2": (0, _number_of(4)),
    "sql_mode": (1, _number_of(8)),
    "auto_increment": (3, _pairs),
    "charsets": (4, _pairs),
    "time_zone": (5, lambda zone: _short(zone.encode())),
    "lc_time_names": (7, _number_of(2)),
    "microseconds": (13, _number_of(3)),
    "explicit_defaults_ts": (16, _number_of(1)),
    "default_collation_utf8mb4": (18, _number_of(2)),
    "mariadb_hrnow_us": (128, _number_of(3)),
    "mariadb_gtid_flags3": (130, _write_flags3),
    "mariadb_collations": (131, _write_collations),
}


def encode_status(variables: StatusVariables) -> bytes:
    """Return the bytes of all variables that are known."""
    return b"".join(
        bytes([code]) + write(value)
        for name, (code, write) in _STATUS.items()
        if (value := getattr(variables, name)) is not None
    )


def payload_of(events: list[bytes], *, is_compressed: bool = True) -> bytes:
    """Return the body of a TRANSACTION_PAYLOAD of whole events without checksums."""
    plain = b"".join(events)
    stored = zstandard.ZstdCompressor().compress(plain) if is_compressed else plain
    parts = []
    for number, value in {2: 0 if is_compressed else 255, 3: len(plain), 1: len(stored)}.items():
        packed = pack_number(value)
        parts.append(bytes([number, len(packed)]) + packed)
    return b"".join([*parts, bytes([0]), stored])


def compress_block(plain: bytes) -> bytes:
    """Return `plain` as MariaDB compresses it."""
    length_size = max(1, (len(plain).bit_length() + 7) // 8)
    return b"".join(
        [bytes([0x80 | length_size]), len(plain).to_bytes(length_size, "big"), zlib.compress(plain)]
    )
