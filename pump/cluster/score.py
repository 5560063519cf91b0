"""How gladly a Pump takes the next transaction: 0 to 1000, for clients that choose by `score`.

    score = 1000 × space × queue × latency, at least 1 while new transactions are taken

    space      free bytes above the reserve / bytes of the volume above the reserve
    queue      the part of the write queue that is empty
    latency    1 / (1 + average append / 10 ms): one half where a group takes 10 ms

Each factor is 1 for a Pump at rest on an empty disk. The score is published with the heartbeat;
clients give each Pump turns in proportion to it. So a Pump whose disk is nine tenths full gets a
tenth of the transactions of an empty one, and the disks fill up together. One that is out of
space or whose queue is full scores 0 and gets none while another scores more.

A slow append is forgotten by way of new ones; fake binlogs see to it that there are some.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pump.service.group_commit import Writer
    from pump.store.storage import Storage

SCORE_MAX = 1000
LATENCY_HALF_S = 0.010


class Load(NamedTuple):
    """What a Pump's score is made of."""

    free_bytes: int
    reserve_bytes: int
    volume_bytes: int
    queue_fill: float
    append_s_average: float


def score_of(load: Load) -> int:
    """Return the score; higher is better."""
    usable = load.free_bytes - load.reserve_bytes
    if usable <= 0 or load.queue_fill >= 1:
        return 0
    space = usable / max(load.volume_bytes - load.reserve_bytes, usable)
    queue = 1 - load.queue_fill
    latency = 1 / (1 + load.append_s_average / LATENCY_HALF_S)
    return max(1, round(SCORE_MAX * space * queue * latency))


def score_now(storage: Storage, writer: Writer, folder: Path) -> int:
    """Return the present score of the Pump whose data is in `folder`."""
    stats = storage.stats()
    return score_of(
        Load(
            free_bytes=stats["available_bytes"],
            reserve_bytes=stats["stop_write_at_available_bytes"],
            volume_bytes=shutil.disk_usage(folder).total,
            queue_fill=writer.queue_fill,
            append_s_average=writer.append_s_average,
        )
    )
