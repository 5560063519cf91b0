"""A shop that trades in the background while a test does harm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.kit.workloads.shop import Shop


@contextmanager
def trading(shop: Shop, act: Callable[[Shop, int], None] | None = None) -> Iterator[None]:
    """Let the shop trade in the background, `act` between its rounds; raise what went wrong."""
    closing = threading.Event()
    failures: list[BaseException] = []

    def trade() -> None:
        try:
            round_number = 0
            while not closing.wait(0.02):
                shop.trade(10)
                round_number += 1
                if round_number % 10 == 0:
                    shop.bulk(400)
                if act is not None:
                    act(shop, round_number)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=trade)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()
    assert not failures, failures
