"""A server through a source, Pumps and a Drainer into another one, killed at every turn."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from drainer.planner import Origins
from penstock.cluster.node_registry import Registry
from penstock.local.sql_server import SqlServer
from pumpclient import PumpClient
from pumpclient.mysql.verify import command as verify
from tests.kit.servers.binlog_server import MARIADB, AnyBinlogServer, on_servers
from tests.kit.servers.fix_drainer import DrainerProcess
from tests.kit.servers.fix_pump import streamed
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.fix_source import LONG_S, SourceProcess, rows_of
from tests.kit.wait import eventually
from tests.kit.workloads.server_writers import TABLES, ServerWriter, writing_on

pytestmark = [pytest.mark.fault, pytest.mark.thorough]

# A source that dies within a DDL leaves its Prewrite to the Pump, which waits for so long: more
# than a DDL may take to be decided.
TXN_TIMEOUT_S = 130

# The last one leaves all since the last checkpoint to be sent again.
SHORT = ("source.before_decided=kill@4", "source.after_decided=kill@4")
LONG = (
    "source.after_ddl=kill@1",
    "source.before_ddl=kill@1",
    "source.before_checkpoint=kill@2",
    *SHORT,
)


def killed_at(points: tuple[str, ...], source: SourceProcess) -> None:
    for point in points:
        source.is_killed_at(point)


def brings(source: SourceProcess) -> bool:
    """Return whether its present run has brought anything; fail where it waits for somebody."""
    status = source.status()
    assert source.is_running, source.log_tail()
    assert status.get("state") != "failed", status
    return bool(status.get("transactions", 0) > 0)


def killed_at_random(source: SourceProcess, drainer: DrainerProcess, chance: random.Random) -> None:
    """Kill both, each a while after it has begun to bring something; the Drainer comes back."""
    source.start()
    eventually(lambda: brings(source), LONG_S)
    seen = drainer.checkpoint_ts()
    eventually(lambda: drainer.checkpoint_ts() > seen, LONG_S)
    time.sleep(chance.random() / 2)
    drainer.kill()
    time.sleep(chance.random() / 2)
    source.kill()
    drainer.start()


def repeated(drainer: DrainerProcess) -> int:
    """Return how many transactions its present run has left out as known by their origins."""
    return int(drainer.status().details["repeated_transactions"])


def all_arrived(etcd: Any, url: str, pumps: list[Any], drainer: DrainerProcess) -> int:
    """Wait until all is downstream; return how much of the Pumps' streams repeats earlier parts."""
    with PumpClient.connect(url) as client:
        until_ts = client.session.oracle.get_ts()
    drainer.wait_until(until_ts, LONG_S + TXN_TIMEOUT_S)
    cluster_id, seen = Registry(etcd).cluster_id(), Origins({})
    binlogs = [binlog for pump in pumps for binlog in streamed(pump, cluster_id, until_ts)]
    for binlog in sorted(binlogs, key=lambda binlog: binlog.commit_ts):
        if not seen.is_repeated(binlog.commit_ts, binlog.origin):
            seen.note(binlog.origin)
    return seen.repeated


def verified_while_behind(
    source: SourceProcess, server: SqlServer, down: SqlServer, folder: Path
) -> None:
    """Let `penstock verify` begin while rows are missing: it waits until the Drainer has them."""
    source.stop()
    server.run("INSERT INTO shop.sale (id) VALUES (-1)", "INSERT INTO shop.visit (who) VALUES (-1)")
    command = [sys.executable, "-m", verify.__name__, "--wait-s", str(LONG_S)]
    command += ["--upstream", server.url, "--downstream", down.url, "--tables", "shop.*"]
    printed = folder / "verify"
    with printed.open("w") as out:
        verifying = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        eventually(lambda: "waiting until the downstream is at" in printed.read_text(), LONG_S)
        source.start()
        code = verifying.wait(2 * LONG_S)
    finally:
        verifying.kill()
        verifying.wait()
    assert (code, printed.read_text().endswith(": equal\n")) == (0, True), printed.read_text()


def repaired(server: SqlServer, down: SqlServer) -> None:
    """Let `penstock verify` repair what somebody did to the downstream, beside the Drainer."""
    keys = [key for (key,) in server.query("SELECT id FROM shop.sale ORDER BY id LIMIT 3")]
    down.run(
        f"UPDATE shop.sale SET amount = 77 WHERE id = {keys[0]}",
        f"DELETE FROM shop.sale WHERE id = {keys[1]}",
        "INSERT INTO shop.sale (id, code) VALUES (-7, 'no one sold this')",
    )
    arguments = ["--upstream", server.url, "--downstream", down.url, "--tables", "shop.sale"]
    arguments += ["--wait-s", "0"]
    assert verify.main(arguments) == 1
    assert verify.main([*arguments, "--repair", "--yes"]) == 0
    assert rows_of(down, "shop.sale") == rows_of(server, "shop.sale")


def ways() -> list[Any]:
    """Return a short way to die on each server, and a long one on the first."""
    short = [
        pytest.param(each.values[0], SHORT, 1, marks=each.marks) for each in on_servers(MARIADB)
    ]
    return [*short, pytest.param(MARIADB, LONG, 6, marks=[pytest.mark.mariadb, pytest.mark.slow])]


@pytest.mark.fault(
    "`penstock source` (at three moments) and the Drainer (once) are killed between two"
    " MariaDBs while sellers sell and alter tables",
    "tables equal, those without a key too; what came again is counted by the Drainer;"
    " `penstock verify` waits for it",
    cases="4 / 20",
)
@pytest.mark.parametrize(("kind", "points", "kills"), ways())
def test_tables_with_and_without_keys_are_equal_whatever_is_killed(
    points: tuple[str, ...],
    kills: int,
    replication: Replication,
    sink_server: SqlServer,
    source_server: AnyBinlogServer,
    tmp_path: Path,
) -> None:
    chance, server = random.Random(len(points)), source_server
    settings: dict[str, Any] = {"txn_timeout_s": TXN_TIMEOUT_S}
    pumps = [replication.add_pump(**settings) for _ in range(2)]
    drainer = replication.drain_into(sink_server.url, started=False, batch_rows_max=40)
    drainer.spawn()
    often: dict[str, Any] = {"sync_group_count_max": 8}
    source = SourceProcess(tmp_path / "source", replication.url, server, **often)
    writers: list[ServerWriter]
    try:
        with writing_on(server, 2, seed=len(points)) as writers:
            killed_at(points[:-1], source)
            drainer.wait_for("serves at")
            for _ in range(kills):
                killed_at_random(source, drainer, chance)
            killed_at(points[-1:], source)
        source.start()
        source.catch_up(server)
        in_streams = all_arrived(replication.etcd, replication.url, pumps, drainer)
        assert sum(writer.transactions for writer in writers) > 100
        for table in TABLES:
            assert rows_of(sink_server, table) == rows_of(server, table)
        assert 0 < repeated(drainer) <= in_streams
        verified_while_behind(source, server, sink_server, tmp_path)
        repaired(server, sink_server)
    finally:
        source.stop()
