"""Follows a relay log while it grows, event after event, across files and sub-directories.

    sub-directories     the next starts once it has a file: another server, or RESET MASTER
      files             the next starts once it exists: the file before it is complete then
        reads           up to the last complete event; it waits for the rest of a partial event
          waits         for the writer of this process, or for the clock without such a writer

A file's end may be torn where its sub-directory ends: the incomplete part was never more than half
of a transaction, and the next server sends it again. Anywhere else it is damage.

Readers in the writer's process wait on `Growth`, for the writer and not on a clock, and take from
it what was just written. The first reader that takes it has it; another reads the file.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator
from pumpclient.mysql.events.frame import FILE_MAGIC, HEADER, HEADER_SIZE
from pumpclient.mysql.protocol.server import RELOAD_ALL
from pumpclient.mysql.relay.layout import FIRST_POSITION, FileName, Location, files_in, sub_dirs_of

_BLOCK_BYTES = 1 << 20
_HANDED_BYTES_MAX = 4 << 20


class Growth:
    """Reported by the writer, awaited by readers; reporting never blocks.

    The writer also hands over what it has written. A reader that has come to it takes it and does
    not read the file. Of what no reader takes, only a bounded part is kept.
    """

    def __init__(self, linger_s: float = 0.0) -> None:
        """What is reported within `linger_s` after a reader was woken must not wake it again."""
        self.linger_s = linger_s
        self._grown = threading.Condition()
        self._end: Location | None = None
        self._runs: deque[tuple[Location, list[bytes], int]] = deque()
        self._handed_bytes = 0

    @property
    def end(self) -> Location | None:
        """The end of the last complete event visible to readers; None before the first."""
        with self._grown:
            return self._end

    def report(self, end: Location) -> None:
        with self._grown:
            if end != self._end:
                self._end = end
                self._grown.notify_all()

    def hand_over(self, begin: Location, events: list[bytes], size: int) -> None:
        """Keep intact consecutive events that are in a file now, if there is room."""
        with self._grown:
            if self._handed_bytes + size <= _HANDED_BYTES_MAX:
                self._runs.append((begin, events, size))
                self._handed_bytes += size

    def take(self, begin: Location) -> tuple[list[bytes], Location | None]:
        """Return the events from `begin` on, or how far the file must be read before there are any.

        Drops all before `begin`.
        """
        events: list[bytes] = []
        with self._grown:
            while self._runs and self._runs[0][0] <= begin:
                at, run, size = self._runs.popleft()
                self._handed_bytes -= size
                if at == begin:
                    events += run
                    begin = begin.at(begin.position + size)
            return events, self._runs[0][0] if self._runs else self._end

    def forget(self) -> None:
        """Drop what was handed over: its file is cut."""
        with self._grown:
            self._runs.clear()
            self._handed_bytes = 0

    def wait_beyond(self, seen: Location | None, timeout_s: float) -> Location | None:
        """Return the end as soon as it differs from `seen`, or unchanged after `timeout_s`."""
        with self._grown:
            self._grown.wait_for(lambda: self._end != seen, timeout_s)
            return self._end


_SIZE_FIELD = 3
_STANDS_POLLS_MAX = 100
"""A file that is being fetched grows at least once in this number of polls."""
_GONE_HINT = (
    "move the relay log away: it is fetched again while the server has these files; if it has not,"
    f" {RELOAD_ALL}"
)


class Chunk(NamedTuple):
    """Complete consecutive events of one file; the first starts at `begin`.

    Without events: everything available has been read.
    """

    begin: Location
    events: list[bytes]
    is_checked: bool = False
    """Whether their checksums held when they were received, and they were not read from a file."""


class RelayReader:
    """Reads one relay log from a place on; for one thread. `location` is the next event's place."""

    def __init__(
        self,
        root: Path,
        start: Location,
        growth: Growth | None = None,
        *,
        poll_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start at `start`, where an event starts; `growth` is that of a writer in this process."""
        self._root = root
        self._growth = growth
        self._poll_s = poll_s
        self._clock = clock
        self.location = start
        self._is_first = start.position > FIRST_POSITION
        # The writer's report when nothing was found beyond it: only a different report ends a wait.
        self._seen: Location | None = None
        self._woken_s = 0.0

    def chunks(self) -> Iterator[Chunk]:
        """Yield events indefinitely; the event that describes their file always comes first.

        At the end of the available events a chunk without events comes: then `wait`. Raises
        `NeedsOperator` when the place is not in the log, `Corrupt` for bytes that are not events.
        """
        while True:
            path = self._path()
            try:
                file = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                self._check_expected(path)
                yield Chunk(self.location, [])
                continue
            try:
                yield from self._file(path, file)
            finally:
                os.close(file)

    def _file(self, path: Path, file: int) -> Iterator[Chunk]:
        """Yield a file's events until the next file is due, where `location` then points."""
        if self._is_first:
            yield from self._fetched(path, file)
            self._is_first = False
            yield self._description(path, file)
        following: Location | None = None
        while True:
            chunk, torn_bytes = self._read(path, file, is_over=following is not None)
            if chunk is not None:
                following = None
                self.location = self.location.at(chunk.begin.position + sum(map(len, chunk.events)))
                yield chunk
            elif following is not None:
                # The whole file was checked again after the next file had been seen: it is final.
                if torn_bytes and following.suffix == self.location.suffix:
                    raise Corrupt(
                        str(path),
                        self.location.position,
                        f"{torn_bytes} bytes are half an event",
                        code=Code.RELAY_DAMAGED,
                    )
                self.location = following
                return
            else:
                # A file after that of the writer does not exist, or is reported soon.
                is_written = self._seen is not None and self._seen[:2] == self.location[:2]
                following = None if is_written else self._next()
                if following is None:
                    yield Chunk(self.location, [])

    def _read(self, path: Path, file: int, *, is_over: bool) -> tuple[Chunk | None, int]:
        """Return the complete events after `location`, and the size of a partial event after them.

        `is_over` means that nothing is written to the file any more.
        """
        begin = self.location
        events, until = self._taken()
        if events:
            return Chunk(begin, events, is_checked=True), 0
        at, position = 0, begin.position
        if until is None or until[:2] != begin[:2] or is_over:
            limit = os.fstat(file).st_size
        else:  # The writer reports a batch, which may end a file, when all of it is written.
            limit = until.position
        if position >= limit:
            return None, 0
        data = os.pread(file, min(_BLOCK_BYTES, limit - position), position)
        if len(data) >= HEADER_SIZE:
            size = HEADER.unpack_from(data)[_SIZE_FIELD]
            if size > len(data) and size <= limit - position:
                data = _whole(file, size, position)
        end = len(data)
        unpack = HEADER.unpack_from
        while end - at >= HEADER_SIZE:
            size = unpack(data, at)[_SIZE_FIELD]
            if size < HEADER_SIZE:
                raise Corrupt(
                    str(path), position + at, f"an event of {size} bytes", code=Code.RELAY_DAMAGED
                )
            if end - at < size:
                break
            events.append(data[at : at + size])
            at += size
        if not events:
            return None, end
        return Chunk(begin, events), 0

    def _taken(self) -> tuple[list[bytes], Location | None]:
        if self._growth is None:
            return [], None
        self._seen = self._growth.end
        return self._growth.take(self.location)

    def _fetched(self, path: Path, file: int) -> Iterator[Chunk]:
        """Yield chunks without events as long as the file grows and `location` is not within it.

        A file that is fetched again, or for the first time, is shorter for a while. Raises
        `NeedsOperator` for a file that does not grow.
        """
        last, deadline_s = -1, 0.0
        while (size := os.fstat(file).st_size) < self.location.position:
            now_s = self._clock()
            if size > last:
                last, deadline_s = size, now_s + _STANDS_POLLS_MAX * self._poll_s
            elif now_s > deadline_s:
                raise NeedsOperator(
                    f"{path} has {size} bytes, {self.location.position} were read before",
                    _GONE_HINT,
                    Code.RELAY_DAMAGED,
                )
            self._seen = self._growth.end if self._growth is not None else None
            yield Chunk(self.location, [])

    def _description(self, path: Path, file: int) -> Chunk:
        if os.pread(file, FIRST_POSITION, 0) != FILE_MAGIC:
            raise Corrupt(
                str(path), 0, "no binlog file: its first bytes are others", code=Code.RELAY_DAMAGED
            )
        size = HEADER.unpack(os.pread(file, HEADER_SIZE, FIRST_POSITION))[_SIZE_FIELD]
        event = _whole(file, size, FIRST_POSITION)
        return Chunk(self.location.at(FIRST_POSITION), [event])

    def _next(self) -> Location | None:
        sub_dirs = sub_dirs_of(self._root)
        for sub_dir in sub_dirs:
            if sub_dir.suffix < self.location.suffix:
                continue
            folder = self._root / str(sub_dir)
            if not folder.is_dir():
                continue
            files = files_in(folder)
            if sub_dir.suffix == self.location.suffix:
                files = [file for file in files if file > self.location.file]
            if files:
                return Location(sub_dir.suffix, files[0], FIRST_POSITION)
        return None

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until more may exist; the caller does this after a chunk without events."""
        timeout_s = self._poll_s if timeout_s is None else timeout_s
        if self._growth is None:
            time.sleep(timeout_s)
        else:
            self._seen = self._growth.wait_beyond(self._seen, timeout_s)
            time.sleep(max(0.0, self._woken_s + self._growth.linger_s - time.monotonic()))
            self._woken_s = time.monotonic()

    def server(self) -> str:
        """Return the uuid of the server that the events at `location` come from."""
        found = [
            each.uuid for each in sub_dirs_of(self._root) if each.suffix == self.location.suffix
        ]
        return found[0] if found else ""

    def damaged(self, place: Location) -> Corrupt:
        """Return the error for a corrupted event in the file of `location`."""
        return Corrupt(
            str(self._path()),
            place.position,
            "an event's checksum does not hold",
            code=Code.RELAY_DAMAGED,
        )

    def _path(self) -> Path:
        for sub_dir in sub_dirs_of(self._root):
            if sub_dir.suffix == self.location.suffix:
                return self._root / str(sub_dir) / str(self.location.file)
        return self._root / f"none.{self.location.suffix:06d}" / str(self.location.file)

    def _check_expected(self, path: Path) -> None:
        later = self._next()
        if later is not None:
            raise NeedsOperator(
                f"{path} is not there, and {later} is", _GONE_HINT, Code.RELAY_DAMAGED
            )


def _whole(file: int, size: int, position: int) -> bytes:
    parts = []
    while size and (part := os.pread(file, size, position)):
        parts.append(part)
        size -= len(part)
        position += len(part)
    return b"".join(parts)


def file_in(root: Path, file: FileName) -> Location | None:
    for sub_dir in reversed(sub_dirs_of(root)):
        if (root / str(sub_dir) / str(file)).exists():
            return Location(sub_dir.suffix, file, FIRST_POSITION)
    return None
