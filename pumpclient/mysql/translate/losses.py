"""Events that say that changes of data are not in rows: none of them may pass."""

from __future__ import annotations

from penstock.errors import NeedsOperator
from pumpclient.mysql.events import Event, StatementPart
from pumpclient.mysql.events.notes import Incident
from pumpclient.mysql.relay.layout import Location


def refuse_losses(event: Event, place: Location) -> None:
    """Raise `NeedsOperator` for an event at `place` with which changes are lost."""
    if isinstance(event, Incident):
        raise NeedsOperator(
            f"the server says at {place} that its binlog lacks changes: {event}",
            hint="compare the tables, load them anew, and begin behind this place",
        )
    if isinstance(event, StatementPart):
        raise NeedsOperator(
            f"{event.type.name} at {place}: LOAD DATA in statement format",
            hint="set the server's binlog_format to ROW and reconnect its clients",
        )
