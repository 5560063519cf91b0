"""A transaction of any size, made while it is sent to a Pump in pieces: nobody ever holds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import grpc

from drainer.schema.tracker import SchemaTracker
from penstock.cluster.etcd import EtcdClient
from penstock.cluster.history import History
from penstock.cluster.registry import Registry
from penstock.datum.rows.row_codec import RowCodec
from penstock.oracle.client import open_oracle
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.schema.model import TableInfo
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from penstock.wire.varint import encode_uvarint
from tests.kit.servers.node import CHANNEL_OPTIONS

CREATE = "CREATE TABLE huge.t (id BIGINT PRIMARY KEY, body VARBINARY(60000))"
FIRST_ID = 10**9
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Huge:
    """`rows` inserts into `huge.t`, each with a body of `body_bytes`."""

    rows: int
    body_bytes: int

    def blocks(self, table: TableInfo, version: int, start_ts: int) -> Iterator[bytes]:
        """Yield the length of the Prewrite as 8 bytes, then the Prewrite bit by bit."""
        codec = RowCodec(table)
        row_bytes = len(self._row(codec, 0))
        head = encode_uvarint(1 << 3) + encode_uvarint(table.id)
        field = encode_uvarint(2 << 3 | 2) + encode_uvarint(row_bytes)
        sequence = encode_uvarint(7 << 3 | 2) + encode_uvarint(self.rows)
        mutation = len(head) + self.rows * (len(field) + row_bytes) + len(sequence) + self.rows
        value = (
            encode_uvarint(1 << 3)
            + encode_uvarint(version)
            + encode_uvarint(2 << 3 | 2)
            + encode_uvarint(mutation)
        )
        binlog = encode_binlog(Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts))
        field_5 = encode_uvarint(5 << 3 | 2) + encode_uvarint(len(value) + mutation)
        begin = binlog + field_5 + value + head
        yield (len(begin) - len(head) + mutation).to_bytes(8, "little")
        yield begin
        for i in range(self.rows):
            row = self._row(codec, i)
            assert len(row) == row_bytes
            yield field + row
        yield sequence + bytes(self.rows)

    def _row(self, codec: RowCodec, i: int) -> bytes:
        body = (b"%012d" % i) * (self.body_bytes // 12)
        return codec.encode_insert((FIRST_ID + i, body), rowid=FIRST_ID + i)


def write(etcd: EtcdClient, address: str, huge: Huge) -> int:
    """Write the transaction to the Pump at `address` and commit it; return its commit_ts."""
    schemas = SchemaTracker.from_history(History(etcd).jobs(), 1 << 62)
    table = next(t for s, t in schemas.catalog.tables() if (s, t.name) == ("huge", "t"))
    cluster_id = Registry(etcd).cluster_id()
    oracle = open_oracle(etcd, None)
    try:
        start_ts = oracle.get_ts()
        blocks = huge.blocks(table, schemas.version, start_ts)
        size = int.from_bytes(next(blocks), "little")
        with grpc.insecure_channel(address, CHANNEL_OPTIONS) as channel:
            pump = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
            ack = pump.WriteLarge(_pieces(blocks, cluster_id, start_ts, size), timeout=600)
            assert not ack.refusals, ack
            commit_ts = oracle.get_ts()
            commit = Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts)
            batch = penstock_pb2.WriteBatch(
                cluster_id=cluster_id, seq=1, payloads=[encode_binlog(commit)]
            )
            (ack,) = pump.Write(iter([batch]), timeout=60)
            assert not ack.refusals, ack
    finally:
        oracle.close()
    return commit_ts


def _pieces(
    blocks: Iterator[bytes], cluster_id: int, start_ts: int, size: int
) -> Iterator[penstock_pb2.WritePiece]:
    first = {"cluster_id": cluster_id, "start_ts": start_ts, "bytes": size}
    gathered, sent = bytearray(), 0
    for block in blocks:
        gathered += block
        if len(gathered) >= _PIECE_BYTES:
            yield penstock_pb2.WritePiece(**first, data=bytes(gathered))
            first, sent = {}, sent + len(gathered)
            gathered.clear()
    assert sent + len(gathered) == size
    if gathered:
        yield penstock_pb2.WritePiece(**first, data=bytes(gathered))
