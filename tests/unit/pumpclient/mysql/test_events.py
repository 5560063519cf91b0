from collections.abc import Callable
from contextlib import suppress
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Malformed
from pumpclient.mysql.events import Event, StatementPart, decode_event
from pumpclient.mysql.events.frame import (
    HEADER,
    ROWS_TYPES,
    Checksum,
    EventFlag,
    EventType,
    FormatDescription,
    Header,
    body_of,
    checksum_holds,
    make_event,
    read_header,
    rotate_of,
)
from pumpclient.mysql.events.transactions import (
    MARIADB_BEGIN,
    Incident,
    Query,
    StatusVariables,
    TransactionPayload,
    XaPrepare,
    decode_status,
    decompress_block,
    listed_gtids,
    mysql_gtid_of,
)
from pumpclient.mysql.gtid import MariadbGtid, MariadbGtidSet, MysqlGtid, MysqlGtidSet, encode_sids
from tests.kit.mysql.encoding import (
    compress_block,
    encode_status,
    format_description,
    gtid,
    gtid_list,
    incident,
    mariadb_gtid,
    payload_of,
    rotate,
    tagged_gtid,
    xa_prepare,
    xid,
)

A = UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
names = st.text("abcäöü_$-.", max_size=20)
numbers = st.integers(1, 2**63 - 2)
tags = st.from_regex(r"[a-z_][a-z0-9_]{0,31}", fullmatch=True)
commits = st.lists(st.integers(0, 2**64 - 1), max_size=6).map(tuple)


def whole(type_: int, body: bytes, flags: int = 0) -> bytes:
    return make_event(type_, body, header=Header(7, type_, 5, 0, 99, flags))


def decoded(event: bytes, checksum: Checksum = Checksum.CRC32) -> Event | None:
    return decode_event(event, checksum, read_header(event))


queries = st.builds(
    Query, st.binary(max_size=9).map(lambda b: b.replace(b"\0", b"")),
    st.binary(), st.binary(), u32, u32, u16,
)  # fmt: skip


@given(queries, st.data())
def test_a_query_survives_its_bytes_and_no_cut_of_them_crashes(
    query: Query, data: st.DataObject
) -> None:
    body = query.encode()
    assert decoded(whole(EventType.QUERY, body)) == query
    with suppress(Malformed):
        decoded(whole(EventType.QUERY, body[: data.draw(st.integers(0, len(body)))]))


@given(st.booleans(), u32, st.binary(max_size=64), st.binary(max_size=64))
def test_an_xa_transaction_has_the_name_that_a_statement_takes(
    one_phase: bool, format_: int, global_id: bytes, branch: bytes
) -> None:
    body = xa_prepare(one_phase, (format_, global_id, branch))
    name = f"X'{global_id.hex()}',X'{branch.hex()}',{format_}".encode()
    assert decoded(whole(EventType.XA_PREPARE, body)) == XaPrepare(one_phase, name)
    with pytest.raises(Malformed):
        decoded(whole(EventType.XA_PREPARE, body[:-1] if global_id or branch else body[:12]))


@given(u16, names)
def test_an_incident_has_a_message(number: int, message: str) -> None:
    event = whole(EventType.INCIDENT, incident(number, message))
    assert decoded(event) == Incident(number, message)


@given(u64, names.map("mysql-bin{}.000001".format), st.sampled_from(Checksum))
def test_a_rotate_is_read_with_or_without_its_checksum(
    position: int, file: str, checksum: Checksum
) -> None:
    event = make_event(EventType.ROTATE, rotate(position, file), checksum=checksum)
    assert rotate_of(event) == (position, file)


def test_lists_of_gtids_are_those_of_all_earlier_files() -> None:
    for text in ("", f"{A}:1-5:7", f"{A}:1:x:3"):
        known = MysqlGtidSet.parse(text)
        assert listed_gtids(EventType.PREVIOUS_GTIDS, encode_sids(known)) == known
    for text in ("", "0-1-5,0-2-3,7-1-1"):
        position = MariadbGtidSet.parse(text)
        assert listed_gtids(EventType.GTID_LIST, gtid_list(position)) == position
    with pytest.raises(Malformed):
        listed_gtids(EventType.GTID_LIST, gtid_list(position) + b"x")
    with pytest.raises(Malformed):
        listed_gtids(EventType.GTID_LIST, gtid_list(position)[:-1])


@given(
    numbers, st.sampled_from([b"", bytes([2]) + bytes(16), bytes(60)]), st.sampled_from(Checksum)
)
def test_a_gtid_is_read_whatever_follows_it(number: int, rest: bytes, checksum: Checksum) -> None:
    event = make_event(EventType.GTID, gtid(MysqlGtid(A, number), rest), checksum=checksum)
    assert mysql_gtid_of(EventType.GTID, event, checksum) == MysqlGtid(A, number)
    assert mysql_gtid_of(EventType.ANONYMOUS_GTID, event, checksum) is None
    with pytest.raises(Malformed):
        mysql_gtid_of(EventType.GTID, event[:40], checksum)
    short = make_event(EventType.GTID, gtid(MysqlGtid(A, number))[:24], checksum=checksum)
    with pytest.raises(Malformed):
        mysql_gtid_of(EventType.GTID, short, checksum)


@given(st.builds(MysqlGtid, st.just(A), numbers, tags), st.integers(-1, 2**62), commits, st.data())
def test_a_tagged_gtid_survives_its_bytes_and_no_cut_is_taken_for_a_whole_one(
    tagged: MysqlGtid, last_committed: int, commit: tuple[int, ...], data: st.DataObject
) -> None:
    body = tagged_gtid(tagged, last_committed, commit)
    event = whole(EventType.GTID_TAGGED, body)
    assert mysql_gtid_of(EventType.GTID_TAGGED, event, Checksum.CRC32) == tagged
    cut = whole(EventType.GTID_TAGGED, body[: data.draw(st.integers(0, len(body) - 1))])
    with pytest.raises(Malformed):
        mysql_gtid_of(EventType.GTID_TAGGED, cut, Checksum.CRC32)


def test_a_tagged_gtid_has_the_published_layout() -> None:
    body = tagged_gtid(MysqlGtid(UUID(bytes=bytes([200]) + bytes(15)), 1, "t"), -1, (300,))
    # Version 1, its size, last needed field 3; 200 and 300 need two bytes each: n << 2 | 1.
    assert body[:3] == bytes([2, len(body) << 1, 6])
    assert body[3:5] == bytes([0, 2])  # Field 0: flags 1.
    assert body[5:8] == bytes([2]) + (200 << 2 | 1).to_bytes(2, "little")
    assert body[8:23] == bytes(15)
    assert body[23:25] == bytes([4, 4])  # Field 2: number 1, folded to 2.
    assert body[25:28] == bytes([6, 2]) + b"t"
    assert body[28:30] == bytes([8, 2])  # Field 4: -1, folded to 1.
    assert body[30:32] == bytes([10, 8])
    assert body[32:] == bytes([12]) + (300 << 2 | 1).to_bytes(2, "little")


def test_a_mariadb_gtid_takes_its_server_from_the_header() -> None:
    event = whole(EventType.MARIADB_GTID, mariadb_gtid(MariadbGtid(1, 5, 9), 4))
    assert MARIADB_BEGIN.unpack_from(event) == (5, 9, 1, 4)
    assert len(body_of(event, Checksum.CRC32)) == 19


STATUS = st.builds(
    StatusVariables,
    flags2=st.none() | u32,
    sql_mode=st.none() | u64,
    auto_increment=st.none() | st.tuples(u16, u16),
    charsets=st.none() | st.tuples(u16, u16, u16),
    time_zone=st.none() | st.sampled_from(["SYSTEM", "+02:00", "Europe/Zürich"]),
    lc_time_names=st.none() | u16,
    microseconds=st.none() | st.integers(0, 999_999),
    explicit_defaults_ts=st.none() | st.integers(0, 1),
    default_collation_utf8mb4=st.none() | u16,
    mariadb_hrnow_us=st.none() | st.integers(0, 999_999),
)


@given(STATUS)
def test_status_variables_survive_their_bytes(variables: StatusVariables) -> None:
    assert decode_status(encode_status(variables)) == variables
    assert Query(b"s", b"BEGIN", encode_status(variables)).variables() == variables


def test_variables_without_a_meaning_here_are_skipped() -> None:
    skipped = {
        2: b"\x03std\0", 6: b"\x03std", 8: bytes(2), 9: bytes(8), 10: bytes(4), 11: b"\x01a\x02bc",
        12: b"\x02a\0bc\0", 17: bytes(8), 19: b"\1", 20: b"\0", 21: b"\1", 129: bytes(8),
    }  # fmt: skip
    data = b"".join(bytes([code]) + value for code, value in skipped.items())
    assert decode_status(data + b"\x0c\xfe" + b"\x07\x04\0") == StatusVariables(lc_time_names=4)
    with pytest.raises(Malformed):
        decode_status(b"\x0c\x02a\0bc")


def test_an_unknown_status_variable_is_an_error_for_its_length_is_unknown() -> None:
    with pytest.raises(Malformed, match="variable 99"):
        decode_status(b"\x63\x00")


@pytest.mark.parametrize("checksum", Checksum)
def test_a_format_description_says_how_its_file_is_laid_out(checksum: Checksum) -> None:
    event = whole(EventType.FORMAT_DESCRIPTION, format_description("8.4.2", checksum))
    assert decoded(event, Checksum.NONE) == FormatDescription("8.4.2", checksum)


def test_a_format_description_of_another_world_is_refused() -> None:
    body = format_description()
    for wrong in (b"\x03" + body[1:], body[:56] + b"\x14" + body[57:], body[:-1] + b"\x07"):
        with pytest.raises(Malformed):
            decoded(whole(EventType.FORMAT_DESCRIPTION, wrong), Checksum.NONE)


def test_a_checksum_leaves_out_the_mark_of_an_open_file() -> None:
    closed = whole(EventType.FORMAT_DESCRIPTION, format_description())
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


def test_an_unknown_event_is_an_error_unless_its_server_allows_to_ignore_it() -> None:
    for type_ in (150, EventType.START_V3):
        with pytest.raises(Malformed, match="is unknown, and its server"):
            decoded(whole(type_, b"x"))
        assert decoded(whole(type_, b"x", EventFlag.IGNORABLE)) is None
    assert decoded(whole(EventType.STOP, b"")) is None
    part = decoded(whole(EventType.APPEND_BLOCK, b"x"))
    assert part == StatementPart(EventType.APPEND_BLOCK)


def test_an_event_of_an_impossible_size_is_an_error() -> None:
    for type_ in (EventType.XID, EventType.MARIADB_GTID, EventType.TABLE_MAP, *ROWS_TYPES):
        with pytest.raises(Malformed, match=f"{type_.name}: 3 bytes"):
            decoded(whole(type_, b"xyz"))


def test_without_checksums_a_body_reaches_to_the_end() -> None:
    event = make_event(EventType.XID, xid(7), checksum=Checksum.NONE)
    assert body_of(event, Checksum.NONE) == xid(7)


@given(st.binary(max_size=2000))
def test_a_compressed_block_gives_back_what_went_in(plain: bytes) -> None:
    assert decompress_block(compress_block(plain)) == plain


def test_a_compressed_query_is_a_query() -> None:
    query = Query(b"s", b"INSERT " * 99)
    packed = Query(b"s", compress_block(query.statement)).encode()
    assert decoded(whole(EventType.QUERY_COMPRESSED, packed)) == query


@pytest.mark.parametrize(
    "spoil", [lambda b: b[:-1], lambda b: b"\x00" + b[1:], lambda b: b[:1] + b"\x01" + b[2:],
              lambda b: b"\x91" + b[1:], lambda b: b""],
)  # fmt: skip
def test_a_damaged_block_is_an_error(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Malformed):
        decompress_block(spoil(compress_block(b"x" * 200)))


@given(st.lists(st.binary(max_size=300), max_size=8), st.booleans())
def test_a_transaction_payload_yields_its_events(bodies: list[bytes], is_compressed: bool) -> None:
    events = [make_event(EventType.ROWS_QUERY, b, checksum=Checksum.NONE) for b in bodies]
    body = payload_of(events, is_compressed=is_compressed)
    payload = decoded(whole(EventType.TRANSACTION_PAYLOAD, body))
    assert isinstance(payload, TransactionPayload)
    assert list(payload.events()) == events


def test_a_large_payload_is_unpacked_piece_by_piece() -> None:
    one = make_event(EventType.ROWS_QUERY, b"x" * 300_000, checksum=Checksum.NONE)
    payload = TransactionPayload.decode(payload_of([one] * 20))
    assert len(payload.payload) < len(one)
    assert sum(event == one for event in payload.events()) == 20


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_damaged_payload_is_an_error(is_compressed: bool) -> None:
    one = make_event(EventType.ROWS_QUERY, bytes(range(256)) * 9, checksum=Checksum.NONE)
    found = TransactionPayload.decode(payload_of([one, one], is_compressed=is_compressed))
    cut = TransactionPayload(is_compressed, found.payload[:-5], found.plain_bytes)
    with pytest.raises(Malformed):
        list(cut.events())


@given(st.integers(0, 255), st.binary(max_size=60), st.sampled_from([0, EventFlag.IGNORABLE]))
def test_random_bodies_are_read_or_refused(type_: int, body: bytes, flags: int) -> None:
    with suppress(Malformed):
        decoded(whole(type_, body, flags))
