"""Acknowledged, durable binlogs per second on one Pump: one per call, and coalesced.

Each writer is a thread that writes a transaction's Prewrite (1 KB), waits, writes its Commit, and
waits. The timestamps come from one counter far ahead of the oracle, taken when a real writer would
take them.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from penstock.cluster import etcd
from penstock.cluster.node_registry import NodeKind, Registry
from penstock.pb import pump_pb2, pump_pb2_grpc
from penstock.ts import compose
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from penstock_local.cluster import Cluster
from pumpclient import PumpClient
from tests.bench.figure import Figure, percentile

WRITERS = (1, 16, 256)
SECONDS = 4.0
VALUE = bytes(range(256)) * 4

Write = Callable[[Binlog], None]


def measure(home: Path) -> Iterator[Figure]:
    """Yield both ways of writing for each number of writers; the ratio is against unary."""
    with (
        Cluster(home, pumps=1, with_drainer=False) as cluster,
        PumpClient.connect(cluster.etcd.url) as client,
    ):
        clock = itertools.count(compose(int(time.time() * 1000) + 3_600_000, 0))
        unary = {}
        for writers in WRITERS:
            rate, detail = run(unary_writer(cluster), writers, clock)
            unary[writers] = rate
            yield Figure(
                name=f"pump.write.unary.1k.w{writers}", value=rate, unit="binlogs/s", detail=detail
            )
        for writers in WRITERS:
            rate, detail = run(client.write_binlog, writers, clock)
            yield Figure(
                name=f"pump.write.batched.1k.w{writers}",
                value=rate,
                unit="binlogs/s",
                baseline=unary[writers],
                detail=detail,
            )


def unary_writer(cluster: Cluster, pump: str = "pump-1") -> Write:
    """Return a writer that makes one compatible WriteBinlog call for each binlog."""
    address, cluster_id = pump_address(cluster, pump)
    channel = grpc.insecure_channel(address)
    stub = pump_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]

    def write(binlog: Binlog) -> None:
        request = pump_pb2.WriteBinlogReq(clusterID=cluster_id, payload=encode_binlog(binlog))
        answer = stub.WriteBinlog(request, timeout=30)
        assert not answer.errmsg, answer.errmsg

    return write


def pump_address(cluster: Cluster, pump: str = "pump-1") -> tuple[str, int]:
    """Return the address of a Pump of the cluster, and the cluster's id."""
    client = etcd.connect(cluster.etcd.url)
    try:
        registry = Registry(client)
        (status,) = (each for each in registry.list(NodeKind.PUMP) if each.node_id == pump)
        return status.host, registry.cluster_id()
    finally:
        client.close()


def run(write: Write, writers: int, clock: Iterator[int]) -> tuple[float, dict[str, object]]:
    """Return acknowledged binlogs per second, with the latency of a single write."""
    stop = time.monotonic() + SECONDS
    times_ms: list[float] = []
    failures: list[BaseException] = []

    def writer() -> None:
        try:
            mine = []
            while time.monotonic() < stop:
                begun = time.perf_counter()
                start_ts = next(clock)
                write(Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=VALUE))
                commit_ts = next(clock)
                write(Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts))
                mine.append((time.perf_counter() - begun) * 500)
            times_ms.extend(mine)
        except BaseException as error:
            failures.append(error)

    began = time.monotonic()
    threads = [threading.Thread(target=writer) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    took_s = time.monotonic() - began
    detail: dict[str, object] = {
        "seconds": took_s,
        "p50_ms": round(percentile(times_ms, 0.5), 3),
        "p99_ms": round(percentile(times_ms, 0.99), 3),
    }
    return 2 * len(times_ms) / took_s, detail
