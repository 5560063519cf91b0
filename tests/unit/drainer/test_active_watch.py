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


UNLISTED = look(NONE, listed=False)
ENDS = {
    "a process that was killed is gone before its lease is": [look(IT_IS), *[look(REFUSED)] * 2],
    "one that ended in order is gone at once": [look(IT_IS), look(REFUSED, listed=False)],
    "one without lease and answer is gone at the second look": [UNLISTED, UNLISTED],
}
GOES_ON = {
    "one that lost its lease but answers": [look(IT_IS), *[look(IT_IS, listed=False)] * 10],
    "one that keeps its lease but cannot be asked": [look(IT_IS), *[look(NONE)] * 10],
    "an address that never answered proves nothing": [look(REFUSED)] * 10,
    "an answer between two failures begins the count again": [
        look(IT_IS), look(REFUSED), look(IT_IS), look(REFUSED),
    ],
}  # fmt: skip


@pytest.mark.parametrize("looks", ENDS.values(), ids=ENDS)
def test_one_that_is_gone_is_replaced_at_the_last_look(looks: list[Look]) -> None:
    assert verdicts(*looks) == [WAIT] * (len(looks) - 1) + [TAKE_OVER]


@pytest.mark.parametrize("looks", GOES_ON.values(), ids=GOES_ON)
def test_one_that_may_be_alive_is_not_disturbed(looks: list[Look]) -> None:
    assert set(verdicts(*looks)) == {WAIT}


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
