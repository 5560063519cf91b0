"""The plan of a chaos: the same from the same seed, of every kind, and never more than is fair."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.faults import BODIES
from tests.chaos.plan import AT_ONCE_MAX, Kind, plan

COPIES = st.integers(1, 3)


@given(st.integers(0, 1 << 64), st.floats(1, 900), COPIES)
def test_the_same_seed_and_length_give_the_same_plan(
    seed: int, length_s: float, copies: int
) -> None:
    assert plan(seed, length_s, copies) == plan(seed, length_s, copies)


def test_a_seed_gives_the_plan_that_it_gave_on_another_machine() -> None:
    begun = [(round(f.at_s, 3), f.kind, f.target) for f in plan(3, 180)[:3]]
    assert begun == [
        (1.055, Kind.WRITER_KILLED, "writer-2"),
        (3.032, Kind.PUMP_DISK_FULL, "pump-1"),
        (3.727, Kind.MARIADB_KILLED, "mariadb"),
    ]


def test_with_one_copy_no_disk_is_deleted() -> None:
    assert not any(fault.kind.needs_copies for fault in plan(1, 3600))


def test_every_kind_has_a_body() -> None:
    assert set(BODIES) == set(Kind)


def test_another_seed_gives_another_plan() -> None:
    assert plan(1, 300) != plan(2, 300)


@pytest.mark.parametrize("seed", range(20))
def test_five_minutes_have_every_kind_of_fault(seed: int) -> None:
    assert {fault.kind for fault in plan(seed, 300, copies=2)} == set(Kind)


@pytest.mark.parametrize("seed", range(5))
def test_an_hour_hits_every_target_of_every_kind_that_has_few(seed: int) -> None:
    hit = {(fault.kind, fault.target) for fault in plan(seed, 3600, copies=2)}
    few = [kind for kind in Kind if len(kind.targets) <= 3]
    assert {(kind, target) for kind in few for target in kind.targets} <= hit


@given(st.integers(0, 1 << 64), st.floats(1, 900), COPIES)
def test_faults_begin_in_order_and_are_over_at_the_end(
    seed: int, length_s: float, copies: int
) -> None:
    faults = plan(seed, length_s, copies)
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(faults))
    assert all(0 <= f.at_s < f.until_s <= length_s + 1e-6 for f in faults)


@given(st.integers(0, 1 << 64), COPIES)
def test_nothing_is_broken_twice_at_once_and_few_things_are(seed: int, copies: int) -> None:
    faults = plan(seed, 900, copies)
    for fault in faults:
        meanwhile = [f for f in faults if f.at_s <= fault.at_s < f.until_s]
        assert len(meanwhile) <= AT_ONCE_MAX
        assert [f for f in meanwhile if f.occupies & fault.occupies] == [fault]


def test_no_one_is_cut_off_from_itself() -> None:
    links = Kind.LINK_CUT.targets
    assert all(client != server for client, _, server in (link.partition(">") for link in links))
    assert {"writers>pump-1", "pump-1>etcd", "drainer-1>pump-3", "drainer-2>mariadb"} <= set(links)


@pytest.mark.parametrize("seed", range(5))
def test_before_each_restore_of_etcd_a_backup_is_taken_seconds_to_minutes_ahead(seed: int) -> None:
    ages, taken_s = [], 0.0
    for fault in plan(seed, 3600, copies=2):
        if fault.kind is Kind.ETCD_BACKED_UP:
            assert not taken_s
            taken_s = fault.at_s
        elif fault.kind is Kind.ETCD_RESTORED:
            assert taken_s
            ages.append(fault.until_s - taken_s)
            taken_s = 0.0
    assert min(ages) < 60 < 120 < max(ages)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_but_mariadb_is_broken_while_etcd_is_restored(seed: int) -> None:
    faults = plan(seed, 3600, copies=2)
    restored = [fault for fault in faults if fault.kind is Kind.ETCD_RESTORED]
    assert restored
    for fault in restored:
        meanwhile = [f for f in faults if f.at_s < fault.until_s and f.until_s > fault.at_s]
        others = frozenset().union(*(f.occupies for f in meanwhile if f is not fault))
        assert others <= {"mariadb", "way to mariadb"}
