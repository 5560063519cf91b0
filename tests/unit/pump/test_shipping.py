"""What a storage sees of its log's copies: a group is stored, refused, or the Pump is deposed.

The log is on a disk in memory. One copy is enough here, so that no other Pump is asked: with more
of them `tests/fault/test_copies.py` says the same.
"""

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from penstock.cluster.log_entry import Copy, Disk, LogEntries, LogEntry
from penstock.errors import Retryable
from penstock.log.segments import Position, Segments, WriteFailed
from pump.config import PumpConfig
from pump.replication import shipping
from pump.replication.claiming import Wanted, claim
from pump.replication.peers import Peers
from pump.replication.protocol.chain import Chain, Link
from pump.replication.protocol.messages import Refusal
from pump.replication.shipping import Deposed, Shipping
from tests.kit.fakes.etcd import MemoryEtcd
from tests.kit.fakes.files import MemoryFiles
from tests.kit.wait import eventually

OWN, OTHER = Copy("pump-1", "d1"), Copy("pump-2", "d2")


class Rig:
    """A log that is shipped, and what it is listed in."""

    def __init__(self, copies_min: int, eligible: tuple[Copy, ...]) -> None:
        self.files = MemoryFiles()
        self.entries = LogEntries(MemoryEtcd())
        self.segments = Segments.open(Path("/log"), files=self.files, segment_bytes_max=200)
        chain = Chain(Link(*link) for link in self.segments.links())
        if eligible:
            entry = LogEntry(epoch=0, primary=OWN, eligible=eligible, copies_min=copies_min)
            self.entries.swap("pump-1", 0, entry)
        claimed = claim(self.entries, "pump-1", OWN, chain, Wanted(2, copies_min))
        assert claimed is not None
        peers = Peers(1, OWN)
        peers.disks = {copy.disk: Disk(copy.disk, copy.pump, "nowhere:1") for copy in eligible}
        self.shipping = Shipping(
            *(claimed, self.segments),
            node_id="pump-1",
            entries=self.entries,
            peers=peers,
            replica_timeout_s=1.0,
        )
        self.deposed = threading.Event()
        self.shipping.on_over = self.deposed.set
        self.shipping.start()

    def store(self, payload: bytes) -> list[Position]:
        return self.shipping.store(partial(self.segments.append, [payload]), self.segments.sync)

    @property
    def entry(self) -> LogEntry:
        found = self.entries.read("pump-1")
        assert found is not None
        return found[0]

    def take_over(self) -> None:
        found = self.entries.read("pump-1")
        assert found is not None
        assert self.entries.swap("pump-1", found[1], found[0].claimed(OTHER)) is not None


@contextmanager
def shipped(copies_min: int = 1, eligible: tuple[Copy, ...] = ()) -> Iterator[Rig]:
    rig = Rig(copies_min, eligible)
    try:
        yield rig
    finally:
        rig.shipping.close()


def test_a_group_that_is_stored_is_acknowledged_in_a_segment_of_the_epoch() -> None:
    with shipped() as rig:
        (position,) = rig.store(b"group")
        assert rig.segments.read(position) == b"group"
        assert rig.shipping.acknowledged == rig.segments.end
        assert rig.segments.links()[-1][1] == rig.entry.epoch == 1


def test_groups_go_into_the_next_segment_where_one_is_full() -> None:
    with shipped() as rig:
        stored = [rig.store(b"x" * 90) for _ in range(7)]
        assert [rig.segments.read(position) for (position,) in stored] == [b"x" * 90] * 7
        assert len(rig.segments.links()) > 3
        assert rig.shipping.acknowledged == rig.segments.end


@pytest.mark.parametrize("call", ["write", "sync", "create", "rename", "sync_folder"])
def test_a_group_that_the_disk_does_not_take_is_no_part_of_the_log(call: str) -> None:
    with shipped() as rig:
        rig.store(b"x" * 200)  # The next one begins a segment.
        rig.files.fail_once(call)
        with pytest.raises(WriteFailed):
            rig.store(b"refused")
        rig.store(b"taken")
        assert [payload for _, payload in rig.segments.scan()] == [b"x" * 200, b"taken"]
        assert rig.shipping.acknowledged == rig.segments.end


def test_a_pump_that_sees_another_primary_stores_nothing_more() -> None:
    with shipped() as rig:
        rig.store(b"before")
        rig.take_over()
        eventually(rig.deposed.is_set)
        with pytest.raises(Deposed, match="pump-2 is the primary in epoch 2"):
            rig.store(b"after")
        assert not rig.shipping.are_enough


def test_a_pump_with_a_full_disk_sees_another_primary_too() -> None:
    with shipped(copies_min=2) as rig:

        def full(call: str, path: Path) -> None:
            if call == "create":
                raise OSError(errno.ENOSPC, "no space left", str(path))

        rig.files.fail = full
        # It has to begin an epoch, which takes a segment, and cannot.
        rig.shipping.answered(OTHER.disk, Refusal(promised=2))
        eventually(lambda: rig.entry.epoch > 1)
        assert rig.segments.links()[-1][1] == 1
        rig.take_over()
        eventually(rig.deposed.is_set)


def test_with_too_few_copies_a_group_waits_and_new_transactions_are_refused() -> None:
    with shipped(copies_min=2) as rig:
        assert not rig.shipping.are_enough
        with pytest.raises(Retryable, match="1 of 2 copies of this Pump's log are there"):
            rig.shipping.check()
        assert not rig.shipping.wait_until_complete(0.01)
        failures: list[BaseException] = []

        def store() -> None:
            try:
                rig.store(b"waits")
            except Deposed as error:
                failures.append(error)

        thread = threading.Thread(target=store)
        thread.start()
        rig.shipping.close()
        thread.join()
        assert [str(error) for error in failures] == ["this Pump stops"]


def test_who_can_acknowledge_alone_confirms_a_watermark_and_who_has_too_few_copies_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with shipped() as rig:
        rig.shipping.confirm()
        rig.take_over()
        eventually(rig.deposed.is_set)
        with pytest.raises(Deposed, match="pump-2 is the primary in epoch 2"):
            rig.shipping.confirm()
    monkeypatch.setattr(shipping, "_CONFIRMED_WITHIN_S", 0.01)
    with (
        shipped(copies_min=2) as rig,
        pytest.raises(Retryable, match="1 of 2 copies of this Pump's log are there"),
    ):
        rig.shipping.confirm()


def test_a_disk_that_may_take_over_is_asked_again_before_it_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert PumpConfig().takeover_after_s > shipping._BACK_OFF_ELIGIBLE_S
    monkeypatch.setattr(shipping, "_BACK_OFF_S", 600.0)  # Of a disk that cannot take over.
    with shipped(copies_min=2, eligible=(OTHER,)) as rig:
        asked = "one is being given the log"
        eventually(lambda: asked in rig.shipping.problem())
        eventually(lambda: asked not in rig.shipping.problem())
        eventually(lambda: asked in rig.shipping.problem())


def test_a_purge_waits_until_the_entry_says_that_the_segments_are_not_needed() -> None:
    with shipped() as rig:
        for _ in range(4):
            rig.store(b"x" * 200)
        assert rig.shipping.may_drop_before(3) == 0
        eventually(lambda: rig.entry.needed == 3)
        eventually(lambda: rig.shipping.may_drop_before(3) == 3)
        assert rig.shipping._primary.chain.first == 3, "what is purged can be shipped no more"


def test_an_operator_reads_who_has_the_log_and_what_is_missing() -> None:
    with shipped() as rig:
        facts = rig.shipping.facts()
        assert facts.copies == "1 of 2, at least 1"
        assert (facts.copies_present, facts.copies_wanted, facts.copies_min) == (1, 2, 1)
        assert facts.copies_on == "pump-1"
        assert "there is no other Pump whose disk could take one" in str(facts.copies_problem)


def broken(number: int) -> Callable[[str, Path], None]:
    """Return a disk that takes no new file, for this reason."""

    def fail(call: str, path: Path) -> None:
        if call == "create":
            raise OSError(number, "the disk is broken", str(path))

    return fail


@pytest.mark.parametrize(("number", "is_well"), [(errno.EIO, False), (errno.ENOSPC, True)])
def test_a_disk_that_takes_nothing_is_said_and_only_a_full_one_keeps_its_log(
    monkeypatch: pytest.MonkeyPatch, number: int, is_well: bool
) -> None:
    monkeypatch.setattr(shipping, "STUCK_AFTER_S", 0.1)
    with shipped() as rig:
        rig.store(b"taken")
        rig.files.fail = broken(number)
        rig.shipping.answered(OTHER.disk, Refusal(promised=2))  # An epoch is to begin.
        eventually(lambda: not rig.shipping.are_enough)
        with pytest.raises(Retryable, match=r"the disk of this Pump has taken nothing for \d+ s"):
            rig.shipping.check()
        assert rig.shipping.is_well is is_well
        rig.files.fail = lambda call, path: None
        eventually(lambda: rig.shipping.are_enough)
        assert rig.shipping.is_well
        rig.store(b"taken again")


def test_a_sync_that_does_not_return_is_a_disk_that_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shipping, "STUCK_AFTER_S", 0.1)
    hangs, is_over = threading.Event(), threading.Event()

    def sync() -> None:
        hangs.set()
        assert is_over.wait(10)

    with shipped() as rig:
        write = partial(rig.segments.append, [b"hangs"])
        thread = threading.Thread(target=rig.shipping.store, args=(write, sync))
        thread.start()
        assert hangs.wait(10)
        eventually(lambda: not rig.shipping.are_enough)
        assert not rig.shipping.is_well
        is_over.set()
        thread.join()
        assert rig.shipping.are_enough


def test_a_defect_of_what_looks_after_the_copies_ends_the_primary(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with shipped() as rig:
        rig.store(b"before")
        monkeypatch.setattr(rig.shipping, "_maintain", lambda: 1 // 0)
        eventually(rig.deposed.is_set)
        with pytest.raises(Deposed, match="what looks after the copies has failed"):
            rig.store(b"after")
    assert "ZeroDivisionError" in caplog.text
