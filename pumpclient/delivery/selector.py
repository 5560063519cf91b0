"""Selects the Pump for the next Prewrite by one of three strategies, all pure.

    range   one after the other
    hash    by the transaction's start_ts; a retry moves on to the next Pump
    score   smooth weighted rotation by the score that Pumps report (a b a c a b a …)

Commits and Rollbacks follow their Prewrite and are not subject to selection.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.codes import Code
from penstock.errors import NeedsOperator

# 2^64 divided by the golden ratio: multiplication by it spreads neighbours far apart.
_SPREAD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Candidate:
    """A Pump as seen by the strategies."""

    node_id: str
    score: int = 0


class Selector(Protocol):
    """A strategy; not thread-safe, its owner holds the lock."""

    def pick(self, candidates: Sequence[Candidate], start_ts: int, retry: int) -> int: ...


class RangeSelector:
    """Takes the Pumps in rotation, restarting from the first whenever the list has changed."""

    def __init__(self) -> None:
        self._seen: tuple[str, ...] = ()
        self._next = 0

    def pick(self, candidates: Sequence[Candidate], start_ts: int, retry: int) -> int:
        node_ids = tuple(c.node_id for c in candidates)
        if node_ids != self._seen:
            self._seen = node_ids
            self._next = 0
        position = self._next % len(node_ids)
        self._next = position + 1
        return position


class HashSelector:
    """Takes the Pump that `start_ts` hashes to, and the next Pump for each retry.

    Under light load the low 18 bits of timestamps are nearly all alike, so `start_ts mod 2` would
    send everything to one of two Pumps: the bits are mixed first.
    """

    def pick(self, candidates: Sequence[Candidate], start_ts: int, retry: int) -> int:
        """Return the same position for the same `start_ts`, `retry` and number of Pumps."""
        mixed = (start_ts * _SPREAD & 0xFFFF_FFFF_FFFF_FFFF) >> 32
        return (mixed + retry) % len(candidates)


class ScoreSelector:
    """Takes each Pump in proportion to its score, spread out in time; all zero means equally."""

    def __init__(self) -> None:
        self._credit: dict[str, int] = {}

    def pick(self, candidates: Sequence[Candidate], start_ts: int, retry: int) -> int:
        """Return the position with the most credit, after all have earned their score."""
        weights = [max(c.score, 0) for c in candidates]
        if not any(weights):
            weights = [1] * len(candidates)
        # Pumps that are gone lose their credit: a Pump that comes back starts at zero.
        credit = {
            c.node_id: self._credit.get(c.node_id, 0) + weight
            for c, weight in zip(candidates, weights, strict=True)
        }
        able = (i for i, weight in enumerate(weights) if weight)
        best = max(able, key=lambda i: credit[candidates[i].node_id])
        credit[candidates[best].node_id] -= sum(weights)
        self._credit = credit
        return best


_STRATEGIES: dict[str, Callable[[], Selector]] = {
    "range": RangeSelector,
    "hash": HashSelector,
    "score": ScoreSelector,
}


def selector_for(strategy: str) -> Selector:
    """Return a new selector of that strategy; an unknown name raises `NeedsOperator`."""
    try:
        return _STRATEGIES[strategy]()
    except KeyError:
        near = difflib.get_close_matches(strategy, _STRATEGIES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(_STRATEGIES)}"
        raise NeedsOperator(f"unknown strategy {strategy!r}", hint, Code.SETTING_VALUE) from None
