"""A file system in memory that fails on demand and, at a crash, forgets what was never synced."""

from __future__ import annotations

import errno
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.log.files import File, Files

SECTOR = 512
EXTENDED_MAX = 1500
"""Few, so that it is cheap and happens often."""


class Node:
    """One file: what is on the disk, and what was written since."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []
        self.cut_at = sys.maxsize
        """What is on the disk from there on was cut since the last sync."""

    def write(self, data: bytes, offset: int) -> None:
        self.data.extend(bytes(max(0, offset + len(data) - len(self.data))))
        self.data[offset : offset + len(data)] = data
        self.pending.append((offset, data))

    def truncate(self, size_bytes: int) -> None:
        del self.data[size_bytes:]
        self.cut_at = min(self.cut_at, size_bytes)
        self.pending = [
            (offset, data[: size_bytes - offset])
            for offset, data in self.pending
            if offset < size_bytes
        ]

    def sync(self) -> None:
        """Put on the disk what is pending, and not what a failed sync has forgotten."""
        del self.durable[self.cut_at :]
        self.durable.extend(bytes(len(self.data) - len(self.durable)))
        for offset, data in self.pending:
            self.durable[offset : offset + len(data)] = data
        self.cut_at = sys.maxsize
        self.pending.clear()

    def forget_failed(self) -> None:
        """What Linux does after a failed sync: the pages stay readable and count as clean."""
        self.pending.clear()

    def after_crash(self, chance: random.Random | None) -> bytearray:
        """Return the durable bytes plus, sector by sector, a random part of what was written."""
        found = bytearray(self.durable)
        if chance is None:
            return found
        for offset, data in self.pending:
            end = offset
            while end < offset + len(data):
                begin, end = end, min((end // SECTOR + 1) * SECTOR, offset + len(data))
                if chance.random() < 0.6:
                    found.extend(bytes(max(0, end - len(found))))
                    found[begin:end] = data[begin - offset : end - offset]
        return found


class MemoryFile(File):
    def __init__(self, files: MemoryFiles, path: Path, node: Node) -> None:
        self.path = path
        self.node = node
        self._files = files

    def size(self) -> int:
        return len(self.node.data)

    def read(self, offset: int, length: int) -> bytes:
        self._files.check("read", self.path)
        return bytes(self.node.data[offset : offset + length])

    def write(self, buffers: Sequence[bytes], offset: int) -> None:
        data = b"".join(buffers)
        try:
            self._files.check("write", self.path)
        except OSError:
            self.node.write(data[: len(data) // 2], offset)  # A failed write may be half done.
            raise
        self.node.write(data, offset)

    def sync(self) -> None:
        try:
            self._files.check("sync", self.path)
        except OSError:
            self.node.forget_failed()
            raise
        self.node.sync()

    def truncate(self, size_bytes: int) -> None:
        self._files.check("truncate", self.path)
        self.node.truncate(size_bytes)

    def extend(self, size_bytes: int) -> int:
        size = self.size()
        more = min(size_bytes - size, EXTENDED_MAX)
        if more > 0 and self._files.extends:
            self.node.write(bytes(more), size)
        return self.size()

    def is_named(self) -> bool:
        return self._files.nodes.get(self.path) is self.node

    def forget(self, offset: int, length: int) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryFiles(Files):
    """Implements `Files`; `calls` lists what was done, `fail` may raise for any of it."""

    def __init__(self) -> None:
        self.nodes: dict[Path, Node] = {}
        self.durable_names: dict[Path, Node] = {}
        self.calls: list[tuple[str, str]] = []
        self.fail: Callable[[str, Path], None] = lambda call, path: None
        self.free_bytes = 1 << 40
        self.extends = True

    def check(self, call: str, path: Path) -> None:
        self.calls.append((call, path.name))
        self.fail(call, path)

    def fail_once(self, call: str, number: int = errno.EIO) -> None:
        """Let the next `call` raise the error `number`."""

        def fail(name: str, path: Path) -> None:
            if name == call:
                self.fail = lambda call, path: None
                raise OSError(number, f"made to fail: {call}", str(path))

        self.fail = fail

    def names(self, folder: Path) -> list[str]:
        return [path.name for path in self.nodes if path.parent == folder]

    def create(self, path: Path) -> File:
        self.check("create", path)
        self.nodes[path] = Node()
        return MemoryFile(self, path, self.nodes[path])

    def open(self, path: Path, *, writable: bool = False) -> File:
        if path not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return MemoryFile(self, path, self.nodes[path])

    def rename(self, old: Path, new: Path) -> None:
        self.check("rename", old)
        if old not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(old))
        self.nodes[new] = self.nodes.pop(old)

    def remove(self, path: Path) -> None:
        self.check("remove", path)
        if path not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        del self.nodes[path]

    def sync_folder(self, folder: Path) -> None:
        self.check("sync_folder", folder)
        self.durable_names = {
            **{path: node for path, node in self.durable_names.items() if path.parent != folder},
            **{path: node for path, node in self.nodes.items() if path.parent == folder},
        }

    def space(self, folder: Path) -> tuple[int, int]:
        return self.free_bytes, 1 << 40

    def after_kill(self) -> MemoryFiles:
        """Return what the next process finds when only the process died: everything written."""
        found = MemoryFiles()
        found.nodes, found.durable_names = dict(self.nodes), dict(self.durable_names)
        return found

    def after_crash(self, chance: random.Random | None = None) -> MemoryFiles:
        """Return what the next boot finds: the synced bytes, and a random part of the others."""
        found = MemoryFiles()
        for path, node in self.durable_names.items():
            found.nodes[path] = _on_disk(node.after_crash(chance))
        if chance is not None:
            for path, node in self.nodes.items():
                if path not in found.nodes and chance.random() < 0.5:
                    found.nodes[path] = _on_disk(node.after_crash(chance))
        found.durable_names = dict(found.nodes)
        return found


def _on_disk(data: bytearray) -> Node:
    node = Node()
    node.data, node.durable = bytearray(data), bytearray(data)
    return node
