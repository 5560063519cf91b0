"""The journal: a small synced file of the transactions that may be open on the Pumps.

    {"pump": "pump-1", "first": 17, "last": 80}     before the Prewrites of a group, synced
    {"decided": 17, "commit": 91}                   before its Commits, synced: the first commit_ts
    {"done": 17}                                    when all its Commits were acknowledged

Only the last line can be incomplete, and nothing was sent for an incomplete line. The file is
truncated once no group is open and it has grown.

`settle` ends the groups that an earlier run left open. Where commit_ts are known, Commits may have
been sent: all are sent again, and the group is complete. Where no commit_ts is known, no Commit was
sent: the group is rolled back, from the last transaction to the first.
"""

import errno
import json
import logging
import os
import time
from pathlib import Path
from typing import NamedTuple

from penstock import failpoints
from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator, Retryable
from penstock.log.files import sync_data, sync_folder
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from pumpclient.delivery.pump_set import Pump
from pumpclient.delivery.retries import Delivery
from pumpclient.delivery.session import Session
from pumpclient.delivery.write_queue import PendingWrite
from pumpclient.errors import Failure, Reason

_BYTES_MAX = 1 << 20
_before_journal = failpoints.point("source.before_journal")
_after_journal = failpoints.point("source.after_journal")
_DISK_HINT = "look at the disk of data-dir; what the journal says stays true"


class OpenGroup(NamedTuple):
    """Transactions that may be open; `commit_ts` is empty as long as no Commit was sent."""

    node_id: str
    start_ts: range
    commit_ts: range = range(0)


class Journal:
    """The file; used by the sending and the finishing thread."""

    def __init__(self, path: Path) -> None:
        """Read an earlier run's journal; raise `Corrupt` for lines that no run wrote."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._open = _open_groups(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size
        sync_folder(path.parent)

    @property
    def left(self) -> list[OpenGroup]:
        return list(self._open.values())

    def begin(self, node_id: str, start_ts: range) -> None:
        """Record a group durably; raise `Retryable` for a full disk, as all writes do."""
        record = {"pump": node_id, "first": start_ts[0], "last": start_ts[-1]}
        self._write(record, is_durable=True)
        self._open[start_ts[0]] = OpenGroup(node_id, start_ts)

    def decide(self, start_ts: range, commit_ts: range) -> None:
        first = start_ts[0]
        self._write({"decided": first, "commit": commit_ts[0]}, is_durable=True)
        self._open[first] = self._open[first]._replace(commit_ts=commit_ts)

    def end(self, start_ts: range) -> None:
        self._write({"done": start_ts[0]})
        self._open.pop(start_ts[0], None)

    def settled(self) -> None:
        """Clear the journal: open groups are or will be rolled back; none may be in flight."""
        self._open.clear()
        os.ftruncate(self._file, 0)
        self._size = 0

    def close(self) -> None:
        os.close(self._file)

    def _write(self, record: dict[str, object], *, is_durable: bool = False) -> None:
        if self._size > _BYTES_MAX and not self._open and "pump" in record:
            # No group is open, so nothing before the new entry counts any more.
            os.ftruncate(self._file, 0)
            self._size = 0
        data = json.dumps(record).encode() + b"\n"
        _before_journal()
        try:
            if os.write(self._file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if is_durable:
                sync_data(self._file)
        except OSError as error:
            # Half a line would be taken for damage once other lines follow it.
            os.ftruncate(self._file, self._size)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Retryable(f"{self._path}: {error.strerror}", Code.PATH_UNUSABLE) from error
            raise NeedsOperator(
                f"{self._path}: {error.strerror}", _DISK_HINT, Code.PATH_UNUSABLE
            ) from error
        self._size += len(data)
        _after_journal()


def _open_groups(path: Path) -> dict[int, OpenGroup]:
    if not path.exists():
        return {}
    found: dict[int, OpenGroup] = {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            record = json.loads(line)
            if "done" in record:
                found.pop(record["done"], None)
            elif "decided" in record:
                group, commit = found[record["decided"]], int(record["commit"])
                commit_ts = range(commit, commit + len(group.start_ts))
                found[record["decided"]] = group._replace(commit_ts=commit_ts)
            else:
                first, last = int(record["first"]), int(record["last"])
                found[first] = OpenGroup(str(record["pump"]), range(first, last + 1))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                str(path),
                number,
                f"line {number} cannot be read: {error!r}",
                code=Code.SOURCE_STATE_DAMAGED,
            ) from error
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return found


log = logging.getLogger(__name__)


def settle(session: Session, journal: Journal) -> None:
    """Commit or roll back the journal's open groups, in the background if a Pump does not answer.

    A Pump that was removed from the list took its open transactions with it. Raises `NeedsOperator`
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


def _commit(session: Session, pump: Pump, group: OpenGroup) -> None:
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
            "the source was down for longer than the Pump's txn-timeout-s. Remove the journal;"
            " Drainers stop before the later ones with PS-6015, which says how to go on",
            Code.COMMIT_ORDER_BROKEN,
        )
    options = session.options
    for payload, start_ts, failure in zip(payloads, group.start_ts, failures, strict=True):
        if failure is not None and failure.reason is not Reason.INVALID:
            session.deliveries.add(
                Delivery(
                    pump=pump,
                    payload=payload,
                    what=f"the Commit of {start_ts}",
                    abandon_at_s=time.monotonic() + options.commit_timeout_s,
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
