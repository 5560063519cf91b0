"""Replica log: one replica of a log on this disk, written as its primary requests.

It checks a request, asks `Replica` for the actions, and does them one by one on
`ReplicaSegments`. After a failure, the next request reopens the folder and `Replica`, because the
result of a failed write is unknown. The primary hears of every request that is only partly carried
out. It has no thread and no clock.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from penstock import failpoints
from penstock.codes import Code
from penstock.errors import Corrupt, Malformed, Retryable
from penstock.log.files import Files
from penstock.log.repair import Patch
from penstock.log.replica import OlderSegment, ReplicaSegments, received_head, set_aside
from penstock.log.segment import BEGIN, Segment
from pump.replication.protocol.chain import Chain, Link
from pump.replication.protocol.messages import (
    Action,
    Answer,
    Append,
    Ask,
    Clear,
    Cut,
    DropBefore,
    Prepend,
    Reply,
    Request,
    SetAside,
    Sync,
    Write,
    WriteBefore,
)
from pump.replication.protocol.replica import Replica
from pump.replication.repair import ClosedLogRepair

log = logging.getLogger(__name__)
_written = failpoints.point("copies.copy.written")
_synced = failpoints.point("copies.copy.synced")
_cut = failpoints.point("copies.copy.cut")
_cleared = failpoints.point("copies.copy.cleared")
_set_aside = failpoints.point("copies.copy.set_aside")

DAMAGED_FOLDER = "damaged"
"""Beside `log`: the remains of a replica that was re-initialised since."""


class ReplicaLog:
    """The replica in the folder `log`; for one thread at a time, except `links`."""

    def __init__(self, folder: Path, files: Files, repair: ClosedLogRepair | None = None) -> None:
        """`repair` is called for damage that prevents opening the folder."""
        self.folder = folder
        self.files = files
        self.problem = ""
        """The damage that was reported to the primary; empty once the folder was opened."""
        self._repair = repair
        self._log: ReplicaSegments | None = None
        self._replica = Replica(Chain())

    @property
    def promised(self) -> int:
        """The lowest epoch that is accepted; 0 while the folder is not open."""
        return self._replica.promised

    @property
    def links(self) -> tuple[Link, ...]:
        """The segments, oldest first; empty while the folder is not open."""
        return tuple(self._replica.chain.links)

    def open(self) -> None:
        """Open the folder, unless it is open, and sync everything that it holds.

        Raises `Corrupt` for damage that cannot be repaired, or `Retryable` when the disk fails.
        """
        tried: set[tuple[str, int]] = set()
        while self._log is None:
            try:
                self._log = ReplicaSegments.open(self.folder, files=self.files)
                self._replica = Replica(Chain(Link(*link) for link in self._log.links()))
                self.problem = ""
            except Corrupt as damage:
                place = (damage.path, damage.offset)
                if place in tried or self._repair is None or not self._repair(damage):
                    raise
                tried.add(place)

    def segments(self) -> list[Segment]:
        """Return all segments, oldest first; empty while the folder is not open."""
        log = self._log
        found = [] if log is None else [log.find(link.number) for link in self.links]
        return [segment for segment in found if segment is not None]

    def put_back(self, segment: Segment, patch: Patch) -> None:
        """Write frames in their place again; raises `Retryable` if that is impossible now."""
        if self._log is None:
            raise Retryable(f"{self.folder} is not open", Code.COPY_NOT_FOLLOWED)
        self._log.put_back(segment, patch)

    def answer(self, request: Ask | Append, data: bytes) -> Answer:
        """Carry out a request and return the answer; `data` are the bytes of an Append.

        Raises `Malformed` for a request that contradicts itself, and does nothing; `Retryable` when
        the disk fails; `Corrupt` for a damaged replica that may still be repaired, or whose primary
        does not know of damaged replicas.
        """
        if isinstance(request, Append):
            _check(request, data)
        return self._carried_out(request, data, None)

    def prepend(self, request: Prepend, older: OlderSegment) -> Answer:
        """Put a complete segment before the first; raises as `answer` does."""
        return self._carried_out(request, b"", older)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        self._log, self._replica = None, Replica(Chain())

    def _carried_out(self, request: Request, data: bytes, older: OlderSegment | None) -> Answer:
        try:
            self.open()
        except Corrupt as damage:
            # Number damage that no other disk repairs; the number stays until the folder opens.
            if self._repair is None or self._repair.is_hopeless(damage):
                self.problem = str(damage)
                if not self._replica.damage:
                    self._replica = Replica(Chain(), secrets.randbits(62) + 1)
            knows_of_damage = (isinstance(request, Ask) and request.takes_damaged) or (
                isinstance(request, Append) and request.damage > 0
            )
            if not self.problem or not knows_of_damage:
                raise
        try:
            for action in self._replica.receive(request):
                if isinstance(action, Reply):
                    return action.answer
                self._carry_out(action, request, data, older)
        except BaseException:
            self.close()
            raise
        raise AssertionError("every request is answered")

    def _carry_out(
        self, action: Action, request: Request, data: bytes, older: OlderSegment | None
    ) -> None:
        if isinstance(action, SetAside):
            self._set_aside()
            return
        copied = self._log
        assert copied is not None
        if isinstance(action, Write):
            assert isinstance(request, Append)
            number, epoch, offset, epoch_id = action
            copied.write(number, epoch, offset, data[offset - request.offset :], epoch_id=epoch_id)
            _written()
        elif isinstance(action, Sync):
            copied.sync()
            _synced()
        elif isinstance(action, Cut):
            copied.cut(action.place)
            _cut()
        elif isinstance(action, Clear):
            copied.clear()
            _cleared()
        elif isinstance(action, DropBefore):
            copied.drop_before(action.segment)
        else:
            assert isinstance(action, WriteBefore)
            assert older is not None
            copied.write_before(older)

    def _set_aside(self) -> None:
        aside = self.folder.with_name(DAMAGED_FOLDER)
        count, size = set_aside(self.files, self.folder, aside)
        _set_aside()
        self._log = ReplicaSegments.open(self.folder, files=self.files)
        log.warning(
            "%s: this copy begins again; its %d files, %d bytes, are set aside in %s: %s [%s]",
            *(self.folder, count, size, aside, self.problem, Code.SEGMENT_DAMAGED),
        )
        self.problem = ""


def _check(request: Append, data: bytes) -> None:
    """Raise `Malformed` unless an Append agrees with the bytes beside it, and with itself."""
    previous, problem = request.previous, ""
    if request.end != request.offset + len(data) or not data:
        problem = f"{len(data)} bytes from offset {request.offset} to {request.end}"
    elif 0 < request.offset < BEGIN:
        problem = f"a part of a header, from offset {request.offset} on"
    elif not (previous.epoch if previous else 0) <= request.segment_epoch <= request.epoch:
        problem = f"a segment of epoch {request.segment_epoch} after {previous}, in {request.epoch}"
    elif request.offset == 0:
        head = received_head(data, request.segment, request.segment_epoch, request.epoch_id)
        if previous is not None:
            said = previous._replace(number=head.number - 1, end=head.previous_end)
            if said != previous or head.previous_end < BEGIN:
                problem = f"the header of segment {head.number} after {previous}, which it denies"
    if problem:
        raise Malformed(
            f"a copy was sent {problem}",
            "the primary has a defect, or is a newer Penstock",
            Code.COPY_MALFORMED,
        )
