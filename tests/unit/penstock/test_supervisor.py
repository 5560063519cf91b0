import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.node import service


@pytest.fixture(params=["path", "abstract"])
def heard(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@penstock-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0"))
        listening.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listening


def test_what_is_said_is_one_datagram_of_lines(heard: socket.socket) -> None:
    service.notify(service.READY, "STATUS=online")
    assert heard.recv(100) == b"READY=1\nSTATUS=online"


def test_a_node_says_that_it_lives_twice_as_often_as_is_asked(
    heard: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

    async def body() -> None:
        living = asyncio.create_task(service.feed_watchdog())
        for _ in range(3):
            assert await asyncio.to_thread(heard.recv, 100) == b"WATCHDOG=1"
        living.cancel()

    asyncio.run(body())


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"},
    ],
)
def test_without_being_asked_nothing_is_said_of_living(
    heard: socket.socket, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    asyncio.run(asyncio.wait_for(service.feed_watchdog(), 10))
    heard.setblocking(False)
    with pytest.raises(BlockingIOError):
        heard.recv(100)


def test_one_that_does_not_listen_is_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    service.notify(service.READY)
    assert "nobody" in caplog.text
    monkeypatch.delenv("NOTIFY_SOCKET")
    caplog.clear()
    service.notify(service.READY)
    assert caplog.text == ""


def test_one_that_listens_but_does_not_read_holds_back_no_node(
    heard: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    while not caplog.text:
        service.notify(service.READY, wait_s=0)
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(service.feed_watchdog(), 0.1))
    assert heard.recv(100) == b"READY=1"
