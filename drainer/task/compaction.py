"""Compaction: reduces a batch's row changes to work units with each row's final change.

Every change is one or two *events*, in commit order, each under a primary key:

    INSERT                    put(after key)
    DELETE                    del(before key)
    UPDATE, key unchanged     put(key)
    UPDATE, key changed       del(before key), then put(after key)

Only a key's last event counts: a put is an upsert of that row's after image, a del a delete. All
deletes of a batch run before all its upserts. With S the table at the batch's start and E the table
at its end, this is right for all unique keys and collations because:

1. A row that is in S and E with another value in a unique index is also deleted first ("moved").
   After the deletes every remaining row has, in every unique index, a value that it has in E.
2. Each upsert therefore adds a row of E among rows of E: they cannot collide, for E was real
   upstream.
3. Keys are compared byte for byte, which is finer than a collation ('a' and 'A', 'a' and 'a ')
   or a prefix key. In E at most one of a class of equal keys exists. The others were touched,
   since their last event is a del, so they are deleted. Such a delete may hit the equal key that
   exists, which does no harm: that key was also touched, and its later upsert is complete.
4. A key was not in S if its first event is the put of an insert, or of an update that came from
   another key. Otherwise S holds the before image of the first event, and a delete has that image:
   `drainer.task.sql.digests` needs the unique values that it frees.

Writers must send before images that are byte for byte the row's previous content.

**Tables that differ only in their name**, such as those of sysbench or of a sharded schema: before
its first row, a table costs some hundred calls of numpy and Arrow in each batch. Small tables of
one layout share these calls. Their rows are compacted and written as one table's, with the table's
number before the key, and are separated again as texts.

    rows      |table 0 ....|table 1 ..|table 2 ......|
    unit      |deletes of 0 |of 1|of 2 |upserts of 0 |of 1|of 2 |

**Order.** Compacted changes are sorted by op and key. Neighbouring keys stay in one statement, and
the connection that commits a snapshot walks each index once, by key.

**Cost of a row.** CPU µs per row change, one batch of 40,000 on a busy two-core machine with
MariaDB 10.11, rows of `id INT` (key), `k INT` (indexed), `CHAR(120)`, `CHAR(60)`. "Ours" is
compaction, both codecs, SQL and sink. LOAD DATA of the same rows, in the same run: 9.3.

| `snapshot` | database | ours | of which driver |
|---|---|---|---|
| insert | 7.3 | 1.8 | 1.1 |
| update, each of `k` | 11–15 | 2.1 | 1.2 |
| a quarter updates of `k`, a half of `c`, a quarter deleted and inserted again | 7.6 | 1.3 | 0.8 |
| updates, zipf | 1.5 | 0.7 | 0.6 |
| insert, 100 tables of 400 rows | 16 | 19 in a first batch | 14 |

* Of large tables the database takes nearly all of the time. `parallel` adds 0.3 for the digest that
  fences need, and raises the database's CPU by nothing to a third. It can only pay in elapsed time,
  if the database has idle cores.
* Of many small tables the fixed cost is ours: a table's first batch takes the driver 4.7 ms, later
  ones 0.3 to 1.6 ms, and a task 1.0 to 2.7 ms. Row by row costs as much at about 100 rows, which is
  the default of `Bounds.rowwise_max`. Small tables that differ in name only share that cost
  (`groups`): 100 tables of 200 mixed changes take 1.5 to 4.5 µs a row instead of 20 to 25.
* Partitions of one table with a further unique key can deadlock if new keys are neighbours in that
  index; each is retried from its start. Random unique values met none in 120,000 rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.task.sql.rows import (
    Columns,
    Kinds,
    Row,
    after_columns,
    apply_key,
    before_columns,
    is_in_row,
    normal_key,
    normal_value,
    row_codec,
    unique_columns,
)
from drainer.task.work_unit import BOUNDS, ROWS_SCHEMA, Batch, Bounds, Op, TableRows, WorkUnit
from penstock.datum.columnar.decode import decode_keys
from penstock.datum.rows.fields import number_of
from penstock.errors import Malformed
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo
from penstock.wire.binlog import MutationType

_RANGE_MAX = 1 << 31
"""Integers within such a range can be counted without sorting; several of them fit a code."""

Ints = np.ndarray[Any, np.dtype[Any]]


Left = tuple[Kinds, Kinds, Ints]
"""The remaining changes: ops, kinds, and indexes into the table's rows, sorted by op, then key."""


def compact(table: TableInfo, kinds: Kinds, rows: pa.Array, bounds: Bounds = BOUNDS) -> Left:
    """Return the last writer of every key, and the deletes that make room for it."""
    if apply_key(table) is None:
        count = len(kinds)
        return np.full(count, Op.ORDERED, np.uint8), kinds, np.arange(count)
    few = compact_few if len(kinds) < bounds.rowwise_max else compact_many
    ops, indexes = few(table, kinds, rows)
    return ops, kinds[indexes], indexes


def compact_many(
    table: TableInfo, kinds: Kinds, rows: pa.Array, owners: Ints | None = None
) -> tuple[Kinds, Ints]:
    """Compact with whole columns; see `compact`.

    For rows of several tables of one layout, `owners` is the table of each row; it comes before the
    key.
    """
    codes, row, is_put, has_before = _events(table, kinds, rows, owners)
    order = np.argsort(codes, kind="stable")
    by_key = codes[order]
    ends = np.flatnonzero(np.append(by_key[1:] != by_key[:-1], True))
    starts = np.append(0, ends[:-1] + 1)
    first, last = order[starts], order[ends]
    alive = is_put[last]
    was_there = alive & has_before[first]
    moved = np.zeros(len(alive), bool)
    candidates = np.flatnonzero(was_there)
    if len(candidates):
        before, after = row[first[candidates]], row[last[candidates]]
        moved[candidates] = _is_moved(table, kinds, rows, before, after)
    # The row as it was at the start has the key and the unique values that its delete frees.
    gone = np.flatnonzero(~alive | moved)
    gone_rows = np.where(has_before[first[gone]], row[first[gone]], row[last[gone]])
    kept = row[last[alive]]
    ops = np.repeat(np.array([Op.DELETE, Op.UPSERT], np.uint8), [len(gone_rows), len(kept)])
    return ops, np.concatenate([gone_rows, kept])


def _events(
    table: TableInfo, kinds: Kinds, rows: pa.Array, owners: Ints | None
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return key code, row, whether it is a put, and whether the before image has that key.

    Codes are equal for equal keys, and sorted like the keys.
    """
    columns: list[Columns] = []
    indexes: list[Ints] = []
    puts: list[bool] = []
    befores: list[bool] = []

    def add(keys: Columns, index: Ints, is_put: bool, has_before: bool) -> None:
        columns.append(keys)
        indexes.append(index)
        puts.append(is_put)
        befores.append(has_before)

    for kind in MutationType:
        index = np.flatnonzero(kinds == kind)
        if not len(index):
            continue
        some = rows if len(index) == len(rows) else rows.take(pa.array(index))
        before, after = _keys(table, kind, some)
        if kind is MutationType.DELETE:
            add(before, index, False, True)
        elif kind is MutationType.INSERT:
            add(after, index, True, False)
        else:
            same: Ints = np.ones(len(index), bool)
            for old, new in zip(before, after, strict=True):
                same &= pc.equal(old, new).to_numpy(zero_copy_only=False)
            if same.all():
                add(after, index, True, True)
                continue
            stayed, left = pa.array(same), pa.array(~same)
            add([c.filter(stayed) for c in after], index[same], True, True)
            add([c.filter(left) for c in before], index[~same], False, True)
            add([c.filter(left) for c in after], index[~same], True, False)
    counts = [len(index) for index in indexes]
    row = np.concatenate(indexes)
    is_put = np.repeat(puts, counts)
    has_before = np.repeat(befores, counts)
    keys = [pa.concat_arrays(column) for column in zip(*columns, strict=True)]
    if owners is not None:
        keys.insert(0, pa.array(owners[row]))
    codes = _codes(keys)
    if len(columns) > 1:
        order = np.argsort(row, kind="stable")  # Two events of one row have different keys.
        codes, row, is_put, has_before = (a[order] for a in (codes, row, is_put, has_before))
    return codes, row, is_put, has_before


def _keys(table: TableInfo, kind: MutationType, rows: pa.Array) -> tuple[Columns, Columns]:
    key = apply_key(table)
    assert key is not None
    infos = [table.columns[part.offset] for part in key.columns]
    before, after = decode_keys(table, kind, rows)
    normal = [
        [normal_key(info, values) for info, values in zip(infos, image or [], strict=False)]
        for image in (before, after)
    ]
    return normal[0], normal[1]


def _codes(columns: Columns) -> Ints:
    """Return one number for each key: equal for equal keys, in the order of the keys."""
    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        values: Ints = columns[0].to_numpy()
        return values
    codes, size = _ranks(columns[0])
    for column in columns[1:]:
        more, count = _ranks(column)
        if size * count >= 1 << 62:
            _, codes = np.unique(codes, return_inverse=True)
            size = len(codes)
        codes = codes * count + more
        size *= count
    return codes


def _ranks(column: pa.Array) -> tuple[Ints, int]:
    if pa.types.is_integer(column.type):
        numbers: Ints = column.to_numpy()
        low, size = int(numbers.min()), int(numbers.max()) - int(numbers.min()) + 1
        if size < _RANGE_MAX:
            return (numbers - numbers.dtype.type(low)).astype(np.int64), size
        values, ranks = np.unique(numbers, return_inverse=True)
        return ranks.astype(np.int64), len(values)
    coded = column.dictionary_encode()
    order = pc.sort_indices(coded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[coded.indices.to_numpy()], len(order)


def _is_moved(table: TableInfo, kinds: Kinds, rows: pa.Array, before: Ints, after: Ints) -> Ints:
    positions = unique_columns(table)
    moved: Ints = np.zeros(len(before), bool)
    if not positions:
        return moved
    if not is_in_row(table, positions):
        return ~moved
    old = before_columns(table, kinds[before], rows.take(pa.array(before)), positions)
    new = after_columns(table, kinds[after], rows.take(pa.array(after)), positions)
    for a, b in zip(old, new, strict=True):
        equal = pc.fill_null(pc.equal(a, b), False)
        both_null = pc.and_(a.is_null(), b.is_null())
        moved |= ~pc.or_(equal, both_null).to_numpy(zero_copy_only=False)
    return moved


def plan_units(batch: Batch, dialect: str, bounds: Bounds = BOUNDS) -> list[WorkUnit]:
    """Return the batch as work units: one for each table, or for a group of alike tables."""
    units: list[WorkUnit] = []
    for group in groups(batch.tables, bounds):
        if len(group) > 1 and sum(len(each.rows) for each in group) >= bounds.rowwise_max:
            units += _group_units(batch, group, dialect, len(units), bounds)
            continue
        for changes in group:
            units.append(_table_unit(batch, changes, dialect, len(units), bounds))
    return units


def _table_unit(
    batch: Batch, changes: TableRows, dialect: str, part: int, bounds: Bounds
) -> WorkUnit:
    table = changes.table
    left = compact(table, changes.kind_array(), changes.rows, bounds)
    rows = _record(left, changes.rows.cast(pa.large_binary()))
    return WorkUnit(
        batch.batch_id, part, dialect, changes.schema, table.name, table, rows, batch.displaces
    )


def _record(left: Left, rows: pa.Array) -> pa.RecordBatch:
    ops, kinds, indexes = map(pa.array, left)
    columns = [ops, kinds, rows.take(indexes)]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)


def _group_units(
    batch: Batch, group: Sequence[TableRows], dialect: str, part: int, bounds: Bounds
) -> list[WorkUnit]:
    table = layout_of(group[0].table)  # One object for all batches, so that it is compiled once.
    assert table is not None, "a group has a key"
    kinds = np.concatenate([each.kind_array() for each in group])
    rows = pa.concat_arrays([each.rows.cast(pa.large_binary()) for each in group])
    owners = np.repeat(np.arange(len(group)), [len(each.rows) for each in group])
    try:
        ops, indexes = compact_many(table, kinds, rows, owners)
    except Malformed:  # Processed one by one, they report the bad row.
        return [_table_unit(batch, each, dialect, part + i, bounds) for i, each in enumerate(group)]
    owner = owners[indexes]
    counts = [np.bincount(owner[ops == op], minlength=len(group)) for op in (Op.DELETE, Op.UPSERT)]
    members = tuple(
        (each.schema, each.table.name, int(deletes), int(upserts))
        for each, deletes, upserts in zip(group, *counts, strict=True)
    )
    schema, name = group[0].schema, group[0].table.name
    left = _record((ops, kinds[indexes], indexes), rows)
    return [
        WorkUnit(
            batch.batch_id, part, dialect, schema, name, table, left, batch.displaces,
            members=members,
        )
    ]  # fmt: skip


def groups(tables: Sequence[TableRows], bounds: Bounds = BOUNDS) -> list[list[TableRows]]:
    """Return all tables with rows, grouped if they may share the same calls.

    A table that occurs twice, in two versions or as the target of two, stays alone, in its order.
    """
    names = Counter((each.schema, each.table.name) for each in tables)
    made: list[list[TableRows]] = []
    open_ones: dict[TableInfo, tuple[list[TableRows], int]] = {}
    for each in tables:
        if not len(each.rows):
            continue
        alone = names[each.schema, each.table.name] > 1 or len(each.rows) >= bounds.table_rows_max
        layout = None if alone else layout_of(each.table)
        if layout is None:
            made.append([each])
            continue
        group, size = open_ones.get(layout, ([], 0))
        size += each.rows.nbytes
        if not group or size > bounds.group_bytes_max:
            group, size = [], each.rows.nbytes
            made.append(group)
        group.append(each)
        open_ones[layout] = group, size
    return made


@lru_cache(maxsize=4096)
def layout_of(table: TableInfo) -> TableInfo | None:
    """Return the table without the fields that differ within a layout; None without a key."""
    if apply_key(table) is None:
        return None
    return replace(table, id=0, name="", comment="", partitions=None)


@dataclass(slots=True)
class _Fate:
    """A batch's effect on one key: its image at the start (None: no row) and at the end."""

    first_row: int
    before: Row | None
    last_row: int = -1
    deleted: Row | None = None
    """The image that the last event removed; None if it was a put."""
    after: Row | None = None


def compact_few(
    table: TableInfo, kinds: Kinds, rows: pa.Array
) -> tuple[Kinds, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return ops and row indexes of the remaining changes, deletes first, in key order."""
    gone, kept = _fates(table, kinds.tolist(), rows.to_pylist())
    places = [f.first_row if f.before else f.last_row for f in gone] + [f.last_row for f in kept]
    ops = [Op.DELETE] * len(gone) + [Op.UPSERT] * len(kept)
    return np.array(ops, np.uint8), np.array(places, np.int64)


def remaining(
    table: TableInfo, kinds: Iterable[int], rows: Iterable[bytes]
) -> tuple[list[Row], list[Row]]:
    """Return the rows to delete and the rows to upsert, in key order."""
    gone, kept = _fates(table, kinds, rows)
    images = [each.before or each.deleted for each in gone], [each.after for each in kept]
    return [row for row in images[0] if row], [row for row in images[1] if row]


def _fates(
    table: TableInfo, kinds: Iterable[int], rows: Iterable[bytes]
) -> tuple[list[_Fate], list[_Fate]]:
    codec = row_codec(table)
    key_of = _key_of(table)
    fates: dict[Row, _Fate] = {}

    def event(row: int, before: Row | None, after: Row | None, key: Row) -> None:
        fate = fates.setdefault(key, _Fate(row, before))
        fate.last_row, fate.deleted, fate.after = row, None if after else before, after

    for i, (kind, data) in enumerate(zip(kinds, rows, strict=True)):
        if kind == MutationType.INSERT:
            after = codec.decode_insert(data)
            event(i, None, after, key_of(after))
        elif kind == MutationType.DELETE:
            before = codec.decode_delete(data)
            event(i, before, None, key_of(before))
        else:
            before, after = codec.decode_update(data)
            old, new = key_of(before), key_of(after)
            if old == new:
                event(i, before, after, new)
            else:
                event(i, before, None, old)
                event(i, None, after, new)
    moved = _moved(table)
    in_order = [fates[key] for key in sorted(fates)]
    return [f for f in in_order if not f.after or moved(f)], [f for f in in_order if f.after]


@lru_cache(maxsize=1024)
def _key_of(table: TableInfo) -> Callable[[Row], Row]:
    def comparable(column: ColumnInfo) -> Callable[[Any], Any]:
        if column.tp not in (MysqlType.ENUM, MysqlType.SET):
            return partial(normal_value, column)
        number = number_of(column)  # ENUM texts are not unique per number.
        return lambda value: number(normal_value(column, value))

    key = apply_key(table)
    assert key is not None
    columns = [(part.offset, comparable(table.columns[part.offset])) for part in key.columns]
    return lambda row: tuple([value(row[at]) for at, value in columns])


def _moved(table: TableInfo) -> Callable[[_Fate], bool]:
    positions = unique_columns(table)
    in_row = is_in_row(table, positions)

    def moved(fate: _Fate) -> bool:
        if fate.before is None or fate.after is None:
            return False
        before, after = fate.before, fate.after
        return not in_row or any(before[p] != after[p] for p in positions)

    return moved
