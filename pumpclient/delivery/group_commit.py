"""Group commit: commits the transactions of one source in its order, many at a time.

The upstream has decided these transactions, so a Pump stores a group in one call, with timestamps
that it takes itself (`penstock.Pump/WriteDecided`):

    caller    pin the schema ── are the tables as they were? if not, carry the rows over ── unpin
    finisher  one call for the group ── all acknowledged: `done`

The schema may change before the call. The Pump then refuses it, and the rows are carried over
again. The call for a group is made only after the previous group was acknowledged, so the commit_ts
of a source rise in its order, whichever Pumps take them. A call that fails ends the writer; it may
be stored or not. What is stored is a beginning of the group, and the source sends it again from its
checkpoint on. A Drainer recognises the repetition by its origin. Nothing has to be remembered.

Two phases are left for large transactions, which go in chunks, and for Pumps without that method:

    caller    pin the schema ── are the tables as they were? if not, carry the rows over
              start_ts for all in one call ── journal: these, on this Pump ── all Prewrites
    finisher  all acknowledged ── commit_ts for all in one call, in order ── unpin
              journal: these commit_ts ── Commits to the same Pump ── all acknowledged: `done`

The caller prepares the next group while the finisher works, or is the finisher itself when it has
nothing else to do. The Commits of a group are sent only after those of the previous group were
acknowledged. Once the journal has the commit_ts of a group, all of its transactions or none are
committed: after a kill the Commits are sent again. Therefore the committed transactions of a source
are always a prefix of its log. A source that restarts from an earlier position loses nothing, and
duplicates are recognised by their origin.

If this process is stopped for longer than the Pumps' `txn-timeout-s`, the Pump may roll back the
first transactions of a group and accept the Commits of the others when the process continues. This
is reported: the Pump names the refused transactions, and the source stops with this error
(`_check_verdicts`), or at its next start, when it sends the Commits again
(`pumpclient.mysql.journal`). After a restart the source reads the rolled back transactions again,
and a Drainer drops these as repeated, because it has seen a later place. No row is lost silently:
the first later transaction that the Pump accepted names the rolled back transaction as its
predecessor, and the Drainer stops before it (PS-6015).

Without a commit_ts in the journal no Commit was sent, and a group is rolled back. If the journal is
lost with its machine, the Pump's resolver decides; its log has the Commits in order.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from penstock import failpoints
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, PenstockError, Retryable
from penstock.wire.binlog import Binlog, BinlogType, Origin
from penstock.wire.codec import encode_binlog
from pumpclient.changes import ChangeSet
from pumpclient.delivery.connection import DecidedCalls
from pumpclient.delivery.payload import bring_up_to_date, prewrite_of
from pumpclient.delivery.pump_set import Pump
from pumpclient.delivery.session import Session
from pumpclient.delivery.write_queue import PendingWrite
from pumpclient.errors import Failure, Reason

log = logging.getLogger(__name__)

GROUP_COUNT_MAX = 4096
_SUBMIT_BYTES_PER_S = 20 << 20
_AGAIN_S = 0.05
_before_decided = failpoints.point("source.before_decided")
_after_decided = failpoints.point("source.after_decided")
_before_prewrites = failpoints.point("source.before_prewrites")
_after_prewrites = failpoints.point("source.after_prewrites")
_before_commits = failpoints.point("source.before_commits")
_within_commits = failpoints.point("source.within_commits")
_after_commits = failpoints.point("source.after_commits")


class GroupJournal(Protocol):
    """Records, on a disk, which transactions may be open on which Pump."""

    def begin(self, node_id: str, start_ts: range) -> None:
        """Record a group before its Prewrites are sent; durable on return."""

    def decide(self, start_ts: range, commit_ts: range) -> None:
        """Durably record that a group will commit, before its first Commit is sent."""

    def end(self, start_ts: range) -> None: ...


@dataclass(slots=True)
class PendingTransaction:
    """One transaction to be committed; it has an origin when a source passes it on."""

    changes: ChangeSet
    origin: Origin | None


@dataclass(slots=True)
class _Flight:
    """A group whose Prewrites were sent."""

    pump: Pump
    start_ts: range
    start_s: float
    pin: AbstractContextManager[int]
    prewrites: list[PendingWrite]
    timeout_s: float
    done: Callable[[], None]


@dataclass(slots=True)
class _Decided:
    """A group to be stored in one call."""

    group: Sequence[PendingTransaction]
    version: int
    payloads: list[bytes]
    done: Callable[[], None]


class GroupWriter:
    """Commits one source's transactions in its order; `submit` and `drain` are for one thread."""

    def __init__(
        self,
        session: Session,
        journal: GroupJournal,
        *,
        may_commit: Callable[[], bool] = lambda: True,
        decides: bool = True,
        in_flight_max: int = 2,
    ) -> None:
        """Commit only while `may_commit` reports that this client still owns the source.

        Without `decides` everything takes two phases. No transaction is then stored after this
        writer has ended, which matters if the next one does not repeat it.
        """
        self._session = session
        self._journal = journal
        self._may_commit = may_commit
        self._flights: queue.Queue[_Flight | _Decided | None] = queue.Queue(in_flight_max)
        self._calls: dict[Pump, DecidedCalls] = {}
        self._decides = decides  # Until a Pump has no method for that.
        self._groups = 0
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="group commits", daemon=True)
        self._thread.start()

    def submit(
        self,
        group: Sequence[PendingTransaction],
        done: Callable[[], None],
        *,
        is_idle: bool = False,
    ) -> None:
        """Send a group; `done` is called once all of its transactions are committed.

        If the caller `is_idle` and nothing is in flight, it is committed here: to wake the finisher
        costs more than a small group. Raises `Retryable`, `NeedsOperator` or `Malformed` when this
        or an earlier group failed: nothing after that group was or will be committed; restart with
        a new writer.
        """
        assert 0 < len(group) <= GROUP_COUNT_MAX
        self._check()
        flight: _Flight | _Decided
        is_large = any(each.changes.spool_file is not None for each in group)
        if self._decides and not is_large and all(each.origin is not None for each in group):
            flight = self._encoded(group, done)
        else:
            flight = self._prewritten(group, done)
        if is_idle and not self._flights.unfinished_tasks:
            self._end(flight)
            self._check()
        else:
            self._flights.put(flight)

    @property
    def is_busy(self) -> bool:
        """Return whether anything is in flight; raise as `submit` does."""
        is_busy = self._flights.unfinished_tasks > 0
        self._check()  # Afterwards, so that a failed group is reported before it is done.
        return is_busy

    def drain(self) -> None:
        """Wait until everything submitted is committed; raise as `submit` does."""
        self._flights.join()
        self._check()

    def close(self) -> None:
        """End the thread; groups in flight are committed first if possible."""
        self._flights.put(None)
        self._thread.join()
        for calls in self._calls.values():
            calls.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _encoded(self, group: Sequence[PendingTransaction], done: Callable[[], None]) -> _Decided:
        session = self._session
        try:
            with session.fence.pin() as version:
                session.schemas.catch_up(version)
                for each in group:
                    bring_up_to_date(each.changes, session.schemas)
            payloads = [
                prewrite_of(each.changes, version, start_ts=0, origin=each.origin).data
                for each in group
            ]
        except BaseException:
            _close(group)
            raise
        return _Decided(group, version, payloads, done)

    def _prewritten(self, group: Sequence[PendingTransaction], done: Callable[[], None]) -> _Flight:
        pin = self._session.fence.pin()
        version = pin.__enter__()
        try:
            return self._sent(group, version, pin, done)
        except BaseException as error:
            _unpin(pin, error)
            raise
        finally:
            _close(group)

    def _sent(
        self,
        group: Sequence[PendingTransaction],
        version: int,
        pin: AbstractContextManager[int],
        done: Callable[[], None],
    ) -> _Flight:
        session = self._session
        session.schemas.catch_up(version)
        for each in group:
            bring_up_to_date(each.changes, session.schemas)
        start_s = time.monotonic()
        start_ts = session.oracle.get_many(len(group))
        payloads = [
            prewrite_of(each.changes, version, start_ts=start, origin=each.origin)
            for each, start in zip(group, start_ts, strict=True)
        ]
        pump = session.pumps.pick(start_ts[0], 0)
        if pump is None:
            raise Retryable(str(session.pumps.missing()), Code.NO_PUMP)
        self._journal.begin(pump.node_id, start_ts)
        _before_prewrites()
        size = sum(map(len, payloads))
        timeout_s = session.options.attempt_timeout_s + size / _SUBMIT_BYTES_PER_S
        flight = _Flight(pump, start_ts, start_s, pin, [], timeout_s, done)
        try:
            if any(payload.is_large for payload in payloads):
                (large,) = payloads  # A large transaction goes alone.
                failure = pump.prewrite(large)
                if failure is not None:
                    raise self._refused(flight.pump, failure)
            else:
                flight.prewrites += [PendingWrite(payload.data) for payload in payloads]
                pump.submit_all(flight.prewrites, timeout_s)
        except BaseException:
            self._roll_back(flight)
            raise
        return flight

    def _run(self) -> None:
        while (flight := self._flights.get()) is not None:
            self._end(flight)
            self._flights.task_done()
        self._flights.task_done()

    def _end(self, flight: _Flight | _Decided) -> None:
        try:
            if isinstance(flight, _Decided):
                self._pass_on(flight)
            elif self._failure is None:
                self._finish(flight)
            else:
                self._abandon(flight, self._failure)
        except Exception as error:  # The caller must learn of every error.
            self._failure = error

    def _pass_on(self, flight: _Decided) -> None:
        try:
            if self._failure is None and self._store(flight):
                _after_decided()
                flight.done()
        finally:
            _close(flight.group)

    def _store(self, flight: _Decided) -> bool:
        """Store a group in one call, or more if it is large; False if it took two phases."""
        options = self._session.options
        until_s = time.monotonic() + options.attempt_timeout_s
        begin = 0
        while begin < len(flight.payloads):
            end, size = begin + 1, len(flight.payloads[begin])
            while end < len(flight.payloads):
                size += len(flight.payloads[end])
                if size > options.batch_bytes_max:
                    break
                end += 1
            failure, pump = self._call(flight.version, flight.payloads[begin:end], size)
            if failure is None:
                begin = end
            elif failure.reason is Reason.TOO_OLD:
                log.info("transactions take two phases: %s", failure.message)
                self._decides = False
                self._finish(self._prewritten(flight.group[begin:], flight.done))
                return False
            elif failure.reason is Reason.SCHEMA_CHANGED and time.monotonic() < until_s:
                time.sleep(_AGAIN_S)
                flight, begin = self._encoded(flight.group[begin:], flight.done), 0
            else:
                raise self._refused(pump, failure)
        return True

    def _call(
        self, version: int, payloads: Sequence[bytes], size: int
    ) -> tuple[Failure | None, Pump]:
        session = self._session
        self._groups += 1
        pump = session.pumps.pick(self._groups, 0)
        if pump is None:
            raise Retryable(str(session.pumps.missing()), Code.NO_PUMP)
        calls = self._calls.get(pump)
        if calls is None or calls.target.address != pump.host:
            if calls is not None:
                calls.close()
            calls = self._calls[pump] = pump.decided_calls()
        if not self._may_commit():
            raise Retryable("another process has this source now", Code.SOURCE_TAKEN)
        _before_decided()
        timeout_s = session.options.attempt_timeout_s + size / _SUBMIT_BYTES_PER_S
        answer = calls.write(version, payloads, timeout_s)
        if isinstance(answer, Failure):
            return answer, pump
        session.pumps.report_prewrite(pump, None)
        return None, pump

    def _finish(self, flight: _Flight) -> None:
        try:
            deadline_s = time.monotonic() + flight.timeout_s
            for pending in flight.prewrites:
                failure = pending.settle(deadline_s - time.monotonic())
                if failure is not None:
                    raise self._refused(flight.pump, failure)
            self._session.pumps.report_prewrite(flight.pump, None)
            _after_prewrites()
            commit_ts = self._session.oracle.get_many(len(flight.start_ts))
            flight.pin.__exit__(None, None, None)
        except PenstockError as error:
            self._abandon(flight, error)
            raise
        if not self._may_commit():
            self._roll_back(flight)
            raise Retryable("another process has this source now", Code.SOURCE_TAKEN)
        if time.monotonic() > flight.start_s + self._session.options.commit_timeout_s:
            # After SIGSTOP, for example: the Pump may be rolling the transactions back one by one.
            self._roll_back(flight)
            raise Retryable("this process did nothing for too long", Code.COMMIT_LATE)
        self._journal.decide(flight.start_ts, commit_ts)
        _before_commits()
        self._commit(flight, commit_ts)
        _after_commits()
        self._journal.end(flight.start_ts)
        flight.done()

    def _abandon(self, flight: _Flight, error: Exception) -> None:
        _unpin(flight.pin, error)
        self._roll_back(flight)

    def _refused(self, pump: Pump, failure: Failure) -> PenstockError:
        self._session.pumps.report_prewrite(pump, failure)
        text = f"pump {pump.node_id}: {failure}"
        if failure.reason is Reason.INVALID:
            hint = "nothing was written; change what the message names"
            return Malformed(text, hint, Code.PREWRITE_REFUSED)
        if failure.reason is Reason.CERTIFICATE:
            hint = "correct the certificates, then start again"
            return NeedsOperator(text, hint, Code.PREWRITE_REFUSED)
        if failure.reason is Reason.CLUSTER_MISMATCH:
            hint = "it belongs to another cluster: check its --etcd-urls, and this writer's"
            return NeedsOperator(text, hint, Code.CLUSTER_MISMATCH)
        return Retryable(text, Code.PREWRITE_NOT_TAKEN)

    def _commit(self, flight: _Flight, commit_ts: range) -> None:
        options = self._session.options
        abandon_at_s = flight.start_s + options.commit_timeout_s
        left = [
            encode_binlog(Binlog(tp=BinlogType.COMMIT, start_ts=start, commit_ts=commit))
            for start, commit in zip(flight.start_ts, commit_ts, strict=True)
        ]
        while left:
            host = flight.pump.host
            pendings = [PendingWrite(payload) for payload in left]
            for pending in pendings:
                flight.pump.submit(pending, options.attempt_timeout_s)
                _within_commits()
            deadline_s = time.monotonic() + flight.timeout_s
            failures = [pending.settle(deadline_s - time.monotonic()) for pending in pendings]
            self._check_verdicts(flight, failures)
            first = next((f for f in failures if f is not None), None)
            self._session.pumps.report(flight.pump, first)
            left = [each for each, f in zip(left, failures, strict=True) if f is not None]
            if left and time.monotonic() > abandon_at_s:
                raise Retryable(
                    f"pump {flight.pump.node_id} did not acknowledge {len(left)} Commits in"
                    f" {options.commit_timeout_s:g} s; it decides about them",
                    Code.COMMIT_LATE,
                )
            if left:
                flight.pump.wait_until_moved(host, options.commit_retry_s)

    def _check_verdicts(self, flight: _Flight, failures: Sequence[Failure | None]) -> None:
        lost = [n for n, f in enumerate(failures) if f and f.reason is Reason.INVALID]
        if not lost:
            return
        failure = failures[lost[0]]
        text = f"pump {flight.pump.node_id}: {flight.start_ts[lost[0]]}: {failure}"
        if any(failure is None for failure in failures[lost[0] :]):
            raise NeedsOperator(
                f"{text}, and a later transaction of the source is committed",
                "Drainers stop before the later one with PS-6015, which says how to go on; is"
                " the Pumps' txn-timeout-s below 600?",
                Code.COMMIT_ORDER_BROKEN,
            )
        raise Retryable(text, Code.PREWRITE_NOT_TAKEN)

    def _roll_back(self, flight: _Flight) -> None:
        for start_ts in reversed(flight.start_ts):
            self._session.roll_back(flight.pump, start_ts)


def _close(group: Sequence[PendingTransaction]) -> None:
    for each in group:
        each.changes.close()


def _unpin(pin: AbstractContextManager[int], error: BaseException) -> None:
    pin.__exit__(type(error), error, None)
