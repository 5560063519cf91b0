"""What the disk takes without a Pump: the same bytes, in groups as large, with the same syncs."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from penstock.log.frame import HEADER_SIZE
from tests.bench.pump_load import Clock

_BYTES_MAX = 1 << 30
_BUFFERS_MAX = 1024


@dataclass(slots=True)
class Raw:
    """Transactions written, and how long each sync took."""

    transactions: float = 0.0
    seconds: float = 0.0
    syncs_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Transactions per second."""
        return self.transactions / self.seconds


def write_raw(
    folder: Path, *, value_bytes: int, records_per_group: float, sync: bool, seconds: float
) -> Raw:
    """Write Prewrites and Commits with their frames' headers in turn, one `pwritev` per group."""
    clock = Clock(first_ts=1 << 58, value_bytes=value_bytes)
    start_ts, prewrite = clock.prewrite()
    header = bytes(HEADER_SIZE)
    pair = [header + prewrite, header + clock.commit(start_ts)]
    count = max(1, round(records_per_group))
    raw, path = Raw(), folder / "raw"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        begun_s, offset, first = time.perf_counter(), 0, 0
        while time.perf_counter() - begun_s < seconds and offset < _BYTES_MAX:
            group = [pair[(first + i) % 2] for i in range(count)]
            first += count
            for at in range(0, count, _BUFFERS_MAX):
                offset += os.pwritev(descriptor, group[at : at + _BUFFERS_MAX], offset)
            if sync:
                sync_s = time.perf_counter()
                os.fdatasync(descriptor)
                raw.syncs_ms.append((time.perf_counter() - sync_s) * 1000)
        raw.seconds = time.perf_counter() - begun_s
        raw.transactions = first / 2
    finally:
        os.close(descriptor)
        path.unlink()
    return raw
