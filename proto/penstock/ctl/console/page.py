"""Renders a cluster's state as HTML and SVG, in fragments that are replaced one by one.

Pure. `fragments` are keyed by the id of the element that holds them: a viewer gets the whole page
once, and then only changed fragments. The page also works without scripts; then it reloads itself
every few seconds.

The markup is in `templates/`, escaped by Jinja2. Characters that a document must not contain
(control characters, halves of a surrogate pair) become U+FFFD, so that a page is also well-formed
XML. A plot is drawn in 400 x 180 units, about as many pixels as it has on any screen, so that its
words can be read on a phone. Lines differ by their dashes as well as by colour. `picture` draws the
stages in the order data flows:

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
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from penstock import __version__
from penstock.ctl.console import wording
from penstock.ctl.console.access import Offer
from penstock.ctl.console.children import CHANGES_MAX, SPANS_S, Decision, decision_of
from penstock.ctl.console.observation import DRAINER, PUMP, SOURCE, STREAM, Chronicle, text, within
from penstock.ctl.console.views import ClusterState, Concern, Level, Loading, PumpNode, Skipped

_MOMENT: Final = re.compile(
    r"(since )?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))", re.ASCII
)
_NO_CHARACTER: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def draw(template: str, macro: str, /, **values: object) -> Markup:
    module = _ENVIRONMENT.get_template(f"{template}.html").module
    return Markup(getattr(module, macro)(**values))


def _clean(value: object) -> object:
    """Return an expression's value for the output; None adds nothing."""
    if isinstance(value, str):
        kind = Markup if isinstance(value, Markup) else str
        return kind(_NO_CHARACTER.sub("\ufffd", value))
    return "" if value is None else value


def _worded(said: str, now_s: float) -> Markup:
    """Return a node's words for a reader: errors in plain words, times as their age."""
    parts, end = [], 0
    said = wording.plain(said)
    for found in _MOMENT.finditer(said):
        parts += [escape(said[end : found.start()]), _time(found, now_s)]
        end = found.end()
    return Markup("").join([*parts, escape(said[end:])])


def _time(found: re.Match[str], now_s: float) -> Markup:
    try:
        at_s = datetime.fromisoformat(found[2]).timestamp()
    except (ValueError, OverflowError):
        return escape(found[0])
    if found[1]:
        return Markup("for ") + _aged(at_s, now_s, wording.age(now_s - at_s))
    return _aged(at_s, now_s)


def _aged(at_s: float, now_s: float, words: str = "") -> Markup:
    """Return a time as its age, with the time itself as title."""
    return Markup('<time title="{} UTC">{}</time>').format(
        wording.moment(at_s), words or wording.ago(at_s, now_s)
    )


_QUOTED: Final = partial(quote, safe="", errors="replace")
_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("penstock.ctl.console"),
    autoescape=True,
    finalize=_clean,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals.update(Level=Level, version=__version__)
_ENVIRONMENT.filters.update(
    duration=wording.duration,
    quantity=wording.quantity,
    byte_rate=wording.byte_rate,
    size=wording.size,
    counted=wording.count,
    moment=wording.moment,
    clock=wording.clock,
    percent=wording.percent,
    sentence=wording.sentence,
    worded=_worded,
    aged=_aged,
    path=_QUOTED,
)

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 400, 68, 390, 12, 152
_BOX: Final = {"width": _WIDTH, "height": 180, "left": _LEFT, "right": _RIGHT, "top": _TOP,
               "bottom": _BOTTOM}  # fmt: skip
"""The size of a plot, and the sides of its axes."""
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
        box=_BOX,
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
        width = max(0.0, size / total * _WIDTH)
        shown.append((name, x, width))
        x += width
    if mark is not None:
        mark = min(_WIDTH - 1.0, max(1.0, _WIDTH - mark / total * _WIDTH))
    return draw("plots", "bar", parts=shown, mark=mark, about=about)


def _path_and_area(line: Line, top: float, *, has_area: bool) -> tuple[str, str]:
    points = thinned(line.points, _POINTS_MAX)
    step = (_RIGHT - _LEFT) / max(1, len(points) - 1)
    high = _BOTTOM - _TOP
    places = [
        None if v is None else (_LEFT + i * step, _BOTTOM - min(1, max(0, v / top)) * high)
        for i, v in enumerate(points)
    ]
    runs = _runs(places)
    area = " ".join(
        f"{_path(run)} L{run[-1][0]:.1f} {_BOTTOM} L{run[0][0]:.1f} {_BOTTOM} Z" for run in runs
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
            stream = streams.get(pump.name)
            if (
                stream is None
                or stream.condition in ("dead", "stopped")
                or drainer.level >= Level.WATCH
            ):
                style = "broken"
            elif stream.condition == "ok" and not (stream.holds and drainer.held_by):
                style = "flowing"
            else:
                style = "holding"
            begin = _middle(index, len(state.pumps))
            yield _Pipe(begin, _middle(row, len(state.drainers)), style, pump.bytes_per_s)


def _straight(state: ClusterState) -> Iterable[_Pipe]:
    for row, drainer in enumerate(state.drainers):
        style = "broken" if drainer.level >= Level.WATCH else "quiet"
        if style == "quiet" and drainer.rows_per_s:
            style = "flowing"
        place = _middle(row, len(state.drainers))
        yield _Pipe(place, place, style, (drainer.rows_per_s or 0.0) * 100)


ACTIONS: Final = "actions"
_SHOWN_MAX: Final = 50
_COLUMNS_MAX: Final = 30


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


NO_OUTCOMES: Final[Mapping[str, Notice]] = {}


def fragments(
    state: ClusterState, chronicle: Chronicle, now_s: float, *, reads_rows: bool = False
) -> dict[str, Markup]:
    """Return all fragments but the actions; with `reads_rows` tables lead to their last changes."""
    level, words = _headline(state)
    lags = [drainer.lag_s for drainer in state.drainers if drainer.lag_s is not None]
    waiting = Markup('<p class="empty">etcd has not said yet which nodes there are.</p>')
    return {
        "headline": draw("fragments", "headline", level=level, words=words),
        "lag": escape(f"downstream {wording.duration(max(lags))} behind" if lags else ""),
        "concerns": concerns(state),
        "stream": picture(state) if state.is_known else waiting,
        "plots": _plots(state, chronicle, now_s),
        "disk": draw("fragments", "disk", state=state, bars=[*map(_volume, state.pumps)]),
        "sources": draw(
            "fragments", "sources", sources=state.sources[:_SHOWN_MAX], now_s=state.now_s
        ),
        "tables": _tables(state, reads_rows=reads_rows),
        "skipped": _skipped(state.skipped, state.unheard),
        "problems": draw("fragments", "problems", problems=state.problems, now_s=state.now_s),
        "moment": escape(f"as of {wording.clock(state.now_s)} UTC"),
    }


def concerns(
    state: ClusterState, outcomes: Mapping[str, Notice] = NO_OUTCOMES, *, may_act: bool = False
) -> Markup:
    """Return the cards; with the outcome of a decision by `decision_key`, and links to decide."""
    shown = []
    for each in state.concerns:
        place = _QUOTED(each.subject)
        ways = [
            (one, f"{place}/{number}" if may_act and decision_of(one) else "")
            for number, one in enumerate((*each.commands, *each.choices))
        ]
        begin = len(each.commands)
        shown.append((each, ways[:begin], ways[begin:], outcomes.get(decision_key(each))))
    loads = [(each, [(one, *_progress(one)) for one in each.load])
             for each in state.sources if each.load_about]  # fmt: skip
    return draw("fragments", "concerns", concerns=shown, loads=loads, now_s=state.now_s)


def decision_key(concern: Concern) -> str:
    """Return a name for a problem that needs a decision; the next problem has another one."""
    return "\n".join([concern.subject, *(each.command for each in concern.choices)])


def actions(offered: Iterable[Offer], notices: Iterable[Notice], now_s: float) -> Markup:
    return draw("fragments", "actions", offered=[*offered], notices=[*notices], now_s=now_s)


def document(
    parts: Mapping[str, Markup], viewer: Viewer, *, cluster: str, began_s: float
) -> Markup:
    return draw("page", "document", parts=parts, viewer=viewer, cluster=cluster, began_s=began_s)


def message(title: str, about: str, hint: str = "") -> Markup:
    return draw("page", "message", title=title, text=about, hint=hint)


def login(problem: str = "") -> Markup:
    return draw("page", "login", problem=problem)


def decision(asked: Decision, title: str, viewer: Viewer, problem: str = "") -> Markup:
    return draw("page", "decision", asked=asked, title=title, viewer=viewer, problem=problem)


def changes(
    asked: Mapping[str, str], found: Sequence[Mapping[str, Any]] | None, problem: str, now_s: float
) -> Markup:
    """Return the page with the last changes of a table; `found` is None before it was asked."""
    rows = [_change(each) for each in found or ()]
    names = dict.fromkeys(name for row in rows for name in row.values)
    return draw(
        "changes", "page", asked=asked, rows=rows, names=[*names][:_COLUMNS_MAX],
        more=max(0, len(names) - _COLUMNS_MAX), problem=problem, now_s=now_s,
        is_asked=found is not None, spans=SPANS_S, count_max=CHANGES_MAX,
    )  # fmt: skip


class Change(NamedTuple):
    """A change in a table: of each column all values, None for NULL, the old one first."""

    at: str
    kind: str
    values: Mapping[str, Sequence[object]]
    query: str = ""


def _change(line: Mapping[str, Any]) -> Change:
    """Read a line of penstock tail; another version's is read as far as it is understood."""
    before, after = within(line, "before"), within(line, "after")
    kind = text(line, "kind")
    values = {}
    for name, value in (after or before).items():
        was = before.get(name, value) if kind == "update" else value
        values[str(name)] = [value] if was == value else [was, value]
    return Change(text(line, "committed_at"), kind, values, text(line, "query"))


def confirmation(offer: Offer, viewer: Viewer, flags: str) -> Markup:
    return draw("page", "confirmation", offer=offer, viewer=viewer, flags=flags)


def _headline(state: ClusterState) -> tuple[Level, str]:
    wanting = [each for each in state.concerns if each.level is Level.ACT]
    if not state.is_known and not wanting:
        return Level.NOTE, "Asking etcd which nodes there are …"
    if wanting:
        problems = "1 problem requires" if len(wanting) == 1 else f"{len(wanting)} problems require"
        return Level.ACT, f"{problems} action"
    if state.level is Level.WATCH:
        return Level.WATCH, "Worth a look"
    if any(each.word == "loading" for each in state.sources):
        return Level.NOTE, "Loading"
    return Level.FINE, "All is well"


def _plots(state: ClusterState, chronicle: Chronicle, now_s: float) -> Markup:
    def line(kind: str, name: str, quantity: str, label: str = "") -> Line:
        at = f"{kind} {name}", quantity, now_s
        return Line(label or name, chronicle.now(*at), chronicle.points(*at))

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
        ("Lag of the downstream", lags, SECONDS),
        ("Rows applied downstream", rows, EACH_SECOND),
        ("Taken by Pumps", taken, BYTES_EACH_SECOND),
        ("Lag of Pumps' streams", streams, SECONDS),
        ("Lag of sources", behind, SECONDS),
    ]
    figures = (over_time(name, lines, scale, span_s) for name, lines, scale in drawn if lines)
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
    return words, bar([("kept", kept), ("free", free)], least, f"{pump.name}: {words}")


def _tables(state: ClusterState, *, reads_rows: bool) -> Markup:
    most = max((each.rows_per_s or 0.0 for each in state.tables), default=0.0)
    shown = []
    for each in state.tables:
        words = f"{wording.rate(each.rows_per_s)}, {each.rows:,.0f} rows so far"
        parts = [("left", each.rows_per_s or 0.0), ("rest", most - (each.rows_per_s or 0.0))]
        shown.append((each, words, bar(parts, None, f"{each.name}: {words}") if most else ""))
    return draw("fragments", "tables", shown=shown, reads_rows=reads_rows)


def _progress(load: Loading) -> tuple[str, Markup]:
    """Return the words and the bar of a load; of an unknown size only the words are certain."""
    share = load.share
    words = f"{load.rows_done:,.0f} rows"
    if load.rows:
        words += f" of about {load.rows:,.0f}"
    if share is not None:
        words = f"{share:.0%}, {words}"
    parts = [("left", share or 0.0), ("rest", 1.0 - (share or 0.0))]
    return words, bar(parts, None, f"{load.name}: {words}")


def _skipped(skipped: Sequence[Skipped], unheard: Sequence[str]) -> Markup:
    most = max((each.count for each in skipped), default=0)
    shown = []
    for each in sorted(skipped, key=lambda each: -each.count)[:_SHOWN_MAX]:
        name = each.name or "no table in particular"
        words = f"{each.count:,} {each.kind}" if each.kind else ""
        parts = [("left", each.count), ("rest", most - each.count)]
        drawn = bar(parts, None, f"{name}: {words}") if most and each.kind else None
        shown.append((each, name, words, drawn))
    more = len(skipped) - _SHOWN_MAX
    return draw("fragments", "skipped", shown=shown, more=more, unheard=unheard)
