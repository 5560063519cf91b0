"""Namespaces: another view of files for some processes, without privileges.

A process that sleeps keeps the mounts; others enter them by `inside`, and are what they would be
otherwise, their process ids too.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mounted(*mounts: str, lasts_s: int = 600) -> Iterator[int]:
    """Give the process that keeps mounts, each the arguments of `mount`.

    After `lasts_s` they are gone, whatever became of the test.
    """
    steps = [f"mount {each}" for each in mounts]
    script = " && ".join([*steps, "echo up", f"exec sleep {lasts_s}"])
    process = subprocess.Popen(["unshare", "-rm", "sh", "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n", f"no namespace, or no {mounts} in it"
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def inside(keeper: int) -> list[str]:
    """Return what runs the rest of a command line where the mounts of that process are."""
    return ["nsenter", "-U", "-m", "--preserve-credentials", f"-t{keeper}", f"--wd={Path.cwd()}"]
