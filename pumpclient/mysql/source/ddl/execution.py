"""Executes a server's DDL on the cluster, piece by piece, each by its origin once."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from penstock.codes import Code
from penstock.ddl import SchemaChange, plan_ddl
from penstock.ddl.parse.parser import parse
from penstock.ddl.rewrite.constraint_names import as_mariadb_reads
from penstock.ddl.rewrite.explicit import explicit
from penstock.ddl.syntax.statements import (
    CreateLike,
    CreateSchema,
    CreateTable,
    CreateView,
    DropSchema,
    DropTables,
    RenameTables,
    TableRef,
)
from penstock.ddl.syntax.statements import Statement as Parsed
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import TableInfo
from penstock.wire.binlog import Origin
from pumpclient.client import PumpClient
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.protocol.server import ServerAddress
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.ddl import merged
from pumpclient.mysql.source.ddl.cascades import Cascades
from pumpclient.mysql.source.ddl.session import (
    check_session,
    context_of,
    may_mean_utf8mb4,
    means_utf8mb4,
)
from pumpclient.mysql.source.ddl.table_mapping import Tables, ensure_schema, two_names
from pumpclient.mysql.source.state.skipped import SkippedTables, Verdict, judged
from pumpclient.mysql.translate.ddl_pieces import (
    Override,
    Piece,
    Translation,
    Translator,
    Verb,
    origins_of,
    split,
    table_by_table,
    together,
)
from pumpclient.mysql.translate.online_ddl import Kept, OnlineDdl
from pumpclient.mysql.translate.outputs import Refused, Statement, place_text
from pumpclient.mysql.translate.statement_objects import (
    changed_tables,
    is_routine,
    left_by_failed,
    may_have_failed,
    skip_reason,
    temporary_reason,
)
from pumpclient.mysql.translate.statement_text import (
    Dialect,
    is_implicit,
    may_hold_timestamps,
    phase_to_skip,
    plain_text,
    session_collations,
    statement_text,
    with_utf8mb4,
    written_out,
)

log = logging.getLogger(__name__)

_UTF8 = re.compile(r"\b_?utf8(_|\b)", re.IGNORECASE)
_BROKEN_HINT = "a defect of Penstock: report it with the log; replace the statement meanwhile"


class Statements:
    """Executes the statements of one source."""

    def __init__(
        self,
        client: PumpClient,
        rules: Rules,
        online: OnlineDdl | None,
        cascades: Cascades,
        *,
        tables: Tables,
        merges: bool = False,
        only: frozenset[Name] | None = None,
    ) -> None:
        """Execute through `client` the statements that `rules` allow; for `merges` see `merged`.

        `tables` asks the server for facts that only the server knows. With `only`, just statements
        that change one of these tables are executed.
        """
        self._only = only
        self._tables = tables
        self._cascades = cascades
        self._merges = merges
        self._client = client
        self._rules = rules
        self._translator = Translator(
            is_replicated=rules.is_replicated,
            target=rules.target,
            online=online,
            is_merged=lambda *name: merges and rules.router.is_routed(*name),
            side_effects=lambda changed: tables.side_effects(changed),
        )

    def check_server(self, address: ServerAddress, names: Collection[Name]) -> None:
        """Raise `NeedsOperator` if keys of these tables change rows that no binlog has."""
        self._cascades.look_at_server(address, only=names)

    def of_tables(self, names: frozenset[Name]) -> Statements:
        """Return an executor of the statements on some tables, without online DDL."""
        return Statements(
            self._client, self._rules, None, self._cascades,
            tables=self._tables, merges=self._merges, only=names,
        )  # fmt: skip

    def translate(
        self,
        statement: Statement,
        kept: Kept,
        rulings: Mapping[str, Mapping[str, Any]],
        left_out: SkippedTables,
    ) -> Translation:
        """Return the translation of a statement; raise `Refused`, naming its place and tables.

        A statement that cannot be followed is skipped if it certainly concerns only skipped tables.
        """
        if self._only is not None and self._only.isdisjoint(self.tables_of(statement)):
            return Translation((), kept)
        override = _override_of(rulings.get(place_of(statement)))
        schema = statement.query.schema.decode()
        if override is None and (phase := phase_to_skip(statement.query.variables())):
            return Translation((), kept, phase)
        text = ""
        try:
            if override is None or override.verb is Verb.INJECT:
                text = self._text(statement, schema)
            of_session = override is None and statement.is_of_session
            if of_session and (why := temporary_reason(text)) is not None:
                return Translation((), kept, why)
            collations = session_collations(statement.query.variables(), statement.dialect)

            def database(table: TableRef) -> str | None:
                return self._foreign_collation(table.schema or schema, table.name)

            found = self._translator.translate(
                text,
                schema,
                kept,
                override,
                written_out=lambda sql: self._named(
                    explicit(sql, collations, database), statement.dialect, schema
                ),
            )
        except NeedsOperator as error:
            names = self.tables_of(statement)
            if names and all(left_out.has(*name) for name in names):
                return Translation((), kept, "its table is skipped", names)
            raise _refused(statement, error, names) from error
        except (RecursionError, LookupError, ValueError, TypeError, AttributeError) as error:
            log.exception("%s: a statement is read wrongly", place_of(statement))
            broken = NeedsOperator(
                f"reading it failed: {error!r}", _BROKEN_HINT, Code.DDL_UNREADABLE
            )
            raise _refused(statement, broken, self.tables_of(statement)) from error
        if override is not None and override.verb is Verb.SKIP:
            return replace(found, left_out=self.tables_of(statement))
        return found

    def judge(
        self, statement: Statement, translation: Translation, left_out: SkippedTables
    ) -> Verdict:
        """Return the pieces to execute, given the skipped tables; raise `Refused`."""
        catalog = self._client.session.schemas.catalog()
        try:
            found = judged(
                translation,
                left_out,
                lambda name: catalog.table(*name) is not None,
                lambda name: self._rules.target(*name),
            )
            pieces = [piece for piece in found.pieces if piece is not None]
            self._cascades.look_at(pieces, statement.dialect)
        except NeedsOperator as error:
            raise _refused(statement, error, self.tables_of(statement)) from error
        return found

    def parsed(self, statement: Statement) -> list[Parsed] | None:
        """Return the server's statements, replicated or not; None if they are unreadable."""
        if phase_to_skip(statement.query.variables()):
            return []
        try:
            text = self._text(statement, statement.query.schema.decode())
            if skip_reason(text) is not None:
                return []
            return [each for _, each in split(text)]
        except (NeedsOperator, RecursionError, LookupError, ValueError, TypeError, AttributeError):
            return None

    def tables_of(self, statement: Statement) -> tuple[Name, ...]:
        schema = statement.query.schema.decode()
        try:
            mode = statement.query.variables().sql_mode or 0
            text = plain_text(statement_text(statement.query), mode, statement.dialect)
        except NeedsOperator:
            return ()
        names = changed_tables(text, schema)
        return tuple(name for name in names if name[1] and self._rules.is_replicated(*name))

    def _text(self, statement: Statement, schema: str) -> str:
        variables = statement.query.variables()
        mode = variables.sql_mode or 0
        rough = statement.query.statement.decode("latin1")
        if is_routine(rough, statement.dialect):
            return rough  # Skipped, whatever sql_mode and character sets its body was written for.
        written = statement_text(statement.query)
        text = plain_text(written, mode, statement.dialect)
        if may_have_failed(written, statement.query.error_code):
            text = left_by_failed(text)
        is_alias = _UTF8.search(text) and may_mean_utf8mb4(statement.dialect)
        if is_alias and means_utf8mb4(self._tables.server_defaults.variables):  # In no event.
            text = with_utf8mb4(text)
        if not (is_implicit(variables, statement.dialect) and may_hold_timestamps(text)):
            return text
        if skip_reason(text) is not None:
            return text

        def here(ref: TableRef) -> TableInfo | None:
            target = self._rules.target(ref.schema or schema, ref.name)
            return self._client.session.schemas.catalog().table(*target)

        return written_out(text, here)

    def _named(self, sql: str, dialect: Dialect, schema: str) -> str:
        if dialect.flavor is not Flavor.MARIADB:
            return sql  # A plan has MySQL's.

        def known(ref: TableRef) -> tuple[str, ...] | None:
            target = self._rules.target(ref.schema or schema, ref.name)
            table = self._client.session.schemas.catalog().table(*target)
            return None if table is None else table.constraints

        return as_mariadb_reads(sql, known)

    def _foreign_collation(self, schema: str, table: str) -> str | None:
        """Return the server's collation of a new table's database, None where the cluster knows.

        The cluster does not know it where several databases are routed into one, or for a database
        that it never saw.
        """
        target, _ = self._rules.target(schema, table)
        catalog = self._client.session.schemas.catalog()
        if target == schema and catalog.schema(schema) is not None:
            return None
        return self._tables.database_collation(schema)

    def execute(self, statement: Statement, pieces: Sequence[Piece | None], origin: Origin) -> int:
        """Execute all pieces that were not executed before; return how many were.

        None stands for a skipped piece, so that the others keep their origins. Raises `Refused`,
        naming place and statement, and `Retryable`. If a statement cannot be executed to its end,
        none of its pieces is executed.
        """
        done = 0
        self._check_whole(statement, pieces, origin)
        for piece, own in zip(pieces, origins_of(origin, len(pieces)), strict=True):
            if piece is None:
                continue
            try:
                done += self._executed(piece, own, statement)
            except NeedsOperator as error:
                raise self._refused_piece(statement, piece, error) from error
        return done

    def _check_whole(
        self, statement: Statement, pieces: Sequence[Piece | None], origin: Origin
    ) -> None:
        """Raise `Refused` when a DROP or RENAME of several tables cannot be completed."""
        if len(pieces) == 1 or self._merges:
            return  # Its job is planned as a whole, or each table has other sources.
        catalog = self._client.session.schemas.catalog().copy()
        ids = itertools.count(1 << 62)
        for piece, own in zip(pieces, origins_of(origin, len(pieces)), strict=True):
            if piece is None or self._was_executed(own):
                continue
            statements = parse(piece.sql)[1]
            if not all(isinstance(each, (DropTables, RenameTables)) for each in statements):
                return
            try:
                if (own_piece := self._meant(piece)) is not None:
                    for job in plan_ddl(own_piece.sql, None, catalog, lambda: next(ids)):
                        catalog.apply(job)
            except NeedsOperator as error:
                raise self._refused_piece(statement, piece, error) from error

    def _was_executed(self, origin: Origin) -> bool:
        last = self._client.last_ddl_origin(origin.source)
        return last is not None and origin.place <= last.place

    def _refused_piece(self, statement: Statement, piece: Piece, error: NeedsOperator) -> Refused:
        problem = f"{piece.sql}: {error.problem}"
        broken = NeedsOperator(problem, error.hint, error.code)
        drops = isinstance(parse(piece.sql)[1][0], DropTables)
        names = tuple(name for name in piece.tables[: None if drops else 1] if name[1])
        return _refused(statement, broken, names)

    def _executed(self, piece: Piece, origin: Origin, statement: Statement) -> bool:
        if self._was_executed(origin):
            return False
        meant = self._meant(piece)
        if meant is None:
            return False
        piece, statements = meant, parse(meant.sql)[1]
        for each in statements:
            if isinstance(each, (CreateTable, CreateLike, CreateView)):
                self._ensure_schema(each.ref.schema, piece)
        if not self._are_wanted(piece, statements):
            return False
        context = context_of(
            statement.query.variables(),
            statement.dialect,
            statement.timestamp_s,
            cache(lambda: self._tables.server_defaults),
        )
        try:
            passed = self._passed(piece, context)
            if not passed:
                return False
            if not piece.is_override:
                done = [change for _, changes in passed for change in changes]
                written = statement.query.statement.decode("latin1")
                check_session(
                    piece,
                    statements,
                    done,
                    context,
                    lambda: self._tables.session(),
                    is_mariadb=statement.dialect.flavor is Flavor.MARIADB,
                    says_utf8=may_mean_utf8mb4(statement.dialect) and bool(_UTF8.search(written)),
                )
            sql = together([part for part, _ in passed]).sql
            return bool(self._client.execute_ddl(sql, origin=origin, context=context))
        except NeedsOperator:
            # The source of another merged table may have been slightly faster.
            if self._are_wanted(piece, statements):
                raise
            return False

    def _meant(self, piece: Piece) -> Piece | None:
        """Return a piece without the DROPs of names that are spelled differently here."""
        parts = [
            part
            for part in table_by_table(piece)
            if all(self._means_itself(part, each) for each in parse(part.sql)[1])
        ]
        return together(parts) if parts else None

    def _means_itself(self, piece: Piece, statement: Parsed) -> bool:
        """Return whether a statement's name matches here exactly, and not only in other spelling.

        Where it does not, nothing is to be dropped; any other statement raises `NeedsOperator`.
        """
        for ref in statement.refs:
            name = (ref.schema or "", ref.name)
            if name not in piece.tables or piece.is_override:
                continue
            if not (other := self._tables.namesake(*name)):
                continue
            label = ".".join(filter(None, name))
            if not isinstance(statement, (DropTables, DropSchema)):
                raise two_names(label, other)
            log.warning("%s is not here, and so not dropped; %s is another one", label, other)
            return False
        return True

    def _are_wanted(self, piece: Piece, statements: Sequence[Parsed]) -> bool:
        return all(self._is_wanted(piece, statement) for statement in statements)

    def _ensure_schema(self, schema: str | None, piece: Piece) -> None:
        if schema and self._client.session.schemas.catalog().schema(schema) is None:
            own = next((name for name, _ in piece.tables if name), schema)
            ensure_schema(self._client, schema, self._tables.database_collation(own))

    def _is_wanted(self, piece: Piece, statement: Parsed) -> bool:
        """Return False if another merged table has already brought this statement."""
        if not self._merges or not any(self._rules.router.is_routed(*n) for n in piece.tables):
            return True
        catalog = self._client.session.schemas.catalog()
        if isinstance(statement, CreateSchema):
            wanted = catalog.schema(statement.name) is None
            name = statement.name
        else:
            ref = statement.refs[0]
            name = f"{ref.schema}.{ref.name}"
            wanted = merged.runs(name, statement, catalog.table(ref.schema or "", ref.name))
        if not wanted:
            log.info("%s: nothing to do, several tables are merged here: %s", name, piece.sql)
        return wanted

    def _passed(self, piece: Piece, context: DdlContext) -> list[tuple[Piece, list[SchemaChange]]]:
        planned = [(part, self._planned(part, context)) for part in table_by_table(piece)]
        passed = [
            (part, changes)
            for part, changes in planned
            if all(self._rules.of_ddl(change, part.tables) for change in changes)
        ]
        if len(passed) < len(planned):
            log.info("event rules skip %s", piece.sql)
        return passed

    def _planned(self, piece: Piece, context: DdlContext) -> list[SchemaChange]:
        catalog = self._client.session.schemas.catalog().copy()
        ids = itertools.count(1 << 62)
        jobs = plan_ddl(piece.sql, None, catalog, lambda: next(ids), context)
        return [catalog.apply(job) for job in jobs]


def place_of(statement: Statement) -> str:
    return place_text(statement.end)


def _refused(statement: Statement, error: NeedsOperator, names: Sequence[Name]) -> Refused:
    place = statement.end
    named = NeedsOperator(f"{place_text(place)}: {error.problem}", error.hint, error.code)
    return Refused(named, *names, place=place, is_statement=True)


def _override_of(stored: Mapping[str, Any] | None) -> Override | None:
    if stored is None:
        return None
    return Override(Verb(stored["verb"]), tuple(stored.get("statements", ())))
