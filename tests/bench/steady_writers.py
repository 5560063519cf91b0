"""A process of a busy writer: transactions of one row each, at a steady rate, in shared batches.

    python -m tests.bench.steady_writers '{"etcd_url": …}'     a JSON object on stdout

Every transaction has timestamps and a Prewrite and a Commit of its own, as `Transaction` makes
them, but those that are due at one moment travel together (`pumpclient.delivery.group_commit`, as
sources use it): a thread for each would take the machine that is to be measured. The process is one
of its own so that neither side of the measurement waits for the other's interpreter lock. Moments
are of `time.monotonic`, which all processes of a machine share.
"""

import json
import sys
import time
from dataclasses import dataclass

from penstock.wire.binlog import MutationType
from pumpclient import PumpClient
from pumpclient.changes import Changes, ChangeSet, next_row_id
from pumpclient.delivery.group_commit import GROUP_COUNT_MAX, GroupWriter, PendingTransaction
from pumpclient.rows import Table

GATHER_S = 0.01
"""What comes due in this time is one group, or more where the last groups are not through."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What is written: `rate` transactions a second into `bench.t`."""

    etcd_url: str
    rate: int
    seconds: float


class Moments:
    """Notes for each group when its commit_ts were known: a journal that remembers nothing else."""

    def __init__(self) -> None:
        self.of: dict[int, tuple[range, float]] = {}
        self.acknowledged: list[tuple[int, float, float]] = []
        self._decided: tuple[range, float] = (range(0), 0.0)

    def begin(self, node_id: str, start_ts: range) -> None:
        """Forget: this process is not started again."""

    def decide(self, start_ts: range, commit_ts: range) -> None:
        """Note when; groups follow one another."""
        self._decided = commit_ts, time.monotonic()

    def end(self, start_ts: range) -> None:
        """Note the acknowledgement, which is that of the group's last Commit."""
        commit_ts, decided_s = self._decided
        now_s = time.monotonic()
        self.acknowledged += [(ts, decided_s, now_s) for ts in commit_ts]


def write(client: PumpClient, pace: Pace) -> list[tuple[int, float, float]]:
    """Return each commit_ts, when it was known, and when its Commit was acknowledged."""
    table = client.compiled("t", "bench")
    moments = Moments()
    groups = GroupWriter(client.session, moments)
    try:
        began_s = time.monotonic()
        written, total = 0, int(pace.rate * pace.seconds)
        while written < total:
            time.sleep(GATHER_S)
            due = min(total, int((time.monotonic() - began_s) * pace.rate))
            due = min(due, written + GROUP_COUNT_MAX)
            if due > written:
                groups.submit([one_row(table, key) for key in range(written, due)], _nothing)
            written = due
        groups.drain()
    finally:
        groups.close()
    return moments.acknowledged


def one_row(table: Table, key: int) -> PendingTransaction:
    """Return a transaction that inserts one row."""
    image = table.inserted((key, key % 1000, "x" * 100))
    changes = ChangeSet(1 << 20, None)
    inserted = changes.tables[table.info.id] = Changes(table)
    data = table.codec.encode_insert(image, rowid=next_row_id())
    changes.note(inserted, MutationType.INSERT, data)
    return PendingTransaction(changes, None)


def _nothing() -> None:
    """Do nothing."""


if __name__ == "__main__":
    asked = Pace(**json.loads(sys.argv[1]))
    with PumpClient.connect(asked.etcd_url) as connected:
        begun_s = time.process_time()
        committed = write(connected, asked)
        print(json.dumps({"commits": committed, "cpu_s": time.process_time() - begun_s}))
