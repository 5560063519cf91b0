"""Makes a Prewrite durable on some Pump, even while individual Pumps fail.

    pick a Pump ─> write ─> acknowledged: the transaction's home, its Commit goes there
        ^            │
        │            ├─ no answer, broken: it may be stored; remember, ask the next Pump
        └────────────┴─ refused: ask the next Pump; out of space: never this Pump again

Once the home is settled (or no Pump became the home), all other Pumps that may have stored the
Prewrite get a Rollback (see `retries.py`), because an orphan would block their streams.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable
from pumpclient.delivery.payload import Payload
from pumpclient.delivery.pump_set import Pump, Pumps
from pumpclient.delivery.retries import Deliveries
from pumpclient.errors import Failure, Reason
from pumpclient.options import Options


@dataclass(slots=True)
class _Tries:
    """The attempts made so far for one Prewrite."""

    deadline_s: float
    count: int = 0
    asked: set[Pump] = field(default_factory=set)
    full: set[Pump] = field(default_factory=set)
    too_old: set[Pump] = field(default_factory=set)
    untrusted: set[Pump] = field(default_factory=set)
    suspects: set[Pump] = field(default_factory=set)
    last: Failure | None = None

    @property
    def useless(self) -> set[Pump]:
        return self.full | self.too_old | self.untrusted


class Prewriter:
    """Writes Prewrites for all threads."""

    def __init__(
        self, pumps: Pumps, deliveries: Deliveries, write_timeout_s: float, options: Options
    ) -> None:
        self._pumps = pumps
        self._deliveries = deliveries
        self._write_timeout_s = write_timeout_s
        self._options = options

    def write(self, prewrite: Payload) -> Pump:
        """Make a Prewrite durable and return the Pump that has it.

        Tries until the write time-out has passed and every Pump was tried, then raises `Retryable`;
        `NoPump` when no Pump exists; `NeedsOperator` when all are out of space. After any error no
        Pump will ever see a Commit of this `start_ts`.
        """
        tries = _Tries(time.monotonic() + self._write_timeout_s)
        home: Pump | None = None
        try:
            while home is None:
                pump = self._next_pump(tries, prewrite.start_ts)
                if pump is not None and self._try(tries, pump, prewrite):
                    home = pump
            return home
        finally:
            for pump in tries.suspects - {home}:
                self._deliveries.roll_back(
                    pump, prewrite.start_ts, keep_trying_s=self._options.commit_timeout_s
                )

    def _next_pump(self, tries: _Tries, start_ts: int) -> Pump | None:
        """Return the Pump to ask, or None after a pause; raise when it is time to stop."""
        pump = self._pumps.pick(start_ts, tries.count, tries.useless)
        overdue = time.monotonic() > tries.deadline_s
        if pump is None:
            if tries.untrusted:
                raise _untrusted(tries.untrusted, tries.last)
            if tries.too_old:
                raise _too_old(tries.too_old, tries.last)
            if tries.full:
                raise _out_of_space(tries.full, tries.last)
            if overdue:
                raise self._pumps.missing()
            time.sleep(self._options.prewrite_retry_s)
        elif pump in tries.asked:
            if overdue and tries.count > len(self._pumps.all):
                raise Retryable(
                    f"no Pump took the Prewrite in {self._write_timeout_s:g} s and"
                    f" {tries.count} tries; the last error: {tries.last}",
                    Code.PREWRITE_NOT_TAKEN,
                )
            time.sleep(self._options.prewrite_retry_s)
        return pump

    def _try(self, tries: _Tries, pump: Pump, prewrite: Payload) -> bool:
        was_suspect = pump in tries.suspects
        # Before the write and not after it, so that an interrupt within it also leaves a suspect.
        tries.suspects.add(pump)
        failure = prewrite.write_to(pump)
        self._pumps.report_prewrite(pump, failure)
        if failure is None:
            return True
        if not failure.maybe_stored and not was_suspect:
            tries.suspects.discard(pump)
        tries.count += 1
        tries.asked.add(pump)
        tries.last = failure
        if failure.reason is Reason.NO_SPACE:
            tries.full.add(pump)
        elif failure.reason is Reason.TOO_OLD:
            tries.too_old.add(pump)
        elif failure.reason is Reason.CERTIFICATE:
            tries.untrusted.add(pump)
        elif failure.reason is Reason.INVALID:
            raise Malformed(
                f"pump {pump.node_id} refuses a binlog of {len(prewrite)} bytes: {failure.message}",
                "nothing was written; change what the message names",
                Code.PREWRITE_REFUSED,
            )
        elif failure.reason is Reason.CLUSTER_MISMATCH:
            raise NeedsOperator(
                f"pump {pump.node_id}: {failure.message}",
                "it belongs to another cluster: check its --etcd-urls, and this writer's",
                Code.CLUSTER_MISMATCH,
            )
        return False


def _untrusted(pumps: set[Pump], last: Failure | None) -> NeedsOperator:
    names = ", ".join(sorted(pump.node_id for pump in pumps))
    return NeedsOperator(
        f"no Pump takes the Prewrite: {names}; the last one: {last}",
        "correct the certificates; what is not committed was rolled back",
        Code.PREWRITE_REFUSED,
    )


def _too_old(pumps: set[Pump], last: Failure | None) -> NeedsOperator:
    names = ", ".join(sorted(pump.node_id for pump in pumps))
    return NeedsOperator(
        f"no Pump that is online takes a transaction of this size: {names}; the last one says:"
        f" {last}",
        "update the Pumps, or write smaller transactions",
        Code.PREWRITE_REFUSED,
    )


def _out_of_space(full: set[Pump], last: Failure | None) -> NeedsOperator:
    names = ", ".join(sorted(pump.node_id for pump in full))
    return NeedsOperator(
        f"every Pump that is online is out of space: {names}; the last one says: {last}",
        "free disk space there, shorten gc, or start another Pump",
        Code.PREWRITE_REFUSED,
    )
