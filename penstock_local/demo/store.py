"""The demo's upstream: rows in memory, row locks, and a ledger of the committed changes.

A real application has its own database. Here two threads must not change one row simultaneously,
and a schema change waits for running transactions, like a database's metadata lock. The ledger is
the reference for the downstream: `replayed` builds every table from it alone, in `commit_ts` order,
independently of Pumps and Drainers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

Row = tuple[object, ...]
Key = object
Tables = dict[str, dict[Key, Row]]

STRIPES = 256


@dataclass(frozen=True, slots=True)
class Change:
    """One row change; without `before` it is an insert, without `after` a delete."""

    table: str
    key_before: Key
    key_after: Key
    before: Row | None
    after: Row | None


@dataclass(slots=True)
class Ledger:
    """Everything committed, with its `commit_ts`; safe to use from several threads."""

    _entries: list[tuple[int, list[Change] | Callable[[Tables], None]]] = field(
        default_factory=list
    )

    def committed(self, commit_ts: int, changes: list[Change]) -> None:
        """Record a transaction; appending to a list is atomic."""
        self._entries.append((commit_ts, changes))

    def altered(self, commit_ts: int, effect: Callable[[Tables], None]) -> None:
        self._entries.append((commit_ts, effect))

    @property
    def last_commit_ts(self) -> int:
        """The largest `commit_ts` so far; 0 when nothing was committed."""
        return max((ts for ts, _ in self._entries), default=0)

    def replayed(self) -> Tables:
        """Return all tables as they are after everything in the ledger, in `commit_ts` order."""
        tables: Tables = {}
        for _, entry in sorted(self._entries, key=lambda e: e[0]):
            if callable(entry):
                entry(tables)
                continue
            for change in entry:
                apply(tables, change)
        return tables


def apply(tables: Tables, change: Change) -> None:
    """Apply one row change; a change that does not fit the rows is a bug in the demo."""
    rows = tables[change.table]
    if change.before is not None:
        assert rows.pop(change.key_before) == change.before, change
    if change.after is not None:
        assert change.key_after not in rows, change
        rows[change.key_after] = change.after


class Store:
    """The rows as the writers see them, with the locks that isolate the writers."""

    def __init__(self) -> None:
        self.tables: Tables = {}
        self.ledger = Ledger()
        self._stripes = [threading.Lock() for _ in range(STRIPES)]
        self._gate = threading.Condition()
        self._running = 0
        self._altering = False

    @contextmanager
    def transaction(self, locks: Iterable[tuple[str, Key]]) -> Iterator[None]:
        """Hold the rows' locks, taken in one fixed order, and block schema changes."""
        with self._gate:
            self._gate.wait_for(lambda: not self._altering)
            self._running += 1
        try:
            with ExitStack() as held:
                for stripe in sorted({hash(lock) % STRIPES for lock in locks}):
                    held.enter_context(self._stripes[stripe])
                yield
        finally:
            with self._gate:
                self._running -= 1
                self._gate.notify_all()

    @contextmanager
    def schema_change(self) -> Iterator[None]:
        """Wait for running transactions, and block new transactions until done."""
        with self._gate:
            self._altering = True
            self._gate.wait_for(lambda: self._running == 0)
        try:
            yield
        finally:
            with self._gate:
                self._altering = False
                self._gate.notify_all()

    def commit(self, commit_ts: int, changes: list[Change]) -> None:
        for change in changes:
            apply(self.tables, change)
        self.ledger.committed(commit_ts, changes)

    def alter(self, commit_ts: int, effect: Callable[[Tables], None]) -> None:
        effect(self.tables)
        self.ledger.altered(commit_ts, effect)
