from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pump.cluster.membership import SCORE_MAX, Load, score_of

GIB = 1 << 30
IDLE = Load(100 * GIB, 2 * GIB, 100 * GIB, 0.0, 0.0)


def test_a_pump_at_rest_on_an_empty_disk_scores_most() -> None:
    assert score_of(IDLE) == SCORE_MAX


def test_each_factor_takes_its_part() -> None:
    assert score_of(IDLE._replace(free_bytes=51 * GIB)) == 500
    assert score_of(IDLE._replace(queue_fill=0.75)) == 250
    assert score_of(IDLE._replace(append_s_average=0.010)) == 500
    assert score_of(IDLE._replace(append_s_average=0.090)) == 100


def test_one_that_takes_nothing_scores_nothing() -> None:
    assert score_of(IDLE._replace(free_bytes=2 * GIB)) == 0
    assert score_of(IDLE._replace(queue_fill=1.2)) == 0


def test_one_that_takes_something_is_never_left_out() -> None:
    assert score_of(Load(2 * GIB + 1, 2 * GIB, 10000 * GIB, 0.999, 60.0)) == 1


BYTES = st.integers(0, 1 << 45)


@given(BYTES, BYTES, BYTES, st.floats(0, 2), st.floats(0, 1000))
def test_it_is_always_within_its_bounds(
    free: int, reserve: int, volume: int, queue_fill: float, append_s: float
) -> None:
    assert 0 <= score_of(Load(free, reserve, volume, queue_fill, append_s)) <= SCORE_MAX
