"""JSON with a MySQL's types as SQL: a MariaDB reads its plain text, whichever way it was made."""

from decimal import Decimal
from typing import cast

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from drainer.task.sql.literals import MYSQL, SQLITE, literal, literal_column
from drainer.task.sql.rows import after_columns, row_codec
from penstock.datum import jsonb
from penstock.datum.jsonb import json_literal, literal_of_text
from penstock.wire.binlog import MutationType
from tests.kit.workloads.changes import table_of

TABLE = table_of("CREATE TABLE t (id INT PRIMARY KEY, j JSON)")
DATE = jsonb.Scalar(jsonb.DATE, (2020 << 50 | 2 << 46 | 29 << 41).to_bytes(8, "little"))
BYTES = jsonb.Scalar(jsonb.OPAQUE, b"\x0f\x02'\xff")
KEYS = st.text(alphabet="ab.\"'*/\\$[] é😀\n", max_size=6)
DOCUMENTS = st.recursive(
    st.decimals(-(10**9), 10**9, places=4) | st.sampled_from((DATE, BYTES, "it's", 1.5, 7, None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@given(DOCUMENTS)
def test_comments_end_where_a_mariadb_ends_them_and_hide_all_but_the_text(value: object) -> None:
    text = jsonb.read_text(jsonb.encode(value), 0)[0]
    quoted = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    made = json_literal(text)
    if not isinstance(text, jsonb.TypedJson):
        assert made == quoted
        return
    head, tail = "/*!50708 JSON_SET(CAST(*/", "/*!50708 AS JSON)"
    assert made.startswith(head + quoted + tail)
    rest = made.removeprefix(head + quoted + tail)
    assert rest.endswith(")*/")
    assert rest.index("*/") == len(rest) - 2
    assert rest.count(",'$") == len(list(jsonb.typed_scalars(text.binary)))


def test_a_literal_has_paths_types_and_sizes() -> None:
    value = {"a": Decimal("-0.05"), "b'*": [1, DATE], "c": Decimal("120"), "d": BYTES}
    assert json_literal(jsonb.read_text(jsonb.encode(value), 0)[0]).partition("AS JSON)")[2] == (
        ",'$.\"a\"',CAST('-0.05' AS DECIMAL(2,2)),"
        "'$.\"b\\\\u0027\\\\u002a\"[1]',CAST('2020-02-29' AS DATE),"
        "'$.\"c\"',CAST('120' AS DECIMAL(3,0)),'$.\"d\"',x'27ff')*/"
    )


@given(st.lists(DOCUMENTS, min_size=1, max_size=5))
def test_a_column_of_documents_is_written_like_each_of_them(values: list[object]) -> None:
    codec, column = row_codec(TABLE), TABLE.columns[1]
    encoded = [jsonb.encode(value) for value in values]
    documents = [jsonb.read_text(data, 0)[0] for data in encoded]
    rows = [codec.encode_insert((n, text)) for n, text in enumerate(documents)]
    decoded = [codec.decode_insert(row)[1] for row in rows]
    assert [jsonb.encode_text(cast(str, text)) for text in decoded] == encoded
    kinds = np.full(len(rows), MutationType.INSERT, np.uint8)
    for dialect in (MYSQL, SQLITE):
        (array,) = after_columns(
            TABLE, kinds, pa.array(rows, pa.binary()), [1], marks_json=dialect == MYSQL
        )
        made = literal_column(dialect, column, array)
        found = [made.open + text + made.close for text in made.values.to_pylist()]
        assert found == [literal(dialect, column)(text) for text in decoded]


def test_text_that_a_server_printed_is_written_as_its_row_would_be() -> None:
    printed = '{"b": 1.5, "Day": "it\'s 1.10", "aa": [1.0, 1e20]}'
    assert literal_of_text(printed) == (
        """'{"Day": "it''s 1.10", "aa": [1.0, 100000000000000000000.0], "b": 1.5}'"""
    )
    assert "CAST('1.10' AS DECIMAL(3,2))" in literal_of_text("[1.10]")
    assert "CAST('18446744073709551616' AS DECIMAL(20,0))" in literal_of_text(
        "[18446744073709551616]"
    )
