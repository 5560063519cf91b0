"""MariaDB's GTIDs: domain-server-sequence, and the position in each domain.

A set holds, for each domain, the largest sequence number of each server that wrote in it. The
domain's position is the largest of these: sequence numbers grow within a domain whoever writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self

from penstock.errors import Malformed

_GTID = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})", re.ASCII)
_U32_END = 1 << 32
_U64_END = 1 << 64
_HINT = "MariaDB writes one as 0-1-100, several with commas between them"


class MariadbGtid(NamedTuple):
    """One transaction's id."""

    domain: int
    server: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the id that `text` names; raise `Malformed` when it is none."""
        found = _GTID.fullmatch(text.strip())
        if found is None:
            raise Malformed(f"{text!r} is no MariaDB GTID", hint=_HINT)
        domain, server, sequence = map(int, found.groups())
        if domain >= _U32_END or server >= _U32_END or sequence >= _U64_END:
            raise Malformed(f"{text!r} has a number that is too large", hint=_HINT)
        return cls(domain, server, sequence)

    def __str__(self) -> str:
        """Return the text that MariaDB writes."""
        return f"{self.domain}-{self.server}-{self.sequence}"


class MariadbGtidSet:
    """Positions in domains; changed by `add` only."""

    __slots__ = ("_domains",)

    def __init__(self, gtids: Iterable[MariadbGtid] = ()) -> None:
        """Hold the largest sequence number of each domain and server among `gtids`."""
        self._domains: dict[int, dict[int, int]] = {}
        for gtid in gtids:
            self.add(gtid)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the set that `text` names; raise `Malformed` when it is none."""
        text = text.strip()
        return cls(map(MariadbGtid.parse, text.split(",")) if text else ())

    def add(self, gtid: MariadbGtid) -> None:
        """Advance to `gtid`; what is already behind the position changes nothing."""
        servers = self._domains.setdefault(gtid.domain, {})
        if gtid.sequence >= servers.get(gtid.server, 0):
            servers[gtid.server] = gtid.sequence

    def copy(self) -> MariadbGtidSet:
        """Return an independent set that is equal."""
        return MariadbGtidSet(self)

    def __iter__(self) -> Iterator[MariadbGtid]:
        """Yield the last id of each server in each domain, in order."""
        for domain, servers in sorted(self._domains.items()):
            for server, sequence in sorted(servers.items()):
                yield MariadbGtid(domain, server, sequence)

    def position(self) -> list[MariadbGtid]:
        """Return the last id of each domain: what a replica tells a server to start behind."""
        return [
            MariadbGtid(domain, server, sequence)
            for domain, servers in sorted(self._domains.items())
            for server, sequence in [max(servers.items(), key=lambda item: item[1])]
        ]

    def __contains__(self, gtid: MariadbGtid) -> bool:
        """Tell whether `gtid` is at or behind the position of its domain."""
        return gtid.sequence <= self._last(gtid.domain)

    def contains(self, other: MariadbGtidSet) -> bool:
        """Tell whether no position of `other` is beyond the one here."""
        return all(gtid in self for gtid in other.position())

    def union(self, other: MariadbGtidSet) -> MariadbGtidSet:
        """Return what is behind the position of either."""
        return MariadbGtidSet([*self, *other])

    def subtract(self, other: MariadbGtidSet) -> MariadbGtidSet:
        """Return the ids of this set that are beyond the positions of `other`."""
        return MariadbGtidSet(gtid for gtid in self if gtid not in other)

    def intersect(self, other: MariadbGtidSet) -> MariadbGtidSet:
        """Return the ids of either that are at or behind the positions of the other."""
        mine = [gtid for gtid in self if gtid in other]
        return MariadbGtidSet([*mine, *(gtid for gtid in other if gtid in self)])

    def _last(self, domain: int) -> int:
        return max(self._domains.get(domain, {}).values(), default=-1)

    def __bool__(self) -> bool:
        """Tell whether there is any position."""
        return bool(self._domains)

    def __eq__(self, other: object) -> bool:
        """Tell whether both know the same ids."""
        return isinstance(other, MariadbGtidSet) and self._domains == other._domains

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        """Return the text that MariaDB writes for its binlog state."""
        return ",".join(map(str, self))

    def __repr__(self) -> str:
        """Return the set as a call."""
        return f"MariadbGtidSet.parse({str(self)!r})"
