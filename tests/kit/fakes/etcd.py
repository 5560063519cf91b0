"""etcd in memory, on which the product's own `Registry`, `History` and the like run.

It answers the calls that `penstock.cluster` makes of a client of the package etcd3. A watch calls
back in the thread of the writer, before the write returns; a lease ends only when it is revoked.
"""

from __future__ import annotations

import importlib
import logging
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from penstock.cluster.etcd import Watch

T = TypeVar("T")
log = logging.getLogger(__name__)

_operations: Any = importlib.import_module("etcd3.transactions")
_OPERATORS = (operator.eq, operator.gt, operator.lt, operator.ne)
"""By the number that the protocol has for each."""


class Kv(NamedTuple):
    """A key as it was last put."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int

    @property
    def lease_id(self) -> int:
        """The lease, by the name that the package has for it in the answer of a `get`."""
        return self.lease


_ABSENT = Kv(b"", b"", 0, 0, 0)


class Snapshot(NamedTuple):
    """A backup of everything."""

    revision: int
    keys: dict[str, Kv]


class MemoryEtcd:
    """Linearizable; everyone who has the same object shares one store."""

    endpoints, timeout, metadata = "memory", 5.0, None

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.revision = 1
        self.keys: dict[str, Kv] = {}
        self.watches: list[MemoryWatch] = []
        self.transactions: Any = importlib.import_module("etcd3.client").Transactions()
        self.kvstub = self.leasestub = self
        self._leases = 0

    def call(self, work: Callable[[], T], *, may_be_late: bool = False) -> T:
        """Answer a call; a transaction that puts something may be carried out late."""
        with self.lock:
            return work()

    def put_by_hand(self, key: str, value: str | bytes | None) -> None:
        self._apply([_operations.Put(key, value) if value is not None else _operations.Delete(key)])

    def snapshot(self) -> Snapshot:
        return Snapshot(self.revision, dict(self.keys))

    def put_back(self, snapshot: Snapshot) -> None:
        """Be again as a backup was: revisions are given out once more, and no watch goes on."""
        self.revision, self.keys = snapshot.revision, dict(snapshot.keys)
        self.watches.clear()

    # The calls of a client of etcd3.

    def get(self, key: str) -> tuple[bytes | None, Kv | None]:
        kv = self.call(lambda: self.keys.get(key))
        return (None if kv is None else kv.value), kv

    def put(self, key: str, value: str | bytes, lease: int | None = None) -> None:
        self.call(lambda: self._apply([_operations.Put(key, value, lease)]))

    def put_if_not_exists(self, key: str, value: str) -> bool:
        absent = self.transactions.create(key) == 0
        return self.transaction([absent], [self.transactions.put(key, value)])[0]

    def delete(self, key: str) -> None:
        self.call(lambda: self._apply([_operations.Delete(key)]))

    def transaction(
        self, compare: Iterable[Any], success: Sequence[Any], failure: Sequence[Any] = ()
    ) -> tuple[bool, list[Any]]:
        def decided() -> tuple[bool, list[Any]]:
            is_so = all(map(self._holds, compare))
            return is_so, self._apply(success if is_so else failure)

        puts = any(isinstance(operation, _operations.Put) for operation in success)
        return self.call(decided, may_be_late=puts)

    def get_prefix_response(self, prefix: str, sort_order: str = "") -> Any:
        header = SimpleNamespace(revision=self.revision)
        return SimpleNamespace(kvs=self.call(lambda: self.below(prefix)), header=header)

    def Range(self, request: Any, timeout_s: float, metadata: Any) -> Any:  # noqa: N802
        """Answer as the stub `KV` does."""

        def found() -> list[Kv]:
            if not request.range_end:
                return [kv for kv in self.keys.values() if kv.key == request.key]
            kvs = (kv for kv in self.keys.values() if request.key <= kv.key < request.range_end)
            return sorted(kv for kv in kvs if kv.create_revision >= request.min_create_revision)

        kvs = self.call(found)
        limit = request.limit or len(kvs)
        return SimpleNamespace(kvs=kvs[:limit], more=len(kvs) > limit)

    def lease(self, ttl_s: int) -> Any:
        def granted() -> int:
            self._leases += 1
            return self._leases

        return SimpleNamespace(id=self.call(granted))

    def revoke_lease(self, lease_id: int) -> None:
        operations = [
            _operations.Delete(key) for key, kv in self.keys.items() if kv.lease == lease_id
        ]
        self.call(lambda: self._apply(operations))

    def LeaseKeepAlive(self, requests: Any, timeout_s: float, metadata: Any) -> Any:  # noqa: N802
        """Answer as the stub `Lease` does."""
        return iter([SimpleNamespace(TTL=1)])

    def refusal(self) -> None:
        """Have nothing that refuses certificates."""

    def close(self) -> None:
        """Keep nothing open."""

    # What it does.

    def below(self, prefix: str) -> list[Kv]:
        return [kv for key, kv in sorted(self.keys.items()) if key.startswith(prefix)]

    def _holds(self, compare: Any) -> bool:
        found = self.keys.get(compare.key, _ABSENT)
        is_so = _OPERATORS[compare.op]
        if isinstance(compare, _operations.Value):
            return found is not _ABSENT and bool(is_so(found.value, _bytes(compare.value)))
        is_create = isinstance(compare, _operations.Create)
        return bool(
            is_so(found.create_revision if is_create else found.mod_revision, compare.value)
        )

    def _apply(self, operations: Sequence[Any]) -> list[Any]:
        """Carry out a transaction, which has one revision, and tell the watches."""
        changed = [each.key for each in operations if not isinstance(each, _operations.Get)]
        self.revision += bool(changed)
        answers = [self._do(operation) for operation in operations]
        for watch in list(self.watches):
            if any(key.startswith(watch.prefix) for key in changed):
                self.notify(watch)
        return answers

    def _do(self, operation: Any) -> Any:
        key = operation.key
        if isinstance(operation, _operations.Put):
            created = self.keys[key].create_revision if key in self.keys else self.revision
            self.keys[key] = Kv(
                key.encode(), _bytes(operation.value), created, self.revision, operation.lease or 0
            )
        elif isinstance(operation, _operations.Delete):
            self.keys.pop(key, None)
        elif key in self.keys:
            return [(self.keys[key].value, self.keys[key])]
        return []

    def notify(self, watch: MemoryWatch) -> None:
        """Call back for a change; as with a real watch, an error of the listener is logged."""
        try:
            watch.call_back()
        except Exception:
            log.exception("the listener of %s failed", watch.prefix)


class MemoryWatch:
    """`Watch` on an etcd in memory."""

    def __init__(
        self, etcd: MemoryEtcd, prefix: str, on_items: Callable[[dict[str, bytes]], None]
    ) -> None:
        self.prefix = prefix
        self._etcd = etcd
        self._on_items = on_items
        with etcd.lock:
            etcd.watches.append(self)
            self.call_back()

    def call_back(self) -> None:
        """Pass on all that is below the prefix, unless the watch was cancelled."""
        if self in self._etcd.watches:
            self._on_items({kv.key.decode(): kv.value for kv in self._etcd.below(self.prefix)})

    def cancel(self) -> None:
        with self._etcd.lock:
            if self in self._etcd.watches:
                self._etcd.watches.remove(self)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _watch(cls: type, etcd: Any, *arguments: Any) -> Any:
    """Make the watch that goes with an etcd; the real one follows a stream by a thread."""
    is_memory = isinstance(etcd, MemoryEtcd)
    return MemoryWatch(etcd, *arguments) if is_memory else object.__new__(cls)


Watch.__new__ = _watch  # type: ignore[method-assign,assignment]
