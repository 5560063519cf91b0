"""Spark reads the committed changes of real Pumps by `format("penstock")`, as batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.ts import physical_ms
from pumpclient import Options, PumpClient
from tests.kit.servers.authority import Authority
from tests.kit.servers.fix_pump import PumpProcess

QUICK = Options(probe_interval_s=0.3, commit_retry_s=0.2)
MakePump = Callable[..., PumpProcess]

TYPES = """CREATE TABLE shop.types (
    id BIGINT UNSIGNED PRIMARY KEY, tiny TINYINT, small SMALLINT UNSIGNED, whole INT,
    price DECIMAL(12,3), ratio DOUBLE, name VARCHAR(20), data VARBINARY(10), day DATE,
    at DATETIME(6), moment TIMESTAMP NULL, kind ENUM('a','b'), doc JSON)"""
ROW = {
    "id": 2**63, "tiny": -5, "small": 65535, "whole": 7, "price": "1.250", "ratio": 0.5,
    "name": "nüt", "data": b"\x00\xff", "day": "2026-02-28", "at": "2026-02-28 12:00:01.5",
    "moment": "2026-02-28 12:00:01", "kind": "b", "doc": '{"a": 1}',
}  # fmt: skip


@pytest.fixture
def shop(etcd_url: str, pump_factory: MakePump) -> Iterator[PumpClient]:
    for _ in range(2):
        pump_factory(etcd_url)
    with PumpClient.connect(etcd_url, options=QUICK) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.goods (id INT PRIMARY KEY, name VARCHAR(20))")
        yield client


def put(client: PumpClient, *ids: int, name: str = "nut") -> int:
    with client.begin("shop") as txn:
        txn.insert_many("goods", [{"id": number, "name": name} for number in ids])
    assert txn.commit_ts
    return txn.commit_ts


def read(spark: Any, etcd_url: str, **options: object) -> Any:
    reader = spark.read.format("penstock").option("etcd", etcd_url)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def test_each_row_is_a_change_with_the_column_types_of_its_table(
    spark_session: Any, etcd_url: str, shop: PumpClient
) -> None:
    shop.execute_ddl(TYPES)
    with shop.begin("shop") as txn:
        txn.insert("types", ROW)
        txn.update("types", ROW, {"price": "2.000"})
        txn.delete("types", {**ROW, "price": "2.000"})
    put(shop, 1)
    found = read(spark_session, etcd_url, table="shop.types")
    assert [(field.name, field.dataType.simpleString()) for field in found.schema] == [
        ("id", "decimal(20,0)"), ("tiny", "tinyint"), ("small", "int"), ("whole", "int"),
        ("price", "decimal(12,3)"), ("ratio", "double"), ("name", "string"), ("data", "binary"),
        ("day", "date"), ("at", "timestamp_ntz"), ("moment", "timestamp"), ("kind", "string"),
        ("doc", "string"), ("_kind", "string"), ("_commit_ts", "bigint"),
        ("_start_ts", "bigint"), ("_seq", "bigint"),
    ]  # fmt: skip
    rows = found.collect()
    assert [(row["_kind"], row["_seq"], row["price"]) for row in rows] == [
        ("insert", 0, Decimal("1.250")),
        ("update_preimage", 1, Decimal("1.250")),
        ("update_postimage", 2, Decimal("2.000")),
        ("delete", 3, Decimal("2.000")),
    ]
    first = rows[0].asDict()
    assert {row["_commit_ts"] for row in rows} == {txn.commit_ts}
    assert {row["_start_ts"] for row in rows} == {txn.start_ts}
    assert (first["id"], first["small"], first["name"], first["data"]) == (
        2**63, 65535, "nüt", b"\x00\xff",
    )  # fmt: skip
    assert (first["day"], first["at"]) == (
        date(2026, 2, 28),
        datetime.fromisoformat("2026-02-28T12:00:01.5"),
    )
    assert (first["kind"], first["doc"].replace(" ", "")) == ("b", '{"a":1}')
    assert found.selectExpr("cast(moment as string)").first()[0] == "2026-02-28 12:00:01"


def test_a_batch_is_between_two_commit_ts_or_times(
    spark_session: Any, etcd_url: str, shop: PumpClient
) -> None:
    committed = [put(shop, number) for number in range(6)]

    def ids(**options: object) -> list[int]:
        rows = read(spark_session, etcd_url, table="shop.goods", **options).collect()
        assert [row["_commit_ts"] for row in rows] == sorted(row["_commit_ts"] for row in rows)
        return [row["id"] for row in rows]

    assert ids() == list(range(6))
    assert ids(after=committed[1], until=committed[4]) == [2, 3, 4]
    assert ids(after=committed[5]) == []
    between = datetime.fromtimestamp((physical_ms(committed[5]) + 1) / 1000, UTC).isoformat()
    assert ids(until=between) == list(range(6))
    assert ids(after=between) == []
    with pytest.raises(Exception, match="the option after is 'yesterday'"):
        ids(after="yesterday")
    with pytest.raises(Exception, match=r"there is no table shop\.ghosts"):
        read(spark_session, etcd_url, table="shop.ghosts")


def test_without_a_table_all_changes_come_with_rows_as_json_and_ddl(
    spark_session: Any, etcd_url: str, shop: PumpClient
) -> None:
    put(shop, 1)
    shop.execute_ddl("ALTER TABLE shop.goods ADD COLUMN price DECIMAL(6,2) DEFAULT 1")
    with shop.begin("shop") as txn:
        txn.update("goods", {"id": 1, "name": "nut", "price": "1.00"}, {"name": None})
    rows = read(spark_session, etcd_url).collect()
    assert [row["_kind"] for row in rows] == ["ddl", "ddl", "insert", "ddl", "update"]
    assert rows[2]["after"] == '{"id": 1, "name": "nut"}'
    assert (rows[2]["schema"], rows[2]["table"], rows[2]["before"]) == ("shop", "goods", None)
    assert rows[3]["after"].startswith('{"query": "ALTER TABLE')
    assert rows[4]["before"] == '{"id": 1, "name": "nut", "price": "1.00"}'
    assert rows[4]["after"] == '{"id": 1, "name": null, "price": "1.00"}'


def test_a_batch_over_a_compatible_ddl_has_the_newest_columns_and_any_other_ddl_is_named(
    spark_session: Any, etcd_url: str, shop: PumpClient
) -> None:
    put(shop, 1)
    shop.execute_ddl("ALTER TABLE shop.goods ADD COLUMN stock INT, MODIFY id BIGINT")
    with shop.begin("shop") as txn:
        txn.insert("goods", {"id": 2**40, "name": "bolt", "stock": 3})
    rows = read(spark_session, etcd_url, table="shop.goods").collect()
    assert [(row["id"], row["name"], row["stock"]) for row in rows] == [
        (1, "nut", None), (2**40, "bolt", 3),
    ]  # fmt: skip
    (dropped_ts,) = shop.execute_ddl("ALTER TABLE shop.goods DROP COLUMN stock")
    with pytest.raises(Exception, match=r"'stock'.*ALTER TABLE `goods` DROP COLUMN"):
        read(spark_session, etcd_url, table="shop.goods").collect()
    until = read(spark_session, etcd_url, table="shop.goods", until=txn.commit_ts)
    assert until.count() == 2
    shop.execute_ddl("TRUNCATE TABLE shop.goods")
    with pytest.raises(Exception, match=r"the DDL at \d+, 'TRUNCATE TABLE .*, changes shop\.goods"):
        read(spark_session, etcd_url, table="shop.goods", after=dropped_ts).collect()


def test_a_transaction_larger_than_memory_is_read_in_slices(
    spark_session: Any, etcd_url: str, shop: PumpClient
) -> None:
    shop.execute_ddl("CREATE TABLE shop.blobs (id INT PRIMARY KEY, data LONGBLOB)")
    put(shop, 1)
    with shop.begin("shop") as txn:
        for number in range(40):
            txn.insert("blobs", {"id": number, "data": bytes([number]) * (1 << 20)})
    put(shop, 2)
    found = read(spark_session, etcd_url, table="shop.blobs")
    rows = found.selectExpr("id", "_seq", "length(data)", "hex(substr(data, 1, 1))").collect()
    assert [tuple(row) for row in rows] == [(n, n, 1 << 20, f"{n:02X}") for n in range(40)]
    assert read(spark_session, etcd_url).where("_kind = 'insert'").count() == 42


def test_with_tls_driver_and_tasks_show_their_certificate(
    spark_session: Any, etcd_url: str, pump_factory: MakePump, tmp_path: Path
) -> None:
    own = Authority(tmp_path).issue("node")
    pump_factory(etcd_url, **own.settings, security_cert_allowed_cn="node")
    with PumpClient.connect(etcd_url, tls=own.tls, options=QUICK) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.goods (id INT PRIMARY KEY, name VARCHAR(20))")
        put(client, 1)
    files = {name: own.settings[f"security_ssl_{name}"] for name in ("ca", "cert", "key")}
    found = read(spark_session, etcd_url, table="shop.goods", **files)
    assert [row["id"] for row in found.collect()] == [1]
