"""When a standby takes over, and when it only seems that it should."""

import pytest

from drainer.standby import ActiveWatch, Look, RunAnswer, Verdict

IT_IS, REFUSED, NONE = RunAnswer.IT_IS, RunAnswer.REFUSED, RunAnswer.NONE
WAIT, TAKE_OVER, CONTINUE = Verdict.WAIT, Verdict.TAKE_OVER, Verdict.CONTINUE


def look(
    answer: RunAnswer, *, listed: bool = True, published: int = 5, stored: int = 5, at_s: float = 0
) -> Look:
    return Look(
        at_s=at_s, is_listed=listed, answer=answer, published_ts=published, stored_ts=stored
    )


def verdicts(*looks: Look) -> list[Verdict]:
    watch = ActiveWatch()
    return [watch.saw(each) for each in looks]


def test_a_process_that_was_killed_is_gone_before_its_lease_is() -> None:
    assert verdicts(look(IT_IS), look(REFUSED), look(REFUSED)) == [WAIT, WAIT, TAKE_OVER]


def test_one_that_ended_in_order_is_gone_at_once() -> None:
    assert verdicts(look(IT_IS), look(REFUSED, listed=False)) == [WAIT, TAKE_OVER]


def test_one_that_lost_its_lease_but_answers_is_not_disturbed() -> None:
    seen = [look(IT_IS)] + [look(IT_IS, listed=False)] * 10
    assert set(verdicts(*seen)) == {WAIT}


def test_one_that_keeps_its_lease_but_cannot_be_asked_is_not_disturbed() -> None:
    assert set(verdicts(look(IT_IS), *[look(NONE)] * 10)) == {WAIT}


def test_an_address_that_never_answered_proves_nothing() -> None:
    assert set(verdicts(*[look(REFUSED)] * 10)) == {WAIT}


def test_one_without_lease_and_answer_is_gone_at_the_second_look() -> None:
    assert verdicts(look(NONE, listed=False), look(NONE, listed=False)) == [WAIT, TAKE_OVER]


def test_an_answer_between_two_failures_begins_the_count_again() -> None:
    seen = [look(IT_IS), look(REFUSED), look(IT_IS), look(REFUSED)]
    assert set(verdicts(*seen)) == {WAIT}


def test_a_copy_of_the_downstream_stands_still_while_the_other_one_moves() -> None:
    seen = [look(IT_IS, published=6 + n, at_s=2.0 * n) for n in range(4)]
    assert verdicts(*seen) == [WAIT, WAIT, WAIT, CONTINUE]


@pytest.mark.parametrize("stored", [6, 100])
def test_a_downstream_that_has_what_is_published_is_no_copy(stored: int) -> None:
    seen = [look(IT_IS, published=6, stored=stored, at_s=10.0 * n) for n in range(9)]
    assert set(verdicts(*seen)) == {WAIT}


def test_a_downstream_that_was_seen_to_move_is_no_copy_however_late_it_is_read() -> None:
    watch = ActiveWatch()
    watch.saw(look(IT_IS, stored=5))
    watch.saw(look(IT_IS, stored=6, published=6))
    seen = [watch.saw(look(IT_IS, stored=6, published=9, at_s=10.0 * n)) for n in range(9)]
    assert watch.is_ours
    assert set(seen) == {WAIT}
