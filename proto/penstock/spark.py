"""Spark: the changes of a cluster as a data source (`drainer.spark_source`), under its public name.

It imports the Drainer, as `penstock.stream` does.
"""

from typing import Final

from penstock.node import command

EXTRA: Final = "drainer"
"""The extra of the distribution with the dependencies of a Drainer, Spark among them."""

try:
    from drainer.spark_source import *  # noqa: F403
    from drainer.spark_source import __all__ as __all__
except ImportError as error:
    found = command.ending(error, EXTRA)
    raise error if found is None else ImportError(found.line, name=error.name) from error
