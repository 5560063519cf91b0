"""Plots: SVG of quantities over time, and bars.

Pure. A plot is drawn in 400 x 180 units, about as many pixels as it has on any screen, so that its
words can be read on a phone. Lines differ by their dashes as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ctl.console import wording
from ctl.console.markup import Html, element, tag

LINES_MAX: Final = 6
"""The number of line styles; further lines reuse the first styles."""

_WIDTH, _HEIGHT = 400, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 390, 12, 152
_POINTS_MAX: Final = 180
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0
_DURATIONS: Final = (
    1.0, 2.0, 4.0, 10.0, 20.0, _MINUTE_S, 2 * _MINUTE_S, 4 * _MINUTE_S, 10 * _MINUTE_S,
    20 * _MINUTE_S, _HOUR_S, 2 * _HOUR_S, 4 * _HOUR_S, 12 * _HOUR_S, _DAY_S, 2 * _DAY_S,
)  # fmt: skip
"""Durations whose half is also round."""
_NO_DISTORTION: Final = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
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


def over_time(title: str, lines: Sequence[Line], scale: Scale, span_s: float) -> Html:
    """Return a figure: the lines over `span_s` up to now, and a legend with their current values.

    The vertical axis starts at 0, and has a minimum length so that noise does not look large.
    """
    seen = [value for line in lines for value in line.points if value is not None]
    words, top = scale.words, scale.top(max(seen, default=0.0))
    said = "; ".join(f"{line.label} {words(line.now)}" for line in lines) or "nothing seen yet"
    drawn = [_line(index % LINES_MAX, line, top, alone=len(lines) == 1)
             for index, line in enumerate(lines)]  # fmt: skip
    plot = element(
        "svg",
        [_axes(top, span_s, words), *drawn],
        {
            **_NO_DISTORTION,
            "role": "img",
            "class": "plot",
            "aria-label": f"{title} over the last {wording.duration(span_s)}. Now: {said}",
        },
    )
    return tag("figure", tag("figcaption", title), plot, _legend(lines, words), class_="panel")


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


def bar(parts: Sequence[tuple[str, float]], mark: float | None, about: str) -> Html:
    """Return a bar of (class, size) parts; `mark` is a position from the bar's right end."""
    total = sum(size for _, size in parts) or 1.0
    shown: list[Html] = []
    x = 0.0
    for name, size in parts:
        width = max(0.0, size / total * _WIDTH)
        shown.append(tag("rect", x=_n(x), y="4", width=_n(width), height="16", class_=name))
        x += width
    if mark is not None:
        at = _n(min(_WIDTH - 1.0, max(1.0, _WIDTH - mark / total * _WIDTH)))
        shown.append(tag("line", x1=at, x2=at, y1="0", y2="24", class_="mark"))
    attributes = {"viewBox": f"0 0 {_WIDTH} 24", "preserveAspectRatio": "none",
                  "role": "img", "class": "bar", "aria-label": about}  # fmt: skip
    return element("svg", shown, attributes)


def _axes(top: float, span_s: float, words: Callable[[float | None], str]) -> Iterable[Html]:
    for part in (0.0, 0.5, 1.0):
        y = _y(part * top, top)
        yield tag("line", x1=_LEFT, x2=_RIGHT, y1=_n(y), y2=_n(y), class_="grid")
        yield tag("text", words(part * top), x=_LEFT - 8, y=_n(y + 4), class_="tick y")
    for part, anchor in ((0.0, "begin"), (0.5, "middle"), (1.0, "end")):
        x = _LEFT + part * (_RIGHT - _LEFT)
        ago = "now" if part == 1.0 else f"{wording.duration((1 - part) * span_s)} ago"
        yield tag("text", ago, x=_n(x), y=_HEIGHT - 8, class_=f"tick {anchor}")


def _line(number: int, line: Line, top: float, *, alone: bool) -> Html:
    points = thinned(line.points, _POINTS_MAX)
    last = max(1, len(points) - 1)
    places = [
        None if value is None else (_LEFT + index / last * (_RIGHT - _LEFT), _y(value, top))
        for index, value in enumerate(points)
    ]
    runs = _runs(places)
    path = " ".join(_path(run) for run in runs)
    area = " ".join(
        f"{_path(run)} L{_n(run[-1][0])} {_BOTTOM} L{_n(run[0][0])} {_BOTTOM} Z" for run in runs
    )
    return tag(
        "g",
        tag("path", d=area, class_="area") if alone and area else None,
        tag("path", d=path, class_="line") if path else None,
        class_=f"line-{number}",
    )


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
        return f"M{_n(run[0][0])} {_n(run[0][1])} h0.1"
    return "M" + " L".join(f"{_n(x)} {_n(y)}" for x, y in run)


def _legend(lines: Sequence[Line], words: Callable[[float | None], str]) -> Html:
    return tag(
        "ul",
        [
            tag("li", sample(index % LINES_MAX), tag("span", line.label, class_="name"),
                tag("b", words(line.now)))
            for index, line in enumerate(lines)
        ],
        class_="legend",
    )  # fmt: skip


def sample(number: int) -> Html:
    path = tag("path", d="M1 5 H23", class_="line")
    attributes = {"viewBox": "0 0 24 10", "class": f"sample line-{number}", "aria-hidden": "true"}
    return element("svg", [path], attributes)


def _y(value: float, top: float) -> float:
    return _BOTTOM - min(1.0, max(0.0, value / top)) * (_BOTTOM - _TOP)


def _n(value: float) -> str:
    return f"{value:.1f}"
