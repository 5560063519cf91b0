"""Messages as the formats' own documents show them, and each type's values in each format.

TiCDC's page on Canal-JSON: https://docs.pingcap.com/tidb/stable/ticdc-canal-json. Debezium's on its
connector for MySQL: https://debezium.io/documentation/reference/stable/connectors/mysql.html.
Maxwell's: https://maxwells-daemon.io/dataformat/.
"""

import base64
import json
from typing import Any

import pytest

from drainer.settings.targets import KafkaTarget
from drainer.sinks.kafka.topics import encoding_of
from drainer.task.events.event_unit import stream_encoder_of
from drainer.task.events.messages import RowEvent
from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.schema.model import TableInfo
from penstock.ts import physical_ms
from tests.kit.sink_target import sink_target
from tests.kit.workloads.forty_types import HIGHEST, LOWEST, NAMES, NOTHING, FortyTypes

TS = 429918007904436226
MS = physical_ms(TS)
CANAL, DEBEZIUM, MAXWELL = "canal-json", "debezium", "maxwell"


def table_of(sql: str) -> tuple[TableInfo, list[SchemaChange]]:
    """Return the table test.t that a statement makes, and all changes."""
    catalog, ids = Catalog(), iter(range(1, 100))
    changes = [
        catalog.apply(job)
        for each in ("CREATE DATABASE test", sql)
        for job in plan_ddl(each, "test", catalog, lambda: next(ids))
    ]
    table = catalog.table("test", "t")
    assert table is not None
    return table, changes


def message(form: str, table: TableInfo, before: Any, after: Any) -> Any:
    encoder = stream_encoder_of(
        encoding_of(sink_target(KafkaTarget, f"kafka://h/?prefix=p&format={form}"), 7)
    )
    made = encoder.transaction(TS, [RowEvent("test", table, before, after)])
    (found,) = (each.value for each in made if each.to.startswith("p.test.") and each.value)
    return json.loads(found)


def row_of(form: str, table: TableInfo, row: tuple[Any, ...]) -> dict[str, Any]:
    """Return a row as a format has it."""
    read = message(form, table, None, row)
    found = read["data"][0] if form == CANAL else read.get("data") or read["after"]
    assert isinstance(found, dict)
    return found


# --- canal-json --------------------------------------------------------------------------------

INTEGERS, _ = table_of(
    "CREATE TABLE t (id INT PRIMARY KEY, c_tinyint TINYINT, c_smallint SMALLINT,"
    " c_mediumint MEDIUMINT, c_int INT, c_bigint BIGINT)"
)
INTEGER_ROW = (2, 127, 32767, 8388607, 2147483647, 9223372036854775807)
INTEGER_TEXTS = {
    "c_bigint": "9223372036854775807", "c_int": "2147483647", "c_mediumint": "8388607",
    "c_smallint": "32767", "c_tinyint": "127", "id": "2",
}  # fmt: skip


def test_a_row_as_ticdc_documents_it() -> None:
    assert message(CANAL, INTEGERS, None, INTEGER_ROW) == {
        "id": 0, "database": "test", "table": "t", "pkNames": ["id"], "isDdl": False,
        "type": "INSERT", "es": MS, "ts": MS, "sql": "",
        "sqlType": {"c_bigint": -5, "c_int": 4, "c_mediumint": 4, "c_smallint": 5,
                    "c_tinyint": -6, "id": 4},
        "mysqlType": {"c_bigint": "bigint", "c_int": "int", "c_mediumint": "mediumint",
                      "c_smallint": "smallint", "c_tinyint": "tinyint", "id": "int"},
        "data": [INTEGER_TEXTS], "old": None, "_tidb": {"commitTs": TS},
    }  # fmt: skip


def test_the_row_before_as_ticdc_and_as_canal_document_it() -> None:
    after = (2, 0, 32767, 8388607, 0, 9223372036854775807)
    whole = message(CANAL, INTEGERS, INTEGER_ROW, after)
    assert whole["old"] == [INTEGER_TEXTS]
    assert whole["data"] == [INTEGER_TEXTS | {"c_int": "0", "c_tinyint": "0"}]
    changed = message(f"{CANAL}&old=changed", INTEGERS, INTEGER_ROW, after)
    assert changed["old"] == [{"c_int": "2147483647", "c_tinyint": "127"}]


def test_ddl_and_watermark_as_ticdc_documents_them() -> None:
    encoder = stream_encoder_of(
        encoding_of(sink_target(KafkaTarget, "kafka://h/?format=canal-json"), 7)
    )
    _, (change, *_) = table_of("CREATE TABLE t (id INT)")
    (ddl,) = encoder.ddl(TS, change)
    envelope = {
        "id": 0, "table": "", "pkNames": None, "es": MS, "ts": MS, "sqlType": None,
        "mysqlType": None, "data": None, "old": None,
    }  # fmt: skip
    assert json.loads(ddl.value or b"") == envelope | {
        "database": "test", "isDdl": True, "type": "QUERY", "sql": change.job.query,
        "_tidb": {"commitTs": TS},
    }  # fmt: skip
    assert json.loads(encoder.watermark(TS).value or b"") == envelope | {
        "database": "", "isDdl": False, "type": "TIDB_WATERMARK", "sql": "",
        "_tidb": {"watermarkTs": TS},
    }  # fmt: skip


def test_bytes_as_ticdc_documents_them() -> None:
    table, _ = table_of("CREATE TABLE t (c_varbinary VARBINARY(16))")
    data = bytes([5, 7, 10, 15, 36, 50, 43, 99, 120, 60, 38, 255, 254, 45, 55, 70])
    read = message(CANAL, table, None, (data,))
    assert read["data"] == [
        {"c_varbinary": json.loads(r'"\u0005\u0007\n\u000f$2+cx\u003c\u0026ÿþ-7F"')}
    ]
    assert read["sqlType"] == {"c_varbinary": 2004}


UNSIGNED = (
    ("TINYINT", 127, -6, 5), ("SMALLINT", 32767, 5, 4), ("MEDIUMINT", 8388607, 4, 4),
    ("INT", 2147483647, 4, -5), ("BIGINT", 9223372036854775807, -5, 3),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "last", "code", "larger"), UNSIGNED)
def test_codes_of_unsigned_integers_change_where_ticdc_says(
    kind: str, last: int, code: int, larger: int
) -> None:
    table, _ = table_of(f"CREATE TABLE t (n {kind} UNSIGNED)")
    for value, wanted in ((0, code), (last, code), (last + 1, larger), (2 * last + 1, larger)):
        assert message(CANAL, table, None, (value,))["sqlType"] == {"n": wanted}, value
    assert message(CANAL, table, None, (None,))["sqlType"] == {"n": code}


# --- Debezium, Maxwell -------------------------------------------------------------------------


def test_times_as_debezium_documents_them() -> None:
    table, _ = table_of("CREATE TABLE t (a DATETIME, b DATETIME(6), c TIMESTAMP NULL, d TIME)")
    moment = "2018-06-20 06:37:03"
    row = (moment, f"{moment}.000001", "2018-06-20 13:37:03", "01:00:00")
    assert row_of(DEBEZIUM, table, row) == {
        "a": 1529476623000, "b": 1529476623000001, "c": "2018-06-20T13:37:03Z", "d": 3_600_000_000,
    }  # fmt: skip


@pytest.mark.parametrize(("bits", "length"), [(2, 1), (8, 1), (9, 2), (64, 8)])
def test_bits_are_as_many_bytes_as_debezium_documents(bits: int, length: int) -> None:
    table, _ = table_of(f"CREATE TABLE t (b BIT({bits}))")
    assert base64.b64decode(row_of(DEBEZIUM, table, (2,))["b"]) == b"\2" + bytes(length - 1)


def test_a_zero_date_is_null_or_the_epoch_as_debezium_documents() -> None:
    kinds = {"a": "DATE", "b": "DATETIME", "c": "TIMESTAMP"}
    zero = ("0000-00-00", "0000-00-00 00:00:00", "0000-00-00 00:00:00")
    for null, wanted in (("NULL", (None,) * 3), ("NOT NULL", (0, 0, "1970-01-01T00:00:00Z"))):
        columns = ", ".join(f"{name} {kind} {null}" for name, kind in kinds.items())
        table, _ = table_of(f"CREATE TABLE t ({columns})")
        assert tuple(row_of(DEBEZIUM, table, zero).values()) == wanted


def test_an_unsigned_bigint_has_the_bytes_of_debeziums_mode_precise() -> None:
    table, _ = table_of("CREATE TABLE t (n BIGINT UNSIGNED)")
    read = message(f"{DEBEZIUM}&schemas=true", table, None, (11111111111111111111,))
    assert read["payload"]["after"] == {"n": "AJoymK+1rHHH"}


def test_rows_as_maxwell_documents_them() -> None:
    table, _ = table_of(
        "CREATE TABLE t (id INT PRIMARY KEY, m DOUBLE, c TIMESTAMP(6) NULL, comment VARCHAR(255))"
    )
    moment, text = "2016-10-21 05:33:37.523000", "I am a creature of light."
    before = (1, 4.2341, moment, text)
    head = {"database": "test", "table": "t", "ts": MS // 1000, "xid": TS, "commit": True}
    data = {"id": 1, "m": 4.2341, "c": moment, "comment": text}
    assert message(MAXWELL, table, None, before) == head | {"type": "insert", "data": data}
    assert message(MAXWELL, table, before, (1, 5.444, moment, text)) == head | {
        "type": "update", "data": data | {"m": 5.444}, "old": {"m": 4.2341},
    }  # fmt: skip
    assert message(MAXWELL, table, before, None) == head | {"type": "delete", "data": data}


# --- forty types in every format ---------------------------------------------------------------

FORTY = FortyTypes()
LOW, HIGH, NULL = (
    FORTY.codec.decode_insert(FORTY.codec.encode_insert(row)) for row in (LOWEST, HIGHEST, NOTHING)
)
SQL_TYPES = dict(zip(NAMES, (
    -6, 5, 5, 4, 4, 4, 4, -5, -5, 3, 7, 8, 3, 3, 3, 91, 93, 93, 93, 93, 92, 92, 12, 1, 2004, 12,
    2004, 2005, 2005, 2005, 2005, 2004, 2004, 2004, 2004, -7, -7, 4, -7, 12,
), strict=True))  # fmt: skip
"""By TiCDC's tables, of the highest values."""
CONNECT_TYPES = dict(zip(NAMES, (
    "int16", "int16", "int16", "int32", "int32", "int32", "int32", "int64", "int64", "bytes",
    "float", "double", "bytes", "bytes", "bytes", "int32", "int64", "int64", "string", "string",
    "int64", "int64", "int32", "string", "bytes", "string", "bytes", "string", "string", "string",
    "string", "bytes", "bytes", "bytes", "bytes", "boolean", "bytes", "string", "string", "string",
), strict=True))  # fmt: skip
SEMANTIC_TYPES = (
    dict.fromkeys(("c10", "c13", "c14", "c15"), "org.apache.kafka.connect.data.Decimal")
    | {"c16": "io.debezium.time.Date", "c17": "io.debezium.time.Timestamp",
       "c18": "io.debezium.time.MicroTimestamp", "c23": "io.debezium.time.Year",
       "c37": "io.debezium.data.Bits", "c38": "io.debezium.data.Enum",
       "c39": "io.debezium.data.EnumSet", "c40": "io.debezium.data.Json"}
    | dict.fromkeys(("c19", "c20"), "io.debezium.time.ZonedTimestamp")
    | dict.fromkeys(("c21", "c22"), "io.debezium.time.MicroTime")
)  # fmt: skip
"""By Debezium's tables."""


def test_each_of_forty_types_has_the_code_and_the_type_of_its_documents() -> None:
    assert message(CANAL, FORTY.table, None, HIGH)["sqlType"] == {"id": 4} | SQL_TYPES
    schema = message(f"{DEBEZIUM}&schemas=true", FORTY.table, None, HIGH)["schema"]
    (after,) = (each["fields"] for each in schema["fields"] if each["field"] == "after")
    assert {each["field"]: each["type"] for each in after} == {"id": "int32"} | CONNECT_TYPES
    named = {each["field"]: each["name"] for each in after if "name" in each}
    assert named == SEMANTIC_TYPES


def base64_of(value: bytes) -> str:
    return base64.b64encode(value).decode()


def in_canal(name: str, value: Any) -> Any:
    """Return what canal-json has for a value of the forty types."""
    if name in ("c38", "c39"):
        return {"x": "1", "it's": "2", "": "0", "p,q'q,r": "7"}[value]
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-15)
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def in_maxwell(name: str, value: Any) -> Any:
    if name == "c39":
        return value.split(",") if value else []
    if name == "c40":
        return json.loads(value)
    if name in ("c13", "c14", "c15"):
        return pytest.approx(float(value), rel=1e-15)
    return base64_of(value) if isinstance(value, bytes) else value


_DEBEZIUM: dict[str, tuple[Any, Any]] = {
    "c13": (base64_of((-int("9" * 65)).to_bytes(28, "big", signed=True)), base64_of(b"\1")),
    "c14": (base64_of((-99999).to_bytes(3, "big", signed=True)), base64_of(b"\0")),
    "c15": (base64_of(b"\0"), base64_of((9999999999).to_bytes(5, "big"))),
    "c16": (None, 2932896),
    "c17": (-30610224000000, 253402300799000),
    "c18": (None, 253402300799999999),
    "c19": ("1970-01-01T00:00:01Z", "2038-01-19T03:14:07Z"),
    "c20": (None, "2038-01-19T03:14:07.999Z"),
    "c21": (-3020399000000, 3020399000000),
    "c22": (-1, 3020398999999),
    "c36": (False, True),
    "c37": (base64_of(bytes(8)), base64_of(b"\xff" * 8)),
}


@pytest.mark.parametrize("form", [CANAL, DEBEZIUM, MAXWELL])
@pytest.mark.parametrize("at", [0, 1])
def test_each_of_forty_types_at_its_ends(form: str, at: int) -> None:
    read = row_of(form, FORTY.table, (LOW, HIGH)[at])
    for name, value in zip(NAMES, (LOWEST, HIGHEST)[at][1:], strict=True):
        if form == CANAL:
            found = float(read[name]) if isinstance(value, float) else read[name]
            assert found == in_canal(name, value), name
        elif form == MAXWELL:
            assert read[name] == in_maxwell(name, value), name
        elif name in _DEBEZIUM:
            assert read[name] == _DEBEZIUM[name][at], name
        else:
            assert read[name] == (base64_of(value) if isinstance(value, bytes) else value), name


@pytest.mark.parametrize("form", [CANAL, DEBEZIUM, MAXWELL])
def test_each_of_forty_types_is_null(form: str) -> None:
    read = row_of(form, FORTY.table, NULL)
    del read["id"]
    assert read == dict.fromkeys(NAMES)
