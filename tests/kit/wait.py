"""Waiting: for a condition, an answer, one turn of the event loop, without end, or in virtual time.

In virtual time a sleep takes no time at all and yet exactly as long as it says: no test in it
depends on the machine. It is only for code whose every wait is a timer of the event loop. What
waits for a thread or a socket would see its time-outs pass at once.
"""

import asyncio
import os
import selectors
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from penstock.errors import Retryable

_POLL_S = 0.01

T = TypeVar("T")


def busy() -> float:
    """Return how many times as long everything may take now: the load of a core, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def deadline(within_s: float) -> float:
    """Return the moment after `within_s` on an idle machine, a later one on a busy machine."""
    return time.monotonic() + within_s * busy()


def eventually(condition: Callable[[], bool], within_s: float = 10) -> None:
    """Return as soon as the condition holds; fail when it does not in time."""
    deadline_s = deadline(within_s)
    while not condition():
        assert time.monotonic() < deadline_s, f"not true within {within_s} s"
        time.sleep(_POLL_S)


def present(found: T | None) -> T:
    """Return what was looked for; fail where there is none."""
    assert found is not None
    return found


def answered(ask: Callable[[], T], within_s: float = 10) -> T:
    """Repeat a call until it does not raise `Retryable`, as each caller does; return its result."""
    deadline_s = deadline(within_s)
    while True:
        try:
            return ask()
        except Retryable:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(_POLL_S)


async def until(condition: Callable[[], bool], within_s: float = 10) -> None:
    """Return as soon as the condition holds, letting other tasks run; fail when it does not."""
    async with asyncio.timeout(within_s * busy()):
        while not condition():  # noqa: ASYNC110  # There is no event for what is waited for.
            await asyncio.sleep(_POLL_S / 2)


async def turn() -> None:
    """Let every task that is ready run once."""
    await asyncio.sleep(0)


async def never() -> NoReturn:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nothing sets this")


def is_within(thread: threading.Thread, function: str) -> bool:
    """Return whether a thread is in a function of this name, or in what that one called."""
    frame = sys._current_frames().get(thread.ident or 0)
    return any(each.f_code.co_name == function for each, _ in traceback.walk_stack(frame))


class _Skipping(selectors.DefaultSelector):
    """Instead of waiting for a time, moves the clock on by it."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready now; never wait for a time-out."""
        if timeout is None:
            return super().select(None)
        self.now_s += timeout
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        """Return the seconds that the tasks have slept."""
        return self._skipping.now_s


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` as `asyncio.run` does, in no time."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)


async def pass_time(seconds: float) -> None:
    assert isinstance(asyncio.get_running_loop(), _Loop), "not in virtual time"
    await asyncio.sleep(seconds)
