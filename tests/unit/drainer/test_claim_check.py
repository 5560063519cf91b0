"""Claim checks: what is too large for a topic is a file, the same one however often it is kept."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from drainer.settings.targets import KafkaTarget
from drainer.sinks.kafka.sink import KafkaSink, keep_whole
from drainer.sinks.kafka.topics import encoding_of
from drainer.task.events.event_unit import stream_encoder_of
from drainer.task.events.messages import WHOLE, Message, RowEvent
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnFlag, ColumnInfo, MysqlType, TableInfo
from tests.kit.sink_target import sink_target

TABLE = TableInfo(
    id=1,
    name="t",
    columns=(
        ColumnInfo(
            id=1, name="id", offset=0, tp=MysqlType.LONG,
            flag=ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL,
        ),
        ColumnInfo(id=2, name="v", offset=1, tp=MysqlType.LONG_BLOB, charset="utf8mb4"),
    ),
    pk_is_handle=True,
)  # fmt: skip


def message(options: str, text: str) -> Message:
    target = sink_target(KafkaTarget, f"kafka://h/?prefix=p&max-message-bytes=1000&{options}")
    events = [RowEvent("db", TABLE, None, (1, text))]
    made = stream_encoder_of(encoding_of(target, 7)).transaction(7, events)
    return next(each for each in made if each.to.startswith("p.db.t/"))


@pytest.mark.parametrize("form", ["canal-json", "debezium", "maxwell"])
def test_a_row_that_is_too_large_travels_whole_beside_its_key_only_where_a_folder_is_named(
    form: str,
) -> None:
    claimed = f"format={form}&oversize=claim-check&claim-check-dir=/claims"
    cut = message(claimed, "x" * 2000)
    assert b"xxx" not in (cut.value or b"")
    assert dict(cut.headers)[WHOLE] == message(f"format={form}", "x" * 2000).value
    assert message(claimed, "x").headers == ()
    assert message(f"format={form}&oversize=key-only", "x" * 2000).headers == ()


def test_a_message_is_one_file_that_only_its_owner_reads_however_often_it_is_kept(
    tmp_path: Path,
) -> None:
    first = keep_whole(tmp_path, "p.db.t", 7, b"large")
    assert keep_whole(tmp_path, "p.db.t", 7, b"large") == first
    changed = (("p.db.t", 7, b"other"), ("p.db.u", 7, b"large"), ("p.db.t", 8, b"large"))
    others = {keep_whole(tmp_path, *each) for each in changed}
    assert len(others | {first}) == 4
    path = Path(unquote(urlsplit(first).path))
    assert path.read_bytes() == b"large"
    assert (path.parent, path.name[:2]) == (tmp_path / "p.db.t", "7-")
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(list(path.parent.iterdir())) == 3


def test_a_folder_that_is_not_mounted_is_said_and_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "mount"
    with pytest.raises(OSError, match="No such file") as failed:
        keep_whole(folder, "p.db.t", 7, b"large")
    url = f"kafka://h/?oversize=claim-check&claim-check-dir={folder}"
    sink = KafkaSink(sink_target(KafkaTarget, url), cluster_id=7, retry_s_max=0)
    with pytest.raises(NeedsOperator, match=f"claim-check-dir {folder}") as refused:
        sink._passing(failed.value)
    assert refused.value.code is Code.SINK_FILE
    assert os.listdir(tmp_path) == []
