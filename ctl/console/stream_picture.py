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
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ctl.console import wording
from ctl.console.cluster_state import (
    ClusterState,
    DrainerNode,
    Level,
    PumpAtMerge,
    PumpNode,
    SourceNode,
)
from ctl.console.markup import Html, element, tag

SIDE_BY_SIDE_MAX: Final = 3
"""More nodes than this are stacked on a phone, without separate lines."""

_GLYPHS: Final = {
    Level.FINE: tag("circle", cx="8", cy="8", r="6"),
    Level.NOTE: tag("path", d="M5 3 V13 M11 3 V13"),
    Level.WATCH: tag("path", d="M8 2 L15 14 H1 Z"),
    Level.ACT: tag("path", d="M3 3 L13 13 M13 3 L3 13"),
}
WORDS: Final = {
    Level.FINE: "fine", Level.NOTE: "note", Level.WATCH: "watch", Level.ACT: "act",
}  # fmt: skip


def glyph(level: Level) -> Html:
    attributes = {
        "viewBox": "0 0 16 16", "class": f"glyph {WORDS[level]}", "aria-hidden": "true",
    }  # fmt: skip
    return element("svg", [_GLYPHS[level]], attributes)


class _Pipe(NamedTuple):
    """A line between two stages, from and to a share of their sides; `style` is its class."""

    begin: float
    end: float
    style: str
    rate: float | None = None


def picture(state: ClusterState) -> Html:
    writers = list(_writers(state))
    pumps = [_pump(pump, state.drainers) for pump in state.pumps]
    merges = [_merge(drainer) for drainer in state.drainers]
    drainers = [_drainer(drainer) for drainer in state.drainers]
    downstreams = [_downstream(drainer) for drainer in state.drainers]
    return tag(
        "div",
        _stage("Writers", writers or [_nobody("no writer", "none holds a lease")]),
        _pipes(list(_gathered(state, len(writers) or 1)), len(writers)),
        _stage("Pumps", pumps or [_nobody("no Pump", "none is registered")]),
        _pipes(list(_merged(state)), len(pumps)),
        _stage("Merge", merges or [_nobody("no merge", "there is no Drainer")]),
        _pipes(list(_straight(state)), len(merges)),
        _stage("Drainer", drainers or [_nobody("no Drainer", "none is registered")]),
        _pipes(list(_straight(state)), len(merges)),
        _stage("Downstream", downstreams or [_nobody("no downstream", "")]),
        class_="stream",
    )


# --- stages --------------------------------------------------------------------------------------


def _stage(title: str, cards: Sequence[Html]) -> Html:
    many = " many" if len(cards) > SIDE_BY_SIDE_MAX else ""
    cells = [tag("li", card) for card in cards]
    return tag("div", tag("h3", title), tag("ul", cells, class_=f"cards{many}"), class_="stage")


def _card(level: Level, name: str, word: str, *content: object) -> Html:
    head = tag("h4", glyph(level), tag("span", name, class_="name"))
    return tag(
        "article", head, tag("p", word, class_="word"), *content, class_=f"card {WORDS[level]}"
    )


def _nobody(name: str, why: str) -> Html:
    return _card(Level.NOTE, name, why)


def _fact(value: str, about: str) -> Html:
    return tag("p", tag("b", value), " ", about, class_="fact")


def _badge(words: str, level: Level) -> Html:
    return tag("p", words, class_=f"badge {WORDS[level]}")


def _writers(state: ClusterState) -> Iterable[Html]:
    if state.programs:
        name = wording.count(state.programs, "program")
        yield _card(Level.FINE, name, "with pumpclient")
    for source in state.sources:
        yield _card(source.level, source.name, source.word, *_source_facts(source))


def _source_facts(source: SourceNode) -> Iterable[Html]:
    yield tag("p", "MySQL source", class_="kind")
    if source.transactions_per_s is not None:
        yield _fact(wording.quantity(source.transactions_per_s), "transactions/s")
    if source.behind_s is not None:
        yield _fact(wording.duration(source.behind_s), "behind its server")


def _pump(pump: PumpNode, drainers: Sequence[DrainerNode]) -> Html:
    holds = any(s.holds for d in drainers if d.held_by for s in d.streams if s.pump == pump.name)
    answers = pump.level < Level.WATCH and pump.word != "paused"
    return _card(
        pump.level,
        pump.name,
        pump.word,
        _fact(wording.byte_rate(pump.bytes_per_s), "taken") if answers else None,
        _fact(wording.quantity(pump.binlogs_per_s), "binlogs/s") if answers else None,
        _badge("holds the merge", Level.WATCH) if holds else None,
        _badge("oracle", Level.FINE) if pump.leads_oracle else None,
        _badge(_copies(pump), Level.FINE) if pump.copies_on and answers else None,
    )


def _copies(pump: PumpNode) -> str:
    least = f"; at least {pump.copies_min}" if pump.copies_min else ""
    return f"on {pump.copies_on}{least}"


def _merge(drainer: DrainerNode) -> Html:
    if not drainer.streams:
        return _card(Level.NOTE, "not known", "its Drainer says nothing")
    late = max((s.lag_s for s in drainer.streams if s.lag_s is not None), default=None)
    if drainer.held_by:
        held = f"held for {wording.duration(drainer.held_s)}"
        return _card(Level.WATCH, "waits", held, tag("p", drainer.held_by, class_="why"))
    count = wording.count(len(drainer.streams), "stream")
    return _card(Level.FINE, "merging", count, _fact(wording.duration(late), "behind at most"))


def _drainer(drainer: DrainerNode) -> Html:
    answers = drainer.level < Level.WATCH and drainer.word != "paused"
    return _card(
        drainer.level,
        drainer.name,
        drainer.word,
        _fact(wording.quantity(drainer.rows_per_s), "rows/s") if answers else None,
        _fact(wording.quantity(drainer.transactions_per_s), "transactions/s") if answers else None,
        *(_badge(f"{name} stands by", Level.FINE) for name in drainer.standbys),
    )


def _downstream(drainer: DrainerNode) -> Html:
    kind, _, place = drainer.downstream.partition(" ")
    name = place.rpartition("/")[2] or place or "downstream"
    level, word = Level.FINE, f"{wording.duration(drainer.lag_s)} behind"
    if drainer.downstream_waits_for:
        level, word = Level.WATCH, "takes no changes"
    elif drainer.lag_s is None:
        level, word = Level.NOTE, "nothing comes"
    checkpoint = wording.clock(drainer.checkpoint_s) if drainer.checkpoint_s else "the beginning"
    return _card(
        level,
        name,
        word,
        tag("p", {"sqlite": "SQLite", "mysql": "MySQL or MariaDB"}.get(kind, kind), class_="kind"),
        _fact(checkpoint, "is reached"),
    )


# --- lines between them --------------------------------------------------------------------------


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


def _pipes(pipes: Sequence[_Pipe], beside: int) -> Html:
    many = " many" if beside > SIDE_BY_SIDE_MAX else ""
    return tag("div", _drawn(pipes, wide=True), _drawn(pipes, wide=False),
               class_=f"pipes{many}", aria_hidden="true")  # fmt: skip


def _drawn(pipes: Sequence[_Pipe], *, wide: bool) -> Html:
    paths = [
        tag("path", d=_curve(pipe, wide=wide), class_=f"pipe {pipe.style} rate-{_width(pipe.rate)}")
        for pipe in pipes
    ]
    attributes = {
        "viewBox": "0 0 100 100",
        "preserveAspectRatio": "none",
        "class": "wide" if wide else "narrow",
    }
    return element("svg", paths, attributes)


def _curve(pipe: _Pipe, *, wide: bool) -> str:
    """Return an S-curve between shares of two sides; -1 is the middle between the sides."""
    begin, end = (0.0, pipe.begin), (100.0, pipe.end)
    if pipe.begin < 0:
        begin = (50.0, 50.0)
    if pipe.end < 0:
        end = (50.0, 50.0)
    half = (begin[0] + end[0]) / 2
    places = [begin, (half, begin[1]), (half, end[1]), end]
    written = [f"{x:.1f} {y:.1f}" if wide else f"{y:.1f} {x:.1f}" for x, y in places]
    return f"M{written[0]} C{written[1]} {written[2]} {written[3]}"


def _width(rate: float | None) -> int:
    """Return one of five widths, by the power of ten of a rate in bytes/s."""
    if not rate or rate < 1:
        return 0
    return min(4, max(1, math.floor(math.log10(rate)) - 2))
