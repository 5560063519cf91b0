"""What commands print: text for people, JSON for programs."""

import datetime as dt
import decimal
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from penstock.errors import NeedsOperator
from penstock.node.output import (
    JSON,
    NO_TEXT,
    TEXT,
    describe,
    facts_in,
    kind_of,
    line_of,
    moment_of,
    plain,
    printable,
    reply_of,
    take_output,
    time_text,
    write,
    write_line,
)
from penstock.pb import penstock_pb2
from penstock.ts import compose
from penstock.wire.binlog import (
    Binlog,
    BinlogType,
    MutationType,
    PrewriteValue,
    TableMutation,
    fake_binlog,
)
from penstock.wire.codec import encode_prewrite_value


@pytest.mark.parametrize("flag", [["-o", "json"], ["--output", "json"], ["--output=json"]])
def test_the_output_is_taken_out_wherever_it_stands_and_the_rest_stays_as_it_is(
    flag: list[str],
) -> None:
    rest = ["replace", "5", "-- a comment\nDROP TABLE t", "--", "--addr=x"]
    for at in range(len(rest) + 1):
        assert take_output([*rest[:at], *flag, *rest[at:]]) == (JSON, rest)
    assert take_output(rest) == (TEXT, rest)


@pytest.mark.parametrize("flag", [["-o", "xml"], ["--output="], ["-o"]])
def test_another_output_is_refused(flag: list[str]) -> None:
    with pytest.raises(NeedsOperator, match="use -o text or -o json"):
        take_output(["list", *flag])


def test_facts_are_one_document_or_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"name": "Grüße\n", "ts": 463_000_000_000_000_001}
    write(JSON, facts, "text")
    assert json.loads(capsys.readouterr().out) == facts
    write(TEXT, facts, "text")
    assert capsys.readouterr().out == "text\n"
    write_line(facts)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == facts


def test_values_of_rows_have_a_form_in_json() -> None:
    values = [None, True, 1, 1.5, "a", b"\x00\xff", decimal.Decimal("1.50"), dt.date(2026, 11, 22)]
    expected = [None, True, 1, 1.5, "a", "00ff", "1.50", "2026-11-22"]
    assert [plain(value) for value in values] == expected
    assert plain(float("nan")) == "nan"


def test_the_moment_of_a_timestamp_is_utc_and_that_of_none_is_none() -> None:
    assert moment_of(compose(1_700_000_000_016, 3)) == "2023-11-14T22:13:20.016Z"
    assert moment_of(0) is None


@dataclass(frozen=True, kw_only=True)
class Stream:
    node_id: str
    summary: str
    received_ts: int = field(metadata=NO_TEXT)
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Merge:
    low_water: int
    held_by: str | None
    pumps: tuple[Stream, ...]


@dataclass(frozen=True, kw_only=True)
class Node:
    uptime_s: int
    lag_s: float
    labels: str
    storage: Mapping[str, int]
    merge: Merge


STREAM = Stream(node_id="10.0.0.1:8250", summary="online, ok", received_ts=1 << 62, holds=True)
NODE = Node(
    uptime_s=12,
    lag_s=0.25,
    labels="7",
    storage={"segments": 2},
    merge=Merge(low_water=3, held_by=None, pumps=(STREAM,)),
)
REPLY = reply_of(NODE, node_id="drainer-1", state="online", max_commit_ts=5)


def test_programs_read_numbers_truths_and_lists_with_their_types() -> None:
    assert facts_in(REPLY) == {
        "node_id": "drainer-1",
        "state": "online",
        "max_commit_ts": 5,
        "uptime_s": 12,
        "lag_s": 0.25,
        "labels": "7",
        "storage_segments": 2,
        "low_water": 3,
        "pumps": [
            {
                "node_id": "10.0.0.1:8250",
                "summary": "online, ok",
                "received_ts": 1 << 62,
                "holds": True,
            }
        ],
    }


def test_people_read_a_line_for_each_fact_that_has_a_text() -> None:
    assert dict(REPLY.details) == {
        "uptime_s": "12",
        "lag_s": "0.25",
        "labels": "7",
        "storage_segments": "2",
        "low_water": "3",
        "pump 10.0.0.1:8250": "online, ok",
        "pump 10.0.0.1:8250 holds": "True",
    }


def test_the_facts_of_an_older_node_are_text() -> None:
    old = penstock_pb2.StatusReply(node_id="pump-1", state="online", details={"uptime_s": "12"})
    assert facts_in(old)["uptime_s"] == "12"


TS = compose(1_700_000_000_016, 3)


def test_a_binlog_is_called_what_people_call_it() -> None:
    assert kind_of(Binlog(tp=BinlogType.PREWRITE, start_ts=1)) == "prewrite"
    assert kind_of(Binlog(tp=BinlogType.ROLLBACK, start_ts=1)) == "rollback"
    assert kind_of(fake_binlog(5)) == "fake"


def test_a_timestamp_is_a_moment_unless_no_calendar_knows_it() -> None:
    assert time_text(TS) == "2023-11-14T22:13:20.016Z"
    assert time_text((1 << 63) - 1) == "3084-12-12T12:41:28.831Z"
    assert time_text(1 << 90) == "not a time"


def test_a_line_has_the_query_of_a_ddl_without_its_line_breaks() -> None:
    ddl = Binlog(
        tp=BinlogType.PREWRITE, start_ts=TS, ddl_job_id=7, ddl_query=b"CREATE TABLE\n t (id INT)"
    )
    line = line_of(ddl, 99)
    assert line.startswith(f"prewrite  start_ts {TS}")
    assert "commit_ts - " in line
    assert line.endswith("2023-11-14T22:13:20.016Z  99 bytes  DDL job 7: CREATE TABLE t (id INT)")


def test_what_is_stored_cannot_steer_the_terminal() -> None:
    assert printable(b"a\x1b[31m\x07b \xff") == "a\\u001b[31m\\u0007b \\xff"


def test_all_of_a_binlog_is_described_row_by_row() -> None:
    mutation = TableMutation(
        table_id=42,
        inserted_rows=(b"\x01", b"\x02" * 70),
        deleted_rows=(b"\x03",),
        sequence=(MutationType.INSERT, MutationType.DELETE, MutationType.INSERT),
    )
    value = encode_prewrite_value(PrewriteValue(schema_version=5, mutations=(mutation,)))
    binlog = Binlog(tp=BinlogType.COMMIT, start_ts=TS, commit_ts=TS + 1, prewrite_value=value)
    described = describe(binlog).splitlines()
    assert described[0].split() == ["type", "commit"]
    assert described[3] == f"changes    {len(value)} bytes, schema version 5"
    assert described[4:] == [
        "  table 42: 2 insert, 1 delete",
        "    insert  01",
        "    delete  03",
        f"    insert  {'02' * 64} and 6 more bytes",
    ]


def test_bytes_that_are_no_row_changes_are_said_to_be_none() -> None:
    described = describe(Binlog(tp=BinlogType.PREWRITE, start_ts=TS, prewrite_value=b"\xff"))
    assert "1 bytes, which are no row changes: undecodable" in described
    many = TableMutation(
        table_id=1, inserted_rows=(b"r",) * 150, sequence=(MutationType.INSERT,) * 150
    )
    value = encode_prewrite_value(PrewriteValue(schema_version=1, mutations=(many,)))
    described = describe(Binlog(tp=BinlogType.PREWRITE, start_ts=TS, prewrite_value=value))
    assert described.endswith("and 50 more rows")
