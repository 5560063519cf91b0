"""Waiting for something to become true."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], within_s: float = 10) -> None:
    """Return as soon as the condition holds; fail when it does not in time."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not true within {within_s} s"
        time.sleep(0.01)
