"""What a second copy of a Pump's log costs, and how long a log is away whose Pump is gone.

pump.copies.rate       binlogs/s of one Pump with two copies, against one; also p99 and CPU
pump.takeover.commit   after a kill with the disk deleted: to the first new commit elsewhere
pump.takeover.oracle   … where the Pump led the oracle: its stand-in gives the lease back
pump.takeover.machine  … where the stand-in died with it, as on a dead machine: the lease has to end
pump.takeover.merge    … until a reader has a transaction that was committed after the kill
"""

import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil

from penstock.cluster import etcd
from penstock.errors import PenstockError
from penstock.oracle.client import LEADER_KEY
from penstock.stream import NOW, Reader, Transaction
from penstock.ts import compose
from penstock_local.cluster import Cluster
from pumpclient import PumpClient
from tests.bench.figure import Figure, percentile
from tests.bench.lag import process_s
from tests.bench.pump_write import pump_address, run, unary_writer

WRITERS = 64
ROUNDS = int(os.environ.get("TAKEOVER_ROUNDS", "10"))
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
            clock = itertools.count(compose(int(time.time() * 1000) + 3_600_000, 0))
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
        name="pump.copies.rate",
        value=found[2][0],
        unit="binlogs/s",
        baseline=found[1][0],
        detail={**found[2][1], "one_copy": found[1][1], "writers": WRITERS},
    )


def detail_s(detail: dict[str, object]) -> float:
    """Return how long a run took."""
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
        """End them."""
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
        """End it."""
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
                name=f"pump.takeover.{name}",
                value=percentile(values, 0.99),
                unit="s",
                detail={"p50_s": round(percentile(values, 0.5), 3), "kills": len(values)},
            )
