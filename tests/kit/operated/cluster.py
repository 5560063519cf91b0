"""A cluster of twins for an operator: Pumps, Drainers, etcd and the oracle in one process.

What decides is the real thing: a Pump's storage, membership, operator's verbs and purge, a
Drainer's merge, its list of Pumps and its checkpoint, the commands of `penstock ctl`. Twins are
what is between them: etcd is in memory, a call is a call, the cluster's time moves when a test says
so, and a downstream is a list. Nodes can be killed at any moment, and cut off from etcd.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from drainer.cluster.membership import Membership as DrainerMembership
from drainer.intake.merger import Merger
from drainer.intake.pump_set import Pumps
from drainer.sinks.checkpoint import Checkpoint
from penstock.cluster.node_registry import (
    SILENT_AFTER_S,
    Heartbeats,
    NodeKind,
    NodeState,
    NodeStatus,
    Registry,
    seems_live,
)
from penstock.codes import Code
from penstock.ctl import commands, lost, nodes, states
from penstock.errors import NeedsOperator, PenstockError, Retryable, code_fields
from penstock.node.output import reply_of
from penstock.pb import penstock_pb2
from penstock.ts import compose, physical_ms, seconds_between
from penstock.wire.codec import decode_binlog
from pump.cluster.identity import Identity
from pump.cluster.membership import Membership, last_word_of
from pump.cluster.retention import Retention
from pump.operator import Operator
from pump.store.record import PurgedRange
from pump.store.storage import Storage
from tests.kit.fakes.etcd import MemoryEtcd
from tests.kit.fakes.storage import commit, die, fake, opened, prewrite, rollback, write

CLUSTER = 7
STANDBY = "-standby"
"""What its node id has more than that of the Drainer that it stands by for."""
GC_S = 60
_RANGE = re.compile(r"\((\d+), (\d+)\]")
_TURN_S = 0.002
_BEAT_S = 4


@dataclass(frozen=True)
class NoFacts:
    """The facts of a Pump whose status nobody reads."""

    closing: str
    moving: str


class Time:
    """The oracle: unique timestamps, and a clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self._ms = 1_800_000_000_000
        self._logical = 0
        self._lock = threading.Lock()

    def get_ts(self) -> int:
        with self._lock:
            self._logical += 1
            return compose(self._ms, self._logical)

    async def next_ts(self) -> int:
        return self.get_ts()

    def now_ts(self) -> int:
        return compose(self._ms, self._logical)

    def move(self, seconds: float) -> None:
        with self._lock:
            self._ms += int(seconds * 1000)
            self._logical = 0

    def close(self) -> None:
        """Keep nothing open."""


class Seen(Heartbeats):
    """Heartbeats in a cluster whose time moves when a test says so, and tells the truth."""

    def __init__(self, time: Any) -> None:
        super().__init__()
        self._time = time

    def is_silent(self, status: NodeStatus) -> bool:
        return seconds_between(status.update_ts, self._time.now_ts()) > SILENT_AFTER_S


class Line:
    """A node's way to etcd, which can be cut."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.is_cut = False

    def __getattr__(self, name: str) -> Any:
        if self.is_cut:
            raise Retryable("etcd cannot be reached", code=Code.ETCD_AWAY)
        return getattr(self._registry, name)


class TwinPump:
    """One Pump; `stopped` says why it ended by itself, if an operator has to act."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.address = f"{name}:1"
        self.stopped = ""
        self.storage: Storage | None = None
        self.is_ending = False
        """True while its folder is still open, for example because etcd is out of reach."""
        self.open: list[int] = []
        self._cluster = cluster
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if self.storage is not None or self.is_ending:
            return
        cluster, self.stopped = self._cluster, ""
        self.storage = storage = opened(cluster.folder / self.name)
        self.line, time = Line(cluster.registry), cluster.time
        line: Any = self.line
        clock: Any = time
        fake_binlogs: Any = SimpleNamespace(write=self.write_fake)
        self.membership = Membership(
            line, storage, clock,
            identity=Identity(self.name, self.address, {}), score=lambda: 1,
        )  # fmt: skip
        self.membership.retry_s = _TURN_S
        self.membership.watched = self.membership.namesakes = Seen(time)
        self.membership.notify = cluster.notify
        self.membership.notify_stopped = cluster.notify_stopped
        retention = Retention(
            storage, self.membership, clock, gc_days=GC_S / 86400,
            wall_s=lambda: physical_ms(time.now_ts()) / 1000,
        )  # fmt: skip
        self.operator = Operator(
            node_id=self.name,
            storage=storage,
            membership=self.membership,
            fake_binlogs=fake_binlogs,
            retention=retention,
            facts=NoFacts,
        )
        self.operator.close_tick_s = _TURN_S
        self._tasks = [asyncio.create_task(self._join()), asyncio.create_task(self._until_ended())]

    @property
    def is_joined(self) -> bool:
        return self.storage is not None and self.membership.state is NodeState.ONLINE

    async def write_fake(self) -> int:
        ts = self._cluster.time.get_ts()
        if self.storage is not None:
            write(self.storage, fake(ts))
        return ts

    def write(self, count: int, *, left_open: bool) -> None:
        """Commit transactions; the last one may stay open."""
        if not self.is_joined:
            return
        assert self.storage is not None
        for number in range(count):
            start_ts = self._cluster.time.get_ts()
            write(self.storage, prewrite(start_ts))
            self.open.append(start_ts)
            if number < count - 1 or not left_open:
                self.settle(start_ts)

    def settle(self, start_ts: int, *, committed: bool = True) -> None:
        """End an open transaction: its writer is alive, or the resolver knows what became of it."""
        if self.storage is None:
            return
        self.open.remove(start_ts)
        if not committed:
            write(self.storage, rollback(start_ts))
            return
        commit_ts = self._cluster.time.get_ts()
        write(self.storage, commit(start_ts, commit_ts))
        self._cluster.committed[commit_ts] = (start_ts, self.name)

    async def beat(self) -> None:
        if self.storage is None or not self._tasks[0].done() or self.stopped:
            return
        try:
            with suppress(Retryable):
                await self.membership._check_name()
            await self.membership._beat()
        except NeedsOperator as error:
            self.stopped = str(error)
            await self.end()

    async def end(self) -> None:
        if self.storage is None:
            return
        await self.operator.stop()
        if self.membership.state is NodeState.ONLINE:
            await self.membership.enter(NodeState.PAUSING)
        await self._cancel()
        storage, self.storage = self.storage, None
        self.is_ending = True
        if self.membership.state is not NodeState.PAUSED:
            state = NodeState.OFFLINE if self.operator.drained else NodeState.PAUSED
            await self.membership.leave(state, last_word_of(self.name, storage))
        storage.close()
        self.is_ending = False

    async def kill(self) -> None:
        if self.storage is None:
            return
        storage, self.storage = self.storage, None
        await self._cancel()
        await self.operator.stop()
        die(storage)

    async def _cancel(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _join(self) -> None:
        try:
            await self.membership.join()
        except NeedsOperator as error:
            self.stopped = str(error)
            self.operator.ended.set()

    async def _until_ended(self) -> None:
        await self.operator.ended.wait()
        await self.end()


class TwinDrainer:
    """A downstream, and who writes it: one Drainer, or its standby; `row` is the checkpoint."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        """The node id of the one that writes, or did last."""
        self.standby = f"{name}{STANDBY}"
        self.stopped = ""
        self.row: str | None = None
        self.applied: list[tuple[int, int]] = []
        self.saved: tuple[str | None, int] = (None, 0)
        self.declared_lost: set[tuple[str, int, int]] = set()
        self.ignored: set[int] = set()
        self.late = 0
        self.pumps: Pumps | None = None
        self._cluster = cluster
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self.pumps is not None

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(0, 0) if self.row is None else Checkpoint.from_json(self.row)

    @property
    def address(self) -> str:
        return f"{self.name}:1"

    async def hand_over(self) -> None:
        """Let the standby write from here on, once the other one has ended in order."""
        await self.end(NodeState.PAUSED)
        self._take_over()

    async def die(self) -> None:
        """Be killed; the standby continues."""
        if self.is_running:
            await self.end(None)
            self._take_over()

    def _take_over(self) -> None:
        self.name, self.standby = self.standby, self.name
        self.start(former=self.standby)

    def start(self, former: str = "") -> None:
        if self._task is not None:
            return
        self.stopped = ""
        at, cluster = self.checkpoint, self._cluster
        self.row = at.to_json("w")
        self._merger = Merger(at.commit_ts, frozenset(self.ignored))
        line: Any = Line(cluster.registry)
        oracle: Any = cluster.time
        around = _Around(
            line,
            oracle,
            node_id=self.name,
            host=self.address,
            checkpoint_ts=lambda: self.checkpoint.commit_ts,
        )
        around.retire_every_s = _TURN_S
        around.heartbeats = Seen(cluster.time)
        who: Any = SimpleNamespace(cluster_id=CLUSTER, drainer_id=self.name)
        self.membership = around
        self.pumps = Pumps(self._merger, around, who, 1 << 20, at.pumps)
        puller: Any = partial(_Puller, self._cluster)
        self.pumps.open_puller = puller
        self._task = asyncio.create_task(self._live(self.pumps, former))

    async def end(self, state: NodeState | None) -> None:
        """Stop in order and publish a state; None: be killed."""
        task, self._task, self.pumps = self._task, None, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait((task,))
        if state is not None:
            await self.membership.leave(state, is_new=False)

    def is_done(self, pumps: list[str], last_ts: int) -> bool:
        """Return whether it has stopped for a reason, or has all of these Pumps up to there."""
        if self.stopped or self.pumps is None:
            return bool(self.stopped)
        at = self.pumps.positions()
        has_all = all(at.get(name, 0) >= last_ts for name in pumps)
        return has_all and self.checkpoint.commit_ts >= last_ts

    def back_up(self) -> None:
        self.saved = (self.row, len(self.applied))

    async def restore(self) -> None:
        was_running = self.is_running
        await self.end(NodeState.PAUSED)
        self.row = self.saved[0]
        del self.applied[self.saved[1] :]
        if was_running:
            self.start()

    def status(self) -> penstock_pb2.StatusReply:
        assert self.pumps is not None
        return reply_of(
            self.pumps.facts(),
            node_id=self.name,
            state=str(self.membership.state),
            max_commit_ts=self.checkpoint.commit_ts,
        )

    async def _live(self, pumps: Pumps, former: str) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            await self.membership.refuse_gap()
            passes, merging = pumps.run(_TURN_S), self._merge(pumps)
            tasks = [asyncio.create_task(passes), asyncio.create_task(merging)]
            tasks.append(asyncio.create_task(self.membership.retire(former)))
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        except NeedsOperator as error:
            self.stopped = str(error)
            self.pumps = None
            await self.membership.leave(NodeState.PAUSED, is_new=False)
            self._task = None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await pumps.close()

    async def _merge(self, pumps: Pumps) -> None:
        while True:
            pumps.arrived.clear()
            self.late = self._merger.late
            merged = pumps.take()
            if merged is None:
                await pumps.arrived.wait()
                continue
            found = [decode_binlog(each) for each in merged.payloads if isinstance(each, bytes)]
            self.applied += [(b.commit_ts, b.start_ts) for b in found if not b.is_fake]
            at = Checkpoint(self._merger.emitted_ts, 0, pumps=pumps.participants())
            self.row = at.to_json("w")
            for name, (word, left_ts) in pumps._lost.items():
                self.declared_lost.add((name, left_ts, word.up_to_ts))
            await asyncio.sleep(0)


class _Around(DrainerMembership):
    """A Drainer's membership in the cluster's own time."""

    def now_ts(self) -> int:
        now_ts: int = self._oracle.now_ts()  # type: ignore[attr-defined]
        return now_ts


class Cluster:
    """Pumps and Drainers by name, what was committed, and everything that was typed."""

    def __init__(self, folder: Path, pump_count: int = 3, drainer_count: int = 2) -> None:
        self.folder = folder
        self.etcd = MemoryEtcd()
        self.registry = Registry(self.etcd)
        self.time = Time()
        self.committed: dict[int, tuple[int, str]] = {}
        self.typed: list[str] = []
        pumps = [TwinPump(self, f"pump-{n}") for n in range(1, pump_count + 1)]
        drainers = [TwinDrainer(self, f"drainer-{n}") for n in range(1, drainer_count + 1)]
        self.pumps = {pump.name: pump for pump in pumps}
        self.drainers = {drainer.name: drainer for drainer in drainers}

    async def notify(self, drainer: NodeStatus, tls: object) -> None:
        twin = self.drainer(drainer.node_id)
        if twin is None or twin.pumps is None:
            raise Retryable(f"drainer {drainer.node_id} does not answer", code=Code.ETCD_AWAY)
        try:
            await twin.pumps.refresh()
        except NeedsOperator as error:
            raise Retryable(str(error), code=Code.ETCD_AWAY) from error

    async def notify_stopped(self, drainer: NodeStatus, tls: object) -> None:
        with suppress(Retryable):
            await self.notify(drainer, tls)

    async def begin(self) -> None:
        """Start everybody, and return when all are online."""
        for pump in self.pumps.values():
            pump.start()
        for drainer in self.drainers.values():
            drainer.start()
        await self.until(lambda: all(pump.is_joined for pump in self.pumps.values()), "joined")

    async def close(self) -> None:
        for drainer in self.drainers.values():
            await drainer.end(None)
        for pump in self.pumps.values():
            await pump.kill()

    async def until(self, condition: Callable[[], bool], what: str, within_s: float = 20) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not condition():  # noqa: ASYNC110  # No event stands for all that may be asked.
                    await asyncio.sleep(_TURN_S)
        except TimeoutError:
            raise AssertionError(f"not {what} in time: {self.describe()}") from None

    async def turn(self) -> None:
        """Let each node do a little; not so much that all is done."""
        await asyncio.sleep(_TURN_S * 2)

    async def pass_time(self, seconds: int) -> None:
        """Let time pass; each node that is alive and not cut off beats meanwhile."""
        while seconds > 0:
            self.time.move(min(seconds, _BEAT_S))
            seconds -= _BEAT_S
            for pump in list(self.pumps.values()):
                await pump.beat()
            await self.turn()

    async def ctl(self, *argv: str) -> tuple[int, str]:
        """Run a command of `penstock ctl`; return its exit code and all that it says."""
        self.typed.append(" ".join(argv))
        loop = asyncio.get_running_loop()

        def run() -> tuple[int, str]:
            out = io.StringIO()
            with _commands_reach(self, loop), contextlib.redirect_stdout(out):
                try:
                    arguments = commands.command_parser().parse_args([*argv])
                    if not getattr(arguments, "etcd_urls", ""):
                        arguments.etcd_urls = "twins"
                    nodes.resolve_node(arguments)
                    code: int = arguments.run(arguments)
                except NeedsOperator as error:
                    return 2, out.getvalue() + str(error)
                except PenstockError as error:
                    return 1, out.getvalue() + str(error)
            return code, out.getvalue()

        code, said = await asyncio.to_thread(run)
        self.typed[-1] += f" -> {code}"
        return code, said

    def edit(self, kind: NodeKind, name: str, state: NodeState) -> None:
        """Write a state past every command, as `etcdctl` would."""
        found = self.registry.get(kind, name)
        if found is not None:
            fields = {slot: getattr(found, slot) for slot in NodeStatus.__slots__}
            self.registry.put(kind, NodeStatus(**fields | {"state": state}))

    async def called(self, kind: NodeKind, address: str, method: str, request: Any) -> Any:
        """Do what a node does when it is called."""
        name = address.partition(":")[0]
        if kind is NodeKind.PUMP:
            pump = self.pumps.get(name)
            if pump is None or pump.storage is None:
                raise _Refused(grpc.StatusCode.UNAVAILABLE, "connection refused")
            return await _pump_called(pump, method, request)
        drainer = self.drainer(name)
        if drainer is None or drainer.pumps is None:
            raise _Refused(grpc.StatusCode.UNAVAILABLE, "connection refused")
        if method == "Status":
            return drainer.status()
        if method == "HandOver":
            await drainer.hand_over()
            return penstock_pb2.HandOverReply(standbys=[drainer.name])
        await drainer.end(NodeState.PAUSED if method == "Pause" else NodeState.OFFLINE)
        return None

    def is_heard_of(self, registry: object, kind: NodeKind, status: NodeStatus) -> bool:
        """Say at once what a command finds out by watching."""
        return seems_live(status, self.time.now_ts())

    def listens(self, address: str) -> bool:
        name = address.partition(":")[0]
        if name in self.pumps:
            return self.pumps[name].storage is not None
        drainer = self.drainer(name)
        return drainer is not None and drainer.is_running

    def drainer(self, node_id: str) -> TwinDrainer | None:
        return next((each for each in self.drainers.values() if each.name == node_id), None)

    # --- the end ---------------------------------------------------------------------------

    async def finish(self) -> None:
        """Mend what can be mended, start all nodes, and wait until each is done or has a reason."""
        for pump in self.pumps.values():
            if pump.storage is not None or pump.is_ending:
                pump.line.is_cut = False
        await self._passing_time(lambda: not any(p.is_ending for p in self.pumps.values()))
        for pump in self.pumps.values():
            pump.start()
        await self._passing_time(lambda: all(map(_has_settled, self.pumps.values())))
        for pump in self.pumps.values():
            for start_ts in list(pump.open):
                pump.settle(start_ts)
        for drainer in self.drainers.values():
            drainer.start()
        last_ts = max(self.committed, default=0)

        def is_done() -> bool:
            there = [pump.name for pump in self.pumps.values() if pump.storage is not None]
            return all(drainer.is_done(there, last_ts) for drainer in self.drainers.values())

        await self._passing_time(is_done)

    async def _passing_time(self, condition: Callable[[], bool]) -> None:
        """Return once it holds; nodes beat and idle streams move on meanwhile."""
        for _ in range(2000):
            if condition():
                return
            self.time.move(0.5)
            for pump in self.pumps.values():
                await pump.beat()
                await pump.write_fake()
            await self.turn()
        raise AssertionError(f"not done: {self.describe()}")

    def judge(self, *, may_lose: bool) -> None:
        """Assert that all committed is downstream, or that it was said what is not."""
        for drainer in self.drainers.values():
            stamps = [commit_ts for commit_ts, _ in drainer.applied]
            assert stamps == sorted(set(stamps)), f"out of order or twice: {self.describe()}"
            wrong = [t for t in drainer.applied if self.committed.get(t[0], (0, ""))[0] != t[1]]
            assert not wrong, f"no one committed {wrong}: {self.describe()}"
            missing = sorted(set(self.committed) - set(stamps))
            named = [(int(a), int(b)) for a, b in _RANGE.findall(drainer.stopped)]
            silent = [
                ts
                for ts in missing
                if ts <= drainer.checkpoint.commit_ts
                and not any(after < ts <= up_to for after, up_to in named)
                and not self._is_declared_lost(drainer, ts)
            ]
            left_out = [ts for ts in silent if ts in drainer.ignored]
            silent = [ts for ts in silent if ts not in left_out]
            assert not silent, f"{drainer.name} lacks {silent} without a word: {self.describe()}"
            assert len(left_out) <= drainer.late
            if not may_lose:
                assert not drainer.stopped, self.describe()
                assert not missing, f"{drainer.name} lacks {missing}: {self.describe()}"

    def _is_declared_lost(self, drainer: TwinDrainer, ts: int) -> bool:
        pump = self.committed[ts][1]
        return any(n == pump and a < ts <= b for n, a, b in drainer.declared_lost)

    def describe(self) -> str:
        lines = ["", *self.typed]
        for pump in self.pumps.values():
            status = self.registry.get(NodeKind.PUMP, pump.name)
            lines.append(f"{pump.name}: {status}; open {pump.open}; {pump.stopped}")
        lines.append(f"words {self.registry.last_words()}, lost {self.registry.lost()}")
        for drainer in self.drainers.values():
            about = drainer.pumps and drainer.pumps.facts()
            lines.append(f"{drainer.name} at {drainer.row}: {about}; {drainer.stopped}")
        return "\n".join(lines)


def _has_settled(pump: TwinPump) -> bool:
    closing = pump.storage is not None and pump.membership.state is NodeState.CLOSING
    return pump.is_joined or bool(pump.stopped) or closing or pump.storage is None


async def _pump_called(pump: TwinPump, method: str, request: Any) -> Any:
    try:
        if method == "Status":
            return pump.operator.status()
        if method == "Pause":
            await pump.operator.pause(request.node_id)
        elif method == "Close":
            await pump.operator.close(request.node_id, list(request.skip_drainers))
        else:
            return penstock_pb2.TriggerGcReply(message=await pump.operator.trigger_gc())
    except Retryable as error:
        raise _Refused(grpc.StatusCode.UNAVAILABLE, str(error)) from error
    except PenstockError as error:
        code = grpc.StatusCode.FAILED_PRECONDITION
        raise _Refused(code, str(error), code_fields(error)) from error
    return None


class _Refused(grpc.RpcError):  # type: ignore[misc]
    def __init__(
        self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(details)
        self._code, self._details, self._metadata = code, details, metadata

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata


class _Stub:
    """What a command calls a node by, from its own thread."""

    def __init__(self, cluster: Cluster, loop: Any, kind: NodeKind, address: str) -> None:
        self._cluster, self._loop, self._kind, self._address = cluster, loop, kind, address

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(request: Any, timeout: float) -> Any:
            answer = self._cluster.called(self._kind, self._address, method, request)
            return asyncio.run_coroutine_threadsafe(answer, self._loop).result(timeout)

        return call


@contextmanager
def _commands_reach(cluster: Cluster, loop: Any) -> Iterator[None]:
    """Lead `penstock ctl` to the twins: etcd, the oracle, calls, and who listens where."""
    stubs: Mapping[NodeKind, Any] = {
        kind: lambda address, kind=kind: _Stub(cluster, loop, kind, address) for kind in NodeKind
    }

    @contextmanager
    def channel(address: str, *_: object) -> Iterator[str]:
        yield address

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "etcd", SimpleNamespace(connect=lambda *_, **__: cluster.etcd))
        patch.setattr(nodes, "open_oracle", lambda *_, **__: cluster.time)
        patch.setattr(nodes, "open_channel", channel)
        patch.setattr(nodes, "_STUBS", stubs)
        patch.setattr(states, "_listens", cluster.listens)
        for module in (states, lost):
            patch.setattr(module, "is_heard_of", cluster.is_heard_of)
        yield


class _Puller:
    """Pulls a twin as `drainer.intake.puller.Puller` pulls a Pump."""

    def __init__(self, cluster: Cluster, pump: str, address: str, who: Any, receiver: Any) -> None:
        self.cluster = cluster
        self.pump = pump
        self.address = address
        self.problem = "not connected yet"
        self.is_original = False
        self.on_break: Callable[[], None] = lambda: None
        self._receiver = receiver

    async def run(self) -> None:
        while True:
            pump = self.cluster.pumps.get(self.address.partition(":")[0])
            storage = None if pump is None else pump.storage
            if storage is None:
                self.problem = "connection refused"
                await asyncio.sleep(_TURN_S)
                continue
            after_ts = self._receiver.received_ts(self.pump)
            try:
                pulled = storage.pull(after_ts, bytes_max=2000, count_max=7)
            except PurgedRange as error:
                raise NeedsOperator(
                    f"Pump {self.pump} refuses: {error}", hint="restore", code=Code.DDL_UNSUPPORTED
                ) from error
            self.problem = ""
            if pulled.payloads:
                await self._receiver.receive(self.pump, pulled.commit_ts, pulled.payloads)
            await asyncio.sleep(0 if pulled.payloads else _TURN_S)
