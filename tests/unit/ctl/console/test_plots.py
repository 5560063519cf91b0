"""Plots: axes that people read, gaps that are gaps, and markup that nothing from outside breaks."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ctl.console import page, wording
from penstock.ctl.console.page import draw
from tests.kit.console_states import HOSTILE


@given(st.floats(min_value=1e-9, max_value=1e15))
def test_an_axis_ends_at_a_round_number_that_is_not_far_above(value: float) -> None:
    top = page.axis_top(value)
    assert value <= top * 1.000001
    assert top <= 2.6 * value or top == page.axis_top(top)
    assert f"{top:e}"[0] in "125"


@pytest.mark.parametrize(
    ("greatest", "half"), [(0.2, "0.5 s"), (15, "10 s"), (70, "1 min"), (5000, "1 h")]
)
def test_an_axis_of_time_has_round_hours_minutes_and_seconds(greatest: float, half: str) -> None:
    assert wording.duration(page.SECONDS.top(greatest) / 2) == half


def test_a_gap_breaks_a_line_and_a_lone_point_is_a_dot() -> None:
    line = page.Line("p", 1.0, [1.0, 2.0, None, 3.0])
    figure = page.over_time("Lag", [line], page.SECONDS, 60.0)
    path = next(
        each.get("d", "") for each in ElementTree.fromstring(figure).iter("path")
        if each.get("class") == "line" and "M1 5" not in each.get("d", "")
    )  # fmt: skip
    assert path.count("M") == 2
    assert "h0.1" in path


def test_many_points_are_thinned_and_the_greatest_of_them_stays() -> None:
    points = [float(n % 7) for n in range(720)]
    points[333] = 99.0
    thin = page.thinned(points, 180)
    assert len(thin) == 180
    assert max(value for value in thin if value is not None) == 99.0
    assert page.thinned([None] * 9, 3) == [None, None, None]


def test_a_plot_says_in_words_what_it_shows() -> None:
    lines = [page.Line(label=name, now=0.5, points=[0.5]) for name in ("d-1", "d-2")]
    figure = page.over_time("Lag", lines, page.SECONDS, 600.0)
    picture = next(ElementTree.fromstring(figure).iter("svg"))
    assert picture.get("role") == "img"
    assert picture.get("aria-label") == "Lag over the last 10 min. Now: d-1 0.5 s; d-2 0.5 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0, "0 s"), (0.25, "0.2 s"), (42.4, "42 s"), (190, "3 min 10 s"),
     (7500, "2 h 5 min"), (273_600, "3 d 4 h"), (-5, "0 s")],
)  # fmt: skip
def test_durations_are_in_the_units_that_people_use(seconds: float | None, text: str) -> None:
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0/s"), (0.25, "0.25/s"), (12.34, "12.3/s"), (999.96, "1 k/s"),
     (3_400_000, "3.4 M/s")],
)  # fmt: skip
def test_rates_have_three_digits(value: float | None, text: str) -> None:
    assert wording.rate(value) == text


def test_sizes_and_counts_and_moments_are_written_out() -> None:
    assert wording.size(5 << 30) == "5 GiB"
    assert wording.size(900) == "900 B"
    assert [wording.count(n, "Pump") for n in (0, 1, 3)] == ["no Pump", "1 Pump", "3 Pumps"]
    assert wording.moment(1_763_900_000) == "2025-11-23 12:13:20"
    assert wording.moment(1e300) == "–"


@given(st.text() | st.just(HOSTILE))
def test_whatever_a_text_is_the_markup_is_well_formed_and_shows_it(text: str) -> None:
    made = draw("parts", "optional", text=text + "!", class_=text)
    found = ElementTree.fromstring(made)
    assert (found.text or "").endswith("!")
    assert len(found) == 0
    assert found.keys() == ["class"]


def test_markup_within_markup_is_escaped_once() -> None:
    bold = draw("stream", "fact", value="a & b", about="<")
    assert bold == '<p class="fact"><b>a &amp; b</b> &lt;</p>'
