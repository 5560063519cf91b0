"""The Pumps known to a writer: which exist, which are available, and which is next.

etcd's list and our own writes decide together:

    registered ── online in etcd ──> available <── a probe succeeds ──┐
                                        │                             │
                                        └── a connection breaks, ─────┴─> unavailable
                                            no answer in time, or more
                                            than 10 errors in a row

A Pump without space is left alone for a while (`Backoff`) but stays available.

A strategy chooses the Pump of the next Prewrite (`selector.py`). Only a Prewrite may go to any
available Pump. All later binlogs of a transaction go to the Pump of its Prewrite, whatever its
state: a Pump accepts Commits even while closing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.cluster.node_registry import (
    NodeState,
    NodeStatus,
    labels_in,
    labels_text,
    parse_labels,
)
from penstock.codes import Code
from penstock.pb import penstock_pb2
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from pumpclient.delivery.connection import DecidedCalls, PumpWriter, Target, status_of, write_large
from pumpclient.delivery.payload import Payload
from pumpclient.delivery.selector import Selector
from pumpclient.delivery.write_queue import PendingWrite
from pumpclient.errors import Failure, NoPump, Reason
from pumpclient.options import Options, Tls

log = logging.getLogger(__name__)

_PROBE: Final = encode_binlog(Binlog(tp=BinlogType.PREWRITE))
_BYTES_PER_S_MIN: Final = 20 << 20
_LARGE_BYTES_PER_S_MIN: Final = 8 << 20
# For these no Pump is at fault, or the binlog is and not the Pump.
_BLAMELESS: Final = frozenset({Reason.BUSY, Reason.INVALID, Reason.NO_SPACE, Reason.TOO_OLD})
_FATAL: Final = frozenset({Reason.BROKEN, Reason.CERTIFICATE, Reason.TIMED_OUT, Reason.NOT_ONLINE})


class Backoff:
    """The pause of one Pump without space, so that refusals do not cost every transaction.

        refused ── 1 s ── asked again, refused ── 2 s ── asked again ── 4 s … 30 s ── taken: none

    Refusals of concurrent transactions count once.
    """

    def __init__(
        self, first_s: float, most_s: float, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._monotonic_s = monotonic_s
        self._length_s = 0.0
        self._until_s = float("-inf")

    @property
    def is_on(self) -> bool:
        return self._monotonic_s() < self._until_s

    def note(self, failure: Failure | None) -> bool:
        """Record a Prewrite's outcome; return True if it starts a pause."""
        if failure is None:
            self._length_s, self._until_s = 0.0, float("-inf")
        elif failure.reason is Reason.NO_SPACE and not self.is_on:
            self._length_s = min(self._length_s * 2, self._most_s) or self._first_s
            self._until_s = self._monotonic_s() + self._length_s
            return True
        return False


class Pump:
    """One Pump, identified by its node id; its address may change when it is restarted."""

    def __init__(self, status: NodeStatus, cluster_id: int, options: Options, tls: Tls | None):
        self.node_id = status.node_id
        self.host = status.host
        self.score = status.score
        self.labels = labels_in(status.label)
        self.is_online = status.state is NodeState.ONLINE
        self.is_well = True
        self.errors_in_a_row = 0
        self.backoff = Backoff(options.full_pause_s, options.full_pause_s_max)
        self._cluster_id = cluster_id
        self._options = options
        self._tls = tls
        self._lock = threading.Lock()
        self._is_elsewhere = threading.Condition(self._lock)
        self._writer: PumpWriter | None = None
        self._closed = False
        self._retirements: list[threading.Thread] = []

    @property
    def is_available(self) -> bool:
        return self.is_online and self.is_well

    def write(self, payload: bytes) -> Failure | None:
        timeout_s = self._options.attempt_timeout_s + len(payload) / _BYTES_PER_S_MIN
        pending = PendingWrite(payload)
        self.submit(pending, timeout_s)
        return pending.settle(timeout_s)

    def prewrite(self, payload: Payload) -> Failure | None:
        """Try once to make a Prewrite durable here; a large one uses a separate connection."""
        if not payload.is_large:
            return self.write(payload.data)
        if self._closed:
            return Failure(Reason.BROKEN, "the client is closed", maybe_stored=False)
        timeout_s = self._options.attempt_timeout_s + len(payload) / _LARGE_BYTES_PER_S_MIN
        return write_large(self._target(), self._options, payload, timeout_s)

    def decided_calls(self) -> DecidedCalls:
        """Return a connection for decided transactions to this Pump's present address."""
        return DecidedCalls(self._target(), self._options)

    def status(self) -> penstock_pb2.StatusReply | str:
        return status_of(self._target(), self._options)

    def submit(self, pending: PendingWrite, timeout_s: float) -> None:
        self.submit_all((pending,), timeout_s)

    def submit_all(self, pendings: Sequence[PendingWrite], timeout_s: float) -> None:
        with self._lock:
            if self._writer is None and not self._closed:
                self._writer = PumpWriter(self._target(), self._options)
            writer = self._writer
        if writer is None:
            for pending in pendings:
                pending.finish(Failure(Reason.BROKEN, "the client is closed", maybe_stored=False))
        else:
            writer.submit(pendings, timeout_s)

    def drop_connection(self) -> None:
        """Break the connection; writes waiting for answers continue elsewhere immediately."""
        if self._writer is not None:
            self._writer.drop_connection()

    def moved(self, host: str) -> None:
        with self._lock:
            self.host = host
            old, self._writer = self._writer, None
            self._is_elsewhere.notify_all()
        self._retirements = [t for t in self._retirements if t.is_alive()]
        if old is not None:
            # Its thread may be waiting for a dead host; no caller should wait for that here.
            retirement = threading.Thread(target=old.close, args=(0,), daemon=True)
            retirement.start()
            self._retirements.append(retirement)

    def wait_until_moved(self, host: str, timeout_s: float) -> None:
        with self._lock:
            self._is_elsewhere.wait_for(lambda: self.host != host or self._closed, timeout_s)

    def close(self, timeout_s: float) -> None:
        with self._lock:
            self._closed = True
            self._is_elsewhere.notify_all()
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.close(timeout_s)
        for retirement in self._retirements:
            retirement.join()

    def _target(self) -> Target:
        return Target(
            node_id=self.node_id, address=self.host, cluster_id=self._cluster_id, tls=self._tls
        )


class Pumps:
    """All Pumps, kept up to date by `follow` (etcd) and `report` (our writes)."""

    def __init__(
        self, cluster_id: int, selector: Selector, options: Options, tls: Tls | None = None
    ) -> None:
        self.cluster_id = cluster_id
        self._selector = selector
        self._options = options
        self._tls = tls
        self._wanted = parse_labels(options.labels)
        self._preferred = parse_labels(options.prefer)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._pumps: dict[str, Pump] = {}
        self._stop = threading.Event()
        self._prober = threading.Thread(target=self._probe, name="pumpclient probes", daemon=True)
        self._prober.start()
        self.on_moved: Callable[[Pump], None] = lambda pump: None
        """Called when a Pump is at another address; it must not block."""

    def __len__(self) -> int:
        with self._lock:
            return len(self._pumps)

    def follow(self, statuses: Sequence[NodeStatus]) -> None:
        with self._lock:
            for status in statuses:
                self._follow_one(status)
            listed = {status.node_id for status in statuses}
            for pump in self._pumps.values():
                if pump.node_id not in listed:
                    pump.is_online = False
            self._changed.notify_all()

    def wait_for_any(self, timeout_s: float) -> bool:
        """Wait until a Pump with the required labels is registered, in any state."""
        with self._lock:
            return self._changed.wait_for(
                lambda: any(map(self._is_ours, self._pumps.values())), timeout_s
            )

    def pick(self, start_ts: int, retry: int, but: Collection[Pump] = ()) -> Pump | None:
        """Return the Pump for an attempt of a Prewrite; None when only Pumps in `but` are left.

        Only Pumps with our labels qualify; preferred Pumps come first. If no Pump is available, all
        Pumps that etcd lists as online qualify.
        """
        with self._lock:
            ours = [p for p in self._pumps.values() if self._is_ours(p)]
            online = [p for p in ours if p.is_online and p not in but]
            well = [p for p in online if p.is_well]
            able = [p for p in well if not p.backoff.is_on] or well or online
            able = [p for p in able if self._preferred.items() <= p.labels.items()] or able
            if not able:
                return None
            scores = {pump.node_id: pump.score for pump in able}
            return self._pumps[self._selector.pick(scores, start_ts, retry)]

    def report_prewrite(self, pump: Pump, failure: Failure | None) -> None:
        """Record a Prewrite's outcome; a Pump without space also gets none for a while."""
        if pump.backoff.note(failure):
            log.warning("pump %s gets no new transactions for a while: %s", pump.node_id, failure)
        self.report(pump, failure)

    def report(self, pump: Pump, failure: Failure | None) -> None:
        """Record a write's outcome; a Pump that is not well gets no more Prewrites for now."""
        if failure is None:
            if pump.errors_in_a_row or not pump.is_well:
                self._set_well(pump)
            return
        if failure.reason in _BLAMELESS:
            return
        pump.errors_in_a_row += 1
        too_many = pump.errors_in_a_row > self._options.errors_in_a_row_max
        if pump.is_well and (too_many or failure.reason in _FATAL):
            pump.is_well = False
            log.warning("pump %s is unavailable: %s", pump.node_id, failure)
            if failure.reason is Reason.TIMED_OUT:
                pump.drop_connection()

    def missing(self) -> NoPump:
        known = self.all
        if not known:
            problem, hint = "no Pump is registered in etcd", "start one: penstock pump"
            return NoPump(problem, hint, Code.NO_PUMP)
        if not any(map(self._is_ours, known)):
            borne = "; ".join(f"{p.node_id}: {labels_text(p.labels) or 'none'}" for p in known)
            problem = f"no Pump bears the labels {labels_text(self._wanted)}"
            hint = f"correct the client's, or start such a Pump; there are: {borne}"
            return NoPump(problem, hint, Code.NO_PUMP)
        names = ", ".join(pump.node_id for pump in known if self._is_ours(pump))
        such = f" with the labels {labels_text(self._wanted)}" if self._wanted else ""
        problem = f"no Pump{such} is online; registered are {names}"
        return NoPump(problem, "look at `penstock ctl pumps`, start one", Code.NO_PUMP)

    @property
    def all(self) -> Sequence[Pump]:
        with self._lock:
            return list(self._pumps.values())

    def statuses(self) -> dict[str, penstock_pb2.StatusReply | str]:
        """Ask all online Pumps at the same time; return each status, or why there is none."""
        online = [pump for pump in self.all if pump.is_online]
        with ThreadPoolExecutor(max(1, len(online))) as pool:
            answers = pool.map(Pump.status, online)
            return dict(zip([pump.node_id for pump in online], answers, strict=True))

    def close(self, timeout_s: float) -> None:
        self._stop.set()
        self._prober.join()
        for pump in self.all:
            pump.close(timeout_s)

    def _is_ours(self, pump: Pump) -> bool:
        return self._wanted.items() <= pump.labels.items()

    def _follow_one(self, status: NodeStatus) -> None:
        pump = self._pumps.get(status.node_id)
        if pump is None:
            self._pumps[status.node_id] = Pump(status, self.cluster_id, self._options, self._tls)
            return
        was_online, pump.is_online = pump.is_online, status.state is NodeState.ONLINE
        pump.score = status.score
        pump.labels = labels_in(status.label)
        if pump.host != status.host:
            pump.moved(status.host)
            self.on_moved(pump)
        if pump.is_online and not was_online:
            pump.is_well = True
            pump.errors_in_a_row = 0

    def _set_well(self, pump: Pump) -> None:
        if not pump.is_well:
            log.info("pump %s is available again", pump.node_id)
        pump.errors_in_a_row = 0
        pump.is_well = True

    def _probe(self) -> None:
        """Probe the unavailable online Pumps, all in parallel, every few seconds."""
        while not self._stop.wait(self._options.probe_interval_s):
            asked = [(p, PendingWrite(_PROBE)) for p in self.all if p.is_online and not p.is_well]
            for pump, pending in asked:
                pump.submit(pending, 0)
            deadline_s = time.monotonic() + self._options.connect_timeout_s
            for pump, pending in asked:
                failure = pending.settle(deadline_s - time.monotonic())
                if failure is None:
                    self._set_well(pump)
                elif failure.reason is Reason.TIMED_OUT:
                    # The peer may have disappeared silently: only a new connection would show this.
                    pump.drop_connection()
