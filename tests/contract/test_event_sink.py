"""What every sink of events promises, kept by one in memory, by files, Kafka and a lake's logs.

An output that is added gets a line in `OUTPUTS`: how it is opened, and how a reader sees it.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drainer.sink_contract import EventContract, Output, Seen
from drainer.sinks.protocol import EventSink
from penstock.local.kafka import KafkaServer
from penstock.pb import pb_binlog_pb2 as pb
from penstock.pb import slave_binlog_pb2 as slave
from tests.kit.delta.lake_reader import LakeReader
from tests.kit.fakes.memory_output import Broker, MemoryOutput
from tests.kit.files import plain_reader
from tests.kit.kafka.topic_reader import Read, read_topics
from tests.kit.opened_sinks import open_event_sink


class MemoryWorld:
    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self._broker = Broker()

    def open(self, cluster_id: int) -> EventSink:
        return MemoryOutput(self._broker, cluster_id)

    def seen(self) -> Seen:
        seen: Seen = []
        for commit_ts, group in itertools.groupby(self._broker.messages, key=lambda pair: pair[0]):
            entries: list[plain_reader.Entry] = []
            for _, message in group:
                assert message.value is not None
                if message.value.startswith(b"\x04\x05\x1b\x1c"):
                    entries += plain_reader.read(message.value)
                else:  # A part of a large transaction.
                    entries.append(plain_reader.entry_of(pb.Binlog.FromString(message.value)))
            changes = [change for entry in entries for change in entry.changes]
            seen.append((commit_ts, entries[0].ddl or ids(changes)))
        return seen


class FilesWorld:
    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self._folder = folder / "files"

    def open(self, cluster_id: int) -> EventSink:
        # Files so small that nearly each record fills one.
        url = f"file://{self._folder}?max-file-size=300"
        return open_event_sink(url, cluster_id=cluster_id)

    def seen(self) -> Seen:
        found = plain_reader.entries(self._folder)
        return [(entry.commit_ts, entry.ddl or ids(entry.changes)) for entry in found]


class KafkaWorld:
    options = "format=canal-json"

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self._server: KafkaServer = request.getfixturevalue("kafka_server")
        self._prefix = f"contract-{next(_numbers)}"

    def open(self, cluster_id: int) -> EventSink:
        url = f"kafka://{self._server.address}/?prefix={self._prefix}&watermark=0&{self.options}"
        return open_event_sink(url, cluster_id=cluster_id)

    def seen(self) -> Seen:
        seen: Seen = []
        for commit_ts, group in itertools.groupby(self._read(), key=lambda each: each.commit_ts):
            messages = [each.json for each in group if each.value is not None]
            ddl = [text for each in messages if (text := self._ddl_of(each))]
            rows = [row for each in messages if (row := self._row_of(each))]
            what: Any = f"use `shop`; {ddl[0]}" if ddl else [int(row["id"]) for row in rows]
            seen.append((commit_ts, what))
        return seen

    def _read(self) -> list[Read]:
        return read_topics(self._server.address, self._prefix)

    def _ddl_of(self, message: Any) -> str:
        return str(message["sql"]) if message["isDdl"] else ""

    def _row_of(self, message: Any) -> Any:
        return message["data"] and message["data"][0]


class DebeziumWorld(KafkaWorld):
    options = "format=debezium"

    def _ddl_of(self, message: Any) -> str:
        return str(message.get("ddl", ""))

    def _row_of(self, message: Any) -> Any:
        return message.get("after")


class TidbBinlogWorld(KafkaWorld):
    options = "format=tidb-binlog&topic={prefix}.binlog"

    def open(self, cluster_id: int) -> EventSink:
        url = f"kafka://{self._server.address}/?prefix={self._prefix}&{self.options}"
        return open_event_sink(url, cluster_id=cluster_id)

    def seen(self) -> Seen:
        return [self._entry(each) for each in self._read()]

    def _entry(self, read: Read) -> tuple[int, Any]:
        made = slave.Binlog.FromString(read.value or b"")
        assert (made.commit_ts, read.partition, read.key) == (read.commit_ts, 0, None)
        if made.type == slave.DDL:
            return made.commit_ts, f"use `shop`; {made.ddl_data.ddl_query.decode()}"
        rows = [m.row.columns[0] for table in made.dml_data.tables for m in table.mutations]
        return made.commit_ts, [row.int64_value for row in rows]


class ChangesWorld:
    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self._folder = folder / "lake"

    def open(self, cluster_id: int) -> EventSink:
        url = f"delta://{self._folder}?mode=changes&interval=0"
        return open_event_sink(url, cluster_id=cluster_id)

    def seen(self) -> Seen:
        """Read what is of one state, as a crash may have left more in some tables."""
        reader = LakeReader(self._folder)
        states = reader.states()
        version = states[max(states)].get(("shop", "t"))
        lines = reader.log("shop", "t", version) if version is not None else []
        assert {line["_op"] for line in lines} <= {"insert"}
        groups = itertools.groupby(lines, key=lambda line: line["_commit_ts"])
        seen: Seen = [(ts, [line["id"] for line in group]) for ts, group in groups]
        seen += [(ts, f"use `{schema}`; {sql}") for ts, schema, sql in reader.statements()]
        return sorted(seen, key=lambda pair: pair[0])


_numbers = itertools.count(1)
World = MemoryWorld | FilesWorld | KafkaWorld | ChangesWorld
OUTPUTS: dict[str, Callable[[Path, pytest.FixtureRequest], World]] = {
    "memory": MemoryWorld,
    "files": FilesWorld,
    "lake-changes": ChangesWorld,
    "kafka": KafkaWorld,
    "kafka-debezium": DebeziumWorld,
    "kafka-tidb-binlog": TidbBinlogWorld,
}


def ids(changes: list[plain_reader.Change]) -> list[int]:
    return [change.after["id"] for change in changes if change.after is not None]


def param(name: str) -> Any:
    marks = [pytest.mark.kafka] if name.startswith("kafka") else []
    # What is a lake's own of these promises is in test_lake_changes.py and test_lake_sink.py.
    slow = [pytest.mark.slow] if name.startswith(("kafka", "lake")) else []
    return pytest.param(name, marks=[*marks, *slow])


class TestEveryOutput(EventContract):
    @pytest.fixture(params=map(param, OUTPUTS))
    def downstream(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Output]:
        made = output_of(OUTPUTS[request.param](tmp_path, request))
        yield made
        for sink in made.sinks:
            sink.close()


def output_of(world: World) -> Output:
    return Output(world.open, world.seen)
