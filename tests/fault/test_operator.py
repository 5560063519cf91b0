"""An operator who types anything at any moment: nothing is lost or changed without a word.

Random sequences of commands, of states written past them, of kills and restarts, while writers
write. In the end all that was committed is downstream; or a node has stopped with a reason that
names the range; or what is missing was declared lost by name, and is exactly that.

A command is added by one line in `COMMANDS`.
"""

import asyncio
import random
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drainer import ddl_command
from penstock.cluster.node_registry import NodeKind, NodeState, Registry
from penstock.cluster.records import LOST, standbys
from penstock.ctl.commands import main as ctl
from penstock.errors import PenstockError
from penstock.local.process import flags
from penstock.node.command import run as run_command
from pumpclient import PumpClient
from tests.kit.operated.cluster import STANDBY, Cluster, TwinDrainer
from tests.kit.servers.fix_drainer import DrainerProcess
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Replication
from tests.kit.wait import eventually, present

pytestmark = pytest.mark.fault


STATES = [each for each in NodeState if each not in (NodeState.STANDBY, NodeState.READING)]
"""Those that an entry of a Pump or a Drainer in etcd can have."""


@dataclass(frozen=True)
class Aim:
    """What a step is aimed at; not all of it matters to every step."""

    pump: str
    drainer: str
    state: NodeState
    number: int
    checkpoints: Sequence[int]

    def known_ts(self) -> int:
        """Return a commit_ts that an operator may have before him: somebody's, or one between."""
        found = self.checkpoints
        return [0, min(found), max(found), sum(found) // len(found)][self.number % 4]


@dataclass(frozen=True)
class AimAtTwins(Aim):
    """… and the cluster that they are in."""

    cluster: Cluster

    @property
    def downstream(self) -> TwinDrainer:
        """The one that the Drainer writes, if it is not its standby's turn."""
        return self.cluster.drainers[self.drainer.removesuffix(STANDBY)]


COMMANDS: dict[str, Callable[[Aim], list[str]]] = {
    "pumps": lambda _: ["pumps", "--show-offline-nodes"],
    "drainers": lambda _: ["drainers"],
    "status": lambda aim: ["status", aim.pump if aim.number % 2 else aim.drainer],
    "timestamp": lambda _: ["timestamp"],
    "pause-pump": lambda aim: ["pause-pump", "--node-id", aim.pump],
    "offline-pump": lambda aim: ["offline-pump", "--node-id", aim.pump],
    "offline-pump --skip-drainer": lambda aim: [
        "offline-pump", "--node-id", aim.pump, "--skip-drainer", aim.drainer
    ],
    "update-pump": lambda aim: ["update-pump", "--node-id", aim.pump, "--state", aim.state],
    "lost-pump": lambda aim: [
        "lost-pump", aim.pump, "--accept-loss-after", str(aim.known_ts()), "--confirm", aim.pump
    ],
    "pause-drainer": lambda aim: ["pause-drainer", "--node-id", aim.drainer],
    "offline-drainer": lambda aim: ["offline-drainer", "--node-id", aim.drainer],
    "update-drainer": lambda aim: [
        "update-drainer", "--node-id", aim.drainer, "--state", aim.state
    ],
    "hand-over": lambda aim: ["hand-over", aim.drainer],
    "trigger-gc": lambda aim: ["trigger-gc", aim.pump],
}  # fmt: skip
"""Every command that reads or changes a node's state, by what it is aimed at."""


async def _write(aim: AimAtTwins) -> None:
    aim.cluster.pumps[aim.pump].write(aim.number + 1, left_open=False)


async def _write_some(aim: AimAtTwins) -> None:
    aim.cluster.pumps[aim.pump].write(aim.number + 1, left_open=True)


async def _settle(aim: AimAtTwins) -> None:
    pump = aim.cluster.pumps[aim.pump]
    for start_ts in list(pump.open):
        pump.settle(start_ts, committed=aim.number % 2 == 0)


async def _pass_time(aim: AimAtTwins) -> None:
    await aim.cluster.pass_time((1, 5, 15, 80)[aim.number % 4])


async def _cut_off(aim: AimAtTwins) -> None:
    pump = aim.cluster.pumps[aim.pump]
    if pump.storage is not None:
        pump.line.is_cut = not pump.line.is_cut


async def _start_pump(aim: AimAtTwins) -> None:
    aim.cluster.pumps[aim.pump].start()


async def _start_drainer(aim: AimAtTwins) -> None:
    aim.downstream.start()


async def _edit_pump(aim: AimAtTwins) -> None:
    aim.cluster.edit(NodeKind.PUMP, aim.pump, aim.state)


ACTS: dict[str, Callable[[AimAtTwins], Coroutine[Any, Any, None]]] = {
    "write": _write,
    "write, one stays open": _write_some,
    "end what is open": _settle,
    "time passes": _pass_time,
    "cut a Pump off from etcd, or not any more": _cut_off,
    "kill a Pump": lambda aim: aim.cluster.pumps[aim.pump].kill(),
    "stop a Pump": lambda aim: aim.cluster.pumps[aim.pump].end(),
    "start a Pump": _start_pump,
    "kill a Drainer": lambda aim: aim.downstream.end(None),
    "kill a Drainer that has a standby": lambda aim: aim.downstream.die(),
    "stop a Drainer": lambda aim: aim.downstream.end(NodeState.PAUSED),
    "start a Drainer": _start_drainer,
    "write a Pump's state by hand": _edit_pump,
}
"""What writers do, and what happens to nodes, none of which anybody need type."""


async def _edit_drainer(aim: AimAtTwins) -> None:
    aim.cluster.edit(NodeKind.DRAINER, aim.drainer, aim.state)


async def _delete_pump(aim: AimAtTwins) -> None:
    aim.cluster.registry.forget(NodeKind.PUMP, aim.pump)


async def _delete_loss(aim: AimAtTwins) -> None:
    aim.cluster.etcd.delete(LOST + aim.pump)


async def _back_up(aim: AimAtTwins) -> None:
    aim.downstream.back_up()


EDITS: dict[str, Callable[[AimAtTwins], Coroutine[Any, Any, None]]] = {
    "write a Drainer's state by hand": _edit_drainer,
    "delete a Pump's entry": _delete_pump,
    "delete the word that a Pump is lost": _delete_loss,
    "back up a downstream": _back_up,
    "restore a downstream": lambda aim: aim.downstream.restore(),
}
"""What is done past every command."""

ABANDONS = {
    "lost-pump", "offline-pump --skip-drainer", "offline-drainer", "update-drainer", *EDITS
}  # fmt: skip
"""After these somebody may rightly stop, or lack what was named. After no other may anybody."""

Step = tuple[str, int, int, NodeState, int]


def steps(*names: str) -> st.SearchStrategy[Step]:
    return st.tuples(
        st.sampled_from(names),
        st.integers(0, 2),
        st.integers(0, 1),
        st.sampled_from(STATES),
        st.integers(0, 7),
    )


LOAD = ("write", "write", "write", "write, one stays open", "end what is open", "time passes")
ANYTHING = st.lists(steps(*LOAD, *COMMANDS, *ACTS, *EDITS), min_size=5, max_size=40)
NOTHING_ABANDONED = st.lists(
    steps(*LOAD, *(name for name in (*COMMANDS, *ACTS) if name not in ABANDONS)),
    min_size=5,
    max_size=40,
)


def _named(cluster: Cluster, drainer: int, number: int) -> str:
    """Return a Drainer's name, or that of its standby; mostly the one that writes."""
    twin = cluster.drainers[f"drainer-{drainer + 1}"]
    return twin.standby if number % 4 == 0 else twin.name


async def live(sequence: list[Step], folder: Path) -> None:
    cluster = Cluster(folder)
    try:
        await cluster.begin()
        for name, pump, drainer, state, number in sequence:
            aim = AimAtTwins(
                pump=f"pump-{pump + 1}",
                drainer=_named(cluster, drainer, number),
                state=state,
                number=number,
                checkpoints=[d.checkpoint.commit_ts for d in cluster.drainers.values()],
                cluster=cluster,
            )
            if name in COMMANDS:
                await cluster.ctl(*COMMANDS[name](aim))
            else:
                cluster.typed.append(f"{name}: {aim.pump} {aim.drainer} {state} {number}")
                await {**ACTS, **EDITS}[name](aim)
            await cluster.turn()
        await cluster.finish()
        cluster.judge(may_lose=any(step[0] in ABANDONS for step in sequence))
    finally:
        await cluster.close()


def run(sequence: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(sequence, Path(folder)))


def sequences(count: int) -> settings:
    return settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.fault(
    "an operator types any command at any node at any moment, and edits etcd, under load,"
    " with kills between",
    "all is downstream, or a node has stopped with the range, or what is missing was declared"
    " lost by name",
    cases="20 / 400 random sequences of twins, 1 / 4 of processes",
)
@sequences(10)
@given(NOTHING_ABANDONED)
def test_commands_that_abandon_nothing_lose_nothing_and_stop_no_one(sequence: list[Step]) -> None:
    run(sequence)


@sequences(10)
@given(ANYTHING)
def test_whatever_is_typed_or_edited_nothing_is_lost_without_a_word(sequence: list[Step]) -> None:
    run(sequence)


@pytest.mark.slow
@sequences(150)
@given(NOTHING_ABANDONED)
def test_many_commands_that_abandon_nothing_lose_nothing(sequence: list[Step]) -> None:
    run(sequence)


@pytest.mark.slow
@sequences(250)
@given(ANYTHING)
def test_many_sequences_of_anything_lose_nothing_without_a_word(sequence: list[Step]) -> None:
    run(sequence)


class RealNodes:
    """Pumps and Drainers as processes, a writer who never stops, and an operator's commands.

    All Drainers have one downstream: the first that is there writes it, the others stand by.
    """

    def __init__(self, replication: Replication, drainers: list[DrainerProcess]) -> None:
        self.registry = Registry(replication.etcd)
        self.committed: dict[int, int] = {}
        self.tried = 0
        self.typed: list[str] = []
        self._etcd, self._url = replication.etcd, replication.url
        self._down = replication.path
        self._pumps, self._drainers = replication.pumps, drainers
        self._stopping = threading.Event()
        self._writer = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        with PumpClient.connect(self._url) as client:
            client.execute_ddl("CREATE DATABASE op")
            client.execute_ddl("CREATE TABLE op.t (id INT PRIMARY KEY)")
        self._writer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._writer.join()

    def _write(self) -> None:
        with PumpClient.connect(self._url) as client:
            while not self._stopping.wait(0.01):
                self.tried += 1
                try:
                    with client.begin("op") as txn:
                        txn.insert("t", [self.tried])
                except PenstockError:
                    continue  # No Pump is online just then, or the one that was asked is killed.
                assert txn.commit_ts is not None
                self.committed[self.tried] = txn.commit_ts

    def step(
        self, chance: random.Random, capsys: pytest.CaptureFixture[str], acts: Sequence[str]
    ) -> None:
        act = chance.choice(acts)
        pump, drainer = chance.choice(self._pumps), chance.choice(self._drainers)
        node: PumpProcess | DrainerProcess = drainer if act.endswith(" a Drainer") else pump
        if act == "command":
            name = chance.choice([name for name in COMMANDS if name not in ABANDONS])
            state = chance.choice(STATES)
            number = chance.randrange(8)
            aim = Aim(pump.node_id, drainer.node_id, state, number, [0])
            argv = COMMANDS[name](aim)
            act = f"{' '.join(argv)} -> {ctl([*argv, '--etcd-urls', self._url])}"
        elif act == "hand-over":
            argv = COMMANDS[act](Aim(pump.node_id, drainer.node_id, STATES[0], 0, [0]))
            act = f"{' '.join(argv)} -> {ctl([*argv, '--etcd-urls', self._url])}"
        elif act == "ddl":
            argv = chance.choice([["list"], ["track", "1"], ["undo", "1"], ["skip", "x"]])
            flags_ = self._settings(drainer)
            code = run_command("penstock drainer ddl", lambda: ddl_command.main([*argv, *flags_]))
            act = f"penstock drainer ddl {' '.join(argv)} -> {code}"
        elif act == "edit":
            found = present(self.registry.get(NodeKind.PUMP, pump.node_id))
            state = chance.choice(STATES)
            self.registry.put(NodeKind.PUMP, replace(found, state=state))
            act = f"edit {pump.node_id} {state}"
        elif act.startswith("kill"):
            node.kill()
        elif act.startswith("stop"):
            node.stop()
        elif not node.is_running:
            node.spawn()
        self.typed.append(f"{act} {node.node_id}")
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err, self.typed

    def _settings(self, drainer: DrainerProcess) -> list[str]:
        settings = {"data_dir": drainer.data_dir, "etcd_urls": self._url}
        return flags({**settings, "sink": f"sqlite:///{self._down}"})

    def finish(self) -> None:
        """Start what does not run; then everything that was acknowledged has to be downstream."""
        self._stopping.set()
        for node in (*self._drainers, *self._pumps):
            if not node.is_running:
                node.spawn()
        self._writer.join()  # After that: its end waits for Pumps that owe it an answer.
        assert self.committed
        last_ts = max(self.committed.values())
        try:
            eventually(lambda: self._is_done(last_ts), 300)
        except AssertionError:
            pytest.fail("\n".join((*self.typed, *(d.log_text()[-3000:] for d in self._drainers))))
        with closing(sqlite3.connect(self._down)) as connection:
            there = {row for (row,) in connection.execute('SELECT id FROM "op.t"')}
        missing = set(self.committed) - there
        assert not missing, (sorted(missing)[:5], len(missing), self.typed)
        assert there <= set(range(1, self.tried + 1))

    def _is_done(self, last_ts: int) -> bool:
        for drainer in self._drainers:
            if not drainer.is_running:  # It was still doing what a command had asked it for.
                assert drainer.wait() == 0, self.typed
                drainer.spawn()
        done = any(drainer.checkpoint_ts() >= last_ts for drainer in self._drainers)
        return done and len(standbys(self._etcd)) == len(self._drainers) - 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("seed", "steps"), [(1, 8), *(pytest.param(n, 25, marks=pytest.mark.slow) for n in range(2, 6))]
)
def test_an_operator_at_real_nodes_loses_nothing(
    replication: Replication, capsys: pytest.CaptureFixture[str], seed: int, steps: int
) -> None:
    chance = random.Random(seed)
    drainer = replication.start(pumps=2)
    acts = ["command", "command", "ddl", "edit", "kill", "stop", "start", "start"]
    with RealNodes(replication, [drainer]) as real:
        for _ in range(steps):
            real.step(chance, capsys, acts)
            time.sleep(chance.random())  # Any moment of what that has begun.
        real.finish()


@pytest.mark.fault(
    "an operator types any command at any node at any moment: `penstock ctl hand-over`"
    " between a Drainer and its standby, at any moment, either of them killed or stopped",
    "one writes, the other stands by, all is downstream",
    cases="in the sequences above; 0 / 4 of processes",
)
@pytest.mark.slow
@pytest.mark.parametrize(("seed", "steps"), [(1, 3), (2, 8), (3, 8), (4, 8)])
def test_an_operator_who_hands_over_between_two_drainers_loses_nothing(
    replication: Replication, capsys: pytest.CaptureFixture[str], seed: int, steps: int
) -> None:
    chance, etcd, url = random.Random(seed), replication.etcd, replication.url
    first = replication.start(pumps=2, spark_tasks=1, started=False)
    drainers = [first, replication.add_drainer(spark_tasks=1, started=False)]
    acts = ["hand-over"] * 4 + ["command", "kill", "start", "start", "start a Drainer"]
    acts += ["kill a Drainer", "stop a Drainer", "start a Drainer"]
    with RealNodes(replication, drainers) as real:
        drainers[0].start()
        drainers[1].spawn()
        eventually(lambda: len(standbys(etcd)) == 1, 120)
        assert ctl(["hand-over", drainers[0].node_id, "--etcd-urls", url]) == 0
        for _ in range(steps):
            real.step(chance, capsys, acts)
            time.sleep(5 * chance.random())  # Any moment of what that has begun.
        real.finish()
