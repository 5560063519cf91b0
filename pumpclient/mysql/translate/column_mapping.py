"""Pairs the columns of an image with the table's, and chooses how each value becomes a datum.

    image                            datum                                 made by
    -------------------------------  ------------------------------------  ---------------------
    integers                         int, uint                             a table of small ones
    DECIMAL, same size               its bytes, after precision and scale  copying
    FLOAT, DOUBLE                    float                                 struct
    DATE, DATETIME, TIMESTAMP, TIME  packed number, nanoseconds            arithmetic
    UTF-8 texts, bytes               length, bytes                         copying
    all others, and other sizes      as `penstock.datum.rows.fields` encodes the decoded value

Columns are matched by name if the server sends names (`binlog_row_metadata=FULL`), else by
position. Signs and charsets that a server does not send are taken from the table: the source
followed its DDL.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from penstock.codes import Code
from penstock.datum.rows.defaults import missing_datum
from penstock.datum.rows.fields import STRING_TYPES
from penstock.datum.rows.row_codec import Stored, stored_columns
from penstock.ddl.parse.versioning import IMPLICIT
from penstock.errors import Malformed, NeedsOperator
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo
from pumpclient.mysql.rows.table_map import Column, TableMap, WireType, charset_name

NULL = b"\x00"
"""The datum of NULL."""
_INTEGERS = frozenset(
    {MysqlType.TINY, MysqlType.SHORT, MysqlType.INT24, MysqlType.LONG, MysqlType.LONGLONG}
)
_TEXTS = STRING_TYPES - {MysqlType.GEOMETRY} | {MysqlType.JSON}
_FAMILIES: dict[WireType, frozenset[MysqlType]] = {
    **dict.fromkeys(
        (WireType.TINY, WireType.SHORT, WireType.INT24, WireType.LONG, WireType.LONGLONG),
        _INTEGERS,
    ),
    **dict.fromkeys(
        (
            WireType.STRING, WireType.VARCHAR, WireType.VAR_STRING, WireType.BLOB,
            WireType.TINY_BLOB, WireType.MEDIUM_BLOB, WireType.LONG_BLOB,
            WireType.BLOB_COMPRESSED, WireType.VARCHAR_COMPRESSED,
        ),
        _TEXTS,
    ),
    WireType.FLOAT: frozenset({MysqlType.FLOAT, MysqlType.DOUBLE}),
    WireType.DOUBLE: frozenset({MysqlType.DOUBLE}),
    WireType.NEWDECIMAL: frozenset({MysqlType.NEWDECIMAL}),
    WireType.YEAR: frozenset({MysqlType.YEAR}),
    WireType.BIT: frozenset({MysqlType.BIT}),
    WireType.DATE: frozenset({MysqlType.DATE}),
    WireType.NEWDATE: frozenset({MysqlType.DATE}),
    WireType.TIME: frozenset({MysqlType.DURATION}),
    WireType.TIME2: frozenset({MysqlType.DURATION}),
    WireType.DATETIME: frozenset({MysqlType.DATETIME}),
    WireType.DATETIME2: frozenset({MysqlType.DATETIME}),
    WireType.TIMESTAMP: frozenset({MysqlType.TIMESTAMP}),
    WireType.TIMESTAMP2: frozenset({MysqlType.TIMESTAMP}),
    WireType.ENUM: frozenset({MysqlType.ENUM}),
    WireType.SET: frozenset({MysqlType.SET}),
    WireType.JSON: frozenset({MysqlType.JSON}),
    WireType.GEOMETRY: frozenset({MysqlType.GEOMETRY}),
}  # fmt: skip
"""The possible column types in the table for each type on the wire."""

_HINT = (
    "the table here is not what it was there when these rows were written: was it altered outside"
    " of the binlog? Bring its schema in line, or skip the table"
)


@dataclass(frozen=True, slots=True)
class ColumnPair:
    """A column of the image at `index`, and the column that its values go to."""

    index: int
    wire: Column
    stored: Stored

    @property
    def column(self) -> ColumnInfo:
        return self.stored.column


@dataclass(frozen=True, slots=True)
class Pairing:
    """All columns that rows hold, in the table's order.

    `missing` columns are not in the image; each has the datum that replaces its value.
    """

    table_map: TableMap
    pairs: tuple[ColumnPair, ...]
    missing: tuple[tuple[Stored, bytes], ...] = ()
    row_end: int | None = None
    """Index of the row's end time in a system-versioned table's images."""


def paired(table_map: TableMap, table: TableInfo, *, may_lack: bool = False) -> Pairing:
    """Return the pairing; its map has all metadata that reading needs.

    With `may_lack`, for several tables merged into one, columns with a replacement value may be
    missing in the image. Raises `NeedsOperator` naming table and columns for all other differences.
    """
    period = period_of(table_map, table)
    positions = _positions(table_map, table, period)
    found = {position: index for index, position in positions.items()}
    stored = stored_columns(table)
    lacking = [(each, stand_in(each.column)) for each in stored if each.position not in found]
    missing = tuple((each, datum) for each, datum in lacking if datum is not None)
    absent = [c.name for p, c in enumerate(table.columns) if p not in found]
    if absent and not may_lack:
        raise _mismatch(table_map, f"the rows lack {_listed(absent)}")
    if len(missing) < len(lacking):
        names = _listed(each.column.name for each, datum in lacking if datum is None)
        raise _mismatch(
            table_map,
            f"the rows lack {names}, NOT NULL and without a constant default",
            "several tables are merged here: give it a default, or let it be NULL",
        )
    declared = {
        index: _declared(table_map.columns[index], table.columns[position])
        for index, position in positions.items()
    }
    whole = table_map.completed(declared)
    pairs = tuple(
        ColumnPair(found[each.position], whole.columns[found[each.position]], each)
        for each in stored
        if each.position in found
    )
    for pair in pairs:
        _check(whole, pair)
    return Pairing(whole, pairs, missing, period[1] if period else None)


def stand_in(column: ColumnInfo) -> bytes | None:
    """Return the datum of a column that is missing in a row: its default, or NULL.

    None when it has neither, or a default that is not a constant and refuses NULL.
    """
    if column.default is not None and not column.default_is_expr:
        try:
            return missing_datum(replace(column, origin_default=column.default))
        except Malformed:
            pass  # CURRENT_TIMESTAMP: its value cannot be known.
    return None if column.is_not_null and not column.is_generated else NULL


def period_of(table_map: TableMap, table: TableInfo) -> tuple[int, int] | None:
    """Return the indexes of the row's start and end time in images of a system-versioned table.

    None for a table that is not system-versioned, or was not yet when the rows were written. Raises
    `NeedsOperator` where columns have no names and an operator named these two.
    """
    if not table.period:
        return None
    names = [column.name and column.name.lower() for column in table_map.columns]
    start, end = (name.lower() for name in table.period)
    if None in names:
        if len(names) != len(table.columns) + 2:
            return None
        if (start, end) != IMPLICIT:
            raise _mismatch(
                table_map,
                f"which columns are {start!r} and {end!r} of its system versioning is not logged",
                "SET GLOBAL binlog_row_metadata = 'FULL'; rows logged before can only be skipped",
            )
        places = len(names) - 2, len(names) - 1
    elif start in names and end in names and not (table.column(start) or table.column(end)):
        places = names.index(start), names.index(end)
    else:
        return None
    if any(table_map.columns[n].real_type is not WireType.TIMESTAMP2 for n in places):
        raise _mismatch(table_map, f"{start!r} and {end!r} are no TIMESTAMP(6) in the rows")
    return places


def _positions(
    table_map: TableMap, table: TableInfo, period: tuple[int, int] | None
) -> dict[int, int]:
    names = [column.name for column in table_map.columns]
    if None in names:
        if period is not None:
            names = names[:-2]
        if len(names) != len(table.columns):
            raise _mismatch(
                table_map,
                f"the rows have {len(names)} columns, the table has {len(table.columns)}"
                f" ({_listed(c.name for c in table.columns)})",
            )
        return {index: index for index in range(len(names))}
    here = {column.name.lower(): position for position, column in enumerate(table.columns)}
    found = {
        n: name for n, name in enumerate(names) if name is not None and n not in (period or ())
    }
    unknown = [name for name in found.values() if name.lower() not in here]
    if unknown:
        raise _mismatch(table_map, f"the table has no column {_listed(unknown)}")
    return {n: here[name.lower()] for n, name in found.items()}


def _declared(wire: Column, column: ColumnInfo) -> Mapping[str, Any]:
    declared_fields: dict[str, Any] = {"name": column.name}
    if column.native:  # No server ever distinguishes these from bytes.
        declared_fields["declared"] = column.native.lower()
    if wire.is_unsigned is None:
        declared_fields["is_unsigned"] = column.is_unsigned
    if wire.collation is None:
        charset = "utf8mb4" if column.tp is MysqlType.JSON else column.charset
        declared_fields["collation"] = _collation_of(charset or "utf8mb4")
    return declared_fields


@cache
def _collation_of(charset: str) -> int:
    for number in range(1, 324):
        try:
            if charset_name(number) == ("utf8mb3" if charset == "utf8" else charset):
                return number
        except NeedsOperator:
            continue
    raise NeedsOperator(
        f"charset {charset!r} is unknown", "convert the column to utf8mb4", Code.CHARSET
    )


def _check(table_map: TableMap, pair: ColumnPair) -> None:
    wire, column = pair.wire, pair.column
    here = column.tp
    if here not in _FAMILIES.get(wire.real_type, ()):
        raise _mismatch(
            table_map,
            f"column {column.name!r} is {wire.real_type.name} in the rows and"
            f" {here.name} in the table",
        )
    if here in _INTEGERS and wire.is_unsigned != column.is_unsigned:
        sign = "unsigned" if wire.is_unsigned else "signed"
        raise _mismatch(table_map, f"column {column.name!r} is {sign} in the rows only")
    labels = wire.labels if here in (MysqlType.ENUM, MysqlType.SET) else None
    if labels is not None and column.elems[: len(labels)] != labels:
        raise _mismatch(
            table_map,
            f"column {column.name!r} takes {_listed(labels)} in the rows,"
            f" {_listed(column.elems)} in the table",
        )


def _mismatch(table_map: TableMap, problem: str, hint: str = _HINT) -> NeedsOperator:
    return NeedsOperator(f"rows of {table_map.name}: {problem}", hint, Code.TABLE_DIFFERS)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
