"""Version: identifies the code of a process, so that a task with other code is detected.

    0.1.0+3f9a81c2d4e5   the version of Penstock, the first digits of a SHA-256 over its source

The version alone is not enough, because different code on an executor's own path may have the same
version.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Self

from penstock import __version__

_PACKAGES = ("drainer", "penstock")
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Bundle:
    """The code that tasks import, as a zip file's bytes, and its version.

    It is read once: a version installed while a Drainer runs must not reach tasks that start later.
    """

    version: str
    data: bytes

    @classmethod
    def of_this_code(cls) -> Self:
        sources = list(_sources())
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
            for path, source in sources:
                bundle.writestr(path, source)
        return cls(_version_of(sources), out.getvalue())


@cache
def code_version() -> str:
    return _version_of(list(_sources()))


def _version_of(sources: list[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    for path, source in sources:
        digest.update(f"{path} {len(source)}\n".encode())
        digest.update(source)
    return f"{__version__}+{digest.hexdigest()[:_DIGITS]}"


def _sources() -> Iterator[tuple[str, bytes]]:
    for package in _PACKAGES:
        yield from _below(files(package), package)


def _below(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        path = f"{name}/{entry.name}"
        if entry.name.endswith(".py"):
            yield path, entry.read_bytes()
        elif entry.name != "__pycache__" and entry.is_dir():
            yield from _below(entry, path)
