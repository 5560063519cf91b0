"""How fast one Pump streams committed transactions out: in batches, and one per message."""

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from penstock.pb import penstock_pb2, penstock_pb2_grpc, pump_pb2, pump_pb2_grpc
from penstock.ts import compose
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from penstock_local.cluster import Cluster
from tests.bench.figure import Figure
from tests.bench.pump_write import VALUE, pump_address

TRANSACTIONS = 100_000
FILL_BYTES = 500 << 20
BATCH = 256
BATCH_BYTES = 4 << 20
VALUES_BYTES = {"128b": 128, "1k": len(VALUE), "10k": 10 << 10, "100k": 100 << 10}
UNLIMITED = [("grpc.max_receive_message_length", -1)]


def measure(home: Path) -> Iterator[Figure]:
    """Yield the batched pull of 1 KB in MB/s; its baseline is the compatible method."""
    yield from measure_size("1k", home)


def measure_size(size: str, home: Path) -> Iterator[Figure]:
    """Yield `pump.pull.<size>`."""
    value = os.urandom(VALUES_BYTES[size])
    count = min(TRANSACTIONS, FILL_BYTES // len(value))
    with Cluster(home, pumps=1, with_drainer=False) as cluster:
        address, cluster_id = pump_address(cluster)
        with grpc.insecure_channel(address, options=UNLIMITED) as channel:
            first_ts = fill(channel, cluster_id, value, count)
            single = megabytes_per_second(pull_single(channel, cluster_id, first_ts - 1), count)
            begun_s = time.process_time()
            batched = megabytes_per_second(pull_batched(channel, cluster_id, first_ts - 1), count)
            puller_us = (time.process_time() - begun_s) / count * 1e6
    yield Figure(
        name=f"pump.pull.{size}",
        value=batched,
        unit="MB/s",
        baseline=single,
        detail={
            "transactions": count,
            "transactions_per_s": round(batched * 1e6 / len(value)),
            "puller_cpu_us": round(puller_us, 1),
            "baseline": "PullBinlogs, one per message",
        },
    )


def fill(channel: grpc.Channel, cluster_id: int, value: bytes, count: int) -> int:
    """Write the transactions and return the first timestamp used."""
    first_ts = compose(int(time.time() * 1000) + 3_600_000, 0)
    clock = itertools.count(first_ts)
    stub = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]

    def batches() -> Iterator[penstock_pb2.WriteBatch]:
        batch = max(1, min(BATCH, BATCH_BYTES // len(value)))
        for seq in range(1, count // batch + 2):
            payloads = []
            for _ in range(batch):
                start_ts, commit_ts = next(clock), next(clock)
                prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=value)
                commit = Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts)
                payloads += [encode_binlog(prewrite), encode_binlog(commit)]
            yield penstock_pb2.WriteBatch(cluster_id=cluster_id, seq=seq, payloads=payloads)

    for ack in stub.Write(batches()):
        assert not ack.refusals, ack.refusals
    return first_ts


def pull_batched(channel: grpc.Channel, cluster_id: int, after_ts: int) -> Iterator[int]:
    """Yield the bytes of each binlog, pulled many per message."""
    request = penstock_pb2.PullRequest(cluster_id=cluster_id, after_ts=after_ts)
    stub = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
    stream = stub.Pull(request)
    for message in stream:
        yield from map(len, message.payloads)
    stream.cancel()


def pull_single(channel: grpc.Channel, cluster_id: int, after_ts: int) -> Iterator[int]:
    """Yield the bytes of each binlog, pulled one per message."""
    request = pump_pb2.PullBinlogReq(clusterID=cluster_id, startFrom=pump_pb2.Pos(offset=after_ts))
    stub = pump_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
    for message in stub.PullBinlogs(request):
        yield len(message.entity.payload)


def megabytes_per_second(sizes: Iterator[int], count: int) -> float:
    """Return the rate over as many binlogs as were written; the first starts the clock."""
    total, began = next(sizes), time.perf_counter()
    total += sum(itertools.islice(sizes, count - 1))
    return total / (time.perf_counter() - began) / 1e6
