"""A real Pump and real Drainers with Spark write a lake, which is read as the guide says."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pumpclient import PumpClient
from tests.kit.delta.lake_reader import LakeReader
from tests.kit.servers.fix_quick_start import COMMANDS_MAX, INSTALLING
from tests.kit.servers.fix_replication import Replication

GUIDE = Path(__file__).resolve().parents[2] / "drainer/guide/delta.md"


def test_the_quick_start_of_the_guide_is_short_and_names_what_there_is() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    (commands,) = re.findall(r"## In ten minutes.*?```\n(.*?)```", text, re.DOTALL)
    assert INSTALLING + len(commands.replace("\\\n", "").splitlines()) <= COMMANDS_MAX


def add(client: PumpClient, number: int, *more: object) -> int:
    with client.begin("shop") as txn:
        names = ["id", "name", "n"][: 2 + len(more)]
        row = dict(zip(names, (number, f"item {number}", *more), strict=True))
        txn.insert("item", row)
        txn.insert("twin", row)
    assert txn.commit_ts is not None
    return txn.commit_ts


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("payloads", ["driver", "executors"])
def test_what_writers_commit_is_in_the_lake_once_over_a_takeover(
    payloads: str, replication: Replication, tmp_path: Path
) -> None:
    replication.add_pump()
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[spark]\npayloads = "{payloads}"\n', encoding="utf-8")
    lake = tmp_path / "lake"
    sink = f"delta://{lake}?interval=500ms"
    with PumpClient.connect(replication.url) as client:
        client.execute_ddl("CREATE DATABASE shop")
        for name in ("item", "twin"):
            client.execute_ddl(f"CREATE TABLE shop.{name} (id INT PRIMARY KEY, name VARCHAR(20))")
        first_ts = add(client, 1)
        active = replication.drain_into(sink, config=settings)
        active.wait_until(first_ts)
        standby = replication.drain_into(sink, config=settings, started=False)
        standby.spawn()
        active.wait_until(max(add(client, number) for number in range(2, 30)))
        active.kill()  # As kill -9 does: the standby takes over.
        for name in ("item", "twin"):
            client.execute_ddl(f"ALTER TABLE shop.{name} ADD COLUMN n INT")
        standby.wait_until(add(client, 30, 7))
    wanted = [(n, f"item {n}", 7 if n == 30 else None) for n in range(1, 31)]
    (snippet,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    read: dict[str, Any] = {}
    exec(snippet.replace("/srv/lake", str(lake)) + "    found = locals().get('found', [])\n"
         "    found.append(sorted(rows.rows()))\n", read)  # fmt: skip
    assert read["found"] == [wanted, wanted]
    for versions in LakeReader(lake).states().values():  # Each state has both, or neither.
        rows = [
            LakeReader(lake).table("shop", name, versions["shop", name]).get_column("id").to_list()
            for name in ("item", "twin")
            if ("shop", name) in versions
        ]
        assert len(rows) < 2 or sorted(rows[0]) == sorted(rows[1])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("mode", "payloads"), [("mirror", "driver"), ("changes", "driver"), ("changes", "executors")]
)
def test_tasks_of_spark_write_the_files_of_large_transactions(
    mode: str, payloads: str, replication: Replication, tmp_path: Path
) -> None:
    replication.add_pump()
    lake, count = tmp_path / "lake", 6000
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[spark]\npayloads = "{payloads}"\n', encoding="utf-8")
    with PumpClient.connect(replication.url) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.bulk (id INT PRIMARY KEY, name VARCHAR(20))")
        sink = f"delta://{lake}?interval=0&mode={mode}"
        drainer = replication.drain_into(sink, config=settings)
        with client.begin("shop") as txn:
            for number in range(count):
                txn.insert("bulk", {"id": number, "name": "a"})
        with client.begin("shop") as txn:
            for number in range(count):
                txn.update("bulk", {"id": number, "name": "a"}, {"name": "b"})
        assert txn.commit_ts is not None
        drainer.wait_until(txn.commit_ts)
    if payloads == "executors":
        drainer.wait_for("executors fetch the payloads")
    table = DeltaTable(lake / "shop/bulk")
    rows = table.to_pyarrow_table()
    names = [("b", count)] if mode == "mirror" else [("a", 2 * count), ("b", count)]
    assert sorted(Counter(rows.column("name").to_pylist()).items()) == names
    assert len(set(rows.column("id").to_pylist())) == count
    # deltalake reports the count of files for a write of the Drainer, not for names of files.
    by_tasks = [each for each in table.history() if each["operation"] == "WRITE"
                and "operationMetrics" not in each]  # fmt: skip
    assert by_tasks
    assert list((lake / "_penstock/incoming").glob("*/*/*.parquet")) == []
