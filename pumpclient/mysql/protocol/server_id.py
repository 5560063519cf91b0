"""The number by which a server knows this replica: two with the same one throw each other out."""

from __future__ import annotations

from collections.abc import Callable, Collection

FIRST_DRAWN = (1 << 32) // 10
DRAWN = 100_000
"""Numbers that people give are small; these are far from them."""


def draw_server_id(taken: Collection[int], below: Callable[[int], int]) -> int:
    """Return a number that is not `taken`; `below(n)` draws from 0 to n - 1."""
    assert len(taken) < DRAWN, "more replicas than numbers"
    while (drawn := FIRST_DRAWN + below(DRAWN)) in taken:
        pass
    return drawn
