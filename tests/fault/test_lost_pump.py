"""A Pump's disk is gone. No one continues in silence; what is lost has a name.

Real Pumps and a real Drainer; each row is a transaction, so what is missing downstream is known by
its commit_ts.
"""

import shutil
import sqlite3
from pathlib import Path

import pytest

from penstock.cluster.node_registry import Registry
from penstock.ctl.commands import main
from pumpclient import PumpClient
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.pages import asked, scraped
from tests.kit.wait import eventually

pytestmark = [pytest.mark.fault, pytest.mark.thorough]


class Writer:
    """Writes a row per transaction and remembers its commit_ts."""

    def __init__(self, client: PumpClient) -> None:
        self._client = client
        self.commit_ts: dict[int, int] = {}
        client.execute_ddl("CREATE DATABASE lost")
        client.execute_ddl("CREATE TABLE lost.t (id INT PRIMARY KEY)")

    def write(self, rows: int) -> int:
        for _ in range(rows):
            with self._client.begin("lost") as txn:
                txn.insert("t", [len(self.commit_ts) + 1])
            assert txn.commit_ts is not None
            self.commit_ts[len(self.commit_ts) + 1] = txn.commit_ts
        return max(self.commit_ts.values())


def downstream(path: Path) -> set[int]:
    connection = sqlite3.connect(path)
    try:
        return {row for (row,) in connection.execute('SELECT id FROM "lost.t"')}
    finally:
        connection.close()


@pytest.mark.fault(
    "a Pump's disk is gone for good",
    "the Drainer stops at its low water and names Pump, timestamp and condition in log,"
    " status and metrics; `penstock ctl lost-pump` refuses while it may be alive, without its"
    " name, and with more than each Drainer has; then the stream continues, what is missing"
    " lies in the range that was named, and the Pump is refused when it returns",
    cases="1, with 70 transactions and 5 refusals",
)
def test_a_lost_pump_stops_the_drainer_until_what_it_held_is_declared_lost(  # noqa: PLR0915  # One story.
    replication: Replication, capsys: pytest.CaptureFixture[str]
) -> None:
    path = replication.path
    replication.add_pump()
    second = replication.add_pump()
    drainer = replication.add_drainer()

    def lost_pump(*more: str) -> tuple[int, str]:
        code = main(["lost-pump", "pump-2", "--etcd-urls", replication.url, *more])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    client = replication.connect()
    writer = Writer(client)
    drainer.wait_until(writer.write(20))
    code, text = lost_pump("--accept-loss-after", "0", "--confirm", "pump-2")
    assert (code, "pump-2 is alive" in text) == (2, True), text
    drainer.stop()
    before_ts = drainer.checkpoint_ts()
    writer.write(40)  # Some of them are on the second Pump only.
    second.kill()
    shutil.rmtree(second.data_dir)
    after_death_ts = writer.write(10)

    drainer.start()
    drainer.wait_for(r"has waited \d+ s for Pump pump-2 .* at low water \d+")
    details = drainer.status().details
    assert "pump-2 (dead" in details["held_by"], details
    received_ts = int(details["pump pump-2 received_ts"])
    assert int(details["low_water"]) == received_ts >= before_ts
    # First it may say that Spark is starting.
    ready, waits = f"{details['status_pages']}readyz", "the merge waits for Pumps: pump-2 (dead"
    eventually(lambda: asked(ready)[1].startswith(waits), 60)
    assert asked(ready)[0] == 503
    metrics = scraped(details["status_pages"])
    assert metrics["penstock_drainer_pump_holds_low_water{nodeID=pump-2}"] == 1
    assert metrics["penstock_drainer_pump_condition{condition=dead,nodeID=pump-2}"] == 1
    assert metrics["binlog_drainer_event{type=Insert}"] == 0
    assert max(writer.commit_ts[row] for row in downstream(path)) <= received_ts

    # Its heartbeat is still fresh for a while; then the ranges are named.
    eventually(lambda: "is alive" not in lost_pump("--accept-loss-after", "0")[1], 60)
    code, text = lost_pump("--accept-loss-after", str(received_ts))
    assert (code, f"drainer drainer-1 has received it up to there: {received_ts}" in text) == (
        2,
        True,
    ), text
    assert "--confirm pump-2" in text
    code, text = lost_pump("--accept-loss-after", str(received_ts + 1), "--confirm", "pump-2")
    assert code == 2, text
    assert f"is lost with --accept-loss-after {received_ts}" in text
    assert Registry(replication.etcd).lost() == {}
    code, text = lost_pump("--accept-loss-after", str(received_ts), "--confirm", "pump-2")
    assert code == 0, text

    drainer.wait_for(r"Pump pump-2 was declared lost at .* the merge continues without it")
    drainer.wait_until(after_death_ts)
    assert "lost, declared lost at" in drainer.status().details["pump pump-2"]
    up_to_ts = Registry(replication.etcd).lost()["pump-2"].up_to_ts
    missing = set(writer.commit_ts) - downstream(path)
    assert missing
    assert all(received_ts < writer.commit_ts[row] <= up_to_ts for row in missing)
    assert all(row <= 60 for row in missing), "what was written to the others arrives"

    again = second.spawn()
    assert again.wait(60) == 2
    assert "was declared lost" in again.log_text()
    third = replication.add_pump()
    assert third.status().state == "online"
    drainer.wait_until(writer.write(20))
    assert set(writer.commit_ts) - downstream(path) == missing
