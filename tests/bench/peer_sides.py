"""Two pipelines from one MariaDB's binlog into one Kafka: Debezium's connector, and Penstock.

Each has topics of its own in the broker, in which a reader with `read_committed` looks for the rows
of `marks`, the last ones of their transactions. Debezium's other rows may still be on their way
when a mark is there: its producer sends each topic's batches on their own. What follows the binlog
can be started apart from the rest: what is started before, and has delivered a first message, is
not in the measured time.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.local.cluster import Cluster
from penstock.local.kafka import KafkaServer
from penstock.local.process import ServerProcess
from penstock.local.sql_server import SqlServer
from pumpclient import PumpClient
from tests.bench.mysql_sides import WAIT_S_MAX, Place, SysbenchTables, source_at
from tests.bench.outputs_kafka import consumer_of
from tests.bench.rig import each_below, process_s
from tests.kit.kafka.topic_reader import messages
from tests.kit.servers.kafka_connect import KafkaConnect, debezium_source

BROKER = "broker"
PENSTOCK = "penstock"
_CONNECT_JAVA = (
    "-Xms256M -Xmx2G -XX:-UseSerialGC -XX:+UseG1GC -XX:MaxGCPauseMillis=20"
    " -XX:InitiatingHeapOccupancyPercent=35 -XX:TieredStopAtLevel=4"
)
"""What Kafka's own scripts start Connect with; it overrides what the broker is started with."""
_POLL_MS = 5
_LOOK_S = 0.05
_MARK_EVERY_S = 0.5
_CHECK_EVERY_S = 2.0
_ANSWER_S_MAX = 60.0


class Peer(ABC):
    """A pipeline into topics of a broker."""

    def __init__(
        self, name: str, kafka: KafkaServer, schema: str, mark_of: Callable[[Any], dict[str, Any]]
    ) -> None:
        """`mark_of` returns a row of `marks`, of the value of its message."""
        self.name = name
        self._prefix, self._kafka, self._mark_of = f"{name}.{schema}", kafka, mark_of
        self._reader = consumer_of(kafka.address, self._marks)
        self._newest = 0

    @property
    def _marks(self) -> str:
        return f"{self._prefix}.marks"

    @property
    @abstractmethod
    def parts(self) -> dict[str, ServerProcess]:
        """The processes of the pipeline that run."""

    @abstractmethod
    def start(self, tables: SysbenchTables) -> None:
        """Start it, and return when a first message has arrived."""

    @abstractmethod
    def follow(self, start: Place) -> None:
        """Let it follow the binlog from a place on, at which it has been if it was started."""

    def close(self) -> None:
        """Stop its processes, and hang up on the broker."""
        self._reader.close()
        for part in reversed(self.parts.values()):
            part.stop()

    def look(self) -> list[tuple[int, int]]:
        """Return the marks that have arrived; wait a moment for the first."""
        first = self._reader.poll(_LOOK_S)
        some = [] if first is None else [first, *self._reader.consume(500, 0)]
        return [self._mark(each.value()) for each in some if each.error() is None]

    def until(self, number: int) -> None:
        """Return once a mark has this number, or a higher one."""
        deadline_s = time.monotonic() + WAIT_S_MAX
        look_after_s = 0.0
        while self._newest < number:
            self._newest = max([self._newest, *(found for _, found in self.look())])
            if time.monotonic() > look_after_s:
                self._check(deadline_s)
                look_after_s = time.monotonic() + _CHECK_EVERY_S

    def delivered(self, tables: Iterable[str]) -> Counter[str]:
        """Return how many messages the topics of tables have, records of transactions included."""
        topics = {table: TopicPartition(f"{self._prefix}.{table}", 0) for table in tables}
        return Counter(
            {
                table: self._reader.get_watermark_offsets(topic, timeout=_ANSWER_S_MAX)[1]
                for table, topic in topics.items()
            }
        )

    def rows(self, first: int) -> Counter[str]:
        """Return the number of messages of each table, without marks below `first`."""
        return Counter(
            str(message.topic()).removeprefix(f"{self._prefix}.")
            for message in messages(self._kafka.address, self._prefix)
            if message.topic() != self._marks or self._mark(message.value())[1] >= first
        )

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds of each part so far, with their children, and the broker's."""
        parts = {BROKER: self._kafka, **self.parts}
        return {part: process_s(process.pid) for part, process in parts.items()}

    def memory_bytes(self) -> int:
        """Return what all processes of the pipeline keep resident; shared pages count once."""
        return sum(
            pss
            for part in self.parts.values()
            for pss in each_below(part.pid, lambda process: process.memory_full_info().pss)
        )

    def log_tail(self) -> str:
        return "\n".join(f"{name}:\n{part.log_tail()}" for name, part in self.parts.items())

    def _mark(self, value: bytes | None) -> tuple[int, int]:
        row = self._mark_of(json.loads(value or b""))
        return int(row["id"]), int(row["number"])

    def _check(self, deadline_s: float) -> None:
        is_running = all(part.is_running for part in self.parts.values())
        if time.monotonic() > deadline_s or not is_running:
            raise Retryable(f"no mark arrives:\n{self.log_tail()}", code=Code.CHILD_FAILED)


class Debezium(Peer):
    """Debezium's connector for MariaDB, in Kafka Connect."""

    def __init__(self, home: Path, upstream: SqlServer, schema: str, kafka: KafkaServer) -> None:
        super().__init__("debezium", kafka, schema, lambda value: value["after"])
        settings = {"poll.interval.ms": _POLL_MS}
        self._connect = KafkaConnect(
            home / "connect",
            kafka,
            debezium_source("debezium", upstream, schema, kafka, **settings),
            jars="connect",
            environment={**os.environ, "_JAVA_OPTIONS": _CONNECT_JAVA},
        )

    @property
    def parts(self) -> dict[str, ServerProcess]:
        return {"connect": self._connect}

    def start(self, tables: SysbenchTables) -> None:
        """Mark until a mark arrives: what is before its first place in the binlog never does."""
        self._connect.start()
        deadline_s, number, marked_s = time.monotonic() + WAIT_S_MAX, 0, 0.0
        while not self.look():
            if time.monotonic() > marked_s + _MARK_EVERY_S:
                self._check(deadline_s)
                number, marked_s = number + 1, time.monotonic()
                tables.mark(number)

    def rest(self) -> None:
        """Follow the binlog no more; keep the place."""
        self._connect.rest()

    def follow(self, start: Place) -> None:
        """Go on at the place that it has kept: between it and `start` are only a few marks."""
        self._connect.resume()

    def _check(self, deadline_s: float) -> None:
        super()._check(deadline_s)
        assert not (failure := self._connect.failure("debezium")), failure


class Penstock(Peer):
    """A source, Pumps and a Drainer."""

    def __init__(self, home: Path, upstream: SqlServer, schema: str, cluster: Cluster) -> None:
        """The cluster's Pumps must not run yet, nor its Drainer."""
        assert cluster.kafka is not None
        super().__init__(PENSTOCK, cluster.kafka, schema, lambda value: value["data"][0])
        self._home, self._upstream, self._cluster = home, upstream, cluster
        self._source: ServerProcess | None = None

    @property
    def parts(self) -> dict[str, ServerProcess]:
        source = {} if self._source is None else {"source": self._source}
        return {"etcd": self._cluster.etcd, **self._cluster.nodes, **source}

    def start(self, tables: SysbenchTables) -> None:
        """Create the tables in the cluster, and write a mark into it that no upstream has."""
        for pump in self._cluster.pumps.values():
            pump.start()
        self._cluster.start_drainer()
        with PumpClient.connect(self._cluster.etcd.url) as client:
            tables.define(client)
            with client.begin(tables.sysbench.schema) as first:
                first.insert("marks", {"id": -1, "number": 1})
        self.until(1)

    def follow(self, start: Place) -> None:
        self._source = source_at(self._home, self._cluster, self._upstream, start).start()
