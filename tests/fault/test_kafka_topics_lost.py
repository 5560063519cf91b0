"""A topic of Kafka's that is deleted and created again under the sink stops it."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from deploy.local.kafka import KafkaServer
from drainer.sinks.opening import open_event_sink
from penstock.codes import Code
from penstock.errors import NeedsOperator
from tests.kit.fakes.local_drainer import CLUSTER
from tests.kit.wait import eventually
from tests.kit.workloads.insert_stream import InsertStream

pytestmark = [pytest.mark.fault, pytest.mark.slow]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_topic_that_is_made_again_stops_the_sink_before_its_checkpoint_moves(
    kafka: KafkaServer, delivery: str
) -> None:
    prefix = f"lost-{delivery}"
    url = f"kafka://{kafka.address}/?prefix={prefix}&partitions=1&delivery={delivery}"
    name = f"{prefix}.shop.t"
    stream = InsertStream()
    with closing(open_event_sink(url, cluster_id=CLUSTER)) as sink:
        sink.load_checkpoint()
        stream.create(sink)
        last = stream.put(sink, *range(20))
        admin = AdminClient({"bootstrap.servers": kafka.address})
        for future in admin.delete_topics([name]).values():
            future.result()
        eventually(lambda: name not in admin.list_topics(timeout=10).topics, within_s=60)
        for future in admin.create_topics([NewTopic(name, 1, 1)]).values():
            future.result()
        for number in (30, 31):
            with pytest.raises(NeedsOperator, match=f"topic {name}, partition 0: ") as refused:
                stream.put(sink, number)
            assert refused.value.code == Code.KAFKA_TOPIC
    with closing(open_event_sink(url, cluster_id=CLUSTER)) as restarted:
        assert restarted.load_checkpoint() == last
