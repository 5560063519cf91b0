"""TiDB-Binlog's own reparo restores our files.

The Go module proxy does not serve TiDB-Binlog, so nothing here can build it. The tests are there
where `TIDB_BINLOG_REPARO` is the path of that program, as the Drainer's in
`tests/bench/tidb_upstream.py`.
"""

import asyncio
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from tests.integration.test_reparo import rows_of, written
from tests.kit.fakes.local_drainer import Way, run_drainer
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.workloads.bank import Bank
from tests.kit.workloads.forty_types import FortyTypes

PROGRAM = os.environ.get("TIDB_BINLOG_REPARO", "")

pytestmark = [pytest.mark.tidb, pytest.mark.mariadb]

if PROGRAM:

    def restored(files: Path, server: MariadbServer) -> None:
        config = files.with_name(f"{files.name}.toml")
        # Its workers deadlock with one another on rows that exchange their unique values.
        config.write_text(
            f'data-dir = "{files}"\ndest-type = "mysql"\nworker-count = 1\n'
            '[dest-db]\nhost = "127.0.0.1"\n'
            f'port = {server.port}\nuser = "root"\npassword = ""\n'
        )
        command = [PROGRAM, "-config", str(config)]
        subprocess.run(command, check=True, capture_output=True, timeout=120, env={"TZ": "UTC"})

    def test_forty_types_come_back_as_our_drainer_applies_them(
        tmp_path: Path, mariadb: MariadbServer
    ) -> None:
        kinds = FortyTypes()
        way = Way(url=mariadb.url, folder=tmp_path / "direct")
        asyncio.run(run_drainer(cast(Bank, kinds), way))
        wanted = rows_of(mariadb)
        mariadb.drop_user_databases()
        restored(written(kinds, tmp_path, ""), mariadb)
        assert rows_of(mariadb) == wanted

    def test_a_bank_with_ddl_and_large_transactions_comes_back(
        tmp_path: Path, mariadb: MariadbServer
    ) -> None:
        bank = Bank(8, transactions=60, large_each=20)
        restored(written(bank, tmp_path), mariadb)
        state = bank.state_at(bank.last_ts)
        accounts = mariadb.query("SELECT id, owner, balance FROM bank.account")
        entries = mariadb.query("SELECT account, amount FROM bank.entry")
        assert frozenset(map(tuple, accounts)) == state.accounts
        assert Counter(map(tuple, entries)) == state.entries
