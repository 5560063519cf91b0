"""The rules of the protocol, each with a switch: a run without one of them must be found out.

A rule that the simulation does not miss is one that it does not test. Those of the core are one
method each; a switch replaces it. Those that a shell has to keep are flags of the world.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from penstock.cluster.log_entry import Copy, LogEntry
from penstock.log.segments import Place
from pump.replication.protocol import chain
from pump.replication.protocol.chain import Link, Verdict
from pump.replication.protocol.messages import (
    Actions,
    Answer,
    Append,
    Ask,
    Confirmed,
    Damaged,
    ReplicaState,
    Reply,
    Request,
)
from pump.replication.protocol.primary import Follower, Primary
from pump.replication.protocol.replica import Claim, Replica
from tests.kit.replicas.world import Rules


class _ListsAtOnce(Primary):
    def _is_complete(self, learner: Follower) -> bool:
        return learner.at is not None


class _ListsWhatWasAcknowledged(Primary):
    def _is_complete(self, learner: Follower) -> bool:
        return learner.have >= self.acknowledged


class _AcknowledgesAlone(Primary):
    def _counted(self) -> list[Follower]:
        return []


class _AcknowledgesUnsynced(Primary):
    def appended(self, end: Place) -> Actions:
        actions = super().appended(end)
        self.synced = self.chain.end
        return [*actions, *self._settled()]


class _AcknowledgesBelowTheLeast(Primary):
    def _settled(self) -> Actions:
        entry, self.entry = self.entry, replace(self.entry, copies_min=1)
        actions = super()._settled()
        self.entry = entry
        return actions


class _ForgetsWhatIsUnderWay(Primary):
    def _counted(self) -> list[Follower]:
        return list(self._followers.values())


class _ConfirmsAlone(Primary):
    @property
    def confirmed(self) -> int:
        return self.confirms


class _TakesAnEarlierConfirmation(Primary):
    def answered(self, disk: str, answer: Answer) -> Actions:
        if isinstance(answer, Confirmed):
            answer = answer._replace(confirms=self.confirms)
        return super().answered(disk, answer)


class _ConfirmsAnyEpoch(Replica):
    def receive(self, request: Request) -> Actions:
        if isinstance(request, Ask) and request.confirms:
            return [Reply(Confirmed(request.epoch, request.confirms))]
        return super().receive(request)


class _ShrinksByItself(Primary):
    def silent(self, disk: str) -> Actions:
        return [*super().silent(disk), *self._settled()]

    def _counted(self) -> list[Follower]:
        return [each for each in super()._counted() if each.copy.disk not in self._silent]


class _TakesNoAnswerForARefusal(Primary):
    def swapped(self, revision: int | None) -> Actions:
        if revision is None:
            self._proposal = None
            return []
        return super().swapped(revision)


class _KeepsTheSegment(Primary):
    """Continues in the segment of the epoch before."""

    def _begin(self) -> Actions:
        if not self.chain.links:
            return super()._begin()
        self._base = self.synced = self.chain.end
        return [a for each in list(self._followers) for a in self.connected(each)]


class _GoesOn(_KeepsTheSegment):
    """Continues in a segment of its own epoch."""

    def _begin(self) -> Actions:
        if self.chain.links and self.chain.links[-1].epoch == self.entry.epoch:
            return super()._begin()
        return Primary._begin(self)


class ShipsWithoutAsking(Primary):
    """Thinks that every copy has its log as far as the last segment: the copies know better."""

    def connected(self, disk: str) -> Actions:
        follower = self._follower(disk)
        if self.is_over or follower is None or follower.at is not None:
            return super().connected(disk)
        follower.at = Place(self.chain.end.segment, 0)
        return self._ship(follower)


class _BeginsCopiesAtTheLiveSegment(Primary):
    def _copy_begins(self) -> int:
        return self.chain.end.segment


class _AppendsAtOnce(Primary):
    @property
    def is_ready(self) -> bool:
        return not self.is_over


class _KeepsEligible(Primary):
    def _wanted(self) -> LogEntry | None:
        wanted = super()._wanted()
        if wanted is None or wanted.eligible:
            return wanted
        listed = {wanted.primary.disk, *(copy.disk for copy in wanted.replicas)}
        stay = tuple(copy for copy in self.entry.eligible if copy.disk not in listed)
        return replace(wanted, eligible=stay)


class _CallsPartialCopiesWhole(Primary):
    def _wanted(self) -> LogEntry | None:
        wanted = super()._wanted()
        if wanted is None:
            return None
        whole = tuple(replace(copy, first=wanted.needed) for copy in wanted.replicas)
        return replace(wanted, replicas=whole)


class _PurgesWhatIsNeeded(Primary):
    @property
    def droppable_before(self) -> int:
        return self.acknowledged.segment


class _PutsOffBeforeAnotherIsThere(Primary):
    def _are_enough_complete(self) -> bool:
        return True


class _PutsOffBeforeTheOtherIsWhole(Primary):
    def _are_enough_complete(self) -> bool:
        return len(self._staying()) >= self.entry.copies


class _GivesAwayToAnyone(Primary):
    """Makes the disk the primary that the log moves to, whether it has all of it or not."""

    def _wanted(self) -> LogEntry | None:
        heir = self._learner.copy if self._learner is not None else None
        if self._gives_away and heir is not None and heir.disk == self._moves_to:
            return self.entry.claimed(heir)
        return super()._wanted()


class _KeepsWhatItGaveAway(Primary):
    """Goes on in the epoch that it began for another disk."""

    def _won(self, revision: int) -> Actions:
        assert self._proposal is not None
        given = self._proposal.entry
        if given.primary.disk == self._copy.disk:
            return super()._won(revision)
        self._proposal = self._proposal._replace(entry=replace(given, primary=self._copy))
        return super()._won(revision)


class _GivesOlderCopiesTheRest(Primary):
    def _is_older(self, follower: Follower, standing: ReplicaState) -> bool:
        return False


class _BeginsListedCopiesAgain(Primary):
    """Has a damaged copy begin again where it is, with what is listed then."""

    def _is_damaged(self, follower: Follower, answer: Damaged) -> Actions:
        self._damaged[follower.copy.disk] = (answer.damage, -1)
        follower.sent = follower.given = follower.instead_of = None
        follower.at, follower.damage = Place(self._copy_begins(), 0), answer.damage
        return self._ship(follower)

    def _may_reinitialise(self, disk: str) -> bool:
        return True


class _LeavesDamagedCopiesEligible(Primary):
    def _wanted(self) -> LogEntry | None:
        damaged = [disk for disk in self._damaged if not self._may_reinitialise(disk)]
        return self.entry.without(damaged) if damaged else super()._wanted()

    def _may_reinitialise(self, disk: str) -> bool:
        return self.entry.replica(disk) is None and self._damaged[disk][1] < self.entry.epoch


class _BeginsAgainInTheSameEpoch(Primary):
    def _may_reinitialise(self, disk: str) -> bool:
        copies = (*self.entry.replicas, *self.entry.eligible)
        return all(copy.disk != disk for copy in copies)


class _BeginsAgainWhateverTheDamage(Replica):
    def _is_this(self, damage: int) -> bool:
        return damage > 0


class _TakesEarlierEpochs(Replica):
    def _is_fenced(self, epoch: int) -> bool:
        return False


class _AppendsAnywhere(Replica):
    def _agrees(self, own: Link | None, previous: Link) -> bool:
        return own is not None and own.end >= previous.end


class _AppendsAfterAGap(Replica):
    def _agrees(self, own: Link | None, previous: Link) -> bool:
        return own is not None and own.is_same(previous)

    def _cut(self, place: Place, epoch: int) -> Actions | None:
        own = self.chain.find(place.segment)
        assert own is not None
        return super()._cut(place._replace(offset=min(place.offset, own.end)), epoch)


class _CutsWhatIsLate(Replica):
    def _is_late(self, place: Place, epoch: int) -> bool:
        return False


class _ClearsWhateverIsThere(Replica):
    def _is_still(self, links: tuple[Link, ...]) -> bool:
        return True


class _DropsWhatIsNeeded(Replica):
    def _append(self, request: Append) -> Actions:
        return super()._append(request._replace(needed=request.segment))


class _AnyDiskClaims(Claim):
    def _may_claim(self, entry: LogEntry) -> bool:
        return True


class _PartialCopiesClaim(Claim):
    def _may_claim(self, entry: LogEntry) -> bool:
        return super()._may_claim(entry) or entry.replica(self._copy.disk) is not None


class _KeepsTheEpoch(Claim):
    """Starts again in the epoch of the run before."""

    def _claimed(self, entry: LogEntry) -> LogEntry:
        claimed = super()._claimed(entry)
        if entry.primary.disk == self._copy.disk and entry.epoch > 0:
            return replace(claimed, epoch=entry.epoch, ids=entry.ids)
        return claimed


class _GivesNoIds(Claim):
    def _claimed(self, entry: LogEntry) -> LogEntry:
        return replace(super()._claimed(entry), ids=())


class _KnowsPumpsOnly(Claim):
    def _may_claim(self, entry: LogEntry) -> bool:
        copies = entry.copies_known
        return any(copy.pump == self._copy.pump for copy in copies)

    def _claimed(self, entry: LogEntry) -> LogEntry:
        known = [c for c in (entry.primary, *entry.replicas) if c.pump == self._copy.pump]
        return entry.claimed(Copy(self._copy.pump, known[0].disk) if known else self._copy)


def _judges_without(name: str) -> Callable[..., Verdict]:
    """Return `judge` as if what it asks under this name were always so."""

    def judged(*asked: Any) -> Verdict:
        with mock.patch.object(chain, name, return_value=True):
            return chain.judge(*asked)

    return judged


RULES: dict[str, Rules] = {
    # Watermarks would only make the other rules take longer to be found out.
    rules.name: rules if rules.name.startswith("R13") else replace(rules, confirms=0)
    for rules in (
        Rules("R1 a disk is listed once it is whole", primary=_ListsAtOnce),
        Rules("R1 whole is what may have been acknowledged", primary=_ListsWhatWasAcknowledged),
        Rules("R1 a disk leaves once another is there", primary=_PutsOffBeforeAnotherIsThere),
        Rules("R1 a disk leaves once others are whole", primary=_PutsOffBeforeTheOtherIsWhole),
        Rules("R1 eligible only while nothing can be acknowledged", primary=_KeepsEligible),
        Rules("R2 every replica on the list has it", primary=_AcknowledgesAlone),
        Rules("R2 the own disk has it", primary=_AcknowledgesUnsynced),
        Rules("R2 there are enough of them", primary=_AcknowledgesBelowTheLeast),
        Rules("R2 a disk counts that may be listed by now", primary=_ForgetsWhatIsUnderWay),
        Rules("R2 a replica answers what is synced", syncs_before_it_answers=False),
        Rules("R3 nothing of an earlier epoch is taken", replica=_TakesEarlierEpochs),
        Rules(
            "R13 every replica on the list confirms a watermark",
            primary=_ConfirmsAlone,
            confirms=20,
            suspects=6,
        ),
        Rules(
            "R13 they do so after it was taken",
            primary=_TakesAnEarlierConfirmation,
            confirms=20,
            suspects=6,
        ),
        Rules(
            "R13 no disk that has promised another epoch does",
            replica=_ConfirmsAnyEpoch,
            confirms=20,
            suspects=6,
        ),
        Rules("R4 the list changes in etcd first", primary=_ShrinksByItself),
        Rules("R4 a change compares the revision", compares_revisions=False),
        Rules("R4 who gives a log away has it no more", primary=_KeepsWhatItGaveAway),
        Rules("R4 no answer is no refusal", primary=_TakesNoAnswerForARefusal),
        Rules("R5 each start begins an epoch", claim=_KeepsTheEpoch, primary=_GoesOn),
        Rules("R5 each epoch begins a segment", primary=_KeepsTheSegment),
        Rules(
            "R5 a segment follows the same segment",
            primary=ShipsWithoutAsking,
            replica=_AppendsAnywhere,
        ),
        Rules(
            "R5 a segment follows the whole segment",
            primary=ShipsWithoutAsking,
            replica=_AppendsAfterAGap,
        ),
        Rules("R5 what comes late cuts nothing", replica=_CutsWhatIsLate),
        Rules("R5 a copy is replaced only if it is the known one", replica=_ClearsWhateverIsThere),
        Rules("R6 only listed disks take over", claim=_AnyDiskClaims),
        Rules("R6 only whole copies take over", claim=_PartialCopiesClaim),
        Rules("R6 a log moves to a whole copy", primary=_GivesAwayToAnyone),
        Rules("R6 a partial copy is listed as one", primary=_CallsPartialCopiesWhole),
        Rules("R6 disks are listed, not Pumps", claim=_KnowsPumpsOnly, knows_disks=False),
        Rules(
            "R7 a copy begins where all before is settled", primary=_BeginsCopiesAtTheLiveSegment
        ),
        Rules("R7 nothing is appended before the epoch's beginning", primary=_AppendsAtOnce),
        Rules("R8 the address follows the entry", compares_for_status=False),
        Rules("R9 only what is acknowledged is streamed", streams_acknowledged_only=False),
        Rules("R9 a copy drops what no Drainer needs", replica=_DropsWhatIsNeeded),
        Rules("R9 a purge drops what no Drainer needs", primary=_PurgesWhatIsNeeded),
        Rules("R10 a copy begins again off the list", primary=_BeginsListedCopiesAgain),
        Rules("R10 a damaged copy is not eligible", primary=_LeavesDamagedCopiesEligible),
        Rules("R10 a copy begins again in a later epoch", primary=_BeginsAgainInTheSameEpoch),
        Rules(
            "R10 a copy begins again for this damage",
            replica=_BeginsAgainWhateverTheDamage,
            damages=10,
            strikes_listed_again=1,
        ),
        Rules("R11 an entry older than a disk is refused", compares_histories=False, restores=1),
        Rules("R11 adopted is what all disks were held to", waits_for_all_disks=False, restores=2),
        Rules(
            "R11 the disk that adopts has all older segments",
            judge=_judges_without("_has_oldest"),
            restores=1,
        ),
        Rules(
            "R11 the disk that adopts has all that a whole disk had",
            judge=_judges_without("_contains_entry"),
            restores=4,
            loses_whole=True,
        ),
        Rules(
            "R11 an epoch that is won twice has two ids",
            claim=_GivesNoIds,
            restores=0,
            strikes_first_group=1,
        ),
        Rules("R12 a disk older than the log is refused", refuses_older=False, restores_disks=30),
        Rules("R12 a copy that lacks the mark is refused", heeds_mark=False, restores_disks=30),
        Rules(
            "R12 an older copy is off the list before it is given the rest",
            primary=_GivesOlderCopiesTheRest,
            restores_disks=30,
        ),
    )
}
