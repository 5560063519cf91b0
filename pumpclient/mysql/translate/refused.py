"""Refused: what of a server's stream cannot be followed, with the place and the table it is of."""

from __future__ import annotations

from penstock.errors import NeedsOperator
from pumpclient.mysql.relay.layout import Location

Name = tuple[str, str]


class Refused(NeedsOperator):
    """Something at `place` cannot be followed; `tables` of the server are those that it is about.

    An override that names the place, or one of the tables, lets the source go on.
    """

    def __init__(
        self,
        error: NeedsOperator,
        *tables: Name,
        place: Location | None = None,
        is_statement: bool = False,
    ) -> None:
        super().__init__(error.problem, hint=error.hint)
        self.tables = tables
        self.place = place
        self.is_statement = is_statement


def place_text(place: Location) -> str:
    """Return the text by which operators name a place in a server's binlog."""
    return f"{place.file}:{place.position}"
