"""Rows read column by column are the rows that are read one by one."""

import sys
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.task.sql.rows import RowChange as Change
from drainer.task.sql.rows import row_changes
from penstock.errors import Malformed
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from tests.kit.workloads.forty_types import ROWS, FortyTypes
from tests.unit.penstock.datum_tables import rows_of, tables
from tests.unit.penstock.test_datum_columns import encode

FORTY = FortyTypes()
KINDS = list(MutationType)


def read(table: TableInfo, kinds: list[MutationType], rows: list[bytes], few: int) -> list[Change]:
    return row_changes(table, np.array(kinds, np.uint8), pa.array(rows, pa.large_binary()), few)


def assert_same(table: TableInfo, kinds: list[MutationType], rows: list[bytes]) -> None:
    by_columns = read(table, kinds, rows, 0)
    assert repr(by_columns) == repr(read(table, kinds, rows, sys.maxsize))


@given(st.data())
@settings(max_examples=60)
def test_both_ways_give_the_same_values_in_the_same_order(data: st.DataObject) -> None:
    table = data.draw(tables())
    pairs = st.tuples(st.sampled_from(KINDS), rows_of(table), rows_of(table))
    changes = data.draw(st.lists(pairs, min_size=1, max_size=6))
    rows = [encode(table, *change) for change in changes]
    assert_same(table, [kind for kind, _, _ in changes], rows)


def test_forty_types_at_their_ends_are_the_same_in_both_ways() -> None:
    codec = FORTY.codec
    rows = [[codec.encode_insert(row), codec.encode_update(row, row)] for row in ROWS]
    kinds = [MutationType.INSERT, MutationType.UPDATE] * len(ROWS)
    assert_same(FORTY.table, kinds, list(chain(*rows)))


def test_bytes_of_another_table_are_malformed_in_both_ways() -> None:
    good = FORTY.codec.encode_insert(ROWS[0])
    for few in (0, sys.maxsize):
        with pytest.raises(Malformed, match="table 't'"):
            read(FORTY.table, [MutationType.INSERT] * 2, [good, b"\xff\xff"], few)
