"""Pumps with copies die at named steps, half of them with their disk; the stream stays whole.

A round is some deaths by its seed, one after the other: a Pump is armed to die at a passing of a
step, or just dies when it does not come by, and its disk is deleted or not. What has to do with a
take-over needs another Pump to be dead, whose disk is kept: of two disks with a log only one is
ever lost, and none while the other copy is not whole yet. Rounds have the seeds from
`PENSTOCK_FIRST_ROUND` (1) on, and are `PENSTOCK_ROUNDS` (2).
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.local.etcd import EtcdServer
from pump.cluster.identity import kept_disk_id
from tests.chaos.copies import last_whole
from tests.kit.servers.fix_copies import Trio, lose_disk
from tests.kit.wait import eventually
from tests.kit.workloads.judged_stream import judged_stream

pytestmark = [pytest.mark.fault, pytest.mark.alone]

FIRST_ROUND = int(os.environ.get("PENSTOCK_FIRST_ROUND", "1"))
ROUNDS = range(FIRST_ROUND, FIRST_ROUND + int(os.environ.get("PENSTOCK_ROUNDS", "2")))
DEATHS = 6
DEATH_S = 8.0

OFTEN, SELDOM = 200, 3
STEPS = {
    "copies.written": OFTEN,
    "copies.own_synced": OFTEN,
    "copies.stored": OFTEN,
    "copies.copy.written": OFTEN,
    "copies.copy.synced": OFTEN,
    "copies.copy.cut": 1,
    "copies.copy.cleared": 1,
    "copies.swapped": SELDOM,
    "copies.begun": SELDOM,
    "copies.joining": 1,
    "copies.claimed": 1,
}
"""Steps, and at which passing a Pump dies at most."""
OF_TAKE_OVERS = ("copies.takeover.due", "copies.takeover.let_go")
OF_ANY_START = ("copies.claimed", "copies.begun", "copies.swapped", "copies.written")


class Death:
    """One death of a Pump, drawn at random."""

    def __init__(self, trio: Trio, chance: random.Random) -> None:
        self._trio = trio
        self.step = chance.choice([*STEPS, *OF_TAKE_OVERS])
        self.passing = chance.randint(1, STEPS.get(self.step, 1))
        self.pump = chance.choice(trio.pumps)
        self.loses_disk = chance.random() < 0.5
        self._takes_over = self.step in OF_TAKE_OVERS or (
            self.step in OF_ANY_START and chance.random() < 0.5
        )
        owners = [each for each in trio.pumps if trio.holder(each) is self.pump]
        self.silent = chance.choice(owners) if self._takes_over and owners else None

    def __str__(self) -> str:
        ends = "and its disk is lost" if self.loses_disk else "and keeps its disk"
        silent = f", {self.silent.node_id} being silent" if self.silent else ""
        return f"{self.pump.node_id} dies at {self.step}@{self.passing}{silent}, {ends}"

    def happen(self) -> None:
        armed = f"{self.step}=kill@{self.passing}"
        self.pump.kill_all()
        self.pump.spawn(armed)
        if self.silent is not None:
            self._until_dead_or(lambda: "serves at" in self.pump.log_text())
            self.silent.kill_all()
        self._until_dead_or(lambda: False)
        self.pump.kill_all()
        if self.loses_disk and not self._has_last():
            lose_disk(self.pump)
        self.pump.spawn()
        if self.silent is not None:
            self.silent.spawn()

    def _has_last(self) -> bool:
        """Return whether no other disk is listed with all of some log, as while one is refilled."""
        pumps = {each.node_id: each for each in self._trio.pumps}
        disks = {name: kept_disk_id(each.data_dir) for name, each in pumps.items()}
        logs = {name: self._trio.entry(each) for name, each in pumps.items()}
        return bool(last_whole(logs, disks, self.pump.node_id))

    def _until_dead_or(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + DEATH_S
        while self.pump.is_running and not is_so() and time.monotonic() < deadline_s:
            time.sleep(0.02)


@pytest.mark.fault(
    "a Pump dies at a step (`copies.*`) of shipping, of a copy, of a claim, of a change of"
    " the list or of a take-over, every second time with its disk",
    "nothing acknowledged is missing, twice or out of order; each log has two whole copies"
    " before the next death",
    cases="0 / 1, and 6 in each round of `PENSTOCK_ROUNDS` (2)",
)
@pytest.mark.slow
def test_a_pump_that_dies_before_writers_hear_of_what_its_copy_has_loses_nothing(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path
) -> None:
    pump = trio.pumps[0]
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=9):
        pump.kill()
        pump.spawn("copies.stored=kill@30")
        eventually(lambda: not pump.is_running, 20)
        lose_disk(pump)
        pump.spawn()
        trio.until_online(pump)


@pytest.mark.slow
@pytest.mark.parametrize("seed", ROUNDS)
def test_a_round_of_deaths_at_any_step(
    trio: Trio, etcd_server: EtcdServer, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    with judged_stream(etcd_server.url, tmp_path / "audit.db", seed=seed):
        for number in range(DEATHS):
            trio.until_whole()
            death = Death(trio, chance)
            print(f"round {seed}, death {number + 1}: {death}", flush=True)  # noqa: T201
            death.happen()
        trio.until_whole()
