"""Whose log it is at a start: this disk's, another one's, or no one's who could say."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from google_crc32c import value

from penstock.cluster.log_entry import Copy, LogEntries, LogEntry, Mark
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.log.frame import encode_frames
from penstock.log.segment import BEGIN, Head
from pump.replication.claiming import (
    Claimed,
    Fenced,
    PreviousLog,
    Unseen,
    Wanted,
    claim,
    is_nowhere,
    is_out_of,
    refuse_gone,
    refuse_older,
    refuse_unmarked,
    reinitialise,
)
from pump.replication.protocol.chain import Chain, Link, Seen
from tests.kit.fakes.etcd import MemoryEtcd

OWN, OTHER, THIRD = Copy("pump-1", "d1"), Copy("pump-2", "d2"), Copy("pump-3", "d3")
TWO = Wanted(2, 2)


def chain(*epochs: int, ids: Mapping[int, int] | None = None) -> Chain:
    """Return a log of one segment for each epoch."""
    found = enumerate(epochs)
    return Chain(Link(n, epoch, BEGIN + 10, (ids or {}).get(epoch, 0)) for n, epoch in found)


def listed(entry: LogEntry) -> LogEntries:
    entries = LogEntries(MemoryEtcd())
    assert entries.swap("pump-1", 0, entry) is not None
    return entries


def entry_of(entries: LogEntries) -> LogEntry:
    found = entries.read("pump-1")
    assert found is not None
    return found[0]


def claimed(entries: LogEntries, log: Chain, wanted: Wanted = TWO) -> Claimed:
    found = claim(entries, "pump-1", OWN, log, wanted)
    assert found is not None
    return found


def test_a_log_with_one_copy_that_was_never_listed_needs_no_entry() -> None:
    entries = LogEntries(MemoryEtcd())
    assert claim(entries, "pump-1", OWN, chain(0), Wanted(1, 1)) is None
    assert entries.read("pump-1") is None


def test_the_first_start_with_copies_lists_this_disk_alone() -> None:
    entries = LogEntries(MemoryEtcd())
    entry, revision = claimed(entries, chain(0, 0)).won
    assert entries.read("pump-1") == (entry, revision)
    assert (entry.epoch, entry.primary, entry.replicas) == (1, OWN, ())
    assert not entry.may_acknowledge


def test_each_start_begins_an_epoch_and_keeps_the_copies() -> None:
    entries = listed(LogEntry(epoch=6, primary=OWN, replicas=(OTHER,)))
    entry, _ = claimed(entries, chain(5, 6)).won
    assert (entry.epoch, entry.replicas) == (7, (OTHER,))


def test_a_listed_log_with_one_copy_wanted_now_still_has_epochs() -> None:
    entries = listed(LogEntry(epoch=6, primary=OWN, replicas=(OTHER,)))
    entry, _ = claimed(entries, chain(6), Wanted(1, 1)).won
    assert (entry.epoch, entry.copies, entry.copies_min) == (7, 1, 1)


def test_more_copies_wanted_than_before_are_asked_for_by_the_primary_only() -> None:
    entries = listed(LogEntry(epoch=6, primary=OWN, replicas=(OTHER,)))
    assert claimed(entries, chain(6), Wanted(3, 2)).won[0].copies == 3
    entries = listed(LogEntry(epoch=6, primary=OTHER, replicas=(OWN,)))
    assert claimed(entries, chain(6), Wanted(3, 2)).won[0].copies == 2


def test_a_listed_copy_takes_over_and_one_that_was_not_listed_does_not() -> None:
    entries = listed(LogEntry(epoch=6, primary=OTHER, replicas=(OWN, THIRD)))
    assert claimed(entries, chain(6)).won[0].primary == OWN
    entries = listed(LogEntry(epoch=6, primary=OTHER, replicas=(THIRD,)))
    with pytest.raises(Fenced, match="served by pump pump-2, with another disk, since epoch 6"):
        claim(entries, "pump-1", OWN, chain(6), TWO)
    assert entry_of(entries).primary == OTHER


def test_a_folder_that_is_out_of_a_log_never_claims_it_for_the_copy_beside_it() -> None:
    copied = LogEntry(epoch=6, primary=OTHER, replicas=(OWN, THIRD), since=2)
    for entry in (copied, copied.claimed(OWN)):
        entries = listed(entry)
        with pytest.raises(Fenced):
            claim(entries, "pump-1", OWN, chain(6), TWO, former_since=2)
        assert entry_of(entries) == entry
    assert is_out_of(copied, 2)  # So it is not held against the log, which is longer.
    again = copied.begun_again(OWN, 2, 2)
    assert not is_out_of(again, 2)
    assert not is_out_of(copied, None)
    entries = listed(again)
    with pytest.raises(PreviousLog):
        claim(entries, "pump-1", OWN, chain(6), TWO, former_since=2)
    assert claim(entries, "pump-1", OWN, chain(7), TWO, former_since=2) is not None


LISTED = LogEntry(epoch=6, primary=OTHER, replicas=(Copy("pump-3", "d3", first=9),), needed=8)
NONE_MISSING = Unseen([], [])
THERE = (Link(8, 5, BEGIN), Link(13, 6, BEGIN))


def gone(*edges: Seen, missing: Unseen = NONE_MISSING) -> str | None:
    try:
        refuse_gone("pump-1", OWN, LISTED, edges, missing)
    except Retryable as error:
        return str(error)
    return None


def test_a_pump_names_the_ways_out_if_it_waits_for_a_log_that_no_disk_has() -> None:
    error = gone(Seen(OTHER, ()), Seen(THIRD, ()))
    assert error is not None
    assert "on pump-2, disk d2, pump-3, disk d3, but no disk has it" in error
    begins = "penstock ctl adopt-log pump-1 --pump pump-1 --disk d1 --epoch 6 --empty"
    assert begins in error
    # Nothing is decided before all were seen, and while one that is listed may continue it.
    assert gone(Seen(OTHER, ())) is None
    assert gone(Seen(OTHER, ()), Seen(THIRD, ()), missing=Unseen(["pump-4"], [])) is None
    assert gone(Seen(OTHER, THERE), Seen(THIRD, ())) is None
    # A Pump that was decommissioned does not keep it from saying so, but is named.
    error = gone(Seen(OTHER, ()), Seen(THIRD, ()), missing=Unseen([], ["pump-5"]))
    assert error is not None
    assert "not seen: pump-5 (offline)" in error


@pytest.mark.fault(
    "etcd is put back to before a Pump's first start, and another disk serves its log",
    "the Pump begins no new log before every Drainer has the old one",
    cases="1",
)
def test_a_log_is_nowhere_only_once_the_disks_of_all_pumps_were_seen_without_it() -> None:
    nothing = [Seen(OTHER, ()), Seen(THIRD, ())]
    assert is_nowhere(OWN, LISTED, nothing, NONE_MISSING)
    assert not is_nowhere(OWN, LISTED, nothing[:1], NONE_MISSING)
    for missing in (Unseen(["pump-4"], []), Unseen([], ["pump-5"])):
        assert not is_nowhere(OWN, LISTED, nothing, missing)
    # An etcd from before a Pump's first start does not know it, but a disk has its log.
    for edges in ((THERE[0],), THERE):
        assert not is_nowhere(OWN, LISTED, [nothing[0], Seen(THIRD, edges)], NONE_MISSING)


def test_a_listed_replica_without_the_first_needed_segment_does_not_continue_a_log() -> None:
    # A backup of etcd lists it as needed, but it was purged since; or its file was deleted.
    assert LISTED.needed == 8
    error = gone(Seen(OTHER, (Link(9, 5, BEGIN), THERE[1])), Seen(THIRD, ()))
    assert error is not None
    assert "pump-2, disk d2: 6 (no id), segments 9 to 13" in error
    assert "adopt-log pump-1 --pump pump-2 --disk d2 --epoch 6 --from 9" in error


@pytest.mark.fault(
    "etcd is put back, and only disks have the log that it does not list as complete",
    "the Pump waits and names each of them (PS-3312)",
    cases="1",
)
def test_a_log_that_is_only_on_disks_that_may_not_continue_it_is_named_with_each_of_them() -> None:
    error = gone(Seen(OTHER, ()), Seen(THIRD, THERE))
    assert error is not None
    having = "no disk that may continue it has it: pump-3, disk d3: 6 (no id), segments 8 to 13"
    assert having in error
    continues = "penstock ctl adopt-log pump-1 --pump pump-3 --disk d3 --epoch 6 --from 8"
    assert continues in error
    assert "--empty" in error
    # A disk with a later epoch continues the log, although it is not listed as whole.
    newer = (Link(8, 5, BEGIN), Link(14, 7, BEGIN))
    assert gone(Seen(OTHER, ()), Seen(THIRD, newer)) is None


class PeerDisk:
    """Headers that another disk has, of a log with one segment for each epoch."""

    def __init__(self, first: int, *epochs: int, synced: int = 0) -> None:
        """Each segment has a frame if that says up to where the file was `synced` before."""
        self._epochs = dict(enumerate(epochs, first))
        self._synced = synced

    def fetch(self, number: int, begin: int, end: int) -> bytes:
        if number not in self._epochs:
            raise Retryable("it is not here", code=Code.BYTES_NOT_HERE)
        checked = Head(number, BEGIN, 0, self._epochs[number]).encoded()
        data: bytes = checked + value(checked).to_bytes(4, "little")
        if self._synced:
            at, seed = self._synced, value(checked)
            frames = encode_frames([b"g"], offset=at, synced=at, seed=seed)
            data = b"".join([data.ljust(at, b"\0"), *frames])
        return data[begin:end]


def test_a_folder_from_before_the_epoch_that_its_disk_began_is_refused() -> None:
    entry = LogEntry(epoch=6, primary=OWN, replicas=(OTHER,))
    for other in (PeerDisk(0, 4, 5, 6), PeerDisk(1, 5, 6)):
        with pytest.raises(NeedsOperator, match="segment 2, which this one began in epoch 6"):
            refuse_older("pump-1", OWN, chain(4), entry, [PeerDisk(0), other])
    late = replace(entry, replicas=(replace(OTHER, first=9),))
    with pytest.raises(NeedsOperator, match="segment 10, which this one began in epoch 6"):
        refuse_older("pump-1", OWN, chain(4), late, [PeerDisk(9, 5, 6)])


def test_a_folder_from_within_the_epoch_that_its_disk_began_is_refused() -> None:
    entry = LogEntry(epoch=6, primary=OWN, replicas=(OTHER,))
    with pytest.raises(NeedsOperator, match="segment 2, which this one began in epoch 6"):
        refuse_older("pump-1", OWN, chain(4, 6), entry, [PeerDisk(0, 4, 6, 6)])


def test_a_folder_without_what_etcd_calls_needed_is_refused_without_asking() -> None:
    entry = LogEntry(epoch=6, primary=OWN, replicas=(OTHER,), needed=3)
    with pytest.raises(NeedsOperator, match="etcd lists segment 3 as needed") as raised:
        refuse_older("pump-1", OWN, chain(4, 5, 6), entry, [])
    assert raised.value.code is Code.LOG_OLDER


def test_a_log_that_began_again_is_not_held_against_an_entry_that_was_put_back() -> None:
    entry = LogEntry(epoch=6, primary=OTHER, replicas=(OWN,), needed=3, mark=Mark(3, 6, 99))
    with pytest.raises(NeedsOperator, match="segment 3"):
        refuse_unmarked("pump-1", OWN, chain(5, 6), entry)
    refuse_unmarked("pump-1", OWN, chain(7, 8), entry)
    refuse_older("pump-1", OWN, chain(7, 8), entry, [PeerDisk(0, 7, 8, 8)])


def test_a_disk_that_died_before_it_began_its_epoch_is_not_refused() -> None:
    entry = LogEntry(epoch=6, primary=OWN, replicas=(OTHER,))
    # What the copy has of epoch 5 may be of another primary, and was never acknowledged then.
    refuse_older("pump-1", OWN, chain(4), entry, [PeerDisk(0, 4, 5), PeerDisk(7, 6)])
    refuse_older("pump-1", OWN, chain(4), replace(entry, primary=OTHER), [PeerDisk(0, 4, 6)])
    refuse_older("pump-1", OWN, chain(4), replace(entry, since=5, needed=0), [PeerDisk(0, 4, 6)])


@pytest.mark.fault(
    "the folder of a Pump with a copy is replaced by the one of a backup, and the primary is away",
    "the copy does not take over where the mark in etcd or another copy proves its age"
    " (PS-3311); another copy, the primary, or an operator continues the log; beside its"
    " primary it leaves the list and joins again",
    cases="7 + seeds",
)
def test_a_disk_that_ends_before_the_mark_is_refused_whichever_place_of_the_list_it_has() -> None:
    mark = Mark(1, BEGIN + 8, 5)
    listed_as = (
        LogEntry(epoch=6, primary=OWN, replicas=(OTHER,), mark=mark),
        LogEntry(epoch=6, primary=OTHER, replicas=(OWN,), mark=mark),
        LogEntry(epoch=6, primary=OTHER, eligible=(OWN,), mark=mark),
    )
    for entry in listed_as:
        refuse_older("pump-1", OWN, chain(4, 5), entry, [])
        refuse_older("pump-1", OWN, Chain([Link(2, 5, BEGIN)]), entry, [])
        shorter = Chain([Link(0, 4, BEGIN + 10), Link(1, 5, BEGIN + 7)])
        for older in (chain(4), chain(4, 4), shorter):
            with pytest.raises(NeedsOperator, match="etcd lists segment 1 of epoch 5") as raised:
                refuse_older("pump-1", OWN, older, entry, [])
            command = "adopt-log pump-1 --pump pump-1 --disk d1 --epoch 6 --from 0"
            assert command in raised.value.hint
            assert raised.value.code is Code.LOG_OLDER


def test_a_disk_that_is_not_listed_is_not_held_to_the_mark() -> None:
    entry = LogEntry(epoch=6, primary=OTHER, mark=Mark(9, BEGIN, 6))
    refuse_older("pump-1", OWN, chain(4), entry, [])


def test_a_copy_is_refused_that_ends_before_what_another_one_says_was_acknowledged() -> None:
    entry = LogEntry(epoch=6, primary=OTHER, replicas=(OWN, THIRD))
    more = PeerDisk(0, 4, 6, 6, synced=BEGIN + 20)
    with pytest.raises(NeedsOperator, match="frames of segment 1 that say how much more"):
        refuse_older("pump-1", OWN, chain(4, 6), entry, [more])
    with pytest.raises(NeedsOperator, match="segment 1, which this one had in epoch 6"):
        refuse_older("pump-1", OWN, chain(4), entry, [more])
    # A group that no copy has answered for, and a segment that was only begun, prove nothing.
    refuse_older("pump-1", OWN, chain(4, 6), entry, [PeerDisk(0, 4, 6, synced=BEGIN + 10)])
    refuse_older("pump-1", OWN, chain(4), entry, [PeerDisk(0, 4, 6)])


def test_a_copy_that_lacks_what_a_drainer_needs_does_not_take_over() -> None:
    half = Copy("pump-1", "d1", first=4)
    entries = listed(LogEntry(epoch=6, primary=OTHER, replicas=(half,), needed=3))
    with pytest.raises(Fenced):
        claim(entries, "pump-1", OWN, chain(6), TWO)


def test_a_pump_whose_entry_is_gone_waits_and_names_the_command() -> None:
    with pytest.raises(Retryable, match=r"was copied in epoch 3.*adopt-log pump-1") as raised:
        claim(LogEntries(MemoryEtcd()), "pump-1", OWN, chain(0, 3), TWO)
    assert raised.value.code is Code.LOG_ENTRY_GONE


def test_of_two_that_claim_at_once_one_is_displaced() -> None:
    class Overtaken(LogEntries):
        def swap(self, node_id: str, revision: int, entry: LogEntry) -> int | None:
            if entry.primary == OWN:
                super().swap(node_id, revision, entry.claimed(THIRD))
            return super().swap(node_id, revision, entry)

    entries = Overtaken(MemoryEtcd())
    entries.swap("pump-1", 0, LogEntry(epoch=6, primary=OTHER, replicas=(OWN, THIRD)))
    with pytest.raises(Fenced, match="pump-3"):
        claim(entries, "pump-1", OWN, chain(6), TWO)


def test_a_claim_whose_answer_is_lost_is_won_all_the_same() -> None:
    class Mute(LogEntries):
        def swap(self, node_id: str, revision: int, entry: LogEntry) -> int | None:
            super().swap(node_id, revision, entry)
            return None

    entries = Mute(MemoryEtcd())
    entries.swap("pump-1", 0, LogEntry(epoch=6, primary=OWN, replicas=(OTHER,)))
    assert claimed(entries, chain(6)).won[0].epoch == 7


def test_a_displaced_pump_begins_again_in_a_later_epoch_unless_the_entry_has_changed() -> None:
    entries = listed(LogEntry(epoch=6, primary=OTHER, replicas=(THIRD,), needed=9))
    found = entries.read("pump-1")
    assert found is not None
    entry = reinitialise(entries, "pump-1", OWN, found, TWO)
    assert (entry.epoch, entry.primary, entry.replicas, entry.needed) == (7, OWN, (), 0)
    assert entry_of(entries) == entry
    with pytest.raises(Retryable):
        reinitialise(entries, "pump-1", OWN, found, TWO)


def test_fewer_copies_needed_than_before_let_go_of_eligible_disks() -> None:
    alone = LogEntry(epoch=6, primary=OWN, eligible=(OTHER,))
    assert alone.asking(2, 2).eligible == (OTHER,)
    assert alone.asking(2, 1).eligible == ()


def test_a_disk_that_is_listed_again_never_claims_with_what_it_had_before() -> None:
    entries = listed(LogEntry(epoch=7, primary=OTHER, needed=3))
    found = entries.read("pump-1")
    assert found is not None
    reinitialise(entries, "pump-1", OWN, found, TWO)
    for died in (chain(5), chain(0)):  # Before its folder was emptied, and after.
        with pytest.raises(PreviousLog, match="began again in epoch 8"):
            claim(entries, "pump-1", OWN, died, TWO)
    won = claimed(entries, chain(8)).won[0]
    assert won.epoch == 9
    assert claimed(entries, chain(8, 9, ids={9: won.id})).won[0].since == 8
