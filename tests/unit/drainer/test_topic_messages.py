"""What readers of topics get: canal-json and Debezium JSON, their keys, topics and partitions."""

import base64
import json
from collections import Counter
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.settings.targets import KafkaTarget
from drainer.sinks.kafka.topics import encoding_of
from drainer.task.events.event_unit import stream_encoder_of
from drainer.task.events.messages import Message, RowEvent, StreamEncoder
from drainer.task.events.topics.destination import (
    Destinations,
    hash_of,
    murmur2,
    topic_name,
    topic_of,
)
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.errors import NeedsOperator
from penstock.schema.model import TableInfo
from tests.kit.opened_sinks import open_event_sink
from tests.kit.sink_target import sink_target
from tests.kit.workloads.forty_types import HIGHEST, LOWEST, NAMES, NOTHING, FortyTypes
from tests.unit.penstock.ddl_session import DdlSession

TS = 1_700_000_000_123 << 18 | 7
MS = 1_700_000_000_123
FORTY = FortyTypes()
LOW, HIGH, NULL = (
    FORTY.codec.decode_insert(FORTY.codec.encode_insert(row)) for row in (LOWEST, HIGHEST, NOTHING)
)


def encoder(options: str = "format=canal-json") -> StreamEncoder:
    return stream_encoder_of(
        encoding_of(sink_target(KafkaTarget, f"kafka://h/?prefix=p&{options}"), 7)
    )


def made(sql: str) -> tuple[TableInfo, list[SchemaChange]]:
    """Return the table db.t that statements leave, and what they did."""
    catalog, changes = Catalog(), []
    ids = iter(range(1, 100))
    for each in ("CREATE DATABASE db", sql):
        jobs = plan_ddl(each, "db", catalog, lambda: next(ids))
        changes += [catalog.apply(job) for job in jobs]
    table = catalog.table("db", "t")
    assert table is not None
    return table, changes


ITEM, _CREATED = made("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), n INT UNSIGNED)")


def messages(
    before: Any, after: Any, *, table: TableInfo = ITEM, options: str = "format=canal-json"
) -> list[Message]:
    event = RowEvent("db", table, before, after)
    return list(encoder(options).transaction(TS, [event]))


def values(*args: Any, **options: Any) -> list[Any]:
    """Return the values of rows, read as JSON, without what begins and ends a transaction."""
    return [
        None if each.value is None else json.loads(each.value)
        for each in messages(*args, **options)
        if not each.to.startswith("p.transaction/")
    ]


TWO_CHANGES = [
    RowEvent("db", ITEM, None, (1, "a", 5)),
    RowEvent("db", ITEM, (1, "a", 5), (1, "b", 5)),
]


# --- canal-json --------------------------------------------------------------------------------


def test_a_canal_message_is_what_tidb_documents_and_nothing_else() -> None:
    (message,) = messages(None, (1, 'a"ü', 3_000_000_000))
    assert (
        message.value
        == (
            '{"id":0,"database":"db","table":"t","pkNames":["id"],"isDdl":false,"type":"INSERT",'
            f'"es":{MS},"ts":{MS},"sql":"","sqlType":{{"id":4,"name":12,"n":-5}},'
            '"mysqlType":{"id":"int","name":"varchar","n":"int unsigned"},'
            '"data":[{"id":"1","name":"a\\"ü","n":"3000000000"}],"old":null,'
            f'"_tidb":{{"commitTs":{TS}}}}}'
        ).encode()
    )
    assert (message.key, message.to) == (None, f"p.db.t/{murmur2(b'db.t')}")


def test_an_update_has_the_row_before_or_what_changed_of_it() -> None:
    (full,) = values((1, "a", 5), (1, None, 5))
    assert (full["type"], full["data"], full["old"]) == (
        "UPDATE", [{"id": "1", "name": None, "n": "5"}], [{"id": "1", "name": "a", "n": "5"}],
    )  # fmt: skip
    (changed,) = values((1, "a", 5), (1, None, 5), options="format=canal-json&old=changed")
    assert changed["old"] == [{"name": "a"}]
    (deleted,) = values((1, "a", 5), None)
    assert (deleted["type"], deleted["old"]) == ("DELETE", None)
    assert deleted["data"] == [{"id": "1", "name": "a", "n": "5"}]


def test_forty_types_as_canal_texts() -> None:
    (low,) = values(None, LOW, table=FORTY.table)
    (high,) = values(None, HIGH, table=FORTY.table)
    (null,) = values(None, NULL, table=FORTY.table)
    assert null["data"] == [{"id": "3"} | dict.fromkeys(NAMES)]
    data, codes = high["data"][0], high["sqlType"]
    assert (low["sqlType"]["c02"], codes["c02"], codes["c04"], codes["c08"], codes["c10"]) == (
        -6, 5, 4, -5, 3,
    )  # fmt: skip
    assert null["sqlType"]["c10"] == low["sqlType"]["c10"] == -5
    assert [codes[name] for name in ("c24", "c25", "c26", "c29", "c33", "c36", "c38", "c39")] == [
        1, 2004, 12, 2005, 2004, -7, 4, -7,
    ]  # fmt: skip
    assert (data["c10"], data["c37"]) == (str(2**64 - 1),) * 2
    assert (data["c11"], low["data"][0]["c11"]) == ("16777216", "-1.5")
    assert float(low["data"][0]["c12"]) == -1.7976931348623157e308
    assert "e" not in low["data"][0]["c12"] + data["c12"]
    assert low["data"][0]["c13"] == "-" + "9" * 35 + "." + "9" * 30
    assert (data["c38"], data["c39"], low["data"][0]["c39"]) == ("2", "7", "0")
    assert data["c33"].encode("latin-1") == bytes(range(256))
    for at, name in enumerate(NAMES, 1):
        for row, read in ((LOWEST, low), (HIGHEST, high)):
            if isinstance(row[at], str) and name not in ("c38", "c39"):
                assert read["data"][0][name] == row[at], name


@given(st.text(), st.text(max_size=20))
def test_any_text_is_read_back_by_any_reader_of_json(text: str, other: str) -> None:
    for options, path in (("format=canal-json", "data"), ("format=debezium", "after")):
        (read,) = values(None, (1, text, 0), options=options)
        row = read[path][0] if path == "data" else read[path]
        assert row["name"] == text
    (read,) = values((1, other, 0), (1, text, 0), options="format=debezium")
    assert (read["before"]["name"], read["after"]["name"]) == (other, text)


def test_a_ddl_and_a_watermark_go_to_a_topic_of_their_own() -> None:
    _, changes = made("CREATE TABLE t (id INT)")
    (message,) = encoder().ddl(TS, changes[-1])
    read = json.loads(message.value or b"")
    assert (read["isDdl"], read["type"], read["sql"]) == (True, "CREATE", changes[-1].job.query)
    assert message.to == "p.ddl/0"
    session = DdlSession("CREATE TABLE t (id INT)", "CREATE TABLE u (id INT)", "DROP TABLE t, u")
    dropped = session.changes[-1]
    for name, key in (("canal-json", "sql"), ("maxwell", "sql"), ("debezium", "ddl")):
        found = [json.loads(m.value or b"") for m in encoder(f"format={name}").ddl(TS, dropped)]
        assert [each[key] for each in found] == ["DROP TABLE `t`", "DROP TABLE `u`"]
    watermark = encoder().watermark(TS)
    assert json.loads(watermark.value or b"")["_tidb"] == {"watermarkTs": TS}
    for name in ("format=canal-json", "format=debezium"):
        assert encoder(name).watermark(TS).to == "p.ddl/0"


# --- Debezium ----------------------------------------------------------------------------------

DEBEZIUM = "format=debezium"


def test_a_debezium_transaction_begins_numbers_its_rows_and_ends() -> None:
    begin, first, second, end = encoder(DEBEZIUM).transaction(TS, TWO_CHANGES)
    read = json.loads(first.value or b"")
    assert (first.key, first.to) == (b'{"id":1}', f"p.db.t/{murmur2(b'db.t')}")
    assert (read["op"], read["before"], read["after"]) == (
        "c",
        None,
        {"id": 1, "name": "a", "n": 5},
    )
    assert (read["ts_ms"], read["source"]["commit_ts"], read["source"]["db"]) == (MS, TS, "db")
    order = {"id": str(TS), "total_order": 1, "data_collection_order": 1}
    assert read["transaction"] == order
    assert json.loads(second.value or b"")["transaction"]["total_order"] == 2
    assert json.loads(begin.value or b"") == {
        "status": "BEGIN", "id": str(TS), "ts_ms": MS, "event_count": None,
        "data_collections": None,
    }  # fmt: skip
    assert json.loads(end.value or b"")["data_collections"] == [
        {"data_collection": "db.t", "event_count": 2}
    ]
    assert begin.to == end.to == "p.transaction/0"


def test_behind_a_delete_comes_a_tombstone_and_another_key_is_another_row() -> None:
    moved = [each for each in messages((1, "a", 5), (2, "a", 5), options=DEBEZIUM)][1:-1]
    assert [each.key for each in moved] == [b'{"id":1}', b'{"id":1}', b'{"id":2}']
    ops = [None if each.value is None else json.loads(each.value)["op"] for each in moved]
    assert ops == ["d", None, "c"]
    assert len(values((1, "a", 5), None, options=f"{DEBEZIUM}&tombstones=false")) == 1


def test_forty_types_as_debezium_has_them() -> None:
    (low,) = values(None, LOW, table=FORTY.table, options=f"{DEBEZIUM}&schemas=true")
    (high,) = values(None, HIGH, table=FORTY.table, options=f"{DEBEZIUM}&schemas=true")
    fields = {
        each["field"]: each
        for part in high["schema"]["fields"] if part["field"] == "after"
        for each in part["fields"]
    }  # fmt: skip
    least, most = low["payload"]["after"], high["payload"]["after"]
    assert [fields[name]["type"] for name in ("c01", "c03", "c04", "c08", "c10", "c11", "c36")] == [
        "int16", "int16", "int32", "int64", "bytes", "float", "boolean",
    ]  # fmt: skip
    assert fields["c13"]["parameters"] == {"scale": "30", "connect.decimal.precision": "65"}
    unscaled = int.from_bytes(base64.b64decode(least["c13"]), "big", signed=True)
    assert unscaled == -int("9" * 65)
    assert (least["c16"], most["c16"]) == (None, 2932896)
    assert (most["c17"], fields["c17"]["name"]) == (253402300799000, "io.debezium.time.Timestamp")
    assert (least["c18"], most["c18"]) == (None, 253402300799999999)
    assert (least["c19"], most["c20"]) == ("1970-01-01T00:00:01Z", "2038-01-19T03:14:07.999Z")
    assert (least["c21"], least["c22"]) == (-3020399000000, -1)
    assert (least["c36"], most["c36"]) == (False, True)
    assert base64.b64decode(most["c37"]) == b"\xff" * 8
    assert (most["c38"], most["c39"], fields["c39"]["parameters"]) == (
        "it's", "p,q'q,r", {"allowed": "p,q'q,r"},
    )  # fmt: skip
    assert base64.b64decode(most["c33"]) == bytes(range(256))
    assert (least["c09"], most["c09"]) == (-(2**63), 2**63 - 1)
    (text,) = values(None, HIGH, table=FORTY.table, options=f"{DEBEZIUM}&decimals=string")
    assert text["after"]["c15"] == "99999999.99"
    (null,) = values(None, NULL, table=FORTY.table, options=DEBEZIUM)
    assert null["after"] == {"id": 3} | dict.fromkeys(NAMES)


@given(st.integers(0, 2**64 - 1))
def test_an_unsigned_bigint_is_a_decimal_where_a_schema_would_say_int64(number: int) -> None:
    table, _ = made("CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY)")
    _, message, _ = messages(None, (number,), table=table, options=f"{DEBEZIUM}&schemas=true")
    for text in (message.key, message.value):
        read = json.loads(text or b"")["payload"]
        data = base64.b64decode(read.get("after", read)["id"])
        assert int.from_bytes(data, "big", signed=True) == number
    (field,) = json.loads(message.key or b"")["schema"]["fields"]
    assert field["parameters"] == {"scale": "0", "connect.decimal.precision": "20"}
    (plain,) = values(None, (number,), table=table, options=DEBEZIUM)
    assert plain["after"] == {"id": number}


@given(st.integers(-(10**64), 10**64))
def test_a_decimal_has_the_bytes_of_javas_big_integer(number: int) -> None:
    table, _ = made("CREATE TABLE t (id INT PRIMARY KEY, d DECIMAL(65,0))")
    (read,) = values(None, (1, Decimal(number)), table=table, options=DEBEZIUM)
    data = base64.b64decode(read["after"]["d"])
    assert int.from_bytes(data, "big", signed=True) == number
    assert len(data) == (number if number >= 0 else ~number).bit_length() // 8 + 1


# --- Maxwell -----------------------------------------------------------------------------------

MAXWELL = "format=maxwell"


def test_a_maxwell_transaction_numbers_its_rows_and_the_last_one_commits() -> None:
    first, last = encoder(MAXWELL).transaction(TS, TWO_CHANGES)
    assert (
        first.value
        == (
            f'{{"database":"db","table":"t","type":"insert","ts":{MS // 1000},"xid":{TS},'
            '"xoffset":0,"data":{"id":1,"name":"a","n":5}}'
        ).encode()
    )
    read = json.loads(last.value or b"")
    assert (read["commit"], read["type"], read["old"]) == (True, "update", {"name": "a"})
    assert first.key == b'{"database":"db","table":"t","pk.id":1}'


def test_forty_types_as_maxwell_has_them() -> None:
    (low,), (high,), (null,) = (
        values(None, row, table=FORTY.table, options=MAXWELL) for row in (LOW, HIGH, NULL)
    )
    most, least = high["data"], low["data"]
    assert null["data"] == {"id": 3} | dict.fromkeys(NAMES)
    assert (most["c10"], most["c37"], least["c09"]) == (2**64 - 1, 2**64 - 1, -(2**63))
    assert (most["c39"], least["c39"], most["c38"]) == (["p", "q'q", "r"], [], "it's")
    assert base64.b64decode(most["c33"]) == bytes(range(256))
    assert (least["c16"], least["c18"]) == ("0000-00-00", "0000-00-00 00:00:00.000000")
    assert most["c40"]["a"][:3] == [1, -(2**63), 2**64 - 1]
    (text,) = messages(None, LOW, table=FORTY.table, options=MAXWELL)
    assert b'"c13":-' + b"9" * 35 + b"." + b"9" * 30 in (text.value or b"")


# --- topics, keys, partitions, sizes -----------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829), (b"abc", 479470107),
    ],
)  # fmt: skip
def test_the_hash_is_that_of_kafkas_own_clients(data: bytes, wanted: int) -> None:
    """The values are those of Kafka's own test of Utils.murmur2."""
    assert murmur2(data) == wanted & 0x7FFFFFFF


def test_by_key_all_of_a_row_is_in_one_partition_and_a_moved_one_in_two() -> None:
    options = "format=canal-json&partition=key"
    (one,) = messages(None, (1, "a", 5), options=options)
    assert (one.key, one.to) == (b'{"id":"1"}', f"p.db.t/{murmur2(one.key or b'')}")
    gone, new = messages((1, "a", 5), (2, "a", 5), options=options)
    assert [json.loads(each.value or b"")["type"] for each in (gone, new)] == ["DELETE", "INSERT"]
    assert gone.to == one.to != new.to
    keyless, _ = made("CREATE TABLE t (a INT)")
    (message,) = messages(None, (1,), table=keyless, options=options)
    assert (message.key, message.to) == (None, f"p.db.t/{murmur2(b'db.t')}")


def test_by_ts_the_rows_of_a_transaction_are_together_and_transactions_are_spread() -> None:
    made = list(encoder(f"{DEBEZIUM}&partition=ts").transaction(TS, TWO_CHANGES))[1:-1]
    (to,) = {each.to for each in made}
    assert (topic_of(to), made[0].key) == ("p.db.t", b'{"id":1}')
    milliseconds = [TS + (ms << 18) for ms in range(1000)]
    counts = Counter(hash_of(to, commit_ts) % 4 for commit_ts in milliseconds)
    assert min(counts.values()) > 150, "though commit_ts are multiples of a power of two"
    gone_and_new = messages((1, "a", 5), (2, "a", 5), options="partition=ts")
    assert [json.loads(each.value or b"")["type"] for each in gone_and_new] == ["UPDATE"]


def test_spaces_at_the_end_of_a_char_are_no_part_of_a_key() -> None:
    table, _ = made("CREATE TABLE t (c CHAR(5) PRIMARY KEY)")
    first, second = (
        messages(None, (text,), table=table, options="partition=key")[0].to for text in ("a", "a ")
    )
    assert first == second


def test_topics_follow_the_template_and_the_names_that_kafka_allows() -> None:
    rules = Destinations(prefix="p", topic="{schema}-{table}", partition="one")
    table, _ = made("CREATE TABLE t (a INT)")
    to = rules.of("ü b", table.renamed("x/y")).to(None)
    assert (topic_of(to), hash_of(to, TS)) == ("__b-x_y", 0)
    with pytest.raises(NeedsOperator, match="cannot be the name"):
        topic_name("x" * 250)


@pytest.mark.parametrize(("options", "path"), [("format=canal-json", "data"), (DEBEZIUM, "after")])
def test_a_row_that_is_too_large_has_its_key_alone_by_choice(options: str, path: str) -> None:
    table, _ = made("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
    row = (1, "x" * 5000)
    chosen = f"{options}&max-message-bytes=2000&oversize=key-only"
    (cut,) = values(None, row, table=table, options=chosen)
    assert (cut[path][0] if path == "data" else cut[path]) in ({"id": "1"}, {"id": 1})
    assert cut.get("_tidb", {}).get("onlyHandleKey") or cut["source"]["only_key"]
    (whole,) = values(None, row, table=table, options=f"{options}&max-message-bytes=2000")
    assert "x" * 5000 in json.dumps(whole)


def test_a_certificate_that_is_not_there_is_said_and_not_waited_for(tmp_path: Path) -> None:
    url = f"kafka://127.0.0.1:1/?ssl-ca={tmp_path / 'none.pem'}"
    with (
        closing(open_event_sink(url, cluster_id=1)) as sink,
        pytest.raises(NeedsOperator, match="refuses a setting"),
    ):
        sink.load_checkpoint()
