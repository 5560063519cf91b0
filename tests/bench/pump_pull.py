"""How fast one Pump streams committed transactions out: in batches, and one per message."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from deploy.local.cluster import Cluster
from penstock.codec import encode_binlog
from penstock.model import Binlog, BinlogType
from penstock.pb import penstock_pb2, penstock_pb2_grpc, pump_pb2, pump_pb2_grpc
from penstock.ts import compose
from tests.bench.figure import Figure
from tests.bench.pump_write import VALUE, pump_address

TRANSACTIONS = 100_000
BATCH = 256
UNLIMITED = [("grpc.max_receive_message_length", -1)]


def measure(home: Path) -> Iterator[Figure]:
    """Yield the batched pull in MB/s; its baseline is the compatible method."""
    with Cluster(home, pumps=1, with_drainer=False) as cluster:
        address, cluster_id = pump_address(cluster)
        with grpc.insecure_channel(address, options=UNLIMITED) as channel:
            first_ts = fill(channel, cluster_id)
            single = megabytes_per_second(pull_single(channel, cluster_id, first_ts - 1))
            batched = megabytes_per_second(pull_batched(channel, cluster_id, first_ts - 1))
    yield Figure(
        name="pump.pull.1k",
        value=batched,
        unit="MB/s",
        baseline=single,
        detail={"transactions": TRANSACTIONS, "baseline": "PullBinlogs, one per message"},
    )


def fill(channel: grpc.Channel, cluster_id: int) -> int:
    """Write the transactions and return the first timestamp used."""
    first_ts = compose(int(time.time() * 1000) + 3_600_000, 0)
    clock = itertools.count(first_ts)
    stub = penstock_pb2_grpc.PumpStub(channel)

    def batches() -> Iterator[penstock_pb2.WriteBatch]:
        for seq in range(1, TRANSACTIONS // BATCH + 2):
            payloads = []
            for _ in range(BATCH):
                start_ts, commit_ts = next(clock), next(clock)
                prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=VALUE)
                commit = Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts)
                payloads += [encode_binlog(prewrite), encode_binlog(commit)]
            yield penstock_pb2.WriteBatch(cluster_id=cluster_id, seq=seq, payloads=payloads)

    for ack in stub.Write(batches()):
        assert not ack.refusals, ack.refusals
    return first_ts


def pull_batched(channel: grpc.Channel, cluster_id: int, after_ts: int) -> Iterator[int]:
    """Yield the bytes of each binlog, pulled many per message."""
    request = penstock_pb2.PullRequest(cluster_id=cluster_id, after_ts=after_ts)
    stream = penstock_pb2_grpc.PumpStub(channel).Pull(request)
    for message in stream:
        yield from map(len, message.payloads)
    stream.cancel()


def pull_single(channel: grpc.Channel, cluster_id: int, after_ts: int) -> Iterator[int]:
    """Yield the bytes of each binlog, pulled one per message."""
    request = pump_pb2.PullBinlogReq(clusterID=cluster_id, startFrom=pump_pb2.Pos(offset=after_ts))
    for message in pump_pb2_grpc.PumpStub(channel).PullBinlogs(request):
        yield len(message.entity.payload)


def megabytes_per_second(sizes: Iterator[int]) -> float:
    """Return the rate over as many binlogs as were written; the first starts the clock."""
    total, began = next(sizes), time.perf_counter()
    total += sum(itertools.islice(sizes, TRANSACTIONS - 1))
    return total / (time.perf_counter() - began) / 1e6
