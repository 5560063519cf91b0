"""Single rows: a change as the messages of formats in which a message is a row."""

from __future__ import annotations

from collections.abc import Iterator

from drainer.task.events.encoder import RowEvent, Values
from drainer.task.events.topics.destination import Destination

Change = tuple[str, Values | None, Values]
"""Type of message, the row before if it is included, and the row."""


def changes_of(event: RowEvent, destination: Destination) -> Iterator[Change]:
    """Yield a change's messages: two if the row's key changes and destinations use the key."""
    before, after = event.before, event.after
    if before is None:
        assert after is not None, "a change has a row before or after"
        yield "INSERT", None, after
    elif after is None:
        yield "DELETE", None, before
    elif destination.goes_by_key and destination.moves(before, after):
        yield "DELETE", None, before
        yield "INSERT", None, after
    else:
        yield "UPDATE", before, after
