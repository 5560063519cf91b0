"""The context of a source's run: its objects and its counters.

The syncer writes the counters, and the pages read them, without locks.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pumpclient.client import PumpClient
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.journal import Journal
from pumpclient.mysql.load.loader import LoadProgress
from pumpclient.mysql.load.state import LoadState
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.ddl.cascades import FollowedKeys
from pumpclient.mysql.source.ddl.execution import Statements
from pumpclient.mysql.source.ddl.table_mapping import Tables
from pumpclient.mysql.source.state.checkpoint import Checkpoint, FollowFile, SourceStore
from pumpclient.mysql.source.state.skipped import SkippedTable


@dataclass(slots=True)
class SourceCounters:
    """Counts since the start of the process; places are the latest."""

    state: str = "starting"
    """starting, loading, syncing, paused, failed, stopped."""
    problem: str = ""
    hint: str = ""
    code: str = ""
    """The code of the problem, as shown to people."""
    statement_place: str = ""
    """The place of the statement that is being executed, or that failed."""
    overrides: tuple[str, ...] = ()
    """The operator's choices for the problem, with the consequences, the safest first."""
    rulings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: tuple[SkippedTable, ...] = ()
    """Tables that are skipped, and how much of any table was, as far as the stream was read."""
    load: LoadProgress | None = None
    """The progress of the load that runs."""
    loaded: Mapping[str, Any] = field(default_factory=dict)
    """The result of the initial load, or of a reload of all tables; empty without one."""
    read_location: Location | None = None
    read_bytes: int = 0
    seen_s: int = 0
    idle: bool = False
    checkpoint: Checkpoint | None = None
    """Everything up to it is committed; the stored checkpoint may be older."""
    stored: Checkpoint | None = None
    """Where another process would continue: the relay log after this place must stay."""
    transactions: int = 0
    groups: int = 0
    ddl: int = 0
    runs: int = 0
    history_rows: int = 0
    """Skipped rows of system-versioned tables, which are historical."""
    _rate_from: tuple[float, int] = field(default_factory=lambda: (time.monotonic(), 0))
    rate: float = 0.0
    """Transactions per second, averaged over the last second or more."""

    def read(self, location: Location, size: int) -> None:
        self.read_location = location
        self.read_bytes += size

    def history(self, count: int) -> None:
        self.history_rows += count

    def committed(self, checkpoint: Checkpoint, count: int) -> None:
        self.checkpoint = checkpoint
        self.transactions += count
        self.groups += count > 0
        now_s = time.monotonic()
        begin_s, begin = self._rate_from
        if now_s - begin_s >= 1:
            self.rate = (self.transactions - begin) / (now_s - begin_s)
            self._rate_from = now_s, self.transactions

    def behind_s(self, relay_behind_s: float) -> float:
        """Return the seconds behind the server; 0 when all its changes are committed."""
        if self.idle:
            return relay_behind_s
        return max(0.0, time.time() - self.seen_s) if self.seen_s else relay_behind_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncContext:
    """The objects that a run works with; all of them outlive the run."""

    client: PumpClient
    store: SourceStore | FollowFile
    journal: Journal
    tables: Tables
    statements: Statements
    counters: SourceCounters
    source_id: str
    flavor: Flavor
    load: LoadState | None = None
    keys: FollowedKeys | None = None
    """The foreign keys whose changes are noted; None: no notes are made."""
    cancel_reload: Callable[[Sequence[Name]], None] = lambda names: None
    """Ends the reload of any of these tables, because a statement moves it."""
