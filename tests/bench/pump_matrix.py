"""Transactions per second on one Pump: sizes, numbers of writers, with and without sync.

A transaction is a Prewrite and, once that is acknowledged, its Commit. The baseline is what the
same disk takes in the same minute when the same bytes are written raw in groups as large as the
Pump's were, so that the ratio is that of the megabytes per second as well.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figure import Figure, percentile
from tests.bench.pump_raw import write_raw
from tests.bench.pump_rig import Rig

SIZES = {"128b": 128, "1k": 1024, "10k": 10 << 10, "100k": 100 << 10}
WRITERS = (1, 10, 256, 1000)
SECONDS = 1.5
RAW_SECONDS = 0.5
ACK_SECONDS = 4.0


def measure(size: str, home: Path) -> Iterator[Figure]:
    """Yield `pump.write.<size>.<sync|nosync>.w<writers>`."""
    for manner in ("sync", "nosync"):
        folder = home / manner
        with Rig(folder, sync=manner == "sync") as rig:
            for writers in WRITERS:
                yield _cell(rig, folder, size, manner, writers)
        shutil.rmtree(folder)  # The next size needs the space.


def _cell(rig: Rig, folder: Path, size: str, manner: str, writers: int) -> Figure:
    value_bytes = SIZES[size]
    measured = rig.load(value_bytes=value_bytes, writers=writers, seconds=SECONDS)
    raw = write_raw(
        folder,
        value_bytes=value_bytes,
        records_per_group=measured.records_per_group,
        sync=manner == "sync",
        seconds=RAW_SECONDS,
    )
    detail = measured.detail(value_bytes)
    detail["raw_mb_per_s"] = round(raw.rate * value_bytes / 1e6, 1)
    return Figure(
        name=f"pump.write.{size}.{manner}.w{writers}",
        value=measured.rate,
        unit="transactions/s",
        baseline=raw.rate,
        detail=detail,
    )


def measure_ack(home: Path) -> Iterator[Figure]:
    """Yield the slowest hundredth of the acknowledgements, against that of bare fdatasyncs."""
    syncs_ms: list[float] = []
    with Rig(home, sync=True) as rig:

        def sync_bare(records_per_group: float) -> None:
            raw = write_raw(
                home,
                value_bytes=SIZES["1k"],
                records_per_group=records_per_group,
                sync=True,
                seconds=ACK_SECONDS / 4,
            )
            syncs_ms.extend(raw.syncs_ms)

        sync_bare(8)
        measured = rig.load(value_bytes=SIZES["1k"], writers=10, seconds=ACK_SECONDS)
        sync_bare(measured.records_per_group)
    detail = measured.detail(SIZES["1k"])
    detail["fdatasync_p50_ms"] = round(percentile(syncs_ms, 0.5), 2)
    yield Figure(
        name="pump.ack_p99.w10",
        value=measured.p99_ms,
        unit="ms",
        baseline=percentile(syncs_ms, 0.99),
        detail=detail,
    )
