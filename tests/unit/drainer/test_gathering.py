"""Changes gather for a lake until its interval has passed, or until there are enough of them."""

import asyncio
from pathlib import Path

import pytest

from tests.kit.delta.lake_reader import LakeReader
from tests.kit.fakes.local_drainer import Way, run_drainer
from tests.kit.workloads.bank import DDL, LATER, Bank

DDL_STEPS = len(DDL) + len(LATER)


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        # A batch between two DDL, at most, and one that waits for the interval.
        ("interval=1s", DDL_STEPS, 2 * DDL_STEPS),
        pytest.param("interval=0", 3 * DDL_STEPS, 99, marks=pytest.mark.slow),
    ],
)
def test_batches_are_as_many_as_the_interval_allows(
    tmp_path: Path, options: str, least: int, most: int
) -> None:
    bank = Bank(3, transactions=40)
    way = Way(url=f"delta://{tmp_path}/lake?{options}", folder=tmp_path / "d", rows_max=5)
    checkpoint = asyncio.run(run_drainer(bank, way))
    assert checkpoint.commit_ts == bank.last_ts
    reader = LakeReader(tmp_path / "lake")
    assert least <= len(reader.states()) <= most
    accounts = reader.table("bank", "account").select(["id", "owner", "balance"]).rows()
    assert set(accounts) == bank.state_at(bank.last_ts).accounts
