"""Pages: serves TiDB-Binlog's HTTP paths and fields, and the metrics.

`self` on /status is ours, typed and in snake_case. `isAlive` means a fresh heartbeat, which nodes
do not write about themselves. An impossible request gets the fitting HTTP status, and
TiDB-Binlog's code in the body.

The metrics are computed at each scrape, from counters that the parts keep anyway. `binlog_pump_…`
are TiDB-Binlog's names, spelled for its dashboards and alerts; its gauges of timestamps hold
milliseconds. `penstock_pump_…` are further metrics for a person on call.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
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

from penstock.cluster.node_registry import NodeKind, NodeState, seems_live
from penstock.errors import NeedsOperator, PenstockError, coded
from penstock.node.http_status import JSON, Answer, BadRequest, HttpStatus
from penstock.node.metrics import Labels, build_info, histogram
from penstock.node.output import describe, facts_in
from penstock.ts import physical_ms, seconds_between
from penstock.wire.codec import decode_binlog

if TYPE_CHECKING:
    from penstock.cluster.node_registry import NodeStatus, Registry
    from penstock.node.metrics import Distribution
    from pump.facts import Components
    from pump.operator import Operator


_OK, _WRONG = 200, 3
"""TiDB-Binlog's codes, in the body."""


class Pages:
    """The content of one Pump's pages."""

    def __init__(self, registry: Registry, operator: Operator, components: Components) -> None:
        self._registry = registry
        self._operator = operator
        self._components = components
        self._metrics = PumpMetrics(components)

    def add_to(self, server: HttpStatus) -> None:
        add = server.add
        add("GET", "/status", self.status, "all Pumps as etcd knows them, and this one in detail")
        add("GET", "/drainers", self.drainers, "all Drainers as etcd knows them")
        add("GET", "/metrics", self.metrics, "for Prometheus")
        about = "the binlog at a commit_ts, or the Prewrite at a start_ts"
        add("GET", "/debug/binlog/{ts}", self.binlog, about, local_only=True)
        add("POST", "/debug/gc/trigger", self.trigger_gc, "purge now what may be purged")
        about = "pause or close this Pump, as penstock ctl pause-pump and offline-pump do"
        add("PUT", "/state/{node_id}/{action}", self.change_state, about)

    async def status(self, names: Mapping[str, str]) -> Answer:
        problem, pumps = "", []
        try:
            pumps = await asyncio.to_thread(self._registry.list, NodeKind.PUMP)
        except PenstockError as error:
            problem = coded(error)
        page = {
            "status": {pump.node_id: self._listed(pump) for pump in pumps},
            "CommitTS": self._components.now_ts(),
            "Checkpoint": {},
            "ErrMsg": problem,
            "self": facts_in(self._operator.status()),
        }
        return _json(page)

    def _listed(self, node: NodeStatus) -> Any:
        alive = seems_live(node, self._components.now_ts())
        return json.loads(replace(node, is_alive=alive).to_json())

    async def drainers(self, names: Mapping[str, str]) -> Answer:
        drainers = await asyncio.to_thread(self._registry.list, NodeKind.DRAINER)
        return _json([self._listed(drainer) for drainer in drainers])

    async def metrics(self, names: Mapping[str, str]) -> Answer:
        return Answer(await asyncio.to_thread(self._metrics.text), CONTENT_TYPE_LATEST)

    async def binlog(self, names: Mapping[str, str]) -> Answer:
        if not names["ts"].isdecimal() or len(names["ts"]) > 19 or int(names["ts"]) >> 63:
            raise BadRequest(HTTPStatus.BAD_REQUEST, f"{names['ts']!r} is not a timestamp")
        ts, storage = int(names["ts"]), self._components.storage
        parts = []
        for title, read in (("binlog in the stream", storage.get), ("Prewrite", storage.prewrite)):
            payload = await asyncio.to_thread(read, ts)
            if payload is not None:
                text = await asyncio.to_thread(lambda data: describe(decode_binlog(data)), payload)
                parts.append(f"{title}, {len(payload)} bytes\n{text}\n")
        chunk_list = await asyncio.to_thread(storage.stream.chunk_list, ts) if parts else None
        if chunk_list is not None:
            first, count = chunk_list.positions[0], len(chunk_list.positions)
            parts.append(
                f"The Prewrite has {chunk_list.size_bytes} bytes, in {count} chunks"
                f" from segment {first.segment}, offset {first.offset} on. Shown is only what comes"
                " before its row changes.\n"
            )
        if not parts:
            text = f"nothing at {ts}; purged up to {storage.purged_ts}"
            raise BadRequest(HTTPStatus.NOT_FOUND, text)
        return Answer("\n".join(parts))

    async def trigger_gc(self, names: Mapping[str, str]) -> Answer:
        """Purge and answer as TiDB-Binlog does, followed by a sentence about the result."""
        message = await self._operator.trigger_gc()
        word = "gc is working" if "under way" in message else "trigger gc success"
        return Answer(f"{word}\n{message}\n")

    async def change_state(self, names: Mapping[str, str]) -> Answer:
        action, asked = names["action"], names["node_id"]
        verbs = {"pause": self._operator.pause, "close": self._operator.close}
        if action not in verbs:
            about = f"invalid action {action}: there are pause and close"
            return _outcome(about, _WRONG, HTTPStatus.BAD_REQUEST)
        try:
            await verbs[action](asked)
        except NeedsOperator as error:
            is_ours = asked == self._operator.node_id
            status = HTTPStatus.CONFLICT if is_ours else HTTPStatus.NOT_FOUND
            return _outcome(coded(error), _WRONG, status)
        return _outcome(f"apply action {action} success!", _OK)


def _outcome(message: str, code: int, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return _json({"message": message, "code": code, "data": None}, status)


def _json(page: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(json.dumps(page, indent=2, ensure_ascii=False) + "\n", JSON, status)


TIDB = "binlog_pump"
OWN = "penstock_pump"

_STORED = {
    "max_commit_ts": "Timestamp up to which binlogs can be pulled.",
    "purged_ts": "Timestamp up to which binlogs are purged.",
    "unmatched": "Prewrites without a Commit or Rollback.",
    "segments": "Segment files of the log.",
    "log_bytes": "Size of all segments in bytes.",
    "available_bytes": "Free space on the volume in bytes.",
    "stop_write_at_available_bytes": "New transactions are rejected if no more than this is free.",
    "appended_records": "Records written since the start.",
    "appended_bytes": "Bytes written since the start.",
    "repeated_records": "Records that were already stored, since the start.",
    "refused_records": "Rejected records that contradict stored records, since the start.",
    "replayed_records": "Records that were read again at the start.",
    "purged_entries": "Index entries that purges removed since the start.",
}
"""Counters of a storage, exported as `storage_…`."""


class PumpMetrics(Collector):
    """All metrics of one Pump, and of its process."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        for process in (ProcessCollector, PlatformCollector, GCCollector):
            process(registry=self._registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format; takes some milliseconds."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield build_info()
        yield from self._state()
        yield from self._writing()
        yield from self._storage()
        yield from self._copies()
        yield from self._repairs()
        yield from self._transactions()
        yield from self._pulling()

    def _state(self) -> Iterator[Metric]:
        membership = self._components.membership
        state = GaugeMetricFamily(f"{OWN}_state", "1 for the current state.", labels=["state"])
        for each in NodeState:
            state.add_metric([each.value], float(membership.state is each))
        yield state
        engine = GaugeMetricFamily(
            f"{OWN}_server_engine", "1 for the engine that serves the port.", labels=["engine"]
        )
        engine.add_metric([self._components.config.server_engine], 1.0)
        yield engine
        if (front := self._components.front) is not None:
            yield _gauge("connections", "Open connections to the port.", front.connections)
            yield _gauge("calls", "Active calls.", front.calls)
        yield _gauge(
            "etcd_reachable", "0 while etcd cannot be reached.", not membership.etcd_is_away
        )
        oracle = self._components.oracle
        leads = oracle is not None and oracle.is_leader
        yield _gauge("leads_oracle", "1 while this Pump hands out the timestamps.", leads)
        ahead_s = oracle.clock_ahead_s if oracle is not None else 0.0
        help_text = "How far the oracle's clock is ahead of its timestamps."
        yield _gauge("oracle_clock_ahead_seconds", help_text, ahead_s)

    def _writing(self) -> Iterator[Metric]:
        counters, group_commit = self._components.counters, self._components.group_commit
        yield _gauge("queue_bytes", "Bytes of queued binlogs.", group_commit.queued_bytes)
        most = self._components.config.write_queue_bytes
        yield _gauge("queue_bytes_max", "Queue size above which writers are rejected.", most)
        yield _gauge(
            "appends_inline", "1 while the event loop appends.", group_commit.times.are_short
        )
        yield _counter("binlogs_written", "Binlogs made durable.", group_commit.records_written)
        yield _counter(
            "groups_written", "Groups, each with one write and sync.", group_commit.groups_written
        )
        refused = CounterMetricFamily(
            f"{OWN}_binlogs_refused", "Rejected binlogs.", labels=["reason"]
        )
        for reason, count in sorted(list(counters.refused.items())):
            refused.add_metric([reason], count)
        yield refused
        lost = sum(n for why, n in list(counters.refused.items()) if why != "cluster_mismatch")
        yield _tidb("loss_binlog_count", "Writes that failed.", {(): lost})
        yield _tidb(
            "storage_error_count",
            "Disk errors: writes, their groups, index batches, reads.",
            {
                ("write_binlog",): counters.failed_writes,
                ("write_binlog_batch",): counters.failed_groups,
                ("batch_write_kv",): counters.failed_indexing,
                ("read_value",): self._components.pulls.failed,
            },
            "type",
        )
        own = {
            "append_seconds": (counters.append_s, "Time to store a group."),
            "write_seconds": (counters.write_s, "Time of one write to a segment."),
            "fdatasync_seconds": (counters.sync_s, "Time of one fdatasync of a segment."),
            "acknowledge_seconds": (counters.acknowledge_s, "From submission to acknowledgement."),
            "group_binlogs": (counters.group_records, "Binlogs per fdatasync."),
            "write_bytes": (counters.write_bytes, "Size of one write to a segment in bytes."),
        }
        for name, (distribution, about) in own.items():
            yield histogram(f"{OWN}_{name}", about, {(): distribution})
        yield from self._tidb_histograms()

    def _tidb_histograms(self) -> Iterator[Metric]:
        counters = self._components.counters
        yield histogram(
            f"{TIDB}_rpc_duration_seconds",
            "Time of a call, by method and outcome.",
            dict(counters.calls),
            "method",
            "label",
        )
        durations: dict[Labels, Distribution] = {
            ("single",): counters.acknowledge_s,
            ("batch",): counters.append_s,
            ("to_disk",): counters.write_s,
            ("fsync",): counters.sync_s,
            ("rotate",): counters.rotate_s,
        }
        name = f"{TIDB}_storage_write_binlog_duration_time"
        yield histogram(name, "Time of each step of a write.", durations, "type")
        sizes: dict[Labels, Distribution] = {("batch",): counters.write_bytes}
        name = f"{TIDB}_storage_write_binlog_size"
        yield histogram(name, "Size of one write in bytes.", sizes, "type")

    def _storage(self) -> Iterator[Metric]:
        storage = self._components.storage
        for name, value in storage.stats().items():
            yield _gauge(f"storage_{name}", _STORED[name], value)
        volume = os.statvfs(self._components.config.data_dir)
        sizes: dict[Labels, float] = {
            ("capacity",): volume.f_blocks * volume.f_frsize,
            ("available",): volume.f_bavail * volume.f_frsize,
        }
        yield _tidb(
            "storage_storage_size_bytes", "Capacity and free space.", sizes, "type", gauge=True
        )
        max_ms, purged_ms = physical_ms(storage.max_commit_ts), physical_ms(storage.purged_ts)
        for name, about, ms in (
            ("max_commit_ts", "Timestamp up to which binlogs can be pulled, in ms.", max_ms),
            ("gc_ts", "Timestamp up to which binlogs are purged, in ms.", purged_ms),
            ("done_gc_ts", "The same as gc_ts: a purge has one step.", purged_ms),
        ):
            yield _tidb(f"storage_{name}", about, {(): ms}, gauge=True)
        deleted = storage.stats()["purged_entries"]
        about = "Index entries that purges removed."
        yield _tidb("storage_deleted_kv_total", about, {(): deleted})

    def _copies(self) -> Iterator[Metric]:
        copies, kept = self._components.copies, self._components.kept
        entry = None if copies is None else copies.entry
        listed = 1 if entry is None else 1 + len(entry.replicas)
        about = "Disks with this log, including its primary and replicas without older segments."
        yield _gauge("copies", about, listed)
        wanted = 1 if entry is None else entry.copies
        yield _gauge("copies_wanted", "Wanted number of disks with this log.", wanted)
        yield _gauge(
            "copies_min", "With fewer, nothing is acknowledged.", entry.copies_min if entry else 1
        )
        yield _gauge("log_epoch", "Epoch of the log's replica set.", entry.epoch if entry else 0)
        held = [] if kept is None else list(map(kept.links, kept.names()))
        yield _gauge("copies_kept", "Replicas of other Pumps' logs on this disk.", len(held))
        size = sum(link.end for links in held for link in links)
        yield _gauge("copies_kept_bytes", "Bytes of replicas.", size)

    def _repairs(self) -> Iterator[Metric]:
        scrubbing = self._components.scrubbing
        repairs = scrubbing.repairs
        yield _counter("scrubbed_bytes", "Bytes read to find corruption.", scrubbing.scrubbed_bytes)
        age_s = max(0.0, time.time() - scrubbing.last_s)
        yield _gauge("scrub_age_seconds", "Age of the last full scrub, or of a new Pump.", age_s)
        yield _gauge("scrub_running", "1 while a scrub is running.", scrubbing.is_running)
        about = "Corrupted bytes that were repaired from another disk."
        yield _counter("mended_bytes", about, repairs.repaired_bytes)
        about = "Repairs, counted once for each file and occasion."
        yield _counter("mended_files", about, repairs.repaired_places)
        about = "Corrupted places that no other disk could repair."
        yield _gauge("damaged_places", about, len(repairs.left()))

    def _transactions(self) -> Iterator[Metric]:
        unmatched = self._components.storage.unmatched(older_than_s=0)
        yield _gauge("open_prewrites", "Prewrites without a Commit or Rollback.", len(unmatched))
        now_ts = self._components.now_ts()
        age_s = max(0.0, seconds_between(unmatched[0].start_ts, now_ts)) if unmatched else 0.0
        about = "Age of the open Prewrite that arrived first, which blocks all pulls."
        yield _gauge("oldest_open_prewrite_seconds", about, age_s)
        resolved = self._components.resolving.resolved
        yield _counter("transactions_resolved", "Outcomes determined by the resolver.", resolved)
        asked = self._components.resolving.asked
        about = "Requests to the resolver, in place of TiDB-Binlog's requests to TiKV."
        yield _tidb("storage_query_tikv_count", about, {(): asked})
        written = self._components.fake_binlogs.written
        yield _counter("fake_binlogs", "Fake binlogs written to advance an idle stream.", written)
        late_s = max(0.0, seconds_between(self._components.storage.max_commit_ts, now_ts))
        yield _gauge("stream_lag_seconds", "Age of the newest commit that can be pulled.", late_s)

    def _pulling(self) -> Iterator[Metric]:
        pullers: dict[str, int] = {}
        for puller in list(self._components.pulls.open.values()):
            pullers[puller.name] = min(puller.after_ts, pullers.get(puller.name, puller.after_ts))
        yield _gauge("pullers", "Open pulls.", len(self._components.pulls.open))
        lag = GaugeMetricFamily(
            f"{OWN}_puller_lag_seconds",
            "Lag of a pull behind the newest binlog that can be pulled, in commit time.",
            labels=["puller"],
        )
        max_commit_ts = self._components.storage.max_commit_ts
        for name, after_ts in sorted(pullers.items()):
            lag.add_metric([name], max(0.0, seconds_between(after_ts, max_commit_ts)))
        yield lag
        late: dict[Labels, float] = {
            (name,): count for name, count in sorted(self._components.pulls.late.items())
        }
        about = "Pulls that requested purged binlogs."
        yield _tidb("detected_drainer_binlog_purge_count", about, late, "id")


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{OWN}_{name}", about, value=float(value))


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(f"{OWN}_{name}", about, value=float(value))


def _tidb(
    name: str, about: str, values: Mapping[Labels, float], *labels: str, gauge: bool = False
) -> Metric:
    """Return a TiDB-Binlog metric; its counters lack the suffix that the library would add."""
    kind = GaugeMetricFamily if gauge else UnknownMetricFamily
    family = kind(f"{TIDB}_{name}", about, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, float(value))
    return family
