"""Rows that were just fetched into SQL: what the Drainer does where payloads go through it.

Changes are read in commit order with the same filters, routes and marks. Where a table's version
changes within the batch, what is before and what is behind are compacted apart and follow one
another: the state between them is one that the upstream had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from drainer.differences.left_out import Counts
from drainer.task.compaction import plan_units
from drainer.task.fetch.unit import Facts, FetchUnit, Made
from drainer.task.gathering import Collector, Targets, ignored_counts, parse_merged, read_changes
from drainer.task.selection import Selection
from drainer.task.sql.generate import generate
from drainer.task.sql.keys import apply_key, can_meet_others
from drainer.task.work_unit import Batch, Statements, in_order
from penstock.wire.binlog import MutationType


def assembled(
    unit: FetchUnit, transactions: Iterable[tuple[int, bytes]], selection: Selection
) -> tuple[Made, Facts]:
    """Return the SQL of merged binlogs, given with their commit_ts in order, and what was seen.

    Raises `Malformed` and whatever looking up a table does.
    """
    targets = Targets(selection.lookup)
    collector, kinds, left_out = Collector(), Counter[int](), Counts()
    runs: list[Made] = []
    ignored = set(unit.ignored)
    for ts, payload in transactions:
        value = parse_merged(ts, payload).prewrite_value
        if ts in ignored:
            left_out += ignored_counts(value, targets.of)
            continue
        changes = read_changes(value, targets.of)
        if not collector.fits(changes):
            left_out += collector.left_out
            runs.append(_run(unit, collector, kinds))
            collector = Collector()
        collector.add(changes, len(payload))
    left_out += collector.left_out
    runs.append(_run(unit, collector, kinds))
    facts = Facts(rows=kinds.total(), kinds=dict(kinds), left_out=left_out)
    return _joined([run for run in runs if run]), facts


def _run(unit: FetchUnit, collector: Collector, kinds: Counter[int]) -> Made:
    """Compact what was collected and turn it into SQL."""
    tables = collector.tables()
    for table in tables:
        for kind in MutationType:
            kinds[kind] += table.kinds.count(kind)
    made: Made = []
    for work in plan_units(Batch(unit.batch_id, tables, unit.displaces), 1, unit.dialect):
        meets = apply_key(work.table) is not None and can_meet_others(work.table)
        made.append((meets, generate(work)))
    return made


def _joined(runs: list[Made]) -> Made:
    """Return one run's SQL as it is; that of several in one piece that keeps their order."""
    if len(runs) < 2:
        return runs[0] if runs else []
    ordered: list[bytes] = []
    for run in runs:
        ordered += in_order(made for _, made in run)
    return [(True, Statements(ordered=ordered))]
