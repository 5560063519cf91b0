"""Flink's own readers of canal-json, Debezium JSON and Maxwell JSON get what was written."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from drainer.settings.targets import KafkaTarget
from drainer.sinks.kafka.topics import encoding_of
from drainer.task.events.event_unit import stream_encoder_of
from drainer.task.events.messages import RowEvent
from penstock.local.kafka import KafkaServer
from tests.kit.fakes.local_drainer import Way, run_drainer
from tests.kit.kafka.flink_reader import FlinkReader, applied
from tests.kit.kafka.topic_reader import read_topics
from tests.kit.sink_target import sink_target
from tests.kit.workloads import forty_types
from tests.kit.workloads.bank import TOTAL, Bank
from tests.kit.workloads.forty_types import HIGHEST, NAMES, NOTHING, ROWS, FortyTypes, Row

pytestmark = pytest.mark.slow

FORMATS = ("canal-json", "canal-json&old=changed", "debezium", "debezium&schemas=true", "maxwell")
ACCOUNT = {"id": "INT", "owner": "STRING", "balance": "BIGINT"}
ENTRY = {"account": "INT", "amount": "BIGINT", "note": "STRING"}

FORTY = FortyTypes()
WHOLE = {"c01": "TINYINT", "c02": "SMALLINT", "c03": "SMALLINT", "c04": "INT", "c05": "INT",
         "c06": "INT", "c07": "INT", "c08": "BIGINT", "c09": "BIGINT", "c10": "DECIMAL(20, 0)",
         "c14": "DECIMAL(5, 0)", "c15": "DECIMAL(10, 2)", "c23": "INT"}  # fmt: skip
TEXTS = dict.fromkeys(("c24", "c26", "c28", "c29", "c30", "c31"), "STRING")
FLOATS = {"c11": "FLOAT", "c12": "DOUBLE"}
BYTES = ("c25", "c27", "c32", "c33", "c34", "c35")
DATES = dict.fromkeys(("c16", "c17", "c18", "c19", "c20", "c21", "c22"), "STRING")
COLUMNS = {
    "canal-json": WHOLE | TEXTS | FLOATS | DATES | dict.fromkeys((*BYTES, "c13"), "STRING")
    | {"c36": "INT", "c37": "DECIMAL(20, 0)", "c38": "INT", "c39": "INT", "c40": "STRING"},
    "debezium&decimals=string": WHOLE | TEXTS | FLOATS | dict.fromkeys(BYTES, "BYTES")
    | {"c13": "STRING", "c16": "INT", "c17": "BIGINT", "c18": "BIGINT", "c19": "STRING",
       "c20": "STRING", "c21": "BIGINT", "c22": "BIGINT", "c36": "BOOLEAN", "c37": "BYTES",
       "c38": "STRING", "c39": "STRING", "c40": "STRING"},
    "maxwell": WHOLE | TEXTS | FLOATS | DATES | dict.fromkeys(BYTES, "BYTES")
    | {"c13": "STRING", "c36": "INT", "c37": "DECIMAL(20, 0)", "c38": "STRING", "c39": "STRING",
       "c40": "STRING"},
}  # fmt: skip
"""The type by which a Flink table has each of the forty columns."""


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkReader]:
    with FlinkReader(tmp_path_factory.mktemp("java")) as reader:
        yield reader


def encoded(form: str, *changes: tuple[Row | None, Row]) -> list[bytes | None]:
    """Return the messages of changes to the table of forty types, each as rows before and after."""
    encoder = stream_encoder_of(
        encoding_of(sink_target(KafkaTarget, f"kafka://h/?format={form}"), 7)
    )
    codec = FORTY.codec
    images = [
        [row and codec.decode_insert(codec.encode_insert(row)) for row in rows] for rows in changes
    ]
    events = [RowEvent("kinds", FORTY.table, before, after) for before, after in images]
    made = encoder.transaction(1 << 40, events)
    return [message.value for message in made if not message.to.startswith("penstock.transaction/")]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("partition", ["table", "key"])
def test_a_bank_has_its_accounts_and_its_money_in_flink(
    form: str, partition: str, kafka: KafkaServer, flink: FlinkReader, tmp_path: Path
) -> None:
    bank = Bank(seed=11, transactions=40, large_each=15)
    prefix = f"flink-{partition}-{FORMATS.index(form)}"
    url = (f"kafka://{kafka.address}/?prefix={prefix}&partitions=3&partition={partition}"
           f"&format={form}")  # fmt: skip
    way = Way(url=url, folder=tmp_path, strategy="events", bytes_max=20_000)
    assert asyncio.run(run_drainer(bank, way)).commit_ts == bank.last_ts
    found = read_topics(kafka.address, prefix)
    account, entry = (
        applied(
            flink.read(
                form, columns, (each.value for each in found if each.topic == f"{prefix}.{table}")
            )
        )
        for table, columns in (("bank.account", ACCOUNT), ("bank.entry", ENTRY))
    )
    state = bank.state_at(bank.last_ts)
    assert account == Counter(state.accounts)
    assert sum(balance for _, _, balance in account.elements()) == TOTAL
    assert Counter(row[:2] for row in entry.elements()) == state.entries


READ: dict[str, dict[str, tuple[object, object]]] = {
    "canal-json": {name: (low.decode("latin-1"), high.decode("latin-1"))
                   for name, _, low, high in forty_types.COLUMNS
                   if isinstance(low, bytes) and isinstance(high, bytes)}
    | {"c37": ("0", str(2**64 - 1)), "c38": (1, 2), "c39": (0, 7)},
    "debezium&decimals=string": {
        "c16": (None, 2_932_896), "c17": (-30_610_224_000_000, 253_402_300_799_000),
        "c18": (None, 253_402_300_799_999_999),
        "c19": ("1970-01-01T00:00:01Z", "2038-01-19T03:14:07Z"),
        "c20": (None, "2038-01-19T03:14:07.999Z"), "c21": (-3_020_399_000_000, 3_020_399_000_000),
        "c22": (-1, 3_020_398_999_999), "c36": (False, True), "c37": (bytes(8), b"\xff" * 8),
    },
    "maxwell": {"c37": ("0", str(2**64 - 1)), "c39": ("[]", '["p","q\'q","r"]'),
                "c13": ("-" + "9" * 35 + "." + "9" * 30, "1E-30"),
                "c40": (None, '{"a":[1,-9223372036854775808,18446744073709551615,1.5,"ü\'"]}')},
}  # fmt: skip
"""What Flink has of the lowest and of the highest value, where that is not the value itself."""


@pytest.mark.parametrize("form", COLUMNS)
def test_forty_types_with_their_extreme_values_in_flink(form: str, flink: FlinkReader) -> None:
    columns = COLUMNS[form]
    assert columns.keys() == set(NAMES)
    found = flink.read(form, columns, encoded(form, *((None, row) for row in ROWS)))
    assert [change.kind for change in found] == ["+I"] * 3
    low, high, null = (dict(zip(columns, change.row, strict=True)) for change in found)
    assert null == dict.fromkeys(columns)
    for name, _, lowest, highest in forty_types.COLUMNS:
        as_text = columns[name].startswith("DECIMAL")
        plain = (str(lowest), str(highest)) if as_text else (lowest, highest)
        assert (low[name], high[name]) == READ[form].get(name, plain), name


@pytest.mark.parametrize("form", ["canal-json", "maxwell"])
def test_dates_and_times_may_be_of_flinks_own_types(form: str, flink: FlinkReader) -> None:
    columns = {"c16": "DATE", "c17": "TIMESTAMP(0)", "c18": "TIMESTAMP(6)", "c20": "TIMESTAMP(3)"}
    ((_, row),) = flink.read(form, columns, encoded(form, (None, HIGHEST)))
    assert row == (
        2_932_896, "9999-12-31T23:59:59", "9999-12-31T23:59:59.999999", "2038-01-19T03:14:07.999",
    )  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_a_null_before_is_a_null_and_not_what_has_not_changed(
    form: str, flink: FlinkReader
) -> None:
    columns = {"id": "INT", "c29": "STRING", "c01": "INT"}
    before, after = (1, *NOTHING[1:]), (1, *HIGHEST[1:])
    assert [tuple(each) for each in flink.read(form, columns, encoded(form, (before, after)))] == [
        ("-U", (1, None, None)),
        ("+U", (1, "𝄞" * 100, 127)),
    ]


def test_ddl_and_watermarks_are_apart_since_flink_refuses_them(
    kafka: KafkaServer, flink: FlinkReader, tmp_path: Path
) -> None:
    bank = Bank(seed=12, transactions=5)
    url = f"kafka://{kafka.address}/?prefix=flink-ddl&format=canal-json"
    asyncio.run(run_drainer(bank, Way(url=url, folder=tmp_path, strategy="events")))
    topic = [
        each for each in read_topics(kafka.address, "flink-ddl") if each.topic == "flink-ddl.ddl"
    ]
    assert {each.json["isDdl"] for each in topic} == {True, False}
    with pytest.raises(Py4JJavaError, match='Unknown "type" value'):
        flink.read("canal-json", ACCOUNT, [topic[0].value])
