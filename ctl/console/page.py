"""Renders a cluster's state as HTML, in fragments that are replaced one by one.

Pure. `fragments` are keyed by the id of the element that holds them: a viewer gets the whole page
once, and then only changed fragments. The page also works without scripts; then it reloads itself
every few seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from urllib.parse import quote

from ctl.console import plots, wording
from ctl.console.chronicle import Chronicle
from ctl.console.cluster_state import (
    ClusterState,
    Concern,
    LeftOutOf,
    Level,
    NodeProblem,
    PumpNode,
    SourceNode,
)
from ctl.console.markup import Html, element, joined, tag
from ctl.console.observation import DRAINER, PUMP, SOURCE, STREAM
from ctl.console.safe_verbs import Offer
from ctl.console.stream_picture import WORDS, glyph, picture
from penstock import __version__

ACTIONS: Final = "actions"
_RELOAD_S: Final = 5
_SHOWN_MAX: Final = 50
_CHOICE: Final = re.compile(r"`(.+?)`: (.+)|((?:penstock|mysql-source) .+?): (.+)", re.DOTALL)
_LEVEL_SAID: Final = {Level.ACT: "needs a person", Level.WATCH: "worth a look", Level.NOTE: "note"}


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


def fragments(state: ClusterState, chronicle: Chronicle, now_s: float) -> dict[str, Html]:
    return {
        "headline": _headline(state),
        "lag": _lag(state),
        "concerns": joined(map(_concern, state.concerns)),
        "stream": picture(state) if state.is_known else _waiting(),
        "plots": _plots(state, chronicle, now_s),
        "disk": _disk(state),
        "sources": _sources(state.sources),
        "left-out": _left_out(state.left_out, state.unheard),
        "problems": _problems(state.problems),
        "moment": joined(f"as of {wording.clock(state.now_s)} UTC"),
    }


def actions(offered: Iterable[Offer], notices: Iterable[Notice]) -> Html:
    items = [
        tag("li", tag("a", f"{offer.verb} {offer.node_id} …", class_="button",
                      href=f"do/{offer.verb}/{quote(offer.node_id, safe='')}"))
        for offer in offered
    ]  # fmt: skip
    done = [
        tag("li", tag("time", wording.moment(each.at_s)), " ", tag("b", each.what), ": ",
            each.outcome)
        for each in notices
    ]  # fmt: skip
    return joined(
        tag("ul", items, class_="buttons") if items else tag("p", "No node is online."),
        tag("h3", "Asked for here") if done else None,
        tag("ul", done, class_="log") if done else None,
    )


def document(parts: Mapping[str, Html], viewer: Viewer, *, cluster: str, began_s: float) -> str:
    sections = [
        _section("stream", "The stream", parts),
        _section("plots", "The last hour", parts, "Since this console started, at"
                 f" {wording.clock(began_s)} UTC, for an hour at most."),
        _section("disk", "Disk, and what purging waits for", parts),
        _section("sources", "Sources", parts),
        _section("left-out", "Left out", parts),
        _section("problems", "Last warnings and errors", parts),
        _section(ACTIONS, "Actions", parts) if viewer.may_act else None,
    ]  # fmt: skip
    header = tag(
        "header",
        tag("div", tag("h1", "Penstock"), tag("p", cluster, class_="cluster"), class_="title"),
        # Read aloud when it changes; elements that change every second are not.
        tag("div", parts["headline"], id="headline", class_="headline", aria_live="polite"),
        tag("p", parts["lag"], id="lag"),
        tag("p", tag("span", parts["moment"], id="moment"),
            tag("span", "", id="connection", role="status"), class_="moment"),
    )  # fmt: skip
    main = tag("main", tag("div", parts["concerns"], id="concerns"), *sections)
    return whole("Penstock", header, main, _footer(viewer), live=True)


def whole(title: str, *body: Html, live: bool = False) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", [], {"name": "color-scheme", "content": "light dark"}),
        tag("title", title),
        tag("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        tag("link", rel="stylesheet", href="/static/console.css"),
        tag("script", "", src="/static/console.js", defer=True) if live else None,
        tag("noscript", tag("meta", http_equiv="refresh", content=_RELOAD_S)) if live else None,
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


def message(title: str, text: str, hint: str = "") -> str:
    back = tag("p", tag("a", "Back to the cluster", href="/"))
    body = tag("main", tag("h1", title), tag("p", text), tag("p", hint) if hint else None, back,
               class_="single")  # fmt: skip
    return whole(f"Penstock: {title}", body)


def login(problem: str = "") -> str:
    form = tag(
        "form",
        tag("label", "The console's token", for_="token"),
        tag("input", id="token", name="token", type="password", autocomplete="current-password",
            required=True),
        tag("button", "Log in"),
        method="post", action="/login",
    )  # fmt: skip
    alert = tag("p", problem, role="alert", class_="alert") if problem else None
    about = tag("p", "With it, the safe verbs of penstock ctl can be used here.")
    back = tag("p", tag("a", "Back to the cluster", href="/"))
    return whole("Penstock: log in", tag("main", tag("h1", "Log in"), about, alert, form, back,
                                         class_="single"))  # fmt: skip


def confirmation(offer: Offer, viewer: Viewer, etcd_urls: str) -> str:
    title = f"{offer.verb} {offer.node_id}?"
    form = tag(
        "form",
        tag("input", type="hidden", name="csrf", value=viewer.csrf),
        tag("button", f"Yes, {offer.verb} {offer.node_id}", class_="danger"),
        " ",
        tag("a", "No, go back", href="/", class_="button"),
        method="post",
    )
    body = tag(
        "main",
        tag("h1", title),
        tag("p", "This is what follows:"),
        tag("ul", [tag("li", each) for each in offer.consequences], class_="consequences"),
        tag("p", "The same by hand: ", tag("code", offer.command(etcd_urls))),
        form,
        class_="single",
    )
    return whole(f"Penstock: {title}", body)


# --- fragments -----------------------------------------------------------------------------------


def _section(name: str, title: str, parts: Mapping[str, Html], about: str = "") -> Html:
    heading = tag("h2", title, id=f"{name}-title")
    return tag(
        "section",
        heading,
        tag("p", about, class_="about") if about else None,
        tag("div", parts[name], id=name),
        aria_labelledby=f"{name}-title",
    )


def _headline(state: ClusterState) -> Html:
    wanting = [each for each in state.concerns if each.level is Level.ACT]
    if not state.is_known and not wanting:
        return _said(Level.NOTE, "Asking etcd which nodes there are …")
    if wanting:
        things = "One thing needs" if len(wanting) == 1 else f"{len(wanting)} things need"
        return _said(Level.ACT, f"{things} a person")
    if state.level is Level.WATCH:
        return _said(Level.WATCH, "Worth a look")
    return _said(Level.FINE, "All is well")


def _lag(state: ClusterState) -> Html:
    lags = [drainer.lag_s for drainer in state.drainers if drainer.lag_s is not None]
    return joined(f"downstream {wording.duration(max(lags))} behind" if lags else None)


def _said(level: Level, words: str) -> Html:
    return tag("p", glyph(level), tag("span", words), class_=WORDS[level])


def _waiting() -> Html:
    return tag("p", "etcd has not said yet which nodes there are.", class_="empty")


def _concern(concern: Concern) -> Html:
    return tag(
        "article",
        tag("h2", glyph(concern.level), tag("span", concern.title)),
        tag("p", _LEVEL_SAID.get(concern.level, ""), class_="word"),
        tag("p", concern.detail, class_="detail") if concern.detail else None,
        tag("p", tag("b", "What helps: "), concern.remedy) if concern.remedy else None,
        _choices(concern.choices) if concern.choices else None,
        class_=f"concern {WORDS[concern.level]}",
    )


def _choices(choices: Sequence[str]) -> Html:
    items = []
    for choice in choices:
        found = _CHOICE.fullmatch(choice)
        command, means = (found[1] or found[3], found[2] or found[4]) if found else ("", choice)
        items.append(tag("li", tag("code", command) if command else None, tag("p", means)))
    return joined(
        tag("h3", "What can be decided, the safest first"), tag("ol", items, class_="choices")
    )


def _plots(state: ClusterState, chronicle: Chronicle, now_s: float) -> Html:
    span_s = chronicle.span_s(now_s)

    def lines(kind: str, names: Iterable[str], quantity: str) -> list[plots.Line]:
        return [
            plots.Line(
                label=name,
                now=chronicle.now(f"{kind} {name}", quantity, now_s),
                points=chronicle.points(f"{kind} {name}", quantity, now_s),
            )
            for name in names
        ]

    drainers = [each.name for each in state.drainers]
    pumps = [each.name for each in state.pumps]
    sources = [each.name for each in state.sources]
    streams = [
        replace(
            line, label=f"{stream.pump} at {drainer.name}" if len(drainers) > 1 else stream.pump
        )
        for drainer in state.drainers
        for stream in drainer.streams
        for line in lines(DRAINER, [drainer.name], f"{STREAM}{stream.pump}")
    ]
    drawn = [
        ("Lag of the downstream", lines(DRAINER, drainers, "lag_s"), plots.SECONDS),
        ("Rows applied downstream", lines(DRAINER, drainers, "rows"), plots.EACH_SECOND),
        ("Taken by Pumps", lines(PUMP, pumps, "storage_appended_bytes"), plots.BYTES_EACH_SECOND),
        ("Lag of Pumps' streams", streams, plots.SECONDS),
        ("Lag of sources", lines(SOURCE, sources, "seconds_behind"), plots.SECONDS),
    ]
    return joined(
        plots.over_time(title, some, scale, span_s) for title, some, scale in drawn if some
    )


def _disk(state: ClusterState) -> Html:
    about = state.purge_waits_for
    return joined(
        tag("p", about, class_="lead") if about else None,
        tag("ul", [tag("li", _volume(pump)) for pump in state.pumps], class_="volumes"),
    )


def _volume(pump: PumpNode) -> Html:
    kept, free, least = pump.log_bytes, pump.free_bytes, pump.refuses_below_bytes
    if kept is None or free is None:
        return joined(tag("h3", pump.name), tag("p", "not known", class_="empty"))
    words = (
        f"{wording.size(kept)} kept, {wording.size(free)} free; new transactions are refused at"
        f" {wording.size(least)} free"
    )
    return joined(
        tag("h3", pump.name),
        plots.bar([("kept", kept), ("free", free)], least, f"{pump.name}: {words}"),
        tag("p", words, class_="fact"),
        tag("p", f"Purge: {pump.purge}.", class_="about") if pump.purge else None,
    )


def _sources(sources: Sequence[SourceNode]) -> Html:
    if not sources:
        return tag("p", "No MySQL or MariaDB server is a writer here.", class_="empty")
    return tag("ul", [tag("li", _source(each)) for each in sources[:_SHOWN_MAX]], class_="sources")


def _source(source: SourceNode) -> Html:
    facts = [
        ("server", source.server or wording.NOT_KNOWN),
        ("run by", source.owner or "no process"),
        ("committed up to", source.place or wording.NOT_KNOWN),
        ("GTIDs", source.gtids or "none"),
    ]
    return joined(
        tag("h3", glyph(source.level), tag("span", source.name, class_="name"),
            tag("span", source.word, class_="word")),
        tag("p", source.why, class_="about") if source.why else None,
        tag("dl", [(tag("dt", name), tag("dd", tag("code", value))) for name, value in facts]),
    )  # fmt: skip


def _left_out(left_out: Sequence[LeftOutOf], unheard: Sequence[str]) -> Html:
    said = f"Not known of {', '.join(unheard)}, which has not said it yet." if unheard else ""
    if not left_out:
        return tag("p", said or "Nothing: all that is written goes downstream.", class_="empty")
    most = max(each.count for each in left_out)
    shown = sorted(left_out, key=lambda each: -each.count)
    more = len(shown) - _SHOWN_MAX
    return joined(
        tag("ul", [tag("li", _one_left_out(each, most)) for each in shown[:_SHOWN_MAX]],
            class_="bars"),
        tag("p", f"and {more} more") if more > 0 else None,
        tag("p", said, class_="about") if said else None,
    )  # fmt: skip


def _one_left_out(each: LeftOutOf, most: int) -> Html:
    name = each.name or "no table in particular"
    words = f"{each.count:,} {each.kind}" if each.kind else ""
    return joined(
        tag("h3", tag("span", name, class_="name"), tag("span", words, class_="word")),
        plots.bar([("left", each.count), ("rest", most - each.count)], None,
                  f"{name}: {words}") if most and each.kind else None,
        tag("p", "; ".join(filter(None, (each.cause, each.node, each.note))), class_="about"),
    )  # fmt: skip


def _problems(problems: Sequence[NodeProblem]) -> Html:
    if not problems:
        return tag("p", "None that the nodes have said.", class_="empty")
    items = [
        tag(
            "li",
            glyph(Level.WATCH if each.severity == "warning" else Level.ACT),
            tag("p", tag("b", each.severity), " ", tag("span", each.node, class_="name"), " ",
                tag("time", each.time[:19].replace("T", " ")), class_="about"),
            tag("p", each.line),
        )
        for each in problems
    ]  # fmt: skip
    return tag("ol", items, class_="log")


def _footer(viewer: Viewer) -> Html:
    may = tag("p", "Read-only")
    if viewer.may_act:
        csrf = tag("input", type="hidden", name="csrf", value=viewer.csrf)
        may = tag("form", csrf, tag("button", "Log out"), method="post", action="/logout")
    elif viewer.can_log_in:
        may = tag("p", tag("a", "Log in to act", href="/login"))
    return tag("footer", tag("p", f"penstock {__version__}"), may)
