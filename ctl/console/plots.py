"""Plots: SVG of quantities over time, and bars.

Pure. A plot is drawn in 400 x 180 units, about as many pixels as it has on any screen, so that its
words can be read on a phone. Lines differ by their dashes as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup

from ctl.console import wording
from ctl.console.drawing import draw


class Box(NamedTuple):
    """The size of a plot, and the sides of its axes."""

    width: int = 400
    height: int = 180
    left: int = 58
    right: int = 390
    top: int = 12
    bottom: int = 152


BOX: Final = Box()
_POINTS_MAX: Final = 180
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0
_DURATIONS: Final = (
    1.0, 2.0, 4.0, 10.0, 20.0, _MINUTE_S, 2 * _MINUTE_S, 4 * _MINUTE_S, 10 * _MINUTE_S,
    20 * _MINUTE_S, _HOUR_S, 2 * _HOUR_S, 4 * _HOUR_S, 12 * _HOUR_S, _DAY_S, 2 * _DAY_S,
)  # fmt: skip
"""Durations whose half is also round."""


class Line(NamedTuple):
    """One quantity: its name, its current value, and its points, the oldest first."""

    label: str
    now: float | None
    points: Sequence[float | None]


class Scale(NamedTuple):
    """The format of a vertical axis, its minimum length, and its possible ends."""

    words: Callable[[float | None], str]
    least: float
    ends: Sequence[float] = ()

    def top(self, greatest: float) -> float:
        wanted = max(greatest, self.least)
        return next((end for end in self.ends if end >= wanted), axis_top(wanted))


SECONDS: Final = Scale(wording.duration, 1.0, _DURATIONS)
EACH_SECOND: Final = Scale(wording.rate, 10.0)
BYTES_EACH_SECOND: Final = Scale(wording.byte_rate, 10_000.0)


def over_time(title: str, lines: Sequence[Line], scale: Scale, span_s: float) -> Markup:
    """Return a figure: the lines over `span_s` up to now, and a legend with their current values.

    The vertical axis starts at 0, and has a minimum length so that noise does not look large.
    """
    seen = [value for line in lines for value in line.points if value is not None]
    words, top = scale.words, scale.top(max(seen, default=0.0))
    said = "; ".join(f"{line.label} {words(line.now)}" for line in lines) or "nothing seen yet"
    return draw(
        "plots",
        "figure",
        title=title,
        about=f"{title} over the last {wording.duration(span_s)}. Now: {said}",
        lines=[(line, *_path_and_area(line, top, has_area=len(lines) == 1)) for line in lines],
        words=words,
        span_s=span_s,
        top=top,
        box=BOX,
    )


def axis_top(value: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, … (and their fractions) not below `value`."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((power * step for step in _STEPS if power * step >= value), power * 10)


def thinned(points: Sequence[float | None], count_max: int) -> list[float | None]:
    """Return at most `count_max` points, each the maximum of the points it replaces."""
    each = max(1, math.ceil(len(points) / count_max))
    made: list[float | None] = []
    for begin in range(0, len(points), each):
        some = [value for value in points[begin : begin + each] if value is not None]
        made.append(max(some) if some else None)
    return made


def bar(parts: Sequence[tuple[str, float]], mark: float | None, about: str) -> Markup:
    """Return a bar of (class, size) parts; `mark` is a position from the bar's right end."""
    total = sum(size for _, size in parts) or 1.0
    shown = []
    x = 0.0
    for name, size in parts:
        width = max(0.0, size / total * BOX.width)
        shown.append((name, x, width))
        x += width
    if mark is not None:
        mark = min(BOX.width - 1.0, max(1.0, BOX.width - mark / total * BOX.width))
    return draw("plots", "bar", parts=shown, mark=mark, about=about)


def _path_and_area(line: Line, top: float, *, has_area: bool) -> tuple[str, str]:
    points = thinned(line.points, _POINTS_MAX)
    step = (BOX.right - BOX.left) / max(1, len(points) - 1)
    high = BOX.bottom - BOX.top
    places = [
        None if v is None else (BOX.left + i * step, BOX.bottom - min(1, max(0, v / top)) * high)
        for i, v in enumerate(points)
    ]
    runs = _runs(places)
    area = " ".join(
        f"{_path(run)} L{run[-1][0]:.1f} {BOX.bottom} L{run[0][0]:.1f} {BOX.bottom} Z"
        for run in runs
    )
    return " ".join(map(_path, runs)), area if has_area else ""


def _runs(places: Sequence[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = [[]]
    for place in places:
        if place is not None:
            runs[-1].append(place)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _path(run: Sequence[tuple[float, float]]) -> str:
    if len(run) == 1:  # A line without a length is drawn as a dot, by its round ends.
        return f"M{run[0][0]:.1f} {run[0][1]:.1f} h0.1"
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in run)
