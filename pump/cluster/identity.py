"""Identity: what a Pump is called and where it is reached; the name stays with the data.

    .node      the name, in the data folder: text of one line, written once
    .cluster   the id of the cluster whose binlogs these are: decimal text, written once
    .disk      an id of this folder alone: 32 hexadecimal digits, written once, and only for a log
               with copies on other Pumps, or for these copies; a copy's folder has the same id
    .copy      empty: the folder is a copy of a log, and no Pump's own
    .former    decimal text, the epoch in which a log began of which this folder has no part any
               more: what is listed on this disk for that log is a copy beside it. Gone once the
               folder has its log again: a restored etcd may name that epoch a second time

A Pump that moves to another host, or whose host is renamed, keeps its name, and with it its place
in the merge and its writers; only the address in its status changes.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.cluster.log_entry import LOGS
from penstock.cluster.node_registry import CLUSTER_ID_KEY
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
    """What a running Pump publishes about itself."""

    node_id: str
    host: str
    labels: Mapping[str, str]
    instance: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Distinguishes processes of the same name; also one from itself at a second address."""


def refuse_original(folder: Path) -> None:
    """Raise `NeedsOperator` for the data of a Pump of TiDB-Binlog, which would pass for ours.

    It has a `.node` too: under its name Drainers would take us for that Pump, with all it held.
    """
    if any(folder.glob(_ORIGINAL_FILES)):
        raise NeedsOperator(
            f"{folder} holds the binlogs of a Pump of TiDB-Binlog, which cannot be read here",
            hint="start with another, empty --data-dir and --node-id; that Pump is needed until it"
            " has handed over what it holds: binlogctl offline-pump",
            code=Code.DATA_OF_TIDB_BINLOG,
        )


def kept_node_id(folder: Path, configured: str, address: str) -> str:
    """Return the name this data folder already bears; else the configured one, or the address.

    A new name is durable when this returns. Raises `NeedsOperator` for two different names.
    """
    path = folder / _NAME_FILE
    if not path.exists():
        name = configured or address
        # All of it or nothing: half a name would be another Pump's.
        replace_file(path, f"{name}\n".encode())
        return name
    name = path.read_text(encoding="utf-8").strip()
    if not name:
        raise NeedsOperator(
            f"{path} is empty, so no one knows which Pump this data belongs to",
            hint="write the node id into it that `binlogctl pumps` shows for this Pump",
            code=Code.DATA_DIR_OTHER,
        )
    if configured not in ("", name):
        raise NeedsOperator(
            f"{folder} belongs to pump {name}, not to {configured}",
            hint="leave --node-id away, or use another --data-dir",
            code=Code.DATA_DIR_OTHER,
        )
    return name


def kept_disk_id(folder: Path) -> str:
    """Return the id of this data folder, which is drawn and durable when this returns.

    The name of a Pump is that of its data; a machine that lost its disk may come back under it. The
    id says which disk it is: what is listed as a copy of a log is a disk. Raises `NeedsOperator`
    for a file that holds no id.
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
            hint=f"write the id into it that the key {LOGS}<node id> in etcd has for this disk",
            code=Code.DATA_DIR_OTHER,
        )
    return kept.decode().strip()


def has_disk_id(folder: Path) -> bool:
    """Return whether a folder has an id, which means its log has or had replicas."""
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
    """Return in which epoch that log began, None while the folder is part of all it ever was.

    Raises `NeedsOperator` for a file that says something else.
    """
    path = folder / _FORMER_FILE
    if not path.exists():
        return None
    kept = path.read_bytes().strip()
    if not kept.isdigit():
        raise NeedsOperator(
            f"{path} is {kept!r}, which is no epoch, so no one knows whether this log is the listed"
            " one",
            hint=f"write the number into it that the key {LOGS}<node id> in etcd has as since",
            code=Code.DATA_DIR_OTHER,
        )
    return int(kept)


def mark_copy(folder: Path, node_id: str, cluster_id: int, disk: str) -> None:
    """Give the folder of a copy the name, the cluster and the disk that a Pump's own has.

    So a Pump can take over on it as it is. Raises `NeedsOperator` if it bears others already.
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
            hint="was the data folder put together from those of two machines? move this folder"
            " out of it; the log's primary makes another copy",
            code=Code.DATA_DIR_OTHER,
        )


def refuse_copy(folder: Path) -> None:
    """Raise `NeedsOperator` for the folder of a copy, which no one may run a Pump on by hand.

    It bears the name of its log's Pump and the id of a listed disk, but may have been brought from
    there, and lack since then what was acknowledged: a Pump on it would take the log over.
    """
    if (folder / _COPY_FILE).exists():
        raise NeedsOperator(
            f"{folder} is a copy of a log, on the disk of another Pump",
            hint="start the Pump whose data folder it is in; that one serves the log by itself when"
            " it is needed",
            code=Code.DATA_DIR_OTHER,
        )


def refuse_other_cluster(folder: Path, cluster_id: int) -> None:
    """Raise `NeedsOperator` for a data folder of another cluster; its id stays with the data.

    A folder that bears none yet, being new or of an earlier version, belongs to `cluster_id`.
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
            hint="check --etcd-urls and --data-dir; if etcd lost its data, put the id back before"
            f" any node starts: etcdctl put {CLUSTER_ID_KEY} {kept or '<id>'}",
            code=Code.CLUSTER_MISMATCH,
        )
