"""The rig of all benchmarks: figures, and how what they measure is run and watched."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import psutil

from penstock.local.sql_server import MariadbServer
from penstock.ts import compose

_AHEAD_MS = 5_000
SCALE = float(os.environ.get("BENCH_SCALE", "1"))


def sized(full: int, least: int = 1) -> int:
    """Return the number of a benchmark's rows, seconds or rounds, scaled by `BENCH_SCALE`."""
    return max(least, round(full * SCALE))


Server = TypeVar("Server", bound=MariadbServer)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """`baseline` is of the same unit and the same run; None where there is nothing to compare."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        ratio = self.value / self.baseline if self.baseline else None
        return {
            "name": self.name,
            "value": round(self.value, 3),
            "unit": self.unit,
            "baseline": None if self.baseline is None else round(self.baseline, 3),
            "ratio": None if ratio is None else round(ratio, 3),
            "detail": {**self.detail, "machine_load": round(os.getloadavg()[0], 1)},
        }


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def lag_figures(
    name: str, lags_ms: Sequence[float], bare_ms: Sequence[float], detail: Mapping[str, Any]
) -> Iterator[Figure]:
    """Yield p50 and p99 of a lag in milliseconds; `bare_ms` are of the baseline."""
    for figure, share in ((f"{name}.p50", 0.5), (f"{name}.p99", 0.99)):
        yield Figure(figure, percentile(lags_ms, share), "ms", percentile(bare_ms, share), detail)


def timed(work: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    work()
    return time.perf_counter() - begun_s


def together(works: Iterable[Callable[[], object]]) -> None:
    """Run each in a thread; raise the first error once all have ended."""
    works = list(works)
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()


class Timestamps:
    """Rising timestamps, seconds ahead of the oracle's, of the time at which they are taken.

    A Pump refuses those that are more than ten seconds ahead.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ts = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        with self._lock:
            self._ts = max(self._ts + 1, compose(int(time.time() * 1000) + _AHEAD_MS, 0))
            return self._ts


@contextmanager
def running(server: Server) -> Iterator[Server]:
    server.install()
    server.start()
    try:
        yield server
    finally:
        server.stop()


def process_s(pid: int) -> float:
    """Return the CPU seconds of a process and all below it, the ended ones included."""
    return sum(
        times.user + times.system + times.children_user + times.children_system
        for times in each_below(pid, lambda process: process.cpu_times())
    )


def each_below(pid: int, ask: Callable[[psutil.Process], T]) -> Iterator[T]:
    """Yield an answer of a process, and one of each below it that has not ended meanwhile."""
    process = psutil.Process(pid)
    yield ask(process)
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            yield ask(child)


class Writers:
    """A process that runs a module with a `pace`, and what it has committed once it `is_done`.

    The last column of `commits` is the time of the acknowledgement.
    """

    def __init__(self, module: str, pace: Any) -> None:
        command = [sys.executable, "-m", module, json.dumps(asdict(pace))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.pace = pace
        self.commits: list[Any] = []
        self.cpu_s = 0.0
        self.is_done = threading.Event()
        threading.Thread(target=self._read).start()

    def _read(self) -> None:
        out, _ = self._process.communicate()
        if self._process.returncode == 0:
            answer = json.loads(out)
            self.cpu_s, self.commits = answer["cpu_s"], sorted(map(tuple, answer["commits"]))
        self.is_done.set()

    @property
    def rate(self) -> float:
        times_s: list[float] = [each[-1] for each in self.commits]
        return len(times_s) / (max(times_s) - min(times_s))
