"""Messages of a stream, header fields as text, and what a header block means."""

import gzip
import itertools

import grpc
import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.http2 import header_blocks
from penstock.http2.frames import MESSAGE_HEAD, ConnectionFault
from penstock.http2.header_blocks import BadHeaders, HeaderDecoder, request_head, timeout_at
from penstock.http2.messages import (
    BadMessage,
    MessageReader,
    metadata_in,
    metadata_out,
    packed_text,
    timeout_s,
    unpacked_text,
)
from penstock.http2.unary import STREAM_ID, MessageBlock, Reply
from tests.kit.fakes.http2_client import prefixed

MESSAGES = st.lists(st.binary(max_size=6000), max_size=6)
CUTS = st.lists(st.integers(1, 3000), min_size=1, max_size=30)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    for size in itertools.cycle(cuts):
        if at >= len(data):
            return found
        found.append(data[at : at + size])
        at += size
    return found


@given(MESSAGES, CUTS)
def test_messages_are_the_same_in_whatever_pieces_they_come(
    messages: list[bytes], cuts: list[int]
) -> None:
    reader = MessageReader(6000)
    data = b"".join(map(prefixed, messages))
    found = [message for piece in pieces(data, cuts) for message in reader.feed(piece)]
    assert found == messages
    assert (reader.is_between, reader.partial_bytes) == (True, 0)


@given(st.binary(max_size=300), CUTS)
def test_noise_is_messages_or_a_named_refusal(noise: bytes, cuts: list[int]) -> None:
    reader = MessageReader(100, b"gzip")
    try:
        for piece in pieces(noise, cuts):
            for message in reader.feed(piece):
                assert len(message) <= 100
            assert reader.partial_bytes <= 100
    except BadMessage:
        return
    assert reader.partial_bytes <= len(noise)


def test_a_message_that_unpacks_to_too_much_is_refused_before_it_is_unpacked() -> None:
    packed = gzip.compress(bytes(8 << 20))
    reader = MessageReader(1 << 20, b"gzip")
    with pytest.raises(BadMessage, match="larger than max") as caught:
        reader.feed(MESSAGE_HEAD.pack(1, len(packed)) + packed)
    assert caught.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED


@given(MESSAGES)
def test_a_block_has_the_messages_that_it_was_made_of(messages: list[bytes]) -> None:
    assert list(MessageBlock.of(messages).messages()) == messages


def test_a_cut_block_is_refused() -> None:
    with pytest.raises(ValueError, match="of a block"):
        list(MessageBlock(prefixed(b"whole") + prefixed(b"cut")[:-1]).messages())


@given(st.text())
def test_a_status_text_survives_its_way(text: str) -> None:
    packed = packed_text(text)
    assert all(0x20 <= byte < 0x7F for byte in packed)
    whole = text.encode("utf-8", "replace").decode()
    assert whole.startswith(unpacked_text(packed).rstrip("\ufffd"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"1H", 3600), (b"2M", 120), (b"15S", 15), (b"250m", 0.25), (b"99u", 99e-6),
        (b"7n", 7e-9), (b"99999999n", 0.099999999), (b"0S", 0), (b"", None), (b"S", None),
        (b"1", None), (b"1s", None), (b"-1S", None), (b"1.5S", None), (b"999999999S", None),
        ("²S".encode(), None),
    ],
)  # fmt: skip
def test_a_timeout_is_a_number_and_a_unit(text: bytes, seconds: float | None) -> None:
    assert timeout_s(text) == (None if seconds is None else pytest.approx(seconds))


@given(st.lists(st.tuples(st.sampled_from(["a-bin", "b-bin"]), st.binary()), max_size=3))
def test_binary_metadata_survives_its_way(sent: list[tuple[str, bytes]]) -> None:
    assert list(metadata_in(tuple(metadata_out(sent)))) == sent


def test_metadata_that_is_not_base64_is_refused() -> None:
    with pytest.raises(BadMessage, match="not base64"):
        metadata_in(((b"a-bin", b"x"),))


NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).filter(
    lambda name: not name.startswith("grpc-") and name not in ("te", "host", "connection")
)
VALUES = st.text("abcXYZ019 /=+", max_size=20).map(str.strip)
FIELDS = [
    (":method", "POST"), (":scheme", "http"), (":path", "/binlog.Pump/WriteBinlog"),
    (":authority", "127.0.0.1:8250"), ("content-type", "application/grpc"),
    ("user-agent", "grpc-go/1.52.3"), ("te", "trailers"),
]  # fmt: skip


def stateless() -> tuple[HeaderDecoder, hpack.Encoder]:
    decoder, encoder = HeaderDecoder(list_bytes_max=1 << 16), hpack.Encoder()
    decoder.limit_table(0)
    encoder.header_table_size = 0
    return decoder, encoder


@given(
    st.lists(
        st.tuples(
            st.integers(0, 99_999_999),
            st.booleans(),
            st.booleans(),
            st.sampled_from([(), (("a", "1"),), (("a", "2"), ("grpc-timeoutx", "3"))]),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_a_block_that_is_known_means_what_it_would_if_it_were_not(
    sent: list[tuple[int, bool, bool, tuple[tuple[str, str], ...]]],
) -> None:
    decoder, encoder = stateless()
    for number, has_timeout, is_last, more in sent:
        timeout = [("grpc-timeout", f"{number}u")] if has_timeout else []
        fields = [*FIELDS, *more, *timeout] if is_last else [*FIELDS, *timeout, *more]
        block = encoder.encode(fields, huffman=bool(number % 2))
        head, found, _ = decoder.request(block)
        assert found == (f"{number}u".encode() if has_timeout else b"")
        assert head.path == b"/binlog.Pump/WriteBinlog"
        own = [("user-agent", "grpc-go/1.52.3"), *(f for f in more if f[0] == "a")]
        assert list(metadata_in(head.metadata)) == own


def test_the_second_of_two_like_blocks_is_not_decoded_again() -> None:
    decoder, encoder = stateless()
    first = encoder.encode([*FIELDS, ("grpc-timeout", "1u")])
    assert decoder.request(first)[2] is None, "it says that there is no table"
    _, _, cut = decoder.request(encoder.encode([*FIELDS, ("grpc-timeout", "14999u")]))
    again = decoder.request(encoder.encode([*FIELDS, ("grpc-timeout", "15S")]))
    assert cut is not None
    assert again[1] == b"15S"
    assert again[2] is cut


def test_a_table_that_is_in_use_is_never_taken_for_granted() -> None:
    decoder, encoder = HeaderDecoder(list_bytes_max=1 << 16), hpack.Encoder()
    first = [*FIELDS, ("x", "1")]
    for fields in (first, [*FIELDS, ("x", "2")], first):
        head, _, cut = decoder.request(encoder.encode(fields))
        assert dict(head.metadata)[b"x"] == fields[-1][1].encode()
        assert cut is None


def test_endless_different_blocks_are_not_all_remembered() -> None:
    decoder, encoder = stateless()
    for number in range(1000):
        decoder.request(encoder.encode([*FIELDS, ("x", f"{number}" * 50)]))
    remembered = [cut for known in decoder._known.values() for cut in known]
    assert len(remembered) <= 64
    assert sum(len(cut.prefix) for cut in remembered) <= 32 << 10


@given(st.lists(st.tuples(NAMES, VALUES), max_size=5), st.booleans())
def test_the_value_of_the_timeout_is_found_within_a_block(
    more: list[tuple[str, str]], is_huffman: bool
) -> None:
    _, encoder = stateless()
    encoder.encode([("x", "1")])
    fields = [*FIELDS[:3], *more, ("grpc-timeout", "77m"), *more]
    block = encoder.encode(fields, huffman=is_huffman)
    at = timeout_at(block)
    assert at is not None
    assert at > 0
    size = block[at] & 0x7F
    value = header_blocks._Literal(block[at + 1 : at + 1 + size], bool(block[at] & 0x80), 0)
    assert value.text() == b"77m"
    assert timeout_at(encoder.encode([*FIELDS[:3], *more], huffman=is_huffman)) == -1


@given(st.binary(max_size=200))
def test_noise_in_a_header_block_is_a_request_or_a_named_fault(noise: bytes) -> None:
    decoder, _ = stateless()
    for _ in range(2):
        try:
            decoder.request(b"\x20" + noise)
        except (BadHeaders, ConnectionFault):
            return


def test_a_block_that_unpacks_to_too_much_ends_the_connection() -> None:
    decoder = HeaderDecoder(list_bytes_max=1 << 14)
    encoder = hpack.Encoder()
    bomb = encoder.encode([*FIELDS, ("x", "y" * 3000)]) + b"\xbe" * 5000
    with pytest.raises(ConnectionFault, match="header list larger"):
        decoder.request(bomb)


@pytest.mark.parametrize(
    "fields",
    [
        FIELDS[1:],
        [*FIELDS, (":path", "/again")],
        [*FIELDS[:3], ("x", "1"), (":authority", "late")],
        [*FIELDS, (":status", "200")],
        [*FIELDS, ("Upper", "1")],
        [*FIELDS, ("connection", "close")],
        [*FIELDS[:6], ("te", "gzip")],
        [*FIELDS, ("x", "1\r\ny: 2")],
        [*FIELDS, ("content-length", "ten")],
        [*FIELDS, ("", "no name")],
    ],
)
def test_header_fields_that_http_does_not_allow_are_refused(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(BadHeaders):
        request_head([(name.encode(), value.encode()) for name, value in fields])


def test_each_form_of_a_reply_says_the_same() -> None:
    reply, decoder = Reply(b"written"), hpack.Decoder()
    said = []
    for form in (reply.literal, reply.inserting, reply.indexed):
        data, found = STREAM_ID.pack(7).join(form), []
        while data:
            size = int.from_bytes(data[:3], "big")
            assert data[5:9] == STREAM_ID.pack(7)
            is_headers = data[3] == 1
            payload = data[9 : 9 + size]
            found.append(tuple(decoder.decode(payload)) if is_headers else payload)
            data = data[9 + size :]
        said.append(found)
    assert said[0] == said[1] == said[2]
    assert said[0][1] == prefixed(b"written")
