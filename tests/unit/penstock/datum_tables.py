"""Random tables of every type, rows that fit them, and the damage that can come to row bytes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Literal, Protocol, TypeVar

from hypothesis import settings
from hypothesis import strategies as st

from penstock.datum import jsonb
from penstock.datum.rows import fields, row_codec
from penstock.schema.model import (
    ColumnFlag,
    ColumnInfo,
    IndexColumn,
    IndexInfo,
    MysqlType,
    TableInfo,
)

UNHURRIED = settings(deadline=None)
"""A busy machine says nothing about a codec."""
ELEMS = ("red", "green", "blue")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_T = MysqlType
_Drawn = TypeVar("_Drawn")


def column(tp: MysqlType, **options: object) -> ColumnInfo:
    """Return a column of that type, the first of its table unless asked otherwise."""
    settings: dict[str, object] = {"id": 1, "name": "c", "offset": 0, "charset": "utf8mb4"}
    return ColumnInfo(tp=tp, **{**settings, **options})  # type: ignore[arg-type]


def _decimal_columns() -> st.SearchStrategy[ColumnInfo]:
    sizes = st.integers(1, 65).flatmap(
        lambda precision: st.tuples(st.just(precision), st.integers(0, min(30, precision)))
    )
    return sizes.map(lambda size: column(_T.NEWDECIMAL, flen=size[0], decimal=size[1]))


COLUMNS = st.one_of(
    st.builds(
        column,
        st.sampled_from(sorted(fields.INTEGER_BITS)),
        flag=st.sampled_from([ColumnFlag(0), ColumnFlag.UNSIGNED]),
    ),
    st.sampled_from([column(_T.YEAR), column(_T.FLOAT), column(_T.DOUBLE), column(_T.DATE)]),
    st.builds(column, st.just(_T.BIT), flen=st.integers(1, 64)),
    st.builds(column, st.sampled_from([_T.ENUM, _T.SET]), elems=st.just(ELEMS)),
    _decimal_columns(),
    st.builds(
        column, st.sampled_from([_T.DATETIME, _T.TIMESTAMP, _T.DURATION]), decimal=st.integers(0, 6)
    ),
    st.builds(
        column,
        st.sampled_from(sorted(fields.STRING_TYPES - {_T.STRING})),
        charset=st.sampled_from(["utf8mb4", "binary"]),
    ),
    st.just(column(_T.JSON)),
)


def _integers(c: ColumnInfo) -> st.SearchStrategy[object]:
    low, high = fields.integer_range(c)
    return st.one_of(st.integers(low, high), st.sampled_from([low, high]))


def _floats(c: ColumnInfo) -> st.SearchStrategy[object]:
    width: Literal[32, 64] = 32 if c.tp is _T.FLOAT else 64
    # A negative zero is stored as zero, so that equal keys have equal bytes.
    return st.floats(allow_nan=False, allow_infinity=False, width=width).map(lambda x: x + 0.0)


def _decimals(c: ColumnInfo) -> st.SearchStrategy[object]:
    precision, scale = fields.decimal_size(c)
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(
        lambda number: Decimal((int(number < 0), Decimal(abs(number)).as_tuple().digits, -scale))
    )


def _fraction(c: ColumnInfo, micro: int) -> str:
    fsp = fields.fraction_digits(c)
    return f".{micro // 10 ** (6 - fsp):0{fsp}d}" if fsp else ""


def _times(c: ColumnInfo) -> st.SearchStrategy[object]:
    low, high = (1971, 2037) if c.tp is _T.TIMESTAMP else (0, 9999)
    parts = st.tuples(
        st.integers(low, high), st.integers(1, 12), st.integers(1, 28), st.integers(0, 23),
        st.integers(0, 59), st.integers(0, 59), st.integers(0, 999_999),
    )  # fmt: skip

    def text(p: tuple[int, ...]) -> str:
        date = f"{p[0]:04d}-{p[1]:02d}-{p[2]:02d}"
        clock = f" {p[3]:02d}:{p[4]:02d}:{p[5]:02d}" + _fraction(c, p[6])
        return date if c.tp is _T.DATE else date + clock

    return st.one_of(parts, st.just((0,) * 7)).map(text)


def _durations(c: ColumnInfo) -> st.SearchStrategy[object]:
    limit = 838 * 3600 + 59 * 60 + 58
    unit = 10 ** (6 - fields.fraction_digits(c))

    def text(micros: int) -> str:
        kept = abs(micros) // unit * unit
        seconds, micro = divmod(kept, 1_000_000)
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return ("-" if micros < 0 and kept else "") + clock + _fraction(c, micro)

    return st.integers(-limit * 1_000_000, limit * 1_000_000).map(text)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


def values_of(c: ColumnInfo) -> st.SearchStrategy[object]:
    """Return values of a column in exactly the form in which they are decoded."""
    if c.tp in fields.INTEGER_BITS or c.tp is _T.BIT:
        return _integers(c)
    if c.tp is _T.YEAR:
        return st.one_of(st.just(0), st.integers(1901, 2155))
    if c.tp is _T.ENUM:
        return st.sampled_from(["", *c.elems])
    if c.tp is _T.SET:
        return st.sets(st.sampled_from(range(len(c.elems)))).map(
            lambda chosen: ",".join(c.elems[i] for i in sorted(chosen))
        )
    if c.tp in (_T.FLOAT, _T.DOUBLE):
        return _floats(c)
    if c.tp is _T.NEWDECIMAL:
        return _decimals(c)
    if c.tp in fields.TIME_TYPES:
        return _times(c)
    if c.tp is _T.DURATION:
        return _durations(c)
    if c.tp is _T.JSON:
        return JSON_VALUES.map(json_text)
    return st.binary(max_size=40) if c.is_binary else TEXT


def json_text(value: object) -> str:
    """Return a value as the JSON text that decoding yields."""
    return jsonb.read_text(jsonb.encode_text(json.dumps(value)), 0)[0]


@st.composite
def tables(draw: st.DrawFn) -> TableInfo:
    """Return a table of random columns, with one of the three kinds of handle."""
    count = draw(st.integers(1, 7))
    ids = draw(st.lists(st.integers(1, 20_000), min_size=count, max_size=count, unique=True))
    columns = []
    for i, column_id in enumerate(ids):
        flag = draw(st.sampled_from([ColumnFlag(0), ColumnFlag(0), ColumnFlag.NOT_NULL]))
        chosen = draw(COLUMNS)
        columns.append(
            replace(chosen, id=column_id, name=f"c{i}", offset=i, flag=chosen.flag | flag)
        )
    kind = draw(st.sampled_from(["int", "common", "none"]))
    if kind == "int":
        columns[0] = replace(
            columns[0],
            tp=draw(st.sampled_from(sorted(fields.INTEGER_BITS))),
            flag=ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL | draw(
                st.sampled_from([ColumnFlag(0), ColumnFlag.UNSIGNED])
            ),
        )  # fmt: skip
        return TableInfo(id=1, name="t", columns=tuple(columns), pk_is_handle=True)
    if kind == "common":
        return _with_common_handle(draw, columns)
    unique = IndexInfo(id=1, name="u", columns=(IndexColumn(name="c0", offset=0),), unique=True)
    columns[0] = replace(columns[0], flag=columns[0].flag | ColumnFlag.NOT_NULL)
    return TableInfo(id=1, name="t", columns=tuple(columns), indexes=(unique,))


def _with_common_handle(draw: st.DrawFn, columns: list[ColumnInfo]) -> TableInfo:
    offsets = draw(st.permutations(range(len(columns))))[: draw(st.integers(1, 3))]
    parts = []
    for offset in offsets:
        if columns[offset].tp is _T.JSON:
            columns[offset] = replace(columns[offset], tp=_T.VARCHAR)
        flag = columns[offset].flag | ColumnFlag.NOT_NULL | ColumnFlag.PRI_KEY
        columns[offset] = replace(columns[offset], flag=flag)
        is_text = columns[offset].tp in fields.STRING_TYPES
        length = draw(st.sampled_from([-1, -1, 3])) if is_text else -1
        parts.append(IndexColumn(name=f"c{offset}", offset=offset, length=length))
    key = IndexInfo(id=1, name="PRIMARY", columns=tuple(parts), unique=True, primary=True)
    return TableInfo(id=1, name="t", columns=tuple(columns), indexes=(key,), is_common_handle=True)


def rows_of(table: TableInfo) -> st.SearchStrategy[tuple[object, ...]]:
    """Return rows of a table, NULL where it may be."""
    return st.tuples(
        *(values_of(c) if c.is_not_null else st.none() | values_of(c) for c in table.columns)
    )


def stored_form(table: TableInfo, row: Sequence[object]) -> tuple[object, ...]:
    """Return a row's values as the column-wise reader yields them."""
    return tuple(_stored(c, value) for c, value in zip(table.columns, row, strict=True))


def _stored(c: ColumnInfo, value: object) -> object:
    if isinstance(value, Decimal):
        return format(value, "f")
    if c.tp is _T.ENUM and isinstance(value, str):
        return ("", *c.elems).index(value)
    if c.tp is _T.SET and isinstance(value, str):
        return sum(1 << c.elems.index(name) for name in value.split(",") if name)
    return value


class Draw(Protocol):
    """What a composite strategy draws with, and a test that draws as it goes."""

    def __call__(self, strategy: st.SearchStrategy[_Drawn], /) -> _Drawn:
        """Return an example."""


def damage(draw: Draw, data: bytes) -> bytes:
    """Return the bytes cut short, changed in one place, or made longer."""
    how = draw(st.sampled_from(["cut", "change", "insert"]))
    at = draw(st.integers(0, max(len(data) - 1, 0)))
    byte = draw(st.binary(min_size=1, max_size=1))
    if how == "cut":
        return data[:at]
    return data[:at] + byte + data[at + (how == "change") :]


def cut_all(data: bytes) -> list[bytes]:
    """Return the datums of which `data` consists."""
    at, parts = 0, []
    while at < len(data):
        end = row_codec.cut_one(data, at)
        parts.append(data[at:end])
        at = end
    return parts
