"""The GTIDs that a source has brought in or left out, as far as it is."""

from __future__ import annotations

from pumpclient.mysql.events import body_of
from pumpclient.mysql.events.files import GtidList, PreviousGtids
from pumpclient.mysql.events.frame import Checksum, EventType
from pumpclient.mysql.gtid import Flavor, GtidSet, MariadbGtid, MariadbGtidSet, parse_gtid_set

LISTS = (int(EventType.GTID_LIST), int(EventType.PREVIOUS_GTIDS))
"""The types of events that tell what all earlier files have."""


class SeenGtids:
    """Grows with each transaction, and with the list at a file's beginning."""

    def __init__(self, text: str, flavor: Flavor) -> None:
        """Begin with a checkpoint's."""
        self._flavor = flavor
        self._gtids: GtidSet = parse_gtid_set(text, flavor)

    def __str__(self) -> str:
        """Return them as the server writes them."""
        return str(self._gtids)

    def copy(self) -> GtidSet:
        """Return a set of its own that is equal."""
        return self._gtids.copy()

    def clear(self) -> None:
        """Forget all: the server's history begins anew."""
        self._gtids = parse_gtid_set("", self._flavor)

    def add(self, gtid: str) -> None:
        """Add a transaction, as the assembler tells it."""
        if isinstance(self._gtids, MariadbGtidSet):
            self._gtids.add(MariadbGtid(*map(int, gtid.split("-"))))
        else:
            self._gtids = self._gtids.union(type(self._gtids).parse(gtid))

    def add_list(self, type_: int, event: bytes, checksum: Checksum) -> None:
        """Add what all earlier files have; everything there was brought in or left out."""
        body = body_of(event, checksum)
        if isinstance(self._gtids, MariadbGtidSet):
            if type_ == EventType.GTID_LIST:
                self._gtids = self._gtids.union(GtidList.decode(body).gtids)
        elif type_ == EventType.PREVIOUS_GTIDS:
            self._gtids = self._gtids.union(PreviousGtids.decode(body).gtids)
