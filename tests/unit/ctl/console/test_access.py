"""Who may act: the token, its sessions, and what a form must bring; asked over real sockets."""

import argparse
import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from penstock.ctl.console import __main__ as console_command
from penstock.ctl.console.access import SESSION_S, TOKEN_CHARS_MIN, Access, is_of, read_token
from penstock.ctl.console.poller import Poller
from penstock.ctl.console.web import Console
from penstock.errors import NeedsOperator

TOKEN = "t" * TOKEN_CHARS_MIN
NO_ETCD = "127.0.0.1:1"
Test = Callable[[aiohttp.ClientSession, str], Awaitable[None]]


@asynccontextmanager
async def running(token: str) -> AsyncIterator[str]:
    """Serve a console of a cluster that no one answers for; yield its URL."""
    arguments = argparse.Namespace(addr="127.0.0.1:0", etcd_urls=NO_ETCD)
    console = Console(Poller(NO_ETCD), Access(token, time.monotonic), arguments)
    runner = web.AppRunner(console.app(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await console.close()
        await runner.cleanup()


def served(test: Test, *, token: str = "") -> None:
    async def run() -> None:
        # Cookies of an address are kept, as a browser keeps them.
        jar = aiohttp.CookieJar(unsafe=True)
        async with running(token) as url, aiohttp.ClientSession(cookie_jar=jar) as browser:
            await test(browser, url)

    asyncio.run(run())


async def status(answer: aiohttp.client._RequestContextManager) -> int:
    async with answer as found:
        await found.read()
        return found.status


def test_without_a_token_a_console_is_read_only() -> None:
    async def test(browser: aiohttp.ClientSession, url: str) -> None:
        async with browser.get(url) as answer:
            assert "Read-only" in await answer.text()
        assert await status(browser.get(f"{url}/login")) == 404
        assert await status(browser.post(f"{url}/login", data={"token": ""})) == 404
        assert await status(browser.post(f"{url}/do/pause-pump/p", data={"csrf": ""})) == 403
        async with browser.get(f"{url}/do/pause-pump/p", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/")

    served(test)


def test_the_token_begins_a_session_that_no_script_and_no_other_site_can_use() -> None:
    async def test(browser: aiohttp.ClientSession, url: str) -> None:
        shown = {"token": TOKEN}
        async with browser.post(f"{url}/login", data=shown, allow_redirects=False) as answer:
            assert answer.status == 303
            cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        async with browser.get(url) as answer:
            text = await answer.text()
        assert "Actions" in text
        csrf = re.search(r'name="csrf" value="([^"]+)"', text)
        assert csrf is not None
        assert await status(browser.post(f"{url}/logout", data={"csrf": "guessed"})) == 403
        assert await status(browser.post(f"{url}/logout", data={"csrf": csrf[1]})) == 200
        async with browser.get(url) as answer:
            assert "Log in to act" in await answer.text()

    served(test, token=TOKEN)


def test_a_wrong_token_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ctl.console.web._WRONG_TOKEN_S", 0.0)

    async def test(browser: aiohttp.ClientSession, url: str) -> None:
        async with browser.post(f"{url}/login", data={"token": "x" * 99}) as answer:
            assert answer.status == 403
            assert "Set-Cookie" not in answer.headers
            assert "That is not this console&#39;s token." in await answer.text()

    served(test, token=TOKEN)


def test_a_node_that_is_not_there_is_refused_with_what_to_do() -> None:
    async def test(browser: aiohttp.ClientSession, url: str) -> None:
        await status(browser.post(f"{url}/login", data={"token": TOKEN}))
        async with browser.get(f"{url}/do/pause-pump/<b>") as answer:
            assert answer.status == 409
            assert "cannot be done to &lt;b&gt; now" in await answer.text()
        assert await status(browser.get(f"{url}/do/lost-pump/pump-1")) == 409

    served(test, token=TOKEN)


def test_no_other_site_can_read_a_console_or_steer_it() -> None:
    async def test(browser: aiohttp.ClientSession, url: str) -> None:
        assert await status(browser.get(url, headers={"Host": "evil.example"})) == 403
        assert await status(browser.get(url, headers={"Host": "localhost:9252"})) == 200
        assert await status(browser.get(url, headers={"Host": "[::1]"})) == 200
        evil = {"Origin": "https://evil.example"}
        assert await status(browser.post(f"{url}/login", data={}, headers=evil)) == 403

    served(test, token=TOKEN)


def test_every_answer_forbids_what_the_page_does_not_need() -> None:
    async def test(browser: aiohttp.ClientSession, url: str) -> None:
        for path in ("/", "/static/console.css", "/login", "/nothing", "/static/../web.py"):
            async with browser.get(f"{url}{path}") as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"

    served(test, token=TOKEN)


def test_a_large_form_is_refused() -> None:
    async def test(browser: aiohttp.ClientSession, url: str) -> None:
        assert await status(browser.post(f"{url}/login", data={"token": "x" * 99_999})) == 413

    served(test, token=TOKEN)


def test_a_session_ends_and_the_oldest_gives_way() -> None:
    now_s = 0.0
    access = Access(TOKEN, lambda: now_s)
    first = access.log_in(TOKEN + "\n")
    assert first is not None
    assert access.session(first.name) == first
    assert is_of(first, first.csrf)
    assert not is_of(first, "é")
    for _ in range(100):
        last = access.log_in(TOKEN)
    assert access.session(first.name) is None
    assert last is not None
    now_s = SESSION_S + 1
    assert access.session(last.name) is None


def test_a_token_comes_from_a_file_or_a_variable_and_cannot_be_short(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file, "another") == TOKEN
    assert read_token(None, TOKEN) == TOKEN
    assert read_token(None, "") == ""
    file.write_text("short\n")
    with pytest.raises(NeedsOperator, match=r"5 characters, .* openssl rand"):
        read_token(file, "")
    file.write_bytes(b"\xff" * 40)
    with pytest.raises(NeedsOperator, match="is no text"):
        read_token(file, "")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--addr", "0.0.0.0:9252", "--token-file", "TOKEN"], "would go over plain HTTP"),
        (["--cert-allowed-cn", "operator"], "--cert-allowed-cn needs TLS"),
        (["--addr", "nothing"], "addr"),
        (["--token-file", "absent"], "absent"),
    ],
)
def test_what_is_not_safe_or_cannot_be_ends_it_with_one_line(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    argv = [str(token) if each == "TOKEN" else each for each in arguments]
    assert console_command.main(argv) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert len(said.splitlines()) == 1
    assert TOKEN not in said
