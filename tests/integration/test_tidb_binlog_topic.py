"""TiDB's own reader of TiDB-Binlog's topics reads ours, from the beginning and from a commit_ts."""

import itertools
import json
import subprocess
from collections.abc import Generator
from contextlib import closing
from typing import Any

import pytest

from drainer.sinks.protocol import EventSink
from drainer.task.events.messages import Messages
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.local.kafka import KafkaServer
from penstock.local.process import built
from tests.kit.opened_sinks import open_event_sink
from tests.kit.workloads.sink_stream import InsertStream

pytestmark = pytest.mark.slow
_clusters = itertools.count(6_791_641_053_252_586_769)


class Topic:
    """The topic of a new cluster, its sink, and what is written."""

    def __init__(self, kafka: KafkaServer, options: str = "") -> None:
        self._kafka = kafka
        self.cluster = next(_clusters)
        self.stream = InsertStream()
        url = f"kafka://{kafka.address}/?format=tidb-binlog&prefix=c{self.cluster}{options}"
        self.sink: EventSink = open_event_sink(url, cluster_id=self.cluster)
        self.sink.load_checkpoint()
        self.stream.create(self.sink)

    def put_large(self, *slices: list[int]) -> int:
        point = self.stream.point()

        def made() -> Generator[Messages]:
            for ids in slices:
                batch = self.stream.batch({point.commit_ts: ids}, is_slice=True)
                yield from self.stream.messages(self.sink, batch)

        self.sink.put_slices(made, point)
        return point.commit_ts

    def read(self, **options: object) -> list[dict[str, Any]]:
        asked = [f"-{name}={value}" for name, value in options.items()]
        done = subprocess.run(
            [
                built("obinlog", "obinlog-reader"), f"-brokers={self._kafka.address}",
                f"-cluster={self.cluster}", *asked,
            ],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]  # Else a log.
        return [json.loads(line)["Binlog"] for line in lines]


def ids(binlog: dict[str, Any]) -> list[int]:
    tables = binlog["dml_data"]["tables"]
    rows = [mutation["row"] for table in tables for mutation in table["mutations"]]
    return [row["columns"][0]["int64_value"] for row in rows]


def test_tidbs_reader_reads_ddl_transactions_and_a_large_one_in_their_order(
    kafka: KafkaServer,
) -> None:
    topic = Topic(kafka)
    with closing(topic.sink):
        one = topic.stream.put(topic.sink, 1, 2)
        large = topic.put_large([10, 11], [12], [13, 14])
        two = topic.stream.put(topic.sink, 3)
    schema, table, *rows = topic.read(quiet="3s")
    assert (schema["type"], schema["ddl_data"]["schema_name"]) == (1, "shop")
    assert table["ddl_data"]["table_name"] == "t"
    assert [each["commit_ts"] for each in rows] == [one.commit_ts, large, two.commit_ts]
    assert [ids(each) for each in rows] == [[1, 2], [10, 11, 12, 13, 14], [3]]
    (first, *_) = rows[0]["dml_data"]["tables"]
    assert first["column_info"][0]["mysql_type"] == "int"
    assert first["unique_keys"] == [{"name": "PRIMARY", "column_names": ["id"]}]


@pytest.mark.parametrize(
    ("delivery", "places"), [("exactly-once", (0, 7, 18)), ("at-least-once", (0, 19))]
)
def test_tidbs_reader_finds_its_place_by_commit_ts(
    delivery: str, places: tuple[int, ...], kafka: KafkaServer
) -> None:
    """Behind the last message it does so only without transactions, which end in a marker."""
    topic = Topic(kafka, f"&delivery={delivery}")
    with closing(topic.sink):
        points = [topic.stream.put(topic.sink, number).commit_ts for number in range(20)]
    for at in places:
        found = topic.read(after=points[at], quiet="3s")
        assert [each["commit_ts"] for each in found] == points[at + 1 :]


def test_a_transaction_above_the_bound_stops_and_one_below_it_is_a_message(
    kafka: KafkaServer,
) -> None:
    topic = Topic(kafka, "&max-message-bytes=1000")
    with closing(topic.sink):
        before = topic.stream.put(topic.sink, 1)
        with pytest.raises(NeedsOperator, match=r"at least 1[0-9]{3} bytes") as refused:
            topic.put_large(*([number] for number in range(100)))
        assert refused.value.code is Code.ROW_TOO_LARGE
        with pytest.raises(NeedsOperator, match="max-message-bytes is 1000"):
            topic.stream.put(topic.sink, *range(200))
        assert topic.sink.load_checkpoint() == before
        last = topic.stream.put(topic.sink, 2)
    rows = [each["commit_ts"] for each in topic.read(quiet="3s") if each["type"] == 0]
    assert rows == [before.commit_ts, last.commit_ts]
