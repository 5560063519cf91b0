"""Defaults of missing columns: the value of a column in a row that was written without it.

A row that is older than a column does not hold it; in such a row the column has its origin default.
Without an origin default the column is NULL, and where NULL is refused, the zero value of its type.
"""

from __future__ import annotations

import re
from decimal import Decimal

from penstock.codes import Code
from penstock.datum.rows import fields
from penstock.datum.times import fraction_text
from penstock.errors import Malformed, NeedsOperator
from penstock.schema.model import ColumnInfo, MysqlType

_BIT_TEXT = re.compile(r"b'([01]+)'|0b([01]+)")
_HEX_TEXT = re.compile(r"x'([0-9a-f]+)'|0x([0-9a-f]+)", re.IGNORECASE)


def missing_datum(column: ColumnInfo) -> bytes | None:
    """Return the datum that stands for `column` in a row that does not hold it; None is NULL.

    Raises `NeedsOperator` where it is an expression over the row.
    """
    if column.origin_is_expr:
        raise NeedsOperator(
            f"column {column.name!r}: older rows have the value of an expression,"
            " which only a MySQL or MariaDB downstream computes",
            "replace the statement: add the column without a default, fill the rows, then set"
            " the default",
            Code.DDL_DEFAULT,
        )
    if column.origin_default is not None:
        return fields.compile_field(column).encode(_parsed(column, column.origin_default))
    if not column.is_not_null or column.is_generated:
        return None
    return fields.compile_field(column).encode(zero_value(column))


def parse_default(column: ColumnInfo, text: str) -> object:
    """Parse the text of a default in a schema; raise `Malformed` if it does not fit."""
    field = fields.compile_field(column)
    return field.decode(field.encode(_parsed(column, text)), 0)[0]


def _parsed(column: ColumnInfo, text: str) -> object:
    if column.tp is MysqlType.BIT:
        if match := _BIT_TEXT.fullmatch(text):
            return int(match[1] or match[2], 2)
        if match := _HEX_TEXT.fullmatch(text):
            return int(match[1] or match[2], 16)
        return _parse_int(column, text)
    if column.tp in fields.INTEGER_BITS or column.tp is MysqlType.YEAR:
        return _parse_int(column, text)
    if column.tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
        try:
            return float(text)
        except ValueError:
            raise _bad_default(column, text) from None
    return text


def _parse_int(column: ColumnInfo, text: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        pass
    try:
        # MySQL accepts DEFAULT 1.0 for an integer.
        number = Decimal(text.strip())
        if number == int(number):
            return int(number)
    except (ArithmeticError, ValueError):
        pass
    if text.lower() in ("true", "false"):
        return int(text.lower() == "true")
    raise _bad_default(column, text)


def _bad_default(column: ColumnInfo, text: str) -> Malformed:
    return Malformed(
        f"the default {text!r} of column {column.name!r} is not a {column.sql_type}",
        "set a literal as the column's default",
        Code.DDL_DEFAULT,
    )


def zero_value(column: ColumnInfo) -> object:
    """Return the value of a NOT NULL column without a default: 0, "", first ENUM member."""
    tp = column.tp
    if tp in fields.STRING_TYPES:
        is_padded = column.is_binary and tp is MysqlType.STRING
        return bytes(max(column.flen, 0) * is_padded) if column.is_binary else ""
    if tp is MysqlType.ENUM:
        return column.elems[0] if column.elems else ""
    if tp is MysqlType.SET:
        return ""
    if tp in (MysqlType.FLOAT, MysqlType.DOUBLE):
        return 0.0
    if tp is MysqlType.NEWDECIMAL:
        return Decimal(0).scaleb(-fields.decimal_size(column)[1])
    if tp is MysqlType.JSON:
        return "null"
    if tp is MysqlType.DATE:
        return "0000-00-00"
    fraction = fraction_text(0, fields.fraction_digits(column)) if column.decimal <= 6 else ""
    if tp in fields.TIME_TYPES:
        return "0000-00-00 00:00:00" + fraction
    return "00:00:00" + fraction if tp is MysqlType.DURATION else 0
