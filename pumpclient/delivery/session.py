"""The state that all transactions of one client share, and the two phases of a commit.

A Prewrite becomes durable on some Pump, even while individual Pumps fail:

    pick a Pump ─> write ─> acknowledged: the transaction's home, its Commit goes there
        ^            │
        │            ├─ no answer, broken: it may be stored; remember, ask the next Pump
        └────────────┴─ refused: ask the next Pump; out of space: never this Pump again

Once the home is settled (or no Pump became the home), all other Pumps that may have stored the
Prewrite get a Rollback (see `retries.py`), because an orphan would block their streams.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from penstock.cluster.fence import WriterFence
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator, Retryable
from penstock.oracle.client import Oracle
from penstock.wire.binlog import Binlog
from penstock.wire.codec import encode_binlog
from pumpclient.delivery.payload import Payload
from pumpclient.delivery.pump_set import Pump, Pumps
from pumpclient.delivery.retries import Deliveries, Delivery
from pumpclient.errors import Failure, OutcomeUnknown, Reason
from pumpclient.options import Options
from pumpclient.schema import Schemas

_USELESS: Final = {
    Reason.CERTIFICATE: (
        "no Pump takes the Prewrite: {}; the last one: {}",
        "correct the certificates; what is not committed was rolled back",
    ),
    Reason.TOO_OLD: (
        "no Pump that is online takes a transaction of this size: {}; the last one says: {}",
        "update the Pumps, or write smaller transactions",
    ),
    Reason.NO_SPACE: (
        "every Pump that is online is out of space: {}; the last one says: {}",
        "free disk space there, shorten gc, or start another Pump",
    ),
}
"""A Pump with such a failure is not asked again; the error when no other Pump is left, by rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The parts of a client; all of them are safe to share between threads."""

    oracle: Oracle
    schemas: Schemas
    fence: WriterFence
    pumps: Pumps
    deliveries: Deliveries
    write_timeout_s: float
    options: Options

    def prewrite(self, payload: Payload) -> Pump:
        """Make a Prewrite durable and return the Pump that has it.

        Tries until the write time-out has passed and every Pump was tried, then raises `Retryable`;
        `NoPump` when no Pump exists; `NeedsOperator` when all are out of space. After any error no
        Pump will ever see a Commit of this `start_ts`.
        """
        return _Attempts(self, payload).run()

    @contextmanager
    def prewritten(self, payload: Payload) -> Iterator[Pump]:
        """Run the block with the Prewrite durable on a Pump; undo it when the block raises.

        The block decides the transaction and must not send anything: after it raised, no Commit may
        exist anywhere, or it would conflict with the Rollback sent from here. After
        `OutcomeUnknown` nothing is sent: the Pump's resolver will find out.
        """
        home = self.prewrite(payload)
        try:
            yield home
        except OutcomeUnknown:
            raise
        except BaseException:
            self.roll_back(home, payload.start_ts)
            raise

    def roll_back(self, home: Pump, start_ts: int) -> None:
        """Undo a Prewrite in the background; its Commit must never be sent, before or after."""
        keep_trying_s = self.options.commit_timeout_s
        self.deliveries.roll_back(home, start_ts, keep_trying_s=keep_trying_s)

    def commit(self, home: Pump, commit: Binlog, *, start_s: float, wait: bool) -> None:
        """Deliver a Commit to the Pump of its Prewrite; raise `OutcomeUnknown` as it says.

        Raises `Retryable` when that Pump has already rolled the transaction back.

        `start_s` is when `start_ts` was fetched, on the monotonic clock: soon after
        `commit_timeout_s` from then the Pump may give its own verdict, so no Commit goes out later.
        """
        payload = encode_binlog(commit)
        delivery = Delivery(
            pump=home,
            payload=payload,
            what=f"the Commit of {commit.start_ts}",
            abandon_at_s=start_s + self.options.commit_timeout_s,
        )
        failure, is_settled, is_followed = None, False, False
        try:
            if wait:
                failure = self._commit_now(home, payload)
                is_settled = failure is None or failure.reason is Reason.INVALID
        finally:
            # Also after an interrupt: a decided transaction is delivered.
            if not is_settled:
                is_followed = self.deliveries.add(delivery)
        if is_settled and failure is not None:
            # The Pump's resolver was quicker, so this is a verdict and not an unknown outcome.
            raise Retryable(
                f"transaction {commit.start_ts} did not happen: pump {home.node_id}:"
                f" {failure.message}",
                Code.TRANSACTION_ROLLED_BACK,
            )
        if is_settled or not wait:
            return
        raise OutcomeUnknown(
            f"pump {home.node_id} did not acknowledge the Commit of {commit.start_ts} in"
            f" {self.write_timeout_s:g} s"
            + ("; it is being delivered in the background" if is_followed else ""),
            start_ts=commit.start_ts,
            commit_ts=commit.commit_ts,
            wait=delivery.done.wait,
        )

    def _commit_now(self, home: Pump, payload: bytes) -> Failure | None:
        deadline_s = time.monotonic() + self.write_timeout_s
        while True:
            host, failure = home.host, home.write(payload)
            self.pumps.report(home, failure)
            if failure is None or failure.reason is Reason.INVALID:
                return failure
            if time.monotonic() + self.options.commit_retry_s > deadline_s:
                return failure
            home.wait_until_moved(host, self.options.commit_retry_s)


class _Attempts:
    """The attempts made so far for one Prewrite."""

    def __init__(self, session: Session, payload: Payload) -> None:
        self._session = session
        self._payload = payload
        self._deadline_s = time.monotonic() + session.write_timeout_s
        self._count = 0
        self._asked: set[Pump] = set()
        self._useless: dict[Pump, Reason] = {}
        self._suspects: set[Pump] = set()
        self._last: Failure | None = None

    def run(self) -> Pump:
        home: Pump | None = None
        try:
            while home is None:
                pump = self._next_pump()
                if pump is not None and self._try(pump):
                    home = pump
            return home
        finally:
            for pump in self._suspects - {home}:
                self._session.roll_back(pump, self._payload.start_ts)

    def _next_pump(self) -> Pump | None:
        """Return the Pump to ask, or None after a pause; raise when it is time to stop."""
        session = self._session
        pump = session.pumps.pick(self._payload.start_ts, self._count, self._useless)
        is_overdue = time.monotonic() > self._deadline_s
        if pump is None:
            for reason, (problem, hint) in _USELESS.items():
                names = sorted(p.node_id for p, why in self._useless.items() if why is reason)
                if names:
                    problem = problem.format(", ".join(names), self._last)
                    raise NeedsOperator(problem, hint, Code.PREWRITE_REFUSED)
            if is_overdue:
                raise session.pumps.missing()
            time.sleep(session.options.prewrite_retry_s)
        elif pump in self._asked:
            if is_overdue and self._count > len(session.pumps.all):
                raise Retryable(
                    f"no Pump took the Prewrite in {session.write_timeout_s:g} s and"
                    f" {self._count} tries; the last error: {self._last}",
                    Code.PREWRITE_NOT_TAKEN,
                )
            time.sleep(session.options.prewrite_retry_s)
        return pump

    def _try(self, pump: Pump) -> bool:
        was_suspect = pump in self._suspects
        # Before the write and not after it, so that an interrupt within it also leaves a suspect.
        self._suspects.add(pump)
        failure = pump.prewrite(self._payload)
        self._session.pumps.report_prewrite(pump, failure)
        if failure is None:
            return True
        if not failure.maybe_stored and not was_suspect:
            self._suspects.discard(pump)
        self._count += 1
        self._asked.add(pump)
        self._last = failure
        if failure.reason in _USELESS:
            self._useless[pump] = failure.reason
        elif failure.reason is Reason.INVALID:
            raise Malformed(
                f"pump {pump.node_id} refuses a binlog of {len(self._payload)} bytes:"
                f" {failure.message}",
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
