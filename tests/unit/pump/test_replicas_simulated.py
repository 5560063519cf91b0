"""The copies of a log in simulated worlds: nothing breaks, and every rule is needed for that."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import pump.replication.protocol as protocol
from tests.kit import replicas
from tests.kit.replicas.sweep import Counts, found_at, sweep
from tests.kit.replicas.switches import RULES, ShipsWithoutAsking
from tests.kit.replicas.world import Rules

SEEDS = 2_000
SEEDS_OF_A_RULE = 5_000
SEEDS_OF_A_SWEEP = 1_000_000


def total(blocks: Sequence[Counts], what: str) -> int:
    return sum(counts.counted[what] for counts in blocks)


def test_no_acknowledged_group_is_lost_whatever_fails() -> None:
    blocks = list(sweep(0, SEEDS))
    assert [line for counts in blocks for line in counts.violations] == []
    # A world in which nothing happens would prove nothing.
    assert total(blocks, "frames acknowledged") > 5 * SEEDS
    assert total(blocks, "epochs") > 3 * SEEDS
    assert total(blocks, "listed disks lost") > SEEDS / 8
    assert total(blocks, "etcds put back") > SEEDS / 20
    assert total(blocks, "older disks put back") > SEEDS / 100
    assert total(blocks, "copies begun again") > SEEDS / 12


@pytest.mark.parametrize("name", RULES)
def test_without_a_rule_something_is_lost_or_comes_twice(name: str) -> None:
    assert found_at(RULES[name], SEEDS_OF_A_RULE) is not None


def test_a_primary_that_is_wrong_about_its_copies_is_put_right_by_them() -> None:
    (counts,) = sweep(0, 200, Rules("ships without asking", primary=ShipsWithoutAsking))
    assert counts.violations == []


@pytest.mark.slow
def test_a_million_runs_break_nothing(pytestconfig: pytest.Config) -> None:
    """Continues where the last run was ended, as long as neither core nor simulation changed."""
    cache = pytestconfig.cache
    assert cache is not None
    key = f"penstock/replicas/{_digest()}"
    for counts in sweep(int(cache.get(key, 0)), SEEDS_OF_A_SWEEP):
        sys.__stderr__.write(f"{counts}\n") if sys.__stderr__ else None
        assert counts.violations == []
        cache.set(key, counts.end)


def _digest() -> str:
    folders = [Path(package.__file__ or "").parent for package in (protocol, replicas)]
    sources = [path for folder in folders for path in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
