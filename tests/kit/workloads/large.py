"""Large binlogs for tests: made of bytes, written piece by piece into a storage or to a Pump."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google_crc32c import value

from penstock.log.chunks import Assembly, before_rows, encode_assembly, encode_piece, head_of
from penstock.wire.batch import encode_write_piece
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from pump.store.record import IN_ONE, PIECE, PieceRecord
from pump.store.space import Upload
from pump.store.storage import Record, Storage


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


def pieces_of(payload: bytes, start_ts: int, data_bytes: int = 64) -> Iterator[PieceRecord]:
    """Yield the records of a binlog's pieces."""
    for number, at in enumerate(range(0, len(payload), data_bytes)):
        stored = encode_piece(start_ts, number, at, payload[at : at + data_bytes])
        yield PieceRecord(PIECE, start_ts, 0, stored, IN_ONE)


def assembly_of(payload: bytes, start_ts: int, pieces: Sequence[PieceRecord]) -> Record:
    """Return the record that makes stored pieces a Prewrite."""
    positions = tuple(piece.position for piece in pieces if piece.position is not None)
    assert len(positions) == len(pieces), "all are stored"
    head = head_of(payload, len(payload))
    assembly = Assembly(start_ts, len(payload), value(payload), positions, head)
    stored = encode_assembly(assembly)
    return Record(BinlogType.PREWRITE, start_ts, 0, stored, positions[0].segment)


def write_large(
    storage: Storage, start_ts: int, rows: bytes, *, data_bytes: int = 64, end: bool = True
) -> Record:
    """Write a large Prewrite, each piece a group of its own, and return its assembly's record."""
    payload = large_prewrite(start_ts, rows)
    pieces = list(pieces_of(payload, start_ts, data_bytes))
    upload = Upload(start_ts, len(payload), first=pieces[0])
    storage.uploads.begin(upload)
    for piece in pieces:
        storage.index(storage.append([piece]))
    record = assembly_of(payload, start_ts, pieces)
    if end:
        storage.index(storage.append([record]))
        storage.uploads.end(upload)
    return record
