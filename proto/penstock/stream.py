"""Stream: committed transactions for a program to read (`drainer.stream`), under its public name.

A reader is a Drainer without a downstream. This module therefore imports the Drainer, which nothing
else in `penstock` may do; import-linter checks that.
"""

from typing import Final

from penstock.node import command

EXTRA: Final = "stream"
"""The extra of the distribution with a reader's dependencies: neither Spark nor Java."""

try:
    from drainer.stream import *  # noqa: F403
    from drainer.stream import __all__ as __all__
except ImportError as error:
    found = command.ending(error, EXTRA)
    raise error if found is None else ImportError(found.line, name=error.name) from error
