"""Stream: exposes `drainer.stream`, which reads committed transactions, under a public name.

It is named here and imported on request: a reader is a Drainer without a downstream, and this
package stays below all others. `stream.pyi` declares the same to type checkers.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

from penstock.node import command


def _reader() -> ModuleType:
    try:
        return importlib.import_module("drainer.stream")
    except ImportError as error:
        found = command.ending(error, EXTRA)
        raise error if found is None else ImportError(found.line, name=error.name) from error


EXTRA: Final = "stream"
"""The extra of the distribution with a reader's dependencies: neither Spark nor Java."""

_found = _reader()
__all__ = list(_found.__all__)
globals().update({name: getattr(_found, name) for name in __all__})
