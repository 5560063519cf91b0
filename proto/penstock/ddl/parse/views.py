"""Finds the tables that a view's SELECT reads, and makes the edits that rename them.

Only the name of a view is tracked, so only its tables' names matter. They are found in one pass
over the tokens, without a catalog. A name is a table's where a FROM clause or a join wants a table:

    FROM a, b AS x JOIN (c, d) ON … , (SELECT …) y      a b c d, and those of the nested SELECT
    EXTRACT(DAY FROM a), TRIM('x' FROM a)               none: these parentheses have no SELECT
    WITH c AS (SELECT … FROM a) SELECT … FROM c         a; c only where it is not defined (yet)
    FROM DUAL, JSON_TABLE(…), VALUES (…)                none
    TABLE a; NEXT VALUE FOR s, NEXTVAL(s), LASTVAL(s)   a, s

The meaning of the surrounding words depends on parentheses only, so the only state is one stack of
these: a view nested some thousand times is read like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock.codes import Code
from penstock.ddl.syntax.lexer import RESERVED, Kind, Source, Token, quote_name, quote_path, read
from penstock.ddl.syntax.statements import Edit
from penstock.errors import NeedsOperator

Mapping = Callable[[str, str], tuple[str, str]]
"""Maps (database, table) to the new names; a database alone has the table ""."""

_HINT = "write every table in the view as schema.table, or choose the view's own database"


def check_view(select: str, schema: str) -> None:
    """Raise NeedsOperator if a view of this schema depends on another current database."""
    for table in TableScan(read(select)).tables():
        if not table.schema:
            problem = f"a view in {schema!r} names table {table.name!r} without its database"
            raise _unsupported(problem, _HINT)


def view_edits(select: str, start: int, schema: str, mapping: Mapping) -> list[Edit]:
    """Return the edits that give the tables of a view's SELECT their mapped names.

    `start` is the place of `select`. A table keeps its old name as an alias, so that columns
    qualified by it stay valid. If two databases have a table of the same name and one of them is
    renamed, that raises NeedsOperator.
    """
    source = read(select)
    tables = list(TableScan(source).tables())
    named = [(table, (table.schema or schema, table.name)) for table in tables]
    moved = {old for _, old in named if mapping(*old) != old}
    if moved:
        _check_distinct([old for table, old in named if not table.has_alias], schema)
    edits: list[Edit] = []
    for table, old in named:
        new = mapping(*old)
        edits.append(Edit(start + table.start, start + table.end, quote_path(*new)))
        if new[1] != old[1] and not table.has_alias:
            if table.is_dated:
                raise _unsupported(
                    f"a view in {schema!r} reads {table.name!r} FOR SYSTEM_TIME, under another"
                    " name here",
                    "give the table an alias in the view",
                )
            at = start + table.alias_at
            edits.append(Edit(at, at, f" AS {quote_name(table.name)}"))
    return edits + _column_edits(source, start, moved, tables)


def _unsupported(problem: str, hint: str) -> NeedsOperator:
    return NeedsOperator(problem, hint, Code.DDL_UNSUPPORTED)


def _check_distinct(names: Sequence[tuple[str, str]], schema: str) -> None:
    plain: dict[str, tuple[str, str]] = {}
    for name in names:
        if plain.setdefault(name[1].lower(), name) != name:
            problem = f"a view in {schema!r} reads two tables called {name[1]!r}"
            raise _unsupported(problem, "give both an alias in the view")


def _column_edits(
    source: Source, start: int, moved: set[tuple[str, str]], tables: Sequence[ReadTable]
) -> list[Edit]:
    places = {table.start for table in tables}
    wanted = {(schema.lower(), name.lower()) for schema, name in moved}
    tokens = source.tokens
    edits = []
    for at, token in enumerate(tokens[:-4]):
        if token.kind not in (Kind.WORD, Kind.QUOTED) or token.start in places:
            continue
        dots = [t.kind is Kind.SIGN and t.text == "." for t in (tokens[at + 1], tokens[at + 3])]
        begins = at == 0 or tokens[at - 1].text != "."
        if all(dots) and begins and (token.text.lower(), tokens[at + 2].text.lower()) in wanted:
            edits.append(Edit(start + token.start, start + tokens[at + 2].start, ""))
    return edits


_JOINS = frozenset({"JOIN", "STRAIGHT_JOIN"})
_BEGIN_QUERY = frozenset({"SELECT", "WITH", "VALUES", "TABLE"})
_END_FROM = frozenset(
    {
        "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT",
        "PROCEDURE", "INTO", "FETCH", "LOCK", "SELECT",
    }
)  # fmt: skip
_BEFORE_TABLE_QUERY = frozenset({"", "UNION", "ALL", "DISTINCT", "EXCEPT", "INTERSECT"})
_NO_ALIASES = RESERVED | _END_FROM | {"MINUS", "OFFSET", "WINDOW"}
_HINTS = frozenset({"USE", "FORCE", "IGNORE"})
_SEQUENCE_CALLS = frozenset({"NEXTVAL", "LASTVAL", "SETVAL"})


@dataclass(frozen=True, slots=True)
class ReadTable:
    """A table that a SELECT reads, and its place; `schema` is "" where none is written."""

    schema: str
    name: str
    start: int
    end: int
    alias_at: int
    """Where an alias would go."""
    has_alias: bool
    """Nothing in the SELECT needs its own name; a sequence cannot have an alias."""
    is_dated: bool = False
    """FOR SYSTEM_TIME follows: the place of an alias is unknown."""


@dataclass(slots=True)
class _Level:
    """The state between one pair of parentheses."""

    is_query: bool = False
    in_from: bool = False
    wants: bool = False
    """A table's name comes next."""
    defined: list[tuple[str, int]] = field(default_factory=list)
    """Names of WITH, in lower case, each with the token from which on it is known."""


class TableScan:
    """One pass over the tokens of a SELECT."""

    def __init__(self, source: Source) -> None:
        self._tokens = source.tokens
        self._levels = [_Level()]
        self._has_definitions = False

    def tables(self) -> Iterator[ReadTable]:
        """Yield the tables in the text's order; a FROM without a table raises NeedsOperator."""
        at = 0
        while self._tokens[at].kind is not Kind.END:
            found, at = self._step(at)
            if found is not None:
                yield found
        if self._levels[0].wants or len(self._levels) > 1:
            raise self._unclear(at)

    def _token(self, at: int) -> Token:
        return self._tokens[min(max(at, 0), len(self._tokens) - 1)]

    def _word(self, at: int) -> str:
        return self._token(at).upper if at >= 0 else ""

    def _is_sign(self, at: int, sign: str) -> bool:
        token = self._token(at)
        return at >= 0 and token.kind is Kind.SIGN and token.text == sign

    def _step(self, at: int) -> tuple[ReadTable | None, int]:
        level = self._levels[-1]
        if self._is_sign(at, "("):
            self._open(at)
            return None, at + 1
        if self._is_sign(at, ")"):
            if level.wants or len(self._levels) == 1:
                raise self._unclear(at)
            self._levels.pop()
            return None, at + 1
        if level.wants:
            return self._wanted(at)
        if self._is_sign(at, ","):
            level.wants = level.in_from
            return None, at + 1
        word = self._word(at)
        if not word or self._is_sign(at - 1, "."):
            return None, at + 1
        return self._worded(level, word, at)

    def _open(self, at: int) -> None:
        level = self._levels[-1]
        begins = self._word(at + 1) in _BEGIN_QUERY and not self._is_sign(at + 2, ".")
        joined = level.wants and not begins
        level.wants = False
        self._levels.append(_Level(in_from=joined, wants=joined))

    def _worded(self, level: _Level, word: str, at: int) -> tuple[ReadTable | None, int]:
        if word == "SELECT":
            level.is_query = True
        if word in _END_FROM or (word == "WINDOW" and self._word(at + 2) == "AS"):
            level.in_from = False
        elif word == "WITH":
            self._define(level, at + 1)
        elif word == "FROM" and level.is_query:
            level.in_from = level.wants = True
        elif word in _JOINS and level.in_from:
            level.wants = True
        elif word in _HINTS and level.in_from and self._word(at + 1) in ("INDEX", "KEY"):
            at += 2
            while self._word(at) in ("FOR", "JOIN", "ORDER", "GROUP", "BY"):
                at += 1
            return None, at
        elif word == "TABLE" and self._begins_query(at):
            found, after = self._name(at + 1)
            return self._read(found, after, has_alias=True), after
        else:
            return self._sequence(word, at)
        return None, at + 1

    def _begins_query(self, at: int) -> bool:
        before = self._word(at - 1)
        return self._is_sign(at - 1, "(") or (
            before in _BEFORE_TABLE_QUERY and (at == 0 or bool(before))
        )

    def _sequence(self, word: str, at: int) -> tuple[ReadTable | None, int]:
        name_at = 0
        if word in ("NEXT", "PREVIOUS") and self._word(at + 1) == "VALUE":
            name_at = at + 3 if self._word(at + 2) == "FOR" else 0
        elif word in _SEQUENCE_CALLS and self._is_sign(at + 1, "("):
            self._levels.append(_Level())
            name_at = at + 2
        if not name_at:
            return None, at + 1
        found, after = self._name(name_at)
        return self._read(found, after, has_alias=True), after

    def _wanted(self, at: int) -> tuple[ReadTable | None, int]:
        level = self._levels[-1]
        word = self._word(at)
        if word == "LATERAL":
            return None, at + 1
        if self._is_sign(at, "{"):  # { OJ a LEFT JOIN b ON … }
            return None, at + 2
        level.wants = False
        if word == "DUAL" or (word and self._is_sign(at + 1, "(")):
            return None, at + 1
        found, after = self._name(at)
        name_end = self._token(after - 1).end
        if self._word(after) == "PARTITION" and self._is_sign(after + 1, "("):
            after = self._closing(after + 1) + 1
            name_end = self._token(after - 1).end
        is_dated = self._word(after) == "FOR" and self._word(after + 1) == "SYSTEM_TIME"
        if is_dated:
            after = self._behind_time(after + 2)
        has_alias = self._word(after) == "AS" or self._is_alias(after)
        if has_alias:  # It may be a word that means something elsewhere.
            after += 1 + (self._word(after) == "AS")
        if self._has_definitions and len(found) == 1:
            wanted, defined = found[0].text.lower(), (each.defined for each in self._levels)
            if any(name == wanted and at >= known for one in defined for name, known in one):
                return None, after
        return self._read(found, after, has_alias, name_end, is_dated), after

    def _behind_time(self, at: int) -> int:
        """Skip AS OF, so that AS does not start an alias, and FROM, so that it starts no list."""
        if self._word(at) == "AS" and self._word(at + 1) == "OF":
            return at + 3 if self._word(at + 2) in ("TIMESTAMP", "TRANSACTION") else at + 2
        return at + 1 if self._word(at) in ("FROM", "BETWEEN", "ALL", "BEFORE") else at

    def _is_alias(self, at: int) -> bool:
        token = self._token(at)
        if token.kind is Kind.QUOTED:
            return True
        return token.kind is Kind.WORD and token.upper not in _NO_ALIASES

    def _read(
        self,
        found: Sequence[Token],
        after: int,
        has_alias: bool,
        alias_at: int | None = None,
        is_dated: bool = False,
    ) -> ReadTable:
        schema = found[0].text if len(found) > 1 else ""
        end = found[-1].end
        at = end if alias_at is None else alias_at
        return ReadTable(schema, found[-1].text, found[0].start, end, at, has_alias, is_dated)

    def _name(self, at: int) -> tuple[list[Token], int]:
        found: list[Token] = []
        while True:
            token = self._token(at)
            is_free = bool(found) or token.upper not in RESERVED
            if token.kind is not Kind.QUOTED and not (token.kind is Kind.WORD and is_free):
                raise self._unclear(at)
            found.append(token)
            if len(found) == 2 or not self._is_sign(at + 1, "."):
                return found, at + 1
            at += 2

    def _define(self, level: _Level, at: int) -> None:
        """Record WITH definitions; a name is visible after itself, or everywhere if RECURSIVE."""
        is_recursive = self._word(at) == "RECURSIVE"
        start, at = at, at + is_recursive
        while True:
            token = self._token(at)
            body = at + 1
            if self._is_sign(body, "("):
                body = self._closing(body) + 1
            if token.kind not in (Kind.WORD, Kind.QUOTED) or self._word(body) != "AS":
                return  # WITH CHECK OPTION, WITH ROLLUP.
            if not self._is_sign(body + 1, "("):
                return
            end = self._closing(body + 1)
            self._has_definitions = True
            level.defined.append((token.text.lower(), start if is_recursive else end))
            at = end + 1
            if self._word(at) == "CYCLE":  # MariaDB: CYCLE a, b RESTRICT
                while self._word(at) != "RESTRICT" and self._token(at).kind is not Kind.END:
                    at += 1
                at += 1
            if not self._is_sign(at, ","):
                return
            at += 1

    def _closing(self, at: int) -> int:
        depth, start = 0, at
        while self._token(at).kind is not Kind.END:
            depth += self._is_sign(at, "(")
            depth -= self._is_sign(at, ")")
            if not depth:
                return at
            at += 1
        raise self._unclear(start)

    def _unclear(self, at: int) -> NeedsOperator:
        return _unsupported(
            f"the tables of a view are unclear near {self._token(at).text[:40]!r}",
            "create the view downstream by hand, then leave this statement out",
        )
