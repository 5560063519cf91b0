"""The collations and character sets that a statement names, and the same statement with others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.ddl.syntax.elements import Edit, edited
from penstock.ddl.syntax.lexer import Kind, Token, read

_NAMES = (Kind.WORD, Kind.QUOTED, Kind.STRING)


def recollated(sql: str, collation: Callable[[str], str], charset: Callable[[str], str]) -> str:
    """Return a statement with the names that stand after COLLATE and CHARACTER SET replaced.

    Both functions are given names in lower case. Expressions and views are no exception.
    """
    source = read(sql)
    edits = []
    for token, is_collation in _named(source.tokens):
        name = token.text.lower()
        new = (collation if is_collation else charset)(name)
        if new != name:
            edits.append(Edit(token.start, token.end, new))
    return edited(source.text, 0, len(source.text), edits) if edits else sql


def _named(tokens: tuple[Token, ...]) -> Iterator[tuple[Token, bool]]:
    """Yield what may be a charset's or a collation's name, and whether it is a collation's."""
    for at, token in enumerate(tokens):
        word, behind = token.upper, at + 1
        if word in ("CHARACTER", "CHAR") and tokens[behind].upper == "SET":
            behind += 1
        elif word not in ("COLLATE", "CHARSET", "USING"):
            continue
        if behind < len(tokens) and tokens[behind].text == "=":
            behind += 1
        if behind < len(tokens) and tokens[behind].kind in _NAMES:
            yield tokens[behind], word == "COLLATE"
