"""A node ends with a code that says who must act."""

import asyncio
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.codes import Code
from penstock.errors import Corrupt, NeedsOperator, Retryable
from penstock.http2.server_limits import connections_within
from penstock.node import service
from penstock.node.logs import start_logging
from tests.kit.servers.authority import Authority
from tests.kit.wait import eventually


def written(path: Path, text: str) -> None:
    """Return once a text is in a file."""
    eventually(lambda: path.exists() and text in path.read_text())


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_first_signal_asks_the_node_to_stop() -> None:
    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 5)

    assert service.run(main) == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NeedsOperator("wrong cluster", hint="check the id", code=Code.DDL_UNSUPPORTED), 2),
        (Retryable("etcd is away", code=Code.ETCD_AWAY), 1),
        (Corrupt("000001.seg", 12, "flipped", code=Code.SEGMENT_DAMAGED), 1),
        (RuntimeError("a defect"), 1),
    ],
)
def test_the_exit_code_says_who_must_act(error: Exception, code: int) -> None:
    async def alone(stop: asyncio.Event) -> None:
        raise error

    async def in_a_group(stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(alone(stop))

    assert service.run(alone) == code
    assert service.run(in_a_group) == code


def test_the_hint_is_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    async def main(stop: asyncio.Event) -> None:
        raise NeedsOperator("wrong cluster", hint="check the id", code=Code.DDL_UNSUPPORTED)

    service.run(main)
    captured = capfd.readouterr()
    assert "wrong cluster (check the id)" in captured.err
    assert captured.out == ""


def test_a_hangup_opens_the_log_again_and_does_not_end_the_node(tmp_path: Path) -> None:
    path = tmp_path / "node.log"

    async def main(stop: asyncio.Event) -> None:
        path.rename(tmp_path / "node.log.1")
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.to_thread(written, path, "SIGHUP")

    assert service.run(main, log_file=str(path)) == 0
    logged = path.read_text()
    assert "SIGHUP: the log is open again" in logged
    assert "stopping" not in logged


def test_a_hangup_reads_certificates_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = authority.issue("pump-1").tls
    tls.check()
    before = tls.version()

    async def main(stop: asyncio.Event) -> None:
        authority.issue("pump-1")
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.to_thread(written, path, "read again")

    path = tmp_path / "node.log"
    assert service.run(main, log_file=str(path)) == 0
    assert tls.version() is not before


def test_a_folder_that_cannot_be_written_is_one_line_with_a_hint(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def main(stop: asyncio.Event) -> None:
        await asyncio.to_thread(Path("/proc/nowhere").mkdir)

    assert service.run(main) == 2
    printed = capfd.readouterr().err.splitlines()
    assert len(printed) == 1
    assert "stopped: cannot use /proc/nowhere: No such file or directory (" in printed[0]


def test_a_package_that_is_missing_later_is_one_line_with_the_extra(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def main(stop: asyncio.Event) -> None:
        raise ModuleNotFoundError("No module named 'pymysql'", name="pymysql")

    assert service.run(main, extra="drainer") == 2
    printed = capfd.readouterr().err
    assert (
        "the package pymysql is not installed (install Penstock with the extra drainer)" in printed
    )
    assert "Traceback" not in printed


def test_an_unknown_log_level_is_refused() -> None:
    with pytest.raises(NeedsOperator, match="unknown log level 'loud'"):
        start_logging("loud")


def test_a_node_may_open_as_many_files_as_the_system_allows() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = "from penstock.node import command as c; c.raise_open_files(); print(c.open_files())"
    limited = f"ulimit -Sn 64 && exec {sys.executable} -c '{text}'"
    said = subprocess.run(["bash", "-c", limited], capture_output=True, check=True).stdout
    assert int(said) == (1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20))


def test_connections_leave_descriptors_for_all_else() -> None:
    assert [connections_within(files) for files in (64, 1024, 65_536)] == [48, 768, 10_000]


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
