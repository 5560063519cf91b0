"""The outputs of a stream: rows, ends of transactions, statements, skipped events, refusals."""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import NeedsOperator
from pumpclient.mysql.events.statements import Query
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.translate.statements.statement_text import Dialect
from pumpclient.mysql.translate.transcoding.transcode import EncodedChanges, Transcoder


class Refused(NeedsOperator):
    """An event at `place` cannot be followed; `tables` are the server's tables it concerns.

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
    """The rows of one event, in the transaction that is open."""

    transcoder: Transcoder
    changes: EncodedChanges


class RowsLeftOut(NamedTuple):
    """A skipped event of the open transaction; `rows` is None where they cannot be counted.

    `table` is None for an event without a table.
    """

    table: tuple[str, str] | None
    rows: int | None


class Undone(NamedTuple):
    """All rows since the last end are skipped, as an operator wants."""


class Finished(NamedTuple):
    """All rows since the last `Finished` are a transaction; without rows only time moves."""

    begin: Location
    end: Location
    gtid: str
    timestamp_s: int


class Statement(NamedTuple):
    """A QUERY that does more than frame a transaction: DDL, or an unexpected statement."""

    query: Query
    dialect: Dialect
    begin: Location
    end: Location
    gtid: str
    timestamp_s: int
    is_of_session: bool = False
    """It used a temporary table, or another object that only its session has."""


Output = TableChanges | RowsLeftOut | Undone | Finished | Statement
