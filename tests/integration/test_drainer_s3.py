"""A real Drainer with Spark writes into an object store of a real server, and dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from drainer.reparo.__main__ import main as reparo
from tests.kit.delta.lake_reader import LakeReader
from tests.kit.servers.fix_replication import Replication
from tests.kit.servers.fix_s3 import S3Server
from tests.kit.workloads.random_writer import in_sqlite

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def killed(replication: Replication, sink: str, point: str) -> None:
    """Let a Drainer write into a sink, die at a step, and write the rest after a restart."""
    replication.add_pump()
    drainer = replication.drain_into(sink, started=False)
    writer = replication.begin()
    writer.transact(60)
    drainer.spawn(f"{point}=kill@3")
    assert drainer.wait() == -9
    writer.execute_ddl("ALTER TABLE shop.item ADD COLUMN extra INT")
    writer.execute_ddl("ALTER TABLE shop.item DROP COLUMN extra")
    writer.transact(60)
    drainer.start().wait_until(writer.last_ts)
    assert drainer.stop() == 0


@pytest.mark.fault(
    "a Drainer that writes a lake into an object store is killed between two tables",
    "each row is there once",
)
def test_a_lake_in_a_bucket_has_each_row_once_over_a_kill(
    replication: Replication, s3: S3Server
) -> None:
    lake = LakeReader(s3.add_bucket("e2e-lake") / "lake")
    killed(replication, "delta+s3://e2e-lake/lake?interval=200ms", "drainer.table_committed")
    for name, rows in replication.writer.expected().items():
        assert lake.table("shop", name).height == rows.total()


@pytest.mark.fault(
    "a Drainer that writes files into an object store is killed before it stores the savepoint",
    "what reparo restores is what was written",
)
def test_files_in_a_bucket_restore_to_what_was_written_over_a_kill(
    replication: Replication, s3: S3Server, tmp_path: Path
) -> None:
    s3.add_bucket("e2e-files")
    url = "file+s3://e2e-files/binlogs"
    killed(replication, f"{url}?interval=200ms", "drainer.checkpoint_stored")
    target = tmp_path / "restored.db"
    assert reparo(["--data-dir", url, "--sink", f"sqlite:///{target}"]) == 0
    assert in_sqlite(target) == replication.writer.expected()
