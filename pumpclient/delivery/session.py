"""The state that all transactions of one client share, and the two phases of a commit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.cluster.fence import WriterFence
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.oracle.client import Oracle
from penstock.wire.binlog import Binlog
from penstock.wire.codec import encode_binlog
from pumpclient.delivery.payload import Payload
from pumpclient.delivery.prewrite import Prewriter
from pumpclient.delivery.pump_set import Pump, Pumps
from pumpclient.delivery.retries import Deliveries, Delivery
from pumpclient.errors import OutcomeUnknown, Reason
from pumpclient.options import Options
from pumpclient.schema import Schemas


class _RolledBack(Exception):
    """The Pump's verdict about the transaction contradicts our Commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The parts of a client; all of them are safe to share between threads."""

    oracle: Oracle
    schemas: Schemas
    fence: WriterFence
    pumps: Pumps
    deliveries: Deliveries
    prewriter: Prewriter
    write_timeout_s: float
    options: Options

    @contextmanager
    def prewritten(self, prewrite: Payload) -> Iterator[Pump]:
        """Run the block with the Prewrite durable on a Pump; undo it when the block raises.

        The block decides the transaction and must not send anything: after it raised, no Commit may
        exist anywhere, or it would conflict with the Rollback sent from here. After
        `OutcomeUnknown` nothing is sent: the Pump's resolver will find out.
        """
        home = self.prewriter.write(prewrite)
        try:
            yield home
        except OutcomeUnknown:
            raise
        except BaseException:
            self.roll_back(home, prewrite.start_ts)
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
        is_done = False
        is_followed = False
        try:
            is_done = wait and self._commit_now(home, payload)
        except _RolledBack as verdict:
            is_done = True
            # The Pump's resolver was quicker, so this is a verdict and not an unknown outcome.
            raise Retryable(
                f"transaction {commit.start_ts} did not happen: pump {home.node_id}: {verdict}",
                Code.TRANSACTION_ROLLED_BACK,
            ) from verdict
        finally:
            # Also after an interrupt: a decided transaction is delivered.
            if not is_done:
                is_followed = self.deliveries.add(delivery)
        if not wait or is_done:
            return
        raise OutcomeUnknown(
            f"pump {home.node_id} did not acknowledge the Commit of {commit.start_ts} in"
            f" {self.write_timeout_s:g} s"
            + ("; it is being delivered in the background" if is_followed else ""),
            start_ts=commit.start_ts,
            commit_ts=commit.commit_ts,
            wait=delivery.done.wait,
        )

    def _commit_now(self, home: Pump, payload: bytes) -> bool:
        deadline_s = time.monotonic() + self.write_timeout_s
        while True:
            host, failure = home.host, home.write(payload)
            self.pumps.report(home, failure)
            if failure is None:
                return True
            if failure.reason is Reason.INVALID:
                raise _RolledBack(failure.message)
            if time.monotonic() + self.options.commit_retry_s > deadline_s:
                return False
            home.wait_until_moved(host, self.options.commit_retry_s)
