"""A Drainer that writes files and dies at a named step, or at any moment; the bank's ledger.

Each run is a process of its own that ends by SIGKILL. What the files hold at each moment, as a
reader sees it that shares no code with the product, is the ledger up to the savepoint: each
transaction and each DDL once, in commit order.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pb import binlog_pb2
from tests.kit.crash.forked_drainers import SETTLED, ForkedDrainers
from tests.kit.fakes.local_drainer import Way
from tests.kit.files import plain_reader
from tests.kit.workloads.bank import Bank

pytestmark = pytest.mark.fault

KILLED = -9
LEDGER = {"seed": 5, "transactions": 60, "large_each": 20}


class FilesOf:
    """Where the runs write to, one ledger after the other."""

    def __init__(self, drainers: ForkedDrainers, folder: Path) -> None:
        self._drainers = drainers
        self._folder = folder
        self._number = 0
        self.bank = Bank(**LEDGER)
        binlogs = [(ts, binlog_pb2.Binlog.FromString(data)) for ts, data in self.bank.binlogs]
        self._stamps = [ts for ts, binlog in binlogs if binlog.tp != binlog_pb2.Rollback]
        self.begin()

    def begin(self) -> None:
        """Begin with an empty folder."""
        self._number += 1
        folder = self._folder / str(self._number)
        self.files = folder / "files"
        url = f"file://{self.files}?max-file-size=10KiB"
        self._way = Way(url=url, folder=folder, strategy="events", bytes_max=20_000)

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
        """Assert that the files hold the ledger up to the savepoint; return that."""
        path = self.files / "savepoint"
        if not path.exists():
            return 0
        saved = tomllib.loads(path.read_text())
        through_ts: int = saved["commitTS"]
        assert json.loads(saved["checkpoint"])["commitTS"] == through_ts
        found = plain_reader.entries(self.files)
        assert [entry.commit_ts for entry in found] == [
            ts for ts in self._stamps if ts <= through_ts
        ]
        rows = plain_reader.replayed(found)
        state = self.bank.state_at(through_ts)
        assert {row[:3] for row in rows.get("bank.account", [])} == state.accounts
        assert Counter(row[:2] for row in rows.get("bank.entry", [])) == state.entries
        return through_ts


@pytest.fixture(scope="module")
def drainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedDrainers]:
    with ForkedDrainers(tmp_path_factory.mktemp("drainers") / "log") as made:
        yield made


@pytest.fixture
def output(drainers: ForkedDrainers, tmp_path: Path) -> FilesOf:
    return FilesOf(drainers, tmp_path)


@pytest.mark.fault(
    "kill -9 at every named step of a batch: of a Drainer that writes files",
    "after each death the files hold the ledger up to the savepoint, each transaction and DDL once",
    cases="14 steps / 100 deaths",
)
def test_killed_at_every_step_the_files_hold_each_transaction_once(output: FilesOf) -> None:
    _, steps = output.run()
    assert len(steps) > 12
    output.begin()
    for step in sorted(steps):
        code, _ = output.run(kill_at={step: min(2, steps[step])})
        if code == SETTLED:
            output.begin()
            assert output.run(kill_at={step: 1})[0] == KILLED, f"{step} was not passed"
    assert output.run()[0] == SETTLED


@pytest.mark.slow
def test_a_hundred_deaths_at_any_passing_of_any_step_or_moment(output: FilesOf) -> None:
    _, steps = output.run()
    chance = random.Random(3)
    deaths = 0
    while deaths < 100:
        output.begin()
        code = KILLED
        while code == KILLED and deaths < 100:
            if chance.random() < 0.6:
                step = chance.choice(sorted(steps))
                code, _ = output.run(kill_at={step: chance.randint(1, steps[step])})
            else:
                code, _ = output.run(kill_after_s=chance.uniform(0.02, 0.6))
            deaths += code == KILLED
        assert output.run()[0] == SETTLED
