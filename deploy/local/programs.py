"""Programs that are not Python packages: where they are, or which Debian package has them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.errors import NeedsOperator

TABLE = Path(__file__).parents[1] / "packages.txt"
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


class Needed(NamedTuple):
    """A row of the table that set-up installs from."""

    program: str
    package: str
    wanted_for: frozenset[str]


def needed() -> Iterator[Needed]:
    """Read the table."""
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            program, package, wanted_for = line.split()
            yield Needed(program, package, frozenset(wanted_for.split(",")))


def program(name: str, *others: str) -> str:
    """Return the path of a program, by its name or one of the `others` that it had before.

    Raises `NeedsOperator` with the package to install when there is none.
    """
    for each in (name, *others):
        found = shutil.which(each) or shutil.which(each, path=_SBIN)
        if found:
            return found
    package = next(row.package for row in needed() if row.program == name)
    raise NeedsOperator(f"no {name} here", hint=f"as root, apt-get install {package}")
