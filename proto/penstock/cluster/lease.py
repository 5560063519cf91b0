"""Lease: keys in etcd that vanish with their owner; the owner judges by its local clock."""

import logging
import threading
import time

from penstock.cluster.etcd import EtcdClient, EtcdClosed, etcd_errors, put, revoke
from penstock.errors import PenstockError, Retryable
from penstock.pb.etcd import rpc_pb2

log = logging.getLogger(__name__)

_RETRY_S = 0.1


class Lease:
    """A lease kept alive by a thread; keys put with `id` vanish `ttl_s` after this process stops.

    `is_held()` is judged by the local clock from before the last renewal was sent, so it turns
    False no later than etcd drops the lease. It may turn True again (etcd was away and came back);
    `is_lost()` is final: etcd said that the lease is gone.

    The exception is a virtual machine that is paused with all its clocks. When it continues, a
    lease that etcd has dropped counts as held until the next renewal, a quarter of `ttl_s` at most.
    Decisions in etcd compare the key itself, so a DDL, a lock or the oracle's window is safe. Two
    decisions are made without etcd. An oracle's leader may issue timestamps below those of its
    successor: a Pump refuses a Commit at or below the end of its stream, a client refuses a
    timestamp below its last, and a DDL that comes out of order makes Drainers stop. A writer may
    commit rows of the schema before a DDL: Drainers stop at those, because rows must be of the
    schema version at their place (`drainer.schema.tracker`). Nothing is changed silently.
    """

    def __init__(self, etcd: EtcdClient, ttl_s: int) -> None:
        self._etcd = etcd
        self._ttl_s = ttl_s
        self._lost = threading.Event()
        self._stopped = threading.Event()
        sent_s = time.monotonic()
        with etcd_errors(etcd):
            self.id: int = etcd.lease(ttl_s).id
        self._deadline_s = sent_s + ttl_s
        self._thread = threading.Thread(target=self._run, name=f"lease {self.id:x}", daemon=True)
        self._thread.start()

    def put(self, key: str, value: str) -> None:
        """Write a key that vanishes with the lease."""
        put(self._etcd, key, value, lease_id=self.id)

    def is_held(self) -> bool:
        """Return whether no one else can consider this lease gone."""
        return time.monotonic() < self._deadline_s and not self._lost.is_set()

    def is_lost(self) -> bool:
        """Return whether the lease is permanently lost."""
        return self._lost.is_set()

    def close(self) -> None:
        """Revoke the lease and its keys immediately; without etcd they expire automatically."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if self._lost.is_set():
            return
        self._lost.set()
        try:
            revoke(self._etcd, self.id)
        except Retryable as error:
            log.info("lease %x is left to expire: %s", self.id, error)

    def _run(self) -> None:
        wait_s = self._ttl_s / 4
        while not self._stopped.wait(wait_s):
            try:
                self._renew()
            except EtcdClosed:
                return
            except PenstockError as error:
                log.debug("renewing lease %x failed: %s", self.id, error)
                wait_s = _RETRY_S
                continue
            if self._lost.is_set():
                log.warning("lease %x was lost", self.id)
                return
            wait_s = self._ttl_s / 4

    def _renew(self) -> None:
        sent_s = time.monotonic()
        request = rpc_pb2.LeaseKeepAliveRequest(ID=self.id)
        with etcd_errors(self._etcd):
            answers = self._etcd.leasestub.LeaseKeepAlive(
                iter([request]), self._ttl_s / 2, metadata=self._etcd.metadata
            )
            for answer in answers:
                if answer.TTL > 0:
                    self._deadline_s = sent_s + self._ttl_s
                else:
                    self._lost.set()
