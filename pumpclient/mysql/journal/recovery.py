"""Settles what an earlier life of a source left open on the Pumps, as its journal says.

Where commit_ts are known, Commits may have been sent: all are sent again, and the group is whole.
Where none are, none was sent: the group is rolled back, from the last to the first.
"""

from __future__ import annotations

import logging
import time

from penstock.errors import NeedsOperator
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from pumpclient.delivery.pump_set import Pump
from pumpclient.delivery.retries import Delivery
from pumpclient.delivery.session import Session
from pumpclient.delivery.write_queue import PendingWrite
from pumpclient.errors import Failure, Reason
from pumpclient.mysql.journal.journal import Group, Journal

log = logging.getLogger(__name__)


def settle(session: Session, journal: Journal) -> None:
    """Commit or roll back all that the journal has; what a Pump does not answer, in the background.

    A Pump that is gone from the list took its open transactions with it. Raises `NeedsOperator`
    when a Pump has rolled back a part of a group whose rest is committed.
    """
    pumps = {pump.node_id: pump for pump in session.pumps.all}
    for group in journal.left:
        pump = pumps.get(group.node_id)
        if pump is None:
            log.warning("pump %s is gone with %d transactions", group.node_id, len(group.start_ts))
        elif group.commit_ts:
            _commit(session, pump, group)
        else:
            _roll_back(session, pump, group.start_ts)
    journal.settled()


def _commit(session: Session, pump: Pump, group: Group) -> None:
    payloads = [
        encode_binlog(Binlog(tp=BinlogType.COMMIT, start_ts=start, commit_ts=commit))
        for start, commit in zip(group.start_ts, group.commit_ts, strict=True)
    ]
    failures = _answers(session, pump, payloads)
    refused = [n for n, f in enumerate(failures) if f and f.reason is Reason.INVALID]
    if refused and len(refused) < len(failures):
        raise NeedsOperator(
            f"pump {pump.node_id} has rolled back {len(refused)} of {len(failures)} transactions"
            f" from {group.start_ts[0]} on, the others are committed",
            hint="the source was down for longer than the Pump's txn-timeout-s: compare the tables,"
            " then remove the journal",
        )
    options = session.options
    for payload, start_ts, failure in zip(payloads, group.start_ts, failures, strict=True):
        if failure is not None and failure.reason is not Reason.INVALID:
            session.deliveries.add(
                Delivery(
                    pump=pump,
                    payload=payload,
                    what=f"the Commit of {start_ts}",
                    give_up_s=time.monotonic() + options.commit_timeout_s,
                )
            )
    log.info("pump %s: %d transactions are committed to the end", pump.node_id, len(failures))


def _roll_back(session: Session, pump: Pump, start_ts: range) -> None:
    backwards = start_ts[::-1]
    failures = _answers(
        session,
        pump,
        [encode_binlog(Binlog(tp=BinlogType.ROLLBACK, start_ts=each)) for each in backwards],
    )
    for each, failure in zip(backwards, failures, strict=True):
        if failure is not None:
            session.roll_back(pump, each)
    log.info("pump %s: %d transactions are rolled back", pump.node_id, len(start_ts))


def _answers(session: Session, pump: Pump, payloads: list[bytes]) -> list[Failure | None]:
    timeout_s = session.options.attempt_timeout_s
    pendings = [PendingWrite(payload, needs_known=True) for payload in payloads]
    for pending in pendings:
        pump.submit(pending, timeout_s)
    deadline_s = time.monotonic() + timeout_s
    return [pending.settle(deadline_s - time.monotonic()) for pending in pendings]
