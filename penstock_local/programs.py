"""Finds programs that are not Python packages, and names the Debian packages that contain them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock_local import FILES

UNPACKED = Path(sys.prefix) / "servers"
"""Where `deploy/servers.sh` unpacks servers, and `deploy/go.sh` leaves links to its builds."""
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


class Needed(NamedTuple):
    """A row of the table that set-up installs from."""

    program: str
    package: str
    wanted_for: frozenset[str]


def needed() -> Iterator[Needed]:
    for line in (FILES / "packages.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            program, package, wanted_for = line.split()
            yield Needed(program, package, frozenset(wanted_for.split(",")))


def program(name: str, *others: str) -> str:
    """Return the path of a program, by its name or one of its `others`, older names.

    Raises `NeedsOperator` with the package to install when it is not found.
    """
    for each in (name, *others):
        found = shutil.which(each) or shutil.which(each, path=_SBIN)
        if found:
            return found
    package = next(row.package for row in needed() if row.program == name)
    raise NeedsOperator(
        f"no {name} here", hint=f"as root, apt-get install {package}", code=Code.PACKAGE_MISSING
    )


class Unpacked:
    """A server of another release, run by the loader and the libraries that came with it."""

    def __init__(self, name: str) -> None:
        """Locate the directory; raise `NeedsOperator` if it is missing."""
        self.root = UNPACKED / name / "usr"
        if not self.root.is_dir():
            raise NeedsOperator(
                f"no {name} in {UNPACKED}",
                hint=f"deploy/servers.sh {UNPACKED} {name}",
                code=Code.PACKAGE_MISSING,
            )

    def command(self, program: str) -> list[str]:
        libraries = next(self.root.glob("lib/*-linux-gnu"))
        loader = next(self.root.glob("lib*/ld-linux-*.so.*"))
        return [str(loader), "--library-path", str(libraries), str(self.root / program)]


def built(name: str, program: str) -> str:
    """Return the path of a program from `deploy/go.sh`; raise `NeedsOperator` if missing."""
    path = UNPACKED / name / program
    if not path.exists():
        raise NeedsOperator(
            f"no {program} in {path.parent}",
            hint=f"deploy/go.sh {UNPACKED} {name}",
            code=Code.PACKAGE_MISSING,
        )
    return str(path)
