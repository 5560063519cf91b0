"""From a collation's id, which is what binlogs carry, to the charset that its texts are read in."""

from __future__ import annotations

from penstock.ddl.charsets import Charset, charset_named, charset_of_collation, collation_name

BINARY = 63
"""The collation id of bytes that are no text."""


def charset_name(collation_id: int) -> str:
    """Return the charset of a collation; raise `NeedsOperator` for an id that is unknown."""
    return charset_of_collation(collation_name(collation_id))


def charset_of(collation_id: int) -> Charset:
    """Return how texts of a collation are read; raise `NeedsOperator` for an unknown id."""
    return charset_named(charset_name(collation_id))
