"""The ledger of a simulated run: what writers did, and whether the merge brings it as promised.

Checked at each transaction that comes out of the merge: a writer wrote it, with these bytes; it
committed, at this commit_ts; it comes once. Of a source, no place is passed over; repetitions are
left to a Drainer. That they come in order, the merger itself asserts. At the end: each one whose
Prewrite was acknowledged, and that committed, has come.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.wire.codec import decode_binlog
from tests.kit.replicas.world import Violation


@dataclass(slots=True)
class Transaction:
    start_ts: int
    value: bytes = field(repr=False)
    is_durable: bool = False
    """True once a Pump has acknowledged its Prewrite."""
    is_rolled_back: bool = False
    commit_ts: int = 0
    is_acknowledged: bool = False
    """True once a Pump has acknowledged its Commit."""
    writer_is_gone: bool = False
    place: int = 0
    """Where it is in the source that passes it on, decided; 0 without one."""


class Ledger:
    """All transactions, and what of them is downstream; restarts of the Drainer take some back."""

    def __init__(self) -> None:
        self.transactions: dict[int, Transaction] = {}
        self.arrived: dict[int, int] = {}
        """By start_ts: the commit_ts at which it came."""
        self.seen = 0
        """The last place of the source that came."""

    def begun(self, start_ts: int, value: bytes) -> Transaction:
        found = self.transactions[start_ts] = Transaction(start_ts, value)
        return found

    def outcome(self, start_ts: int) -> int | None:
        """Return what the writers' database says: a commit_ts, 0 for a Rollback, None: open yet.

        Who asks for a transaction whose writer is gone has it rolled back.
        """
        found = self.transactions[start_ts]
        if found.place:  # Its Prewrite is all that is left of it.
            found.is_rolled_back = True
        elif found.commit_ts:
            return found.commit_ts
        if found.writer_is_gone:
            found.is_rolled_back = True
        return 0 if found.is_rolled_back else None

    def merged(self, commit_ts: Sequence[int], payloads: Sequence[bytes]) -> None:
        """Take what the merge emits; raise `Violation`."""
        for ts, payload in zip(commit_ts, payloads, strict=True):
            binlog = decode_binlog(payload)
            if binlog.is_fake:
                continue
            found = self.transactions.get(binlog.start_ts)
            if found is None or binlog.prewrite_value != found.value:
                raise Violation(f"invented: no one wrote the transaction {binlog.start_ts} so")
            if found.is_rolled_back or (ts, binlog.commit_ts) != (found.commit_ts,) * 2:
                raise Violation(f"invented: {found} comes at {ts}")
            if not found.is_durable and not found.place:
                raise Violation(f"invented: {found} was never acknowledged")
            if binlog.start_ts in self.arrived:
                raise Violation(f"twice: {found} comes once more")
            if found.place > self.seen + 1:
                raise Violation(f"lost: {found} comes after the place {self.seen}")
            self.seen = max(self.seen, found.place)
            self.arrived[binlog.start_ts] = ts

    def taken_back(self, after_ts: int) -> None:
        """The Drainer begins again at its checkpoint; what it applied since did not stay."""
        self.arrived = {start: ts for start, ts in self.arrived.items() if ts <= after_ts}
        self.seen = max((self.transactions[start].place for start in self.arrived), default=0)

    def missing(self) -> list[Transaction]:
        return [
            found
            for found in self.transactions.values()
            if found.is_durable and found.commit_ts and found.start_ts not in self.arrived
        ]

    def check_passed(self, emitted_ts: int) -> None:
        """Raise `Violation` for a transaction that the merge has passed without bringing it."""
        for found in self.missing():
            if found.commit_ts <= emitted_ts:
                raise Violation(f"lost: {found}, and the merge is at {emitted_ts}")
