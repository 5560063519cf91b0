"""Three Drainers of a cluster: into a SQLite, into files and into a Kafka, each at its own pace."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from drainer.reparo.reparo_config import ReparoConfig
from drainer.reparo.restore import run as reparo
from penstock.local.kafka import KafkaServer
from pumpclient import PumpClient
from tests.kit.kafka.topic_reader import read_topics
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.pages import asked
from tests.kit.wait import eventually

WAIT_S = 60.0


def add(client: PumpClient, ids: range) -> int:
    for number in ids:
        with client.begin("shop") as txn:
            txn.insert("item", {"id": number, "name": f"item {number}"})
    assert txn.commit_ts is not None
    return txn.commit_ts


def ids_in(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [number for (number,) in connection.execute('SELECT id FROM "shop.item" ORDER BY 1')]


def held_by(pump: PumpProcess) -> tuple[str, int] | None:
    url = pump.status().details["status_pages"]
    code, text = asked(f"{url}debug/gc/trigger", "POST")
    assert code == 200
    found = re.search(r"drainer (\S+) \(\w+\) still needs binlogs after (\d+)", text)
    return (found[1], int(found[2])) if found else None


def test_each_output_is_complete_and_a_purge_waits_for_the_slowest(
    replication: Replication, kafka: KafkaServer, tmp_path: Path
) -> None:
    pump = replication.add_pump(gc_days=1e-6)
    tables, files = tmp_path / "tables.db", tmp_path / "changes"
    outputs = {
        "tables": f"sqlite:///{tables}",
        "files": f"file://{files}",
        "topics": f"kafka://{kafka.address}/?prefix=several",
    }
    with PumpClient.connect(replication.url) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.item (id INT PRIMARY KEY, name VARCHAR(20))")
        drainers = {}
        for number, (name, url) in enumerate(outputs.items()):
            last_ts = add(client, range(number * 20, number * 20 + 20))
            drainers[name] = replication.drain_into(url, node_id=name)
            drainers[name].wait_until(last_ts)
            if name != "topics":  # It stops at its place, and the others go on.
                drainers[name].stop()
        places = {name: each.checkpoint_ts() for name, each in drainers.items()}
        assert sorted(places.values()) == list(places.values())
        assert held_by(pump) == ("tables", places["tables"])
        for name in ("tables", "files"):
            drainers[name].start()
        last_ts = add(client, range(60, 80))
        for each in drainers.values():
            each.wait_until(last_ts)

    def is_let_go() -> bool:
        held = held_by(pump)
        return held is None or held[1] >= last_ts

    eventually(is_let_go, WAIT_S)
    for each in drainers.values():
        each.stop()
    assert ids_in(tables) == list(range(80))
    restored = tmp_path / "restored.db"
    reparo(ReparoConfig(data_dir=str(files), sink=f"sqlite:///{restored}"))
    assert ids_in(restored) == list(range(80))
    rows = [each.json for each in read_topics(kafka.address, "several") if "item" in each.topic]
    assert sorted(int(each["data"][0]["id"]) for each in rows) == list(range(80))
