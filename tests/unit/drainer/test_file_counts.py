"""What a commit of a Delta table is counted as, and where the counts are read."""

from dataclasses import astuple, fields
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from drainer.pages import file_metrics
from drainer.sinks.delta.lake import count_files, sync_commit
from drainer.sinks.protocol import FileCounts


def test_a_compaction_is_no_commit_of_changes_and_its_rows_are_not_new(tmp_path: Path) -> None:
    for number in range(3):
        write_deltalake(tmp_path, pa.table({"id": [number, -number]}), mode="append")
    small = sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
    table = DeltaTable(tmp_path)
    table.optimize.compact()
    table.vacuum(dry_run=False)
    (kept,) = table.file_uris()
    table.delete("id = 2")
    counts = FileCounts()
    for version in range(table.version() + 1):
        count_files(counts, sync_commit(tmp_path, version))
    assert (counts.commits, counts.compactions) == (4, 1)
    assert counts.rows == 3 * 2 + 5  # The delete writes again what it leaves.
    assert (counts.files_added, counts.files_removed) == (3 + 1 + 1, 3 + 1)
    assert counts.bytes_removed == small + Path(kept.removeprefix("file://")).stat().st_size
    assert counts.last_commit_s > 0


def test_each_count_is_a_metric_of_its_own() -> None:
    counts = FileCounts(*range(1, 1 + len(fields(FileCounts))))
    values = [sample.value for each in file_metrics(counts) for sample in each.samples]
    assert sorted(values) == list(astuple(counts))
