"""Settles what an earlier life of a source left open on the Pumps: rolls it back, from the last on.

A Commit that was sent and is still on its way may come in between. It finds its transaction either
open, or rolled back; and as the last one is rolled back first, a Commit can only win where all
before it win too. What was committed stays: the Pump refuses the Rollback, and the transaction,
when it comes again, is known by its origin.
"""

from __future__ import annotations

import logging
import time

from penstock.codec import encode_binlog
from penstock.model import Binlog, BinlogType
from pumpclient.failures import Reason
from pumpclient.mysql.source.journal import Journal
from pumpclient.pumps import Pump
from pumpclient.session import Session
from pumpclient.write_queue import PendingWrite

log = logging.getLogger(__name__)


def settle(session: Session, journal: Journal) -> None:
    """Roll all back that the journal says is open; what a Pump does not answer, in the background.

    A Pump that is gone from the list took its open transactions with it.
    """
    pumps = {pump.node_id: pump for pump in session.pumps.all}
    for node_id, start_ts in reversed(journal.left):
        pump = pumps.get(node_id)
        if pump is None:
            log.warning("pump %s is gone; %d transactions are left to it", node_id, len(start_ts))
            continue
        _roll_back(session, pump, start_ts)
    journal.settled()


def _roll_back(session: Session, pump: Pump, start_ts: range) -> None:
    timeout_s = session.options.attempt_timeout_s
    pendings = []
    for each in reversed(start_ts):
        payload = encode_binlog(Binlog(tp=BinlogType.ROLLBACK, start_ts=each))
        pending = PendingWrite(payload, needs_known=True)
        pump.submit(pending, timeout_s)
        pendings.append(pending)
    deadline_s = time.monotonic() + timeout_s
    failures = [pending.settle(deadline_s - time.monotonic()) for pending in pendings]
    kept = sum(f is not None and f.reason is Reason.INVALID for f in failures)
    for each, failure in zip(reversed(start_ts), failures, strict=True):
        if failure is not None and failure.reason is not Reason.INVALID:
            session.roll_back(pump, each)
    undone = sum(failure is None for failure in failures)
    log.info(
        "pump %s: of %d transactions that were under way %d are rolled back, %d are committed",
        pump.node_id, len(start_ts), undone, kept,
    )  # fmt: skip
