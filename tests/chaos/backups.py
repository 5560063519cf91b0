"""Backups of etcd, what each restore put back, and which lines of the Pumps that explains.

A Pump may say that the list of a log was put back (PS-3312) from the restore on until that log is
whole again, and only of a log whose list the restore has changed.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from penstock.local.etcd import EtcdServer
from tests.kit.crash import etcd_backup

Sizes = Mapping[str, int]
"""How long the output of each Pump is."""


@dataclass(frozen=True, slots=True)
class Backup:
    """What etcd had at a moment, by `time.monotonic`."""

    path: Path
    taken_s: float

    @classmethod
    def taken(cls, etcd: EtcdServer, to: Path) -> Self:
        return cls(etcd_backup.take(etcd, to), time.monotonic())


@dataclass(slots=True)
class Restore:
    """One restore of etcd."""

    age_s: float
    """How old the backup was."""
    logs: frozenset[str]
    """Those whose list was another one before."""
    begun: Sizes
    ended: dict[str, Sizes] = field(default_factory=dict)
    """By logs, once each is whole again."""

    def windows(self, name: str) -> dict[str, range]:
        """Return by logs within which bytes of a process's output their lists were put back."""
        if name not in self.begun:
            return {}
        ends = {log: self.ended.get(log, {}).get(name, sys.maxsize) for log in self.logs}
        return {log: range(self.begun[name], end) for log, end in ends.items()}

    def __str__(self) -> str:
        return f"{self.age_s:.0f} s old, {len(self.logs)} lists"
