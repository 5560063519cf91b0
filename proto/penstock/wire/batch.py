"""Batch codec: many binlogs to bytes and back without protobuf's copies of every payload.

The bytes are those of `WriteBatch` and `PullBatch` in `penstock.proto`, and of the messages of
`pump.proto`, which carry one binlog each. Protobuf copies each payload into its message and the
message into its bytes twice over; a join copies once. Parsing by hand pays for large payloads only:
below that, protobuf's C code is quicker than a Python loop.
"""

from collections.abc import Mapping, Sequence

from penstock.pb import binlog_pb2, penstock_pb2, pump_pb2
from penstock.wire.protowire import encode_uvarint, scan

_BY_HAND_BYTES = 64 << 10
"""From this length on, walking a message's fields (2.4 µs) is cheaper than having it copied."""

_BATCH_BY_HAND_BYTES = 256 << 10

_COPY_BYTES_MAX = 16 << 10
"""Up to this length, copying a payload costs less than handling it as a separate piece."""

_INT64_END = 1 << 63
_TP_MAX = 4
_PREWRITE_KEY, _DDL_JOB_ID = 0x22, 0x38
_JUMPED_OVER = dict.fromkeys((0x2A, 0x32, 0x7A))
"""Tags of prewrite_value, ddl_query and origin, whose bytes are skipped."""


def _payloads(tag: bytes, payloads: Sequence[bytes]) -> list[bytes]:
    pieces: list[bytes] = []
    for payload in payloads:
        pieces += (tag + encode_uvarint(len(payload)), payload)
    return pieces


def write_batch_pieces(cluster_id: int, seq: int, payloads: Sequence[bytes]) -> list[bytes]:
    """Return the serialized `WriteBatch` in pieces; large pieces are the payloads themselves."""
    head = penstock_pb2.WriteBatch(cluster_id=cluster_id, seq=seq).SerializeToString()
    pieces = [head, *_payloads(b"\x1a", payloads)]
    if sum(map(len, payloads)) < _COPY_BYTES_MAX * len(payloads):
        return [b"".join(pieces)]
    return pieces


def decode_write_batch(data: bytes) -> tuple[int, int, Sequence[bytes]]:
    """Return cluster id, sequence number and payloads; raise protobuf's `DecodeError`."""
    if len(data) >= _BATCH_BY_HAND_BYTES:
        numbers, payloads = {0x08: 0, 0x10: 0}, list[bytes]()
        if _is_plain(data, numbers, {0x1A: payloads}):
            return numbers[0x08], numbers[0x10], payloads
    batch = penstock_pb2.WriteBatch.FromString(data)
    return batch.cluster_id, batch.seq, batch.payloads


def decode_write_request(data: bytes) -> tuple[int, bytes]:
    """Return the cluster id and the payload of a `WriteBinlogReq`; raise `DecodeError`."""
    if len(data) >= _BY_HAND_BYTES:
        numbers, payloads = {0x08: 0}, list[bytes]()
        if _is_plain(data, numbers, {0x12: payloads}) and payloads:
            return numbers[0x08], payloads[-1]
    request = pump_pb2.WriteBinlogReq.FromString(data)
    return request.clusterID, request.payload


def encode_pull_batch(
    commit_ts: Sequence[int], beginnings: Sequence[bytes], endings: Sequence[bytes]
) -> bytes:
    """Return the serialized `PullBatch`; each payload is a beginning and its ending, joined."""
    pieces: list[bytes] = []
    for beginning, ending in zip(beginnings, endings, strict=True):
        length = encode_uvarint(len(beginning) + len(ending))
        pieces += (b"\x0a" + length, beginning, ending)
    pieces.append(penstock_pb2.PullBatch(commit_ts=commit_ts).SerializeToString())
    return b"".join(pieces)


def encode_write_piece(cluster_id: int, start_ts: int, size_bytes: int, data: bytes) -> bytes:
    """Return the serialized `WritePiece`; pieces after the first have zero numbers."""
    head = penstock_pb2.WritePiece(cluster_id=cluster_id, start_ts=start_ts, bytes=size_bytes)
    return b"".join([head.SerializeToString(), b"\x22", encode_uvarint(len(data)), data])


def encode_pull_piece(commit_ts: int, size_bytes: int, offset: int, data: bytes) -> bytes:
    """Return the serialized `PullBatch` that contains only a `PullPiece`."""
    head = penstock_pb2.PullPiece(commit_ts=commit_ts, bytes=size_bytes, offset=offset)
    parts = [head.SerializeToString(), b"\x22", encode_uvarint(len(data)), data]
    return b"".join([b"\x1a", encode_uvarint(sum(map(len, parts))), *parts])


def peek_binlog(payload: bytes) -> tuple[int, int, int, bytes]:
    """Return tp, start_ts, commit_ts, prewrite_key of a binlog; raise protobuf's `DecodeError`."""
    if len(payload) >= _BY_HAND_BYTES:
        numbers = {0x08: 0, 0x10: 0, 0x18: 0, _DDL_JOB_ID: 0}
        keys = list[bytes]()
        contents = {**_JUMPED_OVER, _PREWRITE_KEY: keys}
        if _is_plain(payload, numbers, contents) and numbers[0x08] <= _TP_MAX:
            return numbers[0x08], numbers[0x10], numbers[0x18], keys[-1] if keys else b""
    binlog = binlog_pb2.Binlog.FromString(payload)
    return binlog.tp, binlog.start_ts, binlog.commit_ts, binlog.prewrite_key


def _is_plain(
    data: bytes, numbers: dict[int, int], contents: Mapping[int, list[bytes] | None]
) -> bool:
    return scan(data, numbers, contents) == len(data) and max(numbers.values()) < _INT64_END
