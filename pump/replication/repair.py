"""Repairs: repairs damage that a Pump finds on its disk, and tracks the damage that remains.

    found by a read, a scrub, an opening ──> repaired from another disk ── counted, one log line
                                         └─> left: named, counted until found whole or gone

Damage on all disks is reported as in a log without copies; a repair is retried only after a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from penstock.codes import Code
from penstock.errors import Corrupt, PenstockError
from penstock.log.files import Files
from penstock.log.repair import (
    ClosedLog,
    Damage,
    Donor,
    Patch,
    Repaired,
    Salvaged,
    find_damage,
    repair_segment,
)
from penstock.log.segment import BEGIN, Segment
from penstock.log.segments import Place, Segments

log = logging.getLogger(__name__)

_NOT_AGAIN_S = 10.0

Donors = AbstractContextManager[Iterable[Donor]]
Sources = Callable[[], Donors]
"""The other disks that may have a log; none is asked before it is needed."""


class Repairs:
    """The damage that was found and repaired since this Pump started; for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[tuple[str, int], str] = {}
        self.repaired_bytes = 0
        self.repaired_places = 0
        """The number of repairs: one for each segment and occasion."""

    def note(self, path: Path, found: Repaired) -> None:
        if found.put_back:
            with self._lock:
                self.repaired_bytes += found.put_back
                self.repaired_places += 1
            log.warning(
                "%s: %d damaged bytes were put back from another disk [%s]",
                *(path, found.put_back, Code.SEGMENT_DAMAGED),
            )
        self.keep(path, found.left, found.problems)

    def keep(self, path: Path, left: Iterable[Damage], problems: Iterable[str] = ()) -> None:
        named = {(str(path), damage.begin): damage.what for damage in left}
        with self._lock:
            known = {place for place in self._left if place[0] == str(path)}
            for place in known - set(named):
                del self._left[place]
            self._left.update(named)
        why = f" (not mended: {'; '.join(problems)})" if problems else ""
        for name, offset in sorted(set(named) - known):
            error = Corrupt(name, offset, named[name, offset] + why, code=Code.SEGMENT_DAMAGED)
            log.error("damaged, and no other disk has mended it: %s", error)

    def left(self) -> dict[tuple[str, int], str]:
        with self._lock:
            for place in [place for place in self._left if not Path(place[0]).exists()]:
                del self._left[place]
            return dict(self._left)


class ClosedLogRepair:
    """Repairs a log that cannot be opened, one segment for each damage that the opening names."""

    def __init__(
        self,
        folder: Path,
        files: Files,
        repairs: Repairs,
        sources: Sources,
        *,
        catching_up: Callable[[], Place | None] = lambda: None,
        again_s: float = _NOT_AGAIN_S,
    ) -> None:
        """After an attempt that did not help, the next attempt is made `again_s` later.

        `catching_up` returns the start of the part of a replica whose frames prove nothing.
        """
        self._again_s = again_s
        self._folder = folder
        self._files = files
        self._repairs = repairs
        self._sources = sources
        self._catching_up = catching_up
        self._not_before_s = 0.0
        self._unrepaired: tuple[str, int] | None = None
        """The damage that the last attempt could not repair."""
        self._hopeless: tuple[str, int] | None = None

    def is_hopeless(self, damage: Corrupt) -> bool:
        """Return whether repair failed twice: at first the other disks may be starting."""
        is_tried = Path(damage.path).suffix == ".seg"
        return not is_tried or self._hopeless == (damage.path, damage.offset)

    def __call__(self, damage: Corrupt) -> bool:
        path = Path(damage.path)
        if path.suffix != ".seg" or time.monotonic() < self._not_before_s:
            return False
        try:
            catching_up = self._catching_up()
            with self._sources() as sources:
                closed = ClosedLog(self._files, self._folder, catching_up)
                found = closed.repair(int(path.stem), list(sources))
        except (PenstockError, OSError) as error:
            log.error("%s cannot be mended: %s", path, error)
            return False
        self._repairs.note(path, found)
        if not found.put_back:
            self._not_before_s = time.monotonic() + self._again_s
        place = None if found.put_back else (damage.path, damage.offset)
        self._hopeless = place if place == self._unrepaired else None
        self._unrepaired = place
        return found.put_back > 0


class OwnLogRepair:
    """Repairs the open log that this process is the primary of."""

    def __init__(
        self,
        own_log: Segments,
        files: Files,
        repairs: Repairs,
        *,
        sources: Sources,
        acknowledged: Callable[[], Place],
    ) -> None:
        self._log = own_log
        self._files = files
        self._repairs = repairs
        self._sources = sources
        self._acknowledged = acknowledged
        self._lock = threading.Lock()
        self._not_before_s: dict[int, float] = {}

    def end(self, segment: Segment) -> int:
        """Return up to where a segment can be repaired: acknowledged data is on other disks."""
        place = self._acknowledged()
        if segment.number < place.segment:
            return segment.end
        return min(segment.end, place.offset) if segment.number == place.segment else BEGIN

    def __call__(self, number: int) -> bool:
        """Repair a whole segment and return whether that may have helped; may take seconds."""
        with self._lock:
            if time.monotonic() < self._not_before_s.get(number, 0.0):
                return False
            segment = self._log.find(number)
            if segment is None:
                return False
            found = self._repaired(segment, None)
            if found.left:
                self._not_before_s[number] = time.monotonic() + _NOT_AGAIN_S
            return bool(found.put_back) or not found.left

    def repair(self, segment: Segment, damages: Iterable[Damage]) -> None:
        with self._lock:
            self._repaired(segment, damages)

    def _repaired(self, segment: Segment, damages: Iterable[Damage] | None) -> Repaired:
        try:
            file = self._files.open(segment.path, writable=True)
        except OSError as error:
            log.error("%s cannot be mended: %s [%s]", segment.path, error, Code.DISK_FAILING)
            return Repaired(0, (Damage(0, BEGIN, str(error)),))

        def write(patch: Patch) -> None:
            file.write([patch.data], patch.offset)
            file.sync()

        try:
            salvaged, end = Salvaged(file), self.end(segment)
            if damages is None:
                damages = find_damage(salvaged, 0, end, segment.seed)
            damages = [damage for damage in damages if damage.end <= end]
            with self._sources() as sources:
                found = repair_segment(
                    *(salvaged, segment.number, segment.seed, damages), sources=sources, write=write
                )
        except OSError as error:
            log.error("%s cannot be mended: %s [%s]", segment.path, error, Code.LOG_WRITE_FAILED)
            return Repaired(0, (Damage(0, BEGIN, str(error)),))
        finally:
            file.close()
        self._repairs.note(segment.path, found)
        return found
