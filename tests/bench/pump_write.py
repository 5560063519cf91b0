"""Acknowledged, durable binlogs per second on one Pump, and binlogs streamed out of it.

    pump.write.unary, batched   one per call, and coalesced; 1 KB
    pump.write.<size>.…         sizes, numbers of writers, with and without sync
    pump.ack_p99                the slowest hundredth of acknowledgements, against bare fdatasyncs
    pump.pull.<size>            in batches, against one per message

A transaction is a Prewrite and, once that is acknowledged, its Commit. Timestamps come from one
clock seconds ahead of the oracle, taken when a real writer would take them. The baseline of a size
is what the same disk takes in the same minute when the same bytes are written raw in groups as
large as the Pump's were, with the same syncs, so that the ratio is that of the megabytes per second
as well.
"""

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from penstock.local.cluster import Cluster
from penstock.log.frame import HEADER_SIZE
from penstock.pb import penstock_pb2, penstock_pb2_grpc, pump_pb2, pump_pb2_grpc
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from pumpclient import PumpClient
from tests.bench.pump_rig import Clock, Rig, pump_address
from tests.bench.rig import Figure, Timestamps, percentile, sized, together

WRITERS = (1, 16, 256)
SECONDS = sized(4)
VALUE = bytes(range(256)) * 4

Write = Callable[[Binlog], None]


def measure(home: Path) -> Iterator[Figure]:
    """Yield both ways of writing for each number of writers; the ratio is against unary."""
    with (
        Cluster(home, pumps=1, with_drainer=False) as cluster,
        PumpClient.connect(cluster.etcd.url) as client,
    ):
        clock = Timestamps()
        unary = {}
        for writers in WRITERS:
            rate, detail = run(unary_writer(cluster), writers, clock)
            unary[writers] = rate
            yield Figure(f"pump.write.unary.1k.w{writers}", rate, "binlogs/s", None, detail)
        for writers in WRITERS:
            rate, detail = run(client.write_binlog, writers, clock)
            yield Figure(
                f"pump.write.batched.1k.w{writers}", rate, "binlogs/s", unary[writers], detail
            )


def unary_writer(cluster: Cluster, pump: str = "pump-1") -> Write:
    address, cluster_id = pump_address(cluster, pump)
    channel = grpc.insecure_channel(address)
    stub = pump_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]

    def write(binlog: Binlog) -> None:
        request = pump_pb2.WriteBinlogReq(clusterID=cluster_id, payload=encode_binlog(binlog))
        answer = stub.WriteBinlog(request, timeout=30)
        assert not answer.errmsg, answer.errmsg

    return write


def run(write: Write, writers: int, clock: Iterator[int]) -> tuple[float, dict[str, object]]:
    """Return acknowledged binlogs per second, with the latency of a single write."""
    stop = time.monotonic() + SECONDS
    times_ms: list[float] = []

    def writer() -> None:
        while time.monotonic() < stop:
            begun = time.perf_counter()
            start_ts = next(clock)
            write(Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=VALUE))
            commit_ts = next(clock)
            write(Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts))
            times_ms.append((time.perf_counter() - begun) * 500)

    began = time.monotonic()
    together([writer] * writers)
    took_s = time.monotonic() - began
    detail: dict[str, object] = {
        "seconds": took_s,
        "p50_ms": round(percentile(times_ms, 0.5), 3),
        "p99_ms": round(percentile(times_ms, 0.99), 3),
    }
    return 2 * len(times_ms) / took_s, detail


SIZES = {"128b": 128, "1k": 1024, "10k": 10 << 10, "100k": 100 << 10}
MATRIX_WRITERS = (1, 10, 256, 1000)
MATRIX_SECONDS = 1.5
RAW_SECONDS = 0.5
ACK_SECONDS = sized(4)


def measure_matrix(size: str, home: Path) -> Iterator[Figure]:
    """Yield `pump.write.<size>.<sync|nosync>.w<writers>`."""
    for manner in ("sync", "nosync"):
        folder = home / manner
        with Rig(folder, sync=manner == "sync") as rig:
            for writers in MATRIX_WRITERS:
                yield _cell(rig, folder, size, manner, writers)
        shutil.rmtree(folder)  # The next size needs the space.


def _cell(rig: Rig, folder: Path, size: str, manner: str, writers: int) -> Figure:
    value_bytes = SIZES[size]
    measured = rig.load(value_bytes=value_bytes, writers=writers, seconds=MATRIX_SECONDS)
    raw = write_raw(
        folder,
        value_bytes=value_bytes,
        records_per_group=measured.records_per_group,
        sync=manner == "sync",
        seconds=RAW_SECONDS,
    )
    detail = measured.detail(value_bytes)
    detail["raw_mb_per_s"] = round(raw.rate * value_bytes / 1e6, 1)
    return Figure(
        f"pump.write.{size}.{manner}.w{writers}", measured.rate, "transactions/s", raw.rate, detail
    )


def measure_ack(home: Path) -> Iterator[Figure]:
    """Yield the slowest hundredth of the acknowledgements, against that of bare fdatasyncs."""
    syncs_ms: list[float] = []
    with Rig(home, sync=True) as rig:

        def sync_bare(records_per_group: float) -> None:
            raw = write_raw(
                home,
                value_bytes=SIZES["1k"],
                records_per_group=records_per_group,
                sync=True,
                seconds=ACK_SECONDS / 4,
            )
            syncs_ms.extend(raw.syncs_ms)

        sync_bare(8)
        measured = rig.load(value_bytes=SIZES["1k"], writers=10, seconds=ACK_SECONDS)
        sync_bare(measured.records_per_group)
    detail = measured.detail(SIZES["1k"])
    detail["fdatasync_p50_ms"] = round(percentile(syncs_ms, 0.5), 2)
    yield Figure("pump.ack_p99.w10", measured.p99_ms, "ms", percentile(syncs_ms, 0.99), detail)


_BYTES_MAX = 1 << 30
_BUFFERS_MAX = 1024


@dataclass(slots=True)
class Raw:
    """Transactions written, and how long each sync took."""

    transactions: float = 0.0
    seconds: float = 0.0
    syncs_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.transactions / self.seconds


def write_raw(
    folder: Path, *, value_bytes: int, records_per_group: float, sync: bool, seconds: float
) -> Raw:
    """Write Prewrites and Commits with their frames' headers in turn, one `pwritev` per group."""
    clock = Clock(value_bytes)
    start_ts, prewrite = clock.prewrite()
    header = bytes(HEADER_SIZE)
    pair = [header + prewrite, header + clock.commit(start_ts)]
    count = max(1, round(records_per_group))
    raw, path = Raw(), folder / "raw"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        begun_s, offset, first = time.perf_counter(), 0, 0
        while time.perf_counter() - begun_s < seconds and offset < _BYTES_MAX:
            group = [pair[(first + i) % 2] for i in range(count)]
            first += count
            for at in range(0, count, _BUFFERS_MAX):
                offset += os.pwritev(descriptor, group[at : at + _BUFFERS_MAX], offset)
            if sync:
                sync_s = time.perf_counter()
                os.fdatasync(descriptor)
                raw.syncs_ms.append((time.perf_counter() - sync_s) * 1000)
        raw.seconds = time.perf_counter() - begun_s
        raw.transactions = first / 2
    finally:
        os.close(descriptor)
        path.unlink()
    return raw


TRANSACTIONS = sized(100_000, 2_000)
FILL_BYTES = sized(500, 16) << 20
PULL_BATCH = 256
BATCH_BYTES = 4 << 20
UNLIMITED = [("grpc.max_receive_message_length", -1)]


def measure_pull(size: str, home: Path) -> Iterator[Figure]:
    """Yield `pump.pull.<size>`, batched, in MB/s; its baseline is the compatible method."""
    value = os.urandom(SIZES[size])
    count = min(TRANSACTIONS, FILL_BYTES // len(value))
    with Cluster(home, pumps=1, with_drainer=False) as cluster:
        address, cluster_id = pump_address(cluster)
        with grpc.insecure_channel(address, options=UNLIMITED) as channel:
            first_ts = fill(channel, cluster_id, value, count)
            single = megabytes_per_second(pull_single(channel, cluster_id, first_ts - 1), count)
            begun_s = time.process_time()
            batched = megabytes_per_second(pull_batched(channel, cluster_id, first_ts - 1), count)
            puller_us = (time.process_time() - begun_s) / count * 1e6
    detail = {
        "transactions": count,
        "transactions_per_s": round(batched * 1e6 / len(value)),
        "puller_cpu_us": round(puller_us, 1),
        "baseline": "PullBinlogs, one per message",
    }
    yield Figure(f"pump.pull.{size}", batched, "MB/s", single, detail)


def fill(channel: grpc.Channel, cluster_id: int, value: bytes, count: int) -> int:
    clock = Timestamps()
    first_ts = next(clock)
    stub = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]

    def batches() -> Iterator[penstock_pb2.WriteBatch]:
        batch = max(1, min(PULL_BATCH, BATCH_BYTES // len(value)))
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
