"""Whole Pumps in simulated worlds: every acknowledged transaction comes out of the merge once."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pump
from penstock.cluster.log_entry import Copy, LogEntry
from penstock.log.segment import BEGIN
from penstock.log.segments import Place
from pump.replication.protocol.chain import Chain, Link
from tests.kit import simulation
from tests.kit.replicas.sweep import found_by, sweep_of
from tests.kit.simulation.__main__ import PROGRAM
from tests.kit.simulation.switches import RULES, Rules
from tests.kit.simulation.world import World

SEEDS = 16
SEEDS_OF_A_RULE = 160
SEEDS_OF_A_SWEEP = 5_000
BLOCK = 100
AT_ONCE = (
    "what a recovery finds is shipped before it is served",
    "a Commit is stored once",
    "an open transaction holds the stream",
    "decided transactions hold the stream",
    "a watermark waits for decided transactions",
    "decided transactions have the floor of a hold",
    "a disk that comes back empty is another disk",
    "what failed is opened again",
    "the address follows the entry",
)
"""Rules that the first few seeds find out; the others take up to three minutes each."""


@pytest.mark.fault(
    "etcd is put back at random under whole Pumps, with everything else that fails",
    "every acknowledged transaction comes once, after an operator's decisions if need be",
    cases="16 / 5,000 + 1 rule",
)
def test_every_acknowledged_transaction_comes_once_and_in_order_whatever_fails() -> None:
    (counts,) = sweep_of(World, 0, SEEDS, PROGRAM)
    assert counts.violations == []
    # A world in which nothing happens would prove nothing.
    assert counts.counted["transactions merged"] > 20 * SEEDS
    assert counts.counted["epochs"] > 20 * SEEDS
    assert counts.counted["disks lost"] > SEEDS


@pytest.mark.parametrize("seed", [128, 154, 345])
def test_what_was_put_back_is_not_served_in_place_of_newer_copies(seed: int) -> None:
    World(seed).run()


@pytest.mark.parametrize("seed", [10, 13, 36, 56])
def test_whatever_an_etcd_lists_that_was_put_back_each_log_is_served_again(seed: int) -> None:
    """No entry at all; newer replicas on no list; a list of lost disks; more than one of these."""
    world = World(seed, Rules(settings={"restores_etcd": 6.0}))
    world.run()
    assert world.restoring.etcds > 0


def test_the_command_that_a_failure_names_repeats_the_run_to_the_last_step() -> None:
    world = World(7, trace=True)
    world.run()
    assert world.trace is not None
    command = [sys.executable, "-m", PROGRAM, "7"]
    again = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "1"}, capture_output=True, text=True
    )
    assert again.stdout.splitlines() == [*world.trace, str(world.counted())]


def test_a_disk_that_was_put_back_lacks_nothing_of_a_log_that_began_again_on_it() -> None:
    restoring, own = World(0).restoring, Copy("pump-2", "d2")
    entry = LogEntry(epoch=16, primary=own)
    restoring.older = {("d2", "pump-2")}
    restoring.note_lists("pump-2", entry)
    assert restoring.older
    restoring.note_lists("pump-2", entry.begun_again(own, 3, 2))
    assert not restoring.older


def test_an_operator_continues_a_log_with_what_was_not_acknowledged_yet() -> None:
    restoring, link = World(0).restoring, Link(16, 16, 64, 48)
    restoring.note_acknowledged("pump-1", 0, Place(16, 32), [link])
    assert restoring._has_all(Chain([link]), "pump-1")
    assert not restoring._has_all(Chain([link._replace(end=31)]), "pump-1")
    assert not restoring._has_all(Chain([link._replace(epoch_id=49)]), "pump-1")


def test_an_operator_continues_a_log_that_has_begun_again_and_acknowledged_nothing() -> None:
    restoring, own = World(0).restoring, Copy("pump-3", "d3")
    restoring.note_acknowledged("pump-3", 0, Place(9, 64), [Link(9, 8, 64, 33)])
    entry = LogEntry(epoch=8, primary=Copy("pump-1", "d1"), ids=(33,))
    again = entry.begun_again(own, 2, 2)
    restoring.note_lists("pump-3", again)
    assert restoring._has_all(Chain([Link(0, 9, BEGIN, again.id)]), "pump-3")


@pytest.mark.parametrize("name", AT_ONCE)
def test_without_a_rule_something_goes_wrong(name: str) -> None:
    assert found_by(lambda seed: World(seed, RULES[name]), 12) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RULES if name not in AT_ONCE])
def test_without_any_rule_something_goes_wrong(name: str) -> None:
    assert found_by(lambda seed: World(seed, RULES[name]), SEEDS_OF_A_RULE) is not None


@pytest.mark.slow
def test_thousands_of_runs_break_nothing(pytestconfig: pytest.Config) -> None:
    """Continues where the last run was ended, as long as neither Pump nor simulation changed."""
    cache = pytestconfig.cache
    assert cache is not None
    key = f"penstock/simulation/{_digest()}"
    first = int(cache.get(key, 0))
    for counts in sweep_of(World, first, SEEDS_OF_A_SWEEP, PROGRAM, block=BLOCK):
        sys.__stderr__.write(f"{counts}\n") if sys.__stderr__ else None
        assert counts.violations == []
        cache.set(key, counts.end)


def _digest() -> str:
    folders = [Path(package.__file__ or "").parent for package in (pump, simulation)]
    sources = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
