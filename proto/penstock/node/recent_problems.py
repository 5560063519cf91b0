"""Recent problems: the last warnings and errors of this process, for its status.

    problem 2026-11-21T09:30:00.016123Z    ERROR drainer.node: Pump pump-2 is away (12 times)

Lines of one kind (logger, level, template) are one entry, with the last of them and their number.
The last `KINDS_MAX` kinds are kept. They repeat log lines, so they contain no secrets.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from penstock.node.logs import message_of, one_line

KINDS_MAX: Final = 10
_LINE_CHARS_MAX: Final = 2000


@dataclass(slots=True)
class _Problem:
    at_s: float
    line: str
    count: int


class RecentProblems(logging.Handler):
    """Remembers records that pass it; memory is bounded by kinds and by the length of a line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._kinds: dict[tuple[str, int, str], _Problem] = {}

    def emit(self, record: logging.LogRecord) -> None:
        kind = (record.name, record.levelno, str(record.msg))
        before = self._kinds.pop(kind, None)
        text = one_line(message_of(record))[:_LINE_CHARS_MAX]
        line = f"{record.levelname} {record.name}: {text}"
        self._kinds[kind] = _Problem(record.created, line, 1 + (before.count if before else 0))
        if len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]

    def lines(self) -> list[tuple[str, str]]:
        """Return the time of the last occurrence and the text of each problem, oldest first."""
        with self.lock:  # type: ignore[union-attr]  # A handler without a lock is one being built.
            kept = list(self._kinds.values())
        return [(_moment(each.at_s), _counted(each)) for each in kept]

    def details(self) -> Mapping[str, str]:
        return {f"problem {moment}": line for moment, line in self.lines()}


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _counted(problem: _Problem) -> str:
    return problem.line if problem.count == 1 else f"{problem.line} ({problem.count} times)"


RECENT: Final = RecentProblems()
"""The recent problems of this process: a node's program adds it to its log (`node.service`)."""
