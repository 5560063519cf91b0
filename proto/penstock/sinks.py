"""Sinks: the interface of a third party's sink (`drainer.sinks.third_party`), by its public name.

It imports the Drainer, as `penstock.stream` does.
"""

from typing import Final

from penstock.node import command

EXTRA: Final = "stream"
"""The extra of the distribution with the dependencies of a sink's interface."""

try:
    from drainer.sinks.committed import Change, Ddl, Row, Transaction
    from drainer.sinks.third_party import Address, Moved, TransactionSink
except ImportError as error:
    found = command.ending(error, EXTRA)
    raise error if found is None else ImportError(found.line, name=error.name) from error

__all__ = ["Address", "Change", "Ddl", "Moved", "Row", "Transaction", "TransactionSink"]
