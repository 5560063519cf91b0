"""Real disks that are small or faulty: a tmpfs of a few megabytes, and a library to preload."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("faulty_disk.c")


def faulty_disk(folder: Path) -> Path:
    """Compile the library that lets a process's disk fail as `faulty_disk.c` says."""
    library = folder / "faulty_disk.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return library


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Give the path of a file system of `size_bytes`; it takes no privileges but a namespace."""
    folder.mkdir()
    script = f"mount -t tmpfs -o size={size_bytes} penstock {folder} && echo up && exec sleep 600"
    process = subprocess.Popen(["unshare", "-rm", "sh", "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n", "no namespace, or no tmpfs in it"
        yield Path(f"/proc/{process.pid}/root{folder}")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
