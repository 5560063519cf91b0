"""A process that writes small transactions as fast as it can, and prints each second how many.

python -m tests.kit.workloads.steady_writer ETCD_URLS THREADS
"""

import itertools
import sys
import threading
import time

from penstock.errors import Retryable
from pumpclient import PumpClient
from pumpclient.errors import OutcomeUnknown

TABLE = "steady.rows"
_KEYS = 1_000


def _is_committed(client: PumpClient, row: dict[str, int | str], before: str | None) -> bool:
    """Return whether a row was written; on a busy machine it may not happen."""
    try:
        with client.begin() as transaction:
            if before is not None:
                transaction.update(TABLE, {**row, "text": before}, row)
            else:
                transaction.insert(TABLE, row)
    except OutcomeUnknown as error:
        if not error.wait(600):
            raise
    except Retryable:
        return False
    return True


def _write(client: PumpClient, thread: int, counts: list[int], stop: threading.Event) -> None:
    """Insert rows, and update them once all keys are there, so that the downstream stays small."""
    last: dict[int, str] = {}
    for number in itertools.count():
        if stop.is_set():
            return
        key = thread * _KEYS + number % _KEYS
        text = f"{number:040}"
        while not _is_committed(client, {"id": key, "text": text}, last.get(key)):
            time.sleep(0.1)
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
