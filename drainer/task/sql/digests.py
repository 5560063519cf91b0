"""Digests: the key values that a unit's SQL touches; batches without common ones may overlap.

The SQL of two batches may run concurrently, in any order, if they touch no common value of a unique
index. A batch touches the values that its rows have where it begins and where it ends:

    deletes   the row at the start of the batch   the values that it frees
    upserts   the row at the end of the batch     the values that it takes

Values in between do not reach the downstream. A row that is neither deleted nor inserted keeps its
unique values, so its last image has those of both ends.

    tables    table ──> form      the form of its keys: columns, types, collations
    keys      8 bytes each        a hash over table, index and values, sorted, each once

Two batches conflict if they share a key, or a table in different forms or in the form `UNBOUNDED`.
Equal digests for different values only cost concurrency, so values are folded as coarsely as in
`row_statements`, whose rules these are. A table is unbounded, for its whole unit or batch,

* if it has no row key, or an index over an expression or a generated column;
* if a text's collation, or one of its characters, is not known to compare in a certain way;
* if its form changes within the batch, or several upstream tables with different forms go there;
* if an override left one of its columns with another definition downstream.

A NULL in a unique index forbids nothing and has no digest. Tables are those of the downstream. The
hash is stable across processes and versions of Python, not across versions of Penstock: Drainer and
tasks run the same code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.task.sql.literals import Family, family, padded_length
from drainer.task.sql.row_statements import (
    UNBOUNDED,
    Folding,
    Keys,
    by_name,
    fold_of,
    folding_of,
    hash_of,
    tag_of,
    unique_indexes,
)
from drainer.task.sql.rows import Row, apply_key, is_written
from drainer.task.work_unit import WorkUnit, reading
from penstock.datum.columnar.render import arrow_type
from penstock.datum.columnar.walk import RowBytes
from penstock.datum.rows.fields import number_of
from penstock.schema.model import ColumnInfo, IndexColumn, MysqlType, TableInfo

_NO_KEYS: Keys = np.zeros(0, np.uint64)
_COUNT = struct.Struct("<I")
_LOW_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
"""The mask of a word's first bytes, by their number."""

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True, eq=False)
class Digests:
    """The key values that one unit or batch touches; `keys` are sorted and distinct.

    The bytes are the number of tables (u32 LE), table and form of each, then the keys (u64 LE).
    """

    tables: Mapping[int, int]
    keys: Keys

    def shares(self, other: Digests) -> bool:
        """Return whether the two conflict, so that the later one must wait for the earlier."""
        both = self.tables.keys() & other.tables.keys()
        if any(self.tables[each] != other.tables[each] for each in both):
            return True
        if UNBOUNDED in map(self.tables.get, both):
            return True
        if not both or not len(self.keys) or not len(other.keys):
            return False
        keys = _sorted([self.keys, other.keys])
        return bool((keys[1:] == keys[:-1]).any())

    def unbounded(self) -> Digests:
        """Return the digests of the same tables, each as a whole."""
        return Digests(dict.fromkeys(self.tables, UNBOUNDED), _NO_KEYS)

    def encode(self) -> bytes:
        pairs = np.array(list(self.tables.items()), "<u8")
        return b"".join([_COUNT.pack(len(pairs)), pairs.tobytes(), self.keys.astype("<u8").data])

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Digests:
        """Return the digests in `data`; raise `Malformed`."""
        with reading("digests"):
            (count,) = _COUNT.unpack_from(data)
            pairs = np.frombuffer(data, "<u8", 2 * count, _COUNT.size).tolist()
            keys = np.frombuffer(data, "<u8", offset=_COUNT.size + 16 * count)
            return cls(dict(zip(pairs[::2], pairs[1::2], strict=True)), keys)


def merged(parts: Iterable[Digests]) -> Digests:
    """Return the digests of all parts of a batch."""
    tables: dict[int, int] = {}
    keys: list[Keys] = []
    for part in parts:
        keys.append(part.keys)
        for table, form in part.tables.items():
            tables[table] = form if tables.setdefault(table, form) == form else UNBOUNDED
    return Digests(tables, _distinct(keys))


def _sorted(runs: Iterable[Keys]) -> Keys:
    keys = np.concatenate([_NO_KEYS, *runs])
    keys.sort(kind="stable")  # This merges runs that are sorted, three times as fast as a search.
    return keys


def _distinct(runs: Iterable[Keys]) -> Keys:
    keys = _sorted(runs)
    return keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys


class Touched:
    """The key values that a unit's SQL touches, gathered while its rows are decoded for the SQL."""

    def __init__(self, unit: WorkUnit) -> None:
        self._table = unit.table
        names = [each[:2] for each in unit.members] or [(unit.schema, unit.name)]
        tags = [tag_of(schema, name, (), "table") for schema, name in names]
        self._forms = dict.fromkeys(tags, form_of(unit.table))
        self._tags = np.array(tags, np.uint64)
        self._keys: list[Keys] = []

    def add(self, columns: Mapping[int, pa.Array], counts: Sequence[int]) -> None:
        """Add rows: their columns by position, and how many of the rows each member has."""
        owners = np.repeat(np.arange(len(self._tags)), counts)
        for number, parts in enumerate(_indexes(self._table) if key_columns(self._table) else ()):
            found = _mixed(self._tags + np.uint64(number))[owners]
            has_key: Mask = np.ones(len(owners), np.bool_)
            for part in parts:
                values = columns[part.offset]
                has_key &= values.is_valid().to_numpy(zero_copy_only=False)
                folded, unbounded = _fold(self._table.columns[part.offset], part.length, values)
                for tag in set(self._tags[owners[unbounded]].tolist()):
                    self._forms[tag] = UNBOUNDED
                found = _hashed(found, folded)
            keys = found[has_key]
            keys.sort()
            self._keys.append(keys)

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Add rows of a unit with one table, as `RowCodec` decodes them."""
        columns = {}
        for place in key_columns(self._table):
            column = self._table.columns[place]
            stored, values = _stored(column), [row[place] for row in rows]
            numbers = [None if value is None else stored(value) for value in values]
            columns[place] = pa.array(numbers, arrow_type(column))
        self.add(columns, [len(rows)])

    def with_keys(self, places: Sequence[int]) -> list[int]:
        """Return `places`, followed by the other columns that `add` needs."""
        return list(dict.fromkeys((*places, *key_columns(self._table))))

    def give_up(self) -> None:
        """Make all tables of the unit unbounded."""
        self._forms = dict.fromkeys(self._forms, UNBOUNDED)

    def digests(self) -> Digests:
        return Digests(self._forms, _distinct(self._keys))


@lru_cache(maxsize=1024)
def key_columns(table: TableInfo) -> tuple[int, ...]:
    """Return the columns from which digests are made; none if the table is unbounded."""
    if form_of(table) == UNBOUNDED:
        return ()
    return tuple(sorted({part.offset for parts in _indexes(table) for part in parts}))


@lru_cache(maxsize=1024)
def _indexes(table: TableInfo) -> list[list[IndexColumn]]:
    return [by_name(index.columns) for index in unique_indexes(table)]


@lru_cache(maxsize=1024)
def form_of(table: TableInfo) -> int:
    """Return a number for the comparison of a table's keys, `UNBOUNDED` if it is unknown.

    It does not depend on the table's name.
    """
    indexes = _indexes(table)
    columns = [table.columns[part.offset] for parts in indexes for part in parts]
    known = not any(
        family(column) is Family.TEXT and folding_of(column.collate) is Folding.UNKNOWN
        for column in columns
    )
    is_whole = known and all(map(is_written, columns)) and not table.expression_indexes
    if apply_key(table) is None or not is_whole:
        return UNBOUNDED
    return hash_of(*(repr([_part(table, part) for part in parts]).encode() for parts in indexes))


def _part(table: TableInfo, part: IndexColumn) -> tuple[object, ...]:
    column = table.columns[part.offset]
    return (
        part.name.lower(), part.length, int(column.tp), column.is_unsigned, column.decimal,
        column.charset, column.collate, column.elems, padded_length(column),
    )  # fmt: skip


def _stored(column: ColumnInfo) -> Callable[[Any], Any]:
    """Return the function from a value of `RowCodec` to the value that columns hold."""
    if column.tp is MysqlType.NEWDECIMAL:
        return lambda value: format(value if value else value.copy_abs(), "f")  # -0 equals 0.
    return (
        number_of(column) if column.tp in (MysqlType.ENUM, MysqlType.SET) else lambda value: value
    )


def _fold(column: ColumnInfo, length: int, values: pa.Array) -> tuple[pa.Array, Mask]:
    """Return the stored values of a column as `fold_of` folds them, and which are unbounded."""
    kind, unbounded = family(column), np.zeros(len(values), np.bool_)
    if kind is Family.FLOAT:
        return pc.add(values, 0.0), unbounded  # 0.0 equals -0.0.
    if kind is Family.BYTES:
        if padded_length(column) or length != -1:
            fold = fold_of(column, length)
            texts = [None if value is None else fold(value) for value in values.to_pylist()]
            return pa.array(texts, pa.large_binary()), unbounded
        return values, unbounded
    if kind is not Family.TEXT:
        return values, unbounded
    texts = values if length == -1 else pc.utf8_slice_codeunits(values, 0, length)
    texts = pc.ascii_rtrim(texts, " ")
    rule = folding_of(column.collate)
    if rule is Folding.EXACT:
        return texts, unbounded
    odd = ~_printable(texts)
    if odd.any() and rule is Folding.WEIGHED:
        parts = pc.utf8_normalize(texts, "NFD")
        texts = pc.ascii_rtrim(pc.replace_substring_regex(parts, r"\p{Mn}", ""), " ")
        odd = ~_printable(texts)
    return pc.ascii_lower(texts), odd


def _printable(texts: pa.Array) -> Mask:
    """Return which texts are printable ASCII; NULL is."""
    data = RowBytes(texts.cast(_binary(texts)))
    is_odd = data.bytes[: data.size] - np.uint8(0x20) > 0x5E
    if not is_odd.any():
        return np.ones(len(texts), np.bool_)
    counts = np.append(0, np.cumsum(is_odd))
    printable: Mask = counts[data.start] == counts[data.end]
    return printable


def _binary(texts: pa.Array) -> pa.DataType:
    is_large = texts.type in (pa.large_string(), pa.large_binary())
    return pa.large_binary() if is_large else pa.binary()


def _hashed(seeds: Keys, values: pa.Array) -> Keys:
    """Return one hash for each seed and value; of NULL, any."""
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return _hashed_bytes(seeds, RowBytes(values.cast(_binary(values))))
    words: Keys = values.fill_null(0).to_numpy().view(np.uint64)
    return _mixed(seeds ^ words)


def _hashed_bytes(seeds: Keys, data: RowBytes) -> Keys:
    at, left = data.start, data.end - data.start
    made = _mixed(seeds ^ left.view(np.uint64))
    rows = np.flatnonzero(left)
    while len(rows):
        words = data.word(at[rows]) & _LOW_BYTES[np.minimum(left[rows], 8)]
        made[rows] = _mixed(made[rows] ^ words)
        at, left = at + 8, left - 8
        rows = rows[left[rows] > 0]
    return made


def _mixed(keys: Keys) -> Keys:
    """Mix the bits of each key, in place: the finalizer of SplitMix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        keys ^= keys >> np.uint64(shift)
        keys *= np.uint64(factor)
    keys ^= keys >> np.uint64(31)
    return keys
