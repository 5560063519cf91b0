"""Rows of a SELECT, as the server sends them in text, to the rows of an INSERT.

    NULL              NULL
    integers          as they are, and so are DECIMAL, BIT, ENUM and SET, which are numbers here
    float, double     quoted: a bare -0 is an integer, which has no sign
    text, times, JSON quoted, with quotes doubled: for sessions with NO_BACKSLASH_ESCAPES
    bytes             the same behind _binary, or they would be checked as text

Generated columns are neither read nor written.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.datum.rows.fields import STRING_TYPES
from penstock.ddl.syntax.lexer import quote_name, quote_path
from penstock.schema.model import PUBLIC, ColumnInfo, MysqlType, TableInfo
from pumpclient.mysql.load.state import Name
from pumpclient.mysql.load.text_rows import AS_NUMBER, INTEGERS, TextRows, compiled, selected

_BARE = INTEGERS | AS_NUMBER | {MysqlType.NEWDECIMAL}


@dataclass(frozen=True, slots=True)
class SqlRows:
    """How the rows of one table are read, and what stands before them in an INSERT."""

    reader: TextRows
    head: bytes
    is_told_by_key: bool
    """True when a duplicate key can only be a row that this load has sent."""

    def insert(self, rows: list[bytes]) -> bytes:
        """Return the statement for rows that the reader made."""
        return self.head + b",".join(rows)


def sql_rows(table: TableInfo, target: Name) -> SqlRows:
    """Return the way of a table's rows into the table `target` of another server."""
    columns = [c for c in table.columns if c.state == PUBLIC and not c.is_generated]
    texts = ", ".join(_expression(f"v{n}", column) for n, column in enumerate(columns))
    names = {"join": b",".join, "null": b"NULL"}
    expression = f"b'(' + join(({texts}{',' * (len(columns) == 1)})) + b')'"
    read, row = compiled(table.name, len(columns), expression, names)
    listed = ",".join(quote_name(column.name) for column in columns)
    full_name = quote_path(*target)
    head = f"INSERT INTO {full_name} ({listed}) VALUES ".encode()  # noqa: S608
    reader = TextRows(tuple(map(selected, columns)), read, row)
    return SqlRows(reader, head, table.primary_key is not None)


def _expression(text: str, column: ColumnInfo) -> str:
    if column.tp in _BARE:
        return f"null if {text} is None else {text}"
    opened = "_binary'" if column.tp in STRING_TYPES and column.is_binary else "'"
    doubled = f"""{text}.replace(b"'", b"''")"""
    return f"""null if {text} is None else b"{opened}" + {doubled} + b"'\""""
