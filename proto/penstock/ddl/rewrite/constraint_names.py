"""Names the CHECKs and foreign keys that a statement leaves unnamed.

Pure. It also writes out MariaDB's implicit reading of JSON as a text.

A server that runs a statement twice, or another server than upstream's, would choose different
names, and a later DROP CONSTRAINT would not find its constraint. Therefore the names are written
out:

    FOREIGN KEY      t_ibfk_1, one more than the highest of the table before the statement
    CHECK            t_chk_1, one more than the highest of those that stay, as MySQL has it
    CHECK, MariaDB   CONSTRAINT_1, the first that is free; those of a column have no name there

If the names of a table are unknown, its server chooses them: an older version created the table, or
CHECKs were dropped with a column. A MySQL numbers CHECKs of columns like others, so they are named
only beside others. MySQL ignores the name of a foreign key's index, MariaDB names the key by it,
and so does this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.ddl.parse.parser import rewritten
from penstock.ddl.syntax import statements as ast
from penstock.ddl.syntax.lexer import Kind, Source, Token, quote_name

_NO_NAMES = ("CHECK", "FOREIGN", "PRIMARY", "UNIQUE")
_MARIADBS = re.compile(r"CONSTRAINT_[1-9]\d*", re.IGNORECASE)
_GENERATED = re.compile(
    r"(?:.*_chk_|CONSTRAINT_|(?P<foreign>.*_ibfk_|))([1-9]\d*)", re.IGNORECASE | re.DOTALL
)
"""The name of a constraint that a server chose, whatever its table was called then.

Since 12.1 a MariaDB numbers foreign keys, without a name before the number.
"""
_ABSENT = ["IF", "NOT", "EXISTS"]
_BEFORE_NAME = ("CONSTRAINT", *_ABSENT)


@dataclass(frozen=True, slots=True)
class _Found:
    """A written constraint: its kind, its name if any, and the place of a name."""

    kind: str
    name: str
    at: int
    is_of_column: bool
    has_word: bool
    """CONSTRAINT is written, without a name."""

    def edit(self, name: str) -> ast.Edit:
        word = "" if self.has_word else "CONSTRAINT "
        return ast.Edit(self.at, self.at, f"{word}{quote_name(name)} ")


def constraint_edits(
    tokens: Sequence[Token], table: str, known: Sequence[str], new_name: str = ""
) -> tuple[list[ast.Edit], tuple[str, ...]]:
    """Return edits that name the unnamed constraints, and the resulting names of the table.

    `tokens` are those of a CREATE or ALTER TABLE, `known` the names that the table had. An ALTER
    that also renames the table gives it the `new_name`, and its constraints names of that.
    """
    dropped = {name.lower() for name in _dropped(tokens)}
    kept = [name for name in known if name.lower() not in dropped]
    if new_name:
        known, kept = _renamed(known, table, new_name), _renamed(kept, table, new_name)
        table = new_name
    # A server's count of foreign keys includes those that the statement drops.
    numbers = {"chk": _highest(table, "chk", kept), "ibfk": _highest(table, "ibfk", known)}
    names = list(kept)
    edits: list[ast.Edit] = []
    constraints = list(_constraints(tokens))
    # MySQL numbers CHECKs of columns as it meets them, so they need names only beside others.
    all_checks = any(e.kind == "chk" and not e.name and not e.is_of_column for e in constraints)
    for found in constraints:
        name = found.name
        if not name:
            numbers[found.kind] += 1
            name = f"{table}_{found.kind}_{numbers[found.kind]}"
            if all_checks or not found.is_of_column:
                edits.append(found.edit(name))
        names.append(name)
    return edits, tuple(dict.fromkeys(names))


def renamed(names: tuple[str, ...] | None, old: str, new: str) -> tuple[str, ...] | None:
    """Return the names after a RENAME, which also renames server-chosen constraint names."""
    return None if names is None else tuple(_renamed(names, old, new))


def copied(names: tuple[str, ...] | None, old: str, new: str) -> tuple[str, ...] | None:
    """Return the names after CREATE TABLE … LIKE, None where servers differ.

    It copies no foreign keys. A MySQL numbers all CHECKs, a MariaDB keeps their names.
    """
    checks = [name for name in names or () if not _number(old, "ibfk", name)]
    if names is not None and all(_number(old, "chk", name) for name in checks):
        return tuple(f"{new}_chk_{n}" for n in range(1, len(checks) + 1))
    is_mariadbs = all(_MARIADBS.fullmatch(name) for name in checks)
    return tuple(checks) if names is not None and is_mariadbs else None


def without_columns(
    names: tuple[str, ...] | None, table: str, parts: Iterable[ast.Part]
) -> tuple[str, ...] | None:
    """Return the names before an ALTER TABLE, None if it may drop CHECKs with their columns."""
    drops = any(isinstance(part.operation, ast.DropColumn) for part in parts)
    has_checks = any(not _number(table, "ibfk", name) for name in names or ())
    return None if drops and has_checks else names


def _renamed(names: Iterable[str], old: str, new: str) -> list[str]:
    return [f"{new}{name[len(old) :]}" if _number(old, "chk|ibfk", name) else name
            for name in names]  # fmt: skip


def as_mariadb_reads(sql: str, known: Callable[[ast.TableRef], tuple[str, ...] | None]) -> str:
    """Return statements with the names that a MariaDB gives CHECKs, and JSON as the text it is.

    `known` returns a table's names.
    """

    def edits(statement: ast.Statement, source: Source) -> Iterator[ast.Edit]:
        if isinstance(statement, ast.CreateTable | ast.AlterTable):
            had: Collection[str] | None = ()
            if isinstance(statement, ast.AlterTable):
                had = without_columns(known(statement.ref), statement.ref.name, statement.parts)
            if had is not None:
                yield from _mariadb(within(source.tokens, statement.start, statement.end), had)
            yield from statement.json

    return rewritten(sql, edits)


def as_server_names(
    sql: str, there: Callable[[ast.TableRef], Mapping[str, str]], *, numbers_by_table: bool
) -> str:
    """Return statements with the names that constraints have on the server that runs them.

    `there` returns the constraints of a table on that server, with their types. Servers rename them
    differently in a RENAME TABLE, and a routed table has another name, so a missing name may
    correspond to the name with the same number. `numbers_by_table` is for a MariaDB's statement on
    a MySQL, where two tables cannot both have a CONSTRAINT_1.
    """

    def edits(statement: ast.Statement, source: Source) -> Iterator[ast.Edit]:
        if isinstance(statement, ast.CreateTable | ast.AlterTable):
            tokens = within(source.tokens, statement.start, statement.end)
            if numbers_by_table:
                yield from _numbered(tokens, statement)
            yield from _found_there(tokens, partial(there, statement.ref))

    return rewritten(sql, edits)


def _numbered(
    tokens: Sequence[Token], statement: ast.CreateTable | ast.AlterTable
) -> Iterator[ast.Edit]:
    parts = statement.parts if isinstance(statement, ast.AlterTable) else ()
    renamed = [
        part.operation.ref.name for part in parts if isinstance(part.operation, ast.RenameTo)
    ]
    table = (*renamed, statement.ref.name)[0]
    for at, token in enumerate(tokens[:-1]):
        name = tokens[at - 1]
        if token.upper != "CHECK" or tokens[at + 1].text != "(" or name.upper == "CONSTRAINT":
            continue
        if _constraint_word(tokens, at) >= 0 and _MARIADBS.fullmatch(name.text):
            number = name.text.rpartition("_")[2]
            yield ast.Edit(name.start, name.end, quote_name(f"{table}_chk_{number}"))


def _found_there(
    tokens: Sequence[Token], there: Callable[[], Mapping[str, str]]
) -> Iterator[ast.Edit]:
    for at, token in enumerate(tokens[:-2]):
        if token.upper not in ("DROP", "ALTER"):
            continue
        is_foreign = (tokens[at + 1].upper, tokens[at + 2].upper) == ("FOREIGN", "KEY")
        if not is_foreign and tokens[at + 1].upper not in ("CONSTRAINT", "CHECK"):
            continue
        after = at + 2 + is_foreign
        name = tokens[after + (2 if tokens[after].upper == "IF" else 0)]
        number = _GENERATED.fullmatch(name.text)
        names = there() if number else {}
        if number is None or name.text.lower() in map(str.lower, names):
            continue
        kind = "FOREIGN KEY" if is_foreign or number["foreign"] is not None else "CHECK"
        same = [
            each
            for each, type_ in names.items()
            if type_ == kind and (found := _GENERATED.fullmatch(each)) and found[2] == number[2]
        ]
        if len(same) == 1:
            yield ast.Edit(name.start, name.end, quote_name(same[0]))


def within(tokens: Sequence[Token], start: int, end: int) -> list[Token]:
    return [token for token in tokens if start <= token.start and token.end <= end]


def _mariadb(tokens: Sequence[Token], known: Collection[str]) -> Iterator[ast.Edit]:
    dropped = {name.lower() for name in _dropped(tokens)}
    constraints = list(_constraints(tokens))
    taken = {name.lower() for name in known} - dropped
    taken |= {each.name.lower() for each in constraints}
    for each in constraints:
        if each.kind != "chk" or each.name or each.is_of_column:
            continue
        number = next(n for n in range(1, 1 << 16) if f"constraint_{n}" not in taken)
        taken.add(f"constraint_{number}")
        yield each.edit(f"CONSTRAINT_{number}")


def _constraints(tokens: Sequence[Token]) -> Iterator[_Found]:
    for at, token in enumerate(tokens[:-1]):
        follows = tokens[at + 1]
        is_check = token.upper == "CHECK" and follows.text == "(" and follows.kind is Kind.SIGN
        is_foreign = token.upper == "FOREIGN" and follows.upper == "KEY"
        if not (is_check or is_foreign):
            continue
        word = _constraint_word(tokens, at)
        name, has_word = "", word == at - 1
        if word >= 0 and not has_word:
            name = tokens[at - 1].text
        before = (word if word >= 0 else at) - 1
        if tokens[before].upper == "DROP":
            continue
        if is_foreign and not name:
            name = _index_name(tokens[at + 2 :])
        is_of_column = tokens[before].text not in ("(", ",") and tokens[before].upper != "ADD"
        kind = "chk" if is_check else "ibfk"
        yield _Found(kind, name, token.start, is_of_column and is_check, has_word)


def _constraint_word(tokens: Sequence[Token], at: int) -> int:
    """Return the start of the CONSTRAINT [IF NOT EXISTS] [name] that ends before `at`, or -1.

    IF NOT EXISTS is for a name only.
    """
    before = at - 1
    if tokens[before].upper == "CONSTRAINT":
        return before
    if not _is_name(tokens[before]):
        return -1
    before -= 1
    if [token.upper for token in tokens[max(0, before - 2) : before + 1]] == _ABSENT:
        before -= len(_ABSENT)
    return before if tokens[before].upper == "CONSTRAINT" else -1


def _index_name(tokens: Sequence[Token]) -> str:
    for token in tokens:
        if token.text == "(":
            return ""
        if token.upper not in _BEFORE_NAME:
            return token.text
    return ""


def _is_name(token: Token) -> bool:
    return token.kind is Kind.QUOTED or (token.kind is Kind.WORD and token.upper not in _NO_NAMES)


def _dropped(tokens: Sequence[Token]) -> Iterator[str]:
    for at, token in enumerate(tokens):
        if token.upper != "DROP" or at + 1 >= len(tokens):
            continue
        rest = tokens[at + 1 :]
        if rest[0].upper not in ("CONSTRAINT", "CHECK", "FOREIGN"):
            continue
        skipped = ("CONSTRAINT", "CHECK", "FOREIGN", "KEY", "IF", "EXISTS")
        yield next((each.text for each in rest if each.upper not in skipped), "")


def _number(table: str, kind: str, name: str) -> int:
    found = re.fullmatch(rf"{re.escape(table)}_(?:{kind})_([1-9]\d*)", name, re.IGNORECASE)
    return int(found[1]) if found else 0


def _highest(table: str, kind: str, names: Collection[str]) -> int:
    return max((_number(table, kind, name) for name in names), default=0)
