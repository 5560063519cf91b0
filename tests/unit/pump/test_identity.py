from pathlib import Path

import pytest

from penstock.errors import NeedsOperator
from pump.cluster.identity import (
    forget_former,
    former_since,
    kept_disk_id,
    kept_node_id,
    note_former,
    refuse_foreign,
    refuse_other_cluster,
)


def test_the_first_name_stays_whatever_the_address_becomes(tmp_path: Path) -> None:
    assert kept_node_id(tmp_path, "", "old:8250") == "old:8250"
    assert kept_node_id(tmp_path, "", "new:8250") == "old:8250"
    assert kept_node_id(tmp_path, "old:8250", "new:8250") == "old:8250"
    assert [path.name for path in tmp_path.iterdir()] == [".node"]


def test_a_configured_name_is_kept_too(tmp_path: Path) -> None:
    assert kept_node_id(tmp_path, "pump-1", "a:1") == "pump-1"
    assert kept_node_id(tmp_path, "", "b:2") == "pump-1"
    with pytest.raises(NeedsOperator, match="belongs to pump pump-1, not to pump-2"):
        kept_node_id(tmp_path, "pump-2", "a:1")


def test_an_emptied_name_file_is_not_taken_for_a_new_pump(tmp_path: Path) -> None:
    (tmp_path / ".node").write_text("\n")
    with pytest.raises(NeedsOperator, match=r"is empty.*write the node id into it"):
        kept_node_id(tmp_path, "", "a:1")


def test_a_disk_has_one_id_and_another_disk_another_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    assert kept_disk_id(first) == kept_disk_id(first) != kept_disk_id(second)
    assert [path.name for path in first.iterdir()] == [".disk"]


def test_a_damaged_disk_id_is_never_taken_for_another_disk(tmp_path: Path) -> None:
    kept_disk_id(tmp_path)
    path = tmp_path / ".disk"
    whole = path.read_bytes()
    for damaged in (*(whole[:n] for n in range(32)), b"\xff" + whole[1:], whole + b"0"):
        path.write_bytes(damaged)
        with pytest.raises(NeedsOperator, match=r"no disk id.*/penstock/v1/logs/"):
            kept_disk_id(tmp_path)
    path.write_bytes(whole[:32])
    assert kept_disk_id(tmp_path) == whole[:32].decode()


def test_what_log_a_folder_is_out_of_is_kept_and_never_guessed(tmp_path: Path) -> None:
    assert former_since(tmp_path) is None
    for since in (0, 17):
        note_former(tmp_path, since)
        assert former_since(tmp_path) == since
    for _ in range(2):
        forget_former(tmp_path)
        assert former_since(tmp_path) is None
    (tmp_path / ".former").write_text("")
    with pytest.raises(NeedsOperator, match="which is no epoch"):
        former_since(tmp_path)


def test_a_data_folder_of_another_cluster_is_refused_and_one_without_an_id_is_adopted(
    tmp_path: Path,
) -> None:
    refuse_other_cluster(tmp_path, 7)
    refuse_other_cluster(tmp_path, 7)
    with pytest.raises(NeedsOperator, match=r"binlogs of cluster 7, but .* of cluster 8"):
        refuse_other_cluster(tmp_path, 8)
    refuse_other_cluster(tmp_path, 7)


def test_the_data_of_a_pump_of_tidb_binlog_is_left_alone(tmp_path: Path) -> None:
    refuse_foreign(tmp_path / "none", is_failover=False)
    kept_node_id(tmp_path, "old:8250", "a:1")
    refuse_foreign(tmp_path, is_failover=False)
    (tmp_path / "value").mkdir()
    (tmp_path / "value" / "000000.vlog").touch()
    with pytest.raises(NeedsOperator, match=r"Pump of TiDB-Binlog.*another, empty --data-dir"):
        refuse_foreign(tmp_path, is_failover=False)
