"""Encoder of binlog events: the bodies that servers write, for scripted servers and round trips.

`encode(event)` is the inverse of `decode_event` for each type; MySQL's tags and status variables,
and what servers compress, have functions of their own.
"""

import zlib
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import zstandard

from pumpclient.mysql.events.files import (
    BinlogCheckpoint,
    FormatDescription,
    GtidList,
    Heartbeat,
    Incident,
    PreviousGtids,
    Rotate,
    StartEncryption,
)
from pumpclient.mysql.events.frame import HEADER_SIZE, pack_number, pack_uint
from pumpclient.mysql.events.statements import (
    ALTER_COMMITS,
    ALTER_IS_UNDONE,
    IntVar,
    Query,
    Rand,
    RowsQuery,
    StatusVariables,
    UserVar,
)
from pumpclient.mysql.events.transactions import (
    NO_UUID,
    CommitInfo,
    Compression,
    Gtid,
    GtidFlag,
    MariadbGtidEvent,
    TransactionPayload,
    XaPrepare,
    Xid,
)
from pumpclient.mysql.gtid import MariadbGtid, encode_sids


@singledispatch
def encode(event: object) -> bytes:
    """Return the body of an event as its server writes it."""
    raise TypeError(f"{event!r} is no event with an encoder")


@encode.register
def _query(event: Query) -> bytes:
    return event.encode()


@encode.register
def _user_var(event: UserVar) -> bytes:
    return event.encode()


@encode.register
def _format_description(event: FormatDescription) -> bytes:
    """Return the body, without the checksum that `make_event` adds."""
    return b"".join(
        [
            pack_uint(4, 2),
            event.server_version.encode("ascii").ljust(50, b"\0"),
            pack_uint(event.created_s, 4),
            bytes([HEADER_SIZE]),
            event.post_header_lengths,
            bytes([event.checksum]),
        ]
    )


@encode.register
def _heartbeat(event: Heartbeat) -> bytes:
    """Return the body: of a HEARTBEAT_V2 when there is a position."""
    name = event.file.encode()
    if event.position is None:
        return name
    position = pack_number(event.position)
    return b"".join(
        [
            bytes([1]) + pack_number(len(name)) + name,
            bytes([2]) + pack_number(len(position)) + position,
            bytes([0]),
        ]
    )


@encode.register
def _incident(event: Incident) -> bytes:
    message = event.message.encode()
    return pack_uint(event.number, 2) + pack_uint(len(message), 1) + message


@encode.register
def _rows_query(event: RowsQuery) -> bytes:
    """Return MySQL's body; MariaDB's ANNOTATE_ROWS is the statement itself."""
    return bytes([min(len(event.statement), 0xFF)]) + event.statement


@encode.register
def _int_var(event: IntVar) -> bytes:
    return bytes([event.kind]) + pack_uint(event.value, 8)


@encode.register
def _rand(event: Rand) -> bytes:
    return pack_uint(event.seed1, 8) + pack_uint(event.seed2, 8)


@encode.register
def _xid(event: Xid) -> bytes:
    return pack_uint(event.number, 8)


@encode.register
def _xa_prepare(event: XaPrepare) -> bytes:
    return b"".join(
        [
            bytes([event.one_phase]),
            pack_uint(event.xid.format, 4),
            pack_uint(len(event.xid.global_id), 4),
            pack_uint(len(event.xid.branch), 4),
            event.xid.global_id,
            event.xid.branch,
        ]
    )


@encode.register
def _rotate(event: Rotate) -> bytes:
    return pack_uint(event.position, 8) + event.file.encode()


@encode.register
def _gtid(event: Gtid) -> bytes:
    source, number = (event.gtid.source, event.gtid.number) if event.gtid else (NO_UUID, 0)
    fixed = [
        bytes([event.flags]),
        source.bytes,
        pack_uint(number, 8),
        bytes([2]),
        pack_uint(event.last_committed, 8),
        pack_uint(event.sequence, 8),
    ]
    return b"".join([*fixed, _encode_commit(event.commit) if event.commit else b""])


def _encode_commit(commit: CommitInfo) -> bytes:
    if commit.original_us == commit.immediate_us:
        times = pack_uint(commit.immediate_us, 7)
    else:
        times = pack_uint(commit.immediate_us | 1 << 55, 7) + pack_uint(commit.original_us, 7)
    if commit.original_version == commit.immediate_version:
        versions = pack_uint(commit.immediate_version, 4)
    else:
        versions = pack_uint(commit.immediate_version | 1 << 31, 4)
        versions += pack_uint(commit.original_version, 4)
    ticket = b"" if commit.ticket is None else pack_uint(commit.ticket, 8)
    return times + pack_number(commit.transaction_bytes) + versions + ticket


@encode.register
def _previous_gtids(event: PreviousGtids) -> bytes:
    return encode_sids(event.gtids)


def encode_tagged(event: Gtid) -> bytes:
    """Return the body; the event must have a GTID and its commit's data."""
    gtid, commit = event.gtid, event.commit
    assert gtid is not None, "only a GTID can have a tag"
    assert commit is not None, "servers that know tags describe the commit"
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


@encode.register
def _mariadb_gtid(event: MariadbGtidEvent) -> bytes:
    parts = [pack_uint(event.sequence, 8), pack_uint(event.domain, 4), bytes([event.flags])]
    if event.commit_id is not None:
        parts.append(pack_uint(event.commit_id, 8))
    if event.xid is not None:
        parts.append(pack_uint(event.xid.format, 4))
        parts.append(bytes([len(event.xid.global_id), len(event.xid.branch)]))
        parts += [event.xid.global_id, event.xid.branch]
    return b"".join([*parts, event.rest])


def begin_mariadb(gtid: MariadbGtid, flags: GtidFlag = GtidFlag.TRANSACTIONAL) -> MariadbGtidEvent:
    padding = bytes(6)
    return MariadbGtidEvent(gtid.sequence, gtid.domain, flags, rest=padding)


@encode.register
def _gtid_list(event: GtidList) -> bytes:
    entries = list(event.gtids)
    parts = [pack_uint(event.flags << 28 | len(entries), 4)]
    for gtid in entries:
        parts += [pack_uint(gtid.domain, 4), pack_uint(gtid.server, 4)]
        parts.append(pack_uint(gtid.sequence, 8))
    return b"".join(parts)


@encode.register
def _binlog_checkpoint(event: BinlogCheckpoint) -> bytes:
    name = event.file.encode()
    return pack_uint(len(name), 4) + name


@encode.register
def _start_encryption(event: StartEncryption) -> bytes:
    return bytes([event.scheme]) + pack_uint(event.key_version, 4) + event.nonce


def _short(data: bytes) -> bytes:
    return pack_uint(len(data), 1) + data


def _write_schemas(names: tuple[bytes, ...]) -> bytes:
    if not names:
        return bytes([254])
    return bytes([len(names)]) + b"".join(name + b"\0" for name in names)


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
    "catalog": (6, _short),
    "lc_time_names": (7, _number_of(2)),
    "charset_database": (8, _number_of(2)),
    "table_map_for_update": (9, _number_of(8)),
    "master_data_written": (10, _number_of(4)),
    "invoker": (11, lambda pair: _short(pair[0]) + _short(pair[1])),
    "updated_schemas": (12, _write_schemas),
    "microseconds": (13, _number_of(3)),
    "explicit_defaults_ts": (16, _number_of(1)),
    "ddl_xid": (17, _number_of(8)),
    "default_collation_utf8mb4": (18, _number_of(2)),
    "sql_require_primary_key": (19, _number_of(1)),
    "default_table_encryption": (20, _number_of(1)),
    "mysql_code_21": (21, _number_of(1)),
    "mariadb_hrnow_us": (128, _number_of(3)),
    "mariadb_xid": (129, _number_of(8)),
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


def payload_of(events: list[bytes], compression: Compression) -> TransactionPayload:
    """Return the payload of whole events without checksums."""
    plain = b"".join(events)
    stored = plain
    if compression is Compression.ZSTD:
        stored = zstandard.ZstdCompressor().compress(plain)
    return TransactionPayload(compression, stored, len(plain))


def compress_block(plain: bytes) -> bytes:
    """Return `plain` as MariaDB compresses it."""
    length_size = max(1, (len(plain).bit_length() + 7) // 8)
    return b"".join(
        [bytes([0x80 | length_size]), len(plain).to_bytes(length_size, "big"), zlib.compress(plain)]
    )


@encode.register
def _transaction_payload(event: TransactionPayload) -> bytes:
    fields = {2: event.compression, 3: event.plain_bytes, 1: len(event.payload)}
    parts = []
    for number, value in fields.items():
        packed = pack_number(value)
        parts.append(bytes([number, len(packed)]) + packed)
    return b"".join([*parts, bytes([0]), event.payload])
