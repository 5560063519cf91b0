"""What PullBinlogs sends, made by hand: the bytes are those that protobuf would make."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.http2.unary import MessageBlock
from penstock.pb import binlog_pb2, pump_pb2
from penstock.wire.binlog import Binlog, BinlogType, fake_binlog
from penstock.wire.codec import encode_binlog
from penstock.wire.protowire import encode_uvarint
from pump.service.tidb_service import encode_entities, encode_entity

TS = st.one_of(
    st.integers(1, (1 << 63) - 1),
    st.sampled_from([1, 127, 128, (1 << 56) - 1, 1 << 56, 1 << 58, (1 << 63) - 1]),
)
SIZES = st.sampled_from([0, 1, 90, 127, 128, 1000, 16_300, 16_384, 70_000])
KEYS = [b"", b"key", b"\x38\x00\x40\x00", bytes(127), bytes(128), bytes(300)]


def _with_key(commit: bytes, key: bytes) -> bytes:
    return commit + b"\x22" + encode_uvarint(len(key)) + key


@st.composite
def prewrites(draw: st.DrawFn) -> bytes:
    """A Prewrite as a writer of ours or a TiDB makes it, or one with fields of a later version."""
    binlog = Binlog(
        tp=BinlogType.PREWRITE,
        start_ts=draw(TS),
        prewrite_key=draw(st.binary(max_size=20)),
        prewrite_value=bytes(draw(SIZES)),
    )
    return encode_binlog(binlog) + draw(
        st.sampled_from([b"", b"\x38\x00\x40\x00", b"\xb8\x06\x05"])
    )


@st.composite
def outcomes(draw: st.DrawFn) -> tuple[int, bytes]:
    """A Commit with its commit_ts: plain, as a TiDB writes it, or with its fields otherwise."""
    start_ts, commit_ts = draw(TS), draw(TS)
    plain = encode_binlog(Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts))
    start = binlog_pb2.Binlog(start_ts=start_ts).SerializeToString()
    commit = binlog_pb2.Binlog(commit_ts=commit_ts).SerializeToString()
    forms = [
        plain,
        plain + b"\x38\x00\x40\x00",
        plain + b"\x38\x05\x40\x02",
        *(_with_key(plain, key) + rest for key in KEYS for rest in (b"", b"\x38\x00\x40\x00")),
        _with_key(plain, b"key") + b"\x38\x05\x40\x02",
        _with_key(plain, b"key") + b"\x10\x09\x40\x00",
        plain + b"\x10\x09",  # A field twice: the last counts.
        b"\x10\x07" + plain,
        commit + b"\x08\x01" + start,
        b"\x08\x81\x00" + plain[2:],  # A number that is longer than it need be.
        b"\x08\x01\x10\x85\x00" + commit,
    ]
    return commit_ts, draw(st.sampled_from(forms))


@given(st.lists(st.tuples(prewrites(), outcomes()), max_size=8))
def test_a_block_has_the_bytes_that_protobuf_makes_of_each_binlog(
    merged: list[tuple[bytes, tuple[int, bytes]]],
) -> None:
    stamps = [commit_ts for _, (commit_ts, _) in merged]
    block = encode_entities(stamps, [p for p, _ in merged], [outcome for _, (_, outcome) in merged])
    expected = []
    for prewrite, (commit_ts, outcome) in merged:
        payload = prewrite + outcome
        start_ts = binlog_pb2.Binlog.FromString(payload).start_ts
        expected.append(encode_entity(start_ts, commit_ts, payload))
    assert list(block.messages()) == expected
    assert bytes(block.data) == bytes(MessageBlock.of(expected).data)


def test_a_fake_binlog_is_an_entity_without_a_prewrite() -> None:
    payload = encode_binlog(fake_binlog(1 << 58))
    (message,) = encode_entities([1 << 58], [b""], [payload]).messages()
    entity = pump_pb2.PullBinlogResp.FromString(message).entity
    assert (entity.payload, entity.meta.startTs, entity.meta.commitTs) == (
        payload,
        1 << 58,
        1 << 58,
    )
