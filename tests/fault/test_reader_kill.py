"""A program that reads the stream is killed, and Pumps with it: its audit has each row once."""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.examples.audit import open_database, stored_checkpoint
from deploy.local.etcd import EtcdServer
from deploy.local.process import ServerProcess
from penstock.cluster.node_registry import NodeKind, Registry
from pumpclient import Options, PumpClient
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.wait import eventually
from tests.kit.workloads.random_writer import RandomWriter, State, writing_meanwhile

pytestmark = pytest.mark.fault

MakePump = Callable[..., PumpProcess]
WAIT_S = 60.0


def audited(path: Path) -> State:
    """Return the rows that are left when all recorded changes are played."""
    found: State = {}
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "SELECT what, before, after FROM change WHERE kind <> 'ddl' ORDER BY commit_ts, number"
        ).fetchall()
    connection.close()
    for what, before, after in rows:
        left = found.setdefault(what.removeprefix("shop."), Counter())
        for text, count in ((before, -1), (after, 1)):
            if text is not None:
                values = json.loads(text).values()
                left[tuple(None if value is None else str(value) for value in values)] += count
        assert min(left.values()) >= 0, what
    return {table: +left for table, left in found.items()}


def read_up_to(path: Path) -> int:
    """Return how far the checkpoint in the audit's database is."""
    connection = open_database(path)
    stored = stored_checkpoint(connection)
    connection.close()
    return int(json.loads(stored)["commitTS"]) if isinstance(stored, str) else 0


def _alter(writer: RandomWriter, round_number: int) -> None:
    if round_number % 12 == 0:
        writer.execute_ddl(f"CREATE TABLE shop.extra_{round_number} (id INT PRIMARY KEY)")


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_an_audit_that_is_killed_again_and_again_has_each_change_once(
    etcd: Any, etcd_server: EtcdServer, pump_factory: MakePump, tmp_path: Path, kills: int
) -> None:
    rng, path = random.Random(kills), tmp_path / "audit.db"
    pumps = [pump_factory(etcd_server.url), pump_factory(etcd_server.url)]
    audit = ServerProcess(
        [
            *(sys.executable, "-m", "deploy.examples.audit"),
            *("--database", str(path), "--etcd-urls", etcd_server.url),
        ],
        log=tmp_path / "audit.log",
    )
    options = Options(probe_interval_s=0.3, commit_retry_s=0.2)
    with PumpClient.connect(etcd_server.url, options=options) as client:
        writer = RandomWriter(client, seed=kills)
        writer.create()
        audit.start()
        try:
            with writing_meanwhile(writer, _alter):
                for _ in range(kills):
                    seen = read_up_to(path)
                    eventually(lambda seen=seen: read_up_to(path) > seen, WAIT_S)  # type: ignore[misc]
                    time.sleep(rng.random())
                    audit.restart()
                    rng.choice(pumps).restart()
            eventually(lambda: read_up_to(path) >= writer.last_ts, WAIT_S)
            registry = Registry(etcd)

            def acknowledged() -> int:
                found = registry.get(NodeKind.DRAINER, "audit")
                return found.max_commit_ts if found else 0

            eventually(lambda: acknowledged() >= writer.last_ts, WAIT_S)
        finally:
            audit.kill()
        assert "Traceback" not in audit.log.read_text()
        assert audited(path) == writer.expected()
