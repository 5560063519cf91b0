"""Files in an object store keep the promises of files on a disk; the server is a real one."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from drainer.reparo.__main__ import main as reparo
from drainer.settings.targets import target_of
from drainer.sink_contract import CheckpointContract, EventContract, Output, Seen
from drainer.sinks.checkpoint import Checkpoint
from penstock.errors import NeedsOperator
from tests.contract.test_event_sink import ids
from tests.kit.files import plain_reader
from tests.kit.files.object_files import copied
from tests.kit.opened_sinks import open_event_sink
from tests.kit.servers.fix_s3 import S3Server

_numbers = itertools.count(1)


class ObjectFiles:
    """Files in a new bucket, which a reader finds by the savepoint alone."""

    def __init__(self, server: S3Server, scratch: Path) -> None:
        bucket = f"files-{next(_numbers)}"
        self.folder = server.add_bucket(bucket) / "a/files"
        self.url = f"file+s3://{bucket}/a/files"
        self._scratch = scratch

    def output(self) -> Output:
        return Output(self.open, self.seen)

    def open(self, cluster_id: int) -> Any:
        return open_event_sink(f"{self.url}?interval=0", cluster_id=cluster_id, retry_s_max=20)

    def seen(self) -> Seen:
        copy = copied(self.folder, self._scratch / f"copy-{next(_numbers)}")
        found = plain_reader.entries(copy)
        return [(entry.commit_ts, entry.ddl or ids(entry.changes)) for entry in found]


class TestFiles(CheckpointContract, EventContract):
    @pytest.fixture
    def downstream(self, s3: S3Server, tmp_path: Path) -> Iterator[Output]:
        made = ObjectFiles(s3, tmp_path).output()
        yield made
        for sink in made.sinks:
            sink.close()


@pytest.fixture
def files(s3: S3Server, tmp_path: Path) -> ObjectFiles:
    return ObjectFiles(s3, tmp_path)


def test_reparo_restores_from_the_bucket_and_leaves_out_what_a_crash_has_left(
    files: ObjectFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = files.output()
    sink = output.open()
    assert sink.load_checkpoint() is None
    output.create(sink)
    output.put(sink, 1, 2)
    sink.close()
    (files.folder / "binlog-0000000000000003-00000000000000").write_bytes(b"half a record")
    again = output.open()
    again.load_checkpoint()
    again.look_at(output.catalog)
    output.put(again, 3)
    again.close()
    target = tmp_path / "restored.db"
    for _ in range(2):  # Once more continues where it ended.
        arguments = ["--data-dir", files.url, "--sink", f"sqlite:///{target}", "-o", "json"]
        assert reparo(arguments) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["unproved"] is None
    with closing(sqlite3.connect(target)) as connection:
        rows = connection.execute('SELECT id FROM "shop.t" ORDER BY id').fetchall()
    assert rows == [(1,), (2,), (3,)]
    assert reparo(["--data-dir", f"{files.url}/none", "--dry-run"]) == 2


def test_a_commit_of_a_second_drainer_is_not_overwritten(files: ObjectFiles) -> None:
    """The first is stopped at the moment after it has compared the savepoint."""
    output = files.output()
    first: Any = output.begun()
    second: Any = output.open()
    second.load_checkpoint()
    second.look_at(output.catalog)
    put: Callable[..., Any] = first._put

    def late(*arguments: Any) -> Any:
        first._put = put
        made = put(*arguments)
        output.add(second, 5)
        return made

    first._put = late
    with pytest.raises(NeedsOperator, match="another Drainer"):
        output.add(first, 6, point=Checkpoint(output.ts + 10, 2))
    assert output.ids() == [5]
    output.add(second, 7)
    assert output.ids() == [5, 7]


def test_what_a_bucket_does_itself_is_no_option() -> None:
    for option in ("retention=1d", "compress=gzip"):
        with pytest.raises(NeedsOperator, match="leave it out"):
            target_of(f"file+s3://bucket/files?{option}")
    target = target_of("file+s3://bucket/files")
    assert (target.local, target.takes_events) == (None, True)
