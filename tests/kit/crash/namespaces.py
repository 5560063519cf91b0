"""Namespaces: another view of files for some processes, without privileges.

A process keeps the mounts for as long as the one that has started it lives; others enter them by
`inside`, and are what they would be otherwise, their process ids too.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mounted(*mounts: str) -> Iterator[int]:
    """Give the process that keeps mounts, each the arguments of `mount`.

    It ends with this process, however that ends: then its input does.
    """
    script = " && ".join([*(f"mount {each}" for each in mounts), "echo up", "exec cat"])
    command = ["unshare", "-rm", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"up\n", f"no namespace, or no {mounts} in it"
            yield process.pid
        finally:
            process.kill()


def inside(keeper: int) -> list[str]:
    """Return what runs the rest of a command line where the mounts of that process are."""
    return ["nsenter", "-U", "-m", "--preserve-credentials", f"-t{keeper}", f"--wd={Path.cwd()}"]
