"""The file that stores how far a reload has read the binlog."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.log.files import replace_file
from pumpclient.mysql.source.state.checkpoint import Checkpoint


class FollowFile:
    """How far a reload has read the binlog; a syncer stores its checkpoint in this file."""

    def __init__(self, path: Path, may_commit: Callable[[], bool]) -> None:
        self._path = path
        self.is_ours = may_commit

    def is_lost(self) -> bool:
        return not self.is_ours()

    def load(self) -> Checkpoint | None:
        try:
            return Checkpoint.parse(self._path.read_bytes(), str(self._path))
        except FileNotFoundError:
            return None

    def save(self, checkpoint: Checkpoint) -> None:
        try:
            replace_file(self._path, json.dumps(asdict(checkpoint)).encode())
        except OSError as error:
            raise NeedsOperator(
                f"{self._path} cannot be written: {error}",
                hint="free the disk, or its rights",
                code=Code.PATH_UNUSABLE,
            ) from error
