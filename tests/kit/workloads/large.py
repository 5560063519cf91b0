"""Large transactions: made of bytes or while they are sent, into a storage or to a Pump."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc
from google_crc32c import value

from drainer.schema.tracker import SchemaTracker
from penstock.cluster.etcd import EtcdClient
from penstock.cluster.history import History
from penstock.cluster.node_registry import Registry
from penstock.datum.rows.row_codec import RowCodec
from penstock.log.chunks import ChunkList, before_rows, encode_chunk, encode_chunk_list, head_of
from penstock.oracle.client import open_oracle
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.schema.model import TableInfo
from penstock.wire.batch import encode_write_piece
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from penstock.wire.protowire import encode_uvarint
from pump.store.record import CHUNK, IN_ONE, ChunkRecord
from pump.store.space import IncomingTransaction
from pump.store.storage import Record, Storage
from tests.kit.servers.node import CHANNEL_OPTIONS


def large_prewrite(start_ts: int, rows: bytes, key: bytes = b"") -> bytes:
    """Return a Prewrite whose row changes are its last field."""
    head = Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_key=key)
    return before_rows(encode_binlog(head), len(rows)) + rows


def messages(
    payload: bytes, start_ts: int, *, cluster_id: int, size_bytes: int = -1, data_bytes: int = 64
) -> list[bytes]:
    """Return the `WritePiece` messages of a binlog."""
    size_bytes = len(payload) if size_bytes < 0 else size_bytes
    found = [encode_write_piece(cluster_id, start_ts, size_bytes, payload[:data_bytes])]
    for at in range(data_bytes, len(payload), data_bytes):
        found.append(encode_write_piece(0, 0, 0, payload[at : at + data_bytes]))
    return found


def chunks_of(payload: bytes, start_ts: int, data_bytes: int = 64) -> Iterator[ChunkRecord]:
    for number, at in enumerate(range(0, len(payload), data_bytes)):
        stored = encode_chunk(start_ts, number, at, payload[at : at + data_bytes])
        yield ChunkRecord(CHUNK, start_ts, 0, stored, IN_ONE)


def chunk_list_of(payload: bytes, start_ts: int, chunks: Sequence[ChunkRecord]) -> Record:
    positions = tuple(chunk.position for chunk in chunks if chunk.position is not None)
    assert len(positions) == len(chunks), "all are stored"
    head = head_of(payload, len(payload))
    chunk_list = ChunkList(start_ts, len(payload), value(payload), positions, head)
    stored = encode_chunk_list(chunk_list)
    return Record(BinlogType.PREWRITE, start_ts, 0, stored, positions[0].segment)


def write_large(
    storage: Storage, start_ts: int, rows: bytes, *, data_bytes: int = 64, end: bool = True
) -> Record:
    """Write a large Prewrite, each chunk a group of its own, and return its chunk list's record."""
    payload = large_prewrite(start_ts, rows)
    chunks = list(chunks_of(payload, start_ts, data_bytes))
    incoming = IncomingTransaction(start_ts, len(payload), first=chunks[0])
    storage.incoming.add(incoming)
    for chunk in chunks:
        storage.index(storage.append([chunk]))
    record = chunk_list_of(payload, start_ts, chunks)
    if end:
        storage.index(storage.append([record]))
        storage.incoming.discard(incoming)
    return record


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


def write_huge(etcd: EtcdClient, address: str, huge: Huge) -> int:
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
            ack = pump.WriteLarge(_messages_of(blocks, cluster_id, start_ts, size), timeout=600)
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


def _messages_of(
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
