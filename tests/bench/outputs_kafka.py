"""A Drainer that writes to a real Kafka, beside a bare producer that sends the very same messages.

    outputs.kafka.canal_json     rows/s of a backlog, from the first batch in Kafka to the last;
    outputs.kafka.debezium       with the merge, the encoding tasks and their transactions
    outputs.kafka.lag            from a commit's acknowledgement to a reader with read_committed
    outputs.kafka.memory         whether memory stays what it was: late over early, per process

The bare producer is confluent-kafka's, with transactions: it sends the messages that the Drainer
sent, read back from its topics, in the same batches with a record for each in a topic of its own.
Memory is watched for three minutes.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.local.cluster import Cluster
from pumpclient import PumpClient
from tests.bench.lag import WARM_UP_S, Acknowledged, Pace
from tests.bench.rig import Figure, lag_figures, process_s, sized, together
from tests.kit.kafka.topic_reader import Read, read_topics

ROWS = sized(200_000, 60_000)
"""More than one batch: the rate counts from the first one."""
ROWS_PER_TRANSACTION = 20
WRITERS = 4
FORMATS = {"canal_json": "canal-json", "debezium": "debezium"}
LAG_RATE = 1000
LAG_S = sized(15, 3)
MEMORY_S = sized(180, 40)
MEMORY_WARM_UP_S = 30.0
STALL_S_MAX = 120.0
PREFIX = "bench"
_TOPIC = f"{PREFIX}.bench.t"
_MIB = 1 << 20
_TABLE = (
    "CREATE TABLE {} (id BIGINT NOT NULL, k INT NOT NULL DEFAULT 0,"
    " c VARCHAR(120) NOT NULL DEFAULT '', pad VARCHAR(60) NOT NULL DEFAULT '', PRIMARY KEY (id))"
)
_SMALL_TABLE = "CREATE TABLE {} (id BIGINT NOT NULL, a INT, b VARCHAR(200), PRIMARY KEY (id))"
"""What `tests.bench.lag` writes into."""


# --- rows a second -----------------------------------------------------------------------------


def measure(name: str, home: Path) -> Iterator[Figure]:
    sink = f"kafka?prefix={PREFIX}&format={FORMATS[name]}"
    with Cluster(home, pumps=1, sink=sink, with_drainer=False) as cluster:
        assert cluster.kafka is not None
        address = cluster.kafka.address
        with PumpClient.connect(cluster.etcd.url) as client:
            _create(client, _TABLE)
            last_ts = _backlog(client)
        cluster.start_drainer()
        watched = _watch(cluster, last_ts)
        drainer_s = process_s(cluster.drainer.pid)
        cluster.drainer.stop()
        ends = [commit_ts for commit_ts, _ in watched]
        # Watermarks went on until the Drainer was stopped.
        made = [each for each in read_topics(address, PREFIX) if each.commit_ts <= ends[-1]]
        theirs = Sent.bare(address, made, ends)
    first_row_ts = next(each.commit_ts for each in made if each.topic == _TOPIC)
    # Spark starts while the first batch waits for it, so that one does not count.
    first_ts, begun_s = next(each for each in watched if each[0] >= first_row_ts)
    rows = sum(each.topic == _TOPIC and each.commit_ts > first_ts for each in made)
    ours_s = watched[-1][1] - begun_s
    detail = {
        "rows": rows,
        "messages": len(made),
        "bytes_per_message": round(sum(len(m.value or b"") for m in made) / len(made)),
        "batches": len(watched),
        "drainer_cpu_us_per_row": round(drainer_s / ROWS * 1e6, 1),
        "baseline": "a transactional producer, the same messages in the same batches",
    }
    yield Figure(
        f"outputs.kafka.{name}",
        rows / ours_s,
        "rows/s",
        rows / theirs.seconds_behind(first_ts),
        detail,
    )


def _create(client: PumpClient, definition: str) -> None:
    client.execute_ddl("CREATE DATABASE bench")
    client.execute_ddl(definition.format("bench.t"))


def _backlog(client: PumpClient) -> int:
    """Commit all rows; return the last commit_ts."""
    stamps = [0] * WRITERS

    def work(number: int) -> None:
        ids = iter(range(number, ROWS, WRITERS))
        while some := list(islice(ids, ROWS_PER_TRANSACTION)):
            with client.begin("bench") as txn:
                for row_id in some:
                    text = f"{row_id * 7919 % 10**11:011d}-"
                    txn.insert("t", (row_id, row_id % 1000, text * 10, text * 5))
            assert txn.commit_ts is not None
            stamps[number] = txn.commit_ts

    together(partial(work, number) for number in range(WRITERS))
    return max(stamps)


def _watch(cluster: Cluster, last_ts: int) -> list[tuple[int, float]]:
    """Return each batch's commit_ts, and when a reader had its checkpoint."""
    assert cluster.kafka is not None
    seen: list[tuple[int, float]] = []
    consumer = consumer_of(cluster.kafka.address, "_penstock_checkpoint")
    deadline_s = time.monotonic() + STALL_S_MAX
    while not seen or seen[-1][0] < last_ts:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            deadline_s = time.monotonic() + STALL_S_MAX
            stored = json.loads(message.value() or b"{}")
            if "commitTS" in stored:  # Others are the records of topics.
                seen.append((stored["commitTS"], time.monotonic()))
        if time.monotonic() > deadline_s or not cluster.drainer.is_running:
            raise Retryable(
                f"the Drainer stands still:\n{cluster.drainer.log_tail()}", code=Code.CHILD_FAILED
            )
    consumer.close()
    return seen


def consumer_of(address: str, topic: str) -> Consumer:
    """Return a reader of partition 0 from its beginning; the topic may come later."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
            "topic.metadata.refresh.interval.ms": 500,
            "allow.auto.create.topics": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    return consumer


@dataclass(frozen=True)
class Sent:
    """When the bare producer had committed what up to which commit_ts."""

    begun_s: float
    moments: list[tuple[int, float]]

    @classmethod
    def bare(cls, address: str, made: list[Read], ends: list[int]) -> Sent:
        """Send messages in the batches that end at `ends`, into topics with other names."""
        topics = sorted({each.topic for each in made})
        _make_topics(address, [f"bare.{name}" for name in (*topics, "checkpoint")])
        producer = Producer(
            {
                "bootstrap.servers": address,
                "transactional.id": "bare",
                "enable.idempotence": True,
                "batch.size": 1_000_000,
                "queue.buffering.max.kbytes": 64 << 10,
            }
        )
        producer.init_transactions()
        batches = [
            [(f"bare.{m.topic}", m.value, m.key, b"%d" % m.commit_ts) for m in batch]
            for _, batch in groupby(made, lambda each: _end(ends, each.commit_ts))
        ]
        last = [_end(ends, stamp) for stamp, _ in groupby(_end(ends, m.commit_ts) for m in made)]
        moments, begun_s = [], time.monotonic()
        for commit_ts, batch in zip(last, batches, strict=True):
            producer.begin_transaction()
            for topic, value, key, stamp in batch:
                _produce(producer, topic, value, key, stamp)
            _produce(producer, "bare.checkpoint", bytes(200), b"checkpoint", b"")
            producer.commit_transaction()
            moments.append((commit_ts, time.monotonic()))
        return cls(begun_s, moments)

    def seconds_behind(self, commit_ts: int) -> float:
        begun_s = max((at for end, at in self.moments if end <= commit_ts), default=self.begun_s)
        return self.moments[-1][1] - begun_s


def _end(ends: list[int], commit_ts: int) -> int:
    """Return the batch that a message is in, by its end."""
    return ends[bisect_left(ends, commit_ts)]


def _produce(
    producer: Producer, topic: str, value: bytes | None, key: bytes | None, stamp: bytes
) -> None:
    headers: list[tuple[str, str | bytes | None]] = [("penstock.commit_ts", stamp)]
    while True:
        try:
            producer.produce(topic, value, key, 0, headers=headers)
            return
        except BufferError:
            producer.poll(0.1)


def _make_topics(address: str, names: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    asked = [NewTopic(name, num_partitions=1, replication_factor=1) for name in names]
    for future in admin.create_topics(asked).values():
        future.result()


# --- lag ---------------------------------------------------------------------------------------


def measure_lag(home: Path) -> Iterator[Figure]:
    """Yield p50 and p99 in milliseconds at a steady rate; the baseline is a bare round."""
    with (
        Cluster(home, sink=f"kafka?prefix={PREFIX}") as cluster,
        PumpClient.connect(cluster.etcd.url) as client,
    ):
        assert cluster.kafka is not None
        _create(client, _SMALL_TABLE)
        bare_ms = _bare_rounds_ms(cluster.kafka.address)
        reader = _first_row(client, cluster.kafka.address)
        log = Acknowledged(
            Pace(etcd_url=cluster.etcd.url, rate=LAG_RATE, seconds=WARM_UP_S + LAG_S)
        )
        seen = reader.follow(log)
        reader.close()
    lags_ms = log.lags_ms(seen)
    detail = {
        "transactions_per_s": round(log.rate),
        "rows": len(lags_ms),
        "baseline": "a message, a commit, and a reader that waits for it",
    }
    yield from lag_figures("outputs.kafka.lag", lags_ms, bare_ms, detail)


def _first_row(client: PumpClient, address: str) -> RowReader:
    with client.begin("bench") as first:
        first.insert("t", (-1, 0, "the first one"))
    assert first.commit_ts is not None
    reader = RowReader(address)
    reader.until(first.commit_ts)
    return reader


class RowReader:
    """Reads the table's topic, and notes when it has what."""

    def __init__(self, address: str) -> None:
        self._consumer = consumer_of(address, _TOPIC)
        self._seen: list[tuple[int, float]] = []

    def until(self, commit_ts: int) -> list[tuple[int, float]]:
        """Return each commit_ts with the moment at which its row could be read."""
        deadline_s = time.monotonic() + STALL_S_MAX
        while not self._seen or self._seen[-1][0] < commit_ts:
            self._look()
            if time.monotonic() > deadline_s:
                raise Retryable(f"no row of {commit_ts} in Kafka", code=Code.CHILD_FAILED)
        return self._seen

    def follow(self, log: Acknowledged) -> list[tuple[int, float]]:
        """Return the same, until everything that is committed is there."""
        while not log.is_done.is_set():
            self._look()
        assert log.commits, "the writers failed, see above"
        return self.until(log.commits[-1][0])

    def close(self) -> None:
        """Hang up on the brokers, before they are stopped."""
        self._consumer.close()

    def _look(self) -> None:
        for message in self._consumer.consume(500, 0.005):
            if message.error() is None:
                headers = dict(message.headers() or [])
                self._seen.append((int(headers["penstock.commit_ts"] or 0), time.monotonic()))


def _bare_rounds_ms(address: str) -> list[float]:
    _make_topics(address, ["bare.round"])
    producer = Producer({"bootstrap.servers": address, "transactional.id": "round"})
    producer.init_transactions()
    consumer = consumer_of(address, "bare.round")
    times = []
    for number in range(250):
        begun_s = time.perf_counter()
        producer.begin_transaction()
        producer.produce("bare.round", b"%d" % number, partition=0)
        producer.commit_transaction()
        while (message := consumer.poll(5)) is None or message.error() is not None:
            pass
        times.append((time.perf_counter() - begun_s) * 1000)
    consumer.close()
    return times[50:]


# --- memory ------------------------------------------------------------------------------------


def measure_memory(home: Path) -> Iterator[Figure]:
    """Yield for each kind of process its memory in the last third, over that in the first."""
    with (
        Cluster(home, sink=f"kafka?prefix={PREFIX}") as cluster,
        PumpClient.connect(cluster.etcd.url) as client,
    ):
        _create(client, _SMALL_TABLE)
        assert cluster.kafka is not None
        _first_row(client, cluster.kafka.address).close()
        seconds = MEMORY_WARM_UP_S + MEMORY_S
        log = Acknowledged(Pace(etcd_url=cluster.etcd.url, rate=LAG_RATE, seconds=seconds))
        log.is_done.wait(MEMORY_WARM_UP_S)
        samples: list[dict[str, int]] = []
        while not log.is_done.wait(1.0):
            samples.append(_memory(cluster.drainer.pid))
    assert log.commits, "the writers failed, see above"
    third = max(1, len(samples) // 3)
    for kind in ("drainer", "tasks", "jvm"):
        early, late = (
            sum(each[kind] for each in some) / len(some) / _MIB
            for some in (samples[:third], samples[-third:])
        )
        detail = {
            "seconds": round(MEMORY_S),
            "transactions": len(log.commits),
            "largest_mib": max(each[kind] for each in samples) // _MIB,
            "baseline": "the first third of the same run, after its warm-up",
        }
        yield Figure(f"outputs.kafka.memory.{kind}", late, "MiB", early, detail)


def _memory(pid: int) -> dict[str, int]:
    """Return the resident bytes of the Drainer, its Java, and all else below it."""
    drainer = psutil.Process(pid)
    found = {"drainer": drainer.memory_info().rss, "tasks": 0, "jvm": 0}
    for child in drainer.children(recursive=True):
        try:
            kind = "jvm" if child.name() == "java" else "tasks"
            found[kind] += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return found
