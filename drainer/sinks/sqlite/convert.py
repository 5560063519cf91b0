"""Values that SQLite holds, carried over to a column's new type, as MODIFY COLUMN does upstream.

A change of type is not in the row bytes of any binlog: upstream converts its rows by itself, so
every downstream has to do the same. The new column's own field codec has the last word: what it
refuses stops the Drainer with the column's name, it is not bent to fit.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from drainer.task.sql.literals import Family, family, number_to_text, padded_length
from penstock.datum.rows.defaults import missing_datum
from penstock.datum.rows.fields import compile_field, decimal_size
from penstock.errors import Malformed
from penstock.schema.model import ColumnInfo, MysqlType

_INT64_MAX = (1 << 63) - 1
_TEXTS = (Family.TEXT, Family.ENUM, Family.SET)


def form(column: ColumnInfo) -> tuple[object, ...]:
    """Return what decides how the column's values are stored; equal forms need no conversion."""
    kind = family(column)
    if kind is Family.DECIMAL:
        return (kind, decimal_size(column)[1])
    if kind is Family.TEMPORAL:
        return (kind, column.tp is MysqlType.TIMESTAMP, column.tp, max(column.decimal, 0))
    if kind is Family.BYTES:
        return (kind, padded_length(column))
    if kind in _TEXTS:
        return (Family.TEXT,)
    if kind is Family.FLOAT:
        return (kind, column.tp)
    return (Family.INT,) if kind is Family.BIT else (kind,)


def default_value(column: ColumnInfo) -> Any:
    """Return what rows that are older than the column read as, None for NULL."""
    datum = missing_datum(column)
    return None if datum is None else compile_field(column).decode(datum, 0)[0]


def converter(before: ColumnInfo, after: ColumnInfo) -> Callable[[Any], Any]:
    """Return the function from a value stored for `before` to one stored for `after`."""
    target = compile_field(after)

    def convert(stored: Any) -> Any:
        if stored is None:
            return None
        try:
            natural = _natural(before, after, stored)
        except (ValueError, ArithmeticError) as error:
            raise Malformed(
                f"column {after.name!r}: {stored!r} cannot become a {after.tp.name}",
                hint="change the value upstream before the column's type",
            ) from error
        return stored_value(target.decode(target.encode(natural), 0)[0])

    return convert


def stored_value(value: Any) -> Any:
    """Return a decoded value as SQLite holds it; the twin of `literals.literal`."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, int) and value > _INT64_MAX:
        return str(value)
    return value


def _natural(before: ColumnInfo, after: ColumnInfo, stored: Any) -> object:
    """Return the value in a form that the new column's codec takes."""
    source, target = family(before), family(after)
    if target in (Family.INT, Family.BIT) and source is not Family.BYTES:
        return int(_rounded(stored, 0))
    if target is Family.DECIMAL and source is not Family.BYTES:
        return _rounded(stored, decimal_size(after)[1])
    if target is Family.FLOAT and source is not Family.BYTES:
        return float(stored)
    if target is Family.TEMPORAL and source is Family.TEMPORAL:
        return _temporal(before, after, stored)
    if target is Family.ENUM and source is Family.INT:
        return number_to_text(after, int(stored))
    if target in (Family.TEXT, Family.JSON, Family.ENUM, Family.SET):
        return stored.decode() if isinstance(stored, bytes) else str(stored)
    if target is Family.BYTES:
        return stored if isinstance(stored, bytes) else str(stored).encode()
    return stored


def _rounded(stored: Any, scale: int) -> Decimal:
    return Decimal(str(stored)).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)


def _temporal(before: ColumnInfo, after: ColumnInfo, stored: str) -> str:
    if before.tp is MysqlType.DATE and after.tp in (MysqlType.DATETIME, MysqlType.TIMESTAMP):
        return f"{stored} 00:00:00"
    if after.tp is MysqlType.DATE and " " in stored:
        return stored.partition(" ")[0]
    if after.tp is MysqlType.DURATION and " " in stored:
        return stored.partition(" ")[2]
    return stored
