"""An event loop whose clock moves only when all tasks sleep: no test on it depends on the machine.

A sleep takes no time at all and yet exactly as long as it says. Only for code whose every wait is a
timer of the loop: what waits for a thread or a socket would see its time-outs pass at once.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
    """Let virtual time pass, and whatever is due in it happen."""
    assert isinstance(asyncio.get_running_loop(), _Loop), "not in virtual time"
    await asyncio.sleep(seconds)
