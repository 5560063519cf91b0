"""Past: checks that the data folder of a log with one copy is the folder that its Pump wrote last.

    .runs                       in the folder: an id for each start on it, the newest last
    /penstock/v1/runs/<pump>    in etcd: the id of the last start

A folder from a backup lacks the ids of later starts, and so does a folder whose Pump ran on another
folder since. A folder that is newer than etcd has etcd's id in its list. Within one run, the status
in etcd records the timestamp up to which the Pump had sorted.

An offline Pump has handed everything over, and starts with any folder.
"""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import NamedTuple

from penstock.cluster.node_registry import NodeKind, NodeState, Registry
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.log.files import replace_file

log = logging.getLogger(__name__)

_RUNS_FILE = ".runs"
_RUNS_MAX = 1000


class Held(NamedTuple):
    """The content of a data folder."""

    folder: Path
    up_to_ts: int | None
    """The largest timestamp in it; None if a crash may have cut acknowledged data."""


def begin_run(registry: Registry, node_id: str, held: Held) -> None:
    """Record the start of a Pump on its folder; raise `NeedsOperator` unless it wrote it last.

    Raises `Retryable` while etcd does not answer.
    """
    path = held.folder / _RUNS_FILE
    runs = path.read_text(encoding="utf-8").split() if path.exists() else []
    status = registry.get(NodeKind.PUMP, node_id)
    if status is not None and status.state is not NodeState.OFFLINE:
        last = registry.last_run(node_id)
        if last and last not in runs:
            raise _not_the_last(node_id, held, "it lacks the Pump's last start")
        if held.up_to_ts is not None and status.max_commit_ts > held.up_to_ts:
            what = f"it ends at {held.up_to_ts}, but the Pump had sorted up to"
            raise _not_the_last(node_id, held, f"{what} {status.max_commit_ts}")
    run = uuid.uuid4().hex
    try:
        replace_file(path, "".join(f"{each}\n" for each in [*runs, run][-_RUNS_MAX:]).encode())
    except OSError as error:  # It starts even on a full disk, so that a purge helps.
        log.warning("this start is not noted in %s: %s", path, error)
        return
    registry.put_run(node_id, run)


def _not_the_last(node_id: str, held: Held, why: str) -> NeedsOperator:
    return NeedsOperator(
        f"the data folder {held.folder} is not the one that pump {node_id} wrote last: {why}",
        hint="start it with its newest folder, or with another --node-id if a second process runs"
        f" as this Pump; if that folder is lost, `penstock ctl lost-pump {node_id}"
        " --accept-loss-after 0` shows what it held",
        code=Code.LOG_OLDER,
    )
