"""Renders a cluster's state as HTML, in fragments that are replaced one by one.

Pure. `fragments` are keyed by the id of the element that holds them: a viewer gets the whole page
once, and then only changed fragments. The page also works without scripts; then it reloads itself
every few seconds. The markup is in `templates/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup, escape

from ctl.console import plots, wording
from ctl.console.chronicle import Chronicle
from ctl.console.cluster_state import ClusterState, Level, PumpNode, Skipped
from ctl.console.drawing import draw
from ctl.console.observation import DRAINER, PUMP, SOURCE, STREAM
from ctl.console.safe_verbs import Offer
from ctl.console.stream_picture import picture

ACTIONS: Final = "actions"
_SHOWN_MAX: Final = 50


class Viewer(NamedTuple):
    """The viewer: `may_act` with the token's session, whose `csrf` goes into every form."""

    may_act: bool = False
    can_log_in: bool = False
    csrf: str = ""


class Notice(NamedTuple):
    """A request made at this console, and its result."""

    at_s: float
    what: str
    outcome: str


def fragments(state: ClusterState, chronicle: Chronicle, now_s: float) -> dict[str, Markup]:
    level, words = _headline(state)
    lags = [drainer.lag_s for drainer in state.drainers if drainer.lag_s is not None]
    waiting = Markup('<p class="empty">etcd has not said yet which nodes there are.</p>')
    return {
        "headline": draw("fragments", "headline", level=level, words=words),
        "lag": escape(f"downstream {wording.duration(max(lags))} behind" if lags else ""),
        "concerns": draw("fragments", "concerns", concerns=state.concerns),
        "stream": picture(state) if state.is_known else waiting,
        "plots": _plots(state, chronicle, now_s),
        "disk": draw("fragments", "disk", state=state, bars=[*map(_volume, state.pumps)]),
        "sources": draw("fragments", "sources", sources=state.sources[:_SHOWN_MAX]),
        "skipped": _skipped(state.skipped, state.unheard),
        "problems": draw("fragments", "problems", problems=state.problems),
        "moment": escape(f"as of {wording.clock(state.now_s)} UTC"),
    }


def actions(offered: Iterable[Offer], notices: Iterable[Notice]) -> Markup:
    return draw("fragments", "actions", offered=[*offered], notices=[*notices])


def document(
    parts: Mapping[str, Markup], viewer: Viewer, *, cluster: str, began_s: float
) -> Markup:
    return draw("page", "document", parts=parts, viewer=viewer, cluster=cluster, began_s=began_s)


def message(title: str, text: str, hint: str = "") -> Markup:
    return draw("page", "message", title=title, text=text, hint=hint)


def login(problem: str = "") -> Markup:
    return draw("page", "login", problem=problem)


def confirmation(offer: Offer, viewer: Viewer, etcd_urls: str) -> Markup:
    return draw("page", "confirmation", offer=offer, viewer=viewer, etcd_urls=etcd_urls)


def _headline(state: ClusterState) -> tuple[Level, str]:
    wanting = [each for each in state.concerns if each.level is Level.ACT]
    if not state.is_known and not wanting:
        return Level.NOTE, "Asking etcd which nodes there are …"
    if wanting:
        things = "One thing needs" if len(wanting) == 1 else f"{len(wanting)} things need"
        return Level.ACT, f"{things} a person"
    if state.level is Level.WATCH:
        return Level.WATCH, "Worth a look"
    return Level.FINE, "All is well"


def _plots(state: ClusterState, chronicle: Chronicle, now_s: float) -> Markup:
    def line(kind: str, name: str, quantity: str, label: str = "") -> plots.Line:
        at = f"{kind} {name}", quantity, now_s
        return plots.Line(label or name, chronicle.now(*at), chronicle.points(*at))

    drainers, pumps, sources = state.drainers, state.pumps, state.sources
    is_one = len(drainers) == 1
    streams = [
        line(
            DRAINER,
            drainer.name,
            f"{STREAM}{stream.pump}",
            stream.pump if is_one else f"{stream.pump} at {drainer.name}",
        )
        for drainer in drainers
        for stream in drainer.streams
    ]
    lags = [line(DRAINER, each.name, "lag_s") for each in drainers]
    rows = [line(DRAINER, each.name, "rows") for each in drainers]
    taken = [line(PUMP, each.name, "storage_appended_bytes") for each in pumps]
    behind = [line(SOURCE, each.name, "seconds_behind") for each in sources]
    span_s = chronicle.span_s(now_s)
    drawn = [
        ("Lag of the downstream", lags, plots.SECONDS),
        ("Rows applied downstream", rows, plots.EACH_SECOND),
        ("Taken by Pumps", taken, plots.BYTES_EACH_SECOND),
        ("Lag of Pumps' streams", streams, plots.SECONDS),
        ("Lag of sources", behind, plots.SECONDS),
    ]
    figures = (plots.over_time(name, lines, scale, span_s) for name, lines, scale in drawn if lines)
    return Markup("").join(figures)


def _volume(pump: PumpNode) -> tuple[str, Markup] | None:
    """Return the words and the bar of a Pump's volume, or None if its size is not known."""
    kept, free, least = pump.log_bytes, pump.free_bytes, pump.refuses_below_bytes
    if kept is None or free is None:
        return None
    words = (
        f"{wording.size(kept)} kept, {wording.size(free)} free; new transactions are refused at"
        f" {wording.size(least)} free"
    )
    return words, plots.bar([("kept", kept), ("free", free)], least, f"{pump.name}: {words}")


def _skipped(skipped: Sequence[Skipped], unheard: Sequence[str]) -> Markup:
    most = max((each.count for each in skipped), default=0)
    shown = []
    for each in sorted(skipped, key=lambda each: -each.count)[:_SHOWN_MAX]:
        name = each.name or "no table in particular"
        words = f"{each.count:,} {each.kind}" if each.kind else ""
        parts = [("left", each.count), ("rest", most - each.count)]
        bar = plots.bar(parts, None, f"{name}: {words}") if most and each.kind else None
        shown.append((each, name, words, bar))
    more = len(skipped) - _SHOWN_MAX
    return draw("fragments", "skipped", shown=shown, more=more, unheard=unheard)
