"""What a reader of TiDB-Binlog's topic gets: one message for each transaction and each DDL."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.settings.syncer_section import SyncerConfig, ToConfig, downstream_of
from drainer.settings.targets import KafkaTarget
from drainer.sinks.kafka.topics import encoding_of
from drainer.task.events.event_unit import encoder_of
from drainer.task.events.messages import Encoder, RowEvent
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.errors import NeedsOperator
from penstock.pb import slave_binlog_pb2 as pb
from penstock.schema.model import TableInfo
from tests.kit.sink_target import sink_target
from tests.kit.workloads.forty_types import HIGHEST, LOWEST, NAMES, NOTHING, FortyTypes

TS = 1_700_000_000_123 << 18 | 7
CLUSTER = 6_791_641_053_252_586_769
FORTY = FortyTypes()
LOW, HIGH, NULL = (
    FORTY.codec.decode_insert(FORTY.codec.encode_insert(row)) for row in (LOWEST, HIGHEST, NOTHING)
)


def encoder(options: str = "prefix=p") -> Encoder:
    target = sink_target(KafkaTarget, f"kafka://h/?format=tidb-binlog&{options}")
    return encoder_of(encoding_of(target, CLUSTER))


def table_of(sql: str) -> tuple[TableInfo, SchemaChange]:
    """Return the table db.t that a statement leaves, and what it did."""
    catalog = Catalog()
    ids = iter(range(1, 100))
    changes = [
        catalog.apply(job)
        for each in ("CREATE DATABASE db", sql)
        for job in plan_ddl(each, "db", catalog, lambda: next(ids))
    ]
    table = catalog.table("db", "t")
    assert table is not None
    return table, changes[-1]


ITEM, CREATED = table_of("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))")


def read(events: list[RowEvent], options: str = "prefix=p") -> pb.Binlog:
    (message,) = encoder(options).transaction(TS, events)
    assert (message.key, message.to) == (None, f"{CLUSTER}_obinlog/0")
    return pb.Binlog.FromString(message.value or b"")


def values(row: pb.Row) -> list[Any]:
    """Return what each column has, which is one field of its own."""
    found = []
    for column in row.columns:
        ((field, value),) = column.ListFields()
        found.append(None if field.name == "is_null" else value)
    return found


def test_a_transaction_is_one_message_with_its_tables_and_their_changes() -> None:
    other = table_of("CREATE TABLE t (a INT, b INT UNSIGNED, UNIQUE KEY u (b, a))")[0]
    made = read(
        [
            RowEvent("db", ITEM, None, (1, "a")),
            RowEvent("db", ITEM, (1, "a"), (1, "b")),
            RowEvent("db", ITEM, (1, "b"), None),
            RowEvent("shop", other.renamed("u"), None, (None, 7)),
        ]
    )
    assert (made.type, made.commit_ts, made.time_zone) == (pb.DML, TS, "+00:00")
    item, second = made.dml_data.tables
    assert (item.schema_name, item.table_name) == ("db", "t")
    assert [(c.name, c.mysql_type, c.is_primary_key) for c in item.column_info] == [
        ("id", "int", True), ("name", "varchar", False),
    ]  # fmt: skip
    assert [(key.name, list(key.column_names)) for key in item.unique_keys] == [("PRIMARY", ["id"])]
    assert [mutation.type for mutation in item.mutations] == [pb.Insert, pb.Update, pb.Delete]
    assert [values(mutation.row) for mutation in item.mutations] == [[1, "a"], [1, "b"], [1, "b"]]
    assert [mutation.HasField("change_row") for mutation in item.mutations] == [False, True, False]
    assert values(item.mutations[1].change_row) == [1, "a"]
    assert (second.schema_name, second.table_name) == ("shop", "u")
    assert [(key.name, list(key.column_names)) for key in second.unique_keys] == [("u", ["b", "a"])]
    assert values(second.mutations[0].row) == [None, 7]


def test_forty_types_are_in_the_fields_that_tidb_binlog_has_for_them() -> None:
    made = read([RowEvent("kinds", FORTY.table, None, row) for row in (LOW, HIGH, NULL)])
    (table,) = made.dml_data.tables
    types = {each.name: each.mysql_type for each in table.column_info}
    low, high, null = (dict(zip(types, m.row.columns, strict=True)) for m in table.mutations)
    assert [types[name] for name in ("c01", "c05", "c10", "c13", "c21", "c25", "c27", "c29")] == [
        "tinyint", "mediumint", "bigint", "decimal", "time", "binary", "varbinary", "text",
    ]  # fmt: skip
    assert [types[name] for name in ("c33", "c36", "c38", "c39", "c40")] == [
        "blob", "bit", "enum", "set", "json",
    ]  # fmt: skip
    assert (low["c09"].int64_value, high["c09"].int64_value) == (-(2**63), 2**63 - 1)
    assert (high["c02"].uint64_value, high["c10"].uint64_value) == (255, 2**64 - 1)
    assert (low["c11"].double_value, high["c12"].double_value) == (-1.5, 5e-324)
    assert low["c13"].string_value == "-" + "9" * 35 + "." + "9" * 30
    assert (low["c16"].string_value, high["c18"].string_value) == (
        "0000-00-00", "9999-12-31 23:59:59.999999",
    )  # fmt: skip
    assert (high["c20"].string_value, low["c22"].string_value) == (
        "2038-01-19 03:14:07.999", "-00:00:00.000001",
    )  # fmt: skip
    assert (low["c23"].string_value, high["c23"].string_value) == ("0", "2155")
    assert (high["c26"].string_value, high["c27"].bytes_value) == ("ü" * 60, bytes(range(60)))
    assert (low["c36"].bytes_value, high["c37"].bytes_value) == (b"\0", b"\xff" * 8)
    assert (high["c38"].uint64_value, high["c39"].uint64_value) == (2, 7)
    assert (low["c39"].uint64_value, low["c40"].bytes_value) == (0, b"null")
    assert all(null[name].is_null for name in NAMES)
    for row in (low, high, null):
        assert all(len(column.ListFields()) == 1 for column in row.values())


def test_timestamps_are_in_the_zone_that_is_said() -> None:
    made = read([RowEvent("kinds", FORTY.table, None, HIGH)], "time-zone=%2B08:00")
    (mutation,) = made.dml_data.tables[0].mutations
    names = [each.name for each in made.dml_data.tables[0].column_info]
    texts = {n: c.string_value for n, c in zip(names, mutation.row.columns, strict=True)}
    assert made.time_zone == "+08:00"
    assert (texts["c19"], texts["c17"]) == ("2038-01-19 11:14:07", "9999-12-31 23:59:59")


def test_generated_columns_and_keys_over_them_are_left_to_who_reads() -> None:
    table, _ = table_of(
        "CREATE TABLE t (a INT, b INT AS (a + 1) STORED, c INT, UNIQUE KEY (b), UNIQUE KEY (c))"
    )
    made = read([RowEvent("db", table, None, (1, 2, 3))]).dml_data.tables[0]
    assert [each.name for each in made.column_info] == ["a", "c"]
    assert [list(key.column_names) for key in made.unique_keys] == [["c"]]
    assert values(made.mutations[0].row) == [1, 3]


def test_a_ddl_is_one_message_with_its_text_and_its_table() -> None:
    (message,) = encoder("topic=old-{prefix}&prefix=p").ddl(TS, CREATED)
    assert (message.key, message.to) == (None, "old-p/0")
    made = pb.Binlog.FromString(message.value or b"")
    assert (made.type, made.commit_ts, made.HasField("dml_data")) == (pb.DDL, TS, False)
    assert (made.ddl_data.schema_name, made.ddl_data.table_name) == ("db", "t")
    assert made.ddl_data.ddl_query.decode() == CREATED.job.query
    assert made.ddl_data.ddl_query.startswith(b"CREATE TABLE `t`")


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1), st.integers(1, 5))
def test_the_slices_of_a_transaction_in_a_row_are_its_message(ids: list[int], size: int) -> None:
    events = [RowEvent("db", ITEM, None, (each, str(each))) for each in ids]
    parts = [events[at : at + size] for at in range(0, len(events), size)]
    joined = b"".join(
        message.value or b"" for part in parts for message in encoder().slice(TS, part)
    )
    made = pb.Binlog.FromString(joined)
    assert (made.type, made.commit_ts, made.time_zone) == (pb.DML, TS, "+00:00")
    rows = [values(m.row) for table in made.dml_data.tables for m in table.mutations]
    assert rows == [[each, str(each)] for each in ids]


def named(env: dict[str, str] | None = None, *, db_type: str = "kafka", **to: Any) -> KafkaTarget:
    syncer = SyncerConfig(db_type=db_type, to=ToConfig(**to))
    target = downstream_of("sqlite:///downstream.db", syncer, env or {})
    assert isinstance(target, KafkaTarget)
    return target


def test_a_kafka_is_named_as_in_tidb_binlog_too() -> None:
    target = named(
        kafka_addrs="a:1, b", topic_name="t", kafka_max_message_size=1 << 30, kafka_client_id="me"
    )
    assert (target.bootstrap_servers, target.client_id) == ("a:1,b:9092", "me")
    assert (target.message_bytes_max, target.partitions, target.watermark_s) == (10**9, 1, 0)
    encoding = encoding_of(target, CLUSTER)
    assert (encoding.topic, encoding.time_zone) == ("t", "+00:00")
    default = named({"KAFKA_ADDRS": "h:9"})
    assert (default.bootstrap_servers, default.client_id) == ("h:9", "tidb_binlog")
    assert encoding_of(default, CLUSTER).topic == f"{CLUSTER}_obinlog"
    with pytest.raises(NeedsOperator, match="db-type is kafka, and no brokers"):
        named()
    with pytest.raises(NeedsOperator, match=r"names a Kafka, and syncer\.db-type is 'mysql'"):
        named(db_type="mysql", kafka_addrs="h")
