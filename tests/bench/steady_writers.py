"""A process of writers that commit one row a transaction at a steady rate together.

    python -m tests.bench.steady_writers '{"etcd_url": …}'     a JSON list on stdout

They are a process of their own so that neither side of the measurement waits for the other's
interpreter lock. Moments are of `time.monotonic`, which all processes of a machine share.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass

from pumpclient import PumpClient


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What is written: `rate` transactions a second into `bench.t`, by so many threads."""

    etcd_url: str
    rate: int
    threads: int
    seconds: float


def write(client: PumpClient, pace: Pace) -> list[tuple[int, float]]:
    """Return each commit_ts with the moment of its acknowledgement."""
    commits: list[tuple[int, float]] = []
    began_s = time.monotonic()

    def work(number: int) -> None:
        pause_s = pace.threads / pace.rate
        due_s = began_s + number / pace.rate
        key = number
        while due_s < began_s + pace.seconds:
            time.sleep(max(0.0, due_s - time.monotonic()))
            with client.begin(schema="bench") as txn:
                txn.insert("t", (key, key % 1000, "x" * 100))
            assert txn.commit_ts is not None
            commits.append((txn.commit_ts, time.monotonic()))
            key += pace.threads
            due_s += pause_s

    threads = [threading.Thread(target=work, args=(n,)) for n in range(pace.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return commits


if __name__ == "__main__":
    asked = Pace(**json.loads(sys.argv[1]))
    with PumpClient.connect(asked.etcd_url) as connected:
        print(json.dumps(write(connected, asked)))
