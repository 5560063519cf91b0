"""Stream: reads merged binlogs in commit order, and single ones by timestamp."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from google_crc32c import extend

from penstock.codes import Code
from penstock.errors import Corrupt, Malformed, NeedsOperator, PenstockError
from penstock.log.chunks import ChunkList, decode_chunk, decode_chunk_list, is_special
from penstock.log.segment import segment_name
from penstock.log.segments import Position, Segments
from penstock.wire.binlog import fake_binlog
from penstock.wire.codec import encode_binlog
from pump.store.index import COMMIT, LARGE, Index, Purge
from pump.store.record import PurgedRange


class Large(NamedTuple):
    """A merged binlog whose Prewrite lies in chunks; `Stream.chunks` reads it."""

    commit_ts: int
    where: Position
    chunk_list: ChunkList
    commit: bytes

    @property
    def size_bytes(self) -> int:
        return self.chunk_list.size_bytes + len(self.commit)


class Pulled(NamedTuple):
    """A stretch of the stream: all of it up to `last_ts`.

    A merged binlog is a Prewrite's bytes and its Commit's (see `codec.py`). They are joined only
    when the message that carries them is made.
    """

    commit_ts: list[int]
    prewrites: list[bytes]
    """Empty for a fake binlog."""
    outcomes: list[bytes]
    """Commits and fake binlogs."""
    last_ts: int
    large: Large | None = None
    """Then nothing else is in it."""

    def completed(self, up_to_ts: int) -> Pulled:
        """Return this stretch and a fake binlog, which is in no log, up to a later timestamp."""
        return Pulled(
            [*self.commit_ts, up_to_ts],
            [*self.prewrites, b""],
            [*self.outcomes, encode_binlog(fake_binlog(up_to_ts))],
            up_to_ts,
        )

    @property
    def payloads(self) -> list[bytes]:
        return list(map(operator.add, self.prewrites, self.outcomes))


class Stream:
    """The binlogs that can be pulled; safe for any number of threads, also while purging."""

    def __init__(self, index: Index, segments: Segments, purge: Purge) -> None:
        self._index = index
        self._segments = segments
        self.purge = purge
        """Set before anything is removed, so that a reader checks it after it has read."""

    def pull(self, after_ts: int, up_to_ts: int, bytes_max: int, count_max: int) -> Pulled:
        self._check(after_ts)
        timestamps: list[int] = []
        kinds: list[int] = []
        positions: list[tuple[int, int, int]] = []
        size, complete = 0, True
        large: tuple[int, Position, Position] | None = None
        for chunk_ts, entries in self._index.commits(after_ts, up_to_ts):
            taken = 0
            for kind, s, o, n, prewrite_s, prewrite_o, prewrite_n in entries:
                size += n + prewrite_n
                if positions and (size > bytes_max or len(kinds) >= count_max):
                    complete = False
                    break
                if kind == COMMIT:
                    positions.append((prewrite_s, prewrite_o, prewrite_n))
                elif kind == LARGE:
                    complete = False
                    if not positions:
                        prewrite = Position(prewrite_s, prewrite_o, prewrite_n)
                        large = chunk_ts[0], Position(s, o, n), prewrite
                    break
                positions.append((s, o, n))
                kinds.append(kind)
                taken += 1
            timestamps.extend(chunk_ts[:taken])
            if not complete:
                break
        if large is not None:
            return Pulled([], [], [], large[0], self._large(*large))
        prewrites, outcomes = _apart(kinds, self._read(after_ts, positions))
        found = Pulled(timestamps, prewrites, outcomes, timestamps[-1] if timestamps else after_ts)
        return found.completed(up_to_ts) if complete and found.last_ts < up_to_ts else found

    def fetch(self, wanted: Sequence[int], bytes_max: int) -> Pulled:
        """Return the first of the `wanted` merged binlogs, by rising commit_ts; at least one.

        Raises as `pull` does, and `NeedsOperator` for a binlog that is not here, or is in chunks.
        """
        self._check(wanted[0] - 1)
        kinds: list[int] = []
        positions: list[tuple[int, int, int]] = []
        size = 0
        for ts, (kind, s, o, n, *prewrite) in self._found(wanted):
            size += n + prewrite[2]
            if kinds and size > bytes_max:
                break
            if kind == LARGE:
                raise _not_here(ts, "it lies in chunks, which only a pull sends")
            if kind == COMMIT:
                positions.append((prewrite[0], prewrite[1], prewrite[2]))
            positions.append((s, o, n))
            kinds.append(kind)
        prewrites, outcomes = _apart(kinds, self._read(wanted[0] - 1, positions))
        stamps = list(wanted[: len(kinds)])
        return Pulled(stamps, prewrites, outcomes, stamps[-1])

    def _found(self, wanted: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield each wanted timestamp with its entry; raise `NeedsOperator` if one is missing."""
        left = iter(wanted)
        ts = next(left)
        for stamps, entries in self._index.commits(wanted[0] - 1, wanted[-1]):
            for stamp, entry in zip(stamps, entries, strict=True):
                if stamp < ts:
                    continue
                if stamp > ts:
                    break
                yield ts, entry
                following = next(left, None)
                if following is None:
                    return
                ts = following
        self._check(wanted[0] - 1)
        raise _not_here(ts, "this Pump has no such binlog")

    def chunks(self, large: Large) -> Iterator[bytes]:
        """Yield the merged binlog chunk by chunk, the last one only if size and checksum are right.

        Raises `PurgedRange`, `Corrupt` and `Retryable`, like `pull`.
        """
        chunk_list, crc, offset = large.chunk_list, 0, 0
        for number, position in enumerate(chunk_list.positions):
            payload = self._read(large.commit_ts - 1, [position])[0]
            try:
                chunk = decode_chunk(payload)
            except Malformed as error:
                raise self._corrupt(position, error.problem) from error
            if chunk[:3] != (chunk_list.start_ts, number, offset):
                raise self._corrupt(position, f"not chunk {number} of {chunk_list.start_ts}")
            crc = extend(crc, chunk.data)
            offset += len(chunk.data)
            yield chunk.data
        if (offset, crc) != (chunk_list.size_bytes, chunk_list.crc):
            raise self._corrupt(large.where, "the chunks together are not what was written")
        yield large.commit

    def prewrite(self, start_ts: int) -> bytes | None:
        """Return the Prewrite of `start_ts`, None if it does not exist or is purged.

        For a Prewrite in chunks, this and `get` return only the part before its row changes.
        """
        position = self._prewrite_at(start_ts)
        return None if position is None else self.short(position)

    def get(self, ts: int) -> bytes | None:
        entry = self._index.commit(ts) if ts > self.purge.purged_ts else None
        if entry is None:
            return None
        before = self.short(entry.prewrite) if entry.kind in (COMMIT, LARGE) else b""
        return before + self._segments.read(entry.position)

    def short(self, position: Position) -> bytes:
        """Return the Prewrite at `position`; if chunked, only the part before its row changes."""
        payload = self._segments.read(position)
        return self._chunk_list(position, payload).head if is_special(payload) else payload

    def chunk_list(self, ts: int) -> ChunkList | None:
        """Return a transaction's chunk list, by either timestamp; None if it is not chunked."""
        entry = self._index.commit(ts) if ts > self.purge.purged_ts else None
        position = self._prewrite_at(ts) if entry is None else entry.prewrite
        if position is None or position.length == 0:
            return None
        payload = self._segments.read(position)
        return self._chunk_list(position, payload) if is_special(payload) else None

    def _prewrite_at(self, start_ts: int) -> Position | None:
        found = self._index.prewrite(start_ts)
        if found is None or found[1].segment < self.purge.first_segment:
            return None
        return found[1]

    def _large(self, commit_ts: int, where: Position, prewrite: Position) -> Large:
        payload, commit = self._read(commit_ts - 1, [prewrite, where])
        return Large(commit_ts, prewrite, self._chunk_list(prewrite, payload), commit)

    def _chunk_list(self, position: Position, payload: bytes) -> ChunkList:
        try:
            return decode_chunk_list(payload)
        except Malformed as error:
            raise self._corrupt(position, error.problem) from error

    def _corrupt(self, position: Position, problem: str) -> Corrupt:
        path = self._segments.folder / segment_name(position.segment)
        return Corrupt(str(path), position.offset, problem, code=Code.SEGMENT_DAMAGED)

    def _read(self, after_ts: int, positions: Sequence[tuple[int, int, int]]) -> list[bytes]:
        try:
            parts = self._segments.read_many(positions)
        except PenstockError:
            self._check(after_ts)  # The segment was purged during the read.
            raise
        self._check(after_ts)  # Its entries were purged earlier.
        return parts

    def _check(self, after_ts: int) -> None:
        if after_ts < self.purge.purged_ts:
            raise PurgedRange(after_ts, self.purge.purged_ts)


def _apart(kinds: Sequence[int], parts: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    if len(parts) == 2 * len(kinds):
        return parts[::2], parts[1::2]
    left = iter(parts)
    pairs = [(next(left) if kind == COMMIT else b"", next(left)) for kind in kinds]
    return [prewrite for prewrite, _ in pairs], [outcome for _, outcome in pairs]


def _not_here(commit_ts: int, why: str) -> NeedsOperator:
    return NeedsOperator(
        f"the binlog at commit_ts {commit_ts} cannot be fetched: {why}",
        "was the Pump's data-dir exchanged? Restart the Drainer, which asks again",
        Code.PULL_REFUSED,
    )
