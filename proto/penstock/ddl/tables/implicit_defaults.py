"""The value that a NOT NULL column without a default gives to rows that are older than it."""

from __future__ import annotations

from penstock.schema.model import ColumnInfo, MysqlType

_TEXTS = {
    MysqlType.DATE: "0000-00-00",
    MysqlType.DATETIME: "0000-00-00 00:00:00",
    MysqlType.TIMESTAMP: "0000-00-00 00:00:00",
    MysqlType.DURATION: "00:00:00",
    MysqlType.JSON: "null",
    MysqlType.SET: "",
}
_NUMBERS = (
    MysqlType.TINY,
    MysqlType.SHORT,
    MysqlType.INT24,
    MysqlType.LONG,
    MysqlType.LONGLONG,
    MysqlType.FLOAT,
    MysqlType.DOUBLE,
    MysqlType.YEAR,
    MysqlType.BIT,
)


def zero_text(column: ColumnInfo) -> str:
    """Return the zero value of a column's type, in the form that defaults have."""
    if column.tp in _NUMBERS:
        return "0"
    tail = "." + "0" * column.decimal if column.decimal > 0 else ""
    if column.tp is MysqlType.NEWDECIMAL:
        return f"0{tail}"
    if column.tp is MysqlType.ENUM:
        return column.elems[0]
    if column.tp is MysqlType.STRING and column.is_binary:
        return "\0" * column.flen
    text = _TEXTS.get(column.tp, "")
    has_fraction = column.tp in (MysqlType.DATETIME, MysqlType.TIMESTAMP, MysqlType.DURATION)
    return text + tail if has_fraction else text
