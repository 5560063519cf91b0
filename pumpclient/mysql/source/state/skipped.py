"""The tables that a source skips, and how much was skipped of each.

Pure.

    skip-table t     t is skipped from the next transaction on: its rows and statements are counted.
                     The table downstream stays as it is.
    RENAME t TO u    u is skipped from there on, t is free again; downstream t becomes u. The counts
                     of single events that were skipped move with it
    a RENAME of a replicated table to a skipped name: the name is replicated again
    DROP TABLE t     is executed downstream as well. A CREATE TABLE t is skipped: t stays skipped,
                     and a reload of t restarts
    other statements on t are skipped; CREATE TABLE u LIKE t is refused once there were any
    reload t         replicates t again, with all tables that are routed to the same table; a CREATE
                     TABLE of another such table in the meantime is skipped, and the reload restarts
                     with it. A reload that is ended leaves a part of the rows: then only another
                     reload makes t replicated again

The counts belong to the stream: they are stored with the place up to which they count, so that
events read again after a kill are counted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.codes import Code
from penstock.ddl.parse.parser import parse
from penstock.ddl.syntax.lexer import quote_path
from penstock.ddl.syntax.statements import (
    AlterTable,
    CreateLike,
    CreateTable,
    DropSchema,
    DropTables,
    RenameTables,
)
from penstock.ddl.syntax.statements import Statement as Parsed
from penstock.errors import NeedsOperator
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.translate.ddl_pieces import (
    Piece,
    Translation,
    pair_by_pair,
    table_by_table,
    together,
)
from pumpclient.mysql.translate.statement_objects import changed_by, likened

NO_TABLE: Name = ("", "")
"""Name for the counts of events that belong to no table, or to an unknown table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedTable:
    """One table of the server; counts since `since`, a place in the relay log."""

    schema: str
    table: str
    since: str
    is_whole: bool = False
    """Skipped from `since` on; False where only single events or statements were skipped."""
    rows: int = 0
    events: int = 0
    """Row events, and others, whose rows could not be counted."""
    statements: int = 0
    reload: int = 0
    """The number of the reload that replicates it again, 0 while none was requested.

    Tables with the same number go to one table downstream, and are loaded together.
    """
    is_partial: bool = False
    """A reload was ended before it was done: some of the rows are downstream, and no count tells
    how many are missing. Only another reload makes the table replicated again.
    """
    dropped: str = ""
    """Where the source read its DROP, "" while the table exists on the server per the stream."""

    @property
    def name(self) -> Name:
        return self.schema, self.table

    @property
    def is_complete(self) -> bool:
        return not (self.rows or self.events or self.statements)

    @property
    def label(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else "(no table)"


class SkippedTables:
    """All skipped tables at one place of the stream."""

    def __init__(self, tables: Iterable[SkippedTable]) -> None:
        self._tables = {each.name: each for each in tables}
        self._open_rows: Counter[Name] = Counter()
        self._open_events: Counter[Name] = Counter()

    @property
    def tables(self) -> tuple[SkippedTable, ...]:
        return tuple(self._tables.values())

    def has(self, schema: str, table: str) -> bool:
        found = self._tables.get((schema, table))
        return found is not None and found.is_whole

    def of(self, name: Name) -> SkippedTable | None:
        return self._tables.get(name)

    def add(self, name: Name | None, rows: int | None) -> None:
        """Count an event of the open transaction; `rows` is None if they cannot be counted."""
        if rows is None:
            self._open_events[name or NO_TABLE] += 1
        else:
            self._open_rows[name or NO_TABLE] += rows

    def finish(self, place: str) -> bool:
        """Add the open transaction's counts at `place`; return whether it had any."""
        names = self._open_rows.keys() | self._open_events.keys()
        for name in names:
            before = self._known(name, place)
            self._tables[name] = replace(
                before,
                rows=before.rows + self._open_rows[name],
                events=before.events + self._open_events[name],
                dropped="",
            )
        self.drop_open()
        return bool(names)

    def drop_open(self) -> None:
        self._open_rows.clear()
        self._open_events.clear()

    def add_statement(self, names: Sequence[Name], place: str) -> None:
        for name in names or (NO_TABLE,):
            before = self._known(name, place)
            self._tables[name] = replace(before, statements=before.statements + 1, dropped="")

    def drop(self, name: Name, place: str) -> None:
        """Mark a table as dropped by the server; the mark stays for a later CREATE TABLE."""
        self._tables[name] = replace(self._known(name, place), dropped=place)

    def begin(self, name: Name, place: str, reload: int) -> None:
        self._tables[name] = replace(
            self._known(name, place), is_whole=True, since=place, reload=reload, dropped=""
        )

    def rename(self, old: Name, new: Name) -> None:
        """Follow a RENAME: the entry of the old name moves to the new name."""
        moved = self._tables.pop(old, None)
        self._tables.pop(new, None)
        if moved is not None:
            self._tables[new] = replace(moved, schema=new[0], table=new[1])

    def change(self, table: SkippedTable) -> None:
        self._tables[table.name] = table

    def remove(self, name: Name) -> None:
        self._tables.pop(name, None)

    def _known(self, name: Name, place: str) -> SkippedTable:
        schema, table = name
        return self._tables.get(name) or SkippedTable(schema=schema, table=table, since=place)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The effect of a statement where some tables are skipped."""

    pieces: tuple[Piece | None, ...]
    """The pieces that must be executed all the same; None for a skipped piece."""
    counted: tuple[Name, ...] = ()
    """A table for each skipped piece."""
    renamed: tuple[tuple[Name, Name], ...] = ()
    """In their order; also of replicated tables, if anything is known of a name."""
    moved: tuple[Name, ...] = ()
    """Tables that this renames, drops or creates again: a reload of any of them must restart."""
    dropped: tuple[Name, ...] = ()
    """The skipped tables that this drops."""
    joined: tuple[tuple[Name, int], ...] = ()
    """Tables that this creates with the target of a reload, with its number: the reload covers
    them.
    """


def judged(
    translation: Translation,
    left_out: SkippedTables,
    exists: Callable[[Name], bool],
    target: Callable[[Name], Name] = lambda name: name,
) -> Verdict:
    """Return the effect of a translation; `exists` tells whether the cluster has a table.

    `target` maps a table of the server to the cluster. Raises `NeedsOperator` for a statement that
    copies the definition of a skipped table.
    """
    marks, here = SkippedTables(left_out.tables), _Here(exists)
    pieces: list[Piece | None] = []
    counted: list[Name] = []
    renamed: list[tuple[Name, Name]] = []
    moved: list[Name] = []
    dropped: list[Name] = []
    joined: list[tuple[Name, int]] = []
    reloads = {target(each.name): each.reload for each in left_out.tables if each.reload}
    for piece in _followed(translation.pieces, marks):
        if piece.is_override:
            pieces.append(piece)
            continue
        statement = parse(piece.source_sql)[1][0]
        names = _names(piece, statement)
        if _is_swapped_in(piece, statement):
            moved += names
        if isinstance(statement, DropSchema):
            dropped += [each.name for each in marks.tables if each.schema == statement.name]
        _check_likened(piece, statement, marks)
        if isinstance(statement, (CreateTable, CreateLike)):
            joined += _joined(names[0], reloads.get(target(names[0])), marks)
            moved += [name for name in names[:1] if _is_dropped(name, marks)]
        if not any(marks.has(*name) for name in names):
            pieces.append(piece)
            may_rename = len(names) == 2 and not isinstance(statement, DropTables)
            if may_rename and any(marks.of(name) is not None for name in names):
                renamed.append((names[0], names[1]))  # Its counts of missing rows move along.
                marks.rename(*names)
        elif len(names) == 2 and isinstance(statement, (RenameTables, AlterTable)):
            counted += [names[0]] * (isinstance(statement, AlterTable) and marks.has(*names[0]))
            pieces.append(_renaming(piece, statement, marks.has(*names[0]), here))
            moved += names
            renamed.append((names[0], names[1]))
            marks.rename(*names)
        elif isinstance(statement, DropTables):
            dropped += names
            pieces.append(_dropping(piece, statement, names, marks, here))
        else:
            pieces.append(None)
            counted.append(names[0])
    return Verdict(
        tuple(pieces),
        tuple(counted),
        tuple(renamed),
        (*moved, *dropped),
        tuple(name for name in dropped if marks.has(*name)),
        tuple(joined),
    )


def _dropping(
    piece: Piece, statement: Parsed, names: Sequence[Name], marks: SkippedTables, here: _Here
) -> Piece | None:
    """Reduce a DROP: of the skipped tables, keep only those that the cluster has."""
    kept = [
        part
        for n, part in enumerate(table_by_table(piece))
        if not marks.has(*names[n]) or here.has(_target(piece, statement, n))
    ]
    return together(kept) if kept else None


def _is_dropped(name: Name, marks: SkippedTables) -> bool:
    found = marks.of(name)
    return found is not None and bool(found.dropped)


def _followed(pieces: Iterable[Piece], marks: SkippedTables) -> Iterator[Piece]:
    for piece in pieces:
        is_known = any(marks.of(name) is not None for name in piece.tables)
        yield from pair_by_pair(piece) if is_known and not piece.is_override else [piece]


def _joined(name: Name, reload: int | None, marks: SkippedTables) -> list[tuple[Name, int]]:
    if reload is None or marks.has(*name):
        return []
    marks.begin(name, "", reload)
    return [(name, reload)]


class _Here:
    """The cluster's tables in the course of a statement."""

    def __init__(self, exists: Callable[[Name], bool]) -> None:
        self._exists = exists
        self._changed: dict[Name, bool] = {}

    def has(self, name: Name) -> bool:
        return self._changed[name] if name in self._changed else self._exists(name)

    def rename(self, old: Name, new: Name) -> bool:
        is_here = self.has(old)
        self._changed |= {new: is_here, old: False}
        return is_here


def _names(piece: Piece, statement: Parsed) -> tuple[Name, ...]:
    refs = [(ref.schema or "", ref.name) for ref in statement.refs]
    if len(refs) != len(piece.tables):  # A tool's ALTER of its copy, which is run on the table.
        return piece.tables[:1]
    wanted = changed_by(statement, "")
    return tuple(piece.tables[refs.index(name)] for name in wanted if name in refs)


def _is_swapped_in(piece: Piece, statement: Parsed) -> bool:
    """Return whether a DDL tool ran a piece on its copy, which is now the table."""
    wanted = changed_by(statement, "")
    return bool(wanted) and wanted[0][1] != piece.tables[0][1]


def _target(piece: Piece, statement: Parsed, number: int) -> Name:
    made = parse(piece.sql)[1][0]
    ref_names = changed_by(made, "")
    assert type(made) is type(statement), "only names differ"
    return ref_names[number]


def _renaming(piece: Piece, statement: Parsed, is_skipped: bool, here: _Here) -> Piece | None:
    """Return the RENAME to run here; of a skipped table only the name changes."""
    old, new = _target(piece, statement, 0), _target(piece, statement, 1)
    is_here = here.rename(old, new)
    if not is_skipped:
        return piece
    if not is_here:
        return None
    return replace(piece, sql=f"RENAME TABLE {quote_path(*old)} TO {quote_path(*new)}")


def _check_likened(piece: Piece, statement: Parsed, left_out: SkippedTables) -> None:
    like = likened(statement, "")
    if like is None:
        return
    refs = [(ref.schema or "", ref.name) for ref in statement.refs]
    name = piece.tables[refs.index(like)]
    found = left_out.of(name)
    if found is not None and found.is_whole and (found.statements or found.reload):
        raise NeedsOperator(
            f"it copies the definition of {found.label}, which is skipped and was altered since",
            "replace it by a CREATE TABLE with all columns, or also skip the new table",
            Code.FILTER_STOPS,
        )
