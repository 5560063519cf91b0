"""A Drainer's metrics about Pumps, stalls and the original's counts; computed when somebody asks.

`binlog_drainer_…` are the original's names, `penstock_drainer_…` what else a person needs. What of
the original's list is left out, and why, is in README.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    UnknownMetricFamily,
)

from drainer.differences.left_out import CONVERTED, DDLS, ROWS, TRANSACTIONS, VALUES, Totals
from drainer.intake.lag import Condition
from drainer.intake.pump_set import Pumps
from drainer.pipeline.progress import Progress
from penstock.node.histogram import Distribution
from penstock.node.metric_families import Labels, histogram
from penstock.ts import physical_ms
from penstock.wire.binlog import MutationType

ORIGINAL = "binlog_drainer"
OWN = "penstock_drainer"

_EVENTS = {
    MutationType.INSERT: "Insert",
    MutationType.UPDATE: "Update",
    MutationType.DELETE: "Delete",
}

_LEFT_OUT = {
    ROWS: ("Row changes that did not go downstream.", "cause", "table"),
    VALUES: ("Row changes without a column's value.", "cause", "table", "column"),
    CONVERTED: ("Row changes into another definition.", "cause", "table", "column"),
    DDLS: ("DDL that did not run downstream as it is.", "cause", "table"),
    TRANSACTIONS: ("Transactions that ended here whole.", "cause"),
}


def pump_metrics(pumps: Pumps) -> Iterator[Metric]:
    """Yield what tells who is late, who holds the merge, since when, and who is given up."""
    views, held = pumps.views(), pumps.held()
    yield _gauge(
        "low_water", "What every Pump was received up to, ms.", physical_ms(held.low_water)
    )
    yield _gauge("low_water_held_seconds", "How long it has stood there.", held.for_s)
    yield _gauge(
        "late_transactions_left_out",
        "Transactions in ignore-txn-commit-ts that came too late for the merge.",
        pumps.late,
    )
    condition = GaugeMetricFamily(
        f"{OWN}_pump_condition", "1 for what a stream is.", labels=["nodeID", "condition"]
    )
    by_pump = {
        name: GaugeMetricFamily(f"{OWN}_pump_{name}", about, labels=["nodeID"])
        for name, about in (
            ("lag_seconds", "How far a Pump's stream is behind the present."),
            ("holds_low_water", "1: everybody waits for this Pump."),
            ("received_ts", "Up to where a Pump was received, ms; for lost ones, at their end."),
        )
    }
    for view in views:
        for each in Condition:
            condition.add_metric([view.name, each.value], float(view.condition is each))
        by_pump["lag_seconds"].add_metric([view.name], view.lag_s)
        by_pump["holds_low_water"].add_metric([view.name], float(view.holds))
        by_pump["received_ts"].add_metric([view.name], float(physical_ms(view.received_ts)))
    yield condition
    yield from by_pump.values()


def left_out_metrics(totals: Totals) -> Iterator[Metric]:
    """Yield what did not go downstream, by cause and table, since the downstream began."""
    for kind, (about, *labels) in _LEFT_OUT.items():
        name = f"{OWN}_{kind}{'' if kind == CONVERTED else '_left_out'}"
        family = CounterMetricFamily(name, about, labels=labels)
        for each, count in sorted(totals.items()):
            if each.kind == kind:
                family.add_metric([getattr(each, label) for label in labels], float(count))
        yield family


def original_metrics(pumps: Pumps, progress: Progress) -> Iterator[Metric]:
    """Yield the original's counts and distributions, under its names."""
    figures = pumps.figures
    yield _counts("ddl_jobs_total", "DDL that were run or tracked.", {(): figures.ddl})
    yield _counts("error_count", "Streams of Pumps that broke.", _labelled(figures.errors), "type")
    events = {name: progress.kinds[kind] for kind, name in _EVENTS.items()}
    events |= {"DDL": figures.ddl, "savepoint": figures.savepoints}
    about = "Row changes, DDL, saved checkpoints."
    yield _counts("event", about, _labelled(events), "type")
    about = "How far the checkpoint was behind the present when it was saved."
    yield histogram(f"{ORIGINAL}_checkpoint_delay_seconds", about, {(): figures.checkpoint_delay_s})
    about = "What a batch or a DDL took downstream, with its commit."
    yield histogram(f"{ORIGINAL}_execute_duration_time", about, {(): figures.execute_s})
    about = "From the commit_ts to the arrival here."
    reach: dict[Labels, Distribution] = {(pump,): each for pump, each in figures.reach_s.items()}
    yield histogram(f"{ORIGINAL}_binlog_reach_duration_time", about, reach, "nodeID")
    sizes: dict[Labels, Distribution] = {
        (pump,): each for pump, each in figures.binlog_bytes.items()
    }
    yield histogram(f"{ORIGINAL}_read_binlog_size", "Bytes of a binlog.", sizes, "nodeID")
    about = "Binlogs that wait for the merge."
    queue = GaugeMetricFamily(f"{ORIGINAL}_queue_size", about, labels=["name"])
    queue.add_metric(["syncer_input"], float(pumps.binlogs_waiting))
    yield queue


def _labelled(counts: Mapping[str, int]) -> dict[Labels, float]:
    return {(name,): float(count) for name, count in counts.items()}


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{OWN}_{name}", about, value=float(value))


def _counts(name: str, about: str, values: Mapping[Labels, float], *labels: str) -> Metric:
    """Return a counter of the original, without the ending that the library would add."""
    family = UnknownMetricFamily(f"{ORIGINAL}_{name}", about, labels=labels)
    for told, value in values.items():
        family.add_metric(told, float(value))
    return family
