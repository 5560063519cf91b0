"""DDL progress: finds out whether a DDL was done, after a crash between it and its checkpoint.

Before a DDL runs, the sink stores a digest of the definitions of its tables, as SHOW CREATE prints
them, with its intent. After a crash the definitions are compared with it:

    as before    the DDL was not done, or it changes no definition and may be run again
    changed      it was done, if all objects that only exist after it exist, and no object that
                 only exists before it does: databases, tables, columns, indexes

If a DROP of several tables stopped halfway, which can happen on MariaDB, the remaining tables are
dropped.

An intent of an older version has no digest. Then only the second comparison is left, and a
statement that adds or removes no object (a new comment, a column made wider, a TRUNCATE) is run
again.

A server notices only at the end of a statement that its client has gone, and a TiDB's DDL is a job
of the cluster. The sink therefore first waits until the server no longer runs the DDL
(`wait_for_ddl`). Otherwise the DDL would run a second time.

An operator must decide about changes that a second run would undo and that no definition shows:
EXCHANGE PARTITION, and a swap of tables or columns that are defined alike.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Collection, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import ER

from drainer.sinks.mysql.session import code_of, many, one
from penstock.codes import Code
from penstock.ddl import adopted
from penstock.ddl.catalog import drops_several, of_dropped
from penstock.ddl.syntax.lexer import quote_name, quote_path
from penstock.errors import NeedsOperator, Retryable
from penstock.schema.model import PUBLIC, DdlType, TableInfo

if TYPE_CHECKING:
    from penstock.ddl import SchemaChange


log = logging.getLogger(__name__)

_JOBS = (
    "SELECT COUNT(*) FROM information_schema.ddl_jobs WHERE query IN %s"
    " AND LOWER(state) NOT IN ('synced', 'cancelled', 'rollback done')"
)
_POLL_S = 0.5

Thing = tuple[str, ...]  # ("schema", s), ("table", s, t), ("column", s, t, c), ("index", s, t, i)

_TELLS_NO_TWICE = re.compile(
    r"\b(COALESCE\s+PARTITION|EXCHANGE\s+PARTITION|ADD\s+PARTITION\s+PARTITIONS)\b", re.IGNORECASE
)
_BY_PARTITION = (DdlType.ADD_PARTITION, DdlType.REORGANIZE_PARTITION, DdlType.EXCHANGE_PARTITION)


class DdlProgress(Enum):
    """How far a DDL is in the downstream."""

    DONE = "done"
    NOT_DONE = "not done"
    UNKNOWN = "it looks the same before and after"
    MIXED = "neither as before nor as after"


def progress(connection: Any, change: SchemaChange) -> DdlProgress:
    before, after = things(change)
    changed = before ^ after
    if not changed:
        return DdlProgress.UNKNOWN
    there = {thing for thing in changed if _exists(connection, thing)}
    if there == changed & after:
        return DdlProgress.DONE
    return DdlProgress.NOT_DONE if there == changed & before else DdlProgress.MIXED


def left_to_do(connection: Any, change: SchemaChange, before: str) -> SchemaChange | None:
    """Return the rest of a DDL that may have been done, None for nothing.

    `before` is its digest, "" for none. Raises `NeedsOperator` if the progress cannot be determined
    and a second run would do harm.
    """
    found = progress(connection, change)
    now = definitions(connection, change) if before else None
    is_as_before = now is not None and digest(now) == before
    if found is DdlProgress.MIXED and drops_several(change) and not is_as_before:
        kept = [each for each in change.dropped if _is_there(connection, *each)]
        return of_dropped(change, kept) if kept else None
    if not before:
        if found is not DdlProgress.DONE:
            ensure_repeatable(change)
        return None if found is DdlProgress.DONE else change
    if is_as_before:
        ensure_repeatable(change, now)
        return change
    if found is DdlProgress.MIXED:
        raise in_doubt(change)
    return change if found is DdlProgress.NOT_DONE else None


def ensure_all_there(connection: Any, change: SchemaChange) -> None:
    """Raise `NeedsOperator` for a DROP of tables of which one does not exist.

    A MariaDB would drop the others, and then refuse the statement.
    """
    absent = [each for each in change.dropped if not _is_there(connection, *each)]
    if absent:
        names = ", ".join(quote_path(schema, table.name) for schema, table in absent)
        raise NeedsOperator(
            f"the downstream does not have {names}, and has dropped nothing: {change.job.query}",
            "the downstream's schema is not the upstream's at the checkpoint; make it so",
            Code.SINK_REFUSES,
        )


def _is_there(connection: Any, schema: str, table: TableInfo) -> bool:
    return _exists(connection, ("table", schema.lower(), table.name.lower()))


Definitions = Mapping[Thing, str]
"""The output of SHOW CREATE for databases, tables, views and sequences; empty if one is missing."""


def definitions(connection: Any, change: SchemaChange) -> dict[Thing, str]:
    job = change.job
    places = {("schema", name) for name in (*change.schemas_created, *change.schemas_dropped)}
    named = [*change.created, *change.dropped]
    named += [(schema, old) for schema, old, _ in change.altered]
    named += [(schema, new) for schema, _, new in change.altered]
    named += [(schema, old) for schema, old, _, _ in change.renamed]
    named += [(schema, new) for _, _, schema, new in change.renamed]
    found: set[Thing] = {("table", schema, table.name) for schema, table in named} | places
    if not found and job.schema_name:
        found.add(("schema", job.schema_name))
    return {thing: _definition(connection, thing) for thing in sorted(found)}


def digest(found: Definitions) -> str:
    """Return a digest of definitions, for the checkpoint."""
    text = "\0".join("\0".join((*thing, definition)) for thing, definition in found.items())
    return hashlib.sha256(text.encode()).hexdigest()[:32]


_COUNTER = re.compile(r" AUTO_INCREMENT=\d+\b")


def _definition(connection: Any, thing: Thing) -> str:
    kind, *names = thing
    what = "DATABASE" if kind == "schema" else "TABLE"
    try:
        found = one(connection, f"SHOW CREATE {what} {quote_path(*names)}")
        return _COUNTER.sub("", str(found[1]), count=1)
    except pymysql.err.MySQLError as error:
        if code_of(error) in (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR):
            return ""
        raise


def ensure_repeatable(change: SchemaChange, same: Definitions | None = None) -> None:
    """Raise `NeedsOperator` for a change that a second run would undo and that no definition shows.

    `same` are the definitions, if they are known to be unchanged.
    """
    if _is_undone_by_a_second(change, same):
        raise in_doubt(change)


def is_respelled(change: SchemaChange) -> bool:
    """Return whether a DDL only changes the letter case of table names."""
    others = (change.created, change.dropped, change.altered, change.schemas_created)
    return (
        bool(change.renamed)
        and not any((*others, change.schemas_dropped))
        and all(
            (old_schema.lower(), old.name.lower()) == (schema.lower(), new.name.lower())
            and (old.columns, old.indexes) == (new.columns, new.indexes)
            for old_schema, old, schema, new in change.renamed
        )
    )


def in_doubt(change: SchemaChange) -> NeedsOperator:
    return NeedsOperator(
        f"it is unknown whether the downstream already did: {change.job.query}",
        "look at the downstream, do it by hand if it is not done, and then track it",
        Code.SINK_DDL_DOUBT,
    )


def _is_undone_by_a_second(change: SchemaChange, same: Definitions | None) -> bool:
    places = {(s.lower(), t.name.lower()): (s, t.name) for s, t, _, _ in change.renamed}
    for old_schema, old, schema, table in change.renamed:
        before = places.get((schema.lower(), table.name.lower()), (old_schema, old.name))
        swaps = before != (old_schema, old.name)
        if swaps and (same is None or len(_shapes(change, same)) < len(change.renamed)):
            return True  # Tables that are defined alike: no definition shows the swap.
    for _, old, new in change.altered:
        ids = {c.name.lower(): c.id for c in adopted(change.job, old, new).columns}
        kept = {c.id for c in new.columns}
        order = [[c.name.lower() for c in table.columns] for table in (old, new)]
        for c in new.columns:
            was = ids.get(c.name.lower(), c.id)
            if was != c.id and was in kept and (same is None or order[0] == order[1]):
                return True
    found = _TELLS_NO_TWICE.search(change.job.query)
    if change.job.type not in _BY_PARTITION or found is None:
        return False
    # The others change the number of partitions.
    return same is None or found[1].upper().startswith("EXCHANGE")


def _shapes(change: SchemaChange, found: Definitions) -> set[str]:
    """Return the renamed tables' definitions without their names, which generated names have."""
    made = set()
    for schema, old, _, _ in change.renamed:
        definition = found.get(("table", schema, old.name), "")
        made.add(definition.replace(quote_name(old.name), "").replace(f"`{old.name}_", "`"))
    return made


def things(change: SchemaChange) -> tuple[set[Thing], set[Thing]]:
    """Return the affected objects that exist before the change, and after it."""
    before: set[Thing] = {("schema", name.lower()) for name in change.schemas_dropped}
    after: set[Thing] = {("schema", name.lower()) for name in change.schemas_created}
    for schema, table in change.dropped:
        if schema not in change.schemas_dropped:
            before |= _of_table(schema, table)
    for schema, table in change.created:
        after |= _of_table(schema, table)
    for schema, old, new in change.altered:
        before |= _of_table(schema, old)
        after |= _of_table(schema, new)
    for old_schema, old, new_schema, new in change.renamed:
        before |= _of_table(old_schema, old)
        after |= _of_table(new_schema, new)
    return before, after


def _of_table(schema: str, table: TableInfo) -> set[Thing]:
    place = (schema.lower(), table.name.lower())
    found: set[Thing] = {("table", *place)}
    if table.kind != "TABLE":
        return found
    shown = [c for c in table.columns if c.state == PUBLIC and not c.hidden]
    found |= {("column", *place, c.name.lower()) for c in shown}
    found |= {
        ("index", *place, i.name.lower())
        for i in table.indexes
        if i.state == PUBLIC and not i.primary and i.name not in table.expression_indexes
    }
    if table.primary_key is not None:
        found.add(("index", *place, "primary"))
    return found


_QUERIES = {
    "schema": "SELECT COUNT(*) FROM information_schema.schemata WHERE LOWER(schema_name) = %s",
    "table": "SELECT COUNT(*) FROM information_schema.tables"
    " WHERE LOWER(table_schema) = %s AND LOWER(table_name) = %s",
    "column": "SELECT COUNT(*) FROM information_schema.columns"
    " WHERE LOWER(table_schema) = %s AND LOWER(table_name) = %s AND LOWER(column_name) = %s",
    "index": "SELECT COUNT(*) FROM information_schema.statistics"
    " WHERE LOWER(table_schema) = %s AND LOWER(table_name) = %s AND LOWER(index_name) = %s",
}


def _exists(connection: Any, thing: Thing) -> bool:
    kind, *names = thing
    return bool(one(connection, _QUERIES[kind], *names)[0])


def wait_for_ddl(
    connection: Any, texts: Collection[str], closing: threading.Event, *, is_tidb: bool
) -> None:
    """Return when the downstream runs none of these statements, or has none of them queued.

    An account without the right to see them finds none. Raises `Retryable` when `closing` is set.
    """
    is_logged = False
    while _is_under_way(connection, texts, is_tidb=is_tidb):
        if not is_logged:
            is_logged = True
            log.info("waiting for a DDL that the downstream still runs: %s", next(iter(texts)))
        if closing.wait(_POLL_S):
            raise Retryable("the sink was closed while the downstream ran a DDL", Code.CLOSED)


def _is_under_way(connection: Any, texts: Collection[str], *, is_tidb: bool) -> bool:
    if not is_tidb:
        return _is_running(connection, texts)
    try:
        return int(one(connection, _JOBS, tuple(texts))[0]) > 0
    except pymysql.err.MySQLError as error:
        if code_of(error) in (ER.UNKNOWN_TABLE, ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR):
            return False  # An older TiDB, without the table.
        raise


def _is_running(connection: Any, texts: Collection[str]) -> bool:
    wanted = {_shown(text) for text in texts}
    found = [row[7] for row in many(connection, "SHOW FULL PROCESSLIST")]
    return any(_shown(str(info)) in wanted for info in found if info)


def _shown(statement: str) -> str:
    """Return what of a statement each server shows as it is."""
    return "".join(c for c in statement if c.isascii() and c != "?")
