"""One binlog on its way into the log, and the reasons why it may not get there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.model import BinlogType


class Record(NamedTuple):
    """What the Pump must know of a binlog, and the binlog's bytes."""

    tp: BinlogType
    start_ts: int
    commit_ts: int
    payload: bytes
    is_ddl: bool = False


class Unmatched(NamedTuple):
    """A Prewrite without Commit or Rollback; `payload_reader` returns its bytes.

    `floor_ts` is the largest timestamp that had arrived before it; its Commit must lie above.
    """

    start_ts: int
    payload_reader: Callable[[], bytes]
    floor_ts: int


class NotStored(PenstockError):
    """Some records of a group were refused, and therefore none of the group is stored.

    `refused` holds the reason by index into the group; the others may be appended again at once.
    """

    def __init__(self, refused: Mapping[int, PenstockError]) -> None:
        first = refused[min(refused)]
        others = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        super().__init__(f"{first}{others}")
        self.refused = refused


class Contradiction(NeedsOperator):
    """A binlog that cannot be true together with what was stored before it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, hint="the writer or its clock breaks the protocol; find it")


class NoPrewrite(Retryable):
    """A Commit whose Prewrite is not on this Pump, at least not yet."""


class OutOfSpace(Retryable):
    """The volume is too full for new binlogs; purging or another Pump may help."""


class TooManyOpen(OutOfSpace):
    """As many transactions are open as may be; once some end, or on another Pump, it may work."""

    def __init__(self, count: int, oldest_start_ts: int) -> None:
        super().__init__(
            f"{count} transactions are open, which is all that open-prewrites-max allows; the"
            f" oldest has the start_ts {oldest_start_ts} (find out why it does not end: is the"
            " resolver's database away?)"
        )


class PurgedRange(NeedsOperator):
    """A puller asks for binlogs that a garbage collection has removed."""

    def __init__(self, after_ts: int, purged_ts: int) -> None:
        super().__init__(
            f"binlogs in ({after_ts}, {purged_ts}] are purged",
            hint="restore the downstream from a newer backup and start it at that commit_ts",
        )
        self.after_ts = after_ts
        self.purged_ts = purged_ts
