"""Which disk a chaos may delete: any but the last one that has all of a log."""

from dataclasses import replace

import pytest

from penstock.cluster.log_entry import Copy, LogEntry
from tests.chaos.copies import last_whole

ONE, TWO, THREE = (Copy(f"pump-{number}", f"d{number}") for number in (1, 2, 3))
DISKS = {copy.pump: copy.disk for copy in (ONE, TWO, THREE)}
LISTED = LogEntry(epoch=4, primary=ONE, replicas=(TWO,), needed=7)


@pytest.mark.parametrize("pump", DISKS)
def test_any_disk_may_go_while_another_one_has_all_of_each_log(pump: str) -> None:
    other = LogEntry(epoch=2, primary=THREE, replicas=(ONE,))
    assert last_whole({"pump-1": LISTED, "pump-3": other}, DISKS, pump) == []


def test_the_only_listed_disk_stays() -> None:
    assert last_whole({"pump-1": replace(LISTED, replicas=())}, DISKS, "pump-1") == ["pump-1"]


def test_a_copy_that_lacks_what_is_needed_counts_for_nothing() -> None:
    partial = replace(LISTED, replicas=(replace(TWO, first=8),))
    assert last_whole({"pump-1": partial}, DISKS, "pump-1") == ["pump-1"]
    assert last_whole({"pump-1": partial}, DISKS, "pump-2") == []


def test_a_disk_that_left_the_list_and_may_take_over_counts() -> None:
    left = replace(LISTED, replicas=(), eligible=(TWO,))
    assert last_whole({"pump-1": left}, DISKS, "pump-1") == []


def test_a_listed_disk_that_is_gone_counts_for_nothing() -> None:
    empty = {**DISKS, "pump-2": "another one"}
    assert last_whole({"pump-1": LISTED}, empty, "pump-1") == ["pump-1"]
