"""Serves the page, its changes as events, and the verbs, over HTTP or HTTPS.

    GET  /                    the page                 GET  /live      the changes, as events
    GET  /static/FILE         style, script, icon      GET  /login     POST /login, /logout
    GET  /do/VERB/NODE        the consequences         POST /do/VERB/NODE   do it
    GET  /decide/OF/NUMBER    the consequences         POST /decide/OF/NUMBER   carry it out
    GET  /changes             a table's last changes, for users who have logged in
    GET  /healthz             the process answers      GET  /readyz         etcd answers, too

Everything comes from here: the policy in each answer forbids any other origin, inline scripts and
styles, and frames. On loopback only requests for this machine's own name are answered, so that no
web page of another site can read a cluster through a name that it points here. The state is made
once for all viewers, at most once a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from importlib import resources
from typing import Any, Final

from aiohttp import web
from markupsafe import Markup

from penstock.codes import Code
from penstock.ctl.console import page, wording
from penstock.ctl.console.access import (
    COOKIE,
    SESSION_S,
    Access,
    Login,
    Offer,
    begin,
    find,
    flags_of,
    is_loopback,
    is_of,
    offers,
)
from penstock.ctl.console.children import SPANS_S, Children, Decision, decision_of
from penstock.ctl.console.cluster_state import state_of
from penstock.ctl.console.page import ACTIONS, Notice, Viewer
from penstock.ctl.console.poller import Poller
from penstock.ctl.console.views import ClusterState, Concern
from penstock.ctl.nodes import etcd_tls_of, tls_of
from penstock.errors import NeedsOperator, PenstockError, coded
from penstock.node import service
from penstock.node.http_status import HEALTH, READY, host_of, is_own_name, probed
from penstock.security.tls import common_names, server_context

log = logging.getLogger(__name__)

VIEWERS_MAX: Final = 100
"""Maximum number of concurrent viewers; further viewers must come back later."""
_BODY_BYTES_MAX: Final = 16 << 10
_BETWEEN_S: Final = 1.0
_QUIET_S: Final = 10.0
_KEEP_ALIVE_S: Final = 30.0
_END_S: Final = 1.0
_WRONG_TOKEN_S: Final = 1.0
_NOTICES_MAX: Final = 20
_STATIC: Final[Mapping[str, str]] = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self';"
    " img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Console:
    """One console: a poller's view of a cluster, for all viewers."""

    def __init__(
        self,
        poller: Poller,
        access: Access,
        arguments: argparse.Namespace,
        *,
        allowed: frozenset[str] = frozenset(),
    ) -> None:
        """Show the poller's view; `arguments` locate the cluster, like penstock ctl's.

        If `allowed` is not empty, a viewer's certificate must have one of its common names.
        """
        self._poller = poller
        self._access = access
        self._arguments = arguments
        self._allowed = allowed
        self._is_local = is_loopback(arguments.addr.rpartition(":")[0])
        self._began_s = time.time()
        self._notices: deque[Notice] = deque(maxlen=_NOTICES_MAX)
        self._parts: dict[str, Markup] = {}
        self._acting_parts: dict[str, Markup] = {}
        """Fragments that users who may act see instead."""
        self._outcomes: dict[str, Notice] = {}
        self._children = Children()
        self._turn = asyncio.Condition()
        self._viewers = 0
        self._is_ending = False

    def app(self) -> web.Application:
        @web.middleware
        async def guarded(request: web.Request, handler: _Handler) -> web.StreamResponse:
            return await self._guarded(request, handler)

        app = web.Application(middlewares=[guarded], client_max_size=_BODY_BYTES_MAX)
        app.add_routes(
            [
                web.get("/", self._page),
                web.get(HEALTH, self._probed),
                web.get(READY, self._probed),
                web.get("/live", self._live),
                web.get("/static/{name}", _static),
                web.get("/login", self._login),
                web.post("/login", self._login),
                web.post("/logout", self._logout),
                web.get("/do/{verb}/{node}", self._confirm),
                web.post("/do/{verb}/{node}", self._do),
                web.get("/decide/{subject}/{number}", self._decide),
                web.post("/decide/{subject}/{number}", self._decide),
                web.get("/changes", self._changes),
            ]
        )
        return app

    async def run(self) -> None:
        """Rebuild the state after each change, at most once a second, until cancelled."""
        while True:
            await self._poller.changed.wait()
            self._poller.changed.clear()
            if self._viewers:
                await self._renew()
            await asyncio.sleep(_BETWEEN_S)

    async def close(self) -> None:
        async with self._turn:
            self._is_ending = True
            self._turn.notify_all()

    def _state(self) -> ClusterState:
        chronicle = self._poller.chronicle
        return state_of(self._poller.observation(), chronicle, time.monotonic())

    async def _renew(self) -> None:
        state = self._state()
        chronicle, has_token = self._poller.chronicle, self._access.has_token
        self._parts = page.fragments(state, chronicle, time.monotonic(), reads_rows=has_token)
        known = set(map(page.decision_key, state.concerns))
        self._outcomes = {key: each for key, each in self._outcomes.items() if key in known}
        notices = reversed(self._notices)
        self._acting_parts = {
            ACTIONS: page.actions(offers(state), notices, state.now_s),
            "concerns": page.concerns(state, self._outcomes, may_act=True),
        }
        async with self._turn:
            self._turn.notify_all()

    # Requests open to everyone.

    async def _page(self, request: web.Request) -> web.StreamResponse:
        await self._renew()
        viewer = self._viewer(request)
        cluster = self._arguments.etcd_urls
        parts = self._seen_by(viewer)
        return _html(page.document(parts, viewer, cluster=cluster, began_s=self._began_s))

    async def _probed(self, request: web.Request) -> web.StreamResponse:
        seen, problem = self._poller.observation(), ""
        if request.path == READY and (seen.listing is None or seen.etcd_problem):
            problem = f"etcd does not answer: {seen.etcd_problem or 'not yet'}"
        answer = probed(problem)
        return web.Response(text=str(answer.body), status=answer.status, content_type="text/plain")

    async def _live(self, request: web.Request) -> web.StreamResponse:
        if self._viewers >= VIEWERS_MAX:
            raise web.HTTPServiceUnavailable(text="too many look already", headers=_HEADERS)
        headers = {**_HEADERS, "Content-Type": "text/event-stream; charset=utf-8"}
        stream = web.StreamResponse(headers=headers)
        await stream.prepare(request)
        self._viewers += 1
        try:
            await self._send_changes(request, stream)
        except ConnectionResetError:
            pass  # The viewer disconnected.
        finally:
            self._viewers -= 1
        return stream

    async def _send_changes(self, request: web.Request, stream: web.StreamResponse) -> None:
        sent: dict[str, Markup] = {}
        while not self._is_ending:
            parts = self._seen_by(self._viewer(request))
            news = {name: part for name, part in parts.items() if sent.get(name) != part}
            line = f"data: {json.dumps(news, ensure_ascii=False)}" if news else ": nothing new"
            await stream.write(f"{line}\n\n".encode())
            sent = dict(parts)
            try:
                async with asyncio.timeout(_QUIET_S), self._turn:
                    await self._turn.wait()
            except TimeoutError:
                continue

    def _seen_by(self, viewer: Viewer) -> dict[str, Markup]:
        return {**self._parts, **self._acting_parts} if viewer.may_act else self._parts

    # Login, and requests of users who may act.

    def _session(self, request: web.Request) -> Login | None:
        return self._access.session(request.cookies.get(COOKIE, ""))

    def _viewer(self, request: web.Request) -> Viewer:
        session = self._session(request)
        if session is None:
            return Viewer(can_log_in=self._access.has_token)
        return Viewer(may_act=True, csrf=session.csrf)

    async def _login(self, request: web.Request) -> web.StreamResponse:
        if not self._access.has_token:
            raise _Refused(
                404,
                "This console is read-only",
                "Started with --token-file FILE it takes the safe verbs of penstock ctl.",
            )
        if request.method != "POST":
            return _html(page.login())
        session = self._access.log_in(str((await request.post()).get("token", "")))
        if session is None:
            log.warning("a wrong token from %s", request.remote)
            await asyncio.sleep(_WRONG_TOKEN_S)
            return _html(page.login("That is not this console's token."), status=403)
        log.info("a session begins, from %s", request.remote)
        answer = _to_the_page()
        answer.set_cookie(
            COOKIE, session.name, max_age=int(SESSION_S), httponly=True, samesite="Strict",
            secure=request.secure,
        )  # fmt: skip
        return answer

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        self._access.sessions.pop((await self._acting(request)).name, None)
        answer = _to_the_page()
        answer.del_cookie(COOKIE, httponly=True, samesite="Strict", secure=request.secure)
        return answer

    async def _confirm(self, request: web.Request) -> web.StreamResponse:
        viewer = self._viewer(request)
        if not viewer.may_act:
            raise web.HTTPSeeOther("/login" if self._access.has_token else "/")
        return _html(page.confirmation(self._offer(request), viewer, flags_of(self._arguments)))

    async def _do(self, request: web.Request) -> web.StreamResponse:
        await self._acting(request)
        offer = self._offer(request)
        what = f"{offer.verb} {offer.node_id}"
        log.warning("%s, asked for from %s", what, request.remote)
        try:
            outcome = await asyncio.to_thread(begin, offer, self._arguments)
        except PenstockError as error:
            self._notices.append(Notice(time.time(), what, f"refused: {coded(error)}"))
            raise
        self._notices.append(Notice(time.time(), what, outcome))
        return _to_the_page()

    async def _decide(self, request: web.Request) -> web.StreamResponse:
        viewer, form = self._viewer(request), await request.post()
        if request.method == "POST":
            await self._acting(request)
        elif not viewer.may_act:
            raise web.HTTPSeeOther("/login" if self._access.has_token else "/")
        concern, decision = self._decision(request)
        if request.method != "POST":
            return _html(page.decision(decision, concern.title, viewer))
        command, sql = decision.choice.command, str(form.get("sql", ""))
        if form.get("command") != command:
            raise _stale(command)
        log.warning("%s, asked for from %s: %r", command, request.remote, sql)
        try:
            said = await self._children.decide(decision, sql)
        except NeedsOperator as error:
            self._notices.append(Notice(time.time(), decision.verb, f"refused: {error.problem}"))
            shown = page.decision(decision, concern.title, viewer, wording.plain(str(error)))
            return _html(shown, status=409)
        notice = Notice(time.time(), decision.verb, said)
        self._notices.append(notice)
        self._outcomes[page.decision_key(concern)] = notice
        return _to_the_page()

    def _decision(self, request: web.Request) -> tuple[Concern, Decision]:
        """Return what is asked for; raise `NeedsOperator` if it cannot be decided now."""
        subject, number = request.match_info["subject"], request.match_info["number"]
        for concern in self._state().concerns:
            ways = [*concern.commands, *concern.choices]
            if concern.subject == subject and number.isdecimal() and int(number) < len(ways):
                decision = decision_of(ways[int(number)])
                if decision is not None:
                    return concern, decision
        raise _stale(f"a decision about {subject}")

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        if not self._viewer(request).may_act:
            raise web.HTTPSeeOther("/login" if self._access.has_token else "/")
        asked = {"table": request.query.get("table", ""), "since": request.query.get("since", "")}
        span_s = SPANS_S.get(asked["since"], next(iter(SPANS_S.values())))
        now_s, found, problem = time.time(), None, ""
        if asked["table"]:
            log.info("changes of %r are read, from %s", asked["table"], request.remote)
            reading = self._children.changes(asked["table"], span_s, now_s, self._arguments)
            found, problem = await reading
        return _html(page.changes(asked, found, problem, now_s))

    def _offer(self, request: web.Request) -> Offer:
        asked = request.match_info
        return find(self._state(), asked["verb"], asked["node"])

    async def _acting(self, request: web.Request) -> Login:
        session = self._session(request)
        form = await request.post()
        if session is None or not is_of(session, str(form.get("csrf", ""))):
            raise _Refused(403, "This needs a session of this console", "Log in, and try again.")
        return session

    # Checks on every request.

    async def _guarded(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            self._refuse_strangers(request)
            answer = await handler(request)
        except _Refused as refused:
            answer = _html(page.message(refused.title, refused.hint), status=refused.status)
        except NeedsOperator as error:
            hint = f"{error.hint} [{error.code}]"
            answer = _html(page.message("Refused", error.problem, hint), status=409)
        except PenstockError as error:
            answer = _html(page.message("Not now", coded(error)), status=503)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            raise
        if not answer.prepared:
            answer.headers.update(_HEADERS)
        return answer

    def _refuse_strangers(self, request: web.Request) -> None:
        host, bound = request.headers.get("Host", ""), host_of(self._arguments.addr)
        if self._is_local and not is_loopback(host_of(request.host)):
            raise _Refused(403, "Not under this name", "Ask for localhost or 127.0.0.1.")
        if not request.secure and not is_own_name(host, (bound,)):
            raise _Refused(
                403, "Not under this name", "Ask by an address, or give this name in --addr."
            )
        origin = request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != request.host:
            raise _Refused(403, "Not from another site", "Open the console itself.")
        if self._allowed:
            transport = request.transport
            shown = transport.get_extra_info("peercert") if transport is not None else None
            if self._allowed.isdisjoint(common_names(shown)):
                raise _Refused(
                    403, "Not with this certificate", "cert-allowed-cn does not list its name."
                )


def _stale(what: str) -> NeedsOperator:
    return NeedsOperator(
        f"{what} cannot be done now", "look at the page again: states change", Code.NODE_STATE
    )


class _Refused(Exception):
    """A request that is answered only with a page that gives the reason."""

    def __init__(self, status: int, title: str, hint: str) -> None:
        super().__init__(title)
        self.status, self.title, self.hint = status, title, hint


def _html(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, content_type="text/html", status=status)


def _to_the_page() -> web.Response:
    return web.Response(status=303, headers={"Location": "/"})


async def _static(request: web.Request) -> web.StreamResponse:
    name = request.match_info["name"]
    if name not in _STATIC:
        raise web.HTTPNotFound(text="no such file")
    text = resources.files("penstock.ctl.console").joinpath("static", name).read_text("utf-8")
    return web.Response(text=text, content_type=_STATIC[name])


async def serve(arguments: argparse.Namespace, token: str, stop: asyncio.Event) -> None:
    host, _, port = arguments.addr.rpartition(":")
    host = host.strip("[]")
    tls, allowed = tls_of(arguments), frozenset(arguments.cert_allowed_cn)
    context = None
    if tls is not None:
        tls.check()
    if tls is not None and arguments.ssl_cert and not is_loopback(host):
        context = server_context(tls, with_client_certificate=bool(allowed))
    poller = Poller(
        arguments.etcd_urls, etcd_tls=etcd_tls_of(arguments), tls=tls, flags=flags_of(arguments)
    )
    console = Console(poller, Access(token, time.monotonic), arguments, allowed=allowed)
    runner = web.AppRunner(console.app(), access_log=None, keepalive_timeout=_KEEP_ALIVE_S,
                           shutdown_timeout=_END_S)  # fmt: skip
    await runner.setup()
    try:
        await web.TCPSite(runner, host, int(port), ssl_context=context).start()
        shown = f"[{host}]" if ":" in host else host
        scheme = "https" if context else "http"
        log.info("the console is at %s://%s:%d/", scheme, shown, runner.addresses[0][1])
        service.notify(service.READY)
        await _until_stopped(stop, poller.run(), console.run())
    except OSError as error:
        raise NeedsOperator(
            f"cannot listen on {arguments.addr}: {error}",
            "choose another --addr",
            Code.ADDRESS_TAKEN,
        ) from error
    finally:
        await console.close()
        await runner.cleanup()


async def _until_stopped(stop: asyncio.Event, *running: Coroutine[Any, Any, None]) -> None:
    """Run all until asked to stop; raise the error that ends one of them earlier."""
    tasks = [asyncio.create_task(each) for each in (stop.wait(), *running)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
