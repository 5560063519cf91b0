"""Identity: the name, the address and the disk id of a Pump; the name stays with the data.

    .node      the name, in the data folder: text of one line, written once
    .cluster   the id of the cluster whose binlogs these are: decimal text, written once
    .disk      an id of this folder alone: 32 hexadecimal digits, written once, and only for a log
               with copies on other Pumps, or for replicas; a replica's folder has the same id
    .copy      empty: the folder is a replica of a log, not a Pump's own folder
    .former    decimal text, the epoch in which a log began that this folder no longer belongs to:
               an entry that lists this disk for that log means a replica beside the folder. Deleted
               once the folder has its log again: a restored etcd may issue that epoch twice

A Pump that moves to another host, or whose host is renamed, keeps its name, and with it its place
in the merge and its writers; only the address in its status changes.

A start checks that the data folder of a log with one copy is the folder that its Pump wrote last:

    .runs                       in the folder: an id for each start on it, the newest last
    /penstock/v1/runs/<pump>    in etcd: the id of the last start

A folder from a backup lacks the ids of later starts, and so does a folder whose Pump ran on another
folder since. A folder that is newer than etcd has etcd's id in its list. Within one run, the status
in etcd records the timestamp up to which the Pump had sorted.

An offline Pump has handed everything over, and starts with any folder.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.cluster.log_entry import LOGS
from penstock.cluster.node_registry import CLUSTER_ID_KEY, NodeKind, NodeState, Registry
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.log.files import replace_file, sync_folder

_ORIGINAL_FILES = "value/*.vlog"
_NAME_FILE = ".node"
_CLUSTER_FILE = ".cluster"
_DISK_FILE = ".disk"
_COPY_FILE = ".copy"
_FORMER_FILE = ".former"
_DISK_ID = re.compile(rb"[0-9a-f]{32}\n?")


@dataclass(frozen=True, slots=True)
class Identity:
    """The facts that a running Pump publishes about itself."""

    node_id: str
    host: str
    labels: Mapping[str, str]
    instance: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Distinguishes processes of the same name, and a process from itself at a second address."""


def refuse_foreign(folder: Path, *, is_failover: bool) -> None:
    """Raise `NeedsOperator` for a folder that is not a Pump's own.

    The data of a TiDB-Binlog Pump could be mistaken for ours. It also has a `.node`: under that
    name, Drainers would take us for that Pump and its data. The folder of a replica must not be run
    as a Pump by hand. It bears the name of its log's Pump and the id of a listed disk. If it was
    brought from elsewhere, it may lack acknowledged data, and a Pump on it would become the log's
    primary.
    """
    if any(folder.glob(_ORIGINAL_FILES)):
        raise NeedsOperator(
            f"{folder} holds the binlogs of a Pump of TiDB-Binlog, which cannot be read here",
            "start with another, empty --data-dir and --node-id; that Pump is needed until it"
            " has handed over what it holds: penstock ctl offline-pump",
            Code.DATA_DIR_OTHER,
        )
    if not is_failover and (folder / _COPY_FILE).exists():
        raise NeedsOperator(
            f"{folder} is a copy of a log, on the disk of another Pump",
            "start the Pump whose data folder it is in; that one serves the log by itself when"
            " it is needed",
            Code.DATA_DIR_OTHER,
        )


def kept_node_id(folder: Path, configured: str, address: str) -> str:
    """Return the name in this data folder; without a name, the configured one or the address.

    A new name is durable when this returns. Raises `NeedsOperator` for two different names.
    """
    path = folder / _NAME_FILE
    if not path.exists():
        name = configured or address
        # Atomic: a truncated name could be another Pump's.
        replace_file(path, f"{name}\n".encode())
        return name
    name = path.read_text(encoding="utf-8").strip()
    if not name:
        raise NeedsOperator(
            f"{path} is empty, so no one knows which Pump this data belongs to",
            "write the node id into it that `penstock ctl pumps` shows for this Pump",
            Code.DATA_DIR_OTHER,
        )
    if configured not in ("", name):
        raise NeedsOperator(
            f"{folder} belongs to pump {name}, not to {configured}",
            "leave --node-id away, or use another --data-dir",
            Code.DATA_DIR_OTHER,
        )
    return name


def kept_disk_id(folder: Path) -> str:
    """Return the id of this data folder; a new id is random, and durable when this returns.

    A Pump's name belongs to its data, and a machine that lost its disk may come back under the
    same name. The id tells disks apart, because a replica of a log is listed by disk. Raises
    `NeedsOperator` for a file without a valid id.
    """
    path = folder / _DISK_FILE
    if not path.exists():
        drawn = uuid.uuid4().hex
        replace_file(path, f"{drawn}\n".encode())
        return drawn
    kept = path.read_bytes()
    if not _DISK_ID.fullmatch(kept):
        raise NeedsOperator(
            f"{path} is {kept!r}, which is no disk id, so no one knows whether this copy is listed",
            f"write the id into it that the key {LOGS}<node id> in etcd has for this disk",
            Code.DATA_DIR_OTHER,
        )
    return kept.decode().strip()


def has_disk_id(folder: Path) -> bool:
    return (folder / _DISK_FILE).exists()


def note_former(folder: Path, since: int) -> None:
    """Durably note that a Pump's own folder no longer belongs to the log begun at `since`."""
    replace_file(folder / _FORMER_FILE, f"{since}\n".encode())


def forget_former(folder: Path) -> None:
    """Undo `note_former`: from now on the folder belongs to the log."""
    path = folder / _FORMER_FILE
    if path.exists():
        path.unlink()
        sync_folder(folder)


def former_since(folder: Path) -> int | None:
    """Return the epoch noted by `note_former`; None while the folder belongs to its log.

    Raises `NeedsOperator` for a file with other content.
    """
    path = folder / _FORMER_FILE
    if not path.exists():
        return None
    kept = path.read_bytes().strip()
    if not kept.isdigit():
        raise NeedsOperator(
            f"{path} is {kept!r}, which is no epoch, so no one knows whether this log is the listed"
            " one",
            f"write the number into it that the key {LOGS}<node id> in etcd has as since",
            Code.DATA_DIR_OTHER,
        )
    return int(kept)


def mark_copy(folder: Path, node_id: str, cluster_id: int, disk: str) -> None:
    """Give a replica's folder the same name, cluster and disk marks as a Pump's own folder.

    A failover can then use it unchanged. Raises `NeedsOperator` if it bears different marks.
    """
    if not (folder / _COPY_FILE).exists():
        replace_file(folder / _COPY_FILE, b"")
    kept_node_id(folder, node_id, node_id)
    refuse_other_cluster(folder, cluster_id)
    path = folder / _DISK_FILE
    if not path.exists():
        replace_file(path, f"{disk}\n".encode())
    elif kept_disk_id(folder) != disk:
        raise NeedsOperator(
            f"{folder} is a copy on another disk, {kept_disk_id(folder)}",
            "was the data folder put together from those of two machines? move this folder"
            " out of it; the log's primary makes another copy",
            Code.DATA_DIR_OTHER,
        )


def refuse_other_cluster(folder: Path, cluster_id: int) -> None:
    """Raise `NeedsOperator` for a data folder of another cluster; its id stays with the data.

    A folder without an id, new or from an earlier version, is assigned to `cluster_id`.
    """
    path = folder / _CLUSTER_FILE
    if not path.exists():
        replace_file(path, f"{cluster_id}\n".encode())
        return
    kept = path.read_text(encoding="utf-8").strip()
    if kept != str(cluster_id):
        raise NeedsOperator(
            f"{folder} holds binlogs of cluster {kept or '?'}, but etcd is that of cluster"
            f" {cluster_id}",
            "check --etcd-urls and --data-dir; if etcd lost its data, put the id back before"
            f" any node starts: etcdctl put {CLUSTER_ID_KEY} {kept or '<id>'}",
            Code.CLUSTER_MISMATCH,
        )


log = logging.getLogger(__name__)

_RUNS_FILE = ".runs"
_RUNS_MAX = 1000


def begin_run(registry: Registry, node_id: str, folder: Path, held_ts: int | None) -> None:
    """Record the start of a Pump on its folder; raise `NeedsOperator` unless it wrote it last.

    `held_ts` is the largest timestamp in the folder; None if a crash may have cut acknowledged
    data. Raises `Retryable` while etcd does not answer.
    """
    path = folder / _RUNS_FILE
    runs = path.read_text(encoding="utf-8").split() if path.exists() else []
    status = registry.get(NodeKind.PUMP, node_id)
    if status is not None and status.state is not NodeState.OFFLINE:
        last = registry.last_run(node_id)
        if last and last not in runs:
            raise _not_the_last(node_id, folder, "it lacks the Pump's last start")
        if held_ts is not None and status.max_commit_ts > held_ts:
            what = f"it ends at {held_ts}, but the Pump had sorted up to"
            raise _not_the_last(node_id, folder, f"{what} {status.max_commit_ts}")
    run = uuid.uuid4().hex
    try:
        replace_file(path, "".join(f"{each}\n" for each in [*runs, run][-_RUNS_MAX:]).encode())
    except OSError as error:  # It starts even on a full disk, so that a purge helps.
        log.warning("this start is not noted in %s: %s", path, error)
        return
    registry.put_run(node_id, run)


def _not_the_last(node_id: str, folder: Path, why: str) -> NeedsOperator:
    return NeedsOperator(
        f"the data folder {folder} is not the one that pump {node_id} wrote last: {why}",
        "start it with its newest folder, or with another --node-id if a second process runs"
        f" as this Pump; if that folder is lost, `penstock ctl lost-pump {node_id}"
        " --accept-loss-after 0` shows what it held",
        Code.LOG_OLDER,
    )
