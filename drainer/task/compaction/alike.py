"""Tables that differ in nothing but their name, as those of sysbench or of a sharded schema do.

What a table costs in a batch before its first row is some hundred calls of numpy and Arrow. Small
tables of one layout share them: their rows are compacted and written as if they were one table's,
with the table's number in front of the key, and come apart again as texts.

    rows      |table 0 ....|table 1 ..|table 2 ......|
    unit      |deletes of 0 |of 1|of 2 |upserts of 0 |of 1|of 2 |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from drainer.task.compaction import partition
from drainer.task.sql.keys import apply_key
from drainer.task.work_unit import TableRows
from penstock.schema.model import TableInfo

TABLE_ROWS_MAX = 5 * partition.SHARE_ROWS_MIN
"""A table with so many rows is worth its own calls, and may be cut into shares.

Ten tables of 2,000 rows took 3 µs of CPU a row from batch to SQL one by one, and 1.6 together.
"""
GROUP_BYTES_MAX = 8 << 20
"""So many bytes of rows are copied together at a time."""


def groups(tables: Sequence[TableRows]) -> list[list[TableRows]]:
    """Return all tables with rows, those together that may go through the same calls.

    A table that occurs twice, in two versions or as the target of two, stays alone, in its order.
    """
    names = Counter((each.schema, each.table.name) for each in tables)
    made: list[list[TableRows]] = []
    open_ones: dict[TableInfo, tuple[list[TableRows], int]] = {}
    for each in tables:
        if not len(each.rows):
            continue
        alone = names[each.schema, each.table.name] > 1 or len(each.rows) >= TABLE_ROWS_MAX
        layout = None if alone else layout_of(each.table)
        if layout is None:
            made.append([each])
            continue
        group, size = open_ones.get(layout, ([], 0))
        size += each.rows.nbytes
        if not group or size > GROUP_BYTES_MAX:
            group, size = [], each.rows.nbytes
            made.append(group)
        group.append(each)
        open_ones[layout] = group, size
    return made


@lru_cache(maxsize=4096)
def layout_of(table: TableInfo) -> TableInfo | None:
    """Return the table without what tells it from others of its layout, None without a key."""
    if apply_key(table) is None:
        return None
    return replace(table, id=0, name="", comment="", partitions=None)


def spans(sizes: np.ndarray[Any, np.dtype[Any]], rows: int, parts: int) -> list[int]:
    """Return where to cut tables of these sizes, so that each piece has about as much of them.

    The first entry is 0, the last one their number; `rows` are those of all tables together.
    """
    parts = max(1, min(parts, rows // partition.SHARE_ROWS_MIN))
    ends = np.cumsum(sizes)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts) + 1
    return sorted({0, len(sizes), *(int(cut) for cut in cuts if cut < len(sizes))})
