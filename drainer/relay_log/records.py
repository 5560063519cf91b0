"""Relay log records: the payloads of its frames; `penstock.log.segments` has frames and files.

    offset  size  field
    0       1     kind         "S", "B" or "P"; an empty payload marks a clean shutdown

    S, a start: the first record of every file, and wherever the stream starts again
    1       …     JSON         {"format": 1, "cluster-id": n, "after-ts": n, "continues": bool}

    B, a run of binlogs
    1       4     count        little-endian like all that follows
    5       8n    commit_ts    of each, strictly increasing
    …       4n    length       of each
    …       …     payloads     one after the other, unchanged from the Pumps

    P, a chunk of one binlog that is too large for one record
    1       8     commit_ts
    9       8     size_bytes   of the whole binlog
    17      8     offset       of this chunk; chunks follow one another without a gap
    25      …     data

`after-ts` is the stream's position when the record was written: all binlogs merged after it, up to
the last record, are in the log. A start that does not continue invalidates everything before it.
Jobs of DDL are in a separate log, `ddl/`: JSON as in etcd, one job a frame, all of history.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drainer.intake.payload import Payload, Remote, Spooled, opened, outline_in
from penstock.pb import binlog_pb2 as pb
from penstock.wire.binlog import BinlogType

RECORD_BYTES_MAX = 1 << 20
"""A run is cut at this many bytes; a larger binlog is written in chunks of this size."""

FORMAT = 1
START, RUN, CHUNK = b"S", b"B", b"P"

_COUNT = struct.Struct("<I")
_CHUNK = struct.Struct("<QQQ")
_RUN_BEGIN = 1 + _COUNT.size
_CHUNK_BEGIN = 1 + _CHUNK.size
assert (_RUN_BEGIN, _CHUNK_BEGIN) == (5, 25)  # The tables above are the contract.


_FAKE_BYTES_MAX = 40  # Type and two timestamps; larger binlogs have content.
_ROLLBACK = int(BinlogType.ROLLBACK)


class NotARecord(Exception):
    """The bytes are intact, but not a record of a known kind; says why."""


@dataclass(frozen=True, slots=True)
class Start:
    """The stream's position when a file, or a new stream, began."""

    cluster_id: int
    after_ts: int
    continues: bool

    def encode(self) -> bytes:
        fields = {
            "format": FORMAT,
            "cluster-id": self.cluster_id,
            "after-ts": self.after_ts,
            "continues": self.continues,
        }
        return START + json.dumps(fields).encode()


@dataclass(frozen=True, slots=True)
class Run:
    """Binlogs in strictly increasing order of `commit_ts`."""

    commit_ts: Sequence[int]
    payloads: Sequence[Payload]
    """Bytes only in a record; a large binlog that was put together may be on the disk."""

    def encode(self) -> bytes:
        count = len(self.commit_ts)
        lengths = np.fromiter(map(len, self.payloads), "<u4", count)
        stamps = np.fromiter(self.commit_ts, "<u8", count)
        head = RUN + _COUNT.pack(count) + stamps.tobytes() + lengths.tobytes()
        return head + b"".join(payload for payload in self.payloads if isinstance(payload, bytes))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of one large binlog."""

    commit_ts: int
    size_bytes: int
    offset: int
    data: bytes

    def encode(self) -> bytes:
        return CHUNK + _CHUNK.pack(self.commit_ts, self.size_bytes, self.offset) + self.data

    @property
    def is_last(self) -> bool:
        return self.offset + len(self.data) == self.size_bytes


def decode(payload: bytes) -> Start | Run | Chunk | None:
    """Return the record in a frame's payload, None for a mark; raise `NotARecord`."""
    kind = payload[:1]
    if kind == RUN:
        return _run(payload)
    if kind == START:
        return _start(payload)
    if kind == CHUNK and len(payload) > _CHUNK_BEGIN:
        commit_ts, size_bytes, offset = _CHUNK.unpack_from(payload, 1)
        return Chunk(commit_ts, size_bytes, offset, payload[_CHUNK_BEGIN:])
    if not payload:
        return None
    raise NotARecord(f"a record of kind {kind!r} and {len(payload)} bytes")


def _start(payload: bytes) -> Start:
    try:
        fields = json.loads(payload[1:])
        if fields["format"] != FORMAT:
            raise NotARecord(f"format {fields['format']}, this Penstock reads {FORMAT}")
        return Start(int(fields["cluster-id"]), int(fields["after-ts"]), bool(fields["continues"]))
    except (ValueError, KeyError, TypeError) as error:
        raise NotARecord(f"an unreadable start: {error}") from error


def _run(payload: bytes) -> Run:
    size = len(payload)
    count = _COUNT.unpack_from(payload, 1)[0] if size >= _RUN_BEGIN else 0
    begin = _RUN_BEGIN + 12 * count
    if count == 0 or size < begin:
        raise NotARecord(f"a run of {count} binlogs in {size} bytes")
    stamps = np.frombuffer(payload, "<u8", count, _RUN_BEGIN)
    lengths = np.frombuffer(payload, "<u4", count, _RUN_BEGIN + 8 * count).astype(np.int64)
    ends = (begin + np.cumsum(lengths)).tolist()
    if ends[-1] != size or (count > 1 and not bool((stamps[1:] > stamps[:-1]).all())):
        raise NotARecord("a run whose lengths or timestamps do not fit")
    begins = [begin, *ends[:-1]]
    return Run(stamps.tolist(), [payload[a:b] for a, b in zip(begins, ends, strict=True)])


def is_fake(payload: Payload) -> bool:
    """Return whether a merged binlog is fake: such a stream has no other rollbacks."""
    if not isinstance(payload, bytes) or len(payload) > _FAKE_BYTES_MAX:
        return False
    binlog: Any = pb.Binlog.FromString(payload)
    return bool(binlog.tp == _ROLLBACK)


def is_large(payload: Payload) -> bool:
    assert not isinstance(payload, Remote), "with a relay log, payloads come here"
    return isinstance(payload, Spooled) or len(payload) > RECORD_BYTES_MAX


def size_of(payload: Payload) -> int:
    return payload.size if isinstance(payload, Spooled) else len(payload)


def chunks_of(payload: Payload) -> Iterator[bytes]:
    """Split a binlog into chunks; a binlog on disk is read chunk by chunk."""
    if isinstance(payload, Spooled):
        with opened(payload.path) as read:
            for begin in range(0, payload.size, RECORD_BYTES_MAX):
                yield read(begin, RECORD_BYTES_MAX)
    elif isinstance(payload, bytes):
        for begin in range(0, len(payload), RECORD_BYTES_MAX):
            yield payload[begin : begin + RECORD_BYTES_MAX]


class ChunkSpool:
    """Takes chunks in the order of the log; a binlog above `bytes_max` goes to a file."""

    def __init__(self, folder: Path | None = None, bytes_max: int = 1 << 62) -> None:
        """Keep everything in memory, or large binlogs in `folder`, which must exist."""
        self._folder = folder
        self._bytes_max = bytes_max
        self._data: list[bytes] = []
        self._size = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, chunk: Chunk) -> Payload | None:
        """Take the next chunk; return the binlog after its last chunk.

        Raises `NotARecord` if it does not follow the chunk before.
        """
        if chunk.offset == 0:  # A crash may have torn off a binlog's end: here it starts again.
            self._data, self._size, self._digest = [], 0, hashlib.blake2b(digest_size=16)
        if chunk.offset != self._size:
            raise NotARecord(f"a chunk at {chunk.offset} of a binlog after {self._size} bytes")
        self._size += len(chunk.data)
        if self._folder is None or chunk.size_bytes <= self._bytes_max:
            self._data.append(chunk.data)
            return b"".join(self._data) if chunk.is_last else None
        self._digest.update(chunk.data)
        path = self._folder / f"relayed-{chunk.commit_ts}"
        with path.open("ab" if chunk.offset else "wb") as file:
            file.write(chunk.data)
        return self._spooled(path) if chunk.is_last else None

    def _spooled(self, path: Path) -> Payload:
        found = outline_in(path, self._size)
        if found.ddl_job_id > 0:  # A DDL is handled in memory, however it was sent.
            data = path.read_bytes()
            path.unlink()
            return data
        return Spooled(path, self._size, self._digest.digest(), found)
