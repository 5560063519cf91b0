import asyncio
import os
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from drainer.sinks.protocol import Refused
from drainer.sinks.task_orders import failed, outcome_of
from drainer.spark.dispatcher import UNITS_PER_TASK_MAX, Dispatcher
from drainer.task.work_loop import FAILED, HEADER, HELLO, RESULT, WORK, Bundle, code_version, serve
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.security.tls import Tls
from tests.kit.servers.authority import Authority
from tests.kit.wait import turn, until


class Task(threading.Thread):
    """A resident task in a thread, with an answer of the test's choice."""

    def __init__(
        self, where: Dispatcher, answer: Callable[[bytes], bytes], number: int = 0, port: int = 0
    ):
        super().__init__(daemon=True)
        self.arguments = ((where.host, port or where.port), where.token, number, answer)
        self.digest = where.digest
        self.error: OSError | None = None
        self.start()

    def run(self) -> None:
        try:
            serve(*self.arguments, digest=self.digest)
        except OSError as error:
            self.error = error


def upper(payload: bytes) -> bytes:
    return payload.upper()


@asynccontextmanager
async def dispatcher(
    answer_timeout_s: float = 60, tls: Tls | None = None
) -> AsyncIterator[Dispatcher]:
    """A dispatcher whose tasks are all gone when it is."""
    before = set(threading.enumerate())
    where = Dispatcher(answer_timeout_s=answer_timeout_s, tls=tls)
    await where.start()
    try:
        yield where
    finally:
        await where.close()
        for thread in set(threading.enumerate()) - before:
            if isinstance(thread, Task):
                await asyncio.to_thread(thread.join, 5)
                assert not thread.is_alive()


async def test_answers_come_in_the_order_of_the_units_whichever_task_gave_them() -> None:
    later = threading.Event()

    def slow_first(payload: bytes) -> bytes:
        if payload == b"0":
            assert later.wait(10)
        if payload == b"9":
            later.set()
        return b"answer " + payload

    async with dispatcher() as where:
        for number in range(3):
            Task(where, slow_first, number)
        units = [b"%d" % i for i in range(20)]
        assert await where.run(list(units)) == [b"answer " + unit for unit in units]
        assert await where.run([]) == []


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("says_hello", [True, False])
async def test_a_task_that_connects_as_the_drainer_ends_is_hung_up_on(
    says_hello: bool, turns: int
) -> None:
    where = Dispatcher()
    await where.start()
    reader, writer = await asyncio.open_connection(where.host, where.port)
    if says_hello:
        hello = f"{where.token} {code_version()}".encode()
        writer.write(HEADER.pack(HELLO, 0, len(hello)) + hello)
    for _ in range(turns):
        await turn()
    await asyncio.wait_for(where.close(), 5)
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_units_wait_for_the_first_task() -> None:
    async with dispatcher() as where:
        waiting = asyncio.create_task(where.run([b"a", b"b"]))
        await turn()
        assert not waiting.done()
        Task(where, upper)
        assert await waiting == [b"A", b"B"]


@asynccontextmanager
async def listened_to(port: int) -> AsyncIterator[tuple[int, bytearray]]:
    """Another port of the same server, and all bytes that pass there."""
    heard = bytearray()
    copying: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                heard.extend(data)
                writer.write(data)
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_connection("127.0.0.1", port)
        for pair in ((reader, there), (there_reader, writer)):
            copying.add(asyncio.create_task(copy(*pair)))

    listening = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1], heard
        if copying:
            await asyncio.wait(copying, timeout=5)


@pytest.mark.fault(
    "someone listens between a Drainer with `[security]` and its tasks, answers in its place,"
    " or speaks to its port in plain text",
    "reads neither rows nor the token; the task refuses; nothing is answered",
    cases="4 / 5 with real Spark",
)
@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_who_listens_between_a_drainer_with_tls_and_its_tasks_reads_nothing(
    is_encrypted: bool, tmp_path: Path
) -> None:
    tls = Authority(tmp_path).issue("node").tls if is_encrypted else None
    async with AsyncExitStack() as stack:
        where = await stack.enter_async_context(dispatcher(tls=tls))
        port, heard = await stack.enter_async_context(listened_to(where.port))
        Task(where, upper, port=port)
        assert await where.run([b"a row of the bank", b"a" * 5_000_000]) == [
            b"A ROW OF THE BANK",
            b"A" * 5_000_000,
        ]
        await where.close()
    said = [b"a row of the bank", b"A ROW OF THE BANK", where.token.encode()]
    assert [each in heard for each in said] == [not is_encrypted] * 3
    assert len(heard) > 10_000_000


async def test_a_task_speaks_only_to_the_drainer_whose_certificate_it_knows(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with AsyncExitStack() as stack:
        tls = authority.issue("node").tls
        where = await stack.enter_async_context(dispatcher(tls=tls))
        other_tls = authority.issue("node", file="other").tls
        other = await stack.enter_async_context(dispatcher(tls=other_tls))
        lost = Task(where, upper, port=other.port)
        await asyncio.to_thread(lost.join, 10)
        assert isinstance(lost.error, ConnectionRefusedError)
        reader, writer = await asyncio.open_connection(where.host, where.port)
        hello = f"{where.token} {code_version()}".encode()
        writer.write(HEADER.pack(HELLO, 0, len(hello)) + hello)
        with suppress(ConnectionResetError):
            assert len(await reader.read()) < 100  # An alert of TLS at most.
        writer.close()
        assert (where.tasks, other.tasks) == (0, 0)


async def test_tasks_come_as_long_as_the_drainer_runs_although_its_certificate_was_renewed(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    async with dispatcher(tls=authority.issue("node").tls) as where:
        authority.issue("node")
        Task(where, upper)
        assert await where.run([b"a"]) == [b"A"]


@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_megabytes_pass_in_both_directions(is_encrypted: bool, tmp_path: Path) -> None:
    tls = Authority(tmp_path).issue("node").tls if is_encrypted else None
    async with dispatcher(tls=tls) as where:
        Task(where, upper, 0)
        Task(where, upper, 1)
        units = [bytes([97 + i]) * (3 << 20) for i in range(5)]
        assert await where.run(list(units)) == [unit.upper() for unit in units]


class Puppet:
    """A task that does only what the test says."""

    def __init__(
        self,
        where: Dispatcher,
        token: str | None = None,
        partition: int = 0,
        version: str | None = None,
    ) -> None:
        self.socket = socket.create_connection((where.host, where.port), timeout=5)
        hello = f"{where.token if token is None else token} {version or code_version()}".encode()
        self.socket.sendall(HEADER.pack(HELLO, partition, len(hello)) + hello)

    def receive(self) -> tuple[int, bytes]:
        kind, number, length = HEADER.unpack(self.exactly(HEADER.size))
        assert kind == WORK
        return number, self.exactly(length)

    def exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = self.socket.recv(length - len(data))
            assert more, "hung up"
            data += more
        return data

    def reply(self, number: int, payload: bytes, kind: int = RESULT) -> None:
        self.socket.sendall(HEADER.pack(kind, number, len(payload)) + payload)

    def die(self) -> None:
        self.socket.close()


async def test_the_units_of_a_lost_task_go_to_others_and_nothing_is_lost() -> None:
    async with dispatcher() as where:
        victim = Puppet(where)
        await until(lambda: where.tasks == 1)
        answers = asyncio.create_task(where.run([b"a", b"b", b"c"]))
        assert [(await asyncio.to_thread(victim.receive))[1] for _ in range(2)] == [b"a", b"b"]
        victim.die()
        await until(lambda: (where.tasks, where.lost_tasks) == (0, 1))
        Task(where, upper, 1)
        assert await answers == [b"A", b"B", b"C"]


async def test_a_task_never_holds_more_than_its_share() -> None:
    async with dispatcher() as where:
        puppet = Puppet(where)
        answers = asyncio.create_task(where.run([b"%d" % i for i in range(6)]))
        for _ in range(6 // UNITS_PER_TASK_MAX):
            got = [await asyncio.to_thread(puppet.receive) for _ in range(UNITS_PER_TASK_MAX)]
            puppet.socket.settimeout(0.1)
            with pytest.raises(TimeoutError):
                puppet.socket.recv(1)
            puppet.socket.settimeout(5)
            for number, payload in got:
                puppet.reply(number, payload)
        assert len(await answers) == 6
        puppet.die()


async def test_units_without_an_answer_are_reported_with_the_task_that_has_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("drainer.spark.dispatcher.REPORTED_AFTER_S", 0.05)
    async with dispatcher() as where:
        slow = Puppet(where)
        await until(lambda: where.tasks == 1)
        answers = asyncio.create_task(where.run([b"a"]))
        number, _ = await asyncio.to_thread(slow.receive)
        await until(lambda: "1 units have waited" in caplog.text)
        assert "with Spark tasks [0]; 1 tasks are connected" in caplog.text
        slow.reply(number, b"A")
        assert await answers == [b"A"]
        slow.die()


async def test_a_task_that_hangs_is_not_waited_for_when_another_is_there() -> None:
    async with dispatcher(answer_timeout_s=0.1) as where:
        frozen = Puppet(where)
        await until(lambda: where.tasks == 1)
        answers = asyncio.create_task(where.run([b"a"]))
        number, _ = await asyncio.to_thread(frozen.receive)
        Task(where, upper, 1)
        assert await answers == [b"A"]
        # The late answer is ignored, and the task is as good as any again.
        frozen.reply(number, b"late")
        await until(lambda: not any(task.units for task in where._tasks))
        assert sorted(await where.run([b"x"])) == [b"X"]
        frozen.die()


@pytest.mark.fault(
    "a unit takes four tasks down; a task is silent",
    "stops with a hint; a second task gets the unit and the first answer counts",
    cases="2",
)
async def test_a_unit_that_takes_every_task_down_stops_the_drainer() -> None:
    async with dispatcher() as where:
        answers = asyncio.create_task(where.run([b"poison"]))
        for partition in range(4):
            puppet = Puppet(where, partition=partition)
            await asyncio.to_thread(puppet.receive)
            puppet.die()
        with pytest.raises(NeedsOperator, match="4 Spark tasks were lost"):
            await answers


async def test_a_failed_unit_says_what_the_operator_can_do() -> None:
    def refuse(payload: bytes) -> bytes:
        if payload == b"known":
            raise NeedsOperator("column x is odd", hint="make it even", code=Code.DDL_UNSUPPORTED)
        raise ValueError("surprise")

    async with dispatcher() as where:
        Task(where, refuse)
        with pytest.raises(NeedsOperator) as known:
            await where.run([b"known", b"known"])
        assert known.value.problem == "Spark task 0: column x is odd"
        assert known.value.hint == "make it even"
        with pytest.raises(NeedsOperator) as other:
            await where.run([b"other"])
        assert other.value.problem == (
            "Spark task 0: the rows of a batch were not converted: ValueError: surprise"
        )


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (Refused("the downstream refused it", "repair it", code=Code.SINK_REFUSES), "the "
         "downstream refused it"),
        (ValueError("surprise"), "the partitions of a batch were not committed: ValueError: "
         "surprise"),
    ],
)  # fmt: skip
def test_a_failed_order_says_what_was_not_committed(error: Exception, problem: str) -> None:
    with pytest.raises(NeedsOperator) as found:
        outcome_of(failed(error), 3)
    assert found.value.problem == f"Spark task 3: {problem}"
    assert found.value.hint
    assert isinstance(error, Refused) == isinstance(found.value, Refused)


async def test_what_a_cancelled_run_left_behind_does_not_disturb_the_next() -> None:
    async with dispatcher() as where:
        puppet = Puppet(where)
        await until(lambda: where.tasks == 1)
        abandoned = asyncio.create_task(where.run([b"old"] * 4))
        number, _ = await asyncio.to_thread(puppet.receive)
        abandoned.cancel()
        await asyncio.wait((abandoned,))
        second, _ = await asyncio.to_thread(puppet.receive)
        answers = asyncio.create_task(where.run([b"new"]))
        puppet.reply(number, b"", FAILED)
        puppet.reply(second, b"stale")
        third, payload = await asyncio.to_thread(puppet.receive)
        assert payload == b"new"
        puppet.reply(third, b"NEW")
        assert await answers == [b"NEW"]
        puppet.die()


@pytest.mark.parametrize("token", ["", "wrong", "x" * 5000])
async def test_who_does_not_know_the_token_is_not_heard(token: str) -> None:
    async with dispatcher() as where:
        unknown = Puppet(where, token)
        with suppress(ConnectionResetError):
            assert await asyncio.to_thread(unknown.socket.recv, 1) == b""
        assert where.tasks == 0
        unknown.die()


@pytest.mark.fault(
    "a task runs other code than the Drainer",
    "refused with both versions; without other tasks the Drainer stops with a hint",
    cases="2",
)
async def test_a_task_of_another_version_is_refused_with_a_hint_and_the_others_continue() -> None:
    async with dispatcher() as where:
        waiting = asyncio.create_task(where.run([b"a"]))
        await turn()
        one = Puppet(where, partition=3, version="0.0.1+123456789abc")
        with pytest.raises(NeedsOperator, match=r"task 3 runs Penstock 0\.0\.1") as caught:
            await waiting
        assert "remove what they find" in caught.value.hint
        with pytest.raises(NeedsOperator, match="runs Penstock"):
            await where.run([b"b"])
        Task(where, upper)
        await until(lambda: where.tasks == 1)
        other = Puppet(where, version="0.0.1+123456789abc")
        assert await asyncio.to_thread(other.socket.recv, 1) == b""
        assert await where.run([b"c"]) == [b"C"]
        assert where.tasks == 1
        one.die()
        other.die()


def test_the_zip_that_executors_get_has_the_version_of_the_code_it_was_made_of(
    tmp_path: Path,
) -> None:
    bundle = Bundle.of_this_code()
    bundled = tmp_path / "penstock.zip"
    bundled.write_bytes(bundle.data)

    def version_in(zipped: Path) -> str:
        code = "from drainer.task import work_loop as v; print(v.__file__, v.code_version())"
        environment = {**os.environ, "PYTHONPATH": str(zipped), "PYTHONSAFEPATH": "1"}
        printed = subprocess.run(
            [sys.executable, "-c", code], env=environment, check=True, capture_output=True
        ).stdout.decode()
        where, version = printed.split()
        assert where.startswith(str(zipped))
        return version

    assert version_in(bundled) == bundle.version
    with zipfile.ZipFile(bundled, "a") as changed:
        changed.writestr("drainer/task/zzz.py", "# One more file.\n")
    assert version_in(bundled) != bundle.version
