"""Savepoint: the checkpoint of a folder of files, and the valid end of its files.

    consistent = false
    commitTS = 414529105591271429
    schema-version = 7
    cluster-id = 6791641053252586769
    time-zone = "+00:00"
    begin = 0
    file = 3
    offset = 1048576
    last-crc = 2894601203
    checkpoint = "{…}"          all of it, as a downstream with tables has it in a row

The first three keys are TiDB-Binlog's, which writes no others. If only they are present, the
position of the checkpoint in the files must be searched for. Without `file` nothing has been
written yet. `last-crc` is the checksum of the record that ends at the offset; a file of another
history has a different one, and older versions stored none. `begin` is the first Drainer's first
checkpoint: the files hold everything after it, until the first of them expire. The savepoint is
replaced as a whole: a new file is written, synced and renamed, and its folder synced.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import checkpoint_stored
from penstock.codes import Code
from penstock.errors import Malformed
from penstock.log.files import DRAFT, Files

NAME = "savepoint"


class FilePosition(NamedTuple):
    """A position in the files: a file's number, and an offset in bytes."""

    file: int
    offset: int


class FileEnd(NamedTuple):
    """A file's end: its size in bytes, and the stored checksum of its last record.

    The checksum is None if an older version, which stored none, recorded the end.
    """

    size: int
    last_crc: int | None
    is_sealed: bool = True
    """False if uncommitted bytes may follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """The stored state; `text` is the whole checkpoint, `position` None before any record."""

    checkpoint: Checkpoint
    text: str
    position: FilePosition | None
    cluster_id: int | None
    """None in TiDB-Binlog's savepoint."""
    time_zone: str = ""
    last_crc: int | None = None
    begin_ts: int = 0
    """The files hold everything after this commit_ts; 0: everything."""

    @property
    def is_of_tidb_binlog(self) -> bool:
        """True for a savepoint that does not describe the files."""
        return self.cluster_id is None


def load_savepoint(files: Files, folder: Path) -> Savepoint | None:
    """Return the stored savepoint, None without a file; raise `Malformed` if damaged."""
    path = folder / NAME
    if NAME not in files.names(folder):
        return None
    file = files.open(path)
    try:
        data = file.read(0, file.size())
    finally:
        file.close()
    try:
        return _savepoint(tomllib.loads(data.decode()))
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(
            f"{path} is damaged: {error}",
            hint="put back the savepoint that was there; or give the Drainer a folder of its own,"
            " and the initial-commit-ts up to which these files are whole",
            code=Code.CHECKPOINT_DAMAGED,
        ) from error


def _savepoint(stored: dict[str, Any]) -> Savepoint:
    if "checkpoint" not in stored:
        checkpoint = Checkpoint.from_fields(stored)
        text = json.dumps(stored, sort_keys=True)
        return Savepoint(checkpoint=checkpoint, text=text, position=None, cluster_id=None)
    text = stored["checkpoint"]
    checkpoint = Checkpoint.from_json(text)
    if checkpoint.commit_ts != stored["commitTS"]:
        raise ValueError(f"commitTS is not that of the checkpoint, {checkpoint.commit_ts}")
    position = None
    if "file" in stored:
        position = FilePosition(int(stored["file"]), int(stored["offset"]))
    last_crc = stored.get("last-crc")
    return Savepoint(
        checkpoint=checkpoint,
        text=text,
        position=position,
        last_crc=None if last_crc is None else int(last_crc),
        cluster_id=int(stored["cluster-id"]),
        time_zone=str(stored["time-zone"]),
        begin_ts=int(stored["begin"]),
    )


def store_savepoint(files: Files, folder: Path, savepoint: Savepoint) -> None:
    """Durably replace the savepoint; an `OSError` leaves the old or the new one."""
    checkpoint, position = savepoint.checkpoint, savepoint.position
    lines = [
        f"consistent = {'true' if checkpoint.consistent else 'false'}",
        f"commitTS = {checkpoint.commit_ts}",
        f"schema-version = {checkpoint.schema_version}",
        f"cluster-id = {savepoint.cluster_id}",
        f"time-zone = {_quoted(savepoint.time_zone)}",
        f"begin = {savepoint.begin_ts}",
    ]
    if position is not None:
        lines += [f"file = {position.file}", f"offset = {position.offset}"]
    if savepoint.last_crc is not None:
        lines.append(f"last-crc = {savepoint.last_crc}")
    lines.append(f"checkpoint = {_quoted(savepoint.text)}")
    draft = folder / (NAME + DRAFT)
    file = files.create(draft)
    try:
        file.write(["\n".join([*lines, ""]).encode()], 0)
        file.sync()
    finally:
        file.close()
    checkpoint_stored()
    files.rename(draft, folder / NAME)
    files.sync_folder(folder)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
