"""The writers' ledger: what was written and acknowledged, and the check of what came out.

The oracle of every fault test: each acknowledged Commit is pulled exactly once, in order, with the
bytes that were written; nothing is pulled that no one tried to commit.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import grpc

from penstock.oracle.client import Oracle
from penstock.pb import penstock_pb2, penstock_pb2_grpc, pump_pb2, pump_pb2_grpc
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog, encode_binlog
from tests.kit.servers.node import CHANNEL_OPTIONS


@dataclass(slots=True)
class Entry:
    """One transaction: what it wrote, and how far it got."""

    start_ts: int
    value: bytes
    commit_ts: int = 0
    acknowledged: bool = False
    rolled_back: bool = False


class Ledger:
    """What all writers of a test did; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, Entry] = {}

    def began(self, start_ts: int, value: bytes) -> Entry:
        """Note a transaction before its Prewrite is sent."""
        entry = Entry(start_ts, value)
        with self._lock:
            assert start_ts not in self._entries, f"start_ts {start_ts} was handed out twice"
            self._entries[start_ts] = entry
        return entry

    def entries(self) -> list[Entry]:
        with self._lock:
            return list(self._entries.values())

    @property
    def acknowledged(self) -> int:
        return sum(entry.acknowledged for entry in self.entries())

    @property
    def last_commit_ts(self) -> int:
        return max((e.commit_ts for e in self.entries() if e.acknowledged), default=0)

    def check(self, pulled: Sequence[tuple[int, bytes]]) -> int:
        """Assert the promises for a whole stream of (commit_ts, payload); count transactions."""
        stamps = [commit_ts for commit_ts, _ in pulled]
        disorder = [(a, b) for a, b in itertools.pairwise(stamps) if a >= b]
        assert not disorder, f"not strictly increasing: {disorder[:3]}"
        by_start = {entry.start_ts: entry for entry in self.entries()}
        seen: dict[int, int] = {}
        for commit_ts, payload in pulled:
            binlog = decode_binlog(payload)
            assert binlog.commit_ts == commit_ts
            if binlog.is_fake:
                continue
            entry = by_start.get(binlog.start_ts)
            assert entry is not None, f"no one wrote transaction {binlog.start_ts}"
            assert not entry.rolled_back, f"transaction {binlog.start_ts} was rolled back"
            assert entry.commit_ts == commit_ts, (
                f"no one committed {binlog.start_ts} at {commit_ts}"
            )
            assert binlog.prewrite_value == entry.value, f"other bytes for {binlog.start_ts}"
            assert binlog.start_ts not in seen, f"transaction {binlog.start_ts} came twice"
            seen[binlog.start_ts] = commit_ts
        lost = [e.start_ts for e in by_start.values() if e.acknowledged and e.start_ts not in seen]
        assert not lost, f"{len(lost)} acknowledged transactions lost, the first is {lost[0]}"
        return len(seen)


class LedgerWriter(threading.Thread):
    """A writer that commits transactions one after the other to one Pump until it is to stop.

    A failed Prewrite ends its transaction; a Commit or Rollback that fails is sent again until it
    succeeds, as a client must, or until the writer is to stop.
    """

    def __init__(
        self,
        ledger: Ledger,
        oracle: Oracle,
        addr: str,
        cluster_id: int,
        *,
        value_bytes_max: int = 2000,
        seed: int = 0,
    ) -> None:
        super().__init__(daemon=True)
        self._ledger = ledger
        self._oracle = oracle
        self._addr = addr
        self._cluster_id = cluster_id
        self._value_bytes_max = value_bytes_max
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self.failure: Exception | None = None

    def stop(self) -> None:
        """End after the transaction under way; raise what the thread died of."""
        self._stopping.set()
        self.join(30)
        assert not self.is_alive(), "a writer does not end"
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        """Write until stopped."""
        try:
            with grpc.insecure_channel(self._addr, options=CHANNEL_OPTIONS) as channel:
                stub = pump_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
                while not self._stopping.is_set():
                    self._transaction(stub.WriteBinlog)
        except Exception as error:
            self.failure = error

    def _transaction(self, write: Callable[..., object]) -> None:
        start_ts = self._oracle.get_ts()
        value = self._random.randbytes(self._random.randrange(1, self._value_bytes_max))
        entry = self._ledger.began(start_ts, value)
        prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=value)
        if not self._write(write, prewrite) or self._random.random() < 0.05:
            entry.rolled_back = True
            self._insist(write, Binlog(tp=BinlogType.ROLLBACK, start_ts=start_ts))
            return
        entry.commit_ts = self._oracle.get_ts()
        commit = Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=entry.commit_ts)
        entry.acknowledged = self._insist(write, commit)

    def _insist(self, write: Callable[..., object], binlog: Binlog) -> bool:
        """Send it until it is acknowledged; False when it is to stop before that."""
        while not self._write(write, binlog):
            if self._stopping.is_set():
                return False
        return True

    def _write(self, write: Callable[..., object], binlog: Binlog) -> bool:
        request = pump_pb2.WriteBinlogReq(clusterID=self._cluster_id, payload=encode_binlog(binlog))
        try:
            write(request, timeout=5)
        except grpc.RpcError as error:
            if error.code() not in _PASSING:
                raise
            time.sleep(0.02)
            return False
        return True


_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.FAILED_PRECONDITION,
)


def pulls(
    addr: str, cluster_id: int, after_ts: int = 0, *, timeout_s: float = 30
) -> Iterator[tuple[int, bytes]]:
    """Yield (commit_ts, payload) from one Pump, without end until the timeout."""
    with grpc.insecure_channel(addr, options=CHANNEL_OPTIONS) as channel:
        stub = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
        request = penstock_pb2.PullRequest(
            cluster_id=cluster_id, after_ts=after_ts, drainer_id="ledger"
        )
        call = stub.Pull(request, timeout=timeout_s, wait_for_ready=True)
        try:
            for batch in call:
                yield from zip(batch.commit_ts, batch.payloads, strict=True)
        finally:
            call.cancel()


def pull_until(
    addr: str, cluster_id: int, until_ts: int, after_ts: int = 0, *, timeout_s: float = 30
) -> list[tuple[int, bytes]]:
    """Return everything a Pump has after `after_ts`, up to the first commit_ts at `until_ts`."""
    found = []
    for commit_ts, payload in pulls(addr, cluster_id, after_ts, timeout_s=timeout_s):
        found.append((commit_ts, payload))
        if commit_ts >= until_ts:
            break
    return found


def committed(found: Iterable[tuple[int, bytes]]) -> list[int]:
    """Return the commit_ts of transactions, without fake binlogs and watermarks."""
    return [commit_ts for commit_ts, payload in found if not decode_binlog(payload).is_fake]
