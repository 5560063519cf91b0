"""A process of sessions that run sysbench-like transactions at a steady rate together.

    python -m tests.bench.oltp_writers '{"port": …}'     a JSON list on stdout

Each transaction has `oltp_read_write`'s four changes, sent in one message, and counts one up in the
session's row of `marks`: who reads that row downstream knows which transactions are there. Sessions
keep to rows of their own, so that none waits for another's locks. Moments are of `time.monotonic`.
"""

import json
import random
import sys
import threading
import time
from dataclasses import dataclass

import pymysql
from pymysql.constants import CLIENT

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
    """Return one transaction's statements."""

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
        rng = random.Random(session)
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

    threads = [threading.Thread(target=work, args=(n,)) for n in range(pace.sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return commits


if __name__ == "__main__":
    print(json.dumps(write(Pace(**json.loads(sys.argv[1])))))
