"""A data folder with the only copy of a log is put back from a backup, or comes back later."""

import shutil
from pathlib import Path

import pytest

from tests.kit.servers.fix_copies import WAIT_S
from tests.kit.servers.fix_pump import streamed
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually

pytestmark = [pytest.mark.fault, pytest.mark.thorough]


@pytest.mark.fault(
    "with one copy, a data folder is replaced by the one of a backup",
    "refused (PS-3311); the newest folder has all",
    cases="1",
)
def test_a_folder_from_a_backup_is_refused_and_the_newest_one_has_all(
    nodes: Nodes, tmp_path: Path
) -> None:
    pump = nodes.add_pump()
    opened = nodes.session(pump)
    opened.transaction()
    pump.kill()
    backup, newest = tmp_path / "backup", tmp_path / "newest"
    shutil.copytree(pump.data_dir, backup)
    pump.start()
    commits = [opened.transaction().commit_ts for _ in range(10)]
    pump.kill()
    pump.data_dir.rename(newest)
    shutil.copytree(backup, pump.data_dir)
    pump.spawn()
    pump.wait_for("is not the one that pump pump-1 wrote last.*PS-3311|PS-3311", WAIT_S)
    eventually(lambda: not pump.is_running, WAIT_S)
    shutil.rmtree(pump.data_dir)
    newest.rename(pump.data_dir)
    pump.start()
    until_ts = opened.oracle.get_ts()
    found = [binlog.commit_ts for binlog in streamed(pump, opened.cluster_id, until_ts)]
    opened.close()
    assert set(commits) <= set(found)
