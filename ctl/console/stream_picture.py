"""Draws writers, Pumps, merge, Drainers and downstreams, in the order data flows.

Pure.

    wide    writers ═╗      ╔═ pump-1 ═╗
                     ╠══════╬═ pump-2 ═╬═ merge ═ drainer ═ downstream
            source ══╝      ╚═ pump-3 ═╝
    narrow  the same from top to bottom

The lines between two stages are drawn twice, from left to right and from top to bottom, and the
style sheet shows one of them. Stages are rows (or columns) of equal size, so that the lines meet
them. The thickness of a line is the rate, and its dashes move while data flows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from markupsafe import Markup

from ctl.console.cluster_state import ClusterState, DrainerNode, Level, PumpAtMerge
from ctl.console.drawing import draw

SIDE_BY_SIDE_MAX: Final = 3
"""More nodes than this are stacked on a phone, without separate lines."""


class _Pipe(NamedTuple):
    """A line between two stages, from and to a share of their sides; `style` is its class."""

    begin: float
    end: float
    style: str
    rate: float | None = None

    def curve(self, is_wide: bool) -> str:
        """Return an S-curve between shares of two sides; -1 is the middle between the sides."""
        begin = (50.0, 50.0) if self.begin < 0 else (0.0, self.begin)
        end = (50.0, 50.0) if self.end < 0 else (100.0, self.end)
        half = (begin[0] + end[0]) / 2
        places = [begin, (half, begin[1]), (half, end[1]), end]
        written = [f"{x:.1f} {y:.1f}" if is_wide else f"{y:.1f} {x:.1f}" for x, y in places]
        return f"M{written[0]} C{written[1]} {written[2]} {written[3]}"

    def width(self) -> int:
        """Return one of five widths, by the power of ten of the rate in bytes/s."""
        if not self.rate or self.rate < 1:
            return 0
        return min(4, max(1, math.floor(math.log10(self.rate)) - 2))


def picture(state: ClusterState) -> Markup:
    held = [drainer for drainer in state.drainers if drainer.held_by]
    writers = bool(state.programs) + len(state.sources)
    return draw(
        "stream",
        "picture",
        state=state,
        holding={stream.pump for each in held for stream in each.streams if stream.holds},
        many=SIDE_BY_SIDE_MAX,
        gathered=list(_gathered(state, writers or 1)),
        merged=list(_merged(state)),
        straight=list(_straight(state)),
    )


def _middle(index: int, count: int) -> float:
    return (index + 0.5) / max(1, count) * 100


def _gathered(state: ClusterState, writers: int) -> Iterable[_Pipe]:
    is_written = bool(state.programs or state.sources)
    total = sum(pump.bytes_per_s or 0.0 for pump in state.pumps) if is_written else 0.0
    for index in range(writers):
        yield _Pipe(_middle(index, writers), -1, "flowing" if total else "quiet", total / writers)
    for index, pump in enumerate(state.pumps):
        is_fed = pump.level < Level.WATCH and pump.word == "online"
        style = ("flowing" if total else "quiet") if is_fed else "broken"
        yield _Pipe(-1, _middle(index, len(state.pumps)), style, pump.bytes_per_s)


def _merged(state: ClusterState) -> Iterable[_Pipe]:
    for row, drainer in enumerate(state.drainers):
        streams = {stream.pump: stream for stream in drainer.streams}
        for index, pump in enumerate(state.pumps):
            style = _style(streams.get(pump.name), drainer)
            begin = _middle(index, len(state.pumps))
            yield _Pipe(begin, _middle(row, len(state.drainers)), style, pump.bytes_per_s)


def _style(stream: PumpAtMerge | None, drainer: DrainerNode) -> str:
    if stream is None or drainer.level >= Level.WATCH or stream.condition in ("dead", "stopped"):
        return "broken"
    if stream.holds and drainer.held_by:
        return "holding"
    return "flowing" if stream.condition == "ok" else "holding"


def _straight(state: ClusterState) -> Iterable[_Pipe]:
    for row, drainer in enumerate(state.drainers):
        style = "broken" if drainer.level >= Level.WATCH else "quiet"
        if style == "quiet" and drainer.rows_per_s:
            style = "flowing"
        place = _middle(row, len(state.drainers))
        yield _Pipe(place, place, style, (drainer.rows_per_s or 0.0) * 100)
