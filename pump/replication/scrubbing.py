"""Scrubbing: reads all logs on a Pump's disk periodically, at a bounded rate, and repairs damage.

    due, or asked for ── each segment of the own log, then of each replica ── read, checked ── pause
                                                                               └─ damaged: repaired

Data that is never read can become corrupted on every disk without being detected. Bytes in the
kernel's page cache prove nothing about the disk. The kernel is therefore made to drop the pages of
a sealed segment before the read, and again after it, so that they do not displace data of pulls.

The time of the last scrub is kept in the data folder, so that a Pump that restarts every few days
is scrubbed as well.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from penstock.codes import Code
from penstock.errors import PenstockError, coded
from penstock.log import repair
from penstock.log.files import File, Files, replace_file
from penstock.log.repair import Salvaged, find_damage
from penstock.log.segment import Segment
from penstock.node.output import NO_TEXT
from penstock.waiting import set_within
from pump.replication.repair import OwnLogRepair, Repairs
from pump.replication.replicas import Replicas
from pump.store.storage import Storage

log = logging.getLogger(__name__)

_DONE_FILE = ".scrubbed"
_LOOK_EVERY_S = 30.0
_BEHIND_S = 1.0
_BLOCK_BYTES = 128 << 10
"""Checking one block takes half a millisecond, for which a writer's thread may have to wait."""
_DAY_S = 86400.0
_SHOWN_MAX = 20
_FILES = Files()


class ScrubState(StrEnum):
    """The state of reading all data on the disk."""

    NEVER = "never"
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A corrupted place that no other disk could repair."""

    place: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubFacts:
    """The last scrub or the current one, and the repairs since the start."""

    scrub: str
    scrub_state: ScrubState = field(metadata=NO_TEXT)
    mended: str | None
    damaged_places: int | None
    damages: tuple[Damage, ...] | None


class Scrubbed(NamedTuple):
    """One log to scrub."""

    segments: Callable[[], Sequence[Segment]]
    """Its segments, oldest first."""
    end: Callable[[Segment], int]
    """The offset up to which a segment must be whole."""
    ends_anywhere: bool
    """True for a replica, whose last segment may end within a frame."""
    repair: Callable[[Segment, Sequence[repair.Damage]], None]


def own_log(storage: Storage, own_repair: OwnLogRepair | None, repairs: Repairs) -> Scrubbed:
    """Return this Pump's log; without `own_repair`, its damage is only reported."""

    def segments() -> list[Segment]:
        found = (storage.log.find(link[0]) for link in storage.log.links())
        return [segment for segment in found if segment is not None]

    if own_repair is None:
        return Scrubbed(
            segments,
            end=lambda segment: segment.synced,
            ends_anywhere=False,
            repair=lambda segment, damages: repairs.keep(segment.path, damages),
        )
    return Scrubbed(segments, end=own_repair.end, ends_anywhere=False, repair=own_repair.repair)


def copy_of(copies: Replicas, node_id: str) -> Scrubbed:
    return Scrubbed(
        lambda: copies.segments(node_id),
        end=lambda segment: segment.synced,
        ends_anywhere=True,
        repair=lambda segment, damages: copies.repair(node_id, segment, damages),
    )


class Scrubbing:
    """The scrubs of one Pump; for one event loop, except the values for metrics and status."""

    def __init__(
        self,
        folder: Path,
        logs: Callable[[], Sequence[Scrubbed]],
        repairs: Repairs,
        *,
        bytes_per_s: float,
        every_days: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`folder` keeps the time of the last scrub; with `every_days` 0, only requests scrub."""
        self._folder = folder
        self.bytes_per_s = bytes_per_s
        self._every_days = every_days
        self._logs = logs
        self._clock = clock
        self._asked = asyncio.Event()
        self._stop = threading.Event()
        self._total = self._done = 0
        self._begun_s: float | None = None
        self._report = ""
        self._ended = ScrubState.NEVER
        self._unread: list[Path] = []
        self.last_s = self._last_s()
        """End of the last scrub, in seconds since 1970; a new Pump uses its start."""
        self.repairs = repairs
        self.scrubbed_bytes = 0
        """Bytes read since this Pump started."""

    @property
    def is_running(self) -> bool:
        return self._begun_s is not None

    def ask(self) -> str:
        if self.is_running:
            return f"a scrub is under way: {self.progress()}"
        size = sum(segment.end for each in self._logs() for segment in each.segments())
        self._asked.set()
        rate = self.bytes_per_s
        return f"a scrub begins: {_mb(size)} at {_mb(rate)}/s, about {size / rate:.0f} s"

    def progress(self) -> str:
        begun_s = self._begun_s
        if begun_s is None:
            return "begins" if self._asked.is_set() else self._report or "not since the start"
        done, total = self._done, max(self._total, self._done, 1)
        left_s = (total - done) / self.bytes_per_s
        percent = 100 * done // total
        return f"reads {percent} % of {_mb(total)}, about {left_s:.0f} s left"

    def facts(self) -> ScrubFacts:
        repairs, left = self.repairs, self.repairs.left()
        damages = [
            Damage(place=f"{path} offset {offset}", summary=about)
            for (path, offset), about in sorted(left.items())[:_SHOWN_MAX]
        ]
        state = ScrubState.PENDING if self._asked.is_set() else self._ended
        mended = f"{repairs.repaired_bytes} bytes at {repairs.repaired_places} occasions"
        return ScrubFacts(
            scrub=self.progress(),
            scrub_state=ScrubState.RUNNING if self.is_running else state,
            mended=mended if repairs.repaired_places else None,
            damaged_places=len(left) or None,
            damages=tuple(damages) or None,
        )

    async def run(self) -> None:
        """Scrub whenever due; ends only by cancellation, and then with its thread."""
        while True:
            if not (self._asked.is_set() or self._is_due()):
                await set_within(self._asked, _LOOK_EVERY_S)
                continue
            self._begun_s = time.monotonic()  # A request is always visible as pending or running.
            self._asked.clear()
            scrub = asyncio.ensure_future(asyncio.to_thread(self.scrub))
            try:
                await asyncio.shield(scrub)
            except asyncio.CancelledError:
                self._stop.set()
                await scrub
                raise
            except (PenstockError, OSError) as error:
                self._report = f"interrupted: {coded(error)}"
                self._ended = ScrubState.INTERRUPTED
                log.error("scrub: %s", self._report)
                await asyncio.sleep(_LOOK_EVERY_S)

    def scrub(self) -> None:
        """Read everything once; raises `OSError` if its completion cannot be stored."""
        self._begun_s, begun = time.monotonic(), time.monotonic()
        before = self.repairs.repaired_places
        try:
            logs = self._logs()
            self._done = 0
            self._unread = []
            self._total = sum(each.end(s) for each in logs for s in each.segments())
            log.info("scrub: reading %s", _mb(self._total))
            for each in logs:
                for segment in each.segments():
                    if self._stop.is_set():
                        return
                    self._read(each, segment)
            self.last_s = self._clock()
            self._note(self.last_s)
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.last_s))
            mended, left = self.repairs.repaired_places - before, len(self.repairs.left())
            self._report = (
                f"{when}: {_mb(self._done)} read, mended at {mended} places,"
                f" {left} places are damaged still"
            )
            self._ended = ScrubState.DONE
            if self._unread:
                names = ", ".join(map(str, self._unread[:_SHOWN_MAX]))
                self._report = f"interrupted: {self._report}, and cannot be read: {names}"
                self._ended = ScrubState.INTERRUPTED
            log.info("scrub: %s, in %.0f s", self._report, time.monotonic() - begun)
        finally:
            self._begun_s = None

    def _read(self, each: Scrubbed, segment: Segment) -> None:
        is_last = not any(other.number > segment.number for other in each.segments())
        end = each.end(segment)  # Later appends belong to the next scrub.
        try:
            file = _FILES.open(segment.path)
            try:
                paced = _Paced(file, self, forgets=not is_last)
                damages = list(find_damage(Salvaged(paced), 0, end, segment.seed, _BLOCK_BYTES))
            finally:
                file.close()
        except OSError as error:
            if segment in each.segments():  # Otherwise it was purged during the scrub.
                log.error("scrub: %s: %s [%s]", segment.path, error, Code.DISK_FAILING)
                self._unread.append(segment.path)
            return
        if self._stop.is_set():
            return
        if each.ends_anywhere and is_last and damages and not damages[-1].is_followed:
            del damages[-1]
        if damages and segment in each.segments():  # A replica may have been cut during the scrub.
            end = each.end(segment)
            damages = [damage for damage in damages if damage.end <= end]
        if not damages:
            self.repairs.keep(segment.path, ())
            return
        try:
            each.repair(segment, damages)
        except (PenstockError, OSError) as error:
            log.error("scrub: %s cannot be mended now: %s", segment.path, error)
            self.repairs.keep(segment.path, damages)

    def note_read(self, length: int) -> None:
        self.scrubbed_bytes += length
        self._done += length

    def wait(self, length_s: float) -> None:
        self._stop.wait(length_s)

    def _is_due(self) -> bool:
        every_s = self._every_days * _DAY_S
        return every_s > 0 and self._clock() - self.last_s >= every_s

    def _last_s(self) -> float:
        try:
            return float((self._folder / _DONE_FILE).read_text(encoding="ascii"))
        except (OSError, ValueError):
            now_s = self._clock()
        try:
            self._note(now_s)
        except OSError as error:  # A Pump still serves while its disk is full.
            log.warning("the time of the first scrub is not set durably: %s", error)
        return now_s

    def _note(self, done_s: float) -> None:
        replace_file(self._folder / _DONE_FILE, f"{done_s:.0f}\n".encode())


class _Paced:
    """A file that is read from the disk, at a bounded rate."""

    def __init__(self, file: File, scrubbing: Scrubbing, *, forgets: bool) -> None:
        self._file = file
        self._scrubbing = scrubbing
        self._forgets = forgets
        self._due_s = time.monotonic()

    def read(self, offset: int, length: int) -> bytes:
        if self._forgets:
            self._file.forget(offset, length)
        data = self._file.read(offset, length)
        if self._forgets:
            self._file.forget(offset, length)
        self._scrubbing.note_read(len(data))
        now_s = time.monotonic()
        # After a pause, such as for a repair, it does not catch up.
        self._due_s = max(self._due_s, now_s - _BEHIND_S) + len(data) / self._scrubbing.bytes_per_s
        self._scrubbing.wait(max(0.0, self._due_s - now_s))
        return data


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
