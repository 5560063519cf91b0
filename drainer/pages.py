"""Pages: serve a Drainer's status and metrics, at TiDB-Binlog's paths and with its fields.

`self` on /status is ours, typed and in snake_case. A request that cannot be served gets the
matching HTTP status, and TiDB-Binlog's code in the body.

Metrics are computed on request. `binlog_drainer_…` are TiDB-Binlog's names; `penstock_drainer_…`
are additional metrics. guide/when_it_stops.md lists the metrics of TiDB-Binlog that are omitted,
and why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector

from drainer.apply.pipeline import Progress
from drainer.ddl.tidb_servers import Unlogged
from drainer.differences import CONVERTED, DDLS, ROWS, TRANSACTIONS, VALUES, Totals
from drainer.intake.merge_holder import Condition
from drainer.intake.pump_set import Pumps
from drainer.sinks.protocol import FileCounts
from penstock.cluster.node_registry import NodeState
from penstock.errors import NeedsOperator, coded
from penstock.node.http_status import JSON, Answer, HttpStatus
from penstock.node.metrics import Distribution, Labels, build_info, histogram
from penstock.node.output import facts_in
from penstock.ts import physical_ms
from penstock.wire.binlog import MutationType

if TYPE_CHECKING:
    from penstock.pb import penstock_pb2

ORIGINAL = "binlog_drainer"

_EVENTS = {
    MutationType.INSERT: "Insert",
    MutationType.UPDATE: "Update",
    MutationType.DELETE: "Delete",
}

_SKIPPED = {
    ROWS: ("Row changes that were not applied downstream.", "cause", "table"),
    VALUES: ("Row changes applied without the value of a column.", "cause", "table", "column"),
    CONVERTED: ("Row changes into a different column definition.", "cause", "table", "column"),
    DDLS: ("DDL that was not run downstream, or not unchanged.", "cause", "table"),
    TRANSACTIONS: ("Transactions that were skipped completely.", "cause"),
}


def pump_metrics(pumps: Pumps) -> Iterator[Metric]:
    views, held = pumps.views(), pumps.held()
    yield _gauge("low_water", "Watermark of the merge, in ms.", physical_ms(held.watermark))
    yield _gauge("low_water_held_seconds", "Time since the watermark last advanced.", held.for_s)
    yield _gauge(
        "late_transactions_left_out",
        "Transactions of ignore-txn-commit-ts that arrived too late for the merge.",
        pumps.late,
    )
    condition = GaugeMetricFamily(
        f"{OWN}_pump_condition", "1 for a stream's condition.", labels=["nodeID", "condition"]
    )
    by_pump = {
        name: GaugeMetricFamily(f"{OWN}_pump_{name}", about, labels=["nodeID"])
        for name, about in (
            ("lag_seconds", "Lag of a Pump's stream behind the present."),
            ("holds_low_water", "1 if this Pump blocks the merge."),
            ("received_ts", "Up to where a Pump's stream arrived, in ms; a lost Pump's end."),
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


def skipped_metrics(totals: Totals) -> Iterator[Metric]:
    for kind, (about, *labels) in _SKIPPED.items():
        name = f"{OWN}_{kind}{'' if kind == CONVERTED else '_left_out'}"
        family = CounterMetricFamily(name, about, labels=labels)
        for each, count in sorted(totals.items()):
            if each.kind == kind:
                family.add_metric([getattr(each, label) for label in labels], float(count))
        yield family


def original_metrics(pumps: Pumps, progress: Progress) -> Iterator[Metric]:
    counters = pumps.counters
    yield _counts("ddl_jobs_total", "DDL jobs that were run or tracked.", {(): counters.ddl})
    yield _counts("error_count", "Streams of Pumps that broke.", _labelled(counters.errors), "type")
    events = {name: progress.kinds[kind] for kind, name in _EVENTS.items()}
    events |= {"DDL": counters.ddl, "savepoint": counters.savepoints}
    about = "Row changes, DDL and saved checkpoints."
    yield _counts("event", about, _labelled(events), "type")
    about = "Lag of the checkpoint behind the present when it was saved."
    yield histogram(
        f"{ORIGINAL}_checkpoint_delay_seconds", about, {(): counters.checkpoint_delay_s}
    )
    about = "Time of a batch or a DDL downstream, including the commit."
    yield histogram(f"{ORIGINAL}_execute_duration_time", about, {(): counters.execute_s})
    about = "Time from the commit_ts to the arrival at the Drainer."
    reach: dict[Labels, Distribution] = {(pump,): each for pump, each in counters.reach_s.items()}
    yield histogram(f"{ORIGINAL}_binlog_reach_duration_time", about, reach, "nodeID")
    sizes: dict[Labels, Distribution] = {
        (pump,): each for pump, each in counters.binlog_bytes.items()
    }
    yield histogram(f"{ORIGINAL}_read_binlog_size", "Size of a binlog in bytes.", sizes, "nodeID")
    about = "Binlogs that are queued for the merge."
    queue = GaugeMetricFamily(f"{ORIGINAL}_queue_size", about, labels=["name"])
    queue.add_metric(["syncer_input"], float(pumps.binlogs_waiting))
    yield queue


def file_metrics(counts: FileCounts) -> Iterator[Metric]:
    for name, about, count in (
        ("commits", "Commits of changes to Delta tables or to files.", counts.commits),
        ("rows", "Rows written to Delta tables, including rewrites by a merge.", counts.rows),
        ("files_added", "Files created, or added to Delta tables.", counts.files_added),
        ("bytes_added", "Bytes appended to files, or added to Delta tables.", counts.bytes_added),
        ("files_removed", "Files expired, or removed from Delta tables.", counts.files_removed),
        (
            "bytes_removed",
            "Bytes of expired or removed files, and bytes saved by compression.",
            counts.bytes_removed,
        ),
        ("compactions", "Compacted Delta tables, and compressed files.", counts.compactions),
    ):
        yield _counter(f"output_{name}", about, count)
    about = "Unix time of the last commit of changes to Delta tables or files; 0 before it."
    yield _gauge("output_last_commit_timestamp_seconds", about, counts.last_commit_s)


def _labelled(counts: Mapping[str, int]) -> dict[Labels, float]:
    return {(name,): float(count) for name, count in counts.items()}


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{OWN}_{name}", about, value=float(value))


def _counter(name: str, about: str, count: int) -> Metric:
    return CounterMetricFamily(f"{OWN}_{name}", about, value=float(count))


def _counts(name: str, about: str, values: Mapping[Labels, float], *labels: str) -> Metric:
    """Return a TiDB-Binlog counter, without the suffix that the library would add."""
    family = UnknownMetricFamily(f"{ORIGINAL}_{name}", about, labels=labels)
    for labelled, value in values.items():
        family.add_metric(labelled, float(value))
    return family


_OK, _WRONG = 200, 3
_SYNCED_BELOW_S = 1.0
OWN = "penstock_drainer"


@dataclass(frozen=True, kw_only=True, eq=False)
class Pages(Collector):
    """The pages' data, and the metrics; `end` pauses a node by its id or takes it offline."""

    status: Callable[[], penstock_pb2.StatusReply]
    progress: Callable[[], Progress]
    pumps: Pumps
    lag_s: Callable[[], float]
    synced_check_s: float
    end: Callable[[str, NodeState], None]
    spark_waits_for: Callable[[], str]
    unlogged: Unlogged | None = None

    def problem(self) -> str:
        """Return why the stream does not reach the downstream now; empty if it does."""
        own, progress = self.status(), self.progress()
        held = self.pumps.facts().held_by if self.pumps.is_held else None
        if own.state != NodeState.ONLINE:
            return f"this Drainer is {own.state}"
        for waits, why in (
            ("etcd does not answer", "" if self.pumps.is_fresh else "the merge waits"),
            ("the downstream takes no changes", progress.waits_for()),
            ("a DDL waits for its job", progress.ddl_waits_for()),
            ("Spark applies nothing", self.spark_waits_for()),
            ("the merge waits for Pumps", held),
        ):
            if why:
                return f"{waits}: {why}"
        return ""

    def add_to(self, server: HttpStatus) -> None:
        server.problem = self.problem
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        for process in (ProcessCollector, PlatformCollector):
            process(registry=registry)

        async def metrics(names: Mapping[str, str]) -> Answer:
            return Answer(generate_latest(registry), CONTENT_TYPE_LATEST)

        server.add("GET", "/status", self.status_page, "checkpoint, Pumps, and all it knows")
        server.add("GET", "/commit_ts", self.commit_ts, "the checkpoint")
        server.add("GET", "/metrics", metrics, "for Prometheus")
        about = "pause or close this Drainer, as penstock ctl does"
        server.add("PUT", "/state/{node_id}/{action}", self.change_state, about)

    async def status_page(self, names: Mapping[str, str]) -> Answer:
        own = self.status()
        quiet_s = time.monotonic() - self.progress().changed_s
        page = {
            "PumpPos": dict(self.pumps.positions()),
            # The downstream has everything and has been idle for a while.
            "Synced": quiet_s >= self.synced_check_s and self.lag_s() < _SYNCED_BELOW_S,
            "LastTS": own.max_commit_ts,
            "TsMap": "",
            "LeftOut": [
                {**each._asdict(), "count": count}
                for each, count in sorted(self.progress().skipped.totals.items())
            ],
            "self": facts_in(own),
        }
        return _json(page)

    async def commit_ts(self, names: Mapping[str, str]) -> Answer:
        return _message("get commit_ts success!", _OK, {"ts": self.progress().checkpoint.commit_ts})

    async def change_state(self, names: Mapping[str, str]) -> Answer:
        action, asked = names["action"], names["node_id"]
        goal = {"pause": NodeState.PAUSED, "close": NodeState.OFFLINE}.get(action)
        if goal is None:
            about = f"invalid action {action}: there are pause and close"
            return _message(about, _WRONG, status=HTTPStatus.BAD_REQUEST)
        try:
            self.end(asked, goal)
        except NeedsOperator as error:
            is_ours = asked == self.status().node_id
            status = HTTPStatus.CONFLICT if is_ours else HTTPStatus.NOT_FOUND
            return _message(coded(error), _WRONG, status=status)
        return _message(f"apply action {action} success!", _OK)

    def collect(self) -> Iterator[Metric]:
        yield build_info()
        progress, own = self.progress(), self.status()
        checkpoint_ms = float(physical_ms(progress.checkpoint.commit_ts))
        about = "The checkpoint in ms."
        yield GaugeMetricFamily("binlog_drainer_checkpoint_tso", about, value=checkpoint_ms)
        about = "Timestamp up to which each Pump's stream arrived, in ms."
        positions = GaugeMetricFamily("binlog_drainer_pump_position", about, labels=["nodeID"])
        for node_id, ts in sorted(self.pumps.positions().items()):
            positions.add_metric([node_id], float(physical_ms(ts)))
        yield positions
        state = GaugeMetricFamily(f"{OWN}_state", "1 for the current state.", labels=["state"])
        for each in NodeState:
            state.add_metric([each.value], float(own.state == each))
        yield state
        yield from pump_metrics(self.pumps)
        yield from original_metrics(self.pumps, progress)
        yield from skipped_metrics(progress.skipped.totals)
        yield from file_metrics(progress.file_counts)
        servers, tables = (0, 0)
        if self.unlogged:
            servers, tables = len(self.unlogged.servers), len(self.unlogged.expiring)
        about = "TiDB servers that do not write binlogs."
        yield _gauge("tidb_servers_without_binlog", about, servers)
        about = "Tables whose expired rows TiDB deletes without a binlog."
        yield _gauge("tidb_tables_with_ttl", about, tables)
        lag_s = self.lag_s()
        about = "Lag of the downstream behind the present."
        yield GaugeMetricFamily(f"{OWN}_lag_seconds", about, value=lag_s)
        for name, about, count in (
            ("steps", "Batches and DDL committed downstream.", progress.steps),
            ("transactions", "Transactions committed downstream.", progress.transactions),
            ("rows", "Rows committed downstream.", progress.rows),
            ("missed_rows", "Updated or deleted rows not found downstream.", progress.missed_rows),
            (
                "messages",
                "Messages generated for files or topics; for a change log, blocks of changes.",
                progress.messages,
            ),
            ("message_bytes", "Size of generated messages in bytes.", progress.message_bytes),
            (
                "repeated",
                "Transactions passed on again by a source, and skipped.",
                progress.repeated,
            ),
        ):
            yield _counter(name, about, count)
        for name, took_s in (("generate", progress.generate_s), ("commit", progress.commit_s)):
            about = f"Time that the last batch took to {name}."
            yield GaugeMetricFamily(f"{OWN}_last_batch_{name}_seconds", about, value=took_s)
        about = "Time that each partition of the last batch took to commit, in mode parallel."
        name = f"{OWN}_last_batch_partition_seconds"
        partitions = GaugeMetricFamily(name, about, labels=["partition"])
        for part, took_s in enumerate(progress.partitions_s):
            partitions.add_metric([str(part)], took_s)
        yield partitions


def _message(
    message: str, code: int, data: Any = None, *, status: HTTPStatus = HTTPStatus.OK
) -> Answer:
    return _json({"message": message, "code": code, "data": data}, status)


def _json(page: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(json.dumps(page, indent=2, ensure_ascii=False) + "\n", JSON, status)
