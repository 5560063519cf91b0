"""Real Pumps and a real Drainer with Spark write to Kafka, and a standby takes over."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.local.kafka import KafkaServer
from penstock.wire.binlog import Origin
from pumpclient import Options, PumpClient
from tests.kit.kafka.topic_reader import Read, read_topics
from tests.kit.servers.fix_drainer import DrainerProcess
from tests.kit.servers.fix_replication import Replication
from tests.kit.wait import eventually
from tests.kit.workloads.random_writer import RandomWriter

ORIGIN = Origin(source="elsewhere", epoch=1, file=2, position=3, gtid="0-1-2")
pytestmark = [pytest.mark.slow, pytest.mark.spark]


def add(client: PumpClient, number: int, origin: Origin | None = None) -> int:
    with client.begin("shop", origin=origin) as txn:
        txn.insert("item", {"id": number, "name": f"item {number}"})
        txn.insert("item", {"id": number + 1000, "name": 'it\'s \\ "ü"'})
    assert txn.commit_ts is not None
    return txn.commit_ts


@pytest.mark.parametrize("form", ["canal-json", "debezium", "maxwell"])
def test_what_writers_commit_is_in_the_topics_once_over_a_takeover(
    form: str, replication: Replication, kafka: KafkaServer, tmp_path: Path
) -> None:
    replication.add_pump()
    settings = tmp_path / "settings.toml"
    settings.write_text(
        '[[filter.routes]]\nschema-pattern = "shop"\ntarget-schema = "store"\n', encoding="utf-8"
    )
    sink = f"kafka://{kafka.address}/?format={form}&prefix=e2e-{form}&partitions=2&partition=key"
    with PumpClient.connect(replication.url) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.item (id INT PRIMARY KEY, name VARCHAR(20))")
        first_ts = add(client, 1, ORIGIN)
        active = replication.drain_into(sink, config=settings)
        active.wait_until(first_ts)
        standby = replication.drain_into(sink, config=settings, started=False)
        standby.spawn()
        last_ts = max(add(client, number) for number in range(2, 30))
        active.wait_until(last_ts)
        active.kill()  # As kill -9 does: the standby takes over.
        client.execute_ddl("ALTER TABLE shop.item ADD COLUMN n INT")
        last_ts = add(client, 30)
        standby.wait_until(last_ts)
    found = read_topics(kafka.address, f"e2e-{form}")
    topic = f"e2e-{form}.store.item"
    ids = [int(_row(form, each.json)["id"]) for each in found if each.topic == topic]
    assert sorted(ids) == sorted([*range(1, 31), *range(1001, 1031)])
    _check_headers([each for each in found if each.topic == topic], first_ts)
    names = {_row(form, each.json)["name"] for each in found if each.topic == topic}
    assert 'it\'s \\ "ü"' in names
    statements = [
        text
        for each in found
        if each.topic == f"e2e-{form}.ddl"
        and (text := each.json.get("sql") or each.json.get("ddl"))
    ]
    assert len(statements) == 3
    assert "ALTER TABLE" in statements[-1]


def _check_headers(rows: list[Read], first_ts: int) -> None:
    for each in rows:
        start_ts = int(each.headers["penstock.start_ts"])
        assert 0 < each.commit_ts - start_ts < 60_000 << 18
        is_from_elsewhere = each.commit_ts == first_ts
        assert ("penstock.origin" in each.headers) == is_from_elsewhere
        if is_from_elsewhere:
            assert json.loads(each.headers["penstock.origin"]) == {
                "source": "elsewhere", "epoch": "1", "file": "2", "position": "3", "gtid": "0-1-2",
            }  # fmt: skip


def _row(form: str, message: Any) -> Any:
    if form == "canal-json":
        return message["data"][0]
    return message["after" if form == "debezium" else "data"]


TASKS_S = 300.0
"""Within this time a busy machine starts Spark and its tasks."""
ROWS, WIDTH = 300, 1000
"""So many rows of that width are enough for a task of their own."""

Partition = tuple[str, int]


class Ways:
    """Drainers of one stream into topics that differ in the prefix alone."""

    def __init__(self, replication: Replication, kafka: KafkaServer, form: str, name: str) -> None:
        self._replication, self._kafka = replication, kafka
        self._form, self._name = form, name

    def drain(self, payloads: str) -> DrainerProcess:
        options = f"format={self._form}&partitions=2&partition=key&watermark=0"
        sink = f"kafka://{self._kafka.address}/?prefix={self._prefix(payloads)}&{options}"
        return self._replication.drain_into(sink, spark_master="local[2]", spark_payloads=payloads)

    def _prefix(self, payloads: str) -> str:
        return f"{self._name}-{self._form}-{payloads}"

    def read(self, payloads: str) -> dict[Partition, list[tuple[Any, ...]]]:
        """Return key, value and headers of each message, in the order of each partition."""
        prefix, found = self._prefix(payloads), defaultdict(list)
        for each in read_topics(self._kafka.address, prefix):
            key, value = (
                None if part is None else part.replace(prefix.encode(), b"")
                for part in (each.key, each.value)
            )
            topic = each.topic.removeprefix(prefix)
            found[topic, each.partition].append((key, value, each.headers))
        return dict(found)


@pytest.mark.parametrize("form", ["canal-json", "debezium"])
def test_tasks_that_fetch_write_the_messages_that_the_driver_s_way_writes(
    form: str, replication: Replication, kafka: KafkaServer, tmp_path: Path
) -> None:
    for _ in range(2):
        replication.add_pump()
    options = Options(spill_bytes=ROWS * WIDTH * 2, spill_dir=tmp_path)
    client = replication.connect(options=options)
    writer = RandomWriter(client, seed=26)
    writer.create()
    client.execute_ddl("CREATE TABLE shop.late (id INT PRIMARY KEY)")

    def write(row: dict[str, int]) -> None:
        writer.transact(40)
        for _ in range(3):
            writer.bulk(ROWS, WIDTH)
        with client.begin("shop", origin=ORIGIN) as txn:
            txn.insert("late", row)

    write({"id": 1})
    ways = Ways(replication, kafka, form, "equal")
    drainers = {payloads: ways.drain(payloads) for payloads in ("driver", "executors")}
    client.execute_ddl("ALTER TABLE shop.late ADD COLUMN n INT")
    write({"id": 2, "n": 3})
    writer.bulk(3 * ROWS, WIDTH)  # In chunks, because it is larger than `spill_bytes`.
    writer.transact(10)
    for drainer in drainers.values():
        drainer.wait_until(writer.last_ts)
        drainer.wait_for(r"transaction \d+ of \d+ bytes is downstream")
    drainers["executors"].wait_for("executors fetch the payloads")
    found, expected = ways.read("executors"), ways.read("driver")
    assert found == expected
    topics = {topic for topic, _ in expected}
    assert topics >= {".ddl", ".shop.item", ".shop.stock", ".shop.note", ".shop.late"}
    assert sum(map(len, expected.values())) > 9 * ROWS


def tasks_of(drainer: DrainerProcess) -> list[psutil.Process]:
    """Return the Python processes of its tasks, which Spark's daemon forks."""
    found = [each for each in drainer.children() if "python" in each.name()]
    parents = {each.ppid() for each in found}
    return [each for each in found if each.pid not in parents]


@pytest.mark.fault(
    "a task of Spark is killed while it fetches rows for Kafka from Pumps that stand still",
    "another task makes the messages; each is in the topics once",
    cases="0 / 1",
)
def test_a_task_that_is_killed_as_it_fetches_for_kafka_leaves_each_message_once(
    replication: Replication, kafka: KafkaServer
) -> None:
    pumps = [replication.add_pump() for _ in range(2)]
    writer = replication.begin(seed=27)
    ways = Ways(replication, kafka, "canal-json", "killed")
    drainer = ways.drain("executors")
    drainer.wait_for("2 in all", TASKS_S)
    tasks = tasks_of(drainer)
    assert len(tasks) == 2
    for task in tasks:
        task.suspend()
    for _ in range(4):
        writer.bulk(ROWS, WIDTH)
    drainer.wait_for("units have waited", TASKS_S)  # A task has one, and has not begun to fetch.
    stopped = [psutil.Process(pump.pid) for pump in pumps]
    ports = {int(pump.addr.rpartition(":")[2]) for pump in pumps}

    def fetches(task: psutil.Process) -> bool:
        ends = [each.raddr for each in task.net_connections("tcp") if each.raddr]
        return any(end.port in ports for end in ends)

    for pump in stopped:
        pump.suspend()
    try:
        for task in tasks:
            task.resume()
        eventually(lambda: any(map(fetches, tasks)), 60)
        next(filter(fetches, tasks)).kill()
        drainer.wait_for(r"is lost, 1 are left; [1-9]\d* of its units go to others")
    finally:
        for pump in stopped:
            pump.resume()
    writer.transact(30)
    drainer.wait_until(writer.last_ts)
    ways.drain("driver").wait_until(writer.last_ts)
    found = ways.read("executors")
    assert found == ways.read("driver")
    assert sum(map(len, found.values())) > 4 * ROWS
