"""What becomes of an insert of a key that is there already, as the guide says."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from drainer.sinks.protocol import Refused
from tests.kit.fakes.local_drainer import Way, run_drainer
from tests.kit.workloads.bank import Bank


def test_merge_replaces_the_row_and_statements_stop_at_it(tmp_path: Path) -> None:
    bank, database = Bank(1, transactions=10), tmp_path / "bank.db"
    row = bank.insert_again()
    way = Way(url=f"sqlite:///{database}", folder=tmp_path / "merge")
    assert asyncio.run(run_drainer(bank, way)).commit_ts == bank.last_ts
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute(
            'SELECT id, owner, balance FROM "bank.account" WHERE id = ?', (row[0],)
        )
        assert found.fetchall() == [row]
    url = f"sqlite:///{tmp_path / 'other.db'}"
    way = Way(url=url, folder=tmp_path / "statements", strategy="statements")
    with pytest.raises(Refused, match=rf"`id` = {row[0]}.*compare the downstream"):
        asyncio.run(run_drainer(bank, way))
