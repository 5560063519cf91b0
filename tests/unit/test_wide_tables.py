"""Tables of many columns: the same bytes as from few columns, and little more memory."""

import subprocess
import sys

import pytest

from penstock.datum.rows.row_codec import RowCodec
from pumpclient.mysql.events.frame import EventType
from pumpclient.mysql.load.text_rows import sql_rows, text_rows
from pumpclient.mysql.rows.rows_decoder import Decoder
from pumpclient.mysql.rows.rows_event import UNROLLED_MAX, RowsEvent
from pumpclient.mysql.translate.transcode import Transcoder
from tests.kit.mysql.row_encoding import encode_rows, make_image
from tests.unit.wide_table import STEPS, Row, packet, wide_map, wide_row, wide_table


def _peak_kib(step: str, columns: int) -> int:
    command = [sys.executable, "-m", "tests.unit.wide_table", step, str(columns)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("step", STEPS)
def test_a_thousand_columns_take_at_most_half_more_memory_than_ten_for_the_same_cells(
    step: str,
) -> None:
    assert _peak_kib(step, 1000) <= 1.5 * _peak_kib(step, 10)


COLUMNS = 2 * UNROLLED_MAX + 3
"""They are read by three functions, the last of few columns."""
KEYS = ["PRIMARY KEY (c0)", f"PRIMARY KEY (c{COLUMNS - 1})", "PRIMARY KEY (c1)", "UNIQUE KEY (c2)"]
NULLS = [range(0), range(3, 9), range(UNROLLED_MAX, 2 * UNROLLED_MAX), range(2, COLUMNS - 1)]


def _rows() -> list[Row]:
    whole = wide_row(COLUMNS, 7)
    return [[None if n in nulls else value for n, value in enumerate(whole)] for nulls in NULLS]


@pytest.mark.parametrize("key", KEYS)
def test_all_columns_of_a_loaded_row_are_read_whatever_is_null(key: str) -> None:
    table = wide_table(COLUMNS, key)
    codec, reader = RowCodec(table), text_rows(table)
    of_column = [int(name.strip("`c")) for name in reader.columns]
    packets = [packet([row[n] for n in of_column]) for row in _rows()]
    found: list[bytes] = []
    reader.read(b"".join(packets), 0, found)
    assert [list(codec.decode_insert(row)) for row in found] == _rows()
    if table.primary_key is not None:
        assert found == [codec.encode_insert(row) for row in _rows()]
        assert [reader.row(data[4:]) for data in packets] == found


def test_all_columns_of_a_row_are_in_its_insert() -> None:
    way, found = sql_rows(wide_table(COLUMNS), ("d", "t")), list[bytes]()
    way.reader.read(b"".join(map(packet, _rows())), 0, found)
    texts = [
        ",".join("NULL" if v is None else f"'{v}'" if n % 2 else str(v) for n, v in enumerate(row))
        for row in _rows()
    ]
    assert found == [f"({text})".encode() for text in texts]


@pytest.mark.parametrize("key", KEYS)
def test_all_columns_of_a_rows_event_are_read_whatever_is_null(key: str) -> None:
    table, table_map = wide_table(COLUMNS, key), wide_map(COLUMNS)
    transcoder, codec = Transcoder(table_map, table, rowid=lambda: 77), RowCodec(table)
    images = b"".join(make_image(table_map.columns, row) for row in _rows())
    full = (1 << COLUMNS) - 1
    inserted = encode_rows(RowsEvent(EventType.WRITE_ROWS_V1, COLUMNS, None, full, images))
    deleted = encode_rows(RowsEvent(EventType.DELETE_ROWS_V1, COLUMNS, full, None, images))
    found = transcoder.changes(EventType.WRITE_ROWS_V1, inserted)[1]
    assert found == [codec.encode_insert(row, rowid=77) for row in _rows()]
    found = transcoder.changes(EventType.DELETE_ROWS_V1, deleted)[1]
    assert found == [codec.encode_delete(row) for row in _rows()]
    decoded = Decoder(table_map).changes(EventType.WRITE_ROWS_V1, inserted)
    assert decoded == [(None, tuple(row)) for row in _rows()]
