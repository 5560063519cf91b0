"""Says what compiling a column means: three functions, and the error for a value it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import Malformed
from penstock.schema.model import ColumnInfo

Encode = Callable[[object], bytes]
"""Turns a value other than None into a datum, flag included."""
Decode = Callable[[bytes, int], tuple[object, int]]
"""Reads a datum other than NULL, flag included; returns the value and what follows."""


@dataclass(frozen=True, slots=True)
class Field:
    """`encode` makes datums, `decode` reads them as values, `store` as stored values."""

    encode: Encode
    decode: Decode
    store: Decode


def refused(column: ColumnInfo, value: object, why: str) -> Malformed:
    """Return the error for a value that `column` does not take."""
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return Malformed(
        f"column {column.name!r} ({column.tp.name}) does not take {shown}: {why}",
        hint="give a value that fits the column, or change the column",
    )
