"""Record: one binlog on its way into the log, and the errors that may prevent it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.log.segments import Position

CHUNK = -1
"""The type of a record that is a part of a large binlog; no binlog has it."""

IN_ONE = -1
"""In place of the first segment of a Prewrite that was not stored in chunks."""

_START_TS, _COMMIT_TS = operator.itemgetter(1), operator.itemgetter(2)


class Record(NamedTuple):
    """The facts that the Pump needs about a binlog, and the binlog's bytes."""

    tp: int
    start_ts: int
    commit_ts: int
    payload: bytes
    first_segment: int = IN_ONE
    """For a Prewrite whose payload is a chunk list: the first segment of its chunks."""
    ddl_job_id: int = 0
    """For the Commit of a DDL: its job."""


Fields = tuple[int, int, int, bytes, int, int]
"""A `Record`, or the cheaper tuple that a replay makes for millions of binlogs."""


def largest_ts(records: Sequence[Fields]) -> int:
    start_ts = max(map(_START_TS, records), default=0)
    return max(start_ts, max(map(_COMMIT_TS, records), default=0))


class LoggedDdl(NamedTuple):
    """A DDL that is committed in a log."""

    commit_ts: int
    job_id: int


NO_DDL = LoggedDdl(0, 0)


class ChunkRecord(Record):
    """A chunk on its way into the log; `position` is set once it is stored."""

    position: Position | None = None


class Unmatched(NamedTuple):
    """A Prewrite without Commit or Rollback; `payload_reader` returns its bytes.

    For a Prewrite in chunks it returns only the fields before the row changes. `floor_ts` is the
    largest timestamp that had arrived before it; its Commit must lie above.
    """

    start_ts: int
    payload_reader: Callable[[], bytes]
    floor_ts: int


class NotStored(PenstockError):
    """Some records of a group were refused, and therefore none of the group is stored.

    `refused` holds the reason by index into the group; the others may be appended again
    immediately.
    """

    def __init__(self, refused: Mapping[int, PenstockError]) -> None:
        first = refused[min(refused)]
        others = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        super().__init__(f"{first}{others}", code=refused[min(refused)].code)
        self.refused = refused


class Contradiction(NeedsOperator):
    """A binlog that cannot be true together with earlier stored binlogs."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            problem,
            hint="the writer or its clock breaks the protocol; find it",
            code=Code.CONTRADICTION,
        )


class NoPrewrite(Retryable):
    """A Commit whose Prewrite is not on this Pump, at least not yet."""


class OutOfSpace(Retryable):
    """The volume is too full for new binlogs; purging or another Pump may help."""


class TooManyOpen(OutOfSpace):
    """The limit of open transactions is reached; retry once some end, or on another Pump."""

    def __init__(self, count: int, oldest_start_ts: int) -> None:
        super().__init__(
            f"{count} transactions are open, which is all that open-prewrites-max allows; the"
            f" oldest has the start_ts {oldest_start_ts} (find out why it does not end: is the"
            " resolver's database away?)",
            code=Code.PUMP_OVERLOADED,
        )


class PurgedRange(NeedsOperator):
    """A puller asks for binlogs that a garbage collection has removed."""

    def __init__(self, after_ts: int, purged_ts: int) -> None:
        super().__init__(
            f"binlogs in ({after_ts}, {purged_ts}] are purged",
            hint="restore the downstream from a newer backup and start it at that commit_ts",
            code=Code.BINLOG_PURGED,
        )
        self.after_ts = after_ts
        self.purged_ts = purged_ts
