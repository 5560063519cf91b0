"""Delivers Commits and Rollbacks in the background until their Pump has acknowledged.

Both end a transaction on the Pump that holds its Prewrite, and until one arrives that Pump's stream
waits. A delivery is therefore retried each second, and immediately when the Pump is at another
address, for as long as a retry can help: the Pump may be restarting.

Why a Rollback never hides a commit. A Prewrite that was sent without an answer may be stored on
Pump A although the transaction continued with Pump B. A gets a Rollback, under these rules:

  1. A Rollback is sent only when it is settled that no Commit of this start_ts will ever go to
     that Pump: either the transaction failed before its Commit was sent anywhere, or its
     Prewrite was acknowledged by another Pump, and a Commit goes to that Pump only. A Pump that
     was tried twice and acknowledged in the end does not hold an orphan.
  2. A start_ts is never used again, so no later transaction can be meant.
  3. Pumps are distinguished by node id and not by address, and a connection is used only after its
     peer has given its node id (`connection.py`). A Pump that cannot (TiDB-Binlog's) gets no
     Rollback for an orphan; its resolver asks the database.
  4. Each Pump matches Rollbacks with Prewrites by start_ts in its own log: a Rollback on A does
     not affect B.

A Rollback might overtake its Prewrite if that was still in transit when the connection broke. An
orphan's Rollback is therefore repeated once after a while; it is idempotent. If the client dies
first, the Pump's resolver undoes the orphan after its `txn_timeout`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from pumpclient.delivery.pump_set import Pump
from pumpclient.delivery.write_queue import PendingWrite
from pumpclient.errors import Failure, Reason

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Delivery:
    """One Commit or Rollback in progress; `done` is set once it is acknowledged."""

    pump: Pump
    payload: bytes
    what: str
    abandon_at_s: float  # On the monotonic clock, like `next_try_s`.
    next_try_s: float = 0.0
    repeat_after_s: float | None = None
    needs_known: bool = False
    has_moved: bool = False  # Whether the Pump has moved since the last attempt.
    done: threading.Event = field(default_factory=threading.Event)


class Deliveries:
    """All deliveries of a client, and the thread that makes them; their number is bounded."""

    def __init__(self, *, retry_s: float, attempt_timeout_s: float, count_max: int) -> None:
        self._retry_s = retry_s
        self._attempt_timeout_s = attempt_timeout_s
        self._count_max = count_max
        self._open: list[Delivery] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pumpclient deliveries", daemon=True)
        self._thread.start()

    def add(self, delivery: Delivery) -> bool:
        """Take a delivery over; False when there are too many already, or after `close`.

        If it is refused, the Pump's resolver decides its transaction, which stays open until then:
        the resolver finds a Commit in the outbox or the DDL history, and rolls back all other
        transactions after a timeout, like those of a writer that died. A caller that waits for a
        Commit gets `OutcomeUnknown`.
        """
        with self._changed:
            if self._closed or len(self._open) >= self._count_max:
                log.warning(
                    "%s to pump %s is not followed up", delivery.what, delivery.pump.node_id
                )
                return False
            self._open.append(delivery)
            self._changed.notify()
        return True

    def roll_back(self, pump: Pump, start_ts: int, *, keep_trying_s: float) -> None:
        """Undo a Prewrite that `pump` may hold; the caller must satisfy rule 1 above."""
        binlog = Binlog(tp=BinlogType.ROLLBACK, start_ts=start_ts)
        self.add(
            Delivery(
                pump=pump,
                payload=encode_binlog(binlog),
                what=f"the Rollback of {start_ts}",
                abandon_at_s=time.monotonic() + keep_trying_s,
                repeat_after_s=2 * self._attempt_timeout_s,
                needs_known=True,
            )
        )

    def hurry(self, pump: Pump) -> None:
        """Immediately retry unacknowledged deliveries of a Pump that has a new address."""
        with self._changed:
            for delivery in self._open:
                if delivery.pump is pump and not delivery.done.is_set():
                    delivery.has_moved, delivery.next_try_s = True, 0.0
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Continue for at most `timeout_s`, then abandon the rest and log it."""
        with self._changed:
            self._closed = True
            for delivery in self._open:
                delivery.abandon_at_s = min(delivery.abandon_at_s, time.monotonic() + timeout_s)
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (due := self._wait_for_due()) is not None:
            settled = self._try(due)
            with self._changed:
                self._open = [d for d in self._open if d not in settled]

    def _wait_for_due(self) -> list[Delivery] | None:
        """Wait until deliveries are due; return None once closed and nothing is left."""
        with self._changed:
            while True:
                if self._closed:
                    # A delivery that waits only for its repetition has been acknowledged once:
                    # enough.
                    self._open = [d for d in self._open if not d.done.is_set()]
                    if not self._open:
                        return None
                now_s = time.monotonic()
                due = [d for d in self._open if d.next_try_s <= now_s]
                if due:
                    return due
                next_s = min((d.next_try_s for d in self._open), default=None)
                self._changed.wait(None if next_s is None else next_s - now_s)

    def _try(self, due: Sequence[Delivery]) -> set[Delivery]:
        sent = [(d, PendingWrite(d.payload, needs_known=d.needs_known)) for d in due]
        for delivery, pending in sent:
            delivery.has_moved = False
            delivery.pump.submit(pending, 0)
        deadline_s = time.monotonic() + self._attempt_timeout_s
        settled = set()
        for delivery, pending in sent:
            failure = pending.settle(deadline_s - time.monotonic())
            if failure is None:
                is_settled = self._acknowledged(delivery)
            else:
                is_settled = self._failed(delivery, failure)
            if is_settled:
                settled.add(delivery)
        return settled

    def _acknowledged(self, delivery: Delivery) -> bool:
        was_done = delivery.done.is_set()
        delivery.done.set()
        if was_done or delivery.repeat_after_s is None:
            return True
        delivery.next_try_s = time.monotonic() + delivery.repeat_after_s
        return False

    def _failed(self, delivery: Delivery, failure: Failure) -> bool:
        now_s = time.monotonic()
        delivery.next_try_s = now_s + (0.0 if delivery.has_moved else self._retry_s)
        if delivery.done.is_set():
            return True
        if now_s < delivery.abandon_at_s and failure.reason is not Reason.INVALID:
            return False
        log.warning(
            "abandoned %s to pump %s, its resolver decides: %s",
            delivery.what,
            delivery.pump.node_id,
            failure,
        )
        return True
