"""Rules of the shell and of the storage, each with a switch: a run without one must be found out.

Those of the core have theirs in `tests/kit/replicas/switches.py`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.log.segments import Position
from pump.replication.protocol.messages import Begin
from pump.replication.replica_log import ReplicaLog
from pump.replication.shipping import Shipping
from pump.store.record import Record
from pump.store.storage import Appended, Storage
from pump.store.transactions import Sorter


@dataclass(frozen=True)
class Rules:
    """Which rules hold."""

    name: str = ""
    storage: type[Storage] = Storage
    shipping: type[Shipping] = Shipping
    followed: type[ReplicaLog] = ReplicaLog
    tells_disks_apart: bool = True
    tells_folders_apart: bool = True
    removes_indexes: bool = True
    waits_until_complete: bool = True
    indexes_last: bool = True
    refuses_when_closing: bool = True
    purges_what_is_drained: bool = True
    prewrites_first: bool = True
    holds_for_decided: bool = True
    compares_for_status: bool = True
    compares_histories: bool = True
    refuses_older: bool = True
    stops_drainers: bool = True
    takes_what_is_handed_out: bool = True
    confirms: bool = True
    advances_between_groups: bool = True
    settings: Mapping[str, int | float] = field(default_factory=dict)
    """What of the world is not left to chance, so that it is found out soon."""


class _AnswersAtOnce(Shipping):
    """Answers, indexes and streams what is synced on the own disk."""

    def store(
        self, write: Callable[[], list[Position]], sync: Callable[[], None]
    ) -> list[Position]:
        with self._lock:
            self._wait_until(lambda: self._primary.is_ready and not self._actions)
            positions = write()
            self._do(self._primary.appended(self._log.end))
        sync()
        with self._lock:
            self._do(self._primary.own_synced())
        return positions


class _BeginsInAGroup(Shipping):
    """Begins a segment while the sync of a group is under way."""

    def _begin(self, action: Begin) -> bool:
        is_syncing, self._is_syncing = self._is_syncing, False
        try:
            return super()._begin(action)
        finally:
            self._is_syncing = is_syncing


class _AbandonsWhatIsSealed(Shipping):
    """Goes on after a sync that failed while a segment was to be begun."""

    def _abandon(self) -> None:
        self._do(self._primary.abandoned(self._log.end))


class _HidesSuccession(Shipping):
    """Says nothing of a segment that was begun for a group that could not be written."""

    def _note_succession(self) -> None:
        pass


class _DropsAtOnce(Shipping):
    """Has a purge drop what the entry still lists as needed."""

    def may_drop_before(self, segment: int) -> int:
        return segment


class _MarksWhatIsInDoubt(Storage):
    """Leaves the mark of a clean stop in a segment that was never acknowledged."""

    def close(self) -> None:
        self._copies = None
        super().close()


class _StoresAgain(Storage):
    """Stores a Commit that is repeated once more."""

    def append(self, records: Sequence[Record]) -> Appended:
        self._ledger._repeats_commit = lambda *known: True  # type: ignore[method-assign]
        return super().append(records)


class _Hasty(Sorter):
    @property
    def max_commit_ts(self) -> int:
        return self.largest_ts


class _StreamsPastOpen(Storage):
    """Says that the stream is complete up to the last timestamp, whatever is open."""

    def append(self, records: Sequence[Record]) -> Appended:
        self._ledger.sorter.__class__ = _Hasty
        return super().append(records)


class _AdvancesWhatIsNotIndexed(Storage):
    """Publishes a watermark beside a group that is in the log and not in the index."""

    def advance(self, ts: int) -> None:
        self._ledger.sorter.advance(ts)
        self._max_commit_ts = self._ledger.sorter.max_commit_ts


class _Passing(Sorter):
    @property
    def max_commit_ts(self) -> int:
        return max(super().max_commit_ts, 0 if self.open else self._watermark_ts)


class _AdvancesPastHolds(Storage):
    """Publishes a watermark while decided transactions with timestamps are not stored."""

    def advance(self, ts: int) -> None:
        self._ledger.sorter.__class__ = _Passing
        super().advance(ts)


class _ForgetsTheFloorOfHolds(Storage):
    """Gives decided transactions the floor that others have when they arrive."""

    def append(self, records: Sequence[Record]) -> Appended:
        self._ledger.sorter.floor_of = (  # type: ignore[method-assign]
            lambda start_ts, floor_ts: floor_ts
        )
        return super().append(records)


class _GoesOn(ReplicaLog):
    """Goes on with a copy after a failure of its disk."""

    def close(self) -> None:
        if sys.exc_info()[0] is None:
            super().close()


_BAD_DISKS: Mapping[str, int | float] = {
    "segment_bytes": 300,
    "failing_disks": 0.03,
    "slow_disks": 0.3,
    "silences": 0.8,
    "death": 0,
    "restores_etcd": 0,
    "restores_disks": 0,
}

_TAKEN_OVER: Mapping[str, int | float] = {
    "suspicion": 0.05,
    "guests_stay": 1,
    "sources": 0,
    "watch_late_s": 5.0,
    "etcd_failing": 0.2,
    "fakes": 0,
    "death": 0,
    "failing_disks": 0,
    "silences": 0,
    "restores_etcd": 0,
    "restores_disks": 0,
}

RULES: dict[str, Rules] = {
    rules.name: rules
    for rules in (
        Rules("an answer waits for every listed disk", shipping=_AnswersAtOnce),
        Rules("what a recovery finds is shipped before it is served", waits_until_complete=False),
        Rules(
            "no segment is begun while a sync is under way",
            shipping=_BeginsInAGroup,
            settings=_BAD_DISKS,
        ),
        Rules(
            "what is sealed is not abandoned", shipping=_AbandonsWhatIsSealed, settings=_BAD_DISKS
        ),
        Rules("the core hears of each segment", shipping=_HidesSuccession, settings=_BAD_DISKS),
        Rules("a mark says that all before is acknowledged", storage=_MarksWhatIsInDoubt),
        Rules("a purge keeps what a Drainer needs", purges_what_is_drained=False),
        Rules("a disk that comes back empty is another disk", tells_disks_apart=False),
        Rules("the folder beside a copy never claims for it", tells_folders_apart=False),
        Rules("what failed is opened again", followed=_GoesOn),
        Rules("what is indexed was acknowledged", shipping=_AnswersAtOnce, indexes_last=False),
        Rules("a Commit is stored once", storage=_StoresAgain),
        Rules("an open transaction holds the stream", storage=_StreamsPastOpen),
        Rules("an index is of the log as it was", removes_indexes=False),
        Rules("a Pump that closes takes no Prewrite", refuses_when_closing=False),
        Rules("a Prewrite comes before its commit_ts", prewrites_first=False),
        Rules("decided transactions hold the stream", holds_for_decided=False),
        Rules("a watermark waits for decided transactions", storage=_AdvancesPastHolds),
        Rules("decided transactions have the floor of a hold", storage=_ForgetsTheFloorOfHolds),
        Rules("the address follows the entry", compares_for_status=False),
        Rules("a watermark is confirmed by all copies", confirms=False, settings=_TAKEN_OVER),
        Rules("a watermark is a timestamp of the oracle", takes_what_is_handed_out=False),
        Rules(
            "a watermark comes between two groups",
            advances_between_groups=False,
            storage=_AdvancesWhatIsNotIndexed,
        ),
        Rules(
            "an entry older than a disk is refused",
            compares_histories=False,
            settings={"restores_etcd": 3.0},
        ),
        Rules(
            "a disk older than its log is refused",
            refuses_older=False,
            settings={"restores_disks": 1.0},
        ),
    )
}
