"""What a Pump costs when it holds much: restarts, rebuilds of the index, and the rates then.

The log is filled without sync and with values of 10 KB, which is quick and still gives the index
200,000 entries per gigabyte. The page cache is warm: a machine with less memory than log reads
from its disk instead.
"""

import itertools
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from penstock.codes import Code
from penstock.errors import NeedsOperator
from pump.store.storage import Storage, StorageConfig
from tests.bench.pump_rig import Rig
from tests.bench.pump_write import UNLIMITED, megabytes_per_second, pull_batched
from tests.bench.rig import SCALE, Figure, Timestamps, sized

STORED_GIB = (1, 5, 20) if SCALE >= 1 else (1,)
RESTART_BYTES = sized(10_000, 100) * 10**6
REBUILD_BYTES = sized(1_000, 100) * 10**6
FILL_VALUE_BYTES = 10 << 10
FILL_SECONDS = 4.0
REBUILD_VALUE_BYTES = {"1k": 1024, "10k": 10 << 10}
WRITERS = 256
SECONDS = 4.0
PULLED = sized(100_000, 10_000)
_CHUNK_BYTES = 4 << 20


def measure(home: Path) -> Iterator[Figure]:
    """Yield ingest, pull and restart with 1 KB at 1, 5 and 20 GiB stored; the baseline is at 1."""
    need_room(home, (STORED_GIB[-1] + 4) << 30)
    first: dict[str, float] = {}
    with Rig(home, sync=False) as rig:
        for stored in STORED_GIB:
            fill(rig, stored << 30)
            after_ts = next(Timestamps())
            measured = rig.load(value_bytes=1024, writers=WRITERS, seconds=SECONDS)
            count = min(PULLED, measured.transactions)
            with grpc.insecure_channel(rig.address, options=UNLIMITED) as channel:
                sizes = pull_batched(channel, rig.cluster_id, after_ts)
                pulled = megabytes_per_second(sizes, count)
            details = {"log_bytes": int(rig.details()["storage_log_bytes"])}
            answers_s, online_s = rig.restart()
            for name, value, unit, more in (
                ("ingest", measured.rate, "transactions/s", measured.detail(1024)),
                ("pull", pulled, "MB/s", {"transactions": count}),
                ("restart", answers_s, "s", {"online_s": round(online_s, 2)}),
            ):
                yield Figure(
                    f"pump.stored.{stored}g.{name}",
                    value,
                    unit,
                    first.setdefault(name, value),
                    {**details, **more},
                )


def measure_restart(home: Path) -> Iterator[Figure]:
    """Yield the seconds from the start after kill -9 to the first answer; baseline: empty."""
    need_room(home, RESTART_BYTES + (4 << 30))
    with Rig(home, sync=False) as rig:
        empty_s = min(rig.restart()[0] for _ in range(3))
        fill(rig, RESTART_BYTES)
        restarts_s = []
        for _ in range(3):
            rig.load(value_bytes=1024, writers=WRITERS, seconds=1.0)
            restarts_s.append(rig.restart())
        stored = int(rig.details()["storage_log_bytes"])
    detail = {
        "log_bytes": stored,
        "answers_s": [round(answers, 2) for answers, _ in restarts_s],
        "online_s": [round(online, 2) for _, online in restarts_s],
        "baseline": "the same process with an empty log",
    }
    yield Figure("pump.restart.10g", sorted(restarts_s)[1][0], "s", empty_s, detail)


def measure_rebuild(home: Path) -> Iterator[Figure]:
    """Yield the MB/s at which a deleted index comes back; baseline: reading the same files.

    Most of it goes by the number of binlogs, so 1 KB and 10 KB are measured.
    """
    for size, value_bytes in REBUILD_VALUE_BYTES.items():
        folder = home / size
        folder.mkdir()
        with Rig(folder, sync=False) as rig:
            fill(rig, REBUILD_BYTES, value_bytes)
        shutil.rmtree(rig.data / "index")
        read_s = _seconds_to_read(rig.data / "log")
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        storage = Storage.open(rig.data, StorageConfig())
        took_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
        stats = storage.stats()
        storage.close()
        detail = {
            "records": stats["replayed_records"],
            "cpu_us_per_record": round(cpu_s / stats["replayed_records"] * 1e6, 2),
            "mb_per_cpu_s": round(stats["log_bytes"] / cpu_s / 1e6),
        }
        yield Figure(
            f"pump.rebuild.{size}",
            stats["log_bytes"] / took_s / 1e6,
            "MB/s",
            stats["log_bytes"] / read_s / 1e6,
            detail,
        )
        shutil.rmtree(folder)


def fill(rig: Rig, log_bytes: int, value_bytes: int = FILL_VALUE_BYTES) -> None:
    """Write until the log holds that much, and say on stderr how far that is."""
    while (stored := int(rig.details()["storage_log_bytes"])) < log_bytes:
        print(
            f"  {stored / 1e9:.1f} of {log_bytes / 1e9:.1f} GB stored", file=sys.stderr, flush=True
        )
        rig.load(value_bytes=value_bytes, writers=1000, seconds=FILL_SECONDS)


def _seconds_to_read(folder: Path) -> float:
    begun_s = time.perf_counter()
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            for _ in itertools.takewhile(bool, iter(lambda: file.read(_CHUNK_BYTES), None)):
                pass
    return time.perf_counter() - begun_s


def need_room(home: Path, size_bytes: int) -> None:
    """Raise `NeedsOperator` when the volume cannot take so many bytes."""
    volume = os.statvfs(home)
    free = volume.f_bavail * volume.f_frsize
    if free < size_bytes + (volume.f_blocks * volume.f_frsize) // 50:
        raise NeedsOperator(
            f"{home} has {free >> 30} GiB left, {size_bytes >> 30} are needed",
            hint="set TMPDIR to a larger volume",
            code=Code.DDL_UNSUPPORTED,
        )
