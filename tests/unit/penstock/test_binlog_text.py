from penstock.node.output import describe, kind_of, line_of, printable, time_text
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
