"""What a group of transactions is made of, and what remembers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.wire.binlog import Origin
from pumpclient.changes import ChangeSet


class GroupJournal(Protocol):
    """Remembers, on a disk, which transactions may be open on which Pump."""

    def begin(self, node_id: str, start_ts: range) -> None:
        """Note a group before its Prewrites are sent; durable when this returns."""

    def decide(self, start_ts: range, commit_ts: range) -> None:
        """Note that a group is to be committed, before its first Commit is sent; durable, too."""

    def end(self, start_ts: range) -> None:
        """Note that a group is settled."""


@dataclass(slots=True)
class Pending:
    """One transaction to be committed; it has an origin when a source passes it on."""

    changes: ChangeSet
    origin: Origin | None
