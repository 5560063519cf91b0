"""Outputs of a stream: rows, ends of transactions, statements, what is left out, refusals."""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import NeedsOperator
from pumpclient.mysql.events.statements import Query
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.translate.statements.statement_text import Dialect
from pumpclient.mysql.translate.transcoding.transcode import EncodedChanges, Transcoder


class Refused(NeedsOperator):
    """Something at `place` cannot be followed; `tables` of the server are those that it is about.

    An override that names the place, or one of the tables, lets the source continue.
    """

    def __init__(
        self,
        error: NeedsOperator,
        *tables: Name,
        place: Location | None = None,
        is_statement: bool = False,
    ) -> None:
        super().__init__(error.problem, hint=error.hint, code=error.code)
        self.tables = tables
        self.place = place
        self.is_statement = is_statement


def place_text(place: Location) -> str:
    return f"{place.file}:{place.position}"


class TableChanges(NamedTuple):
    """The rows of one event, of the transaction that is open."""

    transcoder: Transcoder
    changes: EncodedChanges


class RowsLeftOut(NamedTuple):
    """An event of the open transaction that is left out; `rows` None where they cannot be counted.

    `table` is None for an event that is no table's.
    """

    table: tuple[str, str] | None
    rows: int | None


class Undone(NamedTuple):
    """All rows since the last end are left out, as an operator wants."""


class Finished(NamedTuple):
    """All rows since the last one of these are a transaction; none were: only time moves."""

    begin: Location
    end: Location
    gtid: str
    timestamp_s: int


class Statement(NamedTuple):
    """A QUERY that is more than a frame: DDL, or what should be none."""

    query: Query
    dialect: Dialect
    begin: Location
    end: Location
    gtid: str
    timestamp_s: int
    is_of_session: bool = False
    """It used a temporary table, or something else that only its session has."""


Output = TableChanges | RowsLeftOut | Undone | Finished | Statement
