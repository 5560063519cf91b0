"""The context of a source's run, and its bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pumpclient.client import PumpClient
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.journal import Journal
from pumpclient.mysql.load.state import Floors
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.ddl.execution import Statements
from pumpclient.mysql.source.ddl.table_mapping import Tables
from pumpclient.mysql.source.state.checkpoint import CheckpointStore
from pumpclient.mysql.source.state.counters import SourceCounters


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    """Bounds of groups, and how often the checkpoint is stored."""

    group_count_max: int = 512
    group_bytes_max: int = 4 << 20
    checkpoint_interval_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncContext:
    """The objects that a run works with; all of them outlive the run."""

    client: PumpClient
    store: CheckpointStore
    journal: Journal
    tables: Tables
    statements: Statements
    counters: SourceCounters
    source_id: str
    flavor: Flavor
    floors: Floors = field(default_factory=Floors)
    cancel_reload: Callable[[Sequence[Name]], None] = lambda names: None
    """Ends the reload of any of these tables, because a statement moves it."""
