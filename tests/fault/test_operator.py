"""An operator who types anything at any moment: nothing is lost or changed without a word.

Random sequences of commands, of states written past them, of kills and restarts, while writers
write. In the end all that was committed is downstream; or a node has stopped with a reason that
names the range; or what is missing was given up by name, and is exactly that.

A command is added by one line in `COMMANDS`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.registry import NodeKind, NodeState
from tests.kit.operated import Cluster, twins

pytestmark = pytest.mark.fault


@dataclass(frozen=True)
class Aim:
    """What a step is aimed at; not all of it matters to every step."""

    cluster: Cluster
    pump: str
    drainer: str
    state: NodeState
    number: int

    def known_ts(self) -> int:
        """Return a commit_ts that an operator may have before him: somebody's, or one between."""
        found = [drainer.checkpoint.commit_ts for drainer in self.cluster.drainers.values()]
        return [0, min(found), max(found), sum(found) // len(found)][self.number % 4]


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
    "trigger-gc": lambda aim: ["trigger-gc", aim.pump],
}  # fmt: skip
"""Every command that reads or changes a node's state, by what it is aimed at."""


async def _write(aim: Aim) -> None:
    aim.cluster.pumps[aim.pump].write(aim.number + 1, left_open=False)


async def _write_some(aim: Aim) -> None:
    aim.cluster.pumps[aim.pump].write(aim.number + 1, left_open=True)


async def _settle(aim: Aim) -> None:
    pump = aim.cluster.pumps[aim.pump]
    for start_ts in list(pump.open):
        pump.settle(start_ts, committed=aim.number % 2 == 0)


async def _pass_time(aim: Aim) -> None:
    await aim.cluster.pass_time((1, 5, 15, 80)[aim.number % 4])


async def _cut_off(aim: Aim) -> None:
    pump = aim.cluster.pumps[aim.pump]
    if pump.storage is not None:
        pump.line.is_cut = not pump.line.is_cut


async def _start_pump(aim: Aim) -> None:
    aim.cluster.pumps[aim.pump].start()


async def _start_drainer(aim: Aim) -> None:
    aim.cluster.drainers[aim.drainer].start()


async def _edit_pump(aim: Aim) -> None:
    aim.cluster.edit(NodeKind.PUMP, aim.pump, aim.state)


ACTS: dict[str, Callable[[Aim], Coroutine[Any, Any, None]]] = {
    "write": _write,
    "write, one stays open": _write_some,
    "end what is open": _settle,
    "time passes": _pass_time,
    "cut a Pump off from etcd, or not any more": _cut_off,
    "kill a Pump": lambda aim: aim.cluster.pumps[aim.pump].kill(),
    "stop a Pump": lambda aim: aim.cluster.pumps[aim.pump].end(),
    "start a Pump": _start_pump,
    "kill a Drainer": lambda aim: aim.cluster.drainers[aim.drainer].end(None),
    "stop a Drainer": lambda aim: aim.cluster.drainers[aim.drainer].end(NodeState.PAUSED),
    "start a Drainer": _start_drainer,
    "write a Pump's state by hand": _edit_pump,
}
"""What writers do, and what happens to nodes, none of which anybody need type."""


async def _edit_drainer(aim: Aim) -> None:
    aim.cluster.edit(NodeKind.DRAINER, aim.drainer, aim.state)


async def _delete_pump(aim: Aim) -> None:
    aim.cluster.registry.forget(NodeKind.PUMP, aim.pump)


async def _delete_loss(aim: Aim) -> None:
    aim.cluster.registry._lost.pop(aim.pump, None)


async def _back_up(aim: Aim) -> None:
    aim.cluster.drainers[aim.drainer].back_up()


EDITS: dict[str, Callable[[Aim], Coroutine[Any, Any, None]]] = {
    "write a Drainer's state by hand": _edit_drainer,
    "delete a Pump's entry": _delete_pump,
    "delete the word that a Pump is lost": _delete_loss,
    "back up a downstream": _back_up,
    "restore a downstream": lambda aim: aim.cluster.drainers[aim.drainer].restore(),
}
"""What is done past every command."""

GIVES_UP = {
    "lost-pump", "offline-pump --skip-drainer", "offline-drainer", "update-drainer", *EDITS
}  # fmt: skip
"""After these somebody may rightly stop, or lack what was named. After no other may anybody."""

Step = tuple[str, int, int, NodeState, int]


def steps(*names: str) -> st.SearchStrategy[Step]:
    return st.tuples(
        st.sampled_from(names),
        st.integers(0, 2),
        st.integers(0, 1),
        st.sampled_from(list(NodeState)),
        st.integers(0, 7),
    )


LOAD = ("write", "write", "write", "write, one stays open", "end what is open", "time passes")
ANYTHING = st.lists(steps(*LOAD, *COMMANDS, *ACTS, *EDITS), min_size=5, max_size=40)
NOTHING_GIVEN_UP = st.lists(
    steps(*LOAD, *(name for name in (*COMMANDS, *ACTS) if name not in GIVES_UP)),
    min_size=5,
    max_size=40,
)


async def live(sequence: list[Step], folder: Path) -> None:
    with twins(Cluster(folder)) as cluster:
        try:
            await cluster.begin()
            for name, pump, drainer, state, number in sequence:
                aim = Aim(cluster, f"pump-{pump + 1}", f"drainer-{drainer + 1}", state, number)
                if name in COMMANDS:
                    await cluster.ctl(*COMMANDS[name](aim))
                else:
                    cluster.typed.append(f"{name}: {aim.pump} {aim.drainer} {state} {number}")
                    await {**ACTS, **EDITS}[name](aim)
                await cluster.turn()
            await cluster.finish()
            cluster.judge(may_lose=any(step[0] in GIVES_UP for step in sequence))
        finally:
            await cluster.close()


def run(sequence: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(sequence, Path(folder)))


def sequences(count: int) -> settings:
    return settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )


@sequences(10)
@given(NOTHING_GIVEN_UP)
def test_commands_that_give_nothing_up_lose_nothing_and_stop_nobody(sequence: list[Step]) -> None:
    run(sequence)


@sequences(10)
@given(ANYTHING)
def test_whatever_is_typed_or_edited_nothing_is_lost_without_a_word(sequence: list[Step]) -> None:
    run(sequence)


@pytest.mark.slow
@sequences(150)
@given(NOTHING_GIVEN_UP)
def test_many_commands_that_give_nothing_up_lose_nothing(sequence: list[Step]) -> None:
    run(sequence)


@pytest.mark.slow
@sequences(250)
@given(ANYTHING)
def test_many_sequences_of_anything_lose_nothing_without_a_word(sequence: list[Step]) -> None:
    run(sequence)
