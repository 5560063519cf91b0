"""Keeps a storm of equal log lines from hiding everything else, without hiding that it blows.

Lines are equal when they come from the same logger, level and message template, whatever values
they carry. Each kind may be logged a few times at once, then once per interval; the line after a
gap says how many were left out:

    WARNING pump.service.group_commit: indexing failed (and 2381 more like it)

Debug lines, and what is said about the end of the process, are never left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

BURST = 5
"""How many lines of a kind pass at once: a node that goes through its states says so in full."""
INTERVAL_S = 5.0
_KINDS_MAX = 1000
_EXEMPT = frozenset({"penstock.node.service"})

Kind = tuple[str, int, str]


def message_of(record: logging.LogRecord) -> str:
    """Return the text of a record; never raises, since a log line must not stop what it is about.

    Arguments that do not fit their template are shown beside it.
    """
    try:
        return record.getMessage()
    except Exception:
        return f"{record.msg} {record.args!r}"


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float
    left_out: int = 0
    last: str = ""
    """The last line that was left out."""


class Limits:
    """Decides about lines by their kind; knows no clock."""

    def __init__(self, *, burst: int = BURST, interval_s: float = INTERVAL_S) -> None:
        self._burst = burst
        self._interval_s = interval_s
        self._buckets: dict[Kind, _Bucket] = {}

    def take(self, kind: Kind, now_s: float, text: Callable[[], str] = str) -> int | None:
        """Return how many lines of this kind were left out before this one; None: leave it out.

        `text` is what the line says.
        """
        bucket = self._buckets.pop(kind, None) or _Bucket(self._burst, now_s)
        self._buckets[kind] = bucket  # The kind last seen goes to the end.
        if len(self._buckets) > _KINDS_MAX:
            del self._buckets[next(iter(self._buckets))]
        gained = (now_s - bucket.at_s) / self._interval_s
        bucket.tokens = min(self._burst, bucket.tokens + gained)
        bucket.at_s = now_s
        if bucket.tokens < 1:
            bucket.left_out += 1
            bucket.last = text()
            return None
        bucket.tokens -= 1
        left_out, bucket.left_out = bucket.left_out, 0
        return left_out

    def left_out(self) -> dict[Kind, tuple[int, str]]:
        """Return, and forget, how many lines of each kind were left out, and the last of them."""
        found = {k: (b.left_out, b.last) for k, b in self._buckets.items() if b.left_out}
        for kind in found:
            self._buckets[kind].left_out = 0
        return found


class LimitFilter(logging.Filter):
    """Put on a handler; its `tell` says at the end what was left out and never told of."""

    def __init__(self, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic):
        super().__init__()
        self._limits = limits or Limits()
        self._clock = clock

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record passes; one that follows a gap then says how many were left out."""
        if record.levelno <= logging.DEBUG or record.name in _EXEMPT:
            return True
        kind = (record.name, record.levelno, str(record.msg))
        left_out = self._limits.take(kind, self._clock(), lambda: message_of(record))
        if left_out:
            record.template, record.left_out = str(record.msg), left_out
            record.msg = f"{message_of(record)} (and {left_out} more like it)"
            record.args = None
        return left_out is not None

    def tell(self, log: logging.Logger) -> None:
        """Log what was left out since, one line for each kind; `log` must be exempt."""
        assert log.name in _EXEMPT, "else these lines could be left out themselves"
        for (name, level, _), (count, last) in self._limits.left_out().items():
            log.log(level, "left out %d lines of %s like: %s", count, name, last)
