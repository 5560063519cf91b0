"""Row statements: each row change as separate SQL, with the changes that it must not overtake.

    change   usual form      safe form, which may be run again in any state
    insert   INSERT          REPLACE
    update   UPDATE          DELETE of the old image, REPLACE of the new image
    delete   DELETE          DELETE

A table without row key has no safe form: its statements must run once, which the caller ensures.
The answer is an Arrow stream with one row for each change:

    column    type           meaning
    first     large_binary   the statement
    second    large_binary   the REPLACE after a safe update's DELETE, else NULL
    row       large_string   names the row, for an operator
    b0 b1 …   uint64         causality key of the old image in each key set
    a0 a1 …   uint64         the same of the new image

The metadata `penstock` of its schema is JSON: "once" for a table without row key, and for each key
set its "tags" and whether two rows cannot share a key ("unique").

**Causality keys** are numbers that two changes share if one must not overtake the other. Each
unique index of a table gives a change one key for its old and one for its new image:

    0        no key: a column of the index is NULL, so the index forbids nothing
    1        unbounded: whether the value equals another cannot be decided here
    other    a hash over the index and the values; equal for all values that the index calls equal

A foreign key links its child's columns with the parent's: both have a key for it, with one number
for equal values, so that child and parent do not overtake each other either. An update that does
not change the columns has none.

Equal numbers for different values only cost parallelism. The folding is therefore coarser than any
collation it is used for: letter case, accents and trailing spaces are dropped. A collation or a
character for which this is not certain is unbounded, and so is an index on a generated column,
whose value may be missing from the row bytes. When changes are grouped, an unbounded value stands
for every value of its index. An index is named by its table and columns, not by its id, so that
several sources routed into one table share its keys.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from drainer.task.sql.literals import Family, family, padded_length
from drainer.task.sql.rows import Row, apply_key, is_in_row, row_codec
from drainer.task.sql.upserts import table_sql
from drainer.task.work_unit import Link, Op, WorkUnit, arrow_batch, arrow_stream, reading
from penstock.schema.model import PUBLIC, ColumnInfo, IndexColumn, IndexInfo, TableInfo
from penstock.wire.binlog import MutationType

Keys = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True)
class RowStatements:
    """The answer to a unit of single changes; `before` and `after` are (changes × key sets)."""

    once: bool
    tags: list[int]
    unique: list[bool]
    first: list[bytes]
    second: list[bytes | None]
    row: list[str]
    before: Keys
    after: Keys

    def encode(self) -> bytes:
        metadata = {"once": self.once, "tags": self.tags, "unique": self.unique}
        arrays = [
            pa.array(self.first, pa.large_binary()),
            pa.array(self.second, pa.large_binary()),
            pa.array(self.row, pa.large_string()),
            *map(pa.array, np.ascontiguousarray(self.before.T)),
            *map(pa.array, np.ascontiguousarray(self.after.T)),
        ]
        sets = range(len(self.tags))
        names = ["first", "second", "row", *(f"b{i}" for i in sets), *(f"a{i}" for i in sets)]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        return arrow_stream(batch, metadata)

    @classmethod
    def decode(cls, data: bytes) -> RowStatements:
        """Return the answer in `data`; raise `Malformed`."""
        with reading("statements"):
            metadata, batch = arrow_batch(data)
            sets, columns = len(metadata["tags"]), batch.columns
            return cls(
                once=metadata["once"],
                tags=metadata["tags"],
                unique=metadata["unique"],
                first=columns[0].to_pylist(),
                second=columns[1].to_pylist(),
                row=columns[2].to_pylist(),
                before=_matrix(columns[3 : 3 + sets], len(batch)),
                after=_matrix(columns[3 + sets :], len(batch)),
            )


def _matrix(columns: list[pa.Array], rows: int) -> Keys:
    if not columns:
        return np.zeros((rows, 0), np.uint64)
    return np.column_stack([column.to_numpy() for column in columns])


def row_statements(unit: WorkUnit) -> RowStatements:
    """Return the statements of `unit`, whose ops are all EACH or all SAFE; a pure function.

    Raises `Malformed` for row bytes that do not fit the table.
    """
    table = unit.table
    sql = table_sql(unit.dialect, unit.schema, unit.name, table)
    sets = key_sets(unit.schema, table.renamed(unit.name)) + link_sets(table, unit.links)
    once = apply_key(table) is None
    rows = unit.rows.column("row").to_pylist()
    kinds = unit.rows.column("kind").to_pylist()
    safe = not once and bool(rows) and unit.rows.column("op")[0].as_py() == Op.SAFE
    before = np.zeros((len(rows), len(sets)), np.uint64)
    after = np.zeros((len(rows), len(sets)), np.uint64)
    first: list[bytes] = []
    second: list[bytes | None] = []
    labels: list[str] = []
    codec = row_codec(table)
    for i, (kind, data) in enumerate(zip(kinds, rows, strict=True)):
        old: Row | None = None
        new: Row | None = None
        if kind == MutationType.INSERT:
            new = codec.decode_insert(data)
        elif kind == MutationType.DELETE:
            old = codec.decode_delete(data)
        else:
            old, new = codec.decode_update(data)
        following = None
        if new is None:
            assert old is not None, "a change has an image"
            statement = sql.delete_one(old)
        elif old is None:
            statement = sql.replace_one(new) if safe else sql.insert_one(new)
        elif safe:
            statement, following = sql.delete_one(old), sql.replace_one(new)
        else:
            statement = sql.update_one(old, new)
        first.append(statement)
        second.append(following)
        labels.append(sql.label(new if old is None else old))  # type: ignore[arg-type]
        for j, each in enumerate(sets):
            before[i, j], after[i, j] = each.keys(old, new)
    tags, unique = [each.tag for each in sets], [each.is_unique for each in sets]
    return RowStatements(once, tags, unique, first, second, labels, before, after)


NO_KEY, UNBOUNDED = 0, 1

_WEIGHED = re.compile(
    r"(utf8|utf8mb3|utf8mb4)_((general|unicode|unicode_520)(_nopad)?_ci|0900_a[is]_c[is])"
    r"|((utf8|utf8mb3|utf8mb4)_)?uca1400_(nopad_)?a[is]_c[is]"
)
"""Collations that compare by letters, where an accented Latin letter equals no other."""
_PLAIN_LATIN = re.compile(r"(latin1_(swedish|general)|ascii_general)_c[is]")
"""Collations of which only the ASCII half is assumed to compare in the usual way."""
_PRINTABLE = re.compile(r"[ -~]*")

Fold = Callable[[Any], bytes | None]
"""A value other than NULL to bytes that are equal for equal values; None if it is unbounded."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """One index's or foreign key's keys; `tag` names it across tables.

    `is_unique` says that the index forbids two rows with one key.
    """

    tag: int
    parts: tuple[tuple[int, Fold], ...]
    is_in_row: bool
    is_unique: bool = True

    def keys(self, old: Sequence[Any] | None, new: Sequence[Any] | None) -> tuple[int, int]:
        """Return the keys of a change's old and new image; a missing image is None."""
        before = NO_KEY if old is None else self.key(old)
        after = NO_KEY if new is None else self.key(new)
        if not self.is_unique and self.is_in_row and old is not None and new is not None:
            unchanged = all(old[at] == new[at] for at, _ in self.parts)
            return (NO_KEY, NO_KEY) if unchanged else (before, after)
        return before, after

    def key(self, row: Sequence[Any]) -> int:
        if not self.is_in_row:
            return UNBOUNDED
        folded = []
        is_unbounded = False
        for position, fold in self.parts:
            value = row[position]
            if value is None:
                return NO_KEY
            made = fold(value)
            is_unbounded |= made is None
            folded.append(made or b"")
        if is_unbounded:
            return UNBOUNDED
        return hash_of(self.tag.to_bytes(8, "big"), *folded)


def hash_of(*parts: bytes) -> int:
    """Return a number above `UNBOUNDED` that is the same in every process."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    number = int.from_bytes(digest.digest(), "big")
    return number if number > UNBOUNDED else number + 2


def unique_indexes(table: TableInfo) -> list[IndexInfo]:
    """Return the indexes that forbid equal values; the index that identifies rows comes first."""
    row_key = apply_key(table)
    indexes: list[IndexInfo] = [] if row_key is None else [row_key]
    primary = table.primary_key
    others = table.indexes if primary is None else (primary, *table.indexes)
    for index in others:
        if index.unique and index.state == PUBLIC and index not in indexes:
            indexes.append(index)
    return indexes


@lru_cache(maxsize=1024)
def key_sets(schema: str, table: TableInfo) -> tuple[KeySet, ...]:
    """Return a table's key sets; the set that identifies its rows comes first."""
    return tuple(
        KeySet(
            tag_of(schema, table.name, index.columns),
            _parts(table, index.columns),
            is_in_row(table, [part.offset for part in index.columns]),
        )
        for index in unique_indexes(table)
    )


@lru_cache(maxsize=1024)
def link_sets(table: TableInfo, links: tuple[Link, ...]) -> tuple[KeySet, ...]:
    sets = []
    for tag, offsets in links:
        parts = tuple((offset, fold_of(table.columns[offset])) for offset in offsets)
        sets.append(KeySet(tag, parts, is_in_row(table, offsets), is_unique=False))
    return tuple(sets)


def tag_of(schema: str, table: str, columns: Sequence[IndexColumn], what: str = "unique") -> int:
    """Return the number of an index or foreign key, from table, columns and prefixes."""
    names = sorted(f"{part.name.lower()}({part.length})" for part in columns)
    return hash_of(*(text.encode() for text in (what, schema.lower(), table.lower(), *names)))


def _parts(table: TableInfo, columns: Sequence[IndexColumn]) -> tuple[tuple[int, Fold], ...]:
    return tuple((p.offset, fold_of(table.columns[p.offset], p.length)) for p in by_name(columns))


def by_name(columns: Sequence[IndexColumn]) -> list[IndexColumn]:
    """Return the columns in the order of their names, like the tag, whatever the index's order."""
    return sorted(columns, key=lambda part: part.name.lower())


def fold_of(column: ColumnInfo, length: int = -1) -> Fold:
    """Return a column's fold function; `length` is a prefix length, -1 the whole value."""
    kind = family(column)
    if kind is Family.BYTES:
        padded = padded_length(column)
        return lambda value: _cut(value.ljust(padded, b"\0") if padded else value, length)
    if kind is Family.TEXT:
        return _text_fold(column.collate, length)
    if kind is Family.FLOAT:
        return lambda value: repr(float(value) + 0.0).encode()  # 0.0 equals -0.0.
    if kind is Family.DECIMAL:
        return lambda value: str(Decimal(value).normalize() + 0).encode()
    return lambda value: str(value).encode()


def _cut(value: Any, length: int) -> Any:
    return value if length == -1 else value[:length]


class Folding(Enum):
    """The known properties of a collation's comparison."""

    EXACT = "exact"
    """It distinguishes all texts that do not end in spaces."""
    WEIGHED = "weighed"
    """It may ignore case and accents."""
    PLAIN = "plain"
    """The same for printable ASCII, unknown for other characters."""
    UNKNOWN = "unknown"


def folding_of(collation: str) -> Folding:
    name = collation.lower()
    if name.endswith("_bin") or name == "binary":
        return Folding.EXACT
    if _WEIGHED.fullmatch(name):
        return Folding.WEIGHED
    return Folding.PLAIN if _PLAIN_LATIN.fullmatch(name) else Folding.UNKNOWN


def _text_fold(collation: str, length: int) -> Fold:
    def exact(value: str) -> bytes | None:
        return str(_cut(value, length)).rstrip(" ").encode("utf-8", "surrogatepass")

    def weighed(value: str) -> bytes | None:
        text: str = _cut(value, length).rstrip(" ")
        if _PRINTABLE.fullmatch(text):
            return text.lower().encode()
        parts = unicodedata.normalize("NFD", text)
        letters = "".join([c for c in parts if unicodedata.category(c) != "Mn"]).rstrip(" ")
        return letters.lower().encode() if _PRINTABLE.fullmatch(letters) else None

    def plain(value: str) -> bytes | None:
        text: str = _cut(value, length).rstrip(" ")
        return text.lower().encode() if _PRINTABLE.fullmatch(text) else None

    found = {Folding.EXACT: exact, Folding.WEIGHED: weighed, Folding.PLAIN: plain}
    return found.get(folding_of(collation), lambda _: None)
