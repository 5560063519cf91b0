"""A process of sessions that run sysbench-like transactions at a steady rate together.

    python -m tests.bench.oltp_writers '{"port": …}'     a JSON object on stdout

Each transaction has `oltp_read_write`'s four changes, sent in one message, and counts one up in the
session's row of `marks`: who reads that row downstream knows which transactions are there. Sessions
keep to rows of their own, so that none waits for another's locks. Moments are of `time.monotonic`.

`MarkedWriters` runs the process, and watches when its transactions can be read downstream.
"""

import json
import random
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pymysql
from pymysql.constants import CLIENT

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.local.sql_server import SqlProcess
from tests.bench.rig import Writers, together

_TEXT = "-".join(["04321987650"] * 10)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What is written: `rate` transactions a second by so many sessions, counted from `first`."""

    host: str
    port: int
    user: str
    password: str
    schema: str
    tables: int
    rows: int
    rate: int
    sessions: int
    seconds: float
    first: int


def transaction(rng: random.Random, pace: Pace, session: int, number: int) -> str:

    def drawn() -> tuple[str, int]:
        row = rng.randrange(pace.rows // pace.sessions) * pace.sessions + session + 1
        return f"sbtest{rng.randrange(pace.tables) + 1}", row

    def text() -> str:
        return f"{rng.randrange(10**11):011d}{_TEXT[11:]}"

    (index, index_id), (other, other_id), (gone, gone_id) = drawn(), drawn(), drawn()
    return "; ".join(
        [
            "BEGIN",
            f"UPDATE {index} SET k = k + 1 WHERE id = {index_id}",
            f"UPDATE {other} SET c = '{text()}' WHERE id = {other_id}",
            f"DELETE FROM {gone} WHERE id = {gone_id}",
            f"INSERT INTO {gone} (id, k, c, pad) VALUES"
            f" ({gone_id}, {rng.randrange(pace.rows)}, '{text()}', '{text()[:59]}')",
            f"UPDATE marks SET number = {number} WHERE id = {session}",
            "COMMIT",
        ]
    )


def write(pace: Pace) -> list[tuple[int, int, float]]:
    """Return session and number of each transaction, with the moment of its acknowledgement."""
    commits: list[tuple[int, int, float]] = []
    began_s = time.monotonic()

    def work(session: int) -> None:
        # The texts of an earlier run would change nothing.
        rng = random.Random(pace.first + session)
        pause_s = pace.sessions / pace.rate
        due_s, number = began_s + session / pace.rate, pace.first
        connection = pymysql.connect(
            host=pace.host, port=pace.port, user=pace.user, password=pace.password,
            database=pace.schema, autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS,
        )  # fmt: skip
        with connection:
            while due_s < began_s + pace.seconds:
                time.sleep(max(0.0, due_s - time.monotonic()))
                connection.query(transaction(rng, pace, session, number))
                while connection.next_result():
                    pass
                commits.append((session, number, time.monotonic()))
                number += 1
                due_s += pause_s

    together(partial(work, n) for n in range(pace.sessions))
    return commits


LOOK_EVERY_S = 0.004
STALL_S_MAX = 60.0


Look = Callable[[], Iterable[tuple[int, int]]]
"""Waits a moment, and returns sessions and the numbers of transactions that are downstream."""


@contextmanager
def looking(downstream: SqlProcess, schema: str) -> Iterator[Look]:
    """Look into the downstream's own `marks`."""
    with downstream.connect() as connection, connection.cursor() as cursor:

        def look() -> Iterable[tuple[int, int]]:
            time.sleep(LOOK_EVERY_S)
            cursor.execute(f"SELECT id, number FROM {schema}.marks")
            return list(cursor.fetchall())

        yield look


class MarkedWriters(Writers):
    """The process of writers: session, number and acknowledgement of each transaction."""

    def __init__(self, pace: Pace) -> None:
        super().__init__("tests.bench.oltp_writers", pace)

    def lags_ms(self, look: Look, warm_up_s: float, log_tail: Callable[[], str]) -> list[float]:
        """Return how long after its acknowledgement each transaction could be read downstream.

        Those of the first seconds are left out. Raises Retryable, with the end of a log, when the
        downstream does not get on.
        """
        seen = self._watched(look, log_tail)
        began_s = min(at for _, _, at in self.commits)
        lags_ms = []
        for session, number, at in self.commits:
            if at > began_s + warm_up_s:
                numbers, times = seen[session]
                lags_ms.append(max(0.0, times[bisect_left(numbers, number)] - at) * 1000)
        return lags_ms

    def _watched(
        self, look: Look, log_tail: Callable[[], str]
    ) -> list[tuple[list[int], list[float]]]:
        """Return, for each session, the numbers that were read downstream, and when first."""
        sessions = range(self.pace.sessions)
        seen: list[tuple[list[int], list[float]]] = [([], []) for _ in sessions]
        last: dict[int, int] = {}
        changed_s = time.monotonic()
        while True:
            marks = look()
            now_s = time.monotonic()
            for session, number in marks:
                numbers, times = seen[session]
                if not numbers or numbers[-1] < number:
                    numbers.append(number)
                    times.append(now_s)
                    changed_s = now_s
            if self.is_done.is_set():
                assert self.commits, "the writers failed, see above"
                last = last or {session: number for session, number, _ in self.commits}
                if all(seen[each][0][-1:] >= [number] for each, number in last.items()):
                    return seen
                if now_s > changed_s + STALL_S_MAX:
                    raise Retryable(f"the downstream stands:\n{log_tail()}", code=Code.ETCD_AWAY)


if __name__ == "__main__":
    written = write(Pace(**json.loads(sys.argv[1])))
    print(json.dumps({"commits": written, "cpu_s": time.process_time()}))
