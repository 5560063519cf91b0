"""Edits that write out what servers would otherwise decide for themselves, each in its own way.

Those are collations, and the index of a foreign key: one that a server made by itself goes away
by itself, too, when another serves; one that is written stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.ddl.charsets.charsets import built_in, our_own
from penstock.ddl.syntax.elements import Charset, ColumnDef, Edit, KeyDef, TableOptions
from penstock.ddl.syntax.lexer import quote_name
from penstock.ddl.syntax.operations import Convert
from penstock.schema.model import TableInfo

CollationOf = Callable[[str], str]
"""The collation that a character set has where only that is written."""


def column_edits(column: ColumnDef, collation_of: CollationOf = our_own) -> list[Edit]:
    """Return the COLLATE clause that a column with only a character set needs."""
    given = column.type.charset
    if column.type.binary or given.charset == "binary":
        return []
    return collate_edits(given, collation_of)


def own_column_edits(column: ColumnDef, table: TableInfo) -> list[Edit]:
    """Return the same for a column of this table, which gives it a character set."""
    given = column.type.charset
    if given.says_nothing and given.collate_is_default:
        return [Edit(given.end, given.end, f" COLLATE {built_in(table.charset)}")]
    return column_edits(column)


def collate_edits(given: Charset, collation_of: CollationOf = our_own) -> list[Edit]:
    """Return the COLLATE clause for a character set that is written without one."""
    if given.charset is None or given.collate is not None:
        return []
    return [Edit(given.end, given.end, f" COLLATE {collation_of(given.charset)}")]


def option_edits(options: TableOptions, table: TableInfo) -> list[Edit]:
    """Return the clauses that make a new table's character set explicit."""
    given = options.charset
    if given.says_nothing:
        clause = f" DEFAULT CHARSET={table.charset} COLLATE={table.collate}"
        return [Edit(options.end, options.end, clause)]
    return collate_edits(given)


def changed_option_edits(options: TableOptions) -> list[Edit]:
    """Return the COLLATE clause that ALTER TABLE … CHARSET needs."""
    return collate_edits(options.charset)


def convert_edits(convert: Convert, table: TableInfo) -> list[Edit]:
    """Return CONVERT TO's character set and collation in full; `table` is the one afterwards."""
    text = f"{table.charset} COLLATE {table.collate}"
    return [Edit(convert.start, convert.charset.end, text)]


def implied_edits(implied: Sequence[tuple[KeyDef, str]], verb: str) -> list[Edit]:
    """Return the clauses for keys that foreign keys imply; `verb` is "ADD " in ALTER TABLE."""
    out = []
    for key, name in implied:
        columns = ", ".join(quote_name(part.name) for part in key.parts)
        out.append(Edit(key.at, key.at, f", {verb}KEY {quote_name(name)} ({columns})"))
    return out
