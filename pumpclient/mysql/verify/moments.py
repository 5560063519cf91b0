"""Moments: a point of the upstream's history, and whether a downstream's checkpoint is beyond it.

a server with a binlog    the binlog's end; the checkpoint has a place per source (`origins`)
a TiDB                    a timestamp; transactions keep their commit_ts on the way downstream
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pumpclient.mysql.load.state import file_number
from pumpclient.mysql.verify.comparison import reached


@dataclass(frozen=True, slots=True)
class Position:
    """A downstream's progress: its checkpoint's commit_ts and origins."""

    commit_ts: int = 0
    origins: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def source(self, asked: str) -> str:
        """Return the source asked for, or the only source; empty if there are several."""
        names = self.sources()
        return asked or (names[0] if len(names) == 1 else "")

    def sources(self) -> list[str]:
        # Names with a slash are a source's reloads: the rows that they write count from then on.
        return [name for name in self.origins if "/" not in name]


class Moment(Protocol):
    """A point of the upstream's history; its text names it."""

    def is_in(self, position: Position, source: str) -> bool:
        """Return whether a downstream at `position` has everything up to this moment."""

    def doubt(self, position: Position, source: str) -> str:
        """Return a line for a wait that ended without proof that this moment was reached."""


@dataclass(frozen=True, slots=True)
class BinlogEnd:
    """Where a server's binlog ended."""

    file: str
    offset: int

    def is_in(self, position: Position, source: str) -> bool:
        floor = file_number(self.file), self.offset
        return reached(position.origins, position.source(source), floor)

    def doubt(self, position: Position, source: str) -> str:
        names = position.sources()
        if not names:
            what = (
                "the downstream's checkpoint names no source: what differs may be under way, from"
            )
        elif not position.source(source):
            several = ", ".join(names)
            what = (
                f"which of {several} brings this? Without --source what differs may be under way,"
            )
            what += " at"
        else:
            what = "the downstream did not show in time that it is there: what differs may be under"
            what += " way, at"
        return f"{what} {self}"

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"


@dataclass(frozen=True, slots=True)
class ClusterMoment:
    """A timestamp of a TiDB's cluster."""

    ts: int

    def is_in(self, position: Position, source: str) -> bool:
        return position.commit_ts >= self.ts

    def doubt(self, position: Position, source: str) -> str:
        return (
            f"the downstream's checkpoint is at {position.commit_ts}: what differs may be under"
            f" way, up to {self}"
        )

    def __str__(self) -> str:
        return f"commit_ts {self.ts}"
