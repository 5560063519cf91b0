"""Measures what the log asks of the disk, and how long calls take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.log.files import File, Files
from pump.counters import Figures


class MeteredFile:
    """A file that is written to; everything but the measuring is done by another one."""

    def __init__(self, file: File, figures: Figures) -> None:
        self._file = file
        self._figures = figures
        self.size = file.size
        self.read = file.read
        self.truncate = file.truncate
        self.close = file.close

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    @path.setter
    def path(self, path: Path) -> None:
        self._file.path = path

    def write(self, buffers: Sequence[bytes], offset: int) -> None:
        """Write as the file does, and note how much and how long."""
        begin_s = time.perf_counter()
        self._file.write(buffers, offset)
        self._figures.write_s.note(time.perf_counter() - begin_s)
        self._figures.write_bytes.note(sum(map(len, buffers)))

    def sync(self) -> None:
        """Sync as the file does, and note how long it took, also if it failed."""
        begin_s = time.perf_counter()
        try:
            self._file.sync()
        finally:
            self._figures.sync_s.note(time.perf_counter() - begin_s)


class MeteredFiles:
    """A file system whose written files are measured; what is only read costs nothing more."""

    def __init__(self, files: Files, figures: Figures) -> None:
        self._files = files
        self._figures = figures
        self._created_s: float | None = None
        self.names = files.names
        self.rename = files.rename
        self.remove = files.remove
        self.space = files.space

    def sync_folder(self, path: Path) -> None:
        """Make names durable; after `create` this ends the making of a segment."""
        self._files.sync_folder(path)
        created_s, self._created_s = self._created_s, None
        if created_s is not None:
            self._figures.rotate_s.note(time.perf_counter() - created_s)

    def create(self, path: Path) -> File:
        """Open `path` for reading and writing, empty."""
        self._created_s = time.perf_counter()
        return MeteredFile(self._files.create(path), self._figures)

    def open(self, path: Path, *, writable: bool = False) -> File:
        """Open an existing file."""
        file = self._files.open(path, writable=writable)
        return MeteredFile(file, self._figures) if writable else file


def timed(methods: Mapping[str, Any], figures: Figures) -> dict[str, Any]:
    """Return gRPC handlers that note how long each call took; streams are left as they are."""
    return {name: _timed(name, handler, figures) for name, handler in methods.items()}


def _timed(name: str, handler: Any, figures: Figures) -> Any:
    handle = handler.unary_unary
    if handle is None:
        return handler
    succeeded, failed = figures.calls[name, "succ"], figures.calls[name, "fail"]

    async def measured(data: bytes, context: Any) -> bytes:
        begin_s = time.perf_counter()
        try:
            reply: bytes = await handle(data, context)
        except BaseException:
            failed.note(time.perf_counter() - begin_s)
            raise
        succeeded.note(time.perf_counter() - begin_s)
        return reply

    return handler._replace(unary_unary=measured)
