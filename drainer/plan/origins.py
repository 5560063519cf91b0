"""Transactions that a source passes on are applied once, however often it passes them on (pure).

    place      epoch, file, position of an origin: grows strictly within a source
    seen       the last place of each source, kept in the checkpoint: it moves with the changes

A source that was killed begins again at what it remembers, which may be before what it brought
in. Since it commits in the order of its places, whatever is not beyond the last one seen is there
already.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from penstock.wire.binlog import Origin, Place

log = logging.getLogger(__name__)


class Origins:
    """What was seen of each source so far, in the order of the merged stream."""

    def __init__(self, seen: Mapping[str, Place]) -> None:
        """Go on from a checkpoint's places."""
        self._seen: Mapping[str, Place] = dict(seen)
        self._is_shared = False
        self.repeated = 0
        """How many transactions were here before."""

    def is_repeated(self, ts: int, origin: Origin | None) -> bool:
        """Tell whether a transaction was here before; it is then counted, now and then logged."""
        if origin is None:
            return False
        last = self._seen.get(origin.source)
        if last is None or origin.place > last:
            return False
        self.repeated += 1
        if self.repeated & (self.repeated - 1) == 0:  # The 1st, 2nd, 4th, 8th … of them.
            log.warning(
                "transaction %d is from %s, %s, which was here before (the last one: %s):"
                " it is left out, the %d. of this kind",
                ts, origin.source, origin.place, last, self.repeated,
            )  # fmt: skip
        return True

    def note(self, origin: Origin | None) -> None:
        """Take a transaction that was not here before as seen."""
        if origin is None:
            return
        if self._is_shared:
            self._seen, self._is_shared = dict(self._seen), False
        assert isinstance(self._seen, dict)
        self._seen[origin.source] = origin.place

    def now(self) -> Mapping[str, Place]:
        """Return the last place of each source, as it is now and stays for whoever holds it."""
        self._is_shared = True
        return self._seen
