"""Stalls: how long, at most, something that ought to move has stood still."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

_TICK_S = 0.005


@contextmanager
def stalls(watched: Mapping[str, Callable[[], object]]) -> Iterator[dict[str, float]]:
    """Look at each of these all the time; the seconds for which it was the same, at most.

    What is returned is filled in while the block runs.
    """
    longest_s = dict.fromkeys(watched, 0.0)
    over = threading.Event()

    def look(name: str, value_of: Callable[[], object]) -> None:
        value, since_s = value_of(), time.monotonic()
        while not over.wait(_TICK_S):
            latest, now_s = value_of(), time.monotonic()
            longest_s[name] = max(longest_s[name], now_s - since_s)
            if latest != value:
                value, since_s = latest, now_s

    threads = [threading.Thread(target=look, args=each, daemon=True) for each in watched.items()]
    for thread in threads:
        thread.start()
    try:
        yield longest_s
    finally:
        over.set()
        for thread in threads:
            thread.join()
