"""When `penstock run` repairs what foreign keys changed."""

from penstock.local.run.repair import RepairPace


def first_due(pace: RepairPace, notes: dict[str, str], begin_s: int) -> int:
    """Return the first second from `begin_s` on at which a pass is due."""
    return next(s for s in range(begin_s, begin_s + 10_000) if pace.is_due(notes, s))


def test_a_pass_waits_until_nothing_was_noted_for_a_while() -> None:
    pace = RepairPace()
    assert not pace.is_due({}, 100)
    assert not pace.is_due({"d.b": "f:1"}, 101)
    assert not pace.is_due({"d.b": "f:2"}, 105)
    assert first_due(pace, {"d.b": "f:2"}, 106) == 110


def test_a_pass_comes_within_a_minute_whatever_is_noted() -> None:
    pace = RepairPace()
    due = [s for s in range(100, 200) if pace.is_due({"d.b": f"f:{s}"}, s)]
    assert due[0] == 160


def test_passes_take_at_most_half_of_the_time() -> None:
    pace = RepairPace()
    assert first_due(pace, {"d.b": "f:1"}, 100) == 105
    pace.ended(105, 145, is_whole=True)
    assert first_due(pace, {"d.c": "f:2"}, 146) == 185


def test_passes_that_leave_the_same_note_become_rare_until_something_is_noted() -> None:
    pace, notes, now_s, pauses = RepairPace(), {"d.b": "f:1"}, 100, []
    for _ in range(10):
        begin_s = first_due(pace, notes, now_s)
        pauses.append(begin_s - now_s)
        now_s = begin_s + 1
        pace.ended(begin_s, now_s, is_whole=False)
    assert pauses[:4] == [5, 10, 20, 40]
    assert pauses[-1] == 900
    assert not pace.is_due({}, now_s)
    pace.is_due({"d.b": "f:2"}, now_s + 1000)
    assert first_due(pace, {"d.b": "f:2"}, now_s + 1001) == now_s + 1005


def test_a_repaired_table_does_not_delay_the_others() -> None:
    pace = RepairPace()
    pace.is_due({"d.b": "f:1", "d.c": "f:1"}, 100)
    assert pace.is_due({"d.c": "f:1"}, 105)
