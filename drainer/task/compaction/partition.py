"""A table's compacted changes cut into shares for the Spark tasks.

The changes arrive sorted by op and key, and a share is a run of them: neighbouring keys stay in
one statement, and the one connection that commits a snapshot walks each index once, in order.
Shares are cut by bytes, not by rows, so that tasks finish together. Where a row goes has no
meaning beyond this batch: a snapshot commits all shares in one transaction.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SHARE_ROWS_MIN = 1000
"""Fewer rows than this cost a task less to write than to hear about."""


def shares(rows: pa.RecordBatch, parts: int) -> list[pa.RecordBatch]:
    """Return `rows` in at most `parts` runs of about the same size in bytes."""
    count = len(rows)
    parts = max(1, min(parts, count // SHARE_ROWS_MIN))
    if parts == 1:
        return [rows]
    sizes = pc.binary_length(rows.column("row")).to_numpy() + 16  # A row costs something empty too.
    ends = np.cumsum(sizes)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts)
    bounds = [0, *(int(cut) for cut in np.unique(cuts)), count]
    return [rows.slice(start, stop - start) for start, stop in pairwise(bounds) if stop > start]
