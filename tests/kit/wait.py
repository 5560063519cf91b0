"""Waiting for a condition, for one turn of the event loop, or without end."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

_POLL_S = 0.01


def eventually(condition: Callable[[], bool], within_s: float = 10) -> None:
    """Return as soon as the condition holds; fail when it does not in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not true within {within_s} s"
        time.sleep(_POLL_S)


async def until(condition: Callable[[], bool], within_s: float = 10) -> None:
    """Return as soon as the condition holds, letting other tasks run; fail when it does not."""
    async with asyncio.timeout(within_s):
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
