"""Minutes of steady load leave memory, descriptors and threads of every process as they are.

`PENSTOCK_STEADY_S` says how long it is measured, 600 s by default. What a Pump keeps of decided
transactions has a bound of two generations, so it is measured once both are full. Among the
processes is a source, which reads what is written on a real MariaDB all the while.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil
import pytest

from penstock.local.etcd import EtcdServer
from penstock.local.sql_server import SqlServer
from pump.store.transactions import GENERATION_MAX
from tests.kit.servers.binlog_server import binlog_server
from tests.kit.servers.fix_copies import Trio
from tests.kit.servers.fix_drainer import DrainerFactory
from tests.kit.servers.fix_source import SourceProcess
from tests.kit.wait import eventually

log = logging.getLogger(__name__)
pytestmark = pytest.mark.fault

STEADY_S = float(os.environ.get("PENSTOCK_STEADY_S", "600"))
PUMPS = 2
WARM = 2 * GENERATION_MAX * PUMPS
WARM_S = 1800
SAMPLE_S = 2.0
NOISE_BYTES = 16 << 20
"""By how much the resident memory of a process moves between two thirds of a run without a leak."""
TRANSACTION_BYTES = 64
"""What a transaction may leave at most; the leaks that were seen left more than 300."""
DESCRIPTORS, THREADS = 8, 4
UPSTREAM_ROWS = 20
"""Of each transaction on the server."""


class Sample(NamedTuple):
    """What one process had at one time."""

    transactions: int
    rss: int
    descriptors: int
    threads: int


class Writer:
    """The process that writes, and how many transactions it has written."""

    def __init__(self, etcd_url: str) -> None:
        command = [sys.executable, "-m", "tests.kit.workloads.steady_writer", etcd_url, "24"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.transactions = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.transactions = int(line)

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def writing(etcd_url: str) -> Iterator[Writer]:
    writer = Writer(etcd_url)
    try:
        yield writer
    finally:
        writer.stop()


class Upstream(threading.Thread):
    """A session that updates rows on a server, and how many transactions it has committed."""

    def __init__(self, server: SqlServer) -> None:
        super().__init__(name="upstream")
        self.transactions = 0
        self.failure: BaseException | None = None
        self._server = server
        self._over = threading.Event()

    def run(self) -> None:
        try:
            with self._server.connect() as connection, connection.cursor() as cursor:
                values = ", ".join(f"({key}, '')" for key in range(UPSTREAM_ROWS))
                cursor.execute(f"INSERT INTO shop.t VALUES {values}")
                while not self._over.wait(0.02):
                    cursor.execute(f"UPDATE shop.t SET v = '{self.transactions:040}'")
                    self.transactions += 1
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self._over.set()
        self.join()
        if self.failure is not None:
            raise self.failure


@contextmanager
def followed_server(folder: Path, etcd_url: str) -> Iterator[SourceProcess]:
    with binlog_server(folder / "server", 1, "--binlog-row-metadata=FULL") as server:
        upstream, source = Upstream(server), SourceProcess(folder / "source", etcd_url, server)
        upstream.start()
        try:
            source.start()
            yield source
        finally:
            upstream.stop()
            source.stop()


def is_archiving(child: psutil.Process) -> bool:
    """Return whether a child writes the archive of Spark's classes: it grows, and ends then."""
    command = " ".join(child.cmdline())
    return "ArchiveClassesAtExit" in command or "drainer.spark.jvm" in command


def sample(process: psutil.Process, transactions: int) -> Sample:
    rss = process.memory_info().rss
    return Sample(transactions, rss, process.num_fds(), process.num_threads())


def measured(
    processes: dict[str, psutil.Process], children: list[psutil.Process], writer: Writer
) -> dict[str, list[Sample]]:
    """Return samples of all processes; a child that ends is left out."""
    found: dict[str, list[Sample]] = {name: [] for name in processes}
    of_children: dict[psutil.Process, list[Sample]] = {child: [] for child in children}
    end_s = time.monotonic() + STEADY_S
    while time.monotonic() < end_s:
        for name, process in processes.items():
            found[name].append(sample(process, writer.transactions))
        for child in list(of_children):
            try:
                of_children[child].append(sample(child, writer.transactions))
            except psutil.NoSuchProcess:
                del of_children[child]
        time.sleep(SAMPLE_S)
    assert of_children
    return found | {f"child {child.pid}": each for child, each in of_children.items()}


def growths(samples: list[Sample]) -> list[str]:
    """Return what grew from the second third of a run to the last one."""
    third = len(samples) // 3
    before, after = samples[third : 2 * third], samples[2 * third :]
    transactions = median(s.transactions for s in after) - median(s.transactions for s in before)
    assert transactions > 0
    allowed = [NOISE_BYTES + TRANSACTION_BYTES * transactions, DESCRIPTORS, THREADS]
    grown: list[str] = []
    for at, most in enumerate(allowed, 1):
        more = median(s[at] for s in after) - median(s[at] for s in before)
        if more > most:
            grown.append(f"{Sample._fields[at]} by {more} in {transactions} transactions")
    return grown


def test_a_leak_is_seen_and_noise_is_not() -> None:
    def run(bytes_each: int, noise: Callable[[int], int]) -> list[str]:
        return growths(
            [
                Sample(600 * n, (80 << 20) + 600 * n * bytes_each + noise(n), 32, 20)
                for n in range(300)
            ]
        )

    assert run(0, lambda n: (n % 7) << 20) == []
    assert [each.split()[0] for each in run(390, lambda n: (n % 7) << 20)] == ["rss"]
    leaking = [Sample(n, 1 << 20, 32 + n // 10, 20 + n // 10) for n in range(300)]
    assert [each.split()[0] for each in growths(leaking)] == ["descriptors", "threads"]


@pytest.mark.fault(
    "minutes of steady load: two Pumps with `copies = 2`, a Drainer with its JVM and tasks, a"
    " writer",
    "resident memory, descriptors and threads of each stay within a bound; as long as"
    " `PENSTOCK_STEADY_S` says",
    cases="0 / 1",
)
@pytest.mark.slow
@pytest.mark.mariadb
def test_steady_load_leaves_every_process_as_it_is(
    tmp_path: Path,
    etcd: Any,
    etcd_server: EtcdServer,
    pump_factory: Any,
    drainer_factory: DrainerFactory,
) -> None:
    trio = Trio(pump_factory, etcd_server.url, etcd, number=PUMPS)
    drainer = drainer_factory(etcd_server.url, f"sqlite:///{tmp_path / 'down.db'}")
    with followed_server(tmp_path, etcd_server.url) as source, writing(etcd_server.url) as writer:
        eventually(lambda: writer.transactions > WARM, WARM_S)
        processes = {pump.node_id: psutil.Process(pump.pid) for pump in trio.pumps}
        processes["drainer"] = psutil.Process(drainer.pid)
        processes["writer"] = psutil.Process(writer.process.pid)
        processes["source"] = psutil.Process(source.pid)
        followed = source.status()["transactions"]
        children = [child for child in drainer.children() if not is_archiving(child)]
        samples = measured(processes, children, writer)
        status = source.status()
        for name, each in samples.items():
            log.info("%s: %s, then %s", name, each[len(each) // 3], each[-1])
        log.info("transactions of the source: %d, then %d", followed, status["transactions"])
        assert status["state"] == "syncing", status
        assert status["transactions"] > followed
        grown = {name: found for name, each in samples.items() if (found := growths(each))}
        assert grown == {}
