"""The schema fence: no transaction commits rows of an old schema after a DDL's `commit_ts`.

    /penstock/v1/writers/<id>-<random>  on the writer's lease: the last pending DDL it acknowledged
    /penstock/v1/ddl_pending            "<new version> <random>", on the lease of the DDL lock

    writer    pinned: rows are encoded … Prewrite … commit_ts is known
                    │ sees `pending`             no pin left             `pending` gone
              open ─┴─> closed to new pins ──> copies `pending` ──> reads schema ──> open
    DDL       lock, put `pending` ──> every writer copied it ──> commit_ts, history ──> delete

A writer lists `pending` after it has put its key, and a DDL lists writers after it has put
`pending`, so one of the two sees the other. A writer that dies drops out with its lease. A writer
that was wrongly taken for dead must not commit. Leaving a pin therefore fails unless the lease was
still held *after* `commit_ts` was known, so that a DDL which continued without that writer draws a
larger one. And since `pending` is on the lock's lease, a DDL whose fence fell has lost its lock:
history refuses it.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from penstock.cluster.etcd import (
    AWAY_HINT,
    EtcdClient,
    EtcdClosed,
    Lease,
    Watch,
    etcd_errors,
    read_prefix,
    transact,
)
from penstock.cluster.history import LOCK_KEY, Guard, History
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable

log = logging.getLogger(__name__)

WRITERS = "/penstock/v1/writers/"
PENDING_KEY = "/penstock/v1/ddl_pending"
_CHECK_S = 0.25
_RETRY_S = 0.2


def writers(etcd: EtcdClient) -> list[str]:
    """Return the ids of all writers that hold a lease now; raises `Retryable`."""
    items, _ = read_prefix(etcd, WRITERS)
    return sorted(key.removeprefix(WRITERS).rpartition("-")[0] for key in items)


class _Membership:
    """One registration of a writer: its key, its lease, and the pins taken under it."""

    def __init__(self, key: str, lease: Lease) -> None:
        self.key = key
        self.lease = lease
        self.pins = 0
        self.acknowledged = ""


class WriterFence:
    """A writer process's side of the fence; one per process, safe to share between threads.

    `on_version` is called from a thread of the fence, before the first pin and after each DDL. It
    must return only when this process knows the schema of that version.
    """

    def __init__(
        self,
        etcd: EtcdClient,
        writer_id: str,
        on_version: Callable[[int], None] = lambda version: None,
        *,
        ttl_s: int = 5,
    ) -> None:
        self._etcd = etcd
        self._writer_id = writer_id
        self._on_version = on_version
        self._ttl_s = ttl_s
        self._history = History(etcd)
        self._changed = threading.Condition()
        # All below are guarded by `_changed`.
        self._membership: _Membership | None = None
        self._pending = ""
        self._version = 0
        self._is_open = False
        self._closed = False
        self._problem: PenstockError = Retryable(
            f"etcd has not answered yet ({AWAY_HINT})", Code.ETCD_AWAY
        )
        self._tried_s = 0.0
        self._thread = threading.Thread(target=self._run, name="schema fence", daemon=True)
        self._thread.start()

    @contextmanager
    def pin(self, wait_s_max: float = 30) -> Iterator[int]:
        """Hold the schema at the version it yields.

        Enter it before rows are encoded, and leave it as soon as `commit_ts` is known, before the
        Commit is sent. Entering waits `wait_s_max` for a pending DDL or for etcd, then raises
        Retryable. Leaving raises Retryable when the lease ran out during the pin: the transaction
        must then be rolled back, because a DDL may have come in between.
        """
        membership, version = self._enter(wait_s_max)
        try:
            yield version
        finally:
            held = membership.lease.is_held()
            self._leave(membership)
        if not held:
            raise Retryable(
                "this writer's lease ran out while a transaction was being committed",
                Code.LEASE_LOST,
            )

    def close(self) -> None:
        """Leave the fence: DDL no longer waits for this writer; leaving an open pin fails."""
        with self._changed:
            self._closed = True
            self._is_open = False
            self._changed.notify_all()
        self._thread.join()

    # Pins.

    def _enter(self, wait_s_max: float) -> tuple[_Membership, int]:
        with self._changed:
            entered_s = 0.0
            while True:
                membership = self._membership
                if self._is_open and membership is not None and membership.lease.is_held():
                    membership.pins += 1
                    return membership, self._version
                now_s = time.monotonic()
                entered_s = entered_s or now_s
                left_s = entered_s + wait_s_max - now_s
                self._check_hope(left_s, entered_s)
                # A lease that is held again notifies no one, so the wait must not be longer.
                self._changed.wait(min(left_s, _CHECK_S))

    def _check_hope(self, left_s: float, entered_s: float) -> None:
        if self._closed:
            raise Retryable("this writer's fence is closed", Code.CLOSED)
        # The operator may have acted since a step that began before this call.
        is_new = self._tried_s >= entered_s or left_s <= 0
        if isinstance(self._problem, NeedsOperator) and is_new:
            raise NeedsOperator(self._problem.problem, self._problem.hint, self._problem.code)
        if left_s <= 0:
            reason = f"DDL {self._pending} is pending" if self._pending else str(self._problem)
            raise Retryable(f"no transaction can commit now: {reason}", Code.LEASE_LOST)

    def _leave(self, membership: _Membership) -> None:
        with self._changed:
            membership.pins -= 1
            if membership.pins == 0 and self._pending:
                self._changed.notify_all()

    # The fence's thread.

    def _run(self) -> None:
        try:
            while not self._closed:
                self._with_patience(self._live_as_member)
        except EtcdClosed:
            log.info("the schema fence ends with its etcd client")
        finally:
            with self._changed:
                self._closed = True
                self._is_open = False

    def _with_patience(self, step: Callable[[], None]) -> None:
        began_s = time.monotonic()
        try:
            step()
        except EtcdClosed:
            raise
        except PenstockError as error:
            log.info("the schema fence tries again: %s", error)
            with self._changed:
                self._problem, self._tried_s = error, began_s
                self._changed.wait(_RETRY_S)

    def _live_as_member(self) -> None:
        key = f"{WRITERS}{self._writer_id}-{secrets.token_hex(4)}"
        membership = _Membership(key, Lease(self._etcd, self._ttl_s))
        watch = None
        try:
            membership.lease.put(key, "0")
            watch = Watch(self._etcd, PENDING_KEY, self._see_pending)
            self._membership = membership
            while not self._closed and not membership.lease.is_lost():
                self._with_patience(partial(self._take_part, membership))
        finally:
            with self._changed:
                self._is_open = False
                self._membership = None
            if watch is not None:
                watch.cancel()
            membership.lease.close()

    def _see_pending(self, items: Mapping[str, bytes]) -> None:
        with self._changed:
            self._pending = items.get(PENDING_KEY, b"").decode()
            if self._pending:
                self._is_open = False
            self._changed.notify_all()

    def _take_part(self, membership: _Membership) -> None:
        with self._changed:
            pending = self._pending
            is_drained = membership.pins == 0
            due = (
                is_drained and pending != membership.acknowledged if pending else not self._is_open
            )
            if not due:
                self._changed.wait(_CHECK_S)
                return
        if pending:
            membership.lease.put(membership.key, pending)
            membership.acknowledged = pending
            return
        version = self._history.schema_version()
        self._on_version(version)
        with self._changed:
            # A DDL announced since then waits for us, so `version` is still the newest.
            if not self._pending and not self._closed:
                self._problem = Retryable(
                    "this writer's lease ran out; is etcd away?", Code.LEASE_LOST
                )
                self._version = version
                self._is_open = True
                self._changed.notify_all()


class DdlFence:
    """The DDL runner's side of the fence, for use while it holds the DDL lock."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    @contextmanager
    def raised(self, version: int, wait_s_max: float = 30) -> Iterator[Guard]:
        """Run the block while no writer has, or can start, a transaction older than `version`.

        The block draws `commit_ts` and appends to history, which refuses if the fence fell; the
        Guard it gets stands for that. Raises Retryable when the lock is not held, or when a writer
        has not acknowledged after `wait_s_max`. The calling thread must hold no pin.
        """
        lock_revision, lease_id = self._lock()
        pending = f"{version} {secrets.token_hex(8)}"
        try:
            guard = self._announce(pending, lock_revision, lease_id)
            self._wait_for_writers(pending, wait_s_max)
            yield guard
        finally:
            self._clear(pending)

    def _lock(self) -> tuple[int, int]:
        with etcd_errors(self._etcd):
            _, meta = self._etcd.get(LOCK_KEY)
        if meta is None:
            raise Retryable("the DDL lock was lost", Code.DDL_ROLLED_BACK)
        return meta.create_revision, meta.lease_id

    def _announce(self, pending: str, lock_revision: int, lease_id: int) -> Guard:
        do = self._etcd.transactions
        done, answers = transact(
            self._etcd,
            compare=[do.create(LOCK_KEY) == lock_revision, do.create(PENDING_KEY) == 0],
            success=[do.put(PENDING_KEY, pending, lease=lease_id), do.get(PENDING_KEY)],
        )
        if not done:
            raise Retryable(
                "the DDL lock was lost, or another DDL is pending", Code.DDL_ROLLED_BACK
            )
        return Guard(PENDING_KEY, answers[1][0][1].create_revision)

    def _wait_for_writers(self, pending: str, wait_s_max: float) -> None:
        changed = threading.Event()
        awaited: list[str] = []

        def on_items(items: Mapping[str, bytes]) -> None:
            wanted = pending.encode()
            awaited[:] = [key.removeprefix(WRITERS) for key, v in items.items() if v != wanted]
            changed.set()

        deadline_s = time.monotonic() + wait_s_max
        watch = Watch(self._etcd, WRITERS, on_items)
        try:
            while awaited:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    names = ", ".join(sorted(awaited))
                    raise Retryable(
                        f"writers still commit under the old schema: {names}", Code.DDL_LOCKED
                    )
                changed.wait(left_s)
                changed.clear()
        finally:
            watch.cancel()

    def _clear(self, pending: str) -> None:
        do = self._etcd.transactions
        try:
            transact(
                self._etcd,
                compare=[do.value(PENDING_KEY) == pending],
                success=[do.delete(PENDING_KEY)],
            )
        except PenstockError as error:
            log.warning("a pending DDL goes with its lock, not now: %s", error)
