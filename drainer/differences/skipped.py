"""Skipped changes: exact counts, by cause and table, of changes that do not go downstream.

    kind          counts one for each
    rows          row change that ends here
    values        row change that goes downstream without the value of one column
    converted     row change whose value of one column goes into one of another definition
    ddls          DDL that is tracked and not run, or not run unchanged
    transactions  transaction that is skipped whole; its rows are also counted, if known

    cause                  reason for skipping
    override               `penstock drainer ddl`
    filter                 a filter
    ignore-txn-commit-ts   the setting of this name
    dropped-table          the table was dropped before the row came
    sync-ddl               the setting of this name
    loop-back              the transaction came from here, and is there already
    upstream-only          the DDL is about a TiDB's own: placement, locks, caches, TiFlash

A step carries its counts, which become part of the totals in the transaction that commits it: the
totals are in the checkpoint. A crash therefore neither loses nor repeats a count, and a downstream
that is reset has the totals that were true for it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from drainer.facts import SkippedCount, SkippedFacts

log = logging.getLogger(__name__)

ROWS, VALUES, CONVERTED = "rows", "values", "converted"
DDLS, TRANSACTIONS = "ddls", "transactions"
KINDS = (ROWS, VALUES, CONVERTED, DDLS, TRANSACTIONS)

OVERRIDE, FILTER, IGNORED = "override", "filter", "ignore-txn-commit-ts"
DROPPED, SYNC_DDL, LOOP_BACK = "dropped-table", "sync-ddl", "loop-back"
UPSTREAM_ONLY = "upstream-only"

NAMED_MAX = 200
"""The number of tables or columns counted separately per kind and cause; the rest is one count."""
OTHERS = "(others)"

_SENTENCES = {
    ROWS: "rows of %s do not go downstream (%s)",
    VALUES: "the values of column %s do not go downstream (%s)",
    CONVERTED: "the values of column %s go into a column of another definition downstream (%s)",
    DDLS: "DDL of %s does not run downstream (%s)",
    TRANSACTIONS: "whole transactions do not go downstream%s (%s)",
}
_QUIET = (FILTER, LOOP_BACK, SYNC_DDL)


class Skipped(NamedTuple):
    """One counted category; `table` is schema.table, and may be empty, as may `column`."""

    kind: str
    cause: str
    table: str = ""
    column: str = ""

    @property
    def name(self) -> str:
        return f"{self.table}.{self.column}" if self.column else self.table


Counts = Counter[Skipped]
Totals = Mapping[Skipped, int]


class SkippedTotals:
    """The totals up to the checkpoint."""

    def __init__(self, totals: Totals) -> None:
        self._totals: Totals = dict(totals)
        self._logged: set[Skipped] = set()

    @property
    def totals(self) -> Totals:
        return self._totals

    def after(self, counts: Counts) -> Totals:
        """Return the totals after a step with these counts; log each new entry once."""
        if not counts:
            return self._totals
        made = dict(self._totals)
        named = Counter((each.kind, each.cause) for each in made)
        for each, count in counts.items():
            self._log_once(each)
            if each not in made:
                if named[each.kind, each.cause] >= NAMED_MAX:
                    each = Skipped(each.kind, each.cause, OTHERS)
                named[each.kind, each.cause] += 1
            made[each] = made.get(each, 0) + count
        return made

    def reached(self, totals: Totals) -> None:
        """Adopt the totals that `after` returned: the step is downstream."""
        self._totals = totals

    def total(self, kind: str, *causes: str) -> int:
        return total(self._totals, kind, *causes)

    def facts(self) -> SkippedFacts:
        return SkippedFacts(
            rows_left_out=self.total(ROWS),
            values_left_out=self.total(VALUES),
            ddls_left_out=self.total(DDLS),
            transactions_returned=self.total(TRANSACTIONS, LOOP_BACK),
            left_out="; ".join(lines(self._totals)) or "nothing",
            left_out_counts=tuple(
                SkippedCount(kind=each.kind, cause=each.cause, name=each.name, count=count)
                for each, count in _in_order(self._totals)
            ),
        )

    def _log_once(self, each: Skipped) -> None:
        if each in self._logged or len(self._logged) > NAMED_MAX * len(KINDS):
            return
        self._logged.add(each)
        level = logging.INFO if each.cause in _QUIET else logging.WARNING
        log.log(level, _SENTENCES[each.kind] + "; they are counted", each.name, each.cause)


def total(totals: Totals, kind: str, *causes: str) -> int:
    wanted = (n for each, n in totals.items() if each.kind == kind)
    if causes:
        wanted = (n for e, n in totals.items() if e.kind == kind and e.cause in causes)
    return sum(wanted)


def lines(totals: Totals) -> list[str]:
    return [
        f"{each.cause}: {count} {each.kind}{' of ' + each.name if each.name else ''}"
        for each, count in _in_order(totals)
    ]


def _in_order(totals: Totals) -> list[tuple[Skipped, int]]:
    return sorted(totals.items(), key=lambda item: (KINDS.index(item[0].kind), item[0]))


def to_lists(totals: Totals) -> list[list[str | int]]:
    return [[*each, count] for each, count in sorted(totals.items())]


def from_lists(lists: Iterable[Iterable[object]]) -> dict[Skipped, int]:
    """Parse the lists of `to_lists`; raise ValueError for anything else."""
    found: dict[Skipped, int] = {}
    for entry in lists:
        *names, count = entry
        known = len(names) == 4 and names[0] in KINDS and all(isinstance(n, str) for n in names)
        if not known or isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(f"{entry!r} is no count")
        found[Skipped(*map(str, names))] = count
    return found
