import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.log_entry import DISKS, Copy, Disk, LogEntry, Mark, spare_disk
from penstock.errors import Malformed

A, B, C = (Copy(f"pump-{n}", f"disk-{n}") for n in "abc")
numbers = st.integers(0, 2**63)
copies = st.builds(Copy, st.text(), st.text(min_size=1), numbers)


@given(numbers, st.lists(copies, min_size=1, max_size=5, unique_by=lambda c: c.disk), numbers)
def test_an_entry_reads_back_as_it_was_written(epoch: int, disks: list[Copy], needed: int) -> None:
    first, *others = disks
    entry = LogEntry(
        epoch=epoch,
        primary=Copy(first.pump, first.disk),
        replicas=tuple(others[:2]),
        eligible=tuple(others[2:]),
        needed=needed,
        mark=Mark(needed, 40, epoch, 7) if needed else None,
    )
    assert LogEntry.from_json("key", entry.to_json()) == entry


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        LogEntry(epoch=1, primary=A).to_json().replace("1", "-1", 1),
        LogEntry(epoch=1, primary=A).to_json().replace('"epoch": 1', '"epoch": true'),
        LogEntry(epoch=1, primary=A).to_json().replace("disk-a", ""),
        LogEntry(epoch=1, primary=A, replicas=(A,)).to_json(),
        LogEntry(epoch=1, primary=A, mark=Mark(1, -1, 1)).to_json(),
        LogEntry(epoch=1, primary=A).to_json().replace("}", ', "mark": [1]}'),
    ],
)
def test_an_entry_that_no_pump_wrote_is_named(text: str) -> None:
    with pytest.raises(Malformed, match="/penstock/v1/logs/pump-a"):
        LogEntry.from_json("/penstock/v1/logs/pump-a", text)


def test_who_leaves_is_eligible_until_enough_are_listed_again() -> None:
    full = LogEntry(epoch=1, primary=A, replicas=(B, C), copies=3, copies_min=3)
    without = full.without([B.disk])
    assert (without.epoch, without.replicas, without.eligible) == (2, (C,), (B,))
    assert not without.may_acknowledge
    alone = without.without([C.disk])
    assert set(alone.eligible) == {B, C}
    back = alone.joined(B)
    assert (back.replicas, back.eligible) == ((B,), (C,))
    assert back.joined(C).eligible == ()


def test_a_damaged_copy_is_neither_listed_nor_eligible() -> None:
    listed = LogEntry(epoch=1, primary=A, replicas=(B, C), copies=3, copies_min=3)
    gone = listed.without_damaged([B.disk])
    assert (gone.epoch, gone.replicas, gone.eligible) == (2, (C,), ())
    eligible = listed.without([B.disk, C.disk])
    assert eligible.without_damaged([B.disk]).eligible == (C,)
    assert not eligible.without_damaged([B.disk]).may_claim(B.disk)


def test_a_disk_that_takes_over_leaves_the_old_one_eligible_while_nothing_is_acknowledged() -> None:
    entry = LogEntry(epoch=1, primary=A, replicas=(B,), needed=4).claimed(B)
    assert (entry.epoch, entry.primary, entry.replicas) == (2, B, ())
    assert entry.eligible == (Copy(A.pump, A.disk, 4),)
    enough = LogEntry(epoch=1, primary=A, replicas=(B, C)).claimed(B)
    assert (enough.replicas, enough.eligible) == ((C,), ())
    again = entry.claimed(B)
    assert (again.epoch, again.eligible) == (3, entry.eligible)


def test_what_is_needed_rises_and_a_copy_grows_backwards_within_an_epoch() -> None:
    entry = LogEntry(epoch=1, primary=A, replicas=(Copy("b", "b", 5),), needed=3)
    assert not entry.may_claim("b")
    assert entry.extended("b", 3).may_claim("b")
    assert entry.needing(5).may_claim("b")
    assert entry.needing(2).needed == 3
    assert entry.extended("b", 3).epoch == entry.needing(9).epoch == 1


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
