"""An entry that is older than a disk is found out, and only the disk that has all continues."""

from dataclasses import replace

import pytest

from penstock.cluster.log_entry import Copy, LogEntries, LogEntry, Mark
from penstock.cluster.node_registry import NodeState
from penstock.codes import Code
from penstock.errors import Retryable
from penstock.log.segment import BEGIN
from pump.replication.claiming import Unseen, refuse_other_history
from pump.replication.protocol.chain import Chain, Link, Seen, Verdict, foreign, judge, lacks
from tests.kit.fakes.etcd import MemoryEtcd

OWN, OTHER, THIRD = Copy("pump-1", "d1"), Copy("pump-2", "d2"), Copy("pump-3", "d3")
ENTRY = LogEntry(epoch=2, primary=OWN, replicas=(OTHER,), ids=(11, 12))
"""What was put back: the log was in epoch 2."""
AT_2 = (Link(0, 1, 90, 11), Link(1, 2, 90, 12))
AT_4 = (*AT_2, Link(2, 4, 90, 14))


def judged(own: tuple[Link, ...], *others: tuple[Link, ...], missing: str = "") -> Verdict:
    seen = [Seen(copy, links) for copy, links in zip((OTHER, THIRD), others, strict=False)]
    return judge(ENTRY, OWN, Chain(own), seen, [missing] if missing else [])


def test_an_entry_as_new_as_all_disks_stands_whoever_is_missing() -> None:
    assert judged(AT_2, AT_2, missing="pump-3") == Verdict()
    assert judged(AT_2, (), AT_2[:1]) == Verdict()


def test_the_disk_that_has_all_adopts_the_log_in_an_epoch_after_all_that_were() -> None:
    empty = Link(2, 6, BEGIN, 16)
    found = judged(AT_4, AT_2, (*AT_2, empty)).adopted
    assert found is not None
    assert (found.epoch, found.primary, found.copies_known) == (6, OWN, (OWN,))
    assert found.claimed(OWN).epoch == 7
    assert not foreign(found, AT_4)


def test_it_waits_until_the_disks_of_all_pumps_were_seen() -> None:
    found = judged(AT_4, AT_2, missing="pump-3")
    assert found.adopted is None
    assert "not seen: pump-3" in found.waits


def test_a_disk_that_lacks_what_another_one_has_leaves_the_log_to_that() -> None:
    assert "another disk has more" in judged(AT_2, AT_4).waits
    assert "another disk has more" in judged(AT_2, AT_4, AT_2).waits


def test_histories_that_have_parted_are_refused_and_both_are_named() -> None:
    own = (*AT_2, Link(2, 3, 90, 23))
    for found in (judged(own, AT_4), judged(AT_2, AT_4, own)):
        assert (found.adopted, found.waits) == (None, "")
        for name in ("pump-1, disk d1", "pump-2, disk d2: 4 (id 00000e)", "epoch 2 (id 00000c)"):
            assert name in found.refuses


def test_one_epoch_that_was_won_twice_is_two_histories() -> None:
    twice = replace(ENTRY, epoch=4, ids=(11, 12, 13, 24))
    seen = [Seen(OTHER, AT_4)]
    assert judge(twice, OWN, Chain((*AT_2, Link(2, 4, 90, 24))), seen, []).refuses


def test_the_end_of_an_epoch_that_was_never_acknowledged_does_not_part_two_disks() -> None:
    torn = (AT_2[0], AT_2[1]._replace(end=120))
    assert judged(AT_4, torn).adopted is not None
    assert "another disk has more" in judged(torn, AT_4).waits


def test_a_disk_without_the_oldest_segments_does_not_adopt_the_log() -> None:
    assert judged(AT_4[1:], AT_2).adopted is None


def test_segments_that_no_drainer_lacks_may_be_gone_from_the_disk_that_has_all() -> None:
    drained = replace(ENTRY, needed=1)
    seen = [Seen(OTHER, AT_2)]
    assert judge(drained, OWN, Chain(AT_4[1:]), seen, []).adopted is not None
    assert judge(drained, OWN, Chain(AT_4[2:]), seen, []).refuses


def test_a_log_that_has_begun_again_since_the_entry_counts_its_segments_from_0() -> None:
    former = replace(ENTRY, needed=7)
    again = (Link(0, 4, BEGIN, 14), Link(1, 5, 90, 15), Link(2, 6, 90, 16))
    found = judge(former, OWN, Chain(again), [Seen(OTHER, again[:2])], []).adopted
    assert found is not None
    assert found.needed == 0
    seen = [Seen(OTHER, again[:2])]
    assert judge(former, OWN, Chain(again[1:]), seen, []).adopted is None


def test_histories_are_not_called_parted_before_all_disks_were_seen() -> None:
    own = (*AT_2, Link(2, 3, 90, 23))
    found = judged(own, AT_4, missing="pump-3")
    assert (found.adopted, found.refuses) == (None, "")
    assert "not seen: pump-3" in found.waits


WON_BY_OTHER = LogEntry(epoch=3, primary=OTHER, eligible=(OWN,), ids=(11, 12, 13))
"""Another disk won the epoch, died, and this one continued in the next: it has no segment of it."""


def judged_under(entry: LogEntry, *others: tuple[Link, ...]) -> Verdict:
    seen = [Seen(copy, links) for copy, links in zip((OTHER, THIRD), others, strict=False)]
    return judge(entry, OWN, Chain(AT_4), seen, [])


def test_a_disk_that_was_whole_under_the_entry_needs_no_segment_of_its_epoch() -> None:
    empty = Link(2, 3, BEGIN, 13)
    for other in ((), AT_2, (*AT_2, empty)):
        assert judged_under(WON_BY_OTHER, other).adopted is not None


def test_a_disk_that_was_not_whole_under_the_entry_has_what_one_has_that_was() -> None:
    third = replace(WON_BY_OTHER, eligible=(THIRD,))
    assert judged_under(third, (), AT_2).adopted is not None
    assert judged_under(third, AT_2).adopted is not None
    assert judged_under(third).refuses  # No disk shows what was acknowledged.
    assert judged_under(third, (*AT_2, Link(2, 3, 90, 13))).refuses


def test_a_segment_of_an_earlier_epoch_that_holds_nothing_is_no_history() -> None:
    later = replace(ENTRY, epoch=5, ids=(11, 12, 23, 24, 25))
    assert foreign(later, (*AT_2, Link(2, 4, BEGIN, 14))) is None
    assert foreign(later, AT_4) == AT_4[-1]
    assert foreign(replace(later, ids=()), AT_4) is None  # An operator has chosen.


NONE_MISSING = Unseen([], [])


def compared(entries: LogEntries, own: Chain, seen: Seen, missing: Unseen) -> list[str]:
    withdrawn: list[str] = []
    refuse_other_history(
        *(entries, "pump-1", OWN, own, [seen], missing),
        withdraw_offline=lambda: withdrawn.append("pump-1"),
    )
    return withdrawn


def test_an_operator_is_told_how_each_history_is_continued_by_a_pump_that_waits() -> None:
    entries = LogEntries(MemoryEtcd())
    entries.swap("pump-1", 0, ENTRY)
    own = Chain((*AT_2, Link(2, 3, 90, 23)))
    with pytest.raises(Retryable, match="choose the history") as refused:
        compared(entries, own, Seen(OTHER, AT_4), NONE_MISSING)
    assert refused.value.code is Code.LOG_PUT_BACK
    for pump, disk in (("pump-1", "d1"), ("pump-2", "d2")):
        command = f"penstock ctl adopt-log pump-1 --pump {pump} --disk {disk} --epoch 4 --from 0"
        assert command in str(refused.value)
    with pytest.raises(Retryable, match="another disk has more"):
        compared(entries, Chain(AT_2), Seen(OTHER, AT_4), NONE_MISSING)
    found = entries.read("pump-1")
    assert found is not None
    assert found[0] == ENTRY


def test_the_disk_that_has_all_puts_the_entry_right_before_it_claims() -> None:
    entries = LogEntries(MemoryEtcd())
    entries.swap("pump-1", 0, ENTRY)
    # Else Drainers, and this Pump with another disk, would take a state from before for its end.
    assert compared(entries, Chain(AT_4), Seen(OTHER, AT_2), NONE_MISSING) == ["pump-1"]
    found = entries.read("pump-1")
    assert found is not None
    assert (found[0].epoch, found[0].ids, found[0].replicas) == (4, (14,), ())


@pytest.mark.fault(
    "etcd is put back, and the disk of a Pump that it calls offline is not seen",
    "the log waits for that Pump, and the error names its key in etcd and `adopt-log` (PS-3312)",
    cases="1",
)
def test_a_pump_that_an_etcd_calls_offline_that_was_put_back_is_waited_for() -> None:
    entries = LogEntries(MemoryEtcd())
    entries.swap("pump-1", 0, ENTRY)
    states = {name: NodeState.ONLINE for name in ("pump-1", "pump-2")}
    missing = Unseen.of({**states, "pump-3": NodeState.OFFLINE}, ["pump-1", "pump-2"])
    # It may have started again since, and have more of the log than any disk that was seen.
    with pytest.raises(Retryable) as waits:
        compared(entries, Chain(AT_4), Seen(OTHER, AT_2), missing)
    assert waits.value.code is Code.LOG_PUT_BACK
    for remedy in (
        "not seen: pump-3 (offline)",
        "If an offline Pump is gone for good, delete its key in etcd: /tidb-binlog/v1/pumps/pump-3",
        "penstock ctl adopt-log pump-1 --pump pump-1 --disk d1 --epoch 4 --from 0",
    ):
        assert remedy in str(waits.value)
    found = entries.read("pump-1")
    assert found is not None
    assert found[0] == ENTRY
    seen = Unseen.of(states, ["pump-1", "pump-2"])
    compared(entries, Chain(AT_4), Seen(OTHER, AT_2), seen)


def test_an_entry_as_new_as_all_disks_waits_for_no_pump() -> None:
    entries = LogEntries(MemoryEtcd())
    entries.swap("pump-1", 0, ENTRY)
    missing = Unseen(["pump-4"], ["pump-3"])
    assert compared(entries, Chain(AT_2), Seen(OTHER, AT_2), missing) == []


def test_a_disk_with_a_former_log_lacks_the_mark_whatever_numbers_its_segments_have() -> None:
    mark = Mark(11, BEGIN, 17, 59)
    assert lacks(Chain([Link(12, 5, 90, 15), Link(13, 5, 90, 15)]), mark)
    assert lacks(Chain([Link(9, 5, 90, 15), Link(11, 5, 90, 15)]), mark)
    purged = Chain([Link(12, 17, 90, 59), Link(13, 18, 90, 60)])
    assert not lacks(purged, mark)
