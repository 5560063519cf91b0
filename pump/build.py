"""Build: constructs every part of a Pump, in dependency order, and describes them in its facts.

port bound, pages up ── data folder opened ── etcd answered ── `build` ── `Entrance.open`
     └─ health: NOT_SERVING; every other call: UNAVAILABLE, naming the missing dependency
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.cluster.etcd import EtcdClient
from penstock.cluster.history import History
from penstock.cluster.node_registry import Registry, labels_text, parse_labels
from penstock.http2.grpc_front import GrpcFront
from penstock.node.http_status import HttpStatus
from penstock.node.logs import RECENT, Problem
from penstock.oracle.client import open_oracle
from penstock.oracle.server import OracleServer
from penstock.security.tls import Tls
from penstock.ts import compose
from pump.cluster.clock import ClusterClock, FakeBinlogs
from pump.cluster.identity import Identity, kept_node_id
from pump.cluster.membership import Membership, score_of
from pump.cluster.resolver import DdlResolver, OpenTransaction, Resolver, Resolving, TimeoutResolver
from pump.cluster.retention import Retention
from pump.cluster.sql_resolver import open_resolver, split
from pump.cluster.tikv_resolver import open_tikv_resolver
from pump.config import PumpConfig
from pump.counters import Counters
from pump.operator import Operator
from pump.penstock_service import PenstockService
from pump.replication.replicas import KeptReplica, Replicas
from pump.replication.replication import Replication
from pump.replication.scrubbing import Scrubbed, Scrubbing, ScrubFacts, copy_of, own_log
from pump.replication.shipping import ReplicationFacts, Shipping
from pump.service.admission import Admission
from pump.service.group_commit import INLINE_BELOW_S, GroupCommit
from pump.service.grpc_server import Entrance, add_service
from pump.service.large_transactions import LargeWrites
from pump.service.pull_binlogs import PULL_BATCH_BYTES, Pulls
from pump.service.tidb_service import TIDB_SERVICE, WRITE_METHOD, FastWrites, TidbService
from pump.store.storage import Storage

_WAITING_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpFacts:
    """All that a Pump reports, see `penstock.node.output`."""

    server_engine: str
    status_pages: str
    uptime_s: int
    binlogs_written: int
    groups_written: int
    append_ms_average: float
    appends_run_in: str
    binlogs_refused: str
    fake_binlogs_written: int
    transactions_resolved: int
    transactions_waiting: int
    transactions: tuple[OpenTransaction, ...] | None
    """The oldest of them."""
    large_transactions_coming: int
    pullers: str
    replication: ReplicationFacts | None
    kept_replicas: tuple[KeptReplica, ...] | None
    scrubbing: ScrubFacts
    etcd: str
    leads_oracle: bool
    storage: Mapping[str, int]
    instance: str
    labels: str
    score: int
    purge: str
    closing: str | None
    moving: str | None
    problems: tuple[Problem, ...] | None


@dataclass(frozen=True, slots=True)
class Components:
    """The parts that `build` constructs, `node` runs, and status and metrics query on demand."""

    config: PumpConfig
    counters: Counters
    storage: Storage
    oracle: OracleServer | None
    clock: ClusterClock
    pulls: Pulls
    group_commit: GroupCommit
    membership: Membership
    fake_binlogs: FakeBinlogs
    resolver: Resolver
    resolving: Resolving
    retention: Retention
    copies: Shipping | None
    """Replication of this log; None with one copy."""
    kept: Replicas | None
    """Replicas of other Pumps' logs; None if this Pump keeps none."""
    scrubbing: Scrubbing
    front: GrpcFront | None
    """Our own server of the port; None if grpcio serves it."""
    began_s: float = field(default_factory=time.monotonic)

    def now_ts(self) -> int:
        if self.clock.is_set:
            return self.clock.now_ts()
        return compose(int(time.time() * 1000), 0)

    def facts(self, *, status_pages: str, closing: str, moving: str) -> PumpFacts:
        """Describe this Pump; `closing` and `moving` are empty unless that is under way."""
        waiting, membership = self.resolving.waiting(), self.membership
        refused = sorted(list(self.counters.refused.items()))
        return PumpFacts(
            server_engine=self.config.server_engine,
            status_pages=status_pages,
            uptime_s=round(time.monotonic() - self.began_s),
            binlogs_written=self.group_commit.records_written,
            groups_written=self.group_commit.groups_written,
            append_ms_average=round(self.group_commit.times.average_s * 1000, 2),
            appends_run_in="event loop" if self.group_commit.times.are_short else "thread",
            binlogs_refused=", ".join(f"{n} {why}" for why, n in refused) or "0",
            fake_binlogs_written=self.fake_binlogs.written,
            transactions_resolved=self.resolving.resolved,
            transactions_waiting=len(waiting),
            transactions=tuple(waiting[:_WAITING_SHOWN_MAX]) or None,
            large_transactions_coming=len(self.storage.incoming),
            pullers=", ".join(f"{p.name} after {p.after_ts}" for p in self.pulls.open.values()),
            replication=None if self.copies is None else self.copies.facts(),
            kept_replicas=None if self.kept is None else self.kept.facts(),
            scrubbing=self.scrubbing.facts(),
            etcd="away" if membership.etcd_is_away else "reachable",
            leads_oracle=self.oracle is not None and self.oracle.is_leader,
            storage=self.storage.stats(),
            instance=membership.identity.instance,
            labels=labels_text(membership.identity.labels),
            score=membership.score,
            purge=self.retention.report,
            closing=closing or None,
            moving=moving or None,
            problems=RECENT.facts() or None,
        )


def build(
    config: PumpConfig,
    entrance: Entrance,
    counters: Counters,
    *,
    etcd: EtcdClient,
    identity: Identity,
    storage: Storage,
    shipping: Shipping | None,
    replication: Replication,
) -> tuple[Components, Operator]:
    """Construct the parts; `shipping` is that of the own log, None with one copy."""
    registry = Registry(etcd, guard=lambda: None if shipping is None else shipping.guard())
    oracle = None
    if not config.pd_address:
        oracle = OracleServer(etcd, identity.host, held_ts=lambda: storage.newest_ts)
    tls, pd_tls = entrance.security.tls, entrance.security.pd_tls
    clock = ClusterClock(open_oracle(etcd, config.pd_address or None, tls, pd_tls=pd_tls))
    size_max = config.max_message_bytes
    pulls = Pulls(storage, batch_bytes_max=PULL_BATCH_BYTES, message_bytes_max=size_max)
    group_commit = GroupCommit(
        storage,
        on_indexed=pulls.wake,
        queue_bytes_max=config.write_queue_bytes,
        # The event loop must not wait for other disks.
        inline_below_s=INLINE_BELOW_S if shipping is None else 0,
        counters=counters,
    )
    membership = Membership(
        *(registry, storage, clock),
        identity=identity,
        score=partial(_score, config, storage, group_commit),
        tls=tls,
        holds_log=shipping is not None,
    )
    resolver = _resolver(config, clock, History(etcd), pd_tls)
    components = Components(
        *(config, counters, storage, oracle, clock, pulls, group_commit, membership),
        fake_binlogs=FakeBinlogs(
            *(storage, group_commit, pulls, clock.next_ts),
            interval_idle_s=config.fake_binlog_interval_s,
        ),
        resolver=resolver,
        resolving=Resolving(storage, group_commit, resolver),
        retention=Retention(
            *(storage, membership, clock),
            gc_days=config.gc_days,
            force_after_days=config.gc_force_after_days,
        ),
        copies=shipping,
        kept=replication.followed,
        scrubbing=_scrubbing(config, storage, replication),
        front=entrance.server if isinstance(entrance.server, GrpcFront) else None,
    )
    operator = _operator(components, identity.node_id, entrance.pages, replication)
    _add_services(components, operator, replication.peers.cluster_id, entrance.server)
    return components, operator


def _score(config: PumpConfig, storage: Storage, group_commit: GroupCommit) -> int:
    volume_bytes = shutil.disk_usage(config.data_dir).total
    fill, average_s = group_commit.queue_fill, group_commit.times.average_s
    return score_of(storage.stats(), volume_bytes, fill, average_s)


def _resolver(
    config: PumpConfig, clock: ClusterClock, history: History, pd_tls: Tls | None
) -> Resolver:
    timeout = TimeoutResolver(txn_timeout_s=config.txn_timeout_s)
    ours = DdlResolver(history, open_resolver(config.resolver, timeout))
    if not config.pd_address:
        return ours
    # TiKV first: DDL of a TiDB has TiDB's job ids, which our history does not know.
    return open_tikv_resolver(config.pd_address, pd_tls, clock.next_ts, ours, config.resolver)


def _operator(
    components: Components, node_id: str, pages: HttpStatus, replication: Replication
) -> Operator:
    storage, membership = components.storage, components.membership
    return Operator(
        node_id=node_id,
        storage=storage,
        membership=membership,
        fake_binlogs=components.fake_binlogs,
        retention=components.retention,
        facts=lambda **under_way: components.facts(status_pages=pages.url or "none", **under_way),
        scrub=components.scrubbing.ask,
        moving=replication.moves(storage, membership, components.copies),
        draining=replication.draining,
    )


def identity_of(config: PumpConfig, port: int) -> Identity:
    host, _, wanted = (config.advertise_addr or config.addr).rpartition(":")
    address = f"{host}:{port if int(wanted) == 0 else wanted}"
    node_id = kept_node_id(config.data_dir, config.node_id, address)
    return Identity(node_id, address, parse_labels(config.labels))


def _scrubbing(config: PumpConfig, storage: Storage, replication: Replication) -> Scrubbing:
    kept, repairs = replication.followed, replication.repairs

    def logs() -> list[Scrubbed]:
        copies = [] if kept is None else [copy_of(kept, node_id) for node_id in kept.names()]
        return [own_log(storage, replication.own_repair, repairs), *copies]

    return Scrubbing(
        *(config.data_dir, logs, repairs),
        bytes_per_s=config.scrub_mb_per_s * 1e6,
        every_days=config.scrub_every_days,
    )


def _add_services(components: Components, operator: Operator, cluster_id: int, server: Any) -> None:
    config, counters = components.config, components.counters
    storage, group_commit, pulls = components.storage, components.group_commit, components.pulls
    admission = Admission(
        cluster_id=cluster_id,
        state=lambda: components.membership.state,
        check_space=storage.check_space,
        horizon=components.clock,
        copies=components.copies,
        payload_bytes_max=config.max_message_bytes,
        outboxes={name for name, _ in map(split, config.resolver.url)},
        counters=counters,
    )
    large = LargeWrites(
        storage, group_commit, admission, bytes_max=config.transaction_bytes_max, counters=counters
    )
    tidb = TidbService(group_commit, pulls, admission, counters)
    add_service(server, TIDB_SERVICE, tidb.methods())
    if (front := components.front) is not None:  # grpcio has no fast path.
        fast_writes = FastWrites(group_commit, admission, counters, flush=front.flush)
        front.add_fast_unary(f"/{TIDB_SERVICE}/{WRITE_METHOD}", fast_writes.handle)
    penstock = PenstockService(group_commit, large, pulls, admission, operator)
    add_service(server, "penstock.Pump", penstock.methods())
    if components.oracle is not None:
        components.oracle.add_to_server(server)
