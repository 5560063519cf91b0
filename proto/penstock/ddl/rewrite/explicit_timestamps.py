"""Writes out TIMESTAMP columns for a server that implicitly adds NOT NULL and defaults.

Pure.

    written                        for such a server
    TIMESTAMP, also DEFAULT …      TIMESTAMP NULL …
    TIMESTAMP NOT NULL             … DEFAULT '0000-00-00 00:00:00', because none cannot be written
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax import statements as ast

_ZEROS = "0000-00-00 00:00:00"


def explicit_timestamps(sql: str) -> str:
    """Return statements that such a server takes literally; NeedsOperator for bad syntax."""
    source, statements = parse(sql)
    texts = []
    for statement in statements:
        edits = [edit for column in defined_columns(statement) for edit in _edits(column)]
        texts.append(ast.edited(source.text, statement.start, statement.end, edits))
    return "; ".join(texts)


def defined_columns(statement: ast.Statement) -> Iterator[ast.ColumnDef]:
    if isinstance(statement, ast.CreateTable):
        yield from statement.columns
    for part in statement.parts if isinstance(statement, ast.AlterTable) else ():
        if isinstance(part.operation, ast.AddColumns):
            yield from part.operation.columns
        elif isinstance(part.operation, ast.ChangeColumn):
            yield part.operation.column


def _edits(column: ast.ColumnDef) -> Iterator[ast.Edit]:
    if column.type.name != "TIMESTAMP" or column.generated:
        return
    at = column.type.charset.end
    if column.not_null is None:
        yield ast.Edit(at, at, " NULL")
    elif column.not_null and column.default is None:
        yield ast.Edit(at, at, f" DEFAULT '{_ZEROS}'")
