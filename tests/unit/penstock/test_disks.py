"""Which disk a log's next copy goes to, and how disks are listed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.log_entry import DISKS, Disk, spare_disk
from penstock.errors import Malformed


def disk(number: int, zone: str = "", pump: int | None = None) -> Disk:
    labels = {"zone": zone} if zone else {}
    return Disk(f"d{number}", f"pump-{number if pump is None else pump}", "host:8250", labels)


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text()), st.booleans())
def test_a_disk_is_read_as_it_was_written(
    pump: str, host: str, labels: dict[str, str], is_draining: bool
) -> None:
    written = Disk("d1", pump, host, labels, is_draining)
    assert Disk.from_json(f"{DISKS}d1", written.to_json().encode()) == written


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"pump": 1, "host": "", "labels": {}}', "{}"),
        '{"pump": "p", "host": "h", "labels": {}, "leaving": 1}',
    ],
)
def test_what_is_no_disk_is_named_by_its_key(text: str) -> None:
    with pytest.raises(Malformed, match=f"{DISKS}d1"):
        Disk.from_json(f"{DISKS}d1", text.encode())


def test_three_logs_on_three_disks_have_their_copies_in_a_ring() -> None:
    disks = [disk(1), disk(2), disk(3)]
    chosen = [spare_disk(disks, [each.id], load={}) for each in disks]
    assert [each.id for each in chosen if each] == ["d2", "d3", "d1"]


def test_the_disk_with_the_fewest_copies_is_chosen() -> None:
    found = spare_disk([disk(1), disk(2), disk(3)], ["d1"], load={"d2": 2, "d3": 1})
    assert found == disk(3)


def test_no_two_copies_are_on_one_pump_or_on_a_barred_disk() -> None:
    assert spare_disk([disk(1), disk(2, pump=1)], ["d1"], load={}) is None
    assert spare_disk([disk(1), disk(2)], ["d1"], barred={"d2"}, load={}) is None


def test_copies_that_must_differ_in_a_label_do() -> None:
    disks = [disk(1, "a"), disk(2, "a"), disk(3), disk(4, "b"), disk(5, "b")]
    assert spare_disk(disks, ["d1"], apart="zone", load={}) == disks[3]
    assert spare_disk(disks, ["d1", "d4"], apart="zone", load={}) is None
