"""When `penstock run` repairs what foreign keys changed."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

from penstock.local.run.parts import SOURCE, Choice, Part
from penstock.local.run.repair import RepairPace, Repairs
from penstock.node.http_status import JSON, Answer, HttpStatus
from pumpclient.mysql.protocol.server import ServerAddress


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


def test_a_downstream_that_is_not_compared_gets_the_command_that_loads_the_table_again(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    found = {
        "left_out": {"d.c": {"is_whole": True}},
        "cascaded": {"d.b": {"last": "f:1"}, "d.c": {"last": "f:2"}},
    }
    pages = HttpStatus("a source")

    async def status(names: Mapping[str, str]) -> Answer:
        return Answer(json.dumps(found), JSON)

    async def settled() -> None:
        pages.add("GET", "/status", status, "")
        await pages.start("127.0.0.1:0", 0)
        choice = Choice(
            upstream=ServerAddress("127.0.0.1", 3306, "root", ""),
            downstream="kafka://127.0.0.1:9092",
            folder=tmp_path / "a b",
        )
        part = Part(name=SOURCE, command=(), log=tmp_path / "log", pages=pages.url)
        repairs = Repairs(choice, {SOURCE: part}, said.append)
        try:
            for _ in range(2):
                await repairs.settle()
        finally:
            await pages.close()

    asyncio.run(settled())
    (line,) = said
    assert line.startswith("foreign keys may have changed d.b, not repaired: this downstream is")
    assert f"penstock source reload d.b --config '{tmp_path}/a b/conf/source.toml'" in line
