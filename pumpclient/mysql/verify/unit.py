"""Compares tables chunk by chunk, and repairs what differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from penstock.errors import NeedsOperator
from pumpclient.mysql.load.chunks import INTEGER_TYPES, Range
from pumpclient.mysql.load.state import file_number
from pumpclient.mysql.load.tables import SourceTable, base_tables, chunks_of
from pumpclient.mysql.verify.sides import Downstream, MysqlSide
from pumpclient.mysql.verify.values import Column, Difference, Key, Rows, compared, reached, rows_of

_POLL_S = 0.2
Found = dict[Key, tuple[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """What to compare: patterns like `shop.*`; `source` is the name of the source in origins."""

    tables: tuple[str, ...] = ("*",)
    source: str = ""
    rows_per_chunk: int = 50_000
    rounds: int = 3
    wait_s: float = 10.0
    differences_max: int = 100
    repair: bool = False


@dataclass(slots=True)
class Report:
    """What was found. `differences` is bounded, `different` counts all."""

    tables: int = 0
    chunks: int = 0
    different: int = 0
    undecided: int = 0
    repaired: int = 0
    commit_ts: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """True when nothing differs, or no longer does."""
        return self.different == self.repaired and not self.undecided


class Verifier:
    """One comparison; for one thread."""

    def __init__(
        self,
        upstream: MysqlSide,
        downstream: Downstream,
        options: VerifyOptions,
        say: Callable[[str], None],
    ) -> None:
        self._up = upstream
        self._down = downstream
        self._options = options
        self._say = say
        self._report = Report()

    def run(self) -> Report:
        """Compare everything; raises `NeedsOperator` and `Retryable` when that cannot be done."""
        for table in base_tables(self._up.session):
            name = f"{table.schema}.{table.name}"
            if any(fnmatchcase(name, pattern) for pattern in self._options.tables):
                self._table(_fitting(table, self._down))
        if not self._report.tables:
            raise NeedsOperator(
                f"no table is called {', '.join(self._options.tables)}",
                hint="patterns are like shop.*",
            )
        return self._report

    def _table(self, table: SourceTable) -> None:
        report, name = self._report, f"{table.schema}.{table.name}"
        report.tables += 1
        columns = self._up.columns(table)
        self._down.refresh()
        there = {c.name.lower() for c in self._down.columns(table)}
        lacking = [c.name for c in columns if c.name.lower() not in there]
        if lacking:
            self._note(Difference(name, "no table" if not there else "no column", tuple(lacking)))
            return
        by_server = self._up.flavor is self._down.flavor and not any(
            c.type == "json" for c in columns
        )
        for range_ in self._chunks(table):
            report.chunks += 1
            if by_server:
                self._up.refresh()
                self._down.refresh()
                here = self._down.checksum(table, columns, range_)
                if here == self._up.checksum(table, columns, range_) and here[3] in (None, "0"):
                    report.commit_ts = self._down.position().commit_ts
                    continue
            self._by_rows(table, columns, range_)

    def _chunks(self, table: SourceTable) -> Iterator[Range]:
        yield from chunks_of(self._up.session, table, self._options.rows_per_chunk)

    def _by_rows(self, table: SourceTable, columns: tuple[Column, ...], range_: Range) -> None:
        found, undecided, rows = self._examined(table, columns, range_)
        self._report.undecided += undecided
        for key, (kind, names) in sorted(found.items(), key=lambda item: repr(item[0])):
            self._note(Difference(f"{table.schema}.{table.name}", kind, key, names))
        if found and self._options.repair:
            self._repair(table, columns, range_, found, rows)

    def _note(self, difference: Difference) -> None:
        self._report.different += 1
        if len(self._report.differences) < self._options.differences_max:
            self._report.differences.append(difference)

    def _examined(
        self, table: SourceTable, columns: tuple[Column, ...], range_: Range
    ) -> tuple[Found, int, Rows]:
        """Return what differs in every round, how much is undecided, and upstream's rows."""
        lasting: Found | None = None
        undecided = 0
        for _ in range(self._options.rounds):
            before = self._rows(self._up, table, columns, range_)
            self._wait()
            here = self._rows(self._down, table, columns, range_)
            self._report.commit_ts = self._down.position().commit_ts
            after = self._rows(self._up, table, columns, range_)
            found, undecided = compared(before, here, after)
            if lasting is not None:
                found = {key: what for key, what in found.items() if key in lasting}
            lasting = found
            if not found and not undecided:
                break
        return lasting or {}, undecided, after

    def _rows(
        self,
        side: MysqlSide | Downstream,
        table: SourceTable,
        columns: tuple[Column, ...],
        range_: Range,
    ) -> Rows:
        side.refresh()
        return rows_of(columns, table.key, side.rows(table, columns, range_))

    def _wait(self) -> None:
        """Wait until the downstream has what the upstream had; in vain where nobody can tell."""
        file, position = self._up.place()
        deadline_s = time.monotonic() + self._options.wait_s
        while True:
            self._down.refresh()
            origins = self._down.position().origins
            source = self._options.source or (next(iter(origins)) if len(origins) == 1 else "")
            if reached(origins, source, (file_number(file), position)):
                return
            if time.monotonic() > deadline_s:
                return
            time.sleep(_POLL_S)

    def _repair(
        self,
        table: SourceTable,
        columns: tuple[Column, ...],
        range_: Range,
        found: Found,
        rows: Rows,
    ) -> None:
        name = f"{table.schema}.{table.name}"
        if not table.key:
            self._say(f"{name} has no key that names its rows: not repaired")
            return
        order = [[c.name for c in columns].index(part) for part in table.key]
        by_position = sorted(order)
        gone = [
            tuple(key[by_position.index(n)] for n in order) for key in found if key not in rows.raw
        ]
        self._down.write(table, columns, gone, [rows.raw[k] for k in found if k in rows.raw])
        again, undecided, _ = self._examined(table, columns, range_)
        left = sum(key in again for key in found)
        self._report.repaired += len(found) - left
        self._say(f"{name}: {len(found) - left} of {len(found)} rows repaired")
        self._report.undecided += undecided


def _fitting(table: SourceTable, downstream: Downstream) -> SourceTable:
    """Return the table in one chunk where the downstream orders its key in another way."""
    if downstream.flavor is not None or set(table.key_types) <= INTEGER_TYPES - {"bigint"}:
        return table
    return replace(table, rows_estimated=0)
