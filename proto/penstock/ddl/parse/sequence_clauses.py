"""Sequences, in MariaDB's syntax: they hold no rows, and their numbers travel within rows.

CREATE [OR REPLACE] SEQUENCE [IF NOT EXISTS] name …     ALTER SEQUENCE [IF EXISTS] name …
DROP SEQUENCE [IF EXISTS] a, b

… START, RESTART, INCREMENT, MINVALUE, MAXVALUE, CACHE with numbers, NO…, CYCLE, storage options
"""

from __future__ import annotations

from penstock.ddl.parse.column_clauses import read_option
from penstock.ddl.parse.cursor import Cursor
from penstock.ddl.syntax.elements import TableOptions
from penstock.ddl.syntax.statements import AlterSequence, CreateSequence

_NUMBERS = ("START", "RESTART", "INCREMENT", "MINVALUE", "MAXVALUE", "CACHE")
_SWITCHES = ("NOMINVALUE", "NOMAXVALUE", "NOCACHE", "CYCLE", "NOCYCLE")
_TYPES = ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "SIGNED", "UNSIGNED")


def create_sequence(cur: Cursor, *, replaces: bool) -> CreateSequence:
    """Read what follows CREATE SEQUENCE."""
    absent = cur.if_not_exists()
    ref = cur.table_ref()
    if cur.take("AS"):
        while cur.take_any(*_TYPES):
            pass
    _options(cur)
    return CreateSequence(ref=ref, or_replace=replaces, if_not_exists=absent)


def alter_sequence(cur: Cursor) -> AlterSequence:
    """Read what follows ALTER SEQUENCE."""
    absent = cur.if_exists()
    ref = cur.table_ref()
    _options(cur)
    return AlterSequence(ref=ref, if_exists=absent)


def _options(cur: Cursor) -> None:
    while not cur.at_end():
        if cur.take("NO"):
            if not cur.take_any("MINVALUE", "MAXVALUE", "CACHE", "CYCLE"):
                cur.fail("MINVALUE, MAXVALUE, CACHE or CYCLE")
        elif word := cur.take_any(*_NUMBERS):
            _ = cur.take_any("WITH", "BY") or cur.take_sign("=")
            if cur.literal() is None and word != "RESTART":
                cur.fail(f"a number for {word}")
        elif not cur.take_any(*_SWITCHES) and read_option(cur, TableOptions()) is None:
            cur.fail("an option of a sequence")
