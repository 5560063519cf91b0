"""Values of both sides in a canonical form, and rows that differ.

Pure.

    type                   form
    integers, YEAR, BIT    int
    FLOAT, DOUBLE          float; a FLOAT as exact as it is kept, minus zero is zero
    DECIMAL                Decimal
    CHAR                   text without trailing spaces
    JSON                   text with sorted keys and one spelling, decimals with all digits
    TIMESTAMP              text, UTC
    others                 text or bytes as they are

A fraction of a second of zeros is the same as no fraction.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from penstock.datum import jsonb

INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"})
FLOATS = frozenset({"float", "double"})
BINARY = frozenset(
    {
        "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry", "point",
        "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
        "geometrycollection", "geomcollection",
    }
)  # fmt: skip
TIMES = frozenset({"datetime", "timestamp", "time"})

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column that is compared."""

    name: str
    type: str
    is_generated: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not the same: `missing` and `extra` are as seen from the downstream."""

    table: str
    kind: str
    key: Key
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        key = f" ({', '.join(map(_shown, self.key))})" if self.key else ""
        where = f" in {', '.join(self.columns)}" if self.columns else ""
        return f"{self.table}{key}: {self.kind}{where}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def normal(value: Any, type_: str) -> object:
    if value is None:
        return None
    if type_ in INTEGERS:
        return int(value)
    if type_ in FLOATS:
        return float(value) + 0.0
    if type_ == "decimal":
        return Decimal(value)
    if type_ in BINARY:
        return value.encode() if isinstance(value, str) else bytes(value)
    text = value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)
    if type_ == "json":
        read = json.loads(text, parse_float=_json_number)
        return json.dumps(read, sort_keys=True, ensure_ascii=False)
    if type_ == "char":
        return text.rstrip(" ")
    if type_ in TIMES and "." in text:
        return text.rstrip("0").rstrip(".")
    return text


def _json_number(text: str) -> object:
    number = jsonb.json_number(text)
    return number if isinstance(number, float) else ["decimal", text]


@dataclass(slots=True)
class ComparedRows:
    """One side's rows of a chunk, by key: the values in canonical form, and as they were read."""

    columns: tuple[ComparedColumn, ...]
    by_key: dict[Key, Key]
    raw: dict[Key, Sequence[object]]


def rows_of(
    columns: tuple[ComparedColumn, ...], key: Sequence[str], found: Sequence[Sequence[Any]]
) -> ComparedRows:
    """Return the rows by key; without a key, row and occurrence number form the key."""
    positions = [n for n, c in enumerate(columns) if c.name in key]
    by_key: dict[Key, Key] = {}
    raw: dict[Key, Sequence[object]] = {}
    seen: Counter[Key] = Counter()
    for row in found:
        values = tuple(normal(v, c.type) for v, c in zip(row, columns, strict=True))
        identity = tuple(values[n] for n in positions)
        if not positions:
            seen[values] += 1
            identity = (*values, seen[values])
        by_key[identity] = values
        raw[identity] = row
    return ComparedRows(columns, by_key, raw)


def compared(
    before: ComparedRows, downstream: ComparedRows, after: ComparedRows
) -> tuple[dict[Key, tuple[str, tuple[str, ...]]], int]:
    """Return the certain differences (kind, columns) by key, and the undecided row count."""
    differing: dict[Key, tuple[str, tuple[str, ...]]] = {}
    undecided = 0
    names = [c.name for c in before.columns]
    for key in before.by_key.keys() | downstream.by_key.keys() | after.by_key.keys():
        there, here = before.by_key.get(key), downstream.by_key.get(key)
        if here == there:
            continue
        if there != after.by_key.get(key):
            undecided += here != after.by_key.get(key)
        elif here is None:
            differing[key] = "missing", ()
        elif there is None:
            differing[key] = "extra", ()
        else:
            pairs = zip(names, there, here, strict=True)
            differing[key] = "changed", tuple(name for name, a, b in pairs if a != b)
    return differing, undecided
