"""A table cut into ranges of its key, each a condition for a SELECT; pure.

A range is (after, up to]: open where it is None. Bounds are whole keys of one or several columns,
and come from the server itself in the key's order, or, for one integer column, from arithmetic.
Whether a key belongs to a range is only ever decided by the server, in its collation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Key = tuple[object, ...]

INTEGER_TYPES = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
TEXT_TYPES = frozenset({"char", "varchar", "binary", "varbinary"})
_TIME_TYPES = frozenset({"date", "datetime", "timestamp", "time", "year"})
ORDERED_TYPES = INTEGER_TYPES | {"decimal"} | TEXT_TYPES | _TIME_TYPES
"""Types that compare with a literal as they are ordered; ENUM, SET, BIT and floats do not."""


@dataclass(frozen=True, slots=True)
class Range:
    """The keys behind `after` up to and with `until`."""

    after: Key | None = None
    until: Key | None = None

    def condition(self, columns: Sequence[str]) -> tuple[str, tuple[object, ...]]:
        """Return an SQL condition on columns, quoted already, and its parameters; "" for all."""
        parts: list[str] = []
        values: list[object] = []
        if self.after is not None:
            sql, more = _beyond(columns, self.after, ">", strict=True)
            parts.append(sql)
            values += more
        if self.until is not None:
            sql, more = _beyond(columns, self.until, "<", strict=False)
            parts.append(sql)
            values += more
        return " AND ".join(parts), tuple(values)


def _beyond(
    columns: Sequence[str], key: Key, sign: str, *, strict: bool
) -> tuple[str, list[object]]:
    """Return `columns` compared with `key`; servers use an index for this form, not for tuples."""
    first, rest = columns[0], columns[1:]
    if not rest:
        return f"{first} {sign if strict else sign + '='} %s", [key[0]]
    inner, values = _beyond(rest, key[1:], sign, strict=strict)
    sql = f"({first} {sign}= %s AND ({first} {sign} %s OR {inner}))"
    return sql, [key[0], key[0], *values]


def ranges_between(bounds: Sequence[Key]) -> list[Range]:
    """Return ranges that meet at the bounds and together have every key."""
    ends: list[Key | None] = [None, *bounds, None]
    return [Range(after, until) for after, until in pairwise(ends)]


def integer_bounds(low: int, high: int, count: int) -> list[tuple[int]]:
    """Return at most `count` - 1 bounds that cut the numbers from `low` to `high` evenly."""
    span = high - low + 1
    count = max(1, min(count, span))
    return [(low + span * n // count - 1,) for n in range(1, count)]


def chunk_count(rows_estimated: int, rows_per_chunk: int) -> int:
    """Return into how many chunks a table is cut; the estimate may be far off."""
    return max(1, -(-rows_estimated // rows_per_chunk))


def packed(rows: Iterator[list[bytes]], bytes_max: int) -> Iterator[list[bytes]]:
    """Yield encoded rows in groups of at most `bytes_max` bytes, one row at least."""
    group: list[bytes] = []
    size_bytes = 0
    for block in rows:
        block_bytes = sum(map(len, block))
        if size_bytes + block_bytes <= bytes_max:
            group += block
            size_bytes += block_bytes
            continue
        for row in block:
            if group and size_bytes + len(row) > bytes_max:
                yield group
                group, size_bytes = [], 0
            group.append(row)
            size_bytes += len(row)
    if group:
        yield group
