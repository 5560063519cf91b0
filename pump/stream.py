"""The reading side of the storage: merged binlogs in commit order, and single ones by timestamp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.segments import Segments
from pump.index import COMMIT, Index, Purge
from pump.record import PurgedRange


class Pulled(NamedTuple):
    """A piece of the stream: all of it up to `last_ts`."""

    commit_ts: list[int]
    payloads: list[bytes]
    last_ts: int


class Stream:
    """What can be pulled; safe to use from any number of threads, also while purging."""

    def __init__(self, index: Index, segments: Segments, purge: Purge) -> None:
        self._index = index
        self._segments = segments
        self.purge = purge
        """Set before anything is removed, so that a reader checks it after it has read."""

    def pull(self, after_ts: int, up_to_ts: int, bytes_max: int, count_max: int) -> Pulled:
        """Return merged and fake binlogs in (after_ts, up_to_ts], in order, within the bounds."""
        self._check(after_ts)
        timestamps: list[int] = []
        kinds: list[int] = []
        positions: list[tuple[int, int, int]] = []
        size, complete = 0, True
        for chunk_ts, entries in self._index.commits(after_ts, up_to_ts):
            taken = 0
            for kind, s, o, n, prewrite_s, prewrite_o, prewrite_n in entries:
                size += n + prewrite_n
                if positions and (size > bytes_max or len(kinds) >= count_max):
                    complete = False
                    break
                if kind == COMMIT:
                    positions.append((prewrite_s, prewrite_o, prewrite_n))
                positions.append((s, o, n))
                kinds.append(kind)
                taken += 1
            timestamps.extend(chunk_ts[:taken])
            if not complete:
                break
        parts = iter(self._read(after_ts, positions))
        # A Prewrite's bytes and its Commit's are together the merged binlog, see codec.py.
        payloads = [next(parts) + next(parts) if kind == COMMIT else next(parts) for kind in kinds]
        last_ts = max(after_ts, up_to_ts) if complete else timestamps[-1]
        return Pulled(timestamps, payloads, last_ts)

    def prewrite(self, start_ts: int) -> bytes | None:
        """Return the Prewrite of `start_ts`, None if there is none or it is purged."""
        found = self._index.prewrite(start_ts)
        if found is None or found[1].segment < self.purge.first_segment:
            return None
        return self._segments.read(found[1])

    def get(self, ts: int) -> bytes | None:
        """Return the merged or fake binlog at commit_ts `ts`, None if there is none."""
        entry = self._index.commit(ts) if ts > self.purge.purged_ts else None
        if entry is None:
            return None
        positions = [entry.prewrite] if entry.kind == COMMIT else []
        return b"".join(self._segments.read_many([*positions, entry.position]))

    def _read(self, after_ts: int, positions: Sequence[tuple[int, int, int]]) -> list[bytes]:
        try:
            parts = self._segments.read_many(positions)
        except PenstockError:
            self._check(after_ts)  # The segment went away while we read it.
            raise
        self._check(after_ts)  # Or its entries, before we came to them.
        return parts

    def _check(self, after_ts: int) -> None:
        if after_ts < self.purge.purged_ts:
            raise PurgedRange(after_ts, self.purge.purged_ts)
