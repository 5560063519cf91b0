"""Tables of many columns: the same bytes as from few columns, and little more memory."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import Malformed
from pumpclient.mysql.events.frame import EventType
from pumpclient.mysql.load.text_rows import sql_rows, text_rows
from pumpclient.mysql.rows.rows_decoder import Decoder
from pumpclient.mysql.rows.rows_event import UNROLLED_MAX, Reading, ReadRows, RowsEvent, read_rows
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


def test_an_unreadable_value_of_many_columns_is_named_with_few_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def counted(readings: Sequence[Reading], wanted: Sequence[int], name: str) -> ReadRows:
        made.append(len(wanted))
        return read_rows(readings, wanted, name)

    table_map, full = wide_map(COLUMNS), (1 << COLUMNS) - 1
    image = make_image(table_map.columns, wide_row(COLUMNS, 7))
    decoder = Decoder(table_map)
    monkeypatch.setattr("pumpclient.mysql.rows.rows_decoder.read_rows", counted)
    for number in (1, 65, COLUMNS - 2):
        text = str(wide_row(COLUMNS, 7)[number]).encode()
        broken = image.replace(bytes([len(text)]) + text, bytes([len(text)]) + b"\xff" * len(text))
        event = RowsEvent(EventType.WRITE_ROWS_V1, COLUMNS, None, full, broken)
        made.clear()
        with pytest.raises(Malformed, match=f"column number {number + 1} "):
            decoder.changes(EventType.WRITE_ROWS_V1, encode_rows(event))
        assert len(made) <= 2 + COLUMNS.bit_length()


@pytest.mark.parametrize("first", [100, 7_872, 8_000, 1 << 20])
def test_a_rows_event_is_read_whatever_the_ids_of_its_columns_are(first: int) -> None:
    table = wide_table(4)
    columns = tuple(replace(each, id=first + n) for n, each in enumerate(table.columns))
    table, table_map, row = replace(table, columns=columns), wide_map(4), wide_row(4, 7)
    event = RowsEvent(EventType.WRITE_ROWS_V1, 4, None, 0b1111, make_image(table_map.columns, row))
    found = Transcoder(table_map, table).changes(EventType.WRITE_ROWS_V1, encode_rows(event))[1]
    assert found == [RowCodec(table).encode_insert(row)]
