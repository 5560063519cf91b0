"""Shipping: runs the primary's side of a log with copies, around the core `Primary` that decides.

    storage ── store(write, sync) ──> Primary ──> actions ──┬── Begin: a segment is started
       ▲                                ▲                   ├── Send: to the replica's shipper
       └── all listed disks have it     │ events            ├── Swap, ReadEntry: to etcd
                                        └── shippers, etcd  └── Acknowledge, StepDown

Any thread may bring an event. The core receives it under one lock, and its actions are carried out
one by one. A group is also written under that lock, so no epoch starts in the middle of it. The
sync of a group runs without the lock; until it ends, a new epoch and all actions after it wait.

A separate thread calls etcd. Five times a second it also retries a segment that could not be
started, and looks for a disk for a missing replica.

A primary with a stalled disk must give up leadership. Once a sync, or the failure to start a
segment, has lasted for `STUCK_AFTER_S`, replicas get no sign of life, and a failover follows. Only
a full disk is waited for, because a purge or an operator can free space.
"""

from __future__ import annotations

import errno
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock import failpoints
from penstock.cluster.log_entry import LOGS, Copy, Disk, LogEntries, LogEntry
from penstock.cluster.node_registry import Cancellable, EntryGuard
from penstock.codes import Code
from penstock.errors import PenstockError, Retryable
from penstock.log.segments import Place, Position, Segments, WriteFailed
from penstock.node.output import NO_TEXT
from pump.replication.claiming import Claimed
from pump.replication.peers import Peers
from pump.replication.protocol.chain import Link
from pump.replication.protocol.messages import (
    Acknowledge,
    Action,
    Actions,
    Answer,
    Begin,
    Damaged,
    ReadEntry,
    ReplicaState,
    Send,
    StepDown,
    Swap,
)
from pump.replication.protocol.primary import Primary
from pump.replication.shipper import Shipper

log = logging.getLogger(__name__)
_written = failpoints.point("copies.written")
_own_synced = failpoints.point("copies.own_synced")
_stored = failpoints.point("copies.stored")
_begun = failpoints.point("copies.begun")
_learner = failpoints.point("copies.joining")
_swapped = failpoints.point("copies.swapped")

_TICK_S = 0.2
_ETCD_RETRY_S = 0.5
_REPORT_EVERY_S = 5.0
STUCK_AFTER_S = 10.0
_MARK_EVERY_S = 10.0
_CONFIRMED_WITHIN_S = 1.0
_BACK_OFF_S = 5.0
_BACK_OFF_ELIGIBLE_S = 1.0
"""For a disk that is electable. It must hear from this primary before it takes the primary for
silent. Without any listed replica nothing is acknowledged, so no other disk can be better."""


class Deposed(Retryable):
    """This process is no longer the primary of its log; another process is, or may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationFacts:
    """The replicas of this Pump's log; `copies` and `copies_on` are text for people."""

    log_epoch: int
    copies: str
    copies_present: int = field(metadata=NO_TEXT)
    copies_wanted: int = field(metadata=NO_TEXT)
    copies_min: int = field(metadata=NO_TEXT)
    copies_on: str
    copies_eligible: str | None
    copies_problem: str | None


class Shipping:
    """The replicas of the log that this process is the primary of."""

    def __init__(
        self,
        claimed: Claimed,
        own_log: Segments,
        *,
        node_id: str,
        entries: LogEntries,
        peers: Peers,
        replica_timeout_s: float,
        repair: Callable[[int], bool] = lambda number: False,
    ) -> None:
        """Prepare with a won claim; `start` begins its epoch.

        `repair` checks the acknowledged part of a segment, and repairs it; it may take seconds.
        """
        self._primary = Primary(*claimed)
        self._log = own_log
        self._entries = entries
        self._node_id = node_id
        self._peers = peers
        self._replica_timeout_s = replica_timeout_s
        self.repair = repair
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._actions: deque[Action] = deque()
        self._is_syncing = False
        self._stuck_since_s: float | None = None
        """When the own disk stalled; no group was finished and no segment accepted since then."""
        self._is_full = False
        """True if the last segment could not be started because the own disk is full."""
        self._shippers: dict[str, Shipper] = {}
        self._calls: queue.SimpleQueue[Swap | ReadEntry | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pump-copies", daemon=True)
        self._watch: Cancellable | None = None
        self._reported_s = float("-inf")
        self._reported_epoch = -1
        self._reported_damage: dict[str, int] = {}
        self._reported_foreign: dict[str, Link] = {}
        self._silent_s: dict[str, float] = {}
        """When disks last failed to answer; they are not asked for a replica right after that."""
        self._moves_to = ""
        self._marked_s = float("-inf")
        self.over = ""
        """The reason why this process is no longer the primary; empty while it is."""
        self.on_over: Callable[[], object] = lambda: None
        """Called once, from any thread, when `over` is set."""
        self.acknowledged = Place(0, 0)
        """The position up to which the log is on enough disks."""

    @property
    def entry(self) -> LogEntry:
        return self._primary.entry

    @property
    def epoch(self) -> int:
        return self._primary.entry.epoch

    @property
    def is_well(self) -> bool:
        """False while replicas must find this primary silent."""
        return not self._is_stuck or self._is_full

    def read(self, number: int, begin: int, end: int) -> bytes:
        """Return bytes of a segment; raises `Retryable`."""
        return self._log.read_bytes(number, begin, end)

    def guard(self) -> EntryGuard:
        """Return the entry's key, and the revision with which this process is the primary."""
        return EntryGuard(LOGS + self._node_id, self._primary.revision)

    def start(self) -> None:
        """Start the epoch, and ship; `Retryable` if etcd does not answer."""
        with self._lock:
            self._do(self._primary.start())
        self._thread.start()
        self._watch = self._entries.watch(self._node_id, lambda: self._calls.put(ReadEntry()))

    def wait_until_complete(self, within_s: float) -> bool:
        with self._lock:
            self._changed.wait_for(lambda: bool(self.over) or self._is_complete(), within_s)
            self._check()
            return self._is_complete()

    def close(self) -> None:
        """Stop shipping; a group that awaits acknowledgement fails."""
        self._closed.set()
        with self._lock:
            self._end("this Pump stops")
        self._calls.put(None)
        if self._thread.is_alive():
            self._thread.join()
        if self._watch is not None:
            self._watch.cancel()
        for shipper in self._shippers.values():
            shipper.close()

    # Called by the storage, to write.

    def store(
        self, write: Callable[[], list[Position]], sync: Callable[[], None]
    ) -> list[Position]:
        """Write a group, and return once all listed disks have it, however long that takes.

        Raises the errors of `write` and `sync`; the group is then not part of the log. Raises
        `Deposed` when this process is no longer the primary; the group may then be part of the log,
        and nothing can be stored any longer.
        """
        with self._lock:
            self._wait_until(lambda: self._primary.is_ready and not self._actions)
            self._stuck_since_s = time.monotonic()
            try:
                positions = write()
            except BaseException as error:
                self._stuck_since_s = None
                if isinstance(error, WriteFailed):
                    self._note_succession()
                raise
            _written()
            end = self._log.end
            self._do(self._primary.appended(end))
            self._is_syncing = True
        try:
            sync()
        except WriteFailed:
            with self._lock:
                self._is_syncing, self._stuck_since_s = False, None
                self._abandon()
            raise
        _own_synced()
        with self._lock:
            self._is_syncing, self._stuck_since_s = False, None
            self._do(self._primary.own_synced())
            self._wait_until(lambda: self.acknowledged >= end)
        _stored()
        return positions

    # Called for a watermark.

    def confirm(self) -> None:
        """Return once all listed disks have confirmed, since the call, that this is the primary.

        Raises `Retryable` if they do not in time, `Deposed` if it is not.
        """
        with self._lock:
            self._do(self._primary.confirm())
            asked = self._primary.confirms
            self._changed.wait_for(
                lambda: bool(self.over) or self._primary.confirmed >= asked, _CONFIRMED_WITHIN_S
            )
            self._check()
            if self._primary.confirmed < asked:
                why = self.problem() or "a copy of this Pump's log does not answer"
                raise Retryable(why, Code.TOO_FEW_COPIES)

    # Called for an operator.

    def move_to(self, disk: str) -> None:
        """Ensure that `disk` and `copies` staying disks have a replica; empty cancels this."""
        with self._lock:
            self._moves_to = disk
            self._do(self._primary.moves_to(disk))

    def give_away(self) -> None:
        with self._lock:
            self._do(self._primary.gives_away())

    @property
    def staying_complete(self) -> list[str]:
        with self._lock:
            return self._primary.staying_complete

    def missing_bytes(self, disk: str) -> int | None:
        with self._lock:
            return self._primary.missing_bytes(disk)

    # Called by the storage, to purge.

    def needs(self, segment: int) -> None:
        """Record that no Drainer and no open transaction needs anything before a segment."""
        with self._lock:
            self._do(self._primary.needs(segment))

    def may_drop_before(self, segment: int) -> int:
        """Return the segment before which a purge may drop, at most `segment`.

        No Drainer and no open transaction needs those segments. A segment that is still listed as
        needed may go at the next purge. A segment that may go is no longer shipped.
        """
        with self._lock:
            self._do(self._primary.needs(segment))
            before = min(segment, self._primary.droppable_before)
            self._primary.dropped(before)
            return before

    @property
    def are_enough(self) -> bool:
        return not self.over and not self._is_stuck and self._primary.entry.may_acknowledge

    @property
    def _is_stuck(self) -> bool:
        return self._stuck_s() > STUCK_AFTER_S

    def _stuck_s(self) -> float:
        since_s = self._stuck_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def check(self) -> None:
        if not self.are_enough:
            code = Code.LOG_WRITE_FAILED if self._is_stuck else Code.TOO_FEW_COPIES
            raise Retryable(self.problem(), code)

    def problem(self) -> str:
        entry = self.entry
        have = 1 + len(entry.replicas)
        if self.over:
            return self.over
        if self._is_stuck:
            return f"the disk of this Pump has taken nothing for {self._stuck_s():.0f} s"
        if have < entry.copies_min:
            return (
                f"{have} of {entry.copies_min} copies of this Pump's log are there, and nothing is"
                f" acknowledged before that{self._why_none_joins()}"
            )
        if have < entry.copies:
            return (
                f"{have} of {entry.copies} copies of this Pump's log are there"
                f"{self._why_none_joins()}"
            )
        return ""

    def facts(self) -> ReplicationFacts:
        entry, draining = self.entry, self._peers.draining
        present, apart = 1 + len(entry.replicas), self._peers.apart
        return ReplicationFacts(
            log_epoch=entry.epoch,
            copies=f"{present} of {entry.copies}, at least {entry.copies_min}"
            + (f", each with another {apart}" if apart else ""),
            copies_present=present,
            copies_wanted=entry.copies,
            copies_min=entry.copies_min,
            copies_on=", ".join(
                copy.pump
                + (f" (from {copy.first} on)" if copy.first > entry.needed else "")
                + (" (leaves)" if copy.disk in draining else "")
                for copy in (entry.primary, *entry.replicas)
            ),
            copies_eligible=", ".join(copy.pump for copy in entry.eligible) or None,
            copies_problem=self.problem() or None,
        )

    # Answers of replicas, from the threads of shippers.

    def connected(self, disk: str) -> None:
        with self._lock:
            self._do(self._primary.connected(disk))

    def answered(self, disk: str, answer: Answer) -> None:
        with self._lock:
            if isinstance(answer, Damaged) and self._reported_damage.get(disk) != answer.damage:
                self._reported_damage[disk] = answer.damage
                log.warning(
                    "the copy on disk %s is damaged, and no disk has mended it: it is taken off"
                    " the list, and begins again",
                    disk,
                )
            self._do(self._primary.answered(disk, answer))
            strange = self._primary.foreign_disks.get(disk)
            if strange is not None and isinstance(answer, ReplicaState):
                self._silent_s[disk] = time.monotonic()
                if self._reported_foreign.get(disk) != strange:
                    self._reported_foreign[disk] = strange
                    log.error("%s", self._foreign_problem(disk, strange))

    def _foreign_problem(self, disk: str, strange: Link) -> str:
        entry = self._primary.entry
        return (
            f"disk {disk} gets no copy of this log: its segment {strange.number} of epoch"
            f" {strange.epoch} (id {strange.epoch_id:06x}) is of another history than epoch"
            f" {entry.epoch} (id {entry.id:06x}) in etcd, which was restored; see PS-3312"
        )

    def silent(self, disk: str) -> None:
        with self._lock:
            if self._primary.entry.replica(disk) is not None:
                log.warning(
                    "the copy on disk %s does not answer, it is to be taken off the list", disk
                )
            self._silent_s[disk] = time.monotonic()
            self._do(self._primary.silent(disk))

    def failed(self, what: str) -> None:
        """Stop being the primary: a thread that ships has ended because of a defect."""
        with self._lock:
            self._end(f"{what} has failed, see the log")

    # Actions.

    def _do(self, actions: Actions) -> None:
        """Execute actions after all waiting actions; the lock must be held."""
        self._actions.extend(actions)
        for action in actions:
            if isinstance(action, StepDown):  # Not after a segment that cannot be started.
                self._end(action.why)
        while self._actions and not self.over:
            action = self._actions[0]
            if isinstance(action, Begin) and not self._begin(action):
                break
            self._actions.popleft()
            entry = self._primary.entry
            if not isinstance(action, Begin):
                self._carry_out(action)
            elif self._reported_epoch != entry.epoch:
                self._reported_epoch = entry.epoch
                pumps = ", ".join(copy.pump for copy in (entry.primary, *entry.replicas))
                log.info("epoch %d: the log is on %s", entry.epoch, pumps)
        self._changed.notify_all()

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Send):
            self._shipper(action.to).send(action.request)
        elif isinstance(action, Swap | ReadEntry):
            self._calls.put(action)
        elif isinstance(action, Acknowledge):
            self.acknowledged = action.place
        else:
            raise AssertionError(f"{action} is not for a primary")

    def _begin(self, action: Begin) -> bool:
        """Start a segment; False if that has to wait."""
        if self._is_syncing:
            return False
        try:
            if self._log.end.segment < action.number:
                self._log.begin_next(action.epoch, action.epoch_id)
                _begun()
            self._stuck_since_s, self._is_full = None, False
        except WriteFailed as error:
            self._is_full = error.errno == errno.ENOSPC
            self._stuck_since_s = self._stuck_since_s or time.monotonic()
            self._log_rarely("segment %d cannot be begun, trying again: %s", action.number, error)
            return False
        assert self._log.end.segment == action.number, "the core knows where the log ends"
        return True

    def _abandon(self) -> None:
        if any(isinstance(action, Begin) for action in self._actions):
            # The core already counts it as sealed by the segment that waits to be started.
            self._end("a sync failed while the list of copies changed; it starts again")
        else:
            self._do(self._primary.abandoned(self._log.end))

    def _note_succession(self) -> None:
        if self._log.end.segment != self._primary.chain.end.segment:
            self._do(self._primary.appended(self._log.end))
            self._do(self._primary.own_synced())

    def _end(self, why: str) -> None:
        if self.over:
            return
        self.over = why
        self._actions.clear()
        for shipper in self._shippers.values():
            shipper.close()
        self._changed.notify_all()
        self.on_over()

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: bool(self.over) or is_so())
        self._check()

    def _check(self) -> None:
        if self.over:
            raise Deposed(self.over, code=Code.LOG_DEPOSED)

    def _is_complete(self) -> bool:
        return self._primary.is_ready and not self._actions

    def _shipper(self, copy: Copy) -> Shipper:
        shipper = self._shippers.get(copy.disk)
        if shipper is None:
            shipper = self._shippers[copy.disk] = Shipper(
                *(copy, self),
                peers=self._peers,
                node_id=self._node_id,
                timeout_s=self._replica_timeout_s,
            )
        return shipper

    # The thread that calls etcd.

    def _run(self) -> None:
        try:
            self._maintain()
            while not self._closed.is_set() and not self.over:
                try:
                    action = self._calls.get(timeout=_TICK_S)
                except queue.Empty:
                    self._maintain()
                    continue
                if action is not None:
                    self._call(action)
        except Exception:
            log.exception("the copies of this Pump's log are not looked after any more")
            self.failed("what looks after the copies")

    def _call(self, action: Swap | ReadEntry) -> None:
        node_id = self._node_id
        try:
            if isinstance(action, Swap):
                revision = self._entries.swap(node_id, action.revision, action.entry)
                _swapped()
                with self._lock:
                    self._do(self._primary.swapped(revision))
                self._maintain()  # After a replica left, the next one must not wait for a tick.
                return
            found = self._entries.read(node_id)
        except PenstockError as error:
            self._log_rarely("etcd does not answer for the list of copies, trying again: %s", error)
            self._maintain()  # A segment that could not be started must not wait for etcd.
            self._closed.wait(_ETCD_RETRY_S)
            self._calls.put(ReadEntry())
            return
        if found is None:
            self._log_rarely("the list of copies is gone from etcd: %s%s", LOGS, node_id)
            self._closed.wait(_ETCD_RETRY_S)
            self._calls.put(ReadEntry())
            return
        with self._lock:
            self._do(self._primary.entry_seen(*found))

    def _maintain(self) -> None:
        draining = self._peers.draining
        with self._lock:
            self._do(self._primary.draining(draining))
            if self.over:
                return
            self._mark()
            entry, learner = self._primary.entry, self._primary.learner
            known = {entry.primary.disk, *(copy.disk for copy in entry.replicas), learner}
            for disk in [disk for disk in self._shippers if disk not in known]:
                self._shippers.pop(disk).close()
            is_missing = self._moves_to and self._moves_to not in known
            if learner is not None or not (self._primary.needs_replica or is_missing):
                return
        candidate = self._candidate()
        if candidate is not None:
            with self._lock:
                self._do(self._primary.candidate(Copy(candidate.pump, candidate.id)))
            _learner()

    def _mark(self) -> None:
        now_s = time.monotonic()
        if not self._primary.is_marked or now_s - self._marked_s > _MARK_EVERY_S:
            self._marked_s = now_s
            self._do(self._primary.marks())

    def _candidate(self) -> Disk | None:
        now_s, entry = time.monotonic(), self.entry
        again_s = dict.fromkeys((copy.disk for copy in entry.eligible), _BACK_OFF_ELIGIBLE_S)
        backed_off = [
            disk
            for disk, silent_s in list(self._silent_s.items())
            if now_s - silent_s < again_s.get(disk, _BACK_OFF_S)
        ]
        return self._peers.candidate(entry, excluded=backed_off, moves_to=self._moves_to)

    def _why_none_joins(self) -> str:
        if self._primary.learner is not None:
            return "; one is being given the log"
        if self._candidate() is not None:
            return ""
        if foreign_disks := self._primary.foreign_disks:
            return f"; {self._foreign_problem(*next(iter(foreign_disks.items())))}"
        apart = self._peers.apart
        what = f" with another {apart}" if apart else ""
        return f"; there is no other Pump{what} whose disk could take one"

    def _log_rarely(self, text: str, *fields: object) -> None:
        if time.monotonic() - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = time.monotonic()
            log.error(text, *fields)
