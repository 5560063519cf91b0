"""A process that writes small transactions as fast as it can, and prints each second how many.

python -m tests.kit.workloads.steady_writer ETCD_URLS THREADS
"""

from __future__ import annotations

import itertools
import sys
import threading
import time

from pumpclient import PumpClient

TABLE = "steady.rows"
_KEYS = 1_000


def _write(client: PumpClient, thread: int, counts: list[int], stop: threading.Event) -> None:
    """Insert rows, and update them once all keys are there, so that the downstream stays small."""
    last: dict[int, str] = {}
    for number in itertools.count():
        if stop.is_set():
            return
        key = thread * _KEYS + number % _KEYS
        text = f"{number:040}"
        with client.begin() as transaction:
            row = {"id": key, "text": text}
            if key in last:
                transaction.update(TABLE, {"id": key, "text": last[key]}, row)
            else:
                transaction.insert(TABLE, row)
        last[key] = text
        counts[thread] += 1


def _stop_at_the_end(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def main(etcd_urls: str, threads: int) -> None:
    """Write until standard input ends."""
    stop, counts = threading.Event(), [0] * threads
    with PumpClient.connect(etcd_urls) as client:
        client.execute_ddl("CREATE DATABASE steady")
        client.execute_ddl(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, text VARCHAR(64))")
        running = [
            threading.Thread(target=_write, args=(client, number, counts, stop))
            for number in range(threads)
        ]
        for each in running:
            each.start()
        threading.Thread(target=_stop_at_the_end, args=(stop,), daemon=True).start()
        while not stop.is_set():
            time.sleep(1)
            sys.stdout.write(f"{sum(counts)}\n")
            sys.stdout.flush()
        for each in running:
            each.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
