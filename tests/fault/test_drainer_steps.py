"""A Drainer that dies at a named step, or at any moment; the bank's money.

Each run is a process of its own that ends by SIGKILL. In `merge`/`snapshot` a reader compares
the downstream with the ledger all the while.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from penstock.local.sql_server import SqlServer
from tests.kit.crash.forked_drainers import SETTLED, ForkedDrainers
from tests.kit.fakes.local_drainer import Way
from tests.kit.servers.binlog_server import (
    MARIADB,
    MYSQL,
    OF_EACH_FLAVOR,
    on_downstreams,
    on_servers,
)
from tests.kit.servers.fix_mariadb import drop_user_databases
from tests.kit.servers.fix_mysql import SINKS
from tests.kit.workloads.bank import Bank
from tests.kit.workloads.bank_reader import Read, check, of_mariadb, of_sqlite, reading_all_the_time

pytestmark = pytest.mark.fault

KILLED = -9
LEDGER = {"seed": 5, "transactions": 60, "large_each": 20}
ELSEWHERE = {
    "drainer.lane_committed": "statements",
    "drainer.partition_changed": "parallel",
    "drainer.partition_committed": "parallel",
    "drainer.ddl_intended": "mysql",
    "drainer.table_committed": "a lake",
    "drainer.versions_stored": "a lake",
}
"""Steps that only some ways have."""
WAYS = {
    "snapshot": partial(Way, strategy="merge", mode="snapshot"),
    "parallel": partial(Way, strategy="merge", mode="parallel"),
    "statements": partial(Way, strategy="statements", mode="snapshot"),
}


@pytest.fixture(scope="module")
def drainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedDrainers]:
    with ForkedDrainers(tmp_path_factory.mktemp("drainers") / "log") as made:
        yield made


class Downstream:
    """Where the runs write to, one ledger after the other."""

    def __init__(self, drainers: ForkedDrainers, folder: Path, server: SqlServer | None) -> None:
        self._drainers = drainers
        self._folder = folder
        self._server = server
        self._number = 0
        self.bank = Bank(**LEDGER)
        self.read: Read = lambda: None
        self.way = Way(url="", folder=folder)

    def begin(self, name: str) -> None:
        """Begin with an empty downstream, to be written in the way of that name."""
        self._number += 1
        folder = self._folder / str(self._number)
        if self._server is None:
            path = folder / "down.db"
            url, self.read = f"sqlite:///{path}", of_sqlite(path)
        else:
            drop_user_databases(self._server)
            url, self.read = self._server.url, of_mariadb(self._server)
        way = WAYS[name]
        self.way = way(url=url, folder=folder, relay=True, bytes_max=20_000)

    def run(self, *, kill_at: dict[str, int] | None = None, kill_after_s: float = 0.0) -> int:
        """Let a Drainer run; return its exit code."""
        code, _ = self._drainers.run(
            self.way, bank=LEDGER, kill_at=kill_at, kill_after_s=kill_after_s
        )
        assert code in (SETTLED, KILLED), f"{kill_at}: it ended with {code}"
        return code

    def killed_at(self, name: str, step: str, passing: int) -> None:
        """Have a run killed there; on an empty downstream if it does not come by any more."""
        if self.run(kill_at={step: passing}) == SETTLED:
            self.settled()
            self.begin(name)
            assert self.run(kill_at={step: passing}) == KILLED, f"{step} was not passed"
        if name == "snapshot":
            check(self.bank, self.read())

    def settled(self) -> None:
        assert check(self.bank, self.read()) == self.bank.last_ts


@pytest.fixture(params=["sqlite", *on_downstreams(MARIADB, kinds=OF_EACH_FLAVOR)])
def downstream(
    request: pytest.FixtureRequest, drainers: ForkedDrainers, tmp_path: Path
) -> Downstream:
    server = None if request.param == "sqlite" else request.getfixturevalue(SINKS[request.param])
    return Downstream(drainers, tmp_path, server)


def steps_of(drainers: ForkedDrainers, name: str, *, mysql: bool) -> list[str]:
    there = {name, "mysql" if mysql else "sqlite"}
    return sorted(s for s in drainers.steps if ELSEWHERE.get(s, name) in there)


@pytest.mark.fault(
    "kill -9 at every named step of a batch, a DDL, the relay log and the spool",
    "the state at the checkpoint after each death; the whole ledger at the end",
    cases="16 steps on SQLite, 17 on MariaDB",
)
@pytest.mark.main_case("sqlite")
def test_killed_at_every_step_of_a_batch_the_downstream_equals_the_ledger(
    drainers: ForkedDrainers, downstream: Downstream
) -> None:
    steps = steps_of(drainers, "snapshot", mysql=downstream._server is not None)
    assert len(steps) > 15
    random.Random(1).shuffle(steps)
    downstream.begin("snapshot")
    for step in steps:
        downstream.killed_at("snapshot", step, 1)
    assert downstream.run() == SETTLED
    downstream.settled()


@pytest.mark.fault(
    "kill -9 at every named step of a batch: between the partitions of mode `parallel`,"
    " between the queues of `statements`",
    "the whole ledger at the end",
    cases="5 + 5",
)
@pytest.mark.thorough
@pytest.mark.parametrize("kind", on_downstreams(MARIADB, kinds=OF_EACH_FLAVOR))
@pytest.mark.parametrize("name", ["parallel", "statements"])
def test_killed_between_parts_of_a_batch_the_end_is_right_all_the_same(
    drainers: ForkedDrainers, tmp_path: Path, sink_server: SqlServer, name: str
) -> None:
    downstream = Downstream(drainers, tmp_path, sink_server)
    step = {name: step for step, name in ELSEWHERE.items()}[name]
    downstream.begin(name)
    for each in (step, "drainer.checkpoint_stored", step, "drainer.transaction_committed", step):
        downstream.killed_at(name, each, 5)
    assert downstream.run() == SETTLED
    downstream.settled()


@pytest.mark.fault(
    "kills at random and a restart of MariaDB while somebody reads all the time",
    "every read has the bank's total and is the ledger's state at the checkpoint's `commit_ts`",
    cases="up to 8 deaths",
)
@pytest.mark.thorough
@pytest.mark.parametrize("kind", on_servers(MARIADB, kinds=OF_EACH_FLAVOR))
def test_money_is_constant_at_every_read_while_drainers_die_and_the_downstream_restarts(
    drainers: ForkedDrainers, tmp_path: Path, sink_server: SqlServer
) -> None:
    downstream = Downstream(drainers, tmp_path, sink_server)
    downstream.begin("snapshot")
    downstream.way = replace(downstream.way, pause_s=0.05, rows_max=10)
    chance = random.Random(2)
    with reading_all_the_time(downstream.bank, downstream.read) as reader:
        runs = 0
        while downstream.run(kill_after_s=chance.uniform(0.1, 0.8)) == KILLED and runs < 8:
            runs += 1
            if runs == 3:
                sink_server.kill()
                sink_server.start()
        downstream.run()
    downstream.settled()
    assert reader.reads > 3
    assert len(reader.stamps) > 2


@pytest.mark.fault(
    "kill -9 at every named step of a batch: at any passing of any step, or at any moment",
    "same",
    cases="0 / 100 for each of 5 ways",
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("downstream", "name"),
    # SQLite has one writer, hence nothing in parallel.
    [pytest.param(MARIADB, n, marks=pytest.mark.mariadb) for n in WAYS]
    + [pytest.param(MYSQL, "snapshot", marks=pytest.mark.mysql)]
    + [("sqlite", n) for n in WAYS if n != "parallel"],
    indirect=["downstream"],
)
def test_a_hundred_deaths_at_any_passing_of_any_step_or_moment(
    drainers: ForkedDrainers, downstream: Downstream, name: str
) -> None:
    mysql = downstream._server is not None
    chance = random.Random(f"{name} {mysql}")
    steps = steps_of(drainers, name, mysql=mysql)
    deaths = 0
    while deaths < 100:
        downstream.begin(name)
        code = KILLED
        while code == KILLED and deaths < 100:
            if chance.random() < 0.5:
                code = downstream.run(kill_at={chance.choice(steps): chance.randint(1, 12)})
            else:
                code = downstream.run(kill_after_s=chance.uniform(0.02, 0.6))
            deaths += code == KILLED
            if name == "snapshot":
                check(downstream.bank, downstream.read())
        downstream.run()
        downstream.settled()
