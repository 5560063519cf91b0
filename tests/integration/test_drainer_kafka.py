"""Real Pumps and a real Drainer with Spark write to Kafka, and a standby takes over."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.wire.binlog import Origin
from penstock_local.kafka import KafkaServer
from pumpclient import PumpClient
from tests.kit.kafka.topic_reader import Read, read_topics
from tests.kit.servers.fix_replication import Replication

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
