"""Tasks: threads of which one runs at a time, in an order drawn from a seed, by a clock of its own.

    sleep, a lock that is held, a condition, an empty queue      the task is parked
    nothing can run                                              the clock jumps to the next timer

Real code runs in them as it is: `Threading`, `Queues` and `Clock` stand in for the modules
`threading`, `queue` and `time`, as far as that code uses them. A task gives way only there, so what
happens between two such places happens at once, and the same seed gives the same run.

Tasks belong to a process, and die with it: a killed one ends where it is parked, by `Killed`.
"""

import heapq
import itertools
import queue
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

_GIVES_WAY = 0.2
"""How often a lock that is free lets others go first."""


class Killed(BaseException):
    """The process of this task is dead."""


class Stuck(Exception):
    """No task can run, and none is waited for."""


class Process:
    """What dies at once; `name` is for the trace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False


class Task:
    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self.name = name
        self.baton = threading.Lock()
        self.baton.acquire()
        self.ticket = 0
        """Changes each time that it is parked, so that a timer of an earlier time wakes no one."""
        self.is_parked = False
        self.is_over = False


class Tasks:
    """The scheduler. The thread that creates it is the first task, which is never killed."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_s = 0.0
        self.switches = 0
        self.failure: BaseException | None = None
        """What a task ended with that is none of the errors it may end with."""
        self._world = Process("world")
        self.current = self._first = Task(self._world, "world")
        self._ready: list[Task] = []
        self._parked: set[Task] = set()
        self._timers: list[tuple[float, int, Task | Callable[[], object], int]] = []
        self._serial = itertools.count()
        self._threads: list[threading.Thread] = []

    def spawn(self, work: Callable[[], object], name: str, process: Process | None = None) -> Task:
        """Begin a task; without a process, in that of the one who asks."""
        task = Task(process or self.current.process, name)
        thread = threading.Thread(target=self._run, args=(task, work), name=name, daemon=True)
        self._threads.append(thread)
        self._ready.append(task)
        thread.start()
        return task

    def later(self, after_s: float, what: Callable[[], object]) -> None:
        """Do something after a time that does not park."""
        heapq.heappush(self._timers, (self.now_s + after_s, next(self._serial), what, 0))

    def sleep(self, length_s: float) -> None:
        self.park(length_s)

    def give_way(self) -> None:
        """Let others go first."""
        self._check()
        self._ready.append(self.current)
        self._switch()

    def park(self, within_s: float | None = None) -> bool:
        """Return when another task wakes this task: True; or when the time is over: False."""
        self._check()
        task = self.current
        task.ticket = next(self._serial)
        task.is_parked = True
        self._parked.add(task)
        if within_s is not None:
            due_s = self.now_s + within_s
            heapq.heappush(self._timers, (due_s, next(self._serial), task, task.ticket))
        ticket = task.ticket
        self._switch()
        return task.ticket != ticket

    def wake(self, task: Task) -> None:
        if task.is_parked:
            task.ticket = -1
            self._make_ready(task)

    def kill(self, process: Process) -> None:
        """End all tasks of a process; one that is running ends where it is parked next."""
        process.is_dead = True
        dying = (task for task in self._parked if task.process is process)
        for task in sorted(dying, key=lambda task: task.ticket):
            self._make_ready(task)

    def end(self) -> None:
        self._timers.clear()
        while left := [*self._ready, *self._parked]:
            for process in {id(task.process): task.process for task in left}.values():
                self.kill(process)
            self.give_way()
        for thread in self._threads:
            thread.join()

    def _check(self) -> None:
        if self.current.process.is_dead and self.current is not self._first:
            raise Killed

    def _make_ready(self, task: Task) -> None:
        task.is_parked = False
        self._parked.discard(task)
        self._ready.append(task)

    def _switch(self) -> None:
        """Have another task run until it is this one's turn again."""
        task = self.current
        following = self._next()
        if following is not task:
            self._hand_over(following)
            task.baton.acquire()
        self._check()

    def _hand_over(self, task: Task) -> None:
        self.switches += 1
        self.current = task
        task.baton.release()

    def _next(self) -> Task:
        while not self._ready:
            if not self._timers:  # Who waits for the world is told by its task.
                self.failure = self.failure or Stuck("nothing can happen any more")
                self._make_ready(self._first)
                break
            self._ring()
        return self._ready.pop(self.chance.randrange(len(self._ready)))

    def _ring(self) -> None:
        due_s, _, what, ticket = heapq.heappop(self._timers)
        if not isinstance(what, Task):
            self.now_s = max(self.now_s, due_s)
            what()
        elif what.is_parked and what.ticket == ticket:
            self.now_s = max(self.now_s, due_s)
            self._make_ready(what)

    def _run(self, task: Task, work: Callable[[], object]) -> None:
        task.baton.acquire()
        try:
            if not task.process.is_dead:
                work()
        except Killed:
            pass
        except BaseException as error:
            self.failure = self.failure or error
        finally:
            task.is_over = True
            self._hand_over(self._next())


class Clock:
    """Stands in for the module `time`."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def monotonic(self) -> float:
        return self._tasks.now_s

    def sleep(self, length_s: float) -> None:
        self._tasks.sleep(length_s)


class _Lock:
    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._waiting: deque[Task] = deque()
        self._is_held = False

    def acquire(self) -> None:
        tasks = self._tasks
        if tasks.chance.random() < _GIVES_WAY:
            tasks.give_way()
        while self._is_held:
            self._waiting.append(tasks.current)
            tasks.park()
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        if self._waiting:
            self._tasks.wake(self._waiting.popleft())

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class _Condition:
    def __init__(self, tasks: Tasks, lock: _Lock) -> None:
        self._tasks = tasks
        self._lock = lock
        self._waiting: list[Task] = []

    def wait_for(self, is_so: Callable[[], bool], timeout: float | None = None) -> bool:
        due_s = None if timeout is None else self._tasks.now_s + timeout
        while not is_so():
            left_s = None if due_s is None else due_s - self._tasks.now_s
            if left_s is not None and left_s <= 0:
                return False
            self._waiting.append(self._tasks.current)
            self._lock.release()
            self._tasks.park(left_s)
            self._lock.acquire()
        return True

    def notify_all(self) -> None:
        woken, self._waiting = self._waiting, []
        for task in woken:
            self._tasks.wake(task)


class _Event:
    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._waiting: list[Task] = []
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        woken, self._waiting = self._waiting, []
        for task in woken:
            self._tasks.wake(task)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._waiting.append(self._tasks.current)
            self._tasks.park(timeout)
        return self._is_set


class _Thread:
    def __init__(
        self, tasks: Tasks, target: Callable[..., object], args: Sequence[Any], name: str
    ) -> None:
        self._tasks = tasks
        self._work = lambda: target(*args)
        self._name = name
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._tasks.spawn(self._work, self._name)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_over

    def join(self) -> None:
        while self.is_alive():
            self._tasks.sleep(0.01)


class Threading:
    """Stands in for the module `threading`."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def Lock(self) -> _Lock:  # noqa: N802
        return _Lock(self._tasks)

    def Condition(self, lock: _Lock) -> _Condition:  # noqa: N802
        return _Condition(self._tasks, lock)

    def Event(self) -> _Event:  # noqa: N802
        return _Event(self._tasks)

    def Thread(  # noqa: N802
        self,
        *,
        target: Callable[..., object],
        args: Sequence[Any] = (),
        name: str = "",
        daemon: bool = True,
    ) -> _Thread:
        return _Thread(self._tasks, target, args, name)


class SimpleQueue:
    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._items: deque[Any] = deque()
        self._waiting: deque[Task] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        while self._waiting:
            self._tasks.wake(self._waiting.popleft())

    def get(self, timeout: float | None = None) -> Any:
        due_s = None if timeout is None else self._tasks.now_s + timeout
        while not self._items:
            left_s = None if due_s is None else due_s - self._tasks.now_s
            if left_s is not None and left_s <= 0:
                raise queue.Empty
            self._waiting.append(self._tasks.current)
            self._tasks.park(left_s)
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class Queues:
    """Stands in for the module `queue`."""

    Empty = queue.Empty

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def SimpleQueue(self) -> SimpleQueue:  # noqa: N802
        return SimpleQueue(self._tasks)
