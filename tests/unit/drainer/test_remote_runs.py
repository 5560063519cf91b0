"""Transactions in columns are merged and planned like the same transactions one by one."""

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest

from drainer.intake.merger import Merged, Merger
from drainer.intake.payload import Payload, Remote, RemoteRun
from drainer.planner import AheadStep, Planner, RowsStep, Step
from penstock.wire.binlog import Origin
from tests.kit.tidb.tidb_shop import committed
from tests.unit.drainer.test_planner import ddl, fake

PUMPS = ("a", "b", "c")
Message = tuple[str, list[int], RemoteRun]


def sent(seed: int, ts: int, rare: float) -> tuple[bytes, int]:
    """Return head and size: of rows, now and then with an origin, or of a DDL or fake binlog."""
    dice = random.Random(1000 * seed + ts)
    size = dice.randrange(1, 60)
    if dice.random() >= rare:
        return b"", size
    origin = Origin(source="s", epoch=1, file=1, position=dice.randrange(ts, ts + 9))
    passed_on = committed(ts, b"", origin=origin)
    return dice.choice(((passed_on, size), (fake(ts), 0), (ddl(ts), 0)))


def history(seed: int) -> list[Message]:
    """Return messages of all Pumps; some transactions come from two of them."""
    dice = random.Random(seed)
    rare, from_ts = dice.choice((0.0, 0.02, 0.4)), 10
    messages = []
    for _ in range(8):
        stamps = range(from_ts, from_ts + dice.randrange(3, 120))
        for pump in PUMPS:
            chosen = [ts for ts in stamps if dice.random() < 0.4] or [stamps[-1]]
            heads, sizes = zip(*(sent(seed, ts, rare) for ts in chosen), strict=True)
            starts = [ts - 1 for ts in chosen]
            messages.append((pump, chosen, RemoteRun.of(pump, sizes, starts, heads)))
        from_ts = stamps.stop
    return messages


def merged(messages: list[Message], *, columns: bool) -> tuple[list[Merged], int]:
    """Return the runs that the merge emits, and the weight of what is left."""
    merger, found = Merger(0), []
    for pump in PUMPS:
        merger.add(pump)
    for pump, stamps, run in messages:
        merger.push(pump, stamps, run if columns else list(run))
        while (step := merger.take()) is not None:
            found.append(step)
    return found, merger.bytes


def planned(runs: list[Merged], seed: int, *, columns: bool) -> list[tuple[Step, list[str]]]:
    """Return the steps, and the Pumps of the transactions of each."""
    dice = random.Random(seed)
    plan = Planner(
        lambda *_: pytest.fail("looked"),
        rows_max=dice.choice((3, 50, 10_000)),
        bytes_max=dice.choice((70, 2000, 1 << 20)),
        ignored_ts=frozenset(dice.sample(range(10, 400), dice.choice((0, 5)))),
        whole_ts=dice.choice((0, 60, 300)),
    )
    steps: list[Step] = []
    for run in runs:
        payloads: Sequence[Payload] = run.payloads if columns else list(run.payloads)
        plan.offer(Merged(run.commit_ts, payloads, run.bytes))
        while (step := plan.next_step()) is not None:
            assert not isinstance(step, AheadStep)
            steps.append(step)
        if dice.random() < 0.3 and (open_batch := plan.cut()) is not None:
            steps.append(open_batch)
    return [(_without_owners(step), _pumps_of(step)) for step in steps]


def _without_owners(step: Step) -> Step:
    if not isinstance(step, RowsStep) or step.remote is None:
        return step
    return replace(step, remote=replace(step.remote, pumps=[], owners=array("H")))


def _pumps_of(step: Step) -> list[str]:
    remote = step.remote if isinstance(step, RowsStep) else None
    return [] if remote is None else [remote.pumps[owner] for owner in remote.owners]


@pytest.mark.parametrize("seed", range(60))
def test_columns_and_single_transactions_give_the_same_batches(seed: int) -> None:
    messages = history(seed)
    (one, one_left), (other, other_left) = (
        merged(messages, columns=columns) for columns in (False, True)
    )
    assert [(run.commit_ts, list(run.payloads), run.bytes) for run in one] == [
        (run.commit_ts, list(run.payloads), run.bytes) for run in other
    ]
    assert one_left == other_left
    assert all(isinstance(run.payloads, RemoteRun) for run in other)
    assert planned(one, seed, columns=False) == planned(other, seed, columns=True)


def test_an_item_of_a_run_is_the_payload() -> None:
    run = RemoteRun.of("a", [5, 0], [1, 2], [b"", b"whole"])
    both = RemoteRun.joined([run, RemoteRun.of("b", [7], [3], [b"head"])])
    payloads: list[Remote | bytes] = [Remote("a", 5, 1), b"whole", Remote("b", 7, 3, b"head")]
    assert list(both) == payloads == [both[0], both[1], both[-1]]
    assert both.weight == sum(len(payload) for payload in payloads)
