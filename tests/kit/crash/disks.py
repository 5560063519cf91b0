"""Real disks that are small or faulty: a tmpfs of a few megabytes, and a library to preload.

A `small_disk` takes no privileges; a `Volume` needs root, and can be filled, grown and emptied.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.crash.namespaces import mounted
from tests.kit.crash.preload import preloaded


def faulty_disk(folder: Path) -> Path:
    """Compile the library that lets a process's disk fail as `faulty_disk.c` says."""
    return preloaded("faulty_disk", folder)


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Give the path of a file system of `size_bytes`; it takes no privileges but a namespace."""
    folder.mkdir()
    with mounted(f"-t tmpfs -o size={size_bytes} penstock {folder}") as keeper:
        yield Path(f"/proc/{keeper}/root{folder}")


_FILLER = "filler"
_MIB = 1 << 20


class Volume:
    """A tmpfs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Leave not one byte."""
        with (self.path / _FILLER).open("ab", buffering=0) as filler:
            for size_bytes in (_MIB, 4096, 1):
                try:
                    while filler.write(bytes(size_bytes)) == size_bytes:
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Give back what `fill` took."""
        (self.path / _FILLER).unlink(missing_ok=True)

    def resize(self, size_bytes: int) -> None:
        _run("mount", "-o", f"remount,size={size_bytes}", str(self.path))


@contextmanager
def small_volume(path: Path, size_bytes: int) -> Iterator[Volume]:
    """Mount a volume of that size at `path` for as long as the `with` lasts."""
    path.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "penstock-test", str(path))
    try:
        yield Volume(path)
    finally:
        _run("umount", "-l", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)
