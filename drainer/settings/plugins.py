"""Plug-ins: sinks that other packages provide, by the entry points of the group `penstock.sinks`.

The name of an entry point is the scheme of URLs, its value the factory of the sink
(`drainer.sinks.third_party`). Penstock's own schemes cannot be provided by another package.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from penstock.codes import Code
from penstock.errors import NeedsOperator

GROUP: Final = "penstock.sinks"


def schemes() -> list[str]:
    return sorted(entry_points(group=GROUP).names)


def installed() -> str:
    """Return, for a hint, which schemes plug-ins provide, and how a plug-in is installed."""
    names = ", ".join(f"{each}://" for each in schemes())
    known = f"installed plug-ins have {names}" if names else "no plug-in is installed"
    return f"{known}; for another scheme, pip install the package that provides it"


def check_own(scheme: str) -> None:
    """Raise `NeedsOperator` if a package provides a scheme that is Penstock's own."""
    for each in entry_points(group=GROUP, name=scheme):
        raise NeedsOperator(
            f"the package {_package(each)} provides a sink for {scheme}://, which is Penstock's"
            " own",
            f"uninstall {_package(each)}, or have it use another scheme",
            Code.URL_INVALID,
        )


def load(scheme: str) -> tuple[Any, str]:
    """Return the factory of a scheme, and its package with the version.

    Raises `NeedsOperator` if none or several packages provide it, or the import fails.
    """
    found = list(entry_points(group=GROUP, name=scheme))
    if len({each.value for each in found}) != 1:
        packages = " and ".join(map(_package, found)) or "no package"
        raise NeedsOperator(
            f"{packages} provides the sink for {scheme}://",
            "keep one of these packages, and uninstall the others",
            Code.URL_INVALID,
        )
    (each, *_), package = found, _package(found[0])
    try:
        return each.load(), package
    except Exception as error:
        raise NeedsOperator(
            f"the sink for {scheme}:// of the package {package} cannot be imported:"
            f" {type(error).__name__}: {error}",
            f"install {package} again, with what it requires",
            Code.PACKAGE_MISSING,
        ) from error


def _package(each: EntryPoint) -> str:
    return f"{each.dist.name} {each.dist.version}" if each.dist else each.value
