"""When a Drainer, a source and a console are ready, and what they answer when they are not."""

import argparse
import asyncio
import time
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from drainer.pages import Pages
from penstock.ctl.console.access import Access
from penstock.ctl.console.observation import Listing, Observation
from penstock.ctl.console.web import Console
from pumpclient.mysql.source import pages as source_pages

WELL: dict[str, Any] = {
    "state": "online", "is_fresh": True, "downstream": "", "ddl": "", "spark": "", "is_held": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({"state": "pausing"}, "this Drainer is pausing"),
        ({"is_fresh": False}, "etcd does not answer: the merge waits"),
        ({"downstream": "it is locked"}, "the downstream takes no changes: it is locked"),
        ({"ddl": "CREATE TABLE t (a int)"}, "a DDL waits for its job: CREATE TABLE t (a int)"),
        ({"spark": "no task"}, "Spark applies nothing: no task"),
        ({"is_held": True}, "the merge waits for Pumps: pump-1 (dead)"),
    ],
)
def test_a_drainer_is_ready_while_its_stream_reaches_the_downstream(
    changed: dict[str, Any], problem: str
) -> None:
    now = WELL | changed
    pumps: Any = SimpleNamespace(
        is_fresh=now["is_fresh"],
        is_held=now["is_held"],
        facts=lambda: SimpleNamespace(held_by="pump-1 (dead)"),
    )
    progress: Any = SimpleNamespace(
        waits_for=lambda: now["downstream"], ddl_waits_for=lambda: now["ddl"]
    )
    status: Any = SimpleNamespace(state=now["state"])
    pages = Pages(
        status=lambda: status,
        progress=lambda: progress,
        pumps=pumps,
        lag_s=float,
        synced_check_s=0.0,
        end=lambda node_id, state: None,
        spark_waits_for=lambda: str(now["spark"]),
    )
    assert pages.problem() == problem


@pytest.mark.parametrize(
    ("state", "problem", "relay", "answer"),
    [
        ("syncing", "", (True, ""), ""),
        ("syncing", "etcd is away", (True, ""), "syncing: etcd is away"),
        ("loading", "", None, "loading"),
        ("failed", "a DDL", (True, ""), "failed: a DDL"),
        ("paused", "", (True, ""), "paused"),
        ("syncing", "", None, "not connected to the server"),
        ("syncing", "", (False, "refused"), "not connected to the server: refused"),
    ],
)
def test_a_source_is_ready_while_it_follows_its_server(
    state: str, problem: str, relay: tuple[bool, str] | None, answer: str
) -> None:
    found = relay and SimpleNamespace(connected=relay[0], problem=relay[1])
    service: Any = SimpleNamespace(
        counters=SimpleNamespace(state=state, problem=problem),
        relay=found and SimpleNamespace(status=lambda: found),
    )
    assert source_pages.problem(service) == answer


@pytest.mark.parametrize(
    ("listing", "problem", "answer"),
    [
        (Listing(), "", (200, "ok\n")),
        (None, "", (503, "etcd does not answer: not yet\n")),
        (Listing(), "no route", (503, "etcd does not answer: no route\n")),
    ],
)
def test_a_console_is_healthy_always_and_ready_while_it_sees_etcd(
    listing: Listing | None, problem: str, answer: tuple[int, str]
) -> None:
    async def run() -> None:
        poller: Any = SimpleNamespace(
            observation=lambda: Observation(now_s=1.0, listing=listing, etcd_problem=problem)
        )
        arguments = argparse.Namespace(addr="127.0.0.1:0", etcd_urls="127.0.0.1:1")
        console = Console(poller, Access("", time.monotonic), arguments)
        runner = web.AppRunner(console.app())
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            async with aiohttp.ClientSession(trust_env=False) as session:
                async with session.get(f"{url}/healthz") as healthy:
                    assert (healthy.status, await healthy.text()) == (200, "ok\n")
                async with session.get(f"{url}/readyz") as ready:
                    assert (ready.status, await ready.text()) == answer
        finally:
            await runner.cleanup()

    asyncio.run(run())
