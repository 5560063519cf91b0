"""Write the peak memory of a step for 400,000 cells, in KiB; arguments: a step, its columns.

The table has INTs and short VARCHARs. A step is the pure part of a process. It is measured in a
process of its own, whose peak also has what was needed for a moment, such as by compiling.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from penstock.datum.rows.row_codec import RowCodec
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from pumpclient.mysql.events.frame import EventType
from pumpclient.mysql.load.text_rows import TextRows, sql_rows, text_rows
from pumpclient.mysql.rows.rows_event import RowsEvent
from pumpclient.mysql.rows.table_map import Column, TableMap, WireType
from pumpclient.mysql.translate.transcode import Transcoder
from tests.kit.mysql.row_encoding import encode_rows, make_image
from tests.unit.penstock.ddl_session import DdlSession

CELLS = 400_000
EVENT_CELLS = 2_000
UTF8 = 45

Row = list[int | str | None]


def wide_table(columns: int, key: str = "PRIMARY KEY (c0)") -> TableInfo:
    """Return a table whose columns are INTs and VARCHARs in turn."""
    made = [f"c{n} {'VARCHAR(8)' if n % 2 else 'INT'}" for n in range(columns)]
    return DdlSession(f"CREATE TABLE t ({', '.join([*made, key])})").table()


def wide_row(columns: int, number: int) -> Row:
    return [f"x{number * n % 9973}" if n % 2 else number * (n + 1) for n in range(columns)]


def wide_map(columns: int) -> TableMap:
    number = Column(WireType.LONG, is_unsigned=False)
    text = Column(WireType.VARCHAR, 32, collation=UTF8)
    return TableMap("d", "t", tuple(text if n % 2 else number for n in range(columns)))


def packet(row: Row) -> bytes:
    """Return a row as a server sends it for a SELECT."""
    texts = [None if value is None else str(value).encode() for value in row]
    payload = b"".join(b"\xfb" if text is None else bytes([len(text)]) + text for text in texts)
    return len(payload).to_bytes(3, "little") + b"\0" + payload


def _load(reader: TextRows, columns: int, count: int) -> None:
    out: list[bytes] = []
    for number in range(count):
        reader.read(packet(wide_row(columns, number)), 0, out)
    assert len(out) == count


def _binlog(columns: int, count: int) -> None:
    table_map, full = wide_map(columns), (1 << columns) - 1
    transcoder = Transcoder(table_map, wide_table(columns))
    rows: list[bytes] = []
    many = EVENT_CELLS // columns
    for begin in range(0, count, many):
        images = [
            make_image(table_map.columns, wide_row(columns, n)) for n in range(begin, begin + many)
        ]
        event = RowsEvent(EventType.WRITE_ROWS_V1, columns, None, full, b"".join(images))
        rows += transcoder.changes(EventType.WRITE_ROWS_V1, encode_rows(event))[1]
    assert len(rows) == count


def _encoded(table: TableInfo, count: int) -> list[bytes]:
    codec, columns = RowCodec(table), len(table.columns)
    return [codec.encode_insert(wide_row(columns, number)) for number in range(count)]


# A source does not load what only tasks need: imported above, it would count in each step.


def _sql(columns: int, count: int) -> None:
    import pyarrow as pa

    from drainer.task.sql.generate import generate
    from drainer.task.work_unit import ROWS_SCHEMA, Op, WorkUnit

    table = wide_table(columns)
    changes = [[Op.UPSERT] * count, [MutationType.INSERT] * count, _encoded(table, count)]
    batch = pa.record_batch(changes, schema=ROWS_SCHEMA)
    made = generate(WorkUnit(1, 0, "mysql", "d", "t", table, batch))
    assert sum(map(len, made.upserts)) > CELLS


def _messages(columns: int, count: int) -> None:
    import numpy as np
    import pyarrow as pa

    from drainer.task.events.event_unit import CANAL_JSON, Encoding, encoded_messages, event_units
    from drainer.task.work_unit import Batch, TableRows

    table = wide_table(columns)
    rows = pa.array(_encoded(table, count), pa.binary())
    kinds = bytes([MutationType.INSERT]) * count
    batch = Batch(1, [TableRows("d", table, kinds, rows, np.arange(count))], commit_ts=range(count))
    (unit,) = event_units(batch, Encoding(CANAL_JSON, topic="{table}"), 1)
    assert len(list(encoded_messages(unit))) == count


STEPS: dict[str, Callable[[int, int], None]] = {
    "load through the Pumps": lambda n, count: _load(text_rows(wide_table(n)), n, count),
    "load into the sink": lambda n, count: _load(
        sql_rows(wide_table(n), ("d", "t")).reader, n, count
    ),
    "read the binlog": _binlog,
    "make SQL": _sql,
    "make messages": _messages,
}


def main() -> None:
    step, columns = sys.argv[1], int(sys.argv[2])
    STEPS[step](columns, CELLS // columns)
    status = Path("/proc/self/status").read_text().splitlines()
    sys.stdout.write(next(line.split()[1] for line in status if line.startswith("VmHWM")))


if __name__ == "__main__":
    main()
