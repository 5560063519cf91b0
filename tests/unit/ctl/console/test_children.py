"""Decisions and last changes: which commands a console runs, how they end, and who may ask."""

import argparse
import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from penstock.ctl.console import page
from penstock.ctl.console.access import Access
from penstock.ctl.console.children import CHANGES_MAX, Children, decision_of
from penstock.ctl.console.observation import Observation
from penstock.ctl.console.views import Choice
from penstock.ctl.console.web import Console
from penstock.errors import NeedsOperator
from tests.kit.console_states import DDL_STOP, FAILURES, HOSTILE, NOW_S, PAUSED, cluster, node
from tests.kit.servers.console import Scene

TOKEN = "t" * 16
REPLACE = 'penstock drainer ddl replace 5 "<sql>" --sink=mysql://u@h/'


@pytest.mark.parametrize(
    ("command", "verb"),
    [
        ("penstock drainer ddl skip 5 --sink=mysql://u@h/ --data-dir=/x", "skip"),
        (REPLACE, "replace"),
        ("penstock source reload shop.a --status-addr=h:1", "reload"),
        ("penstock source replace --at f:4 'SQL' --status-addr=h:1", "replace"),
        ("penstock drainer ddl list", None),
        ("penstock drainer --sink=mysql://u@h/", None),
        ("penstock ctl lost-pump p --accept-loss-after 5", None),
        ("penstock drainer ddl skip 5 -Xx", None),
        ("rm -rf /", None),
        ("penstock drainer ddl skip 5 'open", None),
        ("", None),
    ],
)
def test_only_commands_of_known_forms_are_run(command: str, verb: str | None) -> None:
    decision = decision_of(Choice(command, "x"))
    assert (decision and decision.verb) == verb


def test_a_statement_is_one_word_of_the_command_whatever_it_contains() -> None:
    decision = decision_of(Choice(REPLACE, "x"))
    assert decision is not None
    sql = "ALTER TABLE a ADD b INT; $(reboot) --sink=x"
    assert decision.argv(f" {sql}\n") == [
        *("penstock", "drainer", "ddl", "replace", "5"), sql, "--sink=mysql://u@h/",
    ]  # fmt: skip
    with pytest.raises(NeedsOperator, match="needs a statement"):
        decision.argv("  ")


def stopped_with(*choices: str) -> Observation:
    stop = replace(DDL_STOP, choices=choices)
    return cluster(drainer=node("drainer-1", PAUSED), stops=(stop,))


Test = Callable[[aiohttp.ClientSession, str, Scene], Coroutine[Any, Any, None]]


def served(seen: Observation, test: Test, *, logs_in: bool = True) -> None:
    async def run() -> None:
        scene = Scene(seen)
        arguments = argparse.Namespace(addr="127.0.0.1:0", etcd_urls="127.0.0.1:1")
        console = Console(scene, Access(TOKEN, time.monotonic), arguments)
        jar = aiohttp.CookieJar(unsafe=True)
        async with AsyncExitStack() as stack:
            runner = web.AppRunner(console.app(), shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            browser = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=jar))
            if logs_in:
                async with browser.post(f"{url}/login", data={"token": TOKEN}) as answer:
                    await answer.read()
            await test(browser, url, scene)
            await console.close()

    asyncio.run(run())


async def got(browser: aiohttp.ClientSession, url: str) -> str:
    async with browser.get(url) as answer:
        return await answer.text()


def form_of(text: str) -> dict[str, str]:
    return dict(re.findall(r'name="(csrf|command)" value="([^"]*)"', text))


def test_only_who_has_logged_in_sees_changes_and_decides() -> None:
    async def test(browser: aiohttp.ClientSession, url: str, scene: Scene) -> None:
        assert "Do this here" not in await got(browser, url)
        for path in ("/changes?table=shop.a", "/decide/drainer%20drainer-1/1"):
            async with browser.get(f"{url}{path}", allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, "/login")
        async with browser.post(f"{url}/decide/drainer%20drainer-1/1", data={}) as answer:
            assert answer.status == 403

    served(FAILURES["a DDL that has stopped a Drainer"], test, logs_in=False)


def test_a_decision_says_what_follows_and_is_made_only_as_it_was_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[list[str]] = []

    async def run(self: Children, words: list[str], lines: Any, within_s: float) -> str:
        ran.append(words)
        lines.append(b"changed in the checkpoint of mysql db:3306")
        return ""

    monkeypatch.setattr(Children, "_run", run)
    place = "/decide/drainer%20drainer-1/3"

    async def test(browser: aiohttp.ClientSession, url: str, scene: Scene) -> None:
        assert f'href="{place}"' in await got(browser, url)
        text = await got(browser, f"{url}{place}")
        assert "the values of column paid of shop.orders are skipped and counted" in text
        form = form_of(text)
        other = {**form, "command": "penstock drainer ddl track 5"}
        async with browser.post(f"{url}{place}", data=other) as answer:
            assert answer.status == 409
        async with browser.post(f"{url}{place}", data={"command": form["command"]}) as answer:
            assert answer.status == 403
        assert ran == []
        async with browser.post(f"{url}{place}", data=form) as answer:
            text = await answer.text()
        assert "changed in the checkpoint of mysql db:3306" in text
        assert ran[0][:4] == ["drainer", "ddl", "skip", "5"]
        scene.seen = stopped_with("`penstock drainer ddl skip 6`: another DDL")
        assert 'class="outcome"' not in await got(browser, url)

    served(FAILURES["a DDL that has stopped a Drainer"], test)


def test_a_decision_that_fails_is_shown_with_its_reason() -> None:
    choice = "`penstock drainer ddl skip 5 --etcd-urls=nowhere`: rows are skipped"

    async def test(browser: aiohttp.ClientSession, url: str, scene: Scene) -> None:
        place = f"{url}/decide/drainer%20drainer-1/0"
        form = form_of(await got(browser, place))
        async with browser.post(place, data=form) as answer:
            assert answer.status == 409
            assert 'role="alert"' in await answer.text()

    served(stopped_with(choice), test)


def test_changes_are_shown_with_old_and_new_values_and_do_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = {"committed_at": "2025-11-23T12:13:18Z", "kind": "update", "schema": "shop"}
    lines = [
        {**line, "kind": "insert", "before": None, "after": {"id": 1, "what": HOSTILE}},
        {**line, "before": {"id": 1, "what": "old"}, "after": {"id": 1, "what": None}},
        {**line, "kind": "ddl", "query": f"ALTER {HOSTILE}"},
        {"odd": []},
    ]

    async def run(self: Children, words: list[str], kept: Any, within_s: float) -> str:
        assert words[:2] == ["tail", "--table=--after=0 shop.a"]
        kept.extend([*(json.dumps(each).encode() for each in lines), b"[1]", b"no json"])
        return "it was ended after 20 s"

    monkeypatch.setattr(Children, "_run", run)

    async def test(browser: aiohttp.ClientSession, url: str, scene: Scene) -> None:
        text = await got(browser, f"{url}/changes?table=--after%3D0%20shop.a&since=1+hour")
        assert "<del>old</del> <ins><i>NULL</i></ins>" in text
        assert "&lt;script&gt;" in text
        assert "<script>alert" not in text
        assert "it was ended after 20 s" in text
        assert "<option selected" in text

    served(cluster(), test)


def test_what_a_child_writes_is_bounded_in_lines_and_in_their_length() -> None:
    async def run() -> tuple[int, list[bytes]]:
        reader = asyncio.StreamReader(limit=1000)
        reader.feed_data(b"".join(b"%d\n" % n for n in range(200)) + b"x" * 5000 + b"\nlast")
        reader.feed_eof()
        from collections import deque

        from penstock.ctl.console.children import _keep

        lines: deque[bytes] = deque(maxlen=CHANGES_MAX)
        await _keep(reader, lines)
        return len(lines), list(lines)

    count, lines = asyncio.run(run())
    assert count == CHANGES_MAX
    assert lines[-1] == b"last"
    assert b"199" in lines


def test_a_change_of_another_version_is_shown_as_far_as_it_is_understood() -> None:
    for odd in (
        {},
        {"before": 5, "after": [], "kind": {}},
        {"committed_at": "x", "after": {"": {}}},
    ):
        assert "</table>" in page.changes({"table": "a.b", "since": ""}, [odd], "", NOW_S)
