"""A program that reads the stream is killed, and Pumps with it: its audit has each row once."""

import random
import time
from pathlib import Path

import pytest

from penstock.cluster.node_registry import NodeKind, Registry
from pumpclient import Options
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually
from tests.kit.workloads.judged_stream import WAIT_S, audit, audited, read_up_to
from tests.kit.workloads.random_writer import RandomWriter, writing_meanwhile

pytestmark = pytest.mark.fault


def _alter(writer: RandomWriter, round_number: int) -> None:
    if round_number % 12 == 0:
        writer.execute_ddl(f"CREATE TABLE shop.extra_{round_number} (id INT PRIMARY KEY)")


@pytest.mark.fault(
    "a program that reads the stream is killed under load, and a Pump with it, while tables"
    " are created",
    "the rows of its audit, played, are those of the writers; each change is there once",
    cases="1 / 12",
)
@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 12])
def test_an_audit_that_is_killed_again_and_again_has_each_change_once(
    nodes: Nodes, tmp_path: Path, kills: int
) -> None:
    rng, path = random.Random(kills), tmp_path / "audit.db"
    pumps = [nodes.add_pump(), nodes.add_pump()]
    reader = audit(nodes.url, path)
    options = Options(probe_interval_s=0.3, commit_retry_s=0.2)
    client = nodes.connect(options=options)
    writer = RandomWriter(client, seed=kills)
    writer.create()
    reader.start()
    try:
        with writing_meanwhile(writer, _alter):
            for _ in range(kills):
                seen = read_up_to(path)
                eventually(lambda seen=seen: read_up_to(path) > seen, WAIT_S)  # type: ignore[misc]
                time.sleep(rng.random())
                reader.restart()
                rng.choice(pumps).restart()
        eventually(lambda: read_up_to(path) >= writer.last_ts, WAIT_S)
        registry = Registry(nodes.etcd)

        def acknowledged() -> int:
            found = registry.get(NodeKind.DRAINER, "audit")
            return found.max_commit_ts if found else 0

        eventually(lambda: acknowledged() >= writer.last_ts, WAIT_S)
    finally:
        reader.kill()
    assert "Traceback" not in reader.log.read_text()
    assert audited(path) == writer.expected()
