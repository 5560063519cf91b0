"""A downstream that is away, locked, full of others, changed or unwilling.

A Drainer's pipeline in this process, fed from a ledger, writes into a real server.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from drainer.apply.pipeline import Pipeline
from drainer.sinks.protocol import Refused
from penstock.local.sql_server import SqlServer
from tests.kit.fakes.local_drainer import Way, run_drainer
from tests.kit.servers.binlog_server import MARIADB, OF_EACH_FLAVOR, on_servers
from tests.kit.wait import eventually, present
from tests.kit.workloads.bank import Bank
from tests.kit.workloads.bank_reader import check, of_mariadb, reading_all_the_time

pytestmark = [
    pytest.mark.fault,
    pytest.mark.parametrize("kind", on_servers(MARIADB, kinds=OF_EACH_FLAVOR)),
]

WITHIN_S = 90
PLAIN = "plain"
LEDGER = {"seed": 8, "transactions": 60, "large_each": 20}


class LocalDrainer:
    """A Drainer's run in a thread."""

    def __init__(self, bank: Bank, way: Way) -> None:
        self.failure: BaseException | None = None
        self._pipeline: Pipeline | None = None
        self._thread = threading.Thread(target=self._run, args=(bank, way))
        self._thread.start()

    def _begun(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def _run(self, bank: Bank, way: Way) -> None:
        try:
            asyncio.run(run_drainer(bank, way, lambda pipeline, _: self._begun(pipeline)))
        except BaseException as error:
            self.failure = error

    @property
    def checkpoint_ts(self) -> int:
        return self._pipeline.progress.checkpoint.commit_ts if self._pipeline else 0

    def waits_for(self) -> str:
        assert self.failure is None, self.failure
        found = self._pipeline
        return found.progress.facts().downstream_waits_for if found else ""

    def ended(self) -> None:
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure


@contextmanager
def killed(server: SqlServer) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def read_only(server: SqlServer) -> Iterator[None]:
    server.query("SET GLOBAL read_only = 1")
    yield
    server.query("SET GLOBAL read_only = 0")


@contextmanager
def locked(server: SqlServer) -> Iterator[None]:
    with closing(server.connect(autocommit=False)) as other:
        other.query("SELECT * FROM bank.account FOR UPDATE")
        yield
        other.rollback()


@contextmanager
def crowded(server: SqlServer) -> Iterator[None]:
    with ExitStack() as stack:
        other = stack.enter_context(closing(server.connect()))
        other.query("SET GLOBAL max_connections = 10")
        for _ in range(30):
            hang_up(server, other)
            with suppress(pymysql.err.OperationalError):  # The Drainer was quicker.
                stack.enter_context(closing(pymysql.connect(**plain(server))))
        yield
        other.query("SET GLOBAL max_connections = 100")


def plain(server: SqlServer) -> dict[str, Any]:
    password = server.password
    return {"host": server.host, "port": server.port, "user": "crowd", "password": password}


def hang_up(server: SqlServer, connection: Any = None) -> int:
    """Kill the Drainer's connections; return how many there were."""
    with ExitStack() as stack:
        mine = connection or stack.enter_context(closing(server.connect()))
        with mine.cursor() as cursor:
            cursor.execute(f"SELECT id FROM information_schema.processlist WHERE user = '{PLAIN}'")
            found = [row[0] for row in cursor.fetchall()]
            for each in found:
                with suppress(pymysql.err.MySQLError):  # It may be gone already.
                    cursor.execute(f"KILL {each}")
    return len(found)


@pytest.fixture
def way(sink_server: SqlServer, tmp_path: Path) -> Iterator[Way]:
    """How to write there, with an account that may do no more than a Drainer needs."""
    for user in (PLAIN, "crowd"):
        sink_server.query(f"DROP USER IF EXISTS '{user}'@'%'")
        sink_server.query(f"CREATE USER '{user}'@'%' IDENTIFIED BY '{sink_server.password}'")
        rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX"
        sink_server.query(f"GRANT {rights} ON *.* TO '{user}'@'%'")
    url = sink_server.url.replace(f"//{sink_server.user}:", f"//{PLAIN}:")
    sink_server.query("SET GLOBAL innodb_lock_wait_timeout = 1")
    yield Way(url=url, folder=tmp_path, run_binlogs=1, pause_s=0.06)
    sink_server.query("SET GLOBAL innodb_lock_wait_timeout = 5")
    for user in (PLAIN, "crowd"):
        sink_server.query(f"DROP USER '{user}'@'%'")


TROUBLES = {
    "killed": (killed, "connect", 0.5),
    "read-only": (read_only, "read-only", 0.5),
    "locked": (locked, "Lock wait timeout", 0.5),
    "too many connections": (crowded, "Too many connections", 0.5),
    "away for a minute": (killed, "connect", 60.0),
}


@pytest.mark.fault(
    "MariaDB killed; `read_only`; all accounts locked by another; no place for a connection;"
    " away for a minute",
    "waits with growing pauses, `downstream_waits_for` in the status says for what, the"
    " checkpoint stands, it continues by itself",
    cases="4 / 5",
)
@pytest.mark.main_case("killed")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if lasts_s > 1 else [])
        for name, (_, _, lasts_s) in TROUBLES.items()
    ],
)
def test_the_drainer_waits_says_for_what_and_continues_by_itself(
    sink_server: SqlServer, way: Way, name: str
) -> None:
    trouble, words, lasts_s = TROUBLES[name]
    bank = Bank(**LEDGER)
    drainer = LocalDrainer(bank, way)
    eventually(lambda: drainer.checkpoint_ts >= bank.first_ts, WITHIN_S)
    with trouble(sink_server):
        eventually(lambda: words in drainer.waits_for(), WITHIN_S)
        held_ts = drainer.checkpoint_ts
        time.sleep(lasts_s)
        assert drainer.checkpoint_ts == held_ts
    drainer.ended()
    assert drainer.waits_for() == "nothing"
    assert check(bank, of_mariadb(sink_server)()) == bank.last_ts


@pytest.mark.fault(
    "connections killed, deadlocks with another session, while somebody reads",
    "the same",
    cases="40 rounds",
)
@pytest.mark.thorough
def test_killed_connections_and_deadlocks_change_nothing_that_anybody_reads(
    sink_server: SqlServer, way: Way
) -> None:
    bank = Bank(**LEDGER)
    with reading_all_the_time(bank, of_mariadb(sink_server)) as reader:
        drainer = LocalDrainer(bank, way)
        eventually(lambda: drainer.checkpoint_ts >= bank.first_ts, WITHIN_S)
        deadlocks = cut = 0
        with closing(sink_server.connect(autocommit=False)) as other:
            for number in range(40):
                try:
                    for key in (20, 10, 1):
                        other.query(f"UPDATE bank.account SET balance = balance WHERE id = {key}")
                        time.sleep(0.005)
                    other.rollback()
                except pymysql.err.OperationalError:
                    other.rollback()
                    deadlocks += 1
                if number % 8 == 4:
                    cut += hang_up(sink_server)
        drainer.ended()
    assert cut
    assert reader.reads
    assert check(bank, of_mariadb(sink_server)()) == bank.last_ts


def run(bank: Bank, way: Way) -> None:
    LocalDrainer(bank, replace(way, pause_s=0.0)).ended()


def large_ts(bank: Bank) -> list[int]:
    return [ts for ts, data in bank.binlogs if len(data) > 20_000]


@pytest.mark.fault(
    "a value is too long for a column altered by hand",
    "stops; table, row and the range of `commit_ts` are named, nothing after it is applied; a"
    " repair, or `ignore-txn-commit-ts`, lets it continue",
    cases="3",
)
@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["merge", "statements"])
def test_a_row_that_does_not_fit_stops_the_drainer_and_a_repair_lets_it_continue(
    sink_server: SqlServer, way: Way, strategy: str
) -> None:
    way = replace(way, strategy=strategy)
    bank, (poison_ts, *_) = Bank(**LEDGER), large_ts(Bank(**LEDGER))
    run(Bank(**LEDGER).end_before(poison_ts - 50), way)
    sink_server.query("ALTER TABLE bank.entry MODIFY note VARCHAR(100)")
    with pytest.raises(Refused, match=r"`bank`\.`entry`.*Data too long for column 'note'") as found:
        run(bank, way)
    assert f"after commit_ts {_checkpoint_ts(sink_server)} and up to" in str(found.value)
    assert _checkpoint_ts(sink_server) < poison_ts
    if strategy == "merge":
        check(bank, of_mariadb(sink_server)())
    with pytest.raises(Refused, match=f"up to {poison_ts}"):
        run(bank, replace(way, rows_max=1))
    sink_server.query("ALTER TABLE bank.entry MODIFY note VARCHAR(2000)")
    run(bank, way)
    assert check(bank, of_mariadb(sink_server)()) == bank.last_ts


@pytest.mark.thorough
def test_transactions_that_do_not_fit_are_left_out_when_named(
    sink_server: SqlServer, way: Way
) -> None:
    ledger = LEDGER | {"seed": 2}  # Here no later one needs an owner that they let go.
    bank, poison = Bank(**ledger), large_ts(Bank(**ledger))
    run(Bank(**ledger).end_before(poison[0]), way)
    sink_server.query("ALTER TABLE bank.entry MODIFY note VARCHAR(100)")
    with pytest.raises(Refused):
        run(bank, way)
    run(bank, replace(way, ignored=tuple(map(str, poison))))
    assert _checkpoint_ts(sink_server) == bank.last_ts
    assert sink_server.query("SELECT COUNT(*) FROM bank.entry WHERE note LIKE 'xx%'") == [(0,)]


@pytest.mark.fault(
    "`merge`: rows deleted or changed by hand",
    "not noticed; whole again once upstream writes them",
    cases="5 rows",
)
@pytest.mark.thorough
def test_merge_writes_whole_rows_so_what_it_touches_is_whole_again(
    sink_server: SqlServer, way: Way
) -> None:
    bank = Bank(**LEDGER)
    run(Bank(**LEDGER).end_before(bank.first_ts + 100), way)
    sink_server.query("DELETE FROM bank.account WHERE id IN (1, 2, 3)")
    sink_server.query("UPDATE bank.account SET balance = 5, owner = NULL WHERE id IN (4, 5)")
    run(bank, way)
    found = present(of_mariadb(sink_server)())
    assert found[1].accounts == bank.state_at(bank.last_ts).accounts


@pytest.mark.fault(
    "`merge`: a row put there by hand holds a unique value that upstream writes",
    "stops; both rows, the index and the range named; continues once repaired",
    cases="2 modes; 4 tables × 2 sql-modes",
)
@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["snapshot", "parallel"])
def test_a_conflicting_row_that_holds_a_unique_value_stops_merge_which_names_both_rows(
    sink_server: SqlServer, way: Way, mode: str
) -> None:
    way = replace(way, mode=mode)
    bank = Bank(**LEDGER)
    run(Bank(**LEDGER).end_before(bank.first_ts + 100), way)
    sink_server.query("UPDATE bank.account SET id = 77 WHERE id = 1")
    message = (
        r"row `id` = 77 of `bank`\.`account` holds a value of the row `id` = \d+: owner is unique"
    )
    with pytest.raises(Refused, match=message) as found:
        run(bank, way)
    assert f"after commit_ts {_checkpoint_ts(sink_server)} and up to" in str(found.value)
    sink_server.query("UPDATE bank.account SET id = 1 WHERE id = 77")
    run(bank, way)
    assert check(bank, of_mariadb(sink_server)()) == bank.last_ts


def _checkpoint_ts(server: SqlServer) -> int:
    return present(of_mariadb(server)())[0]
