"""Files: the operations that the log needs of a file system.

`tests/kit/fakes/files.py` has the same operations, and forgets unsynced data, tears writes and
fails on demand. Reads go through `pread`, never through a memory map: a map turns a disk's read
error, or a file cut short by another process, into a signal that ends the whole node.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from penstock import failpoints
from penstock.codes import Code
from penstock.errors import NeedsOperator

_BUFFERS_MAX = 1024
"""The most buffers of one `pwritev` in the kernel (IOV_MAX)."""
_PLENTY = 64
"""A file is extended where the volume has this many times as much free."""

_at_read = failpoints.point("disk.read")
_at_write = failpoints.point("disk.write")
_at_sync = failpoints.point("disk.sync")
_at_create = failpoints.point("disk.create")

DRAFT = ".new"
"""Suffix of the name of a file that is still being written."""


def lock_folder(folder: Path, kind: str) -> int:
    """Lock a node's data folder against other processes; return the descriptor.

    The lock's file names the kind of node, such as Pump. Raises `NeedsOperator` while another
    process has the lock, and for the folder of another kind.
    """
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    owner = os.pread(lock, 64, 0).decode(errors="replace").strip()
    problem = f"{folder} is the folder of a {owner}" if owner not in ("", kind) else ""
    code = Code.DATA_DIR_OTHER
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        problem, code = f"another {owner or 'process'} runs in {folder}", Code.NODE_ID_TAKEN
    if problem:
        os.close(lock)
        raise NeedsOperator(problem, f"name another --data-dir for this {kind}", code)
    with contextlib.suppress(OSError):  # It only explains; the disk may be full.
        os.pwrite(lock, kind.encode(), 0)
    return lock


class Readable(Protocol):
    """Reads at explicit offsets."""

    def read(self, offset: int, length: int) -> bytes: ...


class File:
    """One open file; all offsets are explicit, so that threads may share it.

    It is closed at the latest when its last reference is gone. A garbage collection can therefore
    remove a segment while another thread reads it. Unless stated otherwise, its methods raise
    `OSError`.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""
        _at_read()
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]  # Linux reads at most 2 GiB per call.
        have = len(data)
        while have < length and (data := os.pread(self._descriptor, length - have, offset + have)):
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def write(self, buffers: Sequence[bytes], offset: int) -> None:
        """Write all `buffers` consecutively from `offset`."""
        torn_at = _at_write()
        if torn_at is not None:
            self._write([b"".join(buffers)[:torn_at]], offset)
            failpoints.kill()
        for first in range(0, len(buffers), _BUFFERS_MAX):
            offset = self._write(list(buffers[first : first + _BUFFERS_MAX]), offset)

    def _write(self, buffers: list[bytes], offset: int) -> int:
        left = sum(map(len, buffers))
        while left:
            written = os.pwritev(self._descriptor, buffers, offset)
            offset += written
            left -= written
            if left:  # A short write: a signal, a full disk, or the kernel's limit of 2 GiB.
                buffers = _after(buffers, written)
        return offset

    def sync(self) -> None:
        """Return once all written data is on disk."""
        _at_sync()
        sync_data(self._descriptor)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def extend(self, size_bytes: int) -> int:
        """Add zeros, up to that size or less, and return the file's length; never raises.

        Syncing later writes is then cheaper, because the file's length need not be synced. Nothing
        is added where the volume lacks ample free space.
        """
        size = self.size()
        more = size_bytes - size
        if more > 0:
            with contextlib.suppress(OSError, AttributeError):  # Then it grows with each write.
                volume = os.fstatvfs(self._descriptor)
                if volume.f_bavail * volume.f_frsize > _PLENTY * more:
                    os.posix_fallocate(self._descriptor, size, more)
                    return size_bytes
        return size

    def is_named(self) -> bool:
        """Return whether its path still refers to this file, rather than to none or a copy."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def forget(self, offset: int, length: int) -> None:
        """Ask the kernel to drop its cache of these bytes; unsynced data stays."""
        with contextlib.suppress(OSError, AttributeError):  # macOS has no such call.
            os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # `open` itself may have failed.
            self.close()


def _after(buffers: list[bytes], written: int) -> list[bytes]:
    for i, buffer in enumerate(buffers):
        if written < len(buffer):
            return [buffer[written:], *buffers[i + 1 :]]
        written -= len(buffer)
    return []


class Files:
    """A file system, as far as an append-only log needs it."""

    def names(self, folder: Path) -> list[str]:
        """Return the names in `folder`, creating it if it is missing."""
        if not folder.is_dir():
            folder.mkdir(parents=True, mode=0o700)
            self.sync_folder(folder.parent)
        return os.listdir(folder)

    def create(self, path: Path) -> File:
        """Open an empty file at `path` for reading and writing."""
        _at_create()
        return self._file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open(self, path: Path, *, writable: bool = False) -> File:
        return self._file(path, os.O_RDWR if writable else os.O_RDONLY)

    def _file(self, path: Path, flags: int) -> File:
        return File(path, flags)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file; durable only after `sync_folder`."""
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file; durable only after `sync_folder`."""
        os.remove(path)

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)

    def space(self, folder: Path) -> tuple[int, int]:
        """Return the bytes still free on the folder's volume, and the volume's size."""
        volume = os.statvfs(folder)
        return volume.f_bavail * volume.f_frsize, volume.f_blocks * volume.f_frsize


def sync_data(descriptor: int) -> None:
    """Return once the file's written data is on the disk; raise `OSError`.

    macOS has no `fdatasync`, and its `fsync` may leave the data in the disk's own cache.
    """
    if hasattr(os, "fdatasync"):
        return os.fdatasync(descriptor)
    if (full := getattr(fcntl, "F_FULLFSYNC", None)) is not None:
        try:
            fcntl.fcntl(descriptor, full)
        except OSError as error:
            if error.errno != errno.ENOTSUP:  # The volume has no such operation.
                raise
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Return once the folder's names are on the disk; raise `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a small file as a whole and durably; raise `OSError`. A new file gets `mode`.

    A crash leaves the old or the new bytes, and possibly a draft with the suffix `DRAFT`, which the
    next call overwrites.
    """
    draft = path.with_name(path.name + DRAFT)
    with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        file.flush()
        sync_data(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)
