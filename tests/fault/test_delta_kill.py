"""A Drainer that writes a lake and dies at a named step, or at any moment; the bank's ledger.

Each run is a process of its own that ends by SIGKILL. What Polars reads at each moment, by the
versions that the lake names for a commit_ts, is the bank at that commit_ts: whole and once. After
the last run that holds for every commit_ts that the lake has a row for. Of a change log it is what
the changes, one after the other, come to: each of them must meet the row that is there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.crash.forked_drainers import SETTLED, ForkedDrainers
from tests.kit.delta.lake_reader import LakeReader, Versions
from tests.kit.fakes.local_drainer import Way
from tests.kit.workloads.bank import Bank

pytestmark = [pytest.mark.fault, pytest.mark.thorough]

KILLED = -9
LEDGER = {"seed": 5, "transactions": 24, "large_each": 10}


class LakeOf:
    """Where the runs write to, one ledger after the other."""

    options, strategy = "interval=0", "merge"

    def __init__(self, drainers: ForkedDrainers, folder: Path) -> None:
        self._drainers = drainers
        self._folder = folder
        self._number = 0
        self.bank = Bank(**LEDGER)
        self.begin()

    def begin(self) -> None:
        """Begin with an empty folder."""
        self._number += 1
        folder = self._folder / str(self._number)
        self.lake = LakeReader(folder / "lake")
        url = f"delta://{folder}/lake?{self.options}"
        self._way = Way(url=url, folder=folder, strategy=self.strategy, bytes_max=20_000)

    def run(
        self, *, kill_at: dict[str, int] | None = None, kill_after_s: float = 0.0
    ) -> tuple[int, Counter[str]]:
        """Let a Drainer run, and check what it leaves; return its exit code and its steps."""
        code, steps = self._drainers.run(
            self._way, bank=LEDGER, kill_at=kill_at, kill_after_s=kill_after_s
        )
        assert code in (SETTLED, KILLED), f"{kill_at}: it ended with {code}"
        through_ts = self.check()
        assert code == KILLED or through_ts == self.bank.last_ts
        return code, steps

    def check(self) -> int:
        """Assert that the lake is the bank at its checkpoint; return that."""
        through_ts = int(self.lake.checkpoint().get("commitTS", 0))
        states = self.lake.states()
        known = max((ts for ts in states if ts <= through_ts), default=0)
        assert self.bank.state_at(known) == self.bank.state_at(through_ts)
        for ts in sorted(ts for ts in states if ts >= known):
            self.check_state(ts, states[ts])
        return through_ts

    def check_all(self) -> None:
        """Assert that each state that the lake promises is the bank's of that moment."""
        for ts, versions in self.lake.states().items():
            self.check_state(ts, versions)

    def check_state(self, ts: int, versions: Versions) -> None:
        state = self.bank.state_at(ts)
        accounts = self._rows(versions, "account", ["id", "owner", "balance"])
        assert set(accounts) == state.accounts
        assert len(accounts) == len(state.accounts)
        assert Counter(self._rows(versions, "entry", ["account", "amount"])) == state.entries

    def _rows(self, versions: Versions, name: str, columns: list[str]) -> list[tuple[object, ...]]:
        version = versions.get(("bank", name))
        if version is None:
            return []
        return self.lake.table("bank", name, version).select(columns).rows()


class ChangesOf(LakeOf):
    """The same for change logs."""

    options, strategy = "interval=0&mode=changes", "events"

    def _rows(self, versions: Versions, name: str, columns: list[str]) -> list[tuple[object, ...]]:
        version = versions.get(("bank", name))
        if version is None:
            return []
        found: Counter[tuple[object, ...]] = Counter()
        places = set()
        for line in self.lake.log("bank", name, version):
            places.add((line["_commit_ts"], line["_seq"]))
            row = tuple(line[column] for column in columns)
            if line["_op"] in ("delete", "update_preimage"):
                assert found[row], f"{line} is not there"
                found[row] -= 1
            else:
                found[row] += 1
        assert len(places) == self.lake.table("bank", name, version).height
        return list(found.elements())


@pytest.fixture(scope="module")
def drainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedDrainers]:
    with ForkedDrainers(tmp_path_factory.mktemp("drainers") / "log") as made:
        yield made


@pytest.fixture(params=[LakeOf, ChangesOf], ids=["mirror", "changes"])
def lake(request: pytest.FixtureRequest, drainers: ForkedDrainers, tmp_path: Path) -> LakeOf:
    made: LakeOf = request.param(drainers, tmp_path)
    return made


@pytest.mark.fault(
    "the Drainer is killed between two tables",
    "the batch is completed by the next run, and is there once",
    cases="2",
)
def test_killed_between_two_tables_a_batch_is_there_once_and_whole(lake: LakeOf) -> None:
    # The batch's first table has it, its second has not.
    assert lake.run(kill_at={"drainer.table_committed": 6})[0] == KILLED
    assert lake.run()[0] == SETTLED
    lake.check_all()


@pytest.mark.fault(
    "it is killed at every step, a hundred times at any step or moment",
    "the same; at the end each state that was promised is upstream's",
    cases="0 / 250",
)
@pytest.mark.slow
def test_killed_at_every_step_the_lake_is_the_bank_at_its_checkpoint(lake: LakeOf) -> None:
    _, steps = lake.run()
    assert len(steps) > 12
    lake.check_all()
    lake.begin()
    for step in sorted(steps):
        code, _ = lake.run(kill_at={step: min(2, steps[step])})
        if code == SETTLED:
            lake.begin()
            assert lake.run(kill_at={step: 1})[0] == KILLED, f"{step} was not passed"
    assert lake.run()[0] == SETTLED
    lake.check_all()


@pytest.mark.slow
def test_a_hundred_deaths_at_any_passing_of_any_step_or_moment(lake: LakeOf) -> None:
    _, steps = lake.run()
    chance = random.Random(3)
    deaths = 0
    while deaths < 100:
        lake.begin()
        code = KILLED
        while code == KILLED and deaths < 100:
            if chance.random() < 0.6:
                step = chance.choice(sorted(steps))
                code, _ = lake.run(kill_at={step: chance.randint(1, steps[step])})
            else:
                code, _ = lake.run(kill_after_s=chance.uniform(0.1, 3.0))
            deaths += code == KILLED
        assert lake.run()[0] == SETTLED
        lake.check_all()
