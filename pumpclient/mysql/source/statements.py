"""A server's DDL becomes the cluster's: piece by piece, each with an origin, so each once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from penstock.ddl import plan_ddl
from penstock.ddl.parse import parse
from penstock.ddl.statements import CreateTable
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.model import Origin
from pumpclient.client import PumpClient
from pumpclient.mysql.source.tables import ensure_schema
from pumpclient.mysql.translate.ddl import (
    Piece,
    Ruling,
    Translation,
    Translator,
    Verb,
    origins_of,
)
from pumpclient.mysql.translate.online import Kept, OnlineDdl
from pumpclient.mysql.translate.outputs import Statement
from pumpclient.mysql.translate.sql import plain_text, statement_text

log = logging.getLogger(__name__)


class Statements:
    """Executes the statements of one source."""

    def __init__(self, client: PumpClient, rules: Rules, online: OnlineDdl | None) -> None:
        """Execute through `client` what `rules` let pass."""
        self._client = client
        self._rules = rules
        self._translator = Translator(
            is_replicated=rules.is_replicated, target=rules.target, online=online
        )

    def translate(
        self, statement: Statement, kept: Kept, rulings: Mapping[str, Mapping[str, Any]]
    ) -> Translation:
        """Return what a statement comes to; raise `NeedsOperator`, naming its place."""
        place = place_of(statement)
        ruling = _ruling(rulings.get(place))
        schema = statement.query.schema.decode()
        try:
            text = ""
            if ruling is None or ruling.verb is Verb.INJECT:
                mode = statement.query.variables().sql_mode or 0
                text = plain_text(statement_text(statement.query), mode, statement.dialect)
            return self._translator.translate(text, schema, kept, ruling)
        except NeedsOperator as error:
            raise NeedsOperator(f"{place}: {error.problem}", hint=error.hint) from error

    def execute(self, statement: Statement, translation: Translation, origin: Origin) -> int:
        """Execute all pieces that were not executed before; return how many were.

        Raises `NeedsOperator`, naming place and statement, and `Retryable`.
        """
        place = place_of(statement)
        if translation.skipped:
            log.info("%s: left out, %s", place, translation.skipped)
        done = 0
        origins = origins_of(origin, len(translation.pieces))
        for piece, own in zip(translation.pieces, origins, strict=True):
            try:
                done += self._executed(piece, own)
            except NeedsOperator as error:
                raise NeedsOperator(
                    f"{place}: {piece.sql}: {error.problem}", hint=error.hint
                ) from error
        return done

    def _executed(self, piece: Piece, origin: Origin) -> bool:
        for statement in parse(piece.sql)[1]:
            if isinstance(statement, CreateTable) and statement.refs[0].schema:
                ensure_schema(self._client, statement.refs[0].schema)
        if self._is_merged(piece) and self._is_there_already(piece, origin):
            log.info("another table of the same target brought this already: %s", piece.sql)
            return False
        return bool(self._client.execute_ddl(piece.sql, origin=origin))

    def _is_merged(self, piece: Piece) -> bool:
        return any(self._rules.router.is_routed(*name) for name in piece.tables)

    def _is_there_already(self, piece: Piece, origin: Origin) -> bool:
        """Tell whether a statement of one of several merged tables has nothing left to do.

        What fails to plan because an earlier table's statement did the same is there already.
        """
        last = self._client.last_ddl_origin(origin.source)
        if last is not None and origin.place <= last.place:
            return False  # Done by ourselves; `execute_ddl` knows.
        catalog = self._client.session.schemas.catalog()
        try:
            plan_ddl(piece.sql, None, catalog, lambda: 1)
        except NeedsOperator as error:
            return is_repetition(error)
        return False


_REPEATED = ("already exists", "exists already", "duplicate column", "duplicate key", "there is no")


def is_repetition(error: NeedsOperator) -> bool:
    """Tell whether a plan failed because what it makes is there, or what it drops is not."""
    return any(words in error.problem.lower() for words in _REPEATED)


def place_of(statement: Statement) -> str:
    """Return the text by which operators name a statement's place."""
    return f"{statement.end.file}:{statement.end.position}"


def _ruling(told: Mapping[str, Any] | None) -> Ruling | None:
    if told is None:
        return None
    return Ruling(Verb(told["verb"]), tuple(told.get("statements", ())))


Translate = Callable[[Statement, Kept], Translation]
