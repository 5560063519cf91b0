"""Sink protocol: what the Drainer asks of a downstream, and in what forms a batch comes to it.

A `TableSink` takes SQL or Arrow, an `EventSink` messages; a `SqlSink` is a `TableSink` that can be
given every change as a statement:

    put               messages and the checkpoint, all or nothing
    put_slices        the same for a large transaction, part after part
    apply             one transaction with the checkpoint
    apply_slices      the same for a large transaction, list of statements after list
    apply_split       worker queues of transactions, then the last one, with the checkpoint
    apply_partitions  phases of partitions, each a transaction on a connection of its own:

begin      the checkpoint says that the batch may be there in parts
phase 1    | deletes | deletes |           of tables with further unique keys
-------    a barrier
phase 2    | rows | rows | rows | rows |   everything else
-------    a barrier
last       tables without row key, and the checkpoint

What a downstream will not take is `Refused`, with the row of the statement that it was. A statement
of many rows is refused as a whole, with a message that counts: `Data too long for column 'v' at row
3`. The row is in the statement (`penstock.refused_inserts`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, count, islice
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, runtime_checkable

from drainer.sinks.checkpoint import Checkpoint, OverrideChange
from drainer.sinks.file_counts import FileCounts
from penstock.errors import NeedsOperator, PenstockError
from penstock.failpoints import point
from penstock.refused_inserts import inserted

if TYPE_CHECKING:
    from drainer.task.events.encoding import Encoding
    from drainer.task.events.messages import Messages
    from penstock.ddl import Catalog, SchemaChange

# The steps of a downstream transaction, at which a test may end the Drainer.
transaction_begun = point("drainer.transaction_begun")
"""The transaction is open and its place is checked; nothing has changed."""
rows_changed = point("drainer.rows_changed")
"""All statements of a batch have run, or of one slice of a large transaction."""
checkpoint_stored = point("drainer.checkpoint_stored")
"""The checkpoint is stored in the transaction, which is still open."""
transaction_committed = point("drainer.transaction_committed")
"""The downstream has committed; the Drainer does not know yet."""
ddl_intended = point("drainer.ddl_intended")
"""The intent to run a DDL is on record."""
ddl_run = point("drainer.ddl_run")
"""The DDL has run; its checkpoint is not stored."""
lane_committed = point("drainer.lane_committed")
partition_committed = point("drainer.partition_committed")
table_committed = point("drainer.table_committed")
"""One table of a lake has its changes of a batch, or of a DDL."""
versions_stored = point("drainer.versions_stored")
"""A lake says which versions of its tables belong together; its checkpoint is not stored."""


RETRY_S_MAX = 600.0
"""How long a sink tries to reach its downstream before it abandons that with `Retryable`."""

T = TypeVar("T")

Slices = Callable[[], Generator[T]]
"""Begins the parts of one large transaction again."""

StatementLists = Slices[Sequence[str | bytes]]
"""Slices as SQL: list after list of statements."""


class Sink(Protocol):
    """One downstream of one cluster, written by one thread at a time.

    Every method waits out a downstream that is away, locked or restarting, with a growing pause,
    and raises `Retryable` after `retry_s_max`. `NeedsOperator` means that waiting cannot help:
    the downstream refuses the statement, or another Drainer writes the same checkpoint.
    """

    batch_bytes_max: int
    """How much of the stream its transactions should carry at most, 0 for any size.

    It is known once the checkpoint is loaded. One transaction of upstream's may be larger.
    """

    @property
    def is_new(self) -> bool:
        """True while the downstream has no checkpoint of this cluster, as far as is known."""
        ...

    @property
    def writer(self) -> str: ...

    def load_checkpoint(self) -> Checkpoint | None:
        """Return where to continue, None on a fresh downstream; its writer is who stores one next.

        Raises `NeedsOperator` where another cluster has a checkpoint, and this one has none; the
        first time also for what would keep this run from writing.
        """
        ...

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store `checkpoint` when only time has advanced."""
        ...

    def change_overrides(self, change: OverrideChange) -> None:
        """Change the overrides in the checkpoint, whichever run writes it; it has been loaded.

        `change` is asked within the transaction, and what it raises ends that. A run that writes
        this downstream meets `Overridden` at its next commit, and has committed nothing since.
        """
        ...

    def run_ddl(self, change: SchemaChange, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        """Change the schema and store `checkpoint`; `maybe_done` is set after a crash between."""
        ...

    def look_at(self, catalog: Catalog) -> None: ...

    def stand_ins(self) -> Mapping[str, str]:
        """Return collations that the downstream lacks, and those that its tables have instead.

        It may be called from any thread, while another call waits.
        """
        ...

    def waits_for(self) -> str:
        """Return what keeps the downstream from taking changes; empty when nothing does.

        It may be called from any thread, while another call waits.
        """
        ...

    def close(self) -> None:
        """Release the downstream; a call waiting in another thread raises `Retryable`."""
        ...


class TableSink(Sink, Protocol):
    """A sink that has tables, and takes what is left of a batch's changes: SQL, or Arrow."""

    dialect: str
    """What its statements are, as `drainer.task.sql.literals` names it."""

    def apply(self, statements: Sequence[str | bytes], checkpoint: Checkpoint) -> None:
        """Run all statements and store `checkpoint`, all or nothing, exactly once.

        It is one transaction; where the downstream has none over several tables, readers that
        follow the sink's rules see no difference, and the checkpoint says what may be there.
        """
        ...

    def apply_slices(self, slices: StatementLists, checkpoint: Checkpoint) -> None:
        """As `apply`, for more statements than memory holds: `slices` yields list after list.

        It is called once for every try, and must yield the same each time. What it raises ends
        the transaction and is passed on. No list is kept while the next one is asked for.
        """
        ...


class SqlSink(TableSink, Protocol):
    """A sink that takes SQL, so that every change can be a statement of its own."""

    def apply_split(self, split: Split, checkpoint: Checkpoint, start: Checkpoint) -> Missed:
        """Run queues of transactions, then the last one with `checkpoint`; say what was not there.

        Before the first queue the stored checkpoint, or `start` where there is none, says that
        changes up to the new one may be there in parts. Every transaction of a queue checks that
        this is still so, which keeps another Drainer's out. Raises `InDoubt` when a queue's commit
        got no answer and `split` is not `safe`.
        """
        ...

    def foreign_keys(self) -> tuple[ForeignKey, ...]:
        """Return the downstream's foreign keys: the same object until a DDL has run."""
        ...


class EventSink(Sink, Protocol):
    """A sink that takes every change in commit order, as messages: files, a queue.

    Its DDL is a message, too, so `run_ddl` puts it behind all that came before.
    """

    encoding: Encoding
    """Who makes its messages of changes."""

    def put(self, messages: Sequence[Messages], checkpoint: Checkpoint) -> None:
        """Hand over a batch's messages, in their order, and store `checkpoint`: all or nothing.

        A reader that follows the output's rules sees each message once, whatever crashes between.
        """
        ...

    def put_slices(self, slices: Slices[Messages], checkpoint: Checkpoint) -> None:
        """As `put`, for one transaction that is larger than memory, in parts.

        `slices` is called once for every try, and yields the same each time.
        """
        ...


@dataclass(frozen=True, slots=True)
class Gathering:
    """For how long changes gather before they are a batch, and at how many bytes it is cut."""

    seconds: float
    bytes_max: int

    @property
    def rows_max(self) -> int:
        """The row limit: so many rows take about as much memory in columns."""
        return self.bytes_max // _GATHERED_ROW_BYTES


_GATHERED_ROW_BYTES = 64


@runtime_checkable
class FileCountingSink(Protocol):
    """A sink that makes files, and counts them."""

    file_counts: FileCounts


@runtime_checkable
class GatheringSink(Protocol):
    """A sink whose commits cost too much to be as small as the load allows."""

    gathering: Gathering | None
    """None where batches are cut as for any other sink."""


class RowStatement(NamedTuple):
    """One statement for one row; `row` is its table and key, for an operator."""

    sql: bytes
    row: str

    @property
    def names_a_row(self) -> bool:
        return self.sql.startswith((b"UPDATE", b"DELETE"))


Transaction = list[RowStatement]


class ForeignKey(NamedTuple):
    """One of the downstream's foreign keys; `columns` pairs the child's with the parent's."""

    schema: str
    table: str
    parent_schema: str
    parent: str
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Split:
    """Queues of transactions, and the `last` one, which also stores the checkpoint.

    Queues do not depend on one another, and `last` comes after all of them. `safe` says that every
    queue's transaction may be run again, and that missing rows mean nothing.
    """

    queues: list[list[Transaction]]
    last: Transaction
    safe: bool


@dataclass(slots=True)
class Missed:
    """Rows that an update or a delete did not find: the downstream is not what upstream was."""

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
    """A queue's commit got no answer, so that only the safe form of the batch may follow."""


Partition = list[bytes]
"""SQL statements that reach the downstream in one transaction."""


@dataclass(frozen=True)
class Partitions:
    """Phases, one after another, of partitions that may run at once; then the `last` one.

    It does not matter how often a partition is run while the batch is under way, as long as its
    phase is: its statements say how rows end, and not what happens to them. `last` must run once.
    """

    phases: list[list[Partition]]
    last: Partition

    @cached_property
    def content(self) -> str:
        """A hex id unique to this batch and to the way it is cut."""
        digest = hashlib.blake2b(digest_size=16)
        for number, statements in self.numbered():
            digest.update(b"%d %d\n" % (number, len(statements)))
            for statement in statements:
                digest.update(b"%d\n" % len(statement))
                digest.update(statement)
        return digest.hexdigest()

    @property
    def count(self) -> int:
        return sum(map(len, self.phases))

    def numbered(self) -> Iterator[tuple[int, Partition]]:
        return zip(count(), (each for phase in self.phases for each in phase), strict=False)


@runtime_checkable
class PartitionedSink(Protocol):
    """A sink with connections enough to commit partitions at once."""

    def has_begun(self, partitions: Partitions) -> bool:
        """Return whether this batch was the last to begin, possibly in an earlier run."""
        ...

    def apply_partitions(
        self, partitions: Partitions, checkpoint: Checkpoint, start: Checkpoint
    ) -> list[float]:
        """Run all phases, then the last partition with `checkpoint`; return each one's seconds.

        Before the first phase the stored checkpoint, or `start` where there is none, says that
        changes up to the new one may be there in parts. What a run before this one committed of
        the same batch, cut in the same way, is not run again. No partition of a Drainer that was
        replaced is committed after its successor's first checkpoint.
        """
        ...


def cut_by_bytes(statements: Sequence[bytes], parts_max: int, bytes_min: int) -> list[Partition]:
    """Return runs of about equal size, `parts_max` at most, with `bytes_min` at least on average.

    Runs, because neighbouring keys stay together, and each connection walks indexes in their order.
    """
    total = sum(map(len, statements))
    if not statements:
        return []
    parts = max(1, min(parts_max, total // bytes_min, len(statements)))
    cuts: list[Partition] = [[] for _ in range(parts)]
    ends = accumulate(map(len, statements))
    for statement, end in zip(statements, ends, strict=True):
        # By where its middle is, so that a large one goes where most of it belongs.
        middle = end - len(statement) // 2
        cuts[min(parts - 1, middle * parts // max(1, total))].append(statement)
    return [each for each in cuts if each]


_DELETE = re.compile(r"DELETE FROM (\S.*?) WHERE ")
_AT_ROW = re.compile(r" at row (\d+)")
_VALUE_SHOWN = 40
_COLUMNS_SHOWN = 6


class Refused(NeedsOperator):
    """The downstream refuses a change, and will again."""


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
