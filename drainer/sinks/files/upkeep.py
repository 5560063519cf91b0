"""Upkeep of full files: packs them if requested, and removes expired ones.

It runs in a dedicated thread, because packing half a gigabyte takes longer than a batch may. It
does not check whether readers still need a file; `retention` decides that. The file that is being
written is never touched. A packed file is first written under another name, synced and renamed. It
keeps the original's time, which decides when it expires, before the original is removed.
"""

from __future__ import annotations

import gzip
import logging
import os
import threading
import time
from pathlib import Path

from drainer.sinks.files.binlog_files import COMPRESSED, binlog_files
from drainer.sinks.files.savepoint import schema_name
from drainer.sinks.files.target import FilesTarget
from drainer.sinks.protocol import FileCounts
from penstock.errors import PenstockError
from penstock.log.files import DRAFT, sync_folder

log = logging.getLogger(__name__)

INTERVAL_S = 3600.0
_LEVEL = 6
_CHUNK_BYTES = 1 << 20


class Upkeep:
    """The pending upkeep of a folder; `consider` is called with the file that is being written."""

    def __init__(self, target: FilesTarget, counts: FileCounts) -> None:
        self._target = target
        self._counts = counts
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._looked_s = -INTERVAL_S
        self._live = -1

    def consider(self, live: int) -> None:
        """Start due work when a file became full or an hour has passed; return immediately."""
        target, now_s = self._target, time.monotonic()
        is_due = live != self._live or now_s - self._looked_s >= INTERVAL_S
        if not is_due or not (target.compresses or target.retention_s):
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._live, self._looked_s = live, now_s
        self._thread = threading.Thread(
            target=self._run, args=(live,), name="upkeep of files", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Leave work in progress undone; a later run starts it again."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, live: int) -> None:
        try:
            self.expire(live, time.time())
            self.pack(live)
        except (OSError, PenstockError) as error:
            log.warning("the upkeep of %s will be tried again: %s", self._target.folder, error)

    def expire(self, live: int, now_s: float) -> None:
        """Remove full files last written before the retention period, oldest first."""
        folder, retention_s = self._target.folder, self._target.retention_s
        if not retention_s:
            return
        for each in binlog_files(os.listdir(folder), folder):
            path = folder / each.name
            found = path.stat()
            if each.number >= live or found.st_mtime > now_s - retention_s:
                return  # Later files are younger, and the numbers must have no gap.
            log.info("%s has expired: it is removed", path)
            (folder / schema_name(each.number)).unlink(missing_ok=True)
            path.unlink()
            path.with_name(path.name + COMPRESSED).unlink(missing_ok=True)
            sync_folder(folder)
            self._counts.files_removed += 1
            self._counts.bytes_removed += found.st_size

    def pack(self, live: int) -> None:
        folder = self._target.folder
        if not self._target.compresses:
            return
        for each in binlog_files(os.listdir(folder), folder):
            if each.number >= live:
                return
            if not each.is_compressed and not self._pack(folder / each.name):
                return

    def _pack(self, path: Path) -> bool:
        packed = path.with_name(path.name + COMPRESSED)
        draft = packed.with_name(packed.name + DRAFT)
        times = path.stat()
        with path.open("rb") as source, draft.open("wb") as file:
            with gzip.GzipFile(path.name, "wb", _LEVEL, file, times.st_mtime) as out:
                while chunk := source.read(_CHUNK_BYTES):
                    if self._closing.is_set():
                        draft.unlink()
                        return False
                    out.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.utime(draft, ns=(times.st_atime_ns, times.st_mtime_ns))
        draft.rename(packed)
        sync_folder(path.parent)
        path.unlink()
        size = packed.stat().st_size
        self._counts.compactions += 1
        self._counts.bytes_removed += times.st_size - size
        log.info("%s is packed, %d of %d bytes", packed, size, times.st_size)
        return True
