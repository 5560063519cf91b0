"""Images: decodes rows of mixed kinds, before and after, as Arrow columns in their order.

A before image exists for updates and deletes, an after image for inserts and updates. Each kind has
its own byte layout and is decoded separately; the pieces are put back in order afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.datum.columnar.decode import Side, decode_columns
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType

Kinds = np.ndarray[Any, np.dtype[np.uint8]]
Columns = list[pa.Array]


def before_columns(
    table: TableInfo, kinds: Kinds, rows: pa.Array, positions: Sequence[int]
) -> Columns:
    def decode(kind: MutationType, some: pa.Array) -> Columns:
        images = decode_columns(table, kind, some, positions, Side.BEFORE)
        assert images.before is not None, "an insert has no before image"
        return images.before

    return _by_kind(kinds, rows, decode)


def after_columns(
    table: TableInfo,
    kinds: Kinds,
    rows: pa.Array,
    positions: Sequence[int],
    *,
    marks_json: bool = False,
) -> Columns:
    def decode(kind: MutationType, some: pa.Array) -> Columns:
        images = decode_columns(table, kind, some, positions, Side.AFTER, marks_json=marks_json)
        assert images.after is not None, "a delete has no after image"
        return images.after

    return _by_kind(kinds, rows, decode)


def _by_kind(
    kinds: Kinds, rows: pa.Array, decode: Callable[[MutationType, pa.Array], Columns]
) -> Columns:
    present = np.unique(kinds)
    if len(present) == 1:
        return decode(MutationType(int(present[0])), rows)
    places = [np.flatnonzero(kinds == kind) for kind in present]
    pieces = [
        decode(MutationType(int(kind)), rows.take(pa.array(where)))
        for kind, where in zip(present, places, strict=True)
    ]
    back = pa.array(np.argsort(np.concatenate(places), kind="stable"))
    return [pa.concat_arrays(column).take(back) for column in zip(*pieces, strict=True)]
