"""Both sides of a log's copies, one step at a time; what they do together is simulated."""

from dataclasses import replace

import pytest

from penstock.cluster.log_entry import Copy, LogEntry, Mark
from penstock.log.segment import BEGIN
from penstock.log.segments import Place
from pump.replication.protocol.chain import Chain, Link
from pump.replication.protocol.messages import (
    Acknowledge,
    Append,
    Ask,
    Begin,
    Confirmed,
    Cut,
    Damaged,
    Have,
    Prepend,
    Refusal,
    ReplicaState,
    Reply,
    Send,
    StepDown,
    Swap,
    Sync,
    Write,
    WriteBefore,
)
from pump.replication.protocol.primary import Primary
from pump.replication.protocol.replica import Claim, Replica

A, B, C = (Copy(f"pump-{n}", f"disk-{n}") for n in "abc")
OLD = (Link(0, 1, 100), Link(1, 3, 80))


def entry(*replicas: Copy, epoch: int = 4, needed: int = 0) -> LogEntry:
    return LogEntry(epoch=epoch, primary=A, replicas=replicas, needed=needed)


def primary(*replicas: Copy, links: tuple[Link, ...] = OLD) -> Primary:
    found = Primary(A, Chain(links), (entry(*replicas), 7))
    assert found.start()[0] == Begin(links[-1].number + 1, 4)
    return found


def header(segment: int, epoch: int, previous: Link | None, at: int = 4) -> Append:
    return Append(at, segment, epoch, 0, BEGIN, previous, None, 0)


def test_two_logs_are_the_same_up_to_the_last_segment_of_the_same_epoch() -> None:
    own = Chain((*OLD, Link(2, 4, 50)))
    assert own.agreement(OLD) == Place(1, 80)
    assert own.agreement((Link(0, 1, 100), Link(1, 2, 900))) == Place(0, 100)
    assert own.agreement((Link(1, 3, 60), Link(2, 3, 60))) == Place(1, 60)
    assert own.agreement((Link(7, 9, 60),)) is None
    assert own.last_with_frames() == 2
    assert Chain((*OLD, Link(2, 4, BEGIN), Link(3, 5, BEGIN))).last_with_frames() == 1


def test_the_mark_in_etcd_is_what_every_listed_disk_has_in_this_epoch() -> None:
    log = primary(B)
    log.answered(B.disk, ReplicaState(4, OLD))
    assert log.marks() == []
    log.answered(B.disk, Have(4, Place(2, BEGIN), 0))
    log.appended(Place(2, BEGIN + 10))
    assert not log.is_marked
    (swap,) = log.marks()
    assert isinstance(swap, Swap)
    assert swap.entry == replace(entry(B), mark=Mark(2, BEGIN, 4))
    assert log.swapped(8) == []
    assert log.is_marked
    assert log.marks() == []
    log.answered(B.disk, Have(4, Place(2, BEGIN + 10), 0))
    log.own_synced()
    (swap,) = log.marks()
    assert isinstance(swap, Swap)
    assert swap.entry.mark == Mark(2, BEGIN + 10, 4)


@pytest.mark.fault(
    "the folder of a Pump with a copy is replaced by the one of a backup, and the primary is away"
)
@pytest.mark.parametrize("links", [OLD[:1], (OLD[0], Link(1, 3, 60)), (OLD[0], Link(1, 2, 99))])
def test_a_copy_that_was_put_back_is_off_every_list_before_it_is_given_the_rest(
    links: tuple[Link, ...],
) -> None:
    marked = replace(entry(B, C), copies=3, mark=Mark(1, 80, 3))
    log = Primary(A, Chain(OLD), (marked, 7))
    log.start()
    (swap,) = log.answered(B.disk, ReplicaState(4, links))
    assert isinstance(swap, Swap)
    assert (swap.entry.replicas, swap.entry.eligible) == ((C,), ())
    log.swapped(8)
    assert log.candidate(B) == [Send(B, Ask(5))]
    assert isinstance(log.answered(B.disk, ReplicaState(5, links))[0], Send)


def test_a_copy_that_was_put_back_to_before_its_older_segments_is_off_every_list_first() -> None:
    links = Chain((*OLD, Link(2, 3, 60)))
    marked = replace(entry(B, C), copies=3, needed=1, mark=Mark(2, 60, 3))
    log = Primary(A, links, (marked, 7))
    log.start()
    (swap,) = log.answered(B.disk, ReplicaState(4, (Link(2, 3, 60),)))
    assert isinstance(swap, Swap)
    assert (swap.entry.replicas, swap.entry.eligible) == ((C,), ())
    purged = ReplicaState(4, (OLD[1], Link(2, 3, 60)))
    assert not any(isinstance(action, Swap) for action in log.answered(C.disk, purged))


def test_a_listed_disk_with_a_former_log_is_not_eligible_while_it_is_given_this_log() -> None:
    began_again = (Link(0, 3, 100), Link(1, 3, 80))
    marked = replace(entry(B), since=3, mark=Mark(1, 80, 3))
    log = Primary(A, Chain(began_again), (marked, 7))
    log.start()
    (swap,) = log.answered(B.disk, ReplicaState(4, (Link(8, 1, 99), Link(9, 2, 60))))
    assert isinstance(swap, Swap)
    assert (swap.entry.replicas, swap.entry.eligible) == ((), ())


def test_older_segments_go_on_when_a_live_group_says_first_that_one_is_there() -> None:
    log = primary(Copy(B.pump, B.disk, 2), links=(*OLD, Link(2, 3, 60)))
    log.answered(B.disk, ReplicaState(4, (Link(2, 3, 60),)))
    *_, older = log.answered(B.disk, Have(4, Place(3, BEGIN), 2))
    assert older == Send(Copy(B.pump, B.disk, 2), Prepend(4, OLD[1]))
    log.own_synced()
    log.appended(Place(3, 50))
    *_, older = log.answered(B.disk, Have(4, Place(3, 50), 1))
    assert older == Send(Copy(B.pump, B.disk, 2), Prepend(4, OLD[0]))
    assert log.answered(B.disk, Have(4, Place(2, 0), 1)) == []  # The first one's own answer.


def test_a_copy_is_asked_again_when_what_it_was_being_given_is_purged() -> None:
    log = primary()
    log.candidate(C)
    (begin,) = log.answered(C.disk, ReplicaState(4, ()))
    assert begin == Send(C, Append(4, 1, 3, 0, BEGIN, OLD[0], (), 0))
    log.dropped(2)
    assert log.answered(C.disk, Have(4, Place(1, BEGIN), 1)) == [Send(C, Ask(4))]
    (again,) = log.answered(C.disk, ReplicaState(4, (Link(1, 3, BEGIN),)))
    assert again == Send(C, Append(4, 2, 4, 0, BEGIN, None, (Link(1, 3, BEGIN),), 0))


def test_a_listed_copy_with_nothing_of_this_log_joins_again() -> None:
    partial = Copy(B.pump, B.disk, 1)
    log = primary(partial, C)
    (swap,) = log.answered(B.disk, ReplicaState(4, (Link(1, 2, 50), Link(2, 3, 70))))
    assert isinstance(swap, Swap)
    assert (swap.entry.replicas, swap.entry.eligible) == ((C,), ())


def whole_copies(*replicas: Copy, copies: int = 2) -> Primary:
    found = Primary(A, Chain(OLD), (replace(entry(*replicas), copies=copies, copies_min=1), 7))
    found.start()
    for copy in replicas:
        found.answered(copy.disk, ReplicaState(4, OLD[copy.first :]))
        found.answered(copy.disk, Have(4, Place(2, BEGIN), copy.first))
    return found


def test_a_disk_that_leaves_stays_listed_while_the_other_one_is_no_whole_copy() -> None:
    log = whole_copies(B, Copy(C.pump, C.disk, 1))
    assert log.draining({B.disk}) == []
    assert log.staying_complete == [A.disk]
    assert log.missing_bytes(C.disk) == 100
    assert log.missing_bytes("disk-x") is None


def test_a_copy_too_many_goes_when_the_one_that_was_to_leave_stays() -> None:
    log = Primary(A, Chain(OLD), (entry(B, C), 7))
    assert [type(action) for action in log.start()] == [Begin, Send, Send]
    (swap,) = log.draining(())
    assert isinstance(swap, Swap)
    assert [copy.disk for copy in swap.entry.replicas] == [B.disk]


def test_a_log_that_is_to_stay_after_all_is_not_given_away() -> None:
    log = whole_copies(B)
    log.moves_to(B.disk)
    log.moves_to("")
    assert log.draining(()) == []
    assert log.staying_complete == [A.disk, B.disk]


def test_what_a_failed_sync_left_is_followed_by_another_segment() -> None:
    log = Primary(A, Chain(OLD), (LogEntry(epoch=4, primary=A, copies_min=1), 7))
    log.start()
    log.appended(Place(2, BEGIN + 50))
    assert log.abandoned(Place(2, BEGIN)) == [Begin(3, 4)]
    assert log.own_synced() == [Acknowledge(Place(3, BEGIN))]


def test_a_copy_takes_what_fits_and_says_so_when_it_is_synced() -> None:
    copy = Replica(Chain(OLD))
    assert copy.receive(header(2, 4, Link(1, 3, 60))) == [
        Cut(Place(1, 60)),
        Write(2, 4, 0),
        Sync(),
        Reply(Have(4, Place(2, BEGIN), 0)),
    ]
    again = Append(4, 1, 3, BEGIN, 60, None, None, 0)
    assert copy.receive(again) == [Reply(Have(4, Place(1, 60), 0))]
    more = Append(4, 2, 4, BEGIN, 40, None, None, 0)
    assert copy.receive(more)[:2] == [Write(2, 4, BEGIN), Sync()]


@pytest.mark.parametrize(
    "request_",
    [
        header(2, 4, Link(1, 2, 80)),
        header(2, 4, Link(1, 3, 81)),
        header(5, 4, Link(4, 4, 80)),
        header(2, 4, None),
        Append(4, 1, 3, 90, 95, None, None, 0),
        Append(4, 2, 4, BEGIN, 95, None, None, 0),
        Append(4, 9, 4, 0, BEGIN, None, OLD[:1], 0),
        Prepend(4, Link(5, 1, 50)),
    ],
)
def test_a_copy_says_where_it_stands_about_what_does_not_fit(request_: Append) -> None:
    copy = Replica(Chain(OLD))
    assert copy.receive(request_) == [Reply(ReplicaState(4, OLD))]
    assert tuple(copy.chain.links) == OLD


def test_older_segments_are_put_before_the_first_one() -> None:
    copy = Replica(Chain(OLD[1:]))
    assert copy.receive(Prepend(4, OLD[0])) == [WriteBefore(OLD[0]), Reply(Have(4, Place(1, 0), 0))]
    assert copy.chain.first == 0


def test_a_claim_is_lost_on_a_disk_that_has_promised_a_later_epoch_meanwhile() -> None:
    copy = Replica(Chain(OLD))
    claim = Claim(B, copy)
    claim.entry_seen(entry(B), 7)
    copy.receive(Ask(6))
    claim.swapped(8)
    assert claim.is_over
    assert claim.won is None


def test_the_epoch_is_confirmed_by_every_replica_that_is_listed() -> None:
    log = primary(B, C)
    asked = log.confirm()
    ask = Ask(4, confirms=1)
    assert asked == [Send(B, ask), Send(C, ask)]
    assert log.answered(B.disk, Confirmed(4, 1)) == []
    assert log.confirmed == 0
    log.answered(C.disk, Confirmed(3, 1))
    assert log.confirmed == 0, "an answer of another epoch"
    log.answered(C.disk, Confirmed(4, 1))
    assert log.confirmed == 1
    log.confirm()
    log.answered(B.disk, Confirmed(4, 1))
    assert log.confirmed == 1, "an answer to the question before"


def test_the_epoch_is_confirmed_by_a_replica_that_may_be_listed_by_now() -> None:
    log = Primary(A, Chain(OLD), (replace(entry(), copies=2, copies_min=1), 7))
    log.start()
    log.own_synced()
    assert log.confirm() == []
    assert log.confirmed == 1, "no other disk can be the primary"
    log.candidate(B)
    log.answered(B.disk, ReplicaState(4, ()))
    (swap,) = [a for a in log.answered(B.disk, Have(4, Place(2, BEGIN), 1)) if isinstance(a, Swap)]
    assert swap.entry.replica(B.disk) is not None
    assert log.confirm() == [Send(B, Ask(4, confirms=2))]
    assert log.confirmed == 0
    log.answered(B.disk, Confirmed(4, 2))
    assert log.confirmed == 2


def test_the_epoch_is_not_confirmed_while_another_disk_may_take_over() -> None:
    found = replace(entry(), eligible=(B,), copies=2, copies_min=2)
    log = Primary(A, Chain(OLD), (found, 7))
    log.start()
    log.confirm()
    assert log.confirmed == 0


def test_a_replica_confirms_no_epoch_before_its_promise_and_none_while_it_is_damaged() -> None:
    copy, ask = Replica(Chain(OLD)), Ask(3, confirms=9)
    assert copy.receive(ask) == [Reply(Confirmed(3, 9))]
    copy.promise(4)
    assert copy.receive(ask) == [Reply(Refusal(4))]
    assert Replica(Chain(OLD)).receive(Ask(2, confirms=9)) == [Reply(Refusal(3))]
    assert Replica(Chain(), damage=5).receive(ask) == [Reply(Damaged(3, 5))]


def test_a_promise_beyond_the_next_epoch_is_of_a_newer_primary_and_never_outbid() -> None:
    log = primary(B)
    (swap,) = log.answered(B.disk, Refusal(5))
    assert isinstance(swap, Swap)
    assert swap.entry.epoch == 5
    (over,) = primary(B).answered(B.disk, Refusal(6))
    assert isinstance(over, StepDown)
    assert "has promised epoch 6, this is epoch 4" in over.why


def test_a_listed_copy_of_another_history_ends_the_primary_and_is_not_cut() -> None:
    found = replace(entry(B), ids=(1, 2, 3, 4))
    log = Primary(A, Chain(tuple(link._replace(epoch_id=link.epoch) for link in OLD)), (found, 7))
    log.start()
    (over,) = log.answered(B.disk, ReplicaState(4, (OLD[0]._replace(epoch_id=9),)))
    assert isinstance(over, StepDown)
    assert "of another history than epoch 4 (id 000004) in etcd" in over.why


def test_a_disk_with_another_history_gets_no_copy() -> None:
    found = replace(entry(B), ids=(1, 2, 3, 4), copies=3)
    log = Primary(A, Chain(tuple(link._replace(epoch_id=link.epoch) for link in OLD)), (found, 7))
    log.start()
    log.candidate(C)
    strange = Link(1, 4, 90, 9)
    assert log.answered(C.disk, ReplicaState(4, (OLD[0], strange))) == []
    assert (log.learner, log.foreign_disks) == (None, {C.disk: strange})


def test_a_copy_never_has_bytes_of_an_epoch_that_was_won_twice() -> None:
    copy = Replica(Chain((Link(0, 4, 100, 7),)))
    assert copy.receive(Append(4, 0, 4, 80, 90, None, None, 0, epoch_id=8)) == [
        Reply(ReplicaState(4, (Link(0, 4, 100, 7),)))
    ]
    assert copy.receive(Append(4, 0, 4, 80, 90, None, None, 0, epoch_id=7)) == [
        Reply(Have(4, Place(0, 90), 0))
    ]


def test_a_disk_with_a_later_history_than_the_entry_claims_nothing() -> None:
    claim = Claim(A, Replica(Chain((Link(0, 5, 100, 7),))))
    claim.start()
    assert claim.entry_seen(entry(B), 7) == []
    assert claim.is_over


def test_epochs_get_ids_only_once_all_pumps_know_them() -> None:
    for gives, before, after in ((True, (), 1), (True, (1, 2), 3), (False, (1, 2), 0)):
        claim = Claim(A, Replica(Chain((Link(0, 1, 100),))), gives_ids=gives)
        claim.start()
        (swap,) = claim.entry_seen(replace(entry(B), ids=before), 7)
        assert isinstance(swap, Swap)
        assert len(swap.entry.ids) == after
