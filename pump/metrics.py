"""Metrics: computed at each scrape from what the parts of a Pump count anyway.

`binlog_pump_…` are the names of TiDB-Binlog, as its dashboards and alerts spell them; its gauges of
timestamps hold milliseconds. `penstock_pump_…` are what else a person needs in the night.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import (
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

from penstock.cluster.node_registry import NodeState
from penstock.node.build_info import build_info
from penstock.node.histogram import Labels, histogram
from penstock.ts import physical_ms, seconds_between

if TYPE_CHECKING:
    from penstock.node.histogram import Distribution
    from pump.components import Components


TIDB = "binlog_pump"
OWN = "penstock_pump"

_STORED = {
    "max_commit_ts": "Up to where it can be pulled, as a timestamp.",
    "purged_ts": "Up to where it is purged, as a timestamp.",
    "unmatched": "Prewrites without Commit or Rollback.",
    "segments": "Files of the log.",
    "log_bytes": "Bytes of all segments.",
    "available_bytes": "Free on the volume.",
    "stop_write_at_available_bytes": "With no more free than this, new transactions are refused.",
    "appended_records": "Records written since the start.",
    "appended_bytes": "Bytes written since the start.",
    "repeated_records": "Records that were stored already, since the start.",
    "refused_records": "Records that contradict what is stored, since the start.",
    "replayed_records": "Records that the start read again.",
    "purged_entries": "Index entries that purges removed since the start.",
}
"""What a storage counts of itself, for `storage_…`."""


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
        """Yield every metric of the Pump itself."""
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
        state = GaugeMetricFamily(f"{OWN}_state", "1 for the state it is in.", labels=["state"])
        for each in NodeState:
            state.add_metric([each.value], float(membership.state is each))
        yield state
        engine = GaugeMetricFamily(
            f"{OWN}_server_engine", "1 for what serves the port.", labels=["engine"]
        )
        engine.add_metric([self._components.config.server_engine], 1.0)
        yield engine
        if (front := self._components.front) is not None:
            yield _gauge("connections", "Connections to the port.", front.connections)
            yield _gauge("calls", "Calls under way on them.", front.calls)
        yield _gauge(
            "etcd_reachable", "0 while the status in etcd grows old.", not membership.etcd_is_away
        )
        oracle = self._components.oracle
        leads = oracle is not None and oracle.is_leader
        yield _gauge("leads_oracle", "1 while it hands out the timestamps.", leads)
        ahead_s = oracle.clock_ahead_s if oracle is not None else 0.0
        help_text = "How far the leader's clock is ahead of the time that it hands out."
        yield _gauge("oracle_clock_ahead_seconds", help_text, ahead_s)

    def _writing(self) -> Iterator[Metric]:
        counters, group_commit = self._components.counters, self._components.group_commit
        yield _gauge("queue_bytes", "Binlogs that wait to be written.", group_commit.queued_bytes)
        most = self._components.config.write_queue_bytes
        yield _gauge("queue_bytes_max", "Above this, writers are refused.", most)
        yield _gauge(
            "appends_inline", "1 while the event loop appends.", group_commit.appends_inline
        )
        yield _counter("binlogs_written", "Binlogs made durable.", group_commit.records_written)
        yield _counter(
            "groups_written", "Groups, each one write and sync.", group_commit.groups_written
        )
        refused = CounterMetricFamily(
            f"{OWN}_binlogs_refused", "Binlogs that were not taken.", labels=["reason"]
        )
        for reason, count in sorted(list(counters.refused.items())):
            refused.add_metric([reason], count)
        yield refused
        lost = sum(n for why, n in list(counters.refused.items()) if why != "cluster_mismatch")
        yield _tidb("loss_binlog_count", "Writes that failed.", {(): lost})
        yield _tidb(
            "storage_error_count",
            "What the disk did not take or give: writes, their groups, index batches, reads.",
            {
                ("write_binlog",): counters.failed_writes,
                ("write_binlog_batch",): counters.failed_groups,
                ("batch_write_kv",): counters.failed_indexing,
                ("read_value",): self._components.pulls.failed,
            },
            "type",
        )
        own = {
            "append_seconds": (counters.append_s, "A group's way onto the disk."),
            "write_seconds": (counters.write_s, "One write to a segment."),
            "fdatasync_seconds": (counters.sync_s, "One fdatasync of a segment."),
            "acknowledge_seconds": (counters.acknowledge_s, "From submission to acknowledgement."),
            "group_binlogs": (counters.group_records, "Binlogs that one fdatasync covered."),
            "write_bytes": (counters.write_bytes, "Bytes of one write to a segment."),
        }
        for name, (distribution, about) in own.items():
            yield histogram(f"{OWN}_{name}", about, {(): distribution})
        yield from self._tidb_histograms()

    def _tidb_histograms(self) -> Iterator[Metric]:
        counters = self._components.counters
        yield histogram(
            f"{TIDB}_rpc_duration_seconds",
            "Calls by method and outcome.",
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
        yield histogram(name, "Seconds of the steps of a write.", durations, "type")
        sizes: dict[Labels, Distribution] = {("batch",): counters.write_bytes}
        name = f"{TIDB}_storage_write_binlog_size"
        yield histogram(name, "Bytes of one write.", sizes, "type")

    def _storage(self) -> Iterator[Metric]:
        storage = self._components.storage
        for name, value in storage.stats().items():
            yield _gauge(f"storage_{name}", _STORED[name], value)
        volume = os.statvfs(self._components.config.data_dir)
        sizes: dict[Labels, float] = {
            ("capacity",): volume.f_blocks * volume.f_frsize,
            ("available",): volume.f_bavail * volume.f_frsize,
        }
        yield _tidb("storage_storage_size_bytes", "The volume.", sizes, "type", gauge=True)
        purged_ms = physical_ms(storage.purged_ts)
        for name, about, ms in (
            ("max_commit_ts", "Up to where it can be pulled.", physical_ms(storage.max_commit_ts)),
            ("gc_ts", "Up to where it is purged.", purged_ms),
            ("done_gc_ts", "The same: a purge is one step here.", purged_ms),
        ):
            yield _tidb(f"storage_{name}", about, {(): ms}, gauge=True)
        deleted = storage.stats()["purged_entries"]
        about = "Index entries that purges removed."
        yield _tidb("storage_deleted_kv_total", about, {(): deleted})

    def _copies(self) -> Iterator[Metric]:
        copies, kept = self._components.copies, self._components.kept
        entry = None if copies is None else copies.entry
        listed = 1 if entry is None else 1 + len(entry.replicas)
        about = "Disks on the list of this log; one that still lacks older segments counts."
        yield _gauge("copies", about, listed)
        wanted = 1 if entry is None else entry.copies
        yield _gauge("copies_wanted", "How many there are to be.", wanted)
        yield _gauge(
            "copies_min", "With fewer nothing is acknowledged.", entry.copies_min if entry else 1
        )
        yield _gauge("log_epoch", "Rises with each change of them.", entry.epoch if entry else 0)
        held = [] if kept is None else [kept.standing(node_id) for node_id in kept.names()]
        yield _gauge("copies_kept", "Copies here of other Pumps' logs.", len(held))
        yield _gauge("copies_kept_bytes", "Bytes of these.", sum(copy.bytes for copy in held))

    def _repairs(self) -> Iterator[Metric]:
        scrubbing = self._components.scrubbing
        repairs = scrubbing.repairs
        yield _counter("scrubbed_bytes", "Read to find what has rotted.", scrubbing.scrubbed_bytes)
        age_s = max(0.0, time.time() - scrubbing.last_s)
        yield _gauge("scrub_age_seconds", "Since all was read last, or the Pump is new.", age_s)
        yield _gauge("scrub_running", "1 while it is read.", scrubbing.is_running)
        about = "Damaged bytes that were put back from another disk."
        yield _counter("mended_bytes", about, repairs.mended_bytes)
        about = "How often that was done, once for each file and occasion."
        yield _counter("mended_files", about, repairs.mended_places)
        about = "Places that are damaged, and that no other disk has mended."
        yield _gauge("damaged_places", about, len(repairs.left()))

    def _transactions(self) -> Iterator[Metric]:
        unmatched = self._components.storage.unmatched(older_than_s=0)
        yield _gauge("open_prewrites", "Prewrites without Commit or Rollback.", len(unmatched))
        now_ts = self._components.now_ts()
        age_s = max(0.0, seconds_between(unmatched[0].start_ts, now_ts)) if unmatched else 0.0
        about = "Age of the open Prewrite that arrived first; it holds up all pulls."
        yield _gauge("oldest_open_prewrite_seconds", about, age_s)
        resolved = self._components.resolving.resolved
        yield _counter("transactions_resolved", "Outcomes found out by the resolver.", resolved)
        asked = self._components.resolving.asked
        about = "Questions to the resolver, which is who knows here what TiKV knew there."
        yield _tidb("storage_query_tikv_count", about, {(): asked})
        written = self._components.fake_binlogs.written
        yield _counter("fake_binlogs", "Written to keep an idle stream moving.", written)
        late_s = max(0.0, seconds_between(self._components.storage.max_commit_ts, now_ts))
        yield _gauge("stream_lag_seconds", "How old the newest is that can be pulled.", late_s)

    def _pulling(self) -> Iterator[Metric]:
        pullers: dict[str, int] = {}
        for puller in list(self._components.pulls.open.values()):
            pullers[puller.name] = min(puller.after_ts, pullers.get(puller.name, puller.after_ts))
        yield _gauge("pullers", "Open pulls.", len(self._components.pulls.open))
        lag = GaugeMetricFamily(
            f"{OWN}_puller_lag_seconds",
            "How far the pull is behind what can be pulled, in time of commits.",
            labels=["puller"],
        )
        max_commit_ts = self._components.storage.max_commit_ts
        for name, after_ts in sorted(pullers.items()):
            lag.add_metric([name], max(0.0, seconds_between(after_ts, max_commit_ts)))
        yield lag
        late: dict[Labels, float] = {
            (name,): count for name, count in sorted(self._components.pulls.late.items())
        }
        about = "Pulls that asked for purged binlogs."
        yield _tidb("detected_drainer_binlog_purge_count", about, late, "id")


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{OWN}_{name}", about, value=float(value))


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(f"{OWN}_{name}", about, value=float(value))


def _tidb(
    name: str,
    about: str,
    values: Mapping[Labels, float],
    *labels: str,
    gauge: bool = False,
) -> Metric:
    """Return a metric of TiDB-Binlog; its counters lack the ending that the library would add."""
    kind = GaugeMetricFamily if gauge else UnknownMetricFamily
    family = kind(f"{TIDB}_{name}", about, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, float(value))
    return family
