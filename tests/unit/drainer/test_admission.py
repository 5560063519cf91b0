"""Admission: a batch waits exactly for the earlier unfinished batches with which it conflicts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.apply.admission import Admission
from drainer.task.sql.digests import Digests
from drainer.task.sql.row_statements import UNBOUNDED
from tests.kit.workloads.changes import examples


def of(*keys: int, table: int = 7, form: int = 8) -> Digests:
    return Digests({table: form}, np.array(sorted(keys), np.uint64))


def test_a_batch_waits_for_each_earlier_one_with_which_it_shares_a_key() -> None:
    admission = Admission()
    for number, keys in enumerate([(1, 2), (3,), (2, 4), (3, 4)], start=1):
        admission.begin(number)
        admission.know(number, of(*keys))
    assert [admission.admits(number) for number in (1, 2, 3, 4)] == [True, True, False, False]
    admission.finish(1)
    assert admission.admits(3)
    admission.finish(3)
    assert not admission.admits(4)
    admission.finish(2)
    assert admission.admits(4)


def test_a_table_in_two_forms_is_shared_and_an_unbounded_one_with_itself() -> None:
    assert not of(1).shares(of(2))
    assert of(1).shares(of(2, form=9))
    assert of(1, form=UNBOUNDED).shares(of(2, form=UNBOUNDED))
    assert not of(1, form=UNBOUNDED).shares(of(1, table=6))


def test_a_batch_of_unknown_digests_is_a_barrier() -> None:
    admission = Admission()
    for number in (1, 2, 3):
        admission.begin(number)
    admission.know(1, of(1))
    admission.know(3, of(3))
    assert [admission.admits(number) for number in (1, 2, 3)] == [True, False, False]
    admission.know(2, of(2))
    assert [admission.admits(number) for number in (1, 2, 3)] == [True, True, True]


def test_the_checkpoint_passes_a_batch_when_all_before_it_are_finished() -> None:
    admission = Admission(finished=100)
    for number in (110, 120, 130):
        admission.begin(number)
        admission.know(number, of(number))
    reached = []
    for number in (120, 110, 130):
        admission.finish(number)
        reached.append(admission.finished)
    assert reached == [100, 120, 130]
    with pytest.raises(AssertionError):
        admission.begin(130)


@examples(100)
@given(data=st.data())
def test_admission_equals_its_definition(data: st.DataObject) -> None:
    """Batches begin, become known and finish in any order that is possible."""
    keys = st.none() | st.sets(st.integers(1, 6), min_size=1, max_size=3)
    wanted = dict(enumerate(data.draw(st.lists(keys, min_size=1, max_size=8)), start=1))
    admission, begun, known, finished = Admission(), 0, set[int](), set[int]()

    def may_pass(number: int) -> bool:
        earlier = [each for each in range(1, number) if each not in finished]
        return not any(
            number not in known or each not in known or wanted[number] & wanted[each]  # type: ignore[operator]
            for each in earlier
        )

    while len(finished) < len(wanted):
        open_ones = [each for each in range(1, begun + 1) if each not in finished]
        choices = [("finish", each) for each in open_ones if may_pass(each)]
        for each in open_ones:
            assert admission.admits(each) == may_pass(each)
            if wanted[each] is not None and each not in known:
                choices.append(("know", each))
        if begun < len(wanted):
            choices.append(("begin", begun + 1))
        act, number = data.draw(st.sampled_from(choices))
        if act == "begin":
            admission.begin(number)
            begun = number
        elif act == "know":
            admission.know(number, of(*(wanted[number] or ())))
            known.add(number)
        else:
            admission.finish(number)
            finished.add(number)
        below = [n for n in range(begun + 1) if all(m in finished for m in range(1, n + 1))]
        assert admission.finished == below[-1]
