"""What it costs to read or copy a whole log while writers go on.

pump.copies.refill.live    MB/s at which a Pump is given a log's live segment, of which it has none
pump.copies.refill.older   MB/s at which it is given the older ones, and what writers wait meanwhile
pump.copies.scrub          ack p99 of writers while `penstock ctl scrub` runs, against without

Writers write at a steady rate that is far below what the Pump can take: what they wait longer is
what the copying or the reading costs them. The disk's own rate is that of reading the same files
and writing them elsewhere on the volume, with a sync after each piece.
"""

import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import grpc

from penstock.cluster import etcd
from penstock.cluster.log_entry import LogEntries, LogEntry
from penstock.log.segment import segment_name
from penstock.ts import compose
from penstock.wire.binlog import Binlog, BinlogType
from penstock_local.cluster import Cluster
from penstock_local.process import python_module
from tests.bench.figure import Figure, percentile
from tests.bench.pump_copies import Repeated
from tests.bench.pump_write import Write, unary_writer
from tests.kit.wait import eventually

REFILL_MB = int(os.environ.get("REFILL_MB", "256"))
ROW = bytes(range(256)) * 16
SMALL_ROW = ROW[:1024]
FILLERS = 64
WRITERS = 8
EVERY_S = 0.04
QUIET_S = 10.0
PIECE_BYTES = 8 << 20
WITHIN_S = 600.0
PRIMARY = "pump-1"


class Steady(Repeated):
    """Writers that write one transaction after the other, at a steady rate."""

    def __init__(self, write: Write, clock: Iterator[int]) -> None:
        self.acknowledged: list[tuple[float, float]] = []
        """When each binlog was written, and how long its acknowledgement took; seconds."""
        self._write = write
        self._clock = clock
        super().__init__([partial(self._work, n) for n in range(WRITERS)])

    def p_ms(self, share: float, begin_s: float, end_s: float) -> float:
        """Return a percentile of the acknowledgements of what was written in that time."""
        took_s = [took for at, took in self.acknowledged if begin_s <= at < end_s]
        return round(1000 * percentile(took_s, share), 3)

    def pause_s(self, begin_s: float, end_s: float) -> float:
        """Return the longest time without an acknowledgement."""
        came = sorted(at + took for at, took in self.acknowledged)
        came = [begin_s, *(at for at in came if begin_s < at < end_s), end_s]
        return max(after - before for before, after in itertools.pairwise(came))

    def _work(self, number: int, over: threading.Event) -> None:
        due_s = time.monotonic() + EVERY_S * number / WRITERS
        while not over.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s, time.monotonic() - EVERY_S) + EVERY_S
            start_ts = next(self._clock)
            for binlog in (
                Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=SMALL_ROW),
                Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=next(self._clock)),
            ):
                begun_s = time.monotonic()
                try:
                    self._write(binlog)
                except (AssertionError, grpc.RpcError):
                    break  # Too few copies: a writer would go elsewhere.
                self.acknowledged.append((begun_s, time.monotonic() - begun_s))


def measure(home: Path) -> Iterator[Figure]:
    """Yield both, of one log."""
    with (
        Cluster(home, pumps=4, copies=2, with_drainer=False) as cluster,
        closing(etcd.connect(cluster.etcd.url)) as connection,
    ):
        clock = itertools.count(compose(int(time.time() * 1000) + 3_600_000, 0))
        write = unary_writer(cluster, PRIMARY)
        fill(write, clock, REFILL_MB * 1_000_000)
        steady = Steady(write, clock)
        try:
            entries = LogEntries(connection)
            yield scrubbed(cluster, steady)
            yield from refilled(cluster, entries, steady)
        finally:
            steady.close()


def fill(write: Write, clock: Iterator[int], size_bytes: int) -> None:
    """Write that much of transactions."""
    count = itertools.count()

    def work() -> None:
        while next(count) * len(ROW) < size_bytes:
            start_ts = next(clock)
            write(Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=ROW))
            write(Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=next(clock)))

    with ThreadPoolExecutor(FILLERS) as pool:
        for done in [pool.submit(work) for _ in range(FILLERS)]:
            done.result()


def refilled(cluster: Cluster, entries: LogEntries, steady: Steady) -> Iterator[Figure]:
    """Yield how fast another Pump is given the log when the only copy is lost, and so once more.

    At first most of the log is in its live segment, before which nothing is acknowledged again. At
    the second time that segment is an older one, which follows in the background.
    """
    folder, beside = cluster.home / PRIMARY / "log", cluster.home / "beside"
    for name in ("live", "older"):
        quiet_s = time.monotonic()
        time.sleep(QUIET_S)
        lost_s = time.monotonic()
        begun_s, listed_s, whole_s, first = lose_copy(cluster, entries)
        paths = [path for path in folder.glob("*.seg") if int(path.stem) < first]
        from_s, until_s = listed_s, whole_s
        if name == "live":
            paths, from_s, until_s = [folder / segment_name(first)], begun_s, listed_s
        size = sum(path.stat().st_size for path in paths)
        assert name == "live" or size > REFILL_MB * 900_000, "most of the log is older"
        disk_s = [plain_copy_s(paths, beside) for _ in range(3)]
        detail: dict[str, object] = {
            "mb": round(size / 1e6, 1),
            "seconds": round(until_s - from_s, 2),
            "disk_s": [round(each, 2) for each in disk_s],
            "no_acknowledgement_s": round(steady.pause_s(lost_s, whole_s), 2),
        }
        if name == "older":
            for key, share in (("p50", 0.5), ("p99", 0.99)):
                quiet_ms = steady.p_ms(share, quiet_s, lost_s)
                detail |= compared(key, steady.p_ms(share, from_s, until_s), quiet_ms)
        yield Figure(
            name=f"pump.copies.refill.{name}",
            value=size / 1e6 / (until_s - from_s),
            unit="MB/s",
            baseline=size / 1e6 / percentile(disk_s, 0.5),
            detail=detail,
        )


def lose_copy(cluster: Cluster, entries: LogEntries) -> tuple[float, float, float, int]:
    """Lose the log's copy, and return when another one was begun, listed and whole.

    The last number is that of the segment which that one was listed with.
    """
    (lost,) = entry_of(entries).replicas
    cluster.pumps[lost.pump].kill()
    shutil.rmtree(cluster.home / lost.pump)
    eventually(lambda: any(cluster.home.glob(f"pump-*/copies/{PRIMARY}/log")), WITHIN_S)
    begun_s = time.monotonic()
    eventually(lambda: any(copy.disk != lost.disk for copy in entry_of(entries).replicas), WITHIN_S)
    listed_s, first = time.monotonic(), entry_of(entries).replicas[0].first
    eventually(lambda: entry_of(entries).replicas[0].first <= entry_of(entries).needed, WITHIN_S)
    return begun_s, listed_s, time.monotonic(), first


def entry_of(entries: LogEntries) -> LogEntry:
    """Return who has the log."""
    found = entries.read(PRIMARY)
    assert found is not None
    return found[0]


def scrubbed(cluster: Cluster, steady: Steady) -> Figure:
    """Return what a scrub at its default rate costs writers."""
    quiet_s = time.monotonic()
    time.sleep(QUIET_S)
    begun_s = time.monotonic()
    command = python_module("ctl.commands", "scrub", PRIMARY, "--wait")
    subprocess.run([*command, "--etcd-urls", cluster.etcd.url], check=True, stdout=sys.stderr)
    ended_s = time.monotonic()
    size = sum(path.stat().st_size for path in (cluster.home / PRIMARY).rglob("*.seg"))
    p99 = (steady.p_ms(0.99, begun_s, ended_s), steady.p_ms(0.99, quiet_s, begun_s))
    p50 = (steady.p_ms(0.5, begun_s, ended_s), steady.p_ms(0.5, quiet_s, begun_s))
    return Figure(
        name="pump.copies.scrub",
        value=p99[0],
        unit="ms",
        baseline=p99[1],
        detail={
            "mb_per_s": round(size / 1e6 / (ended_s - begun_s), 2),
            "seconds": round(ended_s - begun_s, 2),
            **compared("p50", *p50),
        },
    )


def compared(name: str, during_ms: float, quiet_ms: float) -> dict[str, float]:
    """Return a percentile with what goes on and without, and their ratio."""
    return {
        f"{name}_ms": during_ms,
        f"quiet_{name}_ms": quiet_ms,
        f"{name}_ratio": round(during_ms / quiet_ms, 3),
    }


def plain_copy_s(paths: list[Path], to: Path) -> float:
    """Return how long it takes to read files from the disk and to write them to another one."""
    for path in paths:
        with path.open("rb") as source:
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begun_s = time.monotonic()
    with to.open("wb", buffering=0) as target:
        for path in paths:
            with path.open("rb", buffering=0) as source:
                while data := source.read(PIECE_BYTES):
                    target.write(data)
                    os.fdatasync(target.fileno())
    took_s = time.monotonic() - begun_s
    to.unlink()
    return took_s
