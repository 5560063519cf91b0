"""The judge: holds what is downstream against what the writers were answered.

Pure: a history and what was read go in, sentences about what is wrong come out, none if all is
well. `entry` says which transactions are downstream; everything else follows from them, replayed
in the order of `commit_ts`.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

from tests.chaos.history import (
    ACCOUNTS,
    CAPITAL,
    COLUMNS,
    ENTRIES,
    History,
    Outcome,
    Place,
    Tables,
    Transaction,
    table_of,
)

_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one consistent read of the downstream saw, and up to where it said to be."""

    commit_ts: int
    total: int
    sums: Mapping[str, tuple[int, int]]
    """Of each table the number of rows and the sum of their checksums."""


@dataclass(slots=True)
class Final:
    """All tables downstream at the end; rows by the names of their columns."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def entries(self) -> Counter[Place]:
        return Counter((row["owner"], row["number"]) for row in self.rows.get(ENTRIES, []))


def judge(history: History, snapshots: Sequence[Snapshot], final: Final) -> list[str]:
    """Return everything that is wrong; an empty list is the verdict that all is well."""
    there = final.entries()
    problems = [*_answers(history, there), *_ddl(history), *_order(snapshots)]
    present = [each for place, each in history.transactions.items() if there[place]]
    undecided = [each.place for each in present if not each.commit_ts]
    problems += _several("is downstream and was never given a commit_ts", undecided)
    tables, wrong = _replayed(history, [t for t in present if t.commit_ts], snapshots)
    return [*problems, *wrong, *_ends(tables, final)]


def until(history: History, snapshots: Sequence[Snapshot], final: Final) -> list[str]:
    """Return what is wrong in a run that broke off, up to the checkpoint of the last snapshot.

    What comes after that may be there or not: DDL too, so tables that are not settled by then are
    compared by their own columns only, or not at all.
    """
    there, last_ts = final.entries(), snapshots[-1].commit_ts
    before = History(
        {place: each for place, each in history.transactions.items()
         if there[place] or each.outcome is Outcome.REFUSED or 0 < each.commit_ts <= last_ts},
        {query: each for query, each in history.ddl.items() if 0 < each.commit_ts <= last_ts},
    )  # fmt: skip
    present = [each for place, each in before.transactions.items() if there[place]]
    tables, wrong = _replayed(before, [t for t in present if t.commit_ts <= last_ts], snapshots)
    ends = _ends(tables, final, unsettled(history, last_ts))
    return [*_answers(before, there), *_order(snapshots), *wrong, *ends]


def unsettled(history: History, last_ts: int) -> frozenset[str]:
    """Return the tables with DDL after a moment, or of which nobody knows when it was."""
    ddl = history.ddl.values()
    return frozenset(table_of(d.query) for d in ddl if not 0 < d.commit_ts <= last_ts)


def _several(what: str, places: Sequence[object]) -> Iterator[str]:
    """One sentence for many of a kind."""
    if places:
        shown = ", ".join(map(str, islice(places, _SHOWN_MAX)))
        yield f"{len(places)} × {what}: {shown}{', …' if len(places) > _SHOWN_MAX else ''}"


def _answers(history: History, there: Counter[Place]) -> Iterator[str]:
    """Each acknowledged one once, none that was refused, none that nobody wrote."""
    known = history.transactions
    outcomes = {place: each.outcome for place, each in known.items()}
    acknowledged = [p for p, outcome in outcomes.items() if outcome is Outcome.ACKNOWLEDGED]
    yield from _several(
        "acknowledged and not downstream", [p for p in acknowledged if p not in there]
    )
    refused = [p for p in there if outcomes.get(p) is Outcome.REFUSED]
    yield from _several("refused and yet downstream", refused)
    yield from _several("downstream and never written", [p for p in there if p not in known])
    yield from _several("downstream more than once", [p for p, count in there.items() if count > 1])
    stamps = Counter(each.commit_ts for each in known.values() if each.commit_ts)
    yield from _several("commit_ts given twice", [ts for ts, count in stamps.items() if count > 1])


def _ddl(history: History) -> Iterator[str]:
    lost = [
        d.query
        for d in history.ddl.values()
        if d.outcome is Outcome.ACKNOWLEDGED and not d.commit_ts
    ]
    yield from _several("DDL acknowledged and not in the cluster's history", lost)
    refused = [
        d.query for d in history.ddl.values() if d.outcome is Outcome.REFUSED and d.commit_ts
    ]
    yield from _several("DDL refused and yet in the cluster's history", refused)


def _order(snapshots: Sequence[Snapshot]) -> Iterator[str]:
    back = [
        f"{a.commit_ts} to {b.commit_ts}"
        for a, b in pairwise(snapshots)
        if b.commit_ts < a.commit_ts
    ]
    yield from _several("checkpoint went back", back)


def _replayed(
    history: History, present: list[Transaction], snapshots: Sequence[Snapshot]
) -> tuple[Tables, list[str]]:
    """Replay what is there, compare each snapshot on the way, and return the end."""
    tables = Tables()
    steps: list[tuple[int, Transaction | str]] = [(t.commit_ts, t) for t in present]
    steps += [(d.commit_ts, d.query) for d in history.ddl.values() if d.commit_ts]
    steps.sort(key=lambda step: step[0])
    wrong: list[str] = []
    at = 0
    for snapshot in sorted(snapshots, key=lambda s: s.commit_ts):
        while at < len(steps) and steps[at][0] <= snapshot.commit_ts:
            _step(tables, steps[at][1])
            at += 1
        wrong += _differences(tables, snapshot)
    for _, step in steps[at:]:
        _step(tables, step)
    return tables, [*tables.problems[:_SHOWN_MAX], *_several("snapshot that never was", wrong)]


def _step(tables: Tables, step: Transaction | str) -> None:
    if isinstance(step, str):
        tables.alter(step)
    else:
        tables.apply(step)


def _differences(tables: Tables, snapshot: Snapshot) -> Iterator[str]:
    """At most one sentence about a snapshot that is not what the replay is at its moment."""
    if snapshot.total != tables.total or snapshot.total not in (0, CAPITAL):
        yield f"at {snapshot.commit_ts} a total of {snapshot.total}, not {tables.total}"
        return
    for table, (count, checksum) in tables.sums.items():
        if snapshot.sums[table] != (count, checksum):
            rows = snapshot.sums[table][0]
            yield f"at {snapshot.commit_ts} {table} with {rows} rows, not the {count} of then"
            return


def _ends(tables: Tables, final: Final, unsettled: Container[str] = frozenset()) -> Iterator[str]:
    """Compare all tables with the replay, row by row."""
    odd = sorted(t for t in tables.rows.keys() ^ final.rows.keys() if t not in unsettled)
    if odd:
        yield f"tables {odd} are on one side only"
    for table in tables.rows.keys() & final.rows.keys():
        if table not in unsettled:
            yield from _end(table, tables, final.rows[table])
        elif table in COLUMNS:
            own = [{name: row[name] for name in COLUMNS[table]} for row in final.rows[table]]
            yield from _end(table, tables, own, is_settled=False)
    money = sum(int(row["balance"]) for table in ACCOUNTS for row in final.rows.get(table, []))
    if money != CAPITAL:
        yield f"the bank has {money} at the end, not {CAPITAL}"


def _end(
    table: str, tables: Tables, rows: list[dict[str, Any]], *, is_settled: bool = True
) -> Iterator[str]:
    expected = tables.rows[table]
    added = tables.added.get(table, {}) if is_settled else {}
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        found[tuple(value for name, value in row.items() if name not in added)] += 1
        if any(row.get(name) != value for name, value in added.items()):
            yield f"{table}: {row} lacks the defaults {added}"
            break
    yield from _several(f"row missing in {table}", list((expected - found).elements()))
    yield from _several(f"row too many in {table}", list((found - expected).elements()))
