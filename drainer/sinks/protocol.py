"""Sink protocol: the interface of a downstream, and the forms in which it takes a batch.

A `TableSink` takes SQL or Arrow, an `EventSink` messages; a `SqlSink` is a `TableSink` that can
take every change as a statement:

    put               messages and the checkpoint, all or nothing
    put_slices        the same for a large transaction, part after part
    apply             one transaction with the checkpoint
    apply_slices      the same for a large transaction, list of statements after list
    apply_split       worker queues of transactions, then the last one, with the checkpoint
    apply_partitions  phases of partitions, each a transaction on its own connection:

begin      the checkpoint says that parts of the batch may be downstream
phase 1    | deletes | deletes |           of tables with further unique keys
-------    a barrier
phase 2    | rows | rows | rows | rows |   everything else
-------    a barrier
last       tables without row key, and the checkpoint

If a downstream rejects a change, the error is `Refused`, with the row of the statement. A server
rejects a statement of many rows as a whole, with a message that counts: `Data too long for column
'v' at row 3`. The row is then found in the statement (`penstock.refused_inserts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from drainer.sinks.checkpoint import Checkpoint, Ledger, OverrideChange
from drainer.task.partitions import Partitions
from penstock.errors import NeedsOperator, PenstockError
from penstock.failpoints import point
from penstock.refused_inserts import inserted

if TYPE_CHECKING:
    from drainer.task.events.event_unit import Encoding
    from drainer.task.events.messages import Messages
    from penstock.ddl import Catalog, SchemaChange


@dataclass(slots=True)
class FileCounts:
    """Counts of one sink, for any thread to read.

    One thread raises each number. For files in a folder, upkeep counts removed and packed files,
    the sink counts the rest.
    """

    commits: int = 0
    """Commits of changes; each table of a lake counts separately."""
    rows: int = 0
    """Rows written into a lake's tables, without rewrites that only combine files."""
    files_added: int = 0
    bytes_added: int = 0
    files_removed: int = 0
    """Files that expired, or that a table no longer names, though older versions of it may."""
    bytes_removed: int = 0
    compactions: int = 0
    """Commits that combine a table's small files, or files that were packed."""
    last_commit_s: float = 0.0
    """Unix time of the last commit of changes, 0 before the first."""


# The steps of a downstream transaction, at which a test may end the Drainer.
transaction_begun = point("drainer.transaction_begun")
"""The transaction is open and its position is checked; nothing has changed."""
rows_changed = point("drainer.rows_changed")
"""All statements of a batch, or of one slice of a large transaction, have run."""
checkpoint_stored = point("drainer.checkpoint_stored")
"""The checkpoint is stored in the transaction, which is still open."""
transaction_committed = point("drainer.transaction_committed")
"""The downstream has committed; the Drainer does not know yet."""
ddl_intended = point("drainer.ddl_intended")
"""The intent to run a DDL is on record."""
ddl_run = point("drainer.ddl_run")
"""The DDL has run; its checkpoint is not stored."""
lane_committed = point("drainer.lane_committed")
partition_changed = point("drainer.partition_changed")
"""All statements of a partition have run, in the Drainer or in a task."""
partition_committed = point("drainer.partition_committed")
table_committed = point("drainer.table_committed")
"""The changes of a batch or of a DDL are committed to one table of a lake."""
versions_stored = point("drainer.versions_stored")
"""A lake has recorded the versions of its tables that belong together; no checkpoint yet."""


RETRY_S_MAX = 600.0
"""How long a sink tries to reach its downstream before it abandons that with `Retryable`."""

T = TypeVar("T")

Ask = Callable[[list[bytes]], Future[list[bytes]]]
"""Sends units to tasks, from any thread; the result is their answers."""

Slices = Callable[[], Generator[T]]
"""Iterates over the parts of one large transaction from the start."""

StatementLists = Slices[Sequence[str | bytes]]
"""Slices as SQL: a list of statements for each."""


class Sink:
    """One downstream of one cluster, written by one thread at a time.

    While a downstream is unreachable, locked or restarting, every method retries with a growing
    pause, and raises `Retryable` after `retry_s_max`. `NeedsOperator` means that retrying cannot
    help: the downstream refuses the statement, or another Drainer writes the same checkpoint.
    """

    batch_bytes_max = 0
    """The bytes of the stream that one transaction should carry at most, 0 for any size.

    It is known once the checkpoint is loaded. A single upstream transaction may be larger.
    """
    gathers_s = 0.0
    """How long changes gather into a batch if commits cost too much to be as small as possible."""
    gathered_bytes_max = 0
    """The bytes at which such a batch is cut."""
    gathered_rows_max = 0
    """The number of rows at which it is cut."""

    def __init__(self, cluster_id: int) -> None:
        self._cluster_id = cluster_id
        self._ledger = Ledger()
        self.file_counts = FileCounts()

    @property
    def is_new(self) -> bool:
        """True while the downstream has no checkpoint of this cluster, as far as is known."""
        return self._ledger.is_new

    @property
    def writer(self) -> str:
        return self._ledger.writer

    def load_checkpoint(self) -> Checkpoint | None:
        """Return where to continue, None on a fresh downstream.

        The returned checkpoint's writer is the run that stores the next one. Raises `NeedsOperator`
        if another cluster has a checkpoint and this cluster has none. The first call also raises it
        for anything that would keep this run from writing.
        """
        raise NotImplementedError

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store `checkpoint` when only time has advanced."""
        raise NotImplementedError

    def change_overrides(self, change: OverrideChange) -> None:
        """Change the overrides in the checkpoint, whichever run writes it; it has been loaded.

        `change` is called within the transaction, and an error that it raises ends the transaction.
        A run that writes this downstream gets `Overridden` at its next commit, and has committed
        nothing since.
        """
        raise NotImplementedError

    def run_ddl(self, change: SchemaChange, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        """Change the schema and store `checkpoint`; `maybe_done` is set after a crash between."""
        raise NotImplementedError

    def look_at(self, catalog: Catalog) -> None:
        """Compare the downstream with the tables that go there, if there is anything to compare."""

    def stand_ins(self) -> Mapping[str, str]:
        """Return collations that the downstream lacks, each with its tables' substitute.

        It may be called from any thread, during another call.
        """
        return {}

    def waits_for(self) -> str:
        """Return the reason why the downstream takes no changes; empty if it takes them.

        It may be called from any thread, during another call.
        """
        return ""

    def close(self) -> None:
        """Release the downstream; a call waiting in another thread raises `Retryable`."""
        raise NotImplementedError


class TableSink(Sink):
    """A sink that has tables, and takes a compacted batch as SQL or Arrow."""

    dialect: str
    """The dialect of its statements, as `drainer.task.sql.literals` names it."""

    def use_tasks(self, ask: Ask) -> None:
        """Let the sink give work to tasks, if it has any for them."""

    def apply(self, statements: Sequence[str | bytes], checkpoint: Checkpoint) -> None:
        """Run all statements and store `checkpoint`, all or nothing, exactly once.

        It is one transaction. If the downstream has no transactions over several tables, readers
        that follow the sink's rules see no difference, and the checkpoint says which changes may be
        there.
        """
        raise NotImplementedError

    def apply_slices(self, slices: StatementLists, checkpoint: Checkpoint) -> None:
        """As `apply`, for more statements than memory holds: `slices` yields list after list.

        `slices` is called once for every try, and must yield the same lists each time. An error
        that it raises ends the transaction and is passed on. No list is kept while the next is
        produced.
        """
        raise NotImplementedError


class SqlSink(TableSink):
    """A sink that takes SQL, so that every change can be a separate statement."""

    def apply_split(self, split: Split, checkpoint: Checkpoint, start: Checkpoint) -> Missed:
        """Run queues of transactions, then the last one with `checkpoint`; return the missing rows.

        Before the first queue the stored checkpoint (or `start`, if none is stored) says that parts
        of the changes up to the new one may be downstream. Every transaction of a queue checks that
        this still holds, which excludes another Drainer. Raises `InDoubt` if a queue's commit got
        no answer and `split` is not `safe`.
        """
        raise NotImplementedError

    def foreign_keys(self) -> tuple[ForeignKey, ...]:
        """Return the downstream's foreign keys: the same object until a DDL has run."""
        raise NotImplementedError


class EventSink(Sink):
    """A sink that takes every change in commit order, as messages: files, a queue.

    Its DDL is also a message; `run_ddl` writes it after all earlier messages.
    """

    encoding: Encoding
    """The encoding of its messages of changes."""

    def put(self, messages: Sequence[Messages], checkpoint: Checkpoint) -> None:
        """Write a batch's messages, in their order, and store `checkpoint`: all or nothing.

        A reader that follows the output's rules sees each message once, despite any crash.
        """
        raise NotImplementedError

    def put_slices(self, slices: Slices[Messages], checkpoint: Checkpoint) -> None:
        """As `put`, for one transaction that is larger than memory, in parts.

        `slices` is called once for every try, and yields the same parts each time.
        """
        raise NotImplementedError


class RowStatement(NamedTuple):
    """One statement for one row; `row` is its table and key, for an operator."""

    sql: bytes
    row: str

    @property
    def names_a_row(self) -> bool:
        return self.sql.startswith((b"UPDATE", b"DELETE"))


Transaction = list[RowStatement]


class ForeignKey(NamedTuple):
    """One foreign key of the downstream; `columns` pairs the child's with the parent's."""

    schema: str
    table: str
    parent_schema: str
    parent: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Split:
    """Queues of transactions, and the `last` one, which also stores the checkpoint.

    Queues do not depend on one another, and `last` comes after all of them. `safe` says that every
    queue's transaction may be run again, and that missing rows are not an error.
    """

    queues: list[list[Transaction]]
    last: Transaction
    safe: bool


@dataclass(slots=True)
class Missed:
    """Rows that an update or a delete did not find: the downstream differs from the upstream."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, row: str) -> None:
        self.count += 1
        if len(self.examples) < _EXAMPLES_MAX:
            self.examples.append(row)

    def forget(self) -> None:
        self.count = 0
        self.examples = []

    def add(self, others: Iterable[Missed]) -> Missed:
        for other in others:
            self.count += other.count
            self.examples = (self.examples + other.examples)[:_EXAMPLES_MAX]
        return self


_EXAMPLES_MAX = 5


class InDoubt(PenstockError):
    """A queue's commit got no answer, so only the safe form of the batch may follow."""


class Passage(NamedTuple):
    """The fences under which a task commits partitions: see `begin_partitions`.

    `table` is a quoted name, `ts` is the batch's, `part` the number of its first fence.
    """

    table: str
    cluster_id: int
    epoch: int
    ts: int
    part: int


class PartitionedSink(SqlSink):
    """A sink with enough connections to commit partitions concurrently."""

    def begin_partitions(self, parts: range, checkpoint: Checkpoint, start: Checkpoint) -> Passage:
        """Begin a batch whose partitions tasks commit; `apply` ends it.

        Several batches may be in progress, begun and ended in commit order, with separate numbers
        of their `parts`.
        All of them run, including those that an earlier run committed, perhaps in another cut.
        Their statements must allow that.
        """
        raise NotImplementedError

    def has_begun(self, partitions: Partitions) -> bool:
        """Return whether this batch was the last to start, possibly in an earlier run."""
        raise NotImplementedError

    def apply_partitions(
        self, partitions: Partitions, checkpoint: Checkpoint, start: Checkpoint
    ) -> list[float]:
        """Run all phases, then the last partition with `checkpoint`; return each one's seconds.

        Before the first phase the stored checkpoint (or `start`, if none is stored) says that parts
        of the changes up to the new one may be downstream. Partitions of the same batch, cut in the
        same way, that an earlier run committed are not run again. After its successor's first
        checkpoint, a replaced Drainer can commit no partition.
        """
        raise NotImplementedError


_DELETE = re.compile(r"DELETE FROM (\S.*?) WHERE ")
_AT_ROW = re.compile(r" at row (\d+)")
_VALUE_SHOWN = 40
_COLUMNS_SHOWN = 6


class Refused(NeedsOperator):
    """The downstream rejects a change, and would reject it again."""


def row_of(statement: str | bytes, message: str) -> str:
    """Return the table and row of a refused statement, as far as `message` tells."""
    text = statement if isinstance(statement, str) else statement.decode(errors="replace")
    found = inserted(text)
    if found is None:
        deleting = _DELETE.match(text)
        return f"rows of {deleting[1]} to be deleted" if deleting else ""
    number = _AT_ROW.search(message)
    table, names, rows = found
    if number is None:
        return f"a row of {table}"
    row = next(islice(rows, int(number[1]) - 1, None), [])
    return f"{table} {pairs(names, row)}"


def pairs(names: Sequence[str], values: Sequence[str]) -> str:
    shown = [f"{name} = {_shown(value)}" for name, value in zip(names, values, strict=False)]
    more = ", …" if len(shown) > _COLUMNS_SHOWN else ""
    return ", ".join(shown[:_COLUMNS_SHOWN]) + more


def _shown(value: str) -> str:
    return value if len(value) <= _VALUE_SHOWN else value[:_VALUE_SHOWN] + "…"


def located(error: Refused, after_ts: int, through_ts: int) -> Refused:
    """Add to the error the batch it came from and the ways to continue."""
    return Refused(
        f"{error.problem}; this is in the batch of the transactions after commit_ts {after_ts}"
        f" and up to {through_ts}, and nothing after that was applied",
        hint=f"{error.hint}; then start the Drainer again. Or leave the whole transaction out with"
        " ignore-txn-commit-ts: its rows are missing downstream then, and are counted. With"
        " --batch-rows-max 1 each batch is one transaction, and the commit_ts it goes up to is"
        " that one's",
        code=error.code,
    )
