"""Dispatcher: sends units of work to the resident Spark tasks and collects their answers.

    units ──> pending ──> task 0: [unit 7 worked on][unit 9 received]
                     └──> task 1: [unit 8 worked on]
    answers <── in the order of the units, whichever task gave them

Each task holds up to two units, so that it never waits for the next. When a task is lost (killed,
its machine lost, its job restarted), its units return to the front of the queue. When a task does
not answer in time, another task gets its unit. Both are safe because an answer depends only on its
unit: the first answer counts, a second is ignored.

With `[security]`, this node's certificate encrypts the connections, as it is at the start. The
dispatcher accepts only a task that presents this run's random token and runs the same code; other
code could answer differently.

A task that commits keeps the SQL of its unit. `run_on` therefore also returns the task, and `order`
sends it orders. If the task is lost, its SQL is too: `TaskLost`.

`watch_tasks` detects that no task is connected, reports it, and replaces the session:

    a session starts ── no task for 5 s: reported, then every 30 s ── none for 600 s: replaced
    all tasks are lost ── none for 5 s: reported ─────────────────── none for 30 s: replaced

A Spark master that restarts without its executors never assigns new executors to this application;
only a new session registers it again. A session that never had a task may just be queued for
resources, and therefore gets more time. So does a session whose tasks are lost, once its job has
started again or a standalone master has assigned an executor to it: they may still be starting.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from drainer.task.row_fetch import CATALOGS_KEPT
from drainer.task.work_loop import (
    CATALOG,
    FAILED,
    HEADER,
    HELLO,
    ORDER,
    RESULT,
    WAITS,
    WORK,
    code_version,
    digest_of,
)
from penstock.codes import Code, code_named
from penstock.errors import NeedsOperator
from penstock.security.tls import Tls, frozen_server

log = logging.getLogger(__name__)

UNITS_PER_TASK_MAX = 2
REPORTED_AFTER_S = 5.0
HELD_BYTES_MAX = 16 << 20
"""A task that holds this many bytes gets no second unit."""

_HELLO_BYTES_MAX = 1024
_LOSSES_MAX = 4
_HINT = "see spark.log in the data-dir: usually an executor without memory or a broken package"


Catalog = tuple[int, bytes]  # A schema's number and bytes: units refer to it, a task gets it once.


class TaskLost(Exception):
    """The connection to a task has ended before it answered an order."""


@dataclass(eq=False, slots=True)
class _Unit:
    number: int
    payload: bytes
    answer: asyncio.Future[bytes]
    catalog: Catalog | None = None
    avoids: Collection[Task] = ()
    answered_by: Task | None = None
    losses: int = 0
    holders: set[Task] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Task:
    """The Drainer's end of the connection to one task."""

    partition: int
    writer: asyncio.StreamWriter
    units: dict[int, _Unit] = field(default_factory=dict)
    last_unit: int = -1
    orders: dict[int, asyncio.Future[bytes]] = field(default_factory=dict)
    problem: str = ""
    """The condition that its downstream waits for."""
    catalogs: deque[int] = field(default_factory=lambda: deque(maxlen=CATALOGS_KEPT // 2))

    @property
    def held_bytes(self) -> int:
        return sum(len(unit.payload) for unit in self.units.values())

    @property
    def has_room(self) -> bool:
        if not self.units:
            return True
        return len(self.units) < UNITS_PER_TASK_MAX and self.held_bytes < HELD_BYTES_MAX


class Dispatcher:
    """The Drainer's end of the connections to its Spark tasks; belongs to one event loop."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        version: str = "",
        answer_timeout_s: float = 60,
        tls: Tls | None = None,
    ) -> None:
        """Listen on `host`; a unit unanswered for `answer_timeout_s` goes to a second task.

        Tasks must run the code of `version`, by default this process's. With `tls` they are served
        by its certificate.
        """
        self.host = host
        self.port = 0
        self.token = secrets.token_hex(32)
        self.digest = ""
        """Identifies this node's certificate for tasks; empty without TLS."""
        self.lost_tasks = 0
        self.waits_for = ""
        """The reason why no task is connected; see `watch_tasks`."""
        self._tls = tls
        self._version = version or code_version()
        self._refusal: NeedsOperator | None = None
        self._answer_timeout_s = answer_timeout_s
        self._server: asyncio.Server | None = None
        self._tasks: set[Task] = set()
        self._pending: deque[_Unit] = deque()
        self._next_number = 0
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._is_closing = False

    @property
    def tasks(self) -> int:
        return len(self._tasks)

    async def start(self) -> None:
        context = None
        if self._tls is not None:
            context, certificate = frozen_server(self._tls)
            self.digest = digest_of(certificate)
        self._server = await asyncio.start_server(self._converse, self.host, 0, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and close all tasks' connections, which ends the tasks.

        This includes a task that has connected and not yet introduced itself.
        """
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        for writer in self._connections.values():
            writer.close()
        if self._connections:
            await asyncio.wait(self._connections, timeout=2)

    async def run(self, units: list[bytes], catalog: Catalog | None = None) -> list[bytes]:
        """Return the answers in the order of the units; wait while no task is connected.

        A task without the `catalog` gets it before the unit. Consumes the units: the list is empty
        afterwards, and each unit is released once answered.

        Raises `NeedsOperator` if a task reports that a unit cannot be processed, or if a unit
        crashed several tasks.
        """
        work = [self._unit(payload, catalog) for payload in units]
        units.clear()
        return await self._run(work)

    async def run_on(
        self, unit: bytes, catalog: Catalog, avoids: Collection[Task] = ()
    ) -> tuple[bytes, Task]:
        """As `run`, for one unit; return the task that answered, too.

        The task is not one of those in `avoids`, unless no other is connected.
        """
        work = self._unit(unit, catalog, avoids)
        (answer,) = await self._run([work])
        assert work.answered_by is not None
        return answer, work.answered_by

    async def order(self, task: Task, payload: bytes) -> bytes:
        """Return a task's answer to an order; raise `TaskLost` if the task is lost before."""
        if task not in self._tasks:
            raise TaskLost
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        number, self._next_number = self._next_number, self._next_number + 1
        task.orders[number] = answer
        task.writer.write(HEADER.pack(ORDER, number, len(payload)) + payload)
        return await answer

    @property
    def downstream_waits_for(self) -> str:
        """The condition that a task's downstream waits for; empty if no task waits."""
        return next((task.problem for task in self._tasks if task.problem), "")

    def _unit(
        self, payload: bytes, catalog: Catalog | None, avoids: Collection[Task] = ()
    ) -> _Unit:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._next_number += 1
        return _Unit(self._next_number - 1, payload, answer, catalog, avoids)

    async def _run(self, work: list[_Unit]) -> list[bytes]:
        self._pending.extend(work)
        self._abandon_if_refused()
        self._dispatch()
        try:
            return await self._answers(work)
        finally:
            # After a failure or a cancellation nothing waits for the unanswered units.
            for unit in work:
                unit.answer.cancel()

    async def _answers(self, work: list[_Unit]) -> list[bytes]:
        loop = asyncio.get_running_loop()
        began_s, is_reported = loop.time(), False
        late_s = began_s + self._answer_timeout_s
        open_answers = {unit.answer for unit in work}
        while open_answers:
            next_s = late_s if is_reported else min(late_s, began_s + REPORTED_AFTER_S)
            done, open_answers = await asyncio.wait(
                open_answers,
                timeout=max(0.0, next_s - loop.time()),
                return_when=asyncio.FIRST_EXCEPTION,
            )
            for answer in done:
                answer.result()  # Raise the error that the task reported.
            if open_answers:
                late = [unit for unit in work if not unit.answer.done()]
                where = sorted(task.partition for task in late[0].holders)
                log.warning(
                    "%d units have waited %.0f s for an answer; the first is %d, with Spark tasks"
                    " %s; %d tasks are connected",
                    len(late), loop.time() - began_s, late[0].number, where, len(self._tasks),
                )  # fmt: skip
                is_reported = True
                if loop.time() >= late_s:
                    held = [u for u in late if u.holders and len(self._tasks) > len(u.holders)]
                    self._pending.extend(held)
                    self._dispatch()
                    late_s = loop.time() + self._answer_timeout_s
        return [unit.answer.result() for unit in work]

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        current = asyncio.current_task()
        assert current is not None
        self._connections[current] = writer
        task = None
        try:
            task = None if self._is_closing else await self._greet(reader, writer)
            if task is not None:
                await self._listen(task, reader)
        except (OSError, asyncio.IncompleteReadError):
            pass  # The end of a connection is the end of its task, for whatever reason.
        finally:
            del self._connections[current]
            if task is not None:
                self._lose(task)
            writer.close()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Task | None:
        async with asyncio.timeout(10):
            kind, partition, length = HEADER.unpack(await reader.readexactly(HEADER.size))
            if kind != HELLO or length > _HELLO_BYTES_MAX:
                return None
            token, _, version = (await reader.readexactly(length)).partition(b" ")
        if not hmac.compare_digest(token, self.token.encode()):
            log.warning("refused a connection with a wrong token on %s:%d", self.host, self.port)
            return None
        if version != self._version.encode():
            self._refuse(partition, version.decode("utf-8", "replace"))
            return None
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        task = Task(partition, writer)
        self._tasks.add(task)
        self._refusal = None
        log.info("Spark task %d is connected, %d in all", partition, len(self._tasks))
        self._dispatch()
        return task

    def _refuse(self, partition: int, version: str) -> None:
        self._refusal = NeedsOperator(
            f"Spark task {partition} runs Penstock {version}, this Drainer is {self._version}",
            "the Drainer sends its code to the executors: remove what they find before it "
            "(PYTHONPATH, spark.executorEnv), or restart a Drainer that was updated as it ran",
            Code.SPARK_VERSION,
        )
        log.error("refused: %s", self._refusal)
        self._abandon_if_refused()

    def _abandon_if_refused(self) -> None:
        if self._refusal is None or self._tasks:
            return
        for unit in self._pending:
            if not unit.answer.done():
                unit.answer.set_exception(self._refusal)

    async def _listen(self, task: Task, reader: asyncio.StreamReader) -> None:
        while True:
            kind, number, length = HEADER.unpack(await reader.readexactly(HEADER.size))
            payload = await reader.readexactly(length)
            if kind == WAITS:
                self._note_problem(task, payload.decode("utf-8", "replace"))
                continue
            if (order := task.orders.pop(number, None)) is not None:
                if not order.done():
                    order.set_result(payload)
                continue
            unit = task.units.pop(number, None)
            assert unit is not None, f"task {task.partition} answers unit {number} it never had"
            unit.holders.discard(task)
            if not unit.answer.done():
                unit.payload = b""  # It need not be sent again.
                if kind == RESULT:
                    unit.answered_by = task
                    unit.answer.set_result(payload)
                else:
                    assert kind == FAILED, kind
                    failure = json.loads(payload)
                    problem = f"Spark task {task.partition}: {failure['problem']}"
                    code = code_named(failure["code"]) or Code.DEFECT
                    failed = NeedsOperator(problem, failure["hint"], code)
                    unit.answer.set_exception(failed)
            self._dispatch()

    def _note_problem(self, task: Task, problem: str) -> None:
        task.problem = problem
        if problem:
            log.warning("Spark task %d waits for the downstream: %s", task.partition, problem)

    def _dispatch(self) -> None:
        while self._pending:
            unit = self._pending[0]
            if unit.answer.done():
                self._pending.popleft()
                continue
            others = self._tasks.difference(unit.avoids) or self._tasks
            free = [t for t in others if t.has_room and t not in unit.holders]
            if not free:
                return
            task = min(free, key=lambda t: (t.held_bytes, len(t.orders), t.last_unit))
            self._pending.popleft()
            task.units[unit.number] = unit
            task.last_unit = unit.number
            unit.holders.add(task)
            if unit.catalog is not None and unit.catalog[0] not in task.catalogs:
                number, data = unit.catalog
                task.catalogs.append(number)
                task.writer.write(HEADER.pack(CATALOG, number, len(data)) + data)
            task.writer.write(HEADER.pack(WORK, unit.number, len(unit.payload)))
            task.writer.write(unit.payload)

    def _lose(self, task: Task) -> None:
        """Requeue the units of a lost task at the front, oldest first."""
        self._tasks.discard(task)
        for order in task.orders.values():
            if not order.done():
                order.set_exception(TaskLost())
        if self._is_closing:
            return
        self.lost_tasks += 1
        log.warning(
            "Spark task %d is lost, %d are left; %d of its units go to others",
            task.partition, len(self._tasks), len(task.units),
        )  # fmt: skip
        for unit in reversed(task.units.values()):
            unit.holders.discard(task)
            unit.losses += 1
            if unit.losses >= _LOSSES_MAX and not unit.answer.done():
                problem = f"{unit.losses} Spark tasks were lost while working on unit {unit.number}"
                unit.answer.set_exception(NeedsOperator(problem, _HINT, Code.SPARK_TASK))
            elif not unit.holders:
                self._pending.appendleft(unit)
        self._dispatch()


NO_TASK_REPORTED_AFTER_S, NO_TASK_REPORTED_AGAIN_S = 5.0, 30.0
LOST_S, NEVER_S = 30.0, 600.0
_WATCH_TICK_S = 1.0


class TaskWatch:
    """How long no task has been connected to one Drainer, and why."""

    def __init__(self, now_s: float) -> None:
        self.problem = ""
        """The reason why the Drainer has no task; empty while a task is connected."""
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._none_since_s: float | None = now_s
        self._report_at_s = now_s + NO_TASK_REPORTED_AFTER_S
        self._is_lost = False
        self._starts = 0

    def look(self, now_s: float, tasks: int, starts: int = 0) -> bool:
        """Record the number of connected tasks; return whether the session must be replaced.

        `starts` is the number of jobs and executors that have started up to now.
        """
        if tasks:
            self._none_since_s, self._is_lost, self.problem = None, True, ""
            self._starts = starts
            return False
        self._is_lost &= starts == self._starts
        if self._none_since_s is None:
            self._none_since_s, self._report_at_s = now_s, now_s + NO_TASK_REPORTED_AFTER_S
        none_s = now_s - self._none_since_s
        if none_s >= (LOST_S if self._is_lost else NEVER_S):
            log.error(
                "no Spark task was connected for %.0f s: starting a new Spark session", none_s
            )
            self._begin(now_s)
            return True
        if now_s >= self._report_at_s:
            why = "all tasks are lost" if self._is_lost else "Spark is starting, or has no room"
            self.problem = f"no Spark task is connected for {none_s:.0f} s ({why}; see spark.log)"
            log.warning("%s", self.problem)
            self._report_at_s = now_s + NO_TASK_REPORTED_AGAIN_S
        return False


async def watch_tasks(
    tasks: Dispatcher, replace_session: Callable[[], None], starts: Callable[[], int]
) -> None:
    """Check the tasks every second until cancelled; keep their `waits_for` up to date."""
    watch = TaskWatch(time.monotonic())
    while True:
        await asyncio.sleep(_WATCH_TICK_S)
        if watch.look(time.monotonic(), tasks.tasks, starts()):
            replace_session()
        tasks.waits_for = watch.problem
