"""The side of the schema fence for whoever runs DDL; `fence` draws the whole of it."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from penstock.cluster.etcd import EtcdClient, Watch, etcd_errors
from penstock.cluster.history import LOCK_KEY, Guard
from penstock.errors import PenstockError, Retryable

log = logging.getLogger(__name__)

WRITERS = "/penstock/v1/writers/"
PENDING_KEY = "/penstock/v1/ddl_pending"


class DdlFence:
    """The side of whoever runs DDL, to be used while it holds the DDL lock."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    @contextmanager
    def raised(self, version: int, wait_s_max: float = 30) -> Iterator[Guard]:
        """Run the block while no writer has, or can begin, a transaction older than `version`.

        The block draws `commit_ts` and appends to history, which refuses if the fence fell; the
        Guard it gets stands for that. Raises Retryable when the lock is not held, or when a
        writer has not come to rest after `wait_s_max`. The calling thread must hold no pin.
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
            raise Retryable("the DDL lock was lost")
        return meta.create_revision, meta.lease_id

    def _announce(self, pending: str, lock_revision: int, lease_id: int) -> Guard:
        do = self._etcd.transactions
        with etcd_errors(self._etcd):
            done, answers = self._etcd.transaction(
                compare=[do.create(LOCK_KEY) == lock_revision, do.create(PENDING_KEY) == 0],
                success=[do.put(PENDING_KEY, pending, lease=lease_id), do.get(PENDING_KEY)],
                failure=[],
            )
        if not done:
            raise Retryable("the DDL lock was lost, or another DDL is pending")
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
                    raise Retryable(f"writers still commit under the old schema: {names}")
                changed.wait(left_s)
                changed.clear()
        finally:
            watch.cancel()

    def _clear(self, pending: str) -> None:
        do = self._etcd.transactions
        try:
            with etcd_errors(self._etcd):
                self._etcd.transaction(
                    compare=[do.value(PENDING_KEY) == pending],
                    success=[do.delete(PENDING_KEY)],
                    failure=[],
                )
        except PenstockError as error:
            log.warning("a pending DDL goes with its lock, not now: %s", error)
