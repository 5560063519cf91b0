"""Waiting: pauses between attempts, and waits that an event ends early."""

import asyncio
import random
from collections.abc import Iterator


def doubling(first_s: float, longest_s: float) -> Iterator[float]:
    """Yield pauses between attempts, without end: each is twice the last, up to a bound."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)


def spread_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return the pause after a number of failures in a row, at random, so that peers spread out."""
    doublings = float(1 << min(failures, 20))
    return min(longest_s, first_s * doublings) * random.uniform(0.5, 1.0)


async def set_within(event: asyncio.Event, length_s: float) -> bool:
    """Wait for an event for a time at most; return whether it is set."""
    try:
        async with asyncio.timeout(length_s):
            return await event.wait()
    except TimeoutError:
        return False
