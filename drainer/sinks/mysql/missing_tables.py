"""Missing tables: finds tables that the checkpoint says are downstream but that do not exist.

Rows and checkpoint are tables of one server. A server that was restored as a whole has both in the
same state. After a single database was dropped or restored, its tables lack rows that the
checkpoint says are there. Neither its definition nor its creation time distinguishes a table that
was created again from a table that an ALTER has rebuilt. Only `penstock verify` can therefore find
rows that are missing in an existing table. A table that does not exist is reported here: its own
rows will stop the Drainer, and its absence means that the other tables of its database must be
compared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from drainer.sinks.mysql.session import many
from penstock.ddl.syntax.lexer import quote_path

log = logging.getLogger(__name__)

_LISTED = 10
Name = tuple[str, str]


def missing(connection: Any, names: Iterable[Name]) -> list[Name]:
    """Return the tables that the server does not have, ignoring letter case."""
    wanted = {(schema.lower(), table.lower()): (schema, table) for schema, table in names}
    if not wanted:
        return []
    schemas = ",".join(connection.escape(schema) for schema in sorted({s for s, _ in wanted}))
    found = many(
        connection,
        "SELECT table_schema, table_name FROM information_schema.tables"  # noqa: S608
        f" WHERE LOWER(table_schema) IN ({schemas})",
    )
    for schema, table in found:
        wanted.pop((str(schema).lower(), str(table).lower()), None)
    return list(wanted.values())


def report(connection: Any, names: Iterable[Name]) -> None:
    found = missing(connection, names)
    if found:
        listed = ", ".join(quote_path(*name) for name in found[:_LISTED])
        log.warning(
            "%d tables that the checkpoint says are downstream do not exist there: %s%s. If a"
            " database was dropped or restored from an older backup, its other tables lack rows"
            " too: compare them with penstock verify. Leave a table that is dropped for good out"
            " by a filter",
            len(found), listed, ", …" if len(found) > _LISTED else "",
        )  # fmt: skip
