"""What a second copy of a Pump's log costs, and how long a log is away whose Pump is gone.

pump.copies.rate       binlogs/s of one Pump with two copies, against one; also p99 and CPU
pump.takeover.commit   after a kill with the disk deleted: to the first new commit elsewhere
pump.takeover.oracle   … where the Pump led the oracle: its stand-in gives the lease back
pump.takeover.machine  … where the stand-in died with it, as on a dead machine: the lease has to end
pump.takeover.merge    … until a reader has a transaction that was committed after the kill
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import grpc
import psutil

from penstock.cluster import etcd
from penstock.cluster.log_entry import LogEntries, LogEntry
from penstock.errors import PenstockError
from penstock.local.cluster import Cluster
from penstock.local.process import python_module
from penstock.log.segment import segment_name
from penstock.oracle.client import LEADER_KEY
from penstock.stream import NOW, Reader, Transaction
from penstock.ts import compose
from penstock.wire.binlog import Binlog, BinlogType
from pumpclient import PumpClient
from tests.bench.pump_rig import pump_address
from tests.bench.pump_write import Write, run, unary_writer
from tests.bench.rig import Figure, Timestamps, percentile, process_s, sized, together
from tests.kit.wait import eventually, present

WRITERS = 64
ROUNDS = sized(10)
ROUND_S_MAX = 60.0
PRIMARY = "pump-1"


def measure(home: Path) -> Iterator[Figure]:
    """Yield the rate with two copies against that with one, three Pumps each."""
    found: dict[int, tuple[float, dict[str, object]]] = {}
    for copies in (1, 2):
        with (
            Cluster(home / str(copies), copies=copies, with_drainer=False) as cluster,
            PumpClient.connect(cluster.etcd.url),
        ):
            clock = Timestamps()
            write = unary_writer(cluster, PRIMARY)
            run(write, WRITERS, clock)  # Not counted: the first groups find everything cold.
            before = {name: process_s(pump.pid) for name, pump in cluster.pumps.items()}
            rate, detail = run(write, WRITERS, clock)
            used = {n: process_s(p.pid) - before[n] for n, p in cluster.pumps.items()}
            written = rate * detail_s(detail)
            detail["primary_cpu_us"] = round(1e6 * used.pop(PRIMARY) / written, 2)
            detail["others_cpu_us"] = round(1e6 * sum(used.values()) / written, 2)
            found[copies] = (rate, detail)
    yield Figure(
        "pump.copies.rate",
        found[2][0],
        "binlogs/s",
        found[1][0],
        {**found[2][1], "one_copy": found[1][1], "writers": WRITERS},
    )


def detail_s(detail: dict[str, object]) -> float:
    took_s = detail["seconds"]
    assert isinstance(took_s, float)
    return took_s


class Repeated:
    """Threads that do one thing again and again, until they are closed."""

    def __init__(self, works: Iterable[Callable[[threading.Event], object]]) -> None:
        """Each is to return soon after its event is set."""
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work, args=(self._over,)) for work in works]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


class Commits(Repeated):
    """Threads that commit one row after the other, and when each commit was acknowledged."""

    def __init__(self, client: PumpClient, threads: int) -> None:
        self.acknowledged: list[tuple[float, float]] = []
        """When each transaction was begun, and when its commit was acknowledged; seconds."""
        self._client = client
        self._number = itertools.count()
        super().__init__([self._work] * threads)

    def _work(self, over: threading.Event) -> None:
        while not over.is_set():
            begun_s, number = time.monotonic(), next(self._number)
            with suppress(PenstockError), self._client.begin() as txn:
                txn.insert("bench.t", {"id": number})
            self.acknowledged.append((begun_s, time.monotonic()))
            time.sleep(0.005)


class Seen(Repeated):
    """A reader of the stream, and when it had each transaction."""

    def __init__(self, etcd_url: str) -> None:
        self.came: list[tuple[int, float]] = []
        """commit_ts and the moment, seconds."""
        self._reader = Reader.connect(etcd_url, after=NOW, name="bench")
        super().__init__([self._read])

    def close(self) -> None:
        super().close()
        self._reader.close()

    def _read(self, over: threading.Event) -> None:
        while not over.is_set():
            each = self._reader.get(timeout_s=0.1)
            if isinstance(each, Transaction):
                self.came.append((each.commit_ts, time.monotonic()))
            self._reader.acknowledge(self._reader.checkpoint)


def measure_takeover(home: Path) -> Iterator[Figure]:
    """Yield how long new transactions and the merge stood still, over some lost disks."""
    stood_s: dict[str, list[float]] = {"commit": [], "oracle": [], "machine": [], "merge": []}
    with (
        Cluster(home, copies=2, with_drainer=False) as cluster,
        PumpClient.connect(cluster.etcd.url) as client,
        closing(etcd.connect(cluster.etcd.url)) as connection,
    ):
        client.execute_ddl("CREATE DATABASE bench")
        client.execute_ddl("CREATE TABLE bench.t (id BIGINT NOT NULL, PRIMARY KEY (id))")
        seen, commits = Seen(cluster.etcd.url), Commits(client, 4)
        try:
            for number in range(ROUNDS):
                time.sleep(2)
                name = f"pump-{number % 3 + 1}"
                pump = cluster.pumps[name]
                leader = connection.get(LEADER_KEY)[0] or b""
                led = leader.decode() == pump_address(cluster, name)[0]
                is_machine = led and number % 2 == 1
                kind = "machine" if is_machine else "oracle" if led else "commit"
                if is_machine:
                    for child in psutil.Process(pump.pid).children():
                        child.kill()
                pump.kill()
                killed_s, killed_ts = time.monotonic(), compose(int(time.time() * 1000), 0)
                shutil.rmtree(cluster.home / name)
                deadline_s = killed_s + ROUND_S_MAX
                committed_s = came_s = None
                while committed_s is None or came_s is None:
                    assert time.monotonic() < deadline_s, f"round {number}: all stands still"
                    time.sleep(0.01)
                    after = [end for begun, end in commits.acknowledged if begun > killed_s]
                    committed_s = min(after, default=None)
                    came_s = next((s for ts, s in seen.came if ts > killed_ts + (1 << 18)), None)
                stood_s["merge"].append(came_s - killed_s)
                stood_s[kind].append(committed_s - killed_s)
                pump.start()
                cluster.wait_online()
        finally:
            commits.close()
            seen.close()
    for name, values in stood_s.items():
        if values:
            yield Figure(
                f"pump.takeover.{name}",
                percentile(values, 0.99),
                "s",
                None,
                {"p50_s": round(percentile(values, 0.5), 3), "kills": len(values)},
            )


REFILL_MB = sized(256, 32)
ROW = bytes(range(256)) * 16
SMALL_ROW = ROW[:1024]
FILLERS = 64
STEADY_WRITERS = 8
EVERY_S = 0.04
QUIET_S = 10.0
PIECE_BYTES = 8 << 20
WITHIN_S = 600.0


class Steady(Repeated):
    """Writers that write one transaction after the other, at a steady rate."""

    def __init__(self, write: Write, clock: Iterator[int]) -> None:
        self.acknowledged: list[tuple[float, float]] = []
        """When each binlog was written, and how long its acknowledgement took; seconds."""
        self._write = write
        self._clock = clock
        super().__init__([partial(self._work, n) for n in range(STEADY_WRITERS)])

    def p_ms(self, share: float, begin_s: float, end_s: float) -> float:
        took_s = [took for at, took in self.acknowledged if begin_s <= at < end_s]
        return round(1000 * percentile(took_s, share), 3)

    def pause_s(self, begin_s: float, end_s: float) -> float:
        came = sorted(at + took for at, took in self.acknowledged)
        came = [begin_s, *(at for at in came if begin_s < at < end_s), end_s]
        return max(after - before for before, after in itertools.pairwise(came))

    def _work(self, number: int, over: threading.Event) -> None:
        due_s = time.monotonic() + EVERY_S * number / STEADY_WRITERS
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


def measure_refill(home: Path) -> Iterator[Figure]:
    with (
        Cluster(home, pumps=4, copies=2, with_drainer=False) as cluster,
        closing(etcd.connect(cluster.etcd.url)) as connection,
    ):
        clock = Timestamps()
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
    count = itertools.count()

    def work() -> None:
        while next(count) * len(ROW) < size_bytes:
            start_ts = next(clock)
            write(Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=ROW))
            write(Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=next(clock)))

    together([work] * FILLERS)


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
            f"pump.copies.refill.{name}",
            size / 1e6 / (until_s - from_s),
            "MB/s",
            size / 1e6 / percentile(disk_s, 0.5),
            detail,
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
    return present(entries.read(PRIMARY))[0]


def scrubbed(cluster: Cluster, steady: Steady) -> Figure:
    quiet_s = time.monotonic()
    time.sleep(QUIET_S)
    begun_s = time.monotonic()
    command = python_module("penstock.ctl.commands", "scrub", PRIMARY, "--wait")
    subprocess.run([*command, "--etcd-urls", cluster.etcd.url], check=True, stdout=sys.stderr)
    ended_s = time.monotonic()
    size = sum(path.stat().st_size for path in (cluster.home / PRIMARY).rglob("*.seg"))
    p99 = (steady.p_ms(0.99, begun_s, ended_s), steady.p_ms(0.99, quiet_s, begun_s))
    p50 = (steady.p_ms(0.5, begun_s, ended_s), steady.p_ms(0.5, quiet_s, begun_s))
    detail = {
        "mb_per_s": round(size / 1e6 / (ended_s - begun_s), 2),
        "seconds": round(ended_s - begun_s, 2),
        **compared("p50", *p50),
    }
    return Figure("pump.copies.scrub", p99[0], "ms", p99[1], detail)


def compared(name: str, during_ms: float, quiet_ms: float) -> dict[str, float]:
    """Return a percentile with what goes on and without, and their ratio."""
    return {
        f"{name}_ms": during_ms,
        f"quiet_{name}_ms": quiet_ms,
        f"{name}_ratio": round(during_ms / quiet_ms, 3),
    }


def plain_copy_s(paths: list[Path], to: Path) -> float:
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
