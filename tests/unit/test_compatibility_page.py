"""The page of compatibility names the formats that the code writes."""

import re
from pathlib import Path

import pytest

from drainer.relay_log import records
from penstock.log import chunks, segment
from pump.store.index import CHECKPOINT_FORMAT
from pumpclient.mysql.load import state

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


@pytest.mark.parametrize(
    ("file", "version"),
    [
        ("a Pump's log: segments", segment.VERSION),
        ("a Pump's log: segments, once it has had [replicas](copies.md)", segment.VERSION_WITH_ID),
        ("a Pump's log: large transactions in chunks", chunks.FORMAT),
        ("a Pump's index", CHECKPOINT_FORMAT),
        ("a Drainer's relay log", records.FORMAT),
        ("the state of a load, `load.json`", state._VERSION),
    ],
)
def test_a_format_on_disk_is_the_one_that_the_page_names(file: str, version: int) -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| (\d+)(?:;[^|]*)? \|", PAGE.read_text(), re.MULTILINE))
    assert int(rows[file]) == version
