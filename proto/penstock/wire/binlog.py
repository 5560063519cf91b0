"""Binlog: a binlog and its parts as frozen values; `codec.py` turns them into bytes and back.

A transaction leaves two binlogs: a Prewrite with its row changes, keyed by `start_ts`, and a
Commit with its `commit_ts` (or a Rollback). A *fake* binlog is a Rollback whose two timestamps
are equal: it changes nothing and states only that a Pump has nothing older to come.
"""

from dataclasses import dataclass
from enum import IntEnum


class BinlogType(IntEnum):
    """The event of a transaction that a binlog records."""

    PREWRITE = 0
    COMMIT = 1
    ROLLBACK = 2


class MutationType(IntEnum):
    """The change of one row; the gaps are forms that no writer has used since 2017."""

    INSERT = 0
    UPDATE = 1
    DELETE = 4


Place = tuple[int, int, int]
"""Epoch, file and position of an origin: grows strictly within a source, in commit order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a transaction was made, if not by the writer that passes it on.

    `epoch` counts the histories of the source, `file` is the number in the binlog file's name,
    `position` where the transaction ends in it. `gtid` is for people. `previous` is file and
    position, in the same epoch, of the last transaction with rows that was committed before this
    one; None where the source does not know it. `history` identifies the epoch's binlog, 0 if
    unknown. `after` is the last place of earlier epochs, until the source has committed anything in
    this epoch.
    """

    source: str
    epoch: int
    file: int
    position: int
    gtid: str = ""
    previous: tuple[int, int] | None = None
    history: int = 0
    after: Place | None = None

    @property
    def place(self) -> Place:
        """The key by which two origins of the same source are compared."""
        return (self.epoch, self.file, self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binlog:
    """One binlog; a Pump streams merged binlogs (Prewrite and Commit in one)."""

    tp: BinlogType
    start_ts: int = 0
    commit_ts: int = 0
    prewrite_key: bytes = b""
    prewrite_value: bytes = b""
    ddl_query: bytes = b""
    ddl_job_id: int = 0
    ddl_schema_state: int = 0
    origin: Origin | None = None

    @property
    def is_fake(self) -> bool:
        """True for a binlog that only moves time forward."""
        return self.tp is BinlogType.ROLLBACK and self.start_ts == self.commit_ts > 0

    @property
    def is_ddl(self) -> bool:
        return self.ddl_job_id > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMutation:
    """One transaction's changes in one table, row bytes by kind, `sequence` giving the order."""

    table_id: int
    inserted_rows: tuple[bytes, ...] = ()
    updated_rows: tuple[bytes, ...] = ()
    deleted_rows: tuple[bytes, ...] = ()
    sequence: tuple[MutationType, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrewriteValue:
    """All row changes of one transaction, and the schema version they were encoded with."""

    schema_version: int
    mutations: tuple[TableMutation, ...] = ()


def fake_binlog(ts: int) -> Binlog:
    """Return a binlog stating that this Pump has nothing pending at or before `ts`."""
    return Binlog(tp=BinlogType.ROLLBACK, start_ts=ts, commit_ts=ts)
