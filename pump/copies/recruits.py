"""Recruits: the disk that a log's next copy goes to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from penstock.cluster.disks import Disk, spare_disk
from penstock.cluster.log_entry import LogEntry


class Recruits(NamedTuple):
    """Where disks for more copies come from."""

    disks: Callable[[], Mapping[str, Disk]]
    load: Callable[[], Mapping[str, int]]
    """How many copies each disk has."""
    apart: str
    """The label in which copies must differ; empty: none."""

    def leaving(self) -> set[str]:
        return {disk.id for disk in self.disks().values() if disk.is_leaving}

    def spare(
        self,
        entry: LogEntry,
        *,
        shunned: Collection[str] = (),
        moves_to: str = "",
    ) -> Disk | None:
        """Return the disk for the next copy of a log, None when there is none.

        One that has taken part before goes first, and before it the one that the log `moves_to`;
        then the primary's own does not count as one that stays.
        """
        disks, leaving = self.disks(), self.leaving()
        listed = [copy.disk for copy in (entry.primary, *entry.replicas)]
        barred = {*listed, *leaving, *shunned}
        if moves_to in disks and moves_to not in (*listed, *leaving):
            return disks[moves_to]
        for copy in entry.eligible:
            if copy.disk in disks and copy.disk not in barred:
                return disks[copy.disk]
        stay = [] if moves_to else listed[:1]
        stay += [disk for disk in listed[1:] if disk not in leaving]
        return spare_disk(disks.values(), stay, barred=barred, apart=self.apart, load=self.load())
