"""Upstream DDL: which part of a TiDB's DDL runs downstream, and with which text.

    binlog's schema state 1     a column is being removed; a second binlog reports its removal
    a failed job                did nothing, so nothing runs
    a job about TiDB's own      placement, locks, caches, TiFlash, resource groups: nothing runs
    DROP TABLE a, b             is two jobs of one text: each drops its own table
    RENAME to another database  under names with their databases: the session's is not in the job
    RECOVER TABLE … BY JOB      refused: a job's number is another job's downstream
    anything else               as the binlog has it, with TiDB's own words in comments, and
                                with the collations and names of keys that TiDB chose;
                                with names in the letter case of their tables

A writer of ours records the statement to run, so its stream does not need this.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace

from penstock.codes import Code
from penstock.ddl import SchemaChange, rename_tables
from penstock.ddl.catalog import WITHOUT_EFFECT, Catalog
from penstock.ddl.dropping import DROPS
from penstock.ddl.rewrite.explicit_collations import as_made
from penstock.ddl.syntax.lexer import quote_path
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlJob, DdlType, TableInfo

log = logging.getLogger(__name__)

DELETE_ONLY = 1
"""The schema state in which only deletes still see a column: rows no longer bring its values."""

_OF_SCHEMAS = (DdlType.CREATE_SCHEMA, DdlType.MODIFY_SCHEMA_CHARSET)
_RENAMES = (DdlType.RENAME_TABLE, DdlType.RENAME_TABLES)
_IF_EXISTS = re.compile(r"\bIF\s+EXISTS\b", re.IGNORECASE)
_BY_JOB = re.compile(r"\bBY\s+JOB\b", re.IGNORECASE)


def is_upstream_only(job: DdlJob) -> bool:
    """Return whether a job concerns nothing that a downstream has."""
    return job.type in WITHOUT_EFFECT


def as_sent(job: DdlJob, query: str) -> DdlJob:
    return replace(job, query=query)


def to_run(change: SchemaChange, catalog: Catalog) -> SchemaChange:
    """Return a change with the text that is right for it alone, wherever it runs.

    `catalog` has the tables after the change. Raises NeedsOperator if no text is right.
    """
    return _in_letter_case(_alone(change), catalog)


def _alone(change: SchemaChange) -> SchemaChange:
    job = change.job
    if job.type == DdlType.RECOVER_TABLE:
        if _BY_JOB.search(job.query):
            raise NeedsOperator(
                f"{job.query!r} names a job of the upstream, which is another one downstream",
                hint="bring the table and its rows back downstream by hand, as they are upstream",
                code=Code.DDL_UNSUPPORTED,
            )
        return change
    if job.type in DROPS.values() and len(change.dropped) == 1:
        ((schema, table),) = change.dropped
        absent = "IF EXISTS " if _IF_EXISTS.search(job.query) else ""
        return _with(change, f"DROP {table.kind} {absent}{quote_path(schema, table.name)}")
    is_moved = any(old_schema != schema for old_schema, _, schema, _ in change.renamed)
    before = {(schema, table.name) for schema, table, _, _ in change.renamed}
    after = {(schema, table.name) for _, _, schema, table in change.renamed}
    if job.type in _RENAMES and is_moved and not before & after:
        parts = [
            f"{quote_path(old_schema, old.name)} TO {quote_path(schema, new.name)}"
            for old_schema, old, schema, new in change.renamed
        ]
        return _with(change, f"RENAME TABLE {', '.join(parts)}")
    return _with_collations(change)


def _with_collations(change: SchemaChange) -> SchemaChange:
    """Return a change whose text leaves no collation or key name to the server's choice."""
    job = change.job
    made = job.schema if job.type in _OF_SCHEMAS else job.table
    if made is None or (isinstance(made, TableInfo) and made.kind != "TABLE"):
        return change
    try:
        return _with(change, as_made(job.query, made))
    except NeedsOperator:
        log.warning(
            "DDL at %d is not of a grammar that is known here, so collations that it does not"
            " name are the downstream's choice: %s",
            job.finished_ts, job.query,
        )  # fmt: skip
        return change


def _in_letter_case(change: SchemaChange, catalog: Catalog) -> SchemaChange:
    """Return a change whose text names tables as they were created.

    A TiDB finds `T` by the name `t`, and a MariaDB or MySQL on Linux does not.
    """
    before = {
        (schema.lower(), table.name.lower()): (schema, table.name)
        for schema, table in (
            *change.dropped,
            *((schema, old) for schema, old, _ in change.altered),
            *((schema, old) for schema, old, _, _ in change.renamed),
        )
    }
    is_other = False

    def named(schema: str, table: str) -> tuple[str, str]:
        nonlocal is_other
        found = before.get((schema.lower(), table.lower()))
        if found is None:
            of_schema, of_table = catalog.schema(schema), catalog.table(schema, table)
            found = of_schema.name if of_schema else schema, of_table.name if of_table else table
        is_other |= found != (schema, table)
        return found

    try:
        text = rename_tables(change.job.query, change.job.schema_name or None, named)
    except NeedsOperator:  # Not of our grammar: it runs as it was written.
        return change
    return _with(change, text) if is_other else change


def _with(change: SchemaChange, query: str) -> SchemaChange:
    return replace(change, job=replace(change.job, query=query))
