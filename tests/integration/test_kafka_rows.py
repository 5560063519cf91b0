"""A real broker: rows by transaction, and rows that are too large for their topic."""

import json
import shutil
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import EventSink
from drainer.task.events.event_unit import encoder_of
from drainer.task.events.messages import Messages, RowEvent
from penstock.codes import Code
from penstock.ddl import Catalog, plan_ddl
from penstock.errors import NeedsOperator, Retryable
from penstock.local.kafka import KafkaServer
from penstock.schema.model import TableInfo
from tests.kit.kafka.topic_reader import Read, read_topics
from tests.kit.opened_sinks import open_event_sink

pytestmark = pytest.mark.slow


def table_of(sql: str) -> TableInfo:
    catalog = Catalog()
    ids = iter(range(1, 100))
    for each in ("CREATE DATABASE db", sql):
        for job in plan_ddl(each, "db", catalog, lambda: next(ids)):
            catalog.apply(job)
    table = catalog.table("db", "t")
    assert table is not None
    return table


TABLE = table_of("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")


def opened(kafka: KafkaServer, prefix: str, options: str) -> EventSink:
    url = f"kafka://{kafka.address}/?prefix={prefix}&watermark=0&{options}"
    sink = open_event_sink(url, cluster_id=7, retry_s_max=0.5)
    sink.load_checkpoint()
    return sink


def made(sink: EventSink, commit_ts: int, rows: Iterable[tuple[int, str]]) -> Messages:
    events = [RowEvent("db", TABLE, None, row) for row in rows]
    messages = encoder_of(sink.encoding).transaction(commit_ts, events)
    return Messages.of((commit_ts, each) for each in messages)


def put(sink: EventSink, commit_ts: int, rows: Iterable[tuple[int, str]]) -> None:
    sink.put([made(sink, commit_ts, rows)], Checkpoint(commit_ts, 1))


def test_the_rows_of_a_transaction_are_in_one_partition_by_its_commit_ts(
    kafka: KafkaServer,
) -> None:
    with closing(opened(kafka, "by-ts", "partition=ts&partitions=3")) as sink:
        for number in range(30):
            put(sink, 1000 + number, [(at, "x") for at in range(5)])
    places: dict[int, list[int]] = defaultdict(list)
    for each in read_topics(kafka.address, "by-ts"):
        places[each.commit_ts].append(each.partition)
    assert all(len(found) == 5 and len(set(found)) == 1 for found in places.values())
    assert {found[0] for found in places.values()} == {0, 1, 2}


def claimed(read: Read) -> Any:
    path = Path(unquote(urlsplit(read.headers["penstock.claim_check"].decode()).path))
    return json.loads(path.read_bytes())


def test_a_row_that_is_too_large_is_a_file_before_readers_hear_of_it(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    options = f"oversize=claim-check&max-message-bytes=2000&claim-check-dir={tmp_path}"
    with closing(opened(kafka, "claims", options)) as sink:
        put(sink, 1000, [(1, "small"), (2, "x" * 5000), (3, "y" * 5000)])

        def failing() -> Generator[Messages]:
            yield made(sink, 1001, [(4, "z" * 5000)])
            raise Retryable("the Drainer ends", code=Code.CLOSED)

        with pytest.raises(Retryable):
            sink.put_slices(failing, Checkpoint(1001, 1))
        assert len(list((tmp_path / "claims.db.t").iterdir())) == 3
    with closing(opened(kafka, "claims", options)) as sink:
        put(sink, 1001, [(4, "z" * 5000)])
    small, *large = read_topics(kafka.address, "claims")
    assert "penstock.claim_check" not in small.headers
    assert [each.json["data"][0] for each in large] == [{"id": "2"}, {"id": "3"}, {"id": "4"}]
    assert [each.json["_tidb"]["onlyHandleKey"] for each in large] == [True] * 3
    whole = [claimed(each)["data"][0] for each in large]
    assert [row["v"][0] for row in whole] == ["x", "y", "z"]
    assert {len(row["v"]) for row in whole} == {5000}
    assert len(list((tmp_path / "claims.db.t").iterdir())) == 3


def test_without_the_folder_nothing_of_the_batch_is_sent(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    folder = tmp_path / "mount"
    folder.mkdir()
    options = f"oversize=claim-check&max-message-bytes=2000&claim-check-dir={folder}"
    with closing(opened(kafka, "unmounted", options)) as sink:
        put(sink, 1000, [(1, "small")])
        shutil.rmtree(folder)
        with pytest.raises(NeedsOperator, match="claim-check-dir") as refused:
            put(sink, 1001, [(2, "small"), (3, "x" * 5000)])
        assert refused.value.code is Code.SINK_FILE
        found = sink.load_checkpoint()
    assert found is not None
    assert found.commit_ts == 1000
    assert [each.commit_ts for each in read_topics(kafka.address, "unmounted")] == [1000]
