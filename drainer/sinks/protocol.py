"""The `Sink` promise: what the Drainer asks of a downstream."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from drainer.sinks.checkpoint import Checkpoint, OverrideChange
from drainer.sinks.split import ForeignKey, Missed, Split

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange
    from penstock.schema.model import TableInfo


RETRY_S_MAX = 600.0
"""How long a sink tries to reach its downstream before it gives up with `Retryable`."""

Parts = Callable[[], Generator[Sequence[str | bytes]]]
"""Begins the lists of statements of one transaction anew."""


class Sink(Protocol):
    """One downstream of one cluster, written by one thread at a time.

    Every method waits out a downstream that is away, locked or restarting, with a growing pause,
    and raises `Retryable` after `retry_s_max`. `NeedsOperator` means that waiting cannot help:
    the downstream refuses the statement, or another Drainer writes the same checkpoint.
    """

    dialect: str
    """The SQL that `apply` takes, as `drainer.task.sql.table_sql` names it."""

    @property
    def is_new(self) -> bool:
        """True while the downstream has no checkpoint of this cluster, as far as is known."""
        ...

    @property
    def writer(self) -> str:
        """The name of this run, which every checkpoint that it stores bears."""
        ...

    def load_checkpoint(self) -> Checkpoint | None:
        """Return where to continue, None on a fresh downstream; its writer is who stores one next.

        Raises `NeedsOperator` where another cluster has a checkpoint, and this one has none; the
        first time also for what would keep this run from writing.
        """
        ...

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store `checkpoint` when nothing but time has moved on."""
        ...

    def change_overrides(self, change: OverrideChange) -> None:
        """Change the overrides in the stored checkpoint, whoever writes it; it has been loaded.

        `change` is asked within the transaction, and what it raises ends that. A run that writes
        this downstream meets `Overridden` at its next commit, and has committed nothing since.
        """
        ...

    def apply(self, statements: Sequence[str | bytes], checkpoint: Checkpoint) -> None:
        """Run all statements and store `checkpoint` in ONE transaction, exactly once."""
        ...

    def apply_parts(self, parts: Parts, checkpoint: Checkpoint) -> None:
        """As `apply`, for more statements than memory holds: `parts` yields list after list.

        It is called once for every try, and must yield the same each time. What it raises ends
        the transaction and is passed on. No list is kept while the next one is asked for.
        """
        ...

    def apply_split(self, split: Split, checkpoint: Checkpoint, start: Checkpoint) -> Missed:
        """Run lanes of transactions, then the last one with `checkpoint`; say what was not there.

        Before the first lane the stored checkpoint, or `start` where there is none, says that
        changes up to the new one may be there in parts. Every transaction of a lane checks that
        this is still so, which keeps another Drainer's out. Raises `InDoubt` when a lane's commit
        got no answer and `split` is not `safe`.
        """
        ...

    def foreign_keys(self) -> tuple[ForeignKey, ...]:
        """Return the downstream's foreign keys: the same object until a DDL has run."""
        ...

    def run_ddl(self, change: SchemaChange, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        """Change the schema and store `checkpoint`; `maybe_done` after a crash in between."""
        ...

    def look_at(self, tables: Iterable[TableInfo]) -> None:
        """Take note of the tables that are there when a Drainer starts, for `stand_ins`."""
        ...

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
        """Let go of the downstream; a call that waits in another thread ends with `Retryable`."""
        ...
