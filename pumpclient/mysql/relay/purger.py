"""Deletes relay log files that are not needed any more.

    inactive   all before the file that is read            by hand
    filename   all before a file, in one sub-directory     by hand
    time       all that were last written long ago         periodically, by hand
    space      all before the file that is read            periodically, when the disk is short

The file that is read and all later files are never deleted. An empty sub-directory is removed; its
line in the index stays until the next start (`RelayFolder.trim`), because only the receiver writes
the index while it runs.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError
from pumpclient.mysql.relay.layout import (
    FIRST_POSITION,
    INDEX_NAME,
    FileName,
    Location,
    SubDir,
    read_index,
)
from pumpclient.mysql.relay.recover import files_in

log = logging.getLogger(__name__)

Needed = Callable[[], Location | None]
"""The earliest place that must still be read; None if it is not known."""


class Purger:
    """Purges one relay log; one purge at a time."""

    def __init__(
        self,
        root: Path,
        needed: Needed,
        *,
        interval_s: float = 3600.0,
        expires_s: float = 0.0,
        remain_space_bytes: int = 15 << 30,
    ) -> None:
        self._root = root
        self._needed = needed
        self._interval_s = interval_s
        self._expires_s = expires_s
        self._remain_space_bytes = remain_space_bytes
        self._busy = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay purge", daemon=True)
        self.purged = 0
        """The number of files deleted so far."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def inactive(self) -> list[str]:
        """Delete all files before the file that is read; return the deleted names.

        This and the other purges raise `NeedsOperator` when the place that is read is not known, or
        while another purge is running.
        """
        return self._purge(lambda path: True)

    def before(self, file: FileName, suffix: int | None = None) -> list[str]:
        """Delete all files before `file`; the sub-directory is by default the one being read."""
        needed = self._place()
        end = Location(suffix or needed.suffix, file, FIRST_POSITION)
        return self._purge(lambda path: True, min(end, needed))

    def expired(self, age_s: float, now_s: float | None = None) -> list[str]:
        """Delete the oldest files, up to the first file written within `age_s`."""
        oldest_s = (time.time() if now_s is None else now_s) - age_s
        return self._purge(lambda path: path.stat().st_mtime < oldest_s)

    def check(self) -> list[str]:
        """Purge files that are due by free space, or else by age."""
        if shutil.disk_usage(self._root).free < self._remain_space_bytes:
            return self.inactive()
        return self.expired(self._expires_s) if self._expires_s else []

    def _place(self) -> Location:
        needed = self._needed()
        if needed is None:
            raise NeedsOperator(
                "no one has said which files are still to be read",
                hint="start the source first",
                code=Code.NODE_STATE,
            )
        return needed

    def _purge(self, may_go: Callable[[Path], bool], end: Location | None = None) -> list[str]:
        if not self._busy.acquire(blocking=False):
            raise NeedsOperator(
                "another purge is under way", hint="wait for its end", code=Code.NODE_STATE
            )
        try:
            return self._purged(may_go, end or self._place())
        finally:
            self._busy.release()

    def _purged(self, may_go: Callable[[Path], bool], end: Location) -> list[str]:
        gone: list[str] = []
        for sub_dir in self._sub_dirs():
            folder = self._root / str(sub_dir)
            if sub_dir.suffix > end.suffix:
                break
            if not folder.is_dir():
                continue
            files = files_in(folder)
            old = [f for f in files if sub_dir.suffix < end.suffix or f < end.file]
            for file in old:
                path = folder / str(file)
                if not may_go(path):
                    return self._reported(gone)
                path.unlink()
                gone.append(f"{sub_dir}/{file}")
            if sub_dir.suffix < end.suffix:
                shutil.rmtree(folder)
        return self._reported(gone)

    def _reported(self, gone: list[str]) -> list[str]:
        self.purged += len(gone)
        if gone:
            log.info("purged %d relay log files, %s to %s", len(gone), gone[0], gone[-1])
        return gone

    def _sub_dirs(self) -> list[SubDir]:
        index = self._root / INDEX_NAME
        return read_index(index.read_text()) if index.exists() else []

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self.check()
            except (PenstockError, OSError) as error:
                log.warning("purge of the relay log: %s", error)
