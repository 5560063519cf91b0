"""What a Pump says of itself as it stops: what it holds, and how much of that is open."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.cluster.last_word import LastWord
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pump.store.storage import Storage

log = logging.getLogger(__name__)


def last_word_of(node_id: str, storage: Storage) -> LastWord | None:
    """Return it, once nothing is written any more; None when the Pump's index cannot be read."""
    try:
        up_to_ts = storage.holds_up_to_ts()
    except PenstockError as error:
        log.error("it cannot be said up to where this Pump holds transactions: %s", error)
        return None
    return LastWord(
        pump=node_id,
        up_to_ts=up_to_ts,
        open_count=len(storage.unmatched()),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )
