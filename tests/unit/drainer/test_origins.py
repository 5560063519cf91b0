"""What a source passes on twice is applied once: in any order of restarts and repetitions."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.intake.merger import Merged
from drainer.intake.payload import Spooled, outline
from drainer.planner import AheadStep, DdlStep, LargeStep, Origins, Planner, RowsStep, Step
from drainer.sinks.checkpoint import Checkpoint
from drainer.task.work_unit import TransactionStart
from penstock.errors import Malformed, NeedsOperator
from penstock.log.chunks import before_rows
from penstock.schema.model import TableInfo
from penstock.wire.binlog import (
    Binlog,
    BinlogType,
    MutationType,
    Origin,
    Place,
    PrewriteValue,
    TableMutation,
)
from penstock.wire.codec import encode_binlog, encode_prewrite_value
from tests.kit.tidb.tidb_shop import committed


def lookup(table_id: int, version: int) -> tuple[str, TableInfo]:
    return "db", TableInfo(id=table_id, name=f"t{table_id}")


def origin(position: int, source: str = "a", epoch: int = 1, file: int = 1) -> Origin:
    return Origin(source=source, epoch=epoch, file=file, position=position)


def rows(row: bytes) -> bytes:
    kinds = (MutationType.INSERT,)
    mutation = TableMutation(table_id=1, inserted_rows=(row,), sequence=kinds)
    return encode_prewrite_value(PrewriteValue(schema_version=1, mutations=(mutation,)))


def transaction(ts: int, origin: Origin | None, row: bytes = b"row") -> bytes:
    return committed(ts, rows(row), origin=origin)


def ddl(ts: int, origin: Origin | None) -> bytes:
    return committed(ts, ddl_query=b"TRUNCATE t", ddl_job_id=7, origin=origin)


def planned(
    payloads: Mapping[int, bytes | Spooled], seen: Mapping[str, Place], rows_max: int = 1000
) -> list[Step]:
    planner = Planner(lookup, rows_max=rows_max, bytes_max=1 << 20, origins=seen)
    planner.offer(Merged(list(payloads), list(payloads.values()), 100))
    steps: list[Step] = []
    while (step := planner.next_step()) is not None:
        assert not isinstance(step, AheadStep)
        steps.append(step)
    if (step := planner.cut()) is not None:
        steps.append(step)
    return steps


def found_rows(steps: Iterable[Step]) -> list[bytes]:
    return [
        row
        for step in steps
        if isinstance(step, RowsStep)
        for table in step.tables
        for row in table.rows.to_pylist()
    ]


def test_a_transaction_that_comes_again_is_left_out() -> None:
    payloads = {
        10: transaction(10, origin(100), b"first"),
        20: transaction(20, origin(100), b"again"),
        30: transaction(30, origin(99), b"earlier"),
        40: transaction(40, origin(101), b"next"),
        50: transaction(50, None, b"none"),
    }
    steps = planned(payloads, {})
    assert found_rows(steps) == [b"first", b"next", b"none"]
    assert (steps[-1].commit_ts, steps[-1].origins) == (50, {"a": (1, 1, 101)})


def test_sources_do_not_know_each_other_and_a_new_epoch_starts_over() -> None:
    payloads = {
        10: transaction(10, origin(100, "a"), b"a"),
        20: transaction(20, origin(5, "b"), b"b"),
        30: transaction(30, origin(4, "a", epoch=2), b"switched"),
        40: transaction(40, origin(90, "a", epoch=1), b"late"),
    }
    assert found_rows(planned(payloads, {})) == [b"a", b"b", b"switched"]


def test_a_source_that_continues_an_epoch_before_its_last_one_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    epochs = {30: 1, 40: 1}  # An older version did not keep where epoch 1 ended.
    payloads = {ts: transaction(ts, origin(ts, epoch=epoch)) for ts, epoch in epochs.items()}
    assert found_rows(planned(payloads, {"a": (7, 1, 20)})) == []
    (found,) = [each.message for each in caplog.records if each.levelname == "ERROR"]
    assert "source a writes in epoch 1, but it has begun epoch 7" in found


@pytest.mark.fault(
    "a source continues an epoch that it had left, as after etcd was restored to before its"
    " last load",
    "what came before is left out; at the first new transaction the Drainer stops with"
    " PS-6015 and names both epochs",
    cases="0",
)
def test_a_source_that_goes_on_with_an_epoch_it_has_left_stops_the_drainer() -> None:
    epochs = {10: 5, 20: 5, 30: 7, 40: 5, 50: 5}
    places = {10: 10, 20: 20, 30: 5, 40: 20, 50: 30}
    payloads = {
        ts: transaction(ts, origin(places[ts], epoch=epoch), b"%d" % ts)
        for ts, epoch in epochs.items()
    }
    more = {60: ddl(60, origin(60, epoch=5)), 70: transaction(70, origin(6, epoch=7), b"70")}
    with pytest.raises(NeedsOperator, match=r"ended at \(5, 1, 20\); .* \(7, 1, 5\)") as stopped:
        planned(payloads, {})
    assert "accept-gap-commit-ts = [50]" in stopped.value.hint
    before = planned({ts: payloads[ts] for ts in (10, 20, 30, 40)}, {})
    assert found_rows(before) == [b"10", b"20", b"30"]
    seen, after = before[-1].origins, {50: payloads[50], **more}
    for accepted, left in ({50}, b"70"), ({60}, b"70"):
        planner = Planner(lookup, rows_max=9, bytes_max=99, origins=seen, accepted_gap_ts=accepted)
        wanted = {ts: each for ts, each in after.items() if ts >= min(accepted)}
        planner.offer(Merged(list(wanted), list(wanted.values()), 100))
        steps = [planner.next_step() for _ in range(len(wanted))]
        found = [step for step in [*steps, planner.cut()] if step is not None]
        assert [step.is_repeated for step in found if isinstance(step, DdlStep)] == [True]
        assert found_rows(each for each in found if isinstance(each, RowsStep)) == [left]
    later = found[-1].origins
    assert found_rows(planned({80: transaction(80, origin(99, epoch=5))}, later)) == []


def begun(position: int, epoch: int, history: int, after: Place | None = None) -> Origin:
    return replace(origin(position, epoch=epoch), history=history, after=after)


FIRST = [begun(10, 5, 0), begun(20, 5, 0), begun(10, 6, 100, (5, 1, 25)), begun(20, 6, 100)]
"""Of a first server, and of the one that followed it."""
_SEEN = {"a": (6, 1, 20), "a/epoch-5": (5, 1, 20), "a/history-6": (6, 100, 0)}


@pytest.mark.fault(
    "etcd was restored to before a failover, the relay log is lost, and the source follows a third"
    " server: it begins the same epoch again, at places that were seen or not seen",
    "the Drainer stops at the first transaction with PS-6015; the same server's are left out",
    cases="6",
)
@pytest.mark.parametrize("position", [10, 15, 30])
@pytest.mark.parametrize("is_left", [False, True])
def test_an_epoch_that_comes_again_with_another_history_stops_the_drainer(
    position: int, is_left: bool
) -> None:
    stream = [*FIRST, begun(5, 7, 200, (6, 1, 20))] if is_left else FIRST
    payloads = {ts: transaction(ts, each, b"%d" % ts) for ts, each in enumerate(stream, 10)}
    before = planned(payloads, {})
    assert found_rows(before) == list(map(b"%d".__mod__, payloads))
    text = Checkpoint(20, 1, origins=before[-1].origins).to_json("w")
    seen = Checkpoint.from_json(text).origins
    more = {"a": (7, 1, 5), "a/epoch-6": (6, 1, 20), "a/history-7": (7, 200, 0)}
    assert seen == (_SEEN | more if is_left else _SEEN)

    again = {30: transaction(30, begun(20, 6, 100, (5, 1, 15)))}
    assert found_rows(planned(again, seen)) == []
    other = begun(position, 6, 300, (5, 1, 15))
    other_server = {30: transaction(30, other, b"30"), 31: transaction(31, begun(40, 6, 300))}
    with pytest.raises(NeedsOperator, match="in which another server's binlog was read") as stopped:
        planned(other_server, seen)
    assert "reload --all" in stopped.value.hint
    # Accepted: nothing of the epoch is applied, and the load after it is.
    loaded = transaction(32, Origin(source="a", epoch=99, file=0, position=1), b"loaded")
    planner = Planner(lookup, rows_max=9, bytes_max=99, origins=seen, accepted_gap_ts={30})
    planner.offer(Merged([30, 31, 32], [*other_server.values(), loaded], 100))
    assert planner.next_step() is None
    assert (step := planner.cut()) is not None
    assert found_rows([step]) == [b"loaded"]


def test_an_epoch_that_begins_before_what_was_seen_stops_the_drainer() -> None:
    seen = {"a": (5, 1, 20)}
    for after in (None, (5, 1, 20), (5, 1, 25), (6, 1, 1)):
        fits = {30: transaction(30, begun(4, 7, 100, after), b"30")}
        assert found_rows(planned(fits, seen)) == [b"30"]
    behind = {
        30: transaction(30, begun(4, 7, 100, (5, 1, 19)), b"30"),
        31: transaction(31, begun(5, 7, 100), b"31"),
    }
    with pytest.raises(NeedsOperator, match=r"begins after \(5, 1, 19\); .* is \(5, 1, 20\)"):
        planned(behind, seen)
    planner = Planner(lookup, rows_max=9, bytes_max=99, origins=seen, accepted_gap_ts={30})
    planner.offer(Merged([30, 31], list(behind.values()), 100))
    assert planner.next_step() is None
    assert (step := planner.cut()) is not None
    assert (found_rows([step]), planner.repeated) == ([], 2)
    # In an epoch that was seen, the source may have been killed before it stored a commit.
    started = planned({30: transaction(30, begun(9, 7, 100, (5, 1, 20)), b"30")}, seen)
    again = {
        31: transaction(31, begun(9, 7, 100, (5, 1, 20))),
        32: transaction(32, begun(12, 7, 100), b"32"),
    }
    assert found_rows(planned(again, started[-1].origins)) == [b"32"]


def test_a_history_is_forgotten_with_the_end_of_its_epoch() -> None:
    found = Origins({})
    for epoch in range(1, 9):
        found.note(begun(epoch, epoch, 50 + epoch))
    kept = {name for name in found.now() if "/history-" in name}
    assert kept == {f"a/history-{epoch}" for epoch in range(4, 9)}
    found.note(begun(10, 8, 0))  # Of an older version of the source.
    found.note(begun(11, 8, 58))
    assert found.now()["a/history-8"] == (8, 58, 0)


def test_only_the_ends_of_the_last_epochs_are_kept() -> None:
    found = Origins({})
    for epoch in range(1, 9):
        found.note(origin(epoch, epoch=epoch))
    assert found.now() == {"a": (8, 1, 8)} | {f"a/epoch-{n}": (n, 1, n) for n in range(4, 8)}


def test_a_step_holds_how_each_of_its_transactions_began() -> None:
    payloads = {10: transaction(10, origin(100)), 20: transaction(20, None)}
    (step,) = planned(payloads, {})
    assert isinstance(step, RowsStep)
    assert step.starts == {10: TransactionStart(9, origin(100)), 20: TransactionStart(19)}


def test_a_step_holds_the_places_of_its_own_end() -> None:
    payloads = {ts: transaction(ts, origin(ts)) for ts in (10, 20, 30)}
    steps = planned(payloads, {"b": (9, 9, 9)}, rows_max=1)
    assert [step.origins["a"][2] for step in steps] == [10, 20, 30]
    assert all(step.origins["b"] == (9, 9, 9) for step in steps)


def test_a_repeated_ddl_is_followed_and_not_run() -> None:
    steps = planned({10: ddl(10, origin(100)), 20: ddl(20, origin(100)), 30: ddl(30, None)}, {})
    assert [step.is_repeated for step in steps if isinstance(step, DdlStep)] == [False, True, False]


def test_a_large_transaction_that_comes_again_is_left_out_and_its_file_deleted(
    tmp_path: Path,
) -> None:
    def spooled(ts: int) -> Spooled:
        prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=ts - 1, origin=origin(100))
        value = rows(b"large")
        data = before_rows(encode_binlog(prewrite), len(value)) + value
        data += encode_binlog(Binlog(tp=BinlogType.COMMIT, start_ts=ts - 1, commit_ts=ts))
        path = tmp_path / str(ts)
        path.write_bytes(data)
        found = outline(lambda at, count: data[at : at + count], len(data))
        return Spooled(path, len(data), b"", found)

    steps = planned({10: spooled(10), 20: spooled(20)}, {})
    assert [type(step) for step in steps] == [LargeStep, RowsStep]
    assert steps[0].origins == {"a": (1, 1, 100)}
    assert (tmp_path / "10").exists()
    assert not (tmp_path / "20").exists()


def test_a_transaction_that_an_operator_leaves_out_is_seen_all_the_same() -> None:
    planner = Planner(lookup, rows_max=9, bytes_max=1 << 20, ignored_ts={10})
    again = [transaction(10, origin(100), b"left out"), transaction(20, origin(100), b"again")]
    planner.offer(Merged([10, 20], again, 100))
    assert planner.next_step() is None
    step = planner.cut()
    assert step is not None
    assert (step.rows, planner.repeated, step.origins) == (0, 1, {"a": (1, 1, 100)})


@given(st.data())
def test_with_any_repetitions_and_restarts_each_transaction_is_there_once(
    data: st.DataObject,
) -> None:
    """The source goes back at random, the Drainer restarts at any checkpoint it has saved."""
    count = data.draw(st.integers(1, 12))
    stream: dict[int, bytes | Spooled] = {}
    at, ts = 0, 0
    while at < count:
        ts += 1
        stream[ts] = transaction(ts, origin(at + 1), b"%d" % (at + 1))
        back = data.draw(st.integers(0, 6))
        at = max(0, at - back) if back > 3 else at + 1
        if ts > 60:
            break
    brought = max(int(o) for o in [1, *range(1, at + 1)])
    downstream: list[bytes] = []
    saved = Checkpoint(0, 0)
    while saved.commit_ts < ts:
        left = {t: payload for t, payload in stream.items() if t > saved.commit_ts}
        steps = planned(left, saved.origins, rows_max=data.draw(st.integers(1, 4)))
        for step in steps[: data.draw(st.integers(1, len(steps)))]:
            downstream += found_rows([step])
            text = Checkpoint(step.commit_ts, 1, origins=step.origins).to_json("w")
            saved = Checkpoint.from_json(text)
    assert len(set(downstream)) == len(downstream)
    assert [int(row) for row in downstream] == list(range(1, len(downstream) + 1))
    assert len(downstream) >= brought


NAMES = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", codec="utf-8"))
NUMBERS = st.integers(0, (1 << 64) - 1)


@given(st.dictionaries(NAMES, st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=3))
def test_a_checkpoint_keeps_the_places_in_the_row(origins: dict[str, Place]) -> None:
    checkpoint = Checkpoint(5, 1, origins=origins)
    assert Checkpoint.from_json(checkpoint.to_json("me")) == checkpoint


@pytest.mark.parametrize("found", ["5", '{"a": 5}', '{"a": [1, 2]}', '{"a": [1, 2, -3]}', "[]"])
def test_damaged_places_are_refused(found: str) -> None:
    with pytest.raises(Malformed, match="damaged"):
        Checkpoint.from_json('{"commitTS": 5, "origins": ' + found + "}")


def after(position: int, previous: int | None, epoch: int = 1) -> Origin:
    return replace(
        origin(position, epoch=epoch), previous=None if previous is None else (1, previous)
    )


def gaps(*found: Origin, seen: Mapping[str, Place] | None = None) -> list[int]:
    """Return the positions of those before which transactions are missing."""
    origins, missing = Origins(seen or {}), []
    for ts, each in enumerate(found, 1):
        if not origins.is_repeated(ts, each):
            missing += [each.position] * (origins.gap(ts, each) is not None)
            origins.note(each)
    return missing


def test_a_transaction_whose_predecessor_never_came_stops_the_planner_after_all_before_it() -> None:
    payloads = {
        10: transaction(10, after(100, None), b"first"),
        20: transaction(20, after(300, 200), b"third"),
    }
    planner = Planner(lookup, rows_max=9, bytes_max=1 << 20)
    planner.offer(Merged([10, 20], list(payloads.values()), 100))
    step = planner.next_step()
    assert isinstance(step, RowsStep)
    assert found_rows([step]) == [b"first"]
    with pytest.raises(NeedsOperator, match=r"\(1, 1, 200\), which is not .* one is \(1, 1, 100\)"):
        planner.next_step()


def test_a_ddl_and_a_large_transaction_show_a_gap_as_rows_do() -> None:
    seen = {"a": (1, 1, 100)}
    for payload in (ddl(10, after(300, 200)), transaction(10, after(300, 200))):
        with pytest.raises(NeedsOperator, match="accept-gap-commit-ts = "):
            planned({10: payload}, seen)
    assert len(planned({10: ddl(10, after(300, 100))}, seen)) == 1


def test_a_gap_that_an_operator_accepts_and_one_that_an_earlier_run_passed_are_applied() -> None:
    payload = transaction(10, after(300, 200), b"third")
    for settings in ({"accepted_gap_ts": frozenset({10})}, {"whole_ts": 10}):
        planner = Planner(
            lookup, rows_max=9, bytes_max=1 << 20, origins={"a": (1, 1, 100)}, **settings
        )
        planner.offer(Merged([10], [payload], 100))
        assert planner.next_step() is None
        assert (step := planner.cut()) is not None
        assert (found_rows([step]), step.origins) == ([b"third"], {"a": (1, 1, 300)})


def test_what_is_no_gap() -> None:
    assert gaps(after(100, None), after(200, 100), after(300, 200)) == []
    assert gaps(after(100, 50), after(200, 100)) == []  # A new downstream begins anywhere.
    assert gaps(after(100, None), after(5, None, epoch=2)) == []  # Another epoch.
    assert gaps(origin(100), origin(300), after(400, 300)) == []  # A source of before.
    assert gaps(after(200, 100), after(100, 50), after(300, 100)) == []  # Less was written again.
    assert gaps(after(100, None), after(300, 200)) == [300]
    assert gaps(after(100, None), after(5, 4, epoch=2)) == [5]  # The first one of an epoch.


@given(st.integers(0, 1 << 30))
def test_kills_and_repeats_make_no_gap_and_a_lost_transaction_always_does(seed: int) -> None:
    """A model of a source: runs from a checkpoint that is acknowledged, groups whole or a prefix.

    `tests.fault.test_operator_source` holds the real source to the same.
    """
    draw = random.Random(seed)
    rows_at = set(draw.sample(range(1, 21), draw.randint(3, 20)))
    stream: list[Origin] = []
    stored: tuple[int, int | None] = (0, None)
    """The checkpoint: what is done, and the last place with rows in it."""
    while stored[0] < 20:
        done, written = stored
        for _ in range(draw.randint(1, 4)):  # Groups of this run.
            end = min(20, done + draw.randint(1, 6))
            group = []
            for place in sorted(each for each in rows_at if done < each <= end):
                group.append(after(place, written))
                written = place
            is_killed = draw.random() < 0.25
            stream += group[: draw.randint(0, len(group))] if is_killed else group
            if is_killed:
                break
            done = end
            if draw.random() < 0.5 or done == 20:
                stored = done, written
    assert gaps(*stream) == []
    lost = draw.choice(sorted(rows_at)[1:-1])
    assert gaps(*[each for each in stream if each.position != lost])
