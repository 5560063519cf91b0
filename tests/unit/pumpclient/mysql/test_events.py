from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Malformed
from pumpclient.mysql.events import IgnoredEvent, Stop, UnreadRows, decode_event
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
from pumpclient.mysql.events.frame import (
    HEADER,
    ROWS_TYPES,
    Checksum,
    EventFlag,
    EventType,
    Header,
    body_of,
    checksum_holds,
    make_event,
    read_header,
)
from pumpclient.mysql.events.statements import (
    IntVar,
    Query,
    Rand,
    RowsQuery,
    StatusVariables,
    UserVar,
    decode_status,
)
from pumpclient.mysql.events.transactions import (
    CommitInfo,
    Compression,
    Gtid,
    GtidFlag,
    MariadbGtidEvent,
    TransactionPayload,
    XaId,
    XaPrepare,
    Xid,
    decompress_block,
)
from pumpclient.mysql.gtid import Flavor, MariadbGtid, MariadbGtidSet, MysqlGtid, MysqlGtidSet
from tests.kit.mysql.encoding import (
    begin_mariadb,
    compress_block,
    encode,
    encode_status,
    encode_tagged,
    payload_of,
)

A = UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
names = st.text("abcäöü_$-.", max_size=20)
us = st.integers(0, 2**55 - 1)
versions = st.integers(0, 2**31 - 1)
commits = st.builds(CommitInfo, us, us, st.integers(0, 2**40), versions, versions, st.none() | u64)
xa_ids = st.builds(XaId, u32, st.binary(max_size=64), st.binary(max_size=64))
numbers = st.integers(1, 2**63 - 2)
tags = st.from_regex(r"[a-z_][a-z0-9_]{0,31}", fullmatch=True)


def whole(type_: int, body: bytes, flags: int = 0) -> bytes:
    return make_event(type_, body, header=Header(7, type_, 5, 0, 99, flags))


ROUND_TRIPS: list[tuple[EventType, st.SearchStrategy[object]]] = [
    (EventType.QUERY, st.builds(Query, st.binary(max_size=9).map(lambda b: b.replace(b"\0", b"")),
                                st.binary(), st.binary(), u32, u32, u16)),
    (EventType.ROTATE, st.builds(Rotate, u64, names)),
    (EventType.XID, st.builds(Xid, u64)),
    (EventType.XA_PREPARE, st.builds(XaPrepare, st.booleans(), xa_ids)),
    (EventType.INTVAR, st.builds(IntVar, st.integers(1, 2), u64)),
    (EventType.RAND, st.builds(Rand, u64, u64)),
    (EventType.USER_VAR, st.builds(UserVar, st.binary(), st.none() | st.binary())),
    (EventType.INCIDENT, st.builds(Incident, u16, names)),
    (EventType.HEARTBEAT, st.builds(Heartbeat, names)),
    (EventType.HEARTBEAT_V2, st.builds(Heartbeat, names, u64)),
    (EventType.ROWS_QUERY, st.builds(RowsQuery, st.binary(max_size=300))),
    (EventType.GTID, st.builds(Gtid, st.builds(MysqlGtid, st.just(A), numbers, st.just("")),
                               st.integers(0, 1), u64, u64, st.none() | commits)),
    (EventType.ANONYMOUS_GTID, st.builds(Gtid, st.none(), st.just(1), u64, u64, commits)),
    (EventType.PREVIOUS_GTIDS, st.sampled_from(["", f"{A}:1-5:7", f"{A}:1:x:3"]).map(
        lambda text: PreviousGtids(MysqlGtidSet.parse(text)))),
    (EventType.MARIADB_GTID, st.builds(
        MariadbGtidEvent, u64, u32, st.integers(0, 255).filter(lambda n: not n & 0xC2),
        st.none(), st.none(), st.binary(max_size=9))),
    (EventType.MARIADB_GTID, st.builds(
        MariadbGtidEvent, u64, u32, st.just(int(GtidFlag.GROUP_COMMIT | GtidFlag.PREPARED_XA)),
        u64, xa_ids)),
    (EventType.GTID_LIST, st.sampled_from(["", "0-1-5,0-2-3,7-1-1"]).map(
        lambda text: GtidList(MariadbGtidSet.parse(text), 1))),
    (EventType.BINLOG_CHECKPOINT, st.builds(BinlogCheckpoint, names)),
    (EventType.START_ENCRYPTION, st.builds(
        StartEncryption, st.just(1), u32, st.binary(min_size=12, max_size=12))),
    (EventType.TRANSACTION_PAYLOAD, st.builds(payload_of,
        st.just([whole(EventType.STOP, b"")]), st.sampled_from(Compression))),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "events"), ROUND_TRIPS, ids=lambda v: getattr(v, "name", ""))
@given(st.data())
def test_an_event_survives_its_bytes_and_no_cut_of_them_crashes(
    type_: EventType, events: st.SearchStrategy[object], data: st.DataObject
) -> None:
    event = data.draw(events)
    body = encode(event)
    assert decode_event(whole(type_, body), Checksum.CRC32) == event
    cut = body[: data.draw(st.integers(0, len(body)))]
    with suppress(Malformed):
        decode_event(whole(type_, cut), Checksum.CRC32)


@given(st.builds(Gtid, st.builds(MysqlGtid, st.just(A), numbers, tags), st.integers(0, 1),
                 st.integers(-1, 2**62), st.integers(-1, 2**62), commits))  # fmt: skip
def test_a_tagged_gtid_survives_its_bytes(event: Gtid) -> None:
    assert decode_event(whole(EventType.GTID_TAGGED, encode_tagged(event)), Checksum.CRC32) == event


def test_a_tagged_gtid_has_the_published_layout() -> None:
    commit = CommitInfo(300, 300, 127, 128, 128)
    body = encode_tagged(
        Gtid(MysqlGtid(UUID(bytes=bytes([200]) + bytes(15)), 1, "t"), 1, -1, 2, commit)
    )
    # Version 1, size 43, last needed field 3; 200 and 300 need two bytes each: n << 2 | 1.
    assert body[:3] == bytes([2, len(body) << 1, 6])
    assert body[3:5] == bytes([0, 2])  # Field 0: flags 1.
    assert body[5:8] == bytes([2]) + (200 << 2 | 1).to_bytes(2, "little")
    assert body[8:23] == bytes(15)
    assert body[23:25] == bytes([4, 4])  # Field 2: number 1, folded to 2.
    assert body[25:28] == bytes([6, 2]) + b"t"
    assert body[28:30] == bytes([8, 2])  # Field 4: -1, folded to 1.
    assert body[30:32] == bytes([10, 8])
    assert body[32:35] == bytes([12]) + (300 << 2 | 1).to_bytes(2, "little")
    assert body[35:] == bytes([16, 254, 18]) + (128 << 2 | 1).to_bytes(2, "little")


@given(st.builds(Gtid, st.builds(MysqlGtid, st.just(A), numbers, tags), st.just(0),
                 st.just(0), st.just(1), commits), st.data())  # fmt: skip
def test_no_cut_of_a_tagged_gtid_is_taken_for_a_whole_one(event: Gtid, data: st.DataObject) -> None:
    body = encode_tagged(event)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    with pytest.raises(Malformed):
        decode_event(whole(EventType.GTID_TAGGED, cut), Checksum.CRC32)


STATUS = st.builds(
    StatusVariables,
    flags2=st.none() | u32,
    sql_mode=st.none() | u64,
    catalog=st.none() | st.just(b"std"),
    auto_increment=st.none() | st.tuples(u16, u16),
    charsets=st.none() | st.tuples(u16, u16, u16),
    time_zone=st.none() | st.sampled_from(["SYSTEM", "+02:00", "Europe/Zürich"]),
    lc_time_names=st.none() | u16,
    charset_database=st.none() | u16,
    table_map_for_update=st.none() | u64,
    invoker=st.none() | st.just((b"root", b"localhost")),
    updated_schemas=st.none() | st.sampled_from([(), (b"a",), (b"a", b"bc")]),
    microseconds=st.none() | st.integers(0, 999_999),
    explicit_defaults_ts=st.none() | st.integers(0, 1),
    ddl_xid=st.none() | u64,
    default_collation_utf8mb4=st.none() | u16,
    mariadb_hrnow_us=st.none() | st.integers(0, 999_999),
    mariadb_xid=st.none() | u64,
)


@given(STATUS)
def test_status_variables_survive_their_bytes(variables: StatusVariables) -> None:
    assert decode_status(encode_status(variables)) == variables
    assert Query(b"s", b"BEGIN", encode_status(variables)).variables() == variables


def test_an_unknown_status_variable_is_an_error_for_its_length_is_unknown() -> None:
    with pytest.raises(Malformed, match="variable 99"):
        decode_status(b"\x63\x00")


def description(checksum: Checksum = Checksum.CRC32, **changed: object) -> FormatDescription:
    values = {"server_version": "8.4.2", "created_s": 5, "post_header_lengths": bytes(range(42))}
    return FormatDescription(**(values | changed), checksum=checksum)  # type: ignore[arg-type]


@pytest.mark.parametrize("checksum", Checksum)
def test_a_format_description_says_how_its_file_is_laid_out(checksum: Checksum) -> None:
    expected = description(checksum)
    event = whole(EventType.FORMAT_DESCRIPTION, encode(expected))
    assert decode_event(event, Checksum.NONE) == expected
    assert expected.flavor is Flavor.MYSQL
    assert description(server_version="10.11.6-MariaDB-log").flavor is Flavor.MARIADB


def test_a_format_description_of_another_world_is_refused() -> None:
    body = encode(description())
    for wrong in (b"\x03" + body[1:], body[:56] + b"\x14" + body[57:], body[:-1] + b"\x07"):
        with pytest.raises(Malformed):
            decode_event(whole(EventType.FORMAT_DESCRIPTION, wrong), Checksum.NONE)


def test_a_checksum_leaves_out_the_mark_of_an_open_file() -> None:
    closed = whole(EventType.FORMAT_DESCRIPTION, encode(description()))
    opened = bytearray(closed)
    opened[17] |= EventFlag.BINLOG_IN_USE
    assert checksum_holds(bytes(opened))
    assert crc32(closed[:-4]) == int.from_bytes(closed[-4:], "little")
    other = bytearray(whole(EventType.XID, bytes(8)))
    other[17] |= EventFlag.BINLOG_IN_USE
    assert not checksum_holds(bytes(other))


@given(st.integers(0, 26), st.integers(0, 7))
def test_any_flipped_bit_breaks_the_checksum(at: int, bit: int) -> None:
    event = bytearray(whole(EventType.XID, bytes(8)))
    assert checksum_holds(bytes(event))
    event[at] ^= 1 << bit
    assert not checksum_holds(bytes(event))


def test_a_header_is_19_bytes_and_a_shorter_event_is_none() -> None:
    event = whole(EventType.STOP, b"", EventFlag.ARTIFICIAL)
    header = read_header(event)
    assert header == Header(7, EventType.STOP, 5, 23, 99, EventFlag.ARTIFICIAL)
    assert header.is_artificial
    assert str(header) == "event STOP that ends at 99"
    with pytest.raises(Malformed):
        read_header(event[:18])
    with pytest.raises(Malformed):
        read_header(HEADER.pack(0, 3, 0, 18, 0, 0))


def test_rows_stay_bytes_until_somebody_wants_them() -> None:
    for type_ in [*ROWS_TYPES, EventType.TABLE_MAP]:
        assert decode_event(whole(type_, b"xyz"), Checksum.CRC32) == UnreadRows(
            EventType(type_), b"xyz"
        )


def test_an_unknown_event_is_an_error_unless_its_server_allows_to_ignore_it() -> None:
    with pytest.raises(Malformed, match="type 150"):
        decode_event(whole(150, b"x"), Checksum.CRC32)
    ignorable = whole(150, b"x", EventFlag.IGNORABLE)
    assert decode_event(ignorable, Checksum.CRC32) == IgnoredEvent(150, b"x")
    assert decode_event(whole(EventType.STOP, b""), Checksum.CRC32) == Stop()


def test_without_checksums_a_body_reaches_to_the_end() -> None:
    event = make_event(EventType.XID, bytes(8), checksum=Checksum.NONE)
    assert body_of(event, Checksum.NONE) == bytes(8)
    assert decode_event(event, Checksum.NONE) == Xid(0)


@given(st.binary(max_size=2000))
def test_a_compressed_block_gives_back_what_went_in(plain: bytes) -> None:
    assert decompress_block(compress_block(plain)) == plain


def test_a_compressed_query_is_a_query() -> None:
    query = Query(b"s", b"INSERT " * 99)
    packed = Query(b"s", compress_block(query.statement)).encode()
    assert decode_event(whole(EventType.QUERY_COMPRESSED, packed), Checksum.CRC32) == query


@pytest.mark.parametrize(
    "spoil", [lambda b: b[:-1], lambda b: b"\x00" + b[1:], lambda b: b[:1] + b"\x01" + b[2:],
              lambda b: b"\x91" + b[1:], lambda b: b""],
)  # fmt: skip
def test_a_damaged_block_is_an_error(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Malformed):
        decompress_block(spoil(compress_block(b"x" * 200)))


@given(st.lists(st.binary(max_size=300), max_size=8), st.sampled_from(Compression))
def test_a_transaction_payload_yields_its_events(bodies: list[bytes], how: Compression) -> None:
    events = [make_event(EventType.ROWS_QUERY, b, checksum=Checksum.NONE) for b in bodies]
    body = encode(payload_of(events, how))
    payload = decode_event(whole(EventType.TRANSACTION_PAYLOAD, body), Checksum.CRC32)
    assert isinstance(payload, TransactionPayload)
    assert list(payload.events()) == events


def test_a_large_payload_is_unpacked_piece_by_piece() -> None:
    one = make_event(EventType.ROWS_QUERY, b"x" * 300_000, checksum=Checksum.NONE)
    payload = payload_of([one] * 20, Compression.ZSTD)
    assert len(payload.payload) < len(one)
    assert sum(event == one for event in payload.events()) == 20


def test_a_damaged_payload_is_an_error() -> None:
    one = make_event(EventType.ROWS_QUERY, bytes(range(256)) * 9, checksum=Checksum.NONE)
    for how in Compression:
        whole_payload = payload_of([one, one], how)
        cut = TransactionPayload(how, whole_payload.payload[:-5], whole_payload.plain_bytes)
        with pytest.raises(Malformed):
            list(cut.events())


def test_a_mariadb_gtid_takes_its_server_from_the_header() -> None:
    event = begin_mariadb(MariadbGtid(1, 9, 5))
    assert len(encode(event)) == 19
    assert event.gtid(9) == MariadbGtid(1, 9, 5)
    assert not event.is_standalone
    assert begin_mariadb(MariadbGtid(1, 9, 5), GtidFlag.STANDALONE).is_standalone


@given(st.integers(0, 255), st.binary(max_size=60), st.sampled_from([0, EventFlag.IGNORABLE]))
def test_random_bodies_are_read_or_refused(type_: int, body: bytes, flags: int) -> None:
    with suppress(Malformed):
        decode_event(whole(type_, body, flags), Checksum.CRC32)
