"""Progress: how far the downstream is, for status, pages and log."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from drainer.batching.planner import LargeStep, RowsStep, Step
from drainer.differences.left_out import LeftOutTotals
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.file_counts import FileCounts
from drainer.task.work_unit import TableRows
from penstock.wire.binlog import MutationType

log = logging.getLogger(__name__)


def _nothing(step: Step, commit_s: float) -> None: ...


@dataclass(slots=True)
class Progress:
    """The downstream's position and its costs; `checkpoint` is the saved one."""

    checkpoint: Checkpoint
    steps: int = 0
    transactions: int = 0
    rows: int = 0
    last_rows: int = 0
    generate_s: float = 0.0
    commit_s: float = 0.0
    changed_s: float = field(default_factory=time.monotonic)
    """When the downstream last changed, or the Drainer started."""
    missed_rows: int = 0
    """Updated and deleted rows that were missing downstream, if the strategy checks."""
    messages: int = 0
    """Messages made of changes, if the downstream takes messages."""
    message_bytes: int = 0
    repeated: int = 0
    """Transactions that a source sent again and that were skipped."""
    partitions_s: tuple[float, ...] = ()
    """The seconds that each partition of the last batch took, in mode parallel."""
    kinds: Counter[int] = field(default_factory=Counter)
    """Row changes by their kind, of all started batches."""
    on_commit: Callable[[Step, float], None] = _nothing
    """Called with each step that is now downstream, and the seconds it took."""
    waits_for: Callable[[], str] = str
    """The reason why the downstream takes no changes, empty if it takes them."""
    ddl_waits_for: Callable[[], str] = str
    """The DDL that waits for its job, empty if none does."""
    stand_ins: Callable[[], Mapping[str, str]] = dict
    """Collations that the downstream lacks, and the collations that its tables have instead."""
    file_counts: FileCounts = field(default_factory=FileCounts)
    """The counts of a sink that writes files."""
    left_out: LeftOutTotals = field(init=False)
    """Totals of the changes that are not applied downstream."""

    def __post_init__(self) -> None:
        self.left_out = LeftOutTotals(self.checkpoint.left_out)

    def begun(self, tables: Sequence[TableRows]) -> None:
        for table in tables:
            for kind in MutationType:
                self.kinds[kind] += table.kinds.count(kind)

    def committed(self, step: Step, checkpoint: Checkpoint, commit_s: float) -> None:
        self.checkpoint = checkpoint
        self.left_out.reached(checkpoint.left_out)
        self.steps += 1
        self.on_commit(step, commit_s)
        if not isinstance(step, RowsStep) or step.rows:
            self.changed_s = time.monotonic()
        if isinstance(step, LargeStep):
            self.transactions += 1
            self.commit_s = commit_s
        if isinstance(step, RowsStep) and step.rows:
            self.transactions += step.transactions
            self.rows += step.rows
            self.last_rows = step.rows
            self.commit_s = commit_s
            log.debug(
                "committed %d rows up to %d: generated in %.0f ms, committed in %.0f ms",
                step.rows, step.commit_ts, self.generate_s * 1e3, commit_s * 1e3,
            )  # fmt: skip

    def describe(self) -> dict[str, str]:
        return {
            "schema_version": str(self.checkpoint.schema_version),
            "downstream_waits_for": self.waits_for() or "nothing",
            "ddl_waits_for": self.ddl_waits_for() or "nothing",
            **self._collations(),
            "steps": str(self.steps),
            "transactions": str(self.transactions),
            "rows": str(self.rows),
            "missed_rows": str(self.missed_rows),
            "repeated_transactions": str(self.repeated),
            "last_batch": f"{self.last_rows} rows, generated in {self.generate_s * 1e3:.0f} ms, "
            f"committed in {self.commit_s * 1e3:.0f} ms",
            **self.left_out.describe(),
        }

    def _collations(self) -> dict[str, str]:
        pairs = [f"{there} for {name}" for name, there in sorted(self.stand_ins().items())]
        return {"downstream_collations": ", ".join(pairs)} if pairs else {}
