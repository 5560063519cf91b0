"""Recruits: chooses the disk for the next replica of a log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from penstock.cluster.disks import Disk, spare_disk
from penstock.cluster.log_entry import LogEntry


class Recruits(NamedTuple):
    """The disks that are candidates for more replicas."""

    disks: Callable[[], Mapping[str, Disk]]
    load: Callable[[], Mapping[str, int]]
    """The number of replicas on each disk."""
    apart: str
    """The label in which replicas must differ; empty for none."""

    def leaving(self) -> set[str]:
        return {disk.id for disk in self.disks().values() if disk.is_leaving}

    def spare(
        self,
        entry: LogEntry,
        *,
        shunned: Collection[str] = (),
        moves_to: str = "",
    ) -> Disk | None:
        """Return the disk for the next replica of a log, None if no disk is suitable.

        A disk that had a replica before is preferred. The disk that the log `moves_to` comes before
        it, and the primary's own disk is then not counted as staying.
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
