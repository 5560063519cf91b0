"""Selects the Pump for the next Prewrite by one of three strategies, all pure.

range   one after the other
hash    by the transaction's start_ts; a retry moves on to the next Pump
score   smooth weighted rotation by the score that Pumps report (a b a c a b a …)
"""

import difflib
from collections.abc import Mapping

from penstock.codes import Code
from penstock.errors import NeedsOperator

# 2^64 divided by the golden ratio: multiplication by it spreads neighbours far apart.
_SPREAD = 0x9E3779B97F4A7C15
_STRATEGIES = ("range", "hash", "score")


class Selector:
    """A strategy; not thread-safe, its owner holds the lock."""

    def __init__(self, strategy: str) -> None:
        """Start in a strategy's initial state; an unknown name raises `NeedsOperator`."""
        if strategy not in _STRATEGIES:
            near = difflib.get_close_matches(strategy, _STRATEGIES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(_STRATEGIES)}"
            raise NeedsOperator(f"unknown strategy {strategy!r}", hint, Code.SETTING_VALUE)
        self._strategy = strategy
        self._seen: tuple[str, ...] = ()
        self._next = 0
        self._credit: dict[str, int] = {}

    def pick(self, scores: Mapping[str, int], start_ts: int, retry: int) -> str:
        """Return the node id of one of the Pumps, which are given in order with their scores."""
        node_ids = tuple(scores)
        if self._strategy == "hash":
            # Under light load the low 18 bits of timestamps are nearly all alike, so `start_ts mod
            # 2` would send everything to one of two Pumps: the bits are mixed first.
            mixed = (start_ts * _SPREAD & 0xFFFF_FFFF_FFFF_FFFF) >> 32
            return node_ids[(mixed + retry) % len(node_ids)]
        if self._strategy == "score":
            return self._most_credit(scores)
        if node_ids != self._seen:
            self._seen, self._next = node_ids, 0
        position = self._next % len(node_ids)
        self._next = position + 1
        return node_ids[position]

    def _most_credit(self, scores: Mapping[str, int]) -> str:
        """Return the Pump with the most credit, after all have earned their score."""
        weights = {node_id: max(score, 0) for node_id, score in scores.items()}
        if not any(weights.values()):
            weights = dict.fromkeys(weights, 1)
        # Pumps that are gone lose their credit: a Pump that comes back starts at zero.
        credit = {node_id: self._credit.get(node_id, 0) + w for node_id, w in weights.items()}
        best = max((node_id for node_id, w in weights.items() if w), key=lambda each: credit[each])
        credit[best] -= sum(weights.values())
        self._credit = credit
        return best
