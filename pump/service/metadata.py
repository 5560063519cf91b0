"""What a Drainer must know of a transaction that its Spark tasks will fetch themselves.

    rows only                 its size and its start_ts
    rows passed on (origin)   the same, and the binlog without its row changes
    DDL, fake binlogs         the whole binlog, size 0

The payloads are read for this: whether a Prewrite is a DDL is in no index.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from penstock.pb import binlog_pb2, penstock_pb2
from penstock.wire.binlog import BinlogType

_COMMIT = int(BinlogType.COMMIT)


def encode_metadata(commit_ts: Sequence[int], payloads: Sequence[bytes]) -> bytes:
    """Return a serialized `PullBatch` that tells of merged binlogs.

    One that is no binlog goes whole: whoever reads it says what is wrong with it.
    """
    told = [_told(payload) for payload in payloads]
    heads, sizes, start_ts = zip(*told, strict=True)
    batch = penstock_pb2.PullBatch(
        payloads=heads, commit_ts=commit_ts, sizes=sizes, start_ts=start_ts
    )
    return batch.SerializeToString()


def _told(payload: bytes) -> tuple[bytes, int, int]:
    """Return what is sent of the payload, its size where that is not all, and its start_ts."""
    try:
        binlog = binlog_pb2.Binlog.FromString(payload)
    except DecodeError:
        return payload, 0, 0
    start_ts = binlog.start_ts
    if binlog.tp != _COMMIT or binlog.ddl_job_id > 0 or binlog.ddl_query:
        return payload, 0, start_ts
    if not binlog.HasField("origin"):
        return b"", len(payload), start_ts
    binlog.ClearField("prewrite_value")
    return binlog.SerializeToString(), len(payload), start_ts
