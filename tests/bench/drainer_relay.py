"""Writing the Drainer's relay log, against the same bytes written raw with the same syncs.

Both write what a backlog's batches are made of: runs of a mebibyte, synced after each batch. Small
binlogs are those of a transaction of one row, large ones of a hundred and more. The raw side is one
`write` per run. The sides take turns, and the best round of each counts: others use the disk, too.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from drainer.relay_log.log import RelayLog
from drainer.settings.config import DrainerConfig
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from tests.bench.figure import Figure

SIZES = {"small": 200, "large": 32 << 10}
"""Bytes of a transaction's rows."""
RUN_BYTES = 1 << 20
TOTAL_BYTES = 256 << 20
FILE_BYTES_MAX = 512 << 20
ROUNDS = 3


def measure(home: Path) -> Iterator[Figure]:
    """Yield MB/s of binlogs for each of their sizes."""
    for kind, value_bytes in SIZES.items():
        runs = _runs(value_bytes)
        size = sum(len(payload) for run in runs for _, payload in run)
        ours_s: list[float] = []
        cpu_s: list[float] = []
        raw_s: list[float] = []
        raw_cpu_s: list[float] = []
        for number in range(ROUNDS):
            for side, seconds, cpu in ((_raw, raw_s, raw_cpu_s), (_relayed, ours_s, cpu_s)):
                begun_cpu_s = time.process_time()
                seconds.append(side(home / f"{kind}-{number}", runs))
                cpu.append(time.process_time() - begun_cpu_s)
        yield Figure(
            name=f"drainer.relay.{kind}",
            value=size / min(ours_s) / 1e6,
            unit="MB/s",
            baseline=size / min(raw_s) / 1e6,
            detail={
                "bytes": size,
                "binlogs": sum(map(len, runs)),
                "cpu_us_per_binlog": round(min(cpu_s) / sum(map(len, runs)) * 1e6, 2),
                "cpu_s_per_gb": round(min(cpu_s) / size * 1e9, 2),
                "baseline_cpu_s_per_gb": round(min(raw_cpu_s) / size * 1e9, 2),
                "rounds": ROUNDS,
                "machine_load": round(os.getloadavg()[0], 1),
                "baseline": "one write per run, one fdatasync per batch",
            },
        )


def _runs(value_bytes: int) -> list[list[tuple[int, bytes]]]:
    """Return merged binlogs in runs, as the merge hands them on."""
    runs: list[list[tuple[int, bytes]]] = [[]]
    value, size, filled = os.urandom(value_bytes), 0, 0
    ts = 1 << 58
    while size < TOTAL_BYTES:
        ts += 2
        merged = Binlog(tp=BinlogType.COMMIT, start_ts=ts - 1, commit_ts=ts, prewrite_value=value)
        payload = encode_binlog(merged)
        if filled + len(payload) > RUN_BYTES:
            runs.append([])
            filled = 0
        runs[-1].append((ts, payload))
        filled += len(payload)
        size += len(payload)
    return runs


def _relayed(home: Path, runs: Sequence[Sequence[tuple[int, bytes]]]) -> float:
    folder = home.with_name(f"{home.name}-relay")
    with closing(RelayLog.open(folder, file_bytes_max=FILE_BYTES_MAX)) as log:
        log.start(1, 1, ())
        seconds = _timed(runs, log.append, log.sync)
    shutil.rmtree(folder)
    return seconds


def _raw(home: Path, runs: Sequence[Sequence[tuple[int, bytes]]]) -> float:
    path = home.with_name(f"{home.name}-raw")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def append(run: Sequence[tuple[int, bytes]]) -> None:
        data = b"".join([payload for _, payload in run])
        assert os.write(descriptor, data) == len(data), "the disk is full"

    try:
        return _timed(runs, append, lambda: os.fdatasync(descriptor))
    finally:
        os.close(descriptor)
        path.unlink()


def _timed(
    runs: Sequence[Sequence[tuple[int, bytes]]],
    append: Callable[[Sequence[tuple[int, bytes]]], None],
    sync: Callable[[], None],
) -> float:
    """Return the seconds until all is on the disk."""
    batch_runs = max(1, DrainerConfig().batch_bytes_max // RUN_BYTES)
    begun_s = time.perf_counter()
    for start in range(0, len(runs), batch_runs):
        for run in runs[start : start + batch_runs]:
            append(run)
        sync()
    return time.perf_counter() - begun_s
