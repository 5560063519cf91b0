"""Build: constructs every part of a Pump, in dependency order.

port bound, pages up ── data folder opened ── etcd answered ── `build` ── `Entrance.open`
     └─ health: NOT_SERVING; every other call: UNAVAILABLE, naming the missing dependency
"""

from __future__ import annotations

import shutil
from functools import partial

from penstock.cluster.etcd import EtcdClient
from penstock.cluster.fence import WriterFence
from penstock.cluster.history import History
from penstock.cluster.node_registry import Registry, parse_labels
from penstock.http2.grpc_front import GrpcFront
from penstock.node.http_status import HttpStatus
from penstock.oracle.client import open_oracle
from penstock.oracle.server import OracleServer
from penstock.security.tls import Tls
from pump.cluster.clock import ClusterClock, FakeBinlogs
from pump.cluster.identity import Identity, kept_node_id
from pump.cluster.membership import Membership, score_of
from pump.cluster.resolver import DdlResolver, Resolver, Resolving, TimeoutResolver
from pump.cluster.retention import Retention
from pump.cluster.sql_resolver import open_resolver, split
from pump.cluster.tikv_resolver import open_tikv_resolver
from pump.config import PumpConfig
from pump.counters import Counters
from pump.facts import Components
from pump.operator import Operator
from pump.penstock_service import PenstockService
from pump.replication.replication import Replication
from pump.replication.scrubbing import Scrubbed, Scrubbing, copy_of, own_log
from pump.replication.shipping import Shipping
from pump.service.admission import Admission
from pump.service.decided_writes import DecidedWrites
from pump.service.group_commit import INLINE_BELOW_S, GroupCommit
from pump.service.grpc_server import Entrance, add_service
from pump.service.large_transactions import LargeWrites
from pump.service.pull_binlogs import PULL_BATCH_BYTES, Pulls
from pump.service.tidb_service import TIDB_SERVICE, WRITE_METHOD, FastWrites, TidbService
from pump.store.storage import Storage


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
    clock = ClusterClock(open_oracle(etcd, config.pd_address or None, tls, pd_tls=pd_tls), oracle)
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
    admission = _admission(config, replication, storage, membership, clock, shipping, counters)
    decided = _decided(etcd, identity, storage, group_commit, admission, clock, pulls)
    resolver = _resolver(config, clock, History(etcd), pd_tls)
    components = Components(
        *(config, counters, storage, oracle, clock, pulls, group_commit, decided, membership),
        fake_binlogs=FakeBinlogs(
            *(storage, group_commit, pulls, clock.next_ts),
            confirm=None if shipping is None else shipping.confirm,
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
    _add_services(components, operator, admission, entrance)
    return components, operator


def _admission(
    config: PumpConfig,
    replication: Replication,
    storage: Storage,
    membership: Membership,
    clock: ClusterClock,
    shipping: Shipping | None,
    counters: Counters,
) -> Admission:
    return Admission(
        cluster_id=replication.peers.cluster_id,
        state=lambda: membership.state,
        check_space=storage.check_space,
        horizon=clock,
        copies=shipping,
        payload_bytes_max=config.max_message_bytes,
        outboxes={name for name, _ in map(split, config.resolver.url)},
        counters=counters,
    )


def _decided(
    etcd: EtcdClient,
    identity: Identity,
    storage: Storage,
    group_commit: GroupCommit,
    admission: Admission,
    clock: ClusterClock,
    pulls: Pulls,
) -> DecidedWrites:
    return DecidedWrites(
        *(storage, group_commit, admission),
        oracle=clock.oracle,
        take_now=clock.take_now,
        open_fence=lambda: WriterFence(etcd, identity.node_id),
        on_released=pulls.wake,
    )


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


def _add_services(
    components: Components, operator: Operator, admission: Admission, entrance: Entrance
) -> None:
    server, entrance.pages.problem = entrance.server, admission.problem
    config, counters = components.config, components.counters
    storage, group_commit, pulls = components.storage, components.group_commit, components.pulls
    large = LargeWrites(
        storage, group_commit, admission, bytes_max=config.transaction_bytes_max, counters=counters
    )
    tidb = TidbService(group_commit, pulls, admission, counters)
    add_service(server, TIDB_SERVICE, tidb.methods())
    if (front := components.front) is not None:  # grpcio has no fast path.
        fast_writes = FastWrites(group_commit, admission, counters, flush=front.flush)
        front.add_fast_unary(f"/{TIDB_SERVICE}/{WRITE_METHOD}", fast_writes.handle)
    penstock = PenstockService(group_commit, large, components.decided, pulls, admission, operator)
    add_service(server, "penstock.Pump", penstock.methods())
    if components.oracle is not None:
        components.oracle.add_to_server(server)
