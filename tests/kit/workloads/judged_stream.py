"""A writer with a memory and an audit that reads the stream: nothing is lost, nothing comes twice.

The audit is a named reader in a process of its own, so Pumps keep and drain for it as for a
Drainer, and no Spark is needed.
"""

import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.examples.audit import open_database, stored_checkpoint
from penstock.local.process import ServerProcess
from pumpclient import Options, PumpClient
from tests.kit.wait import eventually
from tests.kit.workloads.random_writer import RandomWriter, State, writing_meanwhile

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
    connection = open_database(path)
    stored = stored_checkpoint(connection)
    connection.close()
    return int(json.loads(stored)["commitTS"]) if isinstance(stored, str) else 0


def audit(etcd_url: str, path: Path) -> ServerProcess:
    """Return an audit into a database at `path`, not started."""
    command = [sys.executable, "-m", "deploy.examples.audit", "--database", str(path)]
    command += ["--etcd-urls", etcd_url]
    return ServerProcess(command, log=path.with_suffix(".log"))


@contextmanager
def judged_stream(etcd_url: str, path: Path, seed: int = 1) -> Iterator[RandomWriter]:
    """Write and read while the block does its worst; then compare what was read with the model."""
    reader = audit(etcd_url, path)
    options = Options(probe_interval_s=0.3, commit_retry_s=0.2)
    with PumpClient.connect(etcd_url, options=options) as client:
        writer = RandomWriter(client, seed=seed)
        writer.create()
        reader.start()
        try:
            # Before that no Pump knows of it, and one that is taken over would not wait for it.
            eventually(lambda: read_up_to(path) >= writer.last_ts, WAIT_S)
            with writing_meanwhile(writer):
                yield writer
            eventually(lambda: read_up_to(path) >= writer.last_ts, WAIT_S)
        finally:
            reader.kill()
        assert "Traceback" not in reader.log.read_text()
        assert audited(path) == writer.expected()
