"""Facts of a Drainer: its status for operators and programs, see `penstock.node.output`."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import islice

from penstock.node.logs import Problem
from penstock.node.metrics import Distribution
from penstock.node.output import NO_TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedCount:
    """A number of skipped changes of one kind; `name` is a table, a database, or empty."""

    kind: str
    cause: str
    name: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFacts:
    """Totals of the changes that are not applied downstream."""

    rows_left_out: int
    values_left_out: int
    ddls_left_out: int
    transactions_returned: int
    left_out: str
    left_out_counts: tuple[SkippedCount, ...] = field(metadata=NO_TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCount:
    """The row changes of a table since it was last among those that are counted."""

    name: str
    rows: int


class TableCounts:
    """Row changes by table downstream, of the tables that changed last."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        """The table that changed last is at the end."""

    def note(self, name: str, rows: int) -> None:
        self._rows[name] = self._rows.pop(name, 0) + rows
        if len(self._rows) > TABLES_MAX:
            del self._rows[next(iter(self._rows))]

    def facts(self) -> tuple[TableCount, ...]:
        """Return the tables that changed last, the last one first."""
        found = islice(reversed(self._rows.items()), _TABLES_SHOWN_MAX)
        return tuple(TableCount(name=name, rows=rows) for name, rows in found)


TABLES_MAX = 1000
_TABLES_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressFacts:
    """The position and the totals of the pipeline."""

    schema_version: int
    downstream_waits_for: str
    ddl_waits_for: str
    downstream_collations: str | None
    steps: int
    transactions: int
    rows: int
    missed_rows: int
    repeated_transactions: int
    last_batch: str
    tables: tuple[TableCount, ...] = field(metadata=NO_TEXT)
    skipped: SkippedFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpAtMerge:
    """The state of a Pump's stream in front of the merge."""

    node_id: str
    summary: str
    state: str = field(metadata=NO_TEXT)
    condition: str
    why: str = field(metadata=NO_TEXT)
    holds_low_water: bool
    lag_s: float
    received_ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFacts:
    """The watermark, and the Pumps that block it once it has stood for too long."""

    low_water: int
    low_water_held_s: float
    held_by: str | None
    held_by_remedy: str | None
    late_transactions_left_out: int
    pumps: tuple[PumpAtMerge, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloggedFacts:
    """TiDB servers and tables whose changes reach no binlog."""

    tidb_servers_without_binlog: str
    tidb_tables_with_ttl: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainerFacts:
    """All that an active Drainer reports."""

    uptime_s: int
    status_pages: str
    writer: str
    downstream: str
    lag_s: float
    lag_clock: str
    spark_tasks: int
    spark_tasks_lost: int
    spark_waits_for: str
    progress: ProgressFacts
    merge: MergeFacts
    unlogged: UnloggedFacts | None
    problems: tuple[Problem, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyFacts:
    """All that a standby reports."""

    uptime_s: int
    status_pages: str
    standby_for: str
    standby_for_address: str
    waits_for: str
    spark_tasks: int
    spark_tasks_lost: int
    problems: tuple[Problem, ...] | None


DELAYS_S = tuple(0.001 * 2**n for n in range(22))
"""TiDB-Binlog's bounds of its checkpoint delay, 1 ms to 35 minutes."""
SECONDS = tuple(5e-5 * 2**n for n in range(18))
"""TiDB-Binlog's bounds of its execution time, 50 µs to 6.6 s."""
SIZES_BYTES = tuple(16.0 * 2**n for n in range(25))


class Counters:
    """All counters of one Drainer since it started, under TiDB-Binlog's headings.

    Sizes and delays are recorded once per message of a Pump, not per binlog. Sums and counts of
    sizes are exact, and each size is counted in the bucket of its message's mean. A message's delay
    is that of its last binlog.
    """

    def __init__(self) -> None:
        self.reach_s: defaultdict[str, Distribution] = defaultdict(lambda: Distribution(DELAYS_S))
        """Seconds from the commit_ts to the arrival here, by Pump."""
        self.binlog_bytes: defaultdict[str, Distribution] = defaultdict(
            lambda: Distribution(SIZES_BYTES)
        )
        self.checkpoint_delay_s = Distribution(DELAYS_S)
        self.execute_s = Distribution(SECONDS)
        """Seconds that a batch or a DDL took downstream."""
        self.errors: Counter[str] = Counter()
        self.ddl = 0
        self.savepoints = 0

    def arrived(self, pump: str, count: int, size_bytes: int, delay_s: float) -> None:
        self.reach_s[pump].note(delay_s)
        self.binlog_bytes[pump].note(size_bytes / count, count)

    def broke(self) -> None:
        self.errors["pull"] += 1

    def committed(
        self, commit_s: float, delay_s: float, *, is_ddl: bool, has_changes: bool
    ) -> None:
        self.checkpoint_delay_s.note(delay_s)
        self.savepoints += 1
        if is_ddl:
            self.ddl += 1
        if has_changes:
            self.execute_s.note(commit_s)
