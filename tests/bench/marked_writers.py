"""Marked writers: the process of `oltp_writers`, and what of it can be read downstream, and when.

Each session counts its transactions in its row of `marks`, so whoever reads that table downstream
sees which transactions are there.
"""

import json
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict

from penstock.codes import Code
from penstock.errors import Retryable
from penstock_local.sql_server import SqlProcess
from tests.bench.oltp_writers import Pace

LOOK_EVERY_S = 0.004
STALL_S_MAX = 60.0

Commits = list[tuple[int, int, float]]
"""Session, number and moment of each transaction."""


class MarkedWriters:
    """The process of writers, and what it committed once it `is_done`."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        command = [sys.executable, "-m", "tests.bench.oltp_writers", json.dumps(asdict(pace))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.commits: Commits = []
        self.is_done = threading.Event()
        threading.Thread(target=self._read).start()

    def _read(self) -> None:
        out, _ = self._process.communicate()
        if self._process.returncode == 0:
            self.commits = json.loads(out)
        self.is_done.set()

    def lags_ms(
        self, downstream: SqlProcess, warm_up_s: float, log_tail: Callable[[], str]
    ) -> list[float]:
        """Return how long after its acknowledgement each transaction could be read downstream.

        Those of the first seconds are left out. Raises Retryable, with the end of a log, when the
        downstream does not get on.
        """
        seen = self._watched(downstream, log_tail)
        began_s = min(at for _, _, at in self.commits)
        lags_ms = []
        for session, number, at in self.commits:
            if at > began_s + warm_up_s:
                numbers, times = seen[session]
                lags_ms.append(max(0.0, times[bisect_left(numbers, number)] - at) * 1000)
        return lags_ms

    @property
    def rate(self) -> float:
        """Transactions a second, once `is_done`."""
        moments = [at for _, _, at in self.commits]
        return len(moments) / (max(moments) - min(moments))

    def _watched(
        self, downstream: SqlProcess, log_tail: Callable[[], str]
    ) -> list[tuple[list[int], list[float]]]:
        """Return, for each session, the numbers that were read downstream, and when first."""
        sessions = range(self.pace.sessions)
        seen: list[tuple[list[int], list[float]]] = [([], []) for _ in sessions]
        last: dict[int, int] = {}
        stalls_at_s = 0.0
        with downstream.connect() as connection, connection.cursor() as cursor:
            while True:
                cursor.execute(f"SELECT id, number FROM {self.pace.schema}.marks")
                now_s = time.monotonic()
                for session, number in cursor.fetchall():
                    numbers, times = seen[session]
                    if not numbers or numbers[-1] < number:
                        numbers.append(number)
                        times.append(now_s)
                if self.is_done.is_set():
                    assert self.commits, "the writers failed, see above"
                    last = last or {session: number for session, number, _ in self.commits}
                    if all(seen[session][0][-1] >= number for session, number in last.items()):
                        return seen
                    stalls_at_s = stalls_at_s or now_s + STALL_S_MAX
                    if now_s > stalls_at_s:
                        raise Retryable(
                            f"the downstream stands:\n{log_tail()}", code=Code.ETCD_AWAY
                        )
                time.sleep(LOOK_EVERY_S)
