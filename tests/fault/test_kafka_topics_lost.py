"""A topic of Kafka's that loses messages, while the sink runs or is stopped, stops the sink.

What an operator may do to topics does not: retention, more partitions, the topic of a table that
was dropped.
"""

import itertools
import shutil
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic, Producer

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.kafka.checkpoint_topic import checkpoint_key
from drainer.sinks.protocol import EventSink
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.local.kafka import KafkaServer
from tests.kit.fakes.local_drainer import CLUSTER
from tests.kit.kafka.topic_reader import done
from tests.kit.opened_sinks import open_event_sink
from tests.kit.wait import eventually
from tests.kit.workloads.sink_stream import InsertStream

pytestmark = [pytest.mark.fault, pytest.mark.slow]

_numbers = itertools.count()


class Output:
    """One output, with its stream, whose sink starts again and again."""

    def __init__(self, kafka: KafkaServer, options: str = "partitions=1") -> None:
        self.prefix = f"topics-{next(_numbers)}"
        self.topic = f"{self.prefix}.shop.t"
        self.url = f"kafka://{kafka.address}/?prefix={self.prefix}&{options}"
        self.admin = AdminClient({"bootstrap.servers": kafka.address})
        self.stream = InsertStream()

    def started(self, accepted_ts: int = -1) -> EventSink:
        """Return a sink that has begun as a Drainer's does."""
        sink = open_event_sink(self.url, cluster_id=CLUSTER, accepted_ts=accepted_ts)
        last = sink.load_checkpoint()
        sink.save_checkpoint(last or Checkpoint(0, 0))
        sink.look_at(self.stream.catalog)
        return sink

    def run(self, *ids: int, accepted_ts: int = -1) -> Checkpoint:
        """Bring one transaction, after the table if it is the first."""
        with closing(self.started(accepted_ts)) as sink:
            if self.stream.catalog.table("shop", "t") is None:
                self.stream.create(sink)
            return self.stream.put(sink, *ids)

    def refused(self, match: str) -> NeedsOperator:
        """Return why a sink does not start; it stays so."""
        for _ in range(2):
            with pytest.raises(NeedsOperator, match=match) as found, closing(self.started()):
                pass
            assert found.value.code == Code.KAFKA_TOPIC
        return found.value

    def delete(self) -> None:
        done(self.admin.delete_topics([self.topic]))
        eventually(lambda: self.topic not in self.admin.list_topics(timeout=10).topics, within_s=60)

    def create(self, partitions: int = 1) -> None:
        done(self.admin.create_topics([NewTopic(self.topic, partitions, 1)]))


@pytest.mark.fault(
    "a topic is deleted, or deleted and created again, or a broker comes back with an older"
    " log, while the Drainer writes or is stopped",
    "refused before the checkpoint moves, with both ids or offsets, until `initial-commit-ts`"
    " accepts it",
    cases="0 / 8",
)
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_topic_that_is_made_again_stops_the_sink_before_its_checkpoint_moves(
    kafka: KafkaServer, delivery: str
) -> None:
    output = Output(kafka, f"partitions=1&delivery={delivery}")
    last = output.run(*range(20))
    with closing(output.started()) as sink:
        output.delete()
        output.create()
        for number in (30, 31):
            with pytest.raises(NeedsOperator, match=f"topic {output.topic}") as refused:
                output.stream.put(sink, number)
            assert refused.value.code == Code.KAFKA_TOPIC
    with closing(open_event_sink(output.url, cluster_id=CLUSTER)) as restarted:
        assert restarted.load_checkpoint() == last
    output.refused("its id is .*, and it was ")


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_topic_that_is_lost_while_the_sink_is_stopped_is_refused_until_it_is_accepted(
    kafka: KafkaServer, delivery: str, is_made_again: bool
) -> None:
    output = Output(kafka, f"partitions=1&delivery={delivery}")
    output.run(1)
    last = output.run(*range(2, 20))
    output.delete()
    if is_made_again:
        output.create()
    text = "its id is .*, and it was " if is_made_again else "it does not exist"
    error = output.refused(f"topic {output.topic}: {text}")
    assert f"initial-commit-ts = {last.commit_ts} " in error.hint
    with pytest.raises(NeedsOperator, match=text):
        output.run(20, accepted_ts=last.commit_ts - 1)
    output.run(21, accepted_ts=last.commit_ts)
    output.run(22, accepted_ts=last.commit_ts)


def test_a_topic_that_was_made_again_and_has_as_many_messages_is_refused(
    kafka: KafkaServer,
) -> None:
    output = Output(kafka)
    output.run(1, 2, 3)
    output.delete()
    output.create()
    producer = Producer({"bootstrap.servers": kafka.address})
    for _ in range(50):
        producer.produce(output.topic, b"of another writer", partition=0)
    producer.flush()
    output.refused("its id is .*, and it was ")


def test_a_broker_that_comes_back_with_an_older_log_of_a_topic_is_refused(
    fresh_kafka: KafkaServer,
) -> None:
    output = Output(fresh_kafka)
    output.run(*range(5))
    folder = fresh_kafka.home / "data" / f"{output.topic}-0"
    fresh_kafka.stop()
    shutil.copytree(folder, fresh_kafka.home / "older")
    fresh_kafka.start()
    output.run(*range(5, 9))
    fresh_kafka.stop()
    shutil.rmtree(folder)
    shutil.copytree(fresh_kafka.home / "older", folder)
    fresh_kafka.start()
    # Five messages and a marker, then four and a marker.
    error = output.refused("partition 0 ends at offset 6, .* up to offset 9")
    assert output.topic in str(error)


def _retain_nothing(output: Output) -> None:
    everything = TopicPartition(output.topic, 0, -1)
    done(output.admin.delete_records([everything]))


def _add_partitions(output: Output) -> None:
    done(output.admin.create_partitions([NewPartitions(output.topic, 3)]))


def _nothing_recorded(output: Output) -> None:
    """As by a Drainer of before there were records of topics."""
    producer = Producer({"bootstrap.servers": output.url.split("/")[2]})
    for topic in (output.topic, f"{output.prefix}.ddl"):
        key = checkpoint_key(output.prefix, CLUSTER, topic)
        producer.produce("_penstock_checkpoint", None, key, partition=0)
    producer.flush()


@pytest.mark.fault(
    "retention, more partitions, a topic deleted after its table was dropped",
    "nothing stops",
    cases="0 / 7",
)
@pytest.mark.parametrize("change", [_retain_nothing, _add_partitions, _nothing_recorded])
@pytest.mark.parametrize("partition", ["table", "ts"])
def test_what_an_operator_may_do_to_a_topic_stops_nothing(
    kafka: KafkaServer, change: Callable[[Output], None], partition: str
) -> None:
    output = Output(kafka, f"partitions=1&partition={partition}")
    for number in range(5):
        output.run(number)
    change(output)
    for number in range(5, 12):
        output.run(number)


def test_the_topic_of_a_dropped_table_may_be_deleted_and_made_again_with_the_table(
    kafka: KafkaServer,
) -> None:
    output = Output(kafka)
    with closing(output.started()) as sink:
        output.stream.create(sink)
        output.stream.put(sink, *range(10))
        for change in output.stream.changes("DROP TABLE t"):
            sink.run_ddl(change, output.stream.point(), maybe_done=False)
        output.delete()
        for change in output.stream.changes("CREATE TABLE t (id INT PRIMARY KEY)"):
            sink.run_ddl(change, output.stream.point(), maybe_done=False)
        output.stream.put(sink, 1)
    output.run(2)
    with closing(output.started()) as sink:
        for change in output.stream.changes("DROP TABLE t"):
            sink.run_ddl(change, output.stream.point(), maybe_done=False)
    output.delete()
    with closing(output.started()):
        pass


@pytest.mark.fault(
    "the checkpoint topic has a retention time", "refused at the start", cases="0 / 1"
)
def test_a_checkpoint_topic_that_kafka_empties_is_refused(kafka: KafkaServer) -> None:
    output = Output(kafka, "checkpoint-topic=kept-for-a-week")
    done(output.admin.create_topics([NewTopic("kept-for-a-week", 1, 1)]))
    error = output.refused("topic kept-for-a-week has cleanup.policy=delete")
    assert "--add-config cleanup.policy=compact" in error.hint
    _compact(output.admin, "kept-for-a-week")
    output.run(1)


def _compact(admin: AdminClient, topic: str) -> None:
    change = AlterConfigOpType.SET
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=change)
    asked: Any = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    done(admin.incremental_alter_configs([asked]))
