"""Followed log: one copy of a log on this disk, as its primary has it written.

It checks a request, asks `Replica` what is to be done, and does it on a `CopiedLog`, in order. When
anything fails the folder is opened again at the next request, and with it `Replica`: what a failed
write left is unknown, and a request is never carried out by halves without the primary hearing of
it. It has no thread and no clock of its own.
"""

from __future__ import annotations

from pathlib import Path

from penstock import failpoints
from penstock.codes import Code
from penstock.errors import Malformed
from penstock.log.copied_log import CopiedLog, OlderSegment, received_head
from penstock.log.files import Files
from penstock.log.segment import BEGIN
from pump.replicas.chain import Chain, Link
from pump.replicas.messages import (
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
    Sync,
    Write,
    WriteBefore,
)
from pump.replicas.replica import Replica

_written = failpoints.point("copies.copy.written")
_synced = failpoints.point("copies.copy.synced")
_cut = failpoints.point("copies.copy.cut")
_cleared = failpoints.point("copies.copy.cleared")


class FollowedLog:
    """The copy in the folder `log`; its methods are for one thread at a time, but for `links`."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self.files = files
        self._log: CopiedLog | None = None
        self._replica = Replica(Chain())

    @property
    def promised(self) -> int:
        """The epoch before which nothing is taken; 0 while the folder is not open."""
        return self._replica.promised

    @property
    def links(self) -> tuple[Link, ...]:
        """The segments, oldest first; none while the folder is not open."""
        return tuple(self._replica.chain.links)

    def open(self) -> None:
        """Open the folder, unless it is open, and have all that it holds on the disk.

        Raises `Corrupt`, or `Retryable` when the disk fails.
        """
        if self._log is None:
            self._log = CopiedLog.open(self.folder, files=self.files)
            self._replica = Replica(Chain(Link(*link) for link in self._log.links()))

    def answer(self, request: Ask | Append, data: bytes) -> Answer:
        """Do what a request asks for and return the answer; `data` are the bytes of an Append.

        Raises `Malformed` for a request that contradicts itself, and does nothing; `Retryable` when
        the disk fails; `Corrupt` for a copy that is damaged.
        """
        if isinstance(request, Append):
            _check(request, data)
        return self._carried_out(request, data, None)

    def prepend(self, request: Prepend, older: OlderSegment) -> Answer:
        """Put a segment that is whole before the first one, and return the answer; raises alike."""
        return self._carried_out(request, b"", older)

    def close(self) -> None:
        """Let go of the folder."""
        if self._log is not None:
            self._log.close()
        self._log, self._replica = None, Replica(Chain())

    def _carried_out(self, request: Request, data: bytes, older: OlderSegment | None) -> Answer:
        self.open()
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
        log = self._log
        assert log is not None
        if isinstance(action, Write):
            assert isinstance(request, Append)
            log.write(*action, data[action.offset - request.offset :])
            _written()
        elif isinstance(action, Sync):
            log.sync()
            _synced()
        elif isinstance(action, Cut):
            log.cut(action.place)
            _cut()
        elif isinstance(action, Clear):
            log.clear()
            _cleared()
        elif isinstance(action, DropBefore):
            log.drop_before(action.segment)
        else:
            assert isinstance(action, WriteBefore)
            assert older is not None
            log.write_before(older)


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
        head = received_head(data, request.segment, request.segment_epoch)
        if previous is not None:
            said = Link(head.number - 1, previous.epoch, head.previous_end)
            if said != previous or head.previous_end < BEGIN:
                problem = f"the header of segment {head.number} after {previous}, which it denies"
    if problem:
        raise Malformed(
            f"a copy was sent {problem}",
            hint="the primary has a defect, or is a newer Penstock",
            code=Code.COPY_MALFORMED,
        )
