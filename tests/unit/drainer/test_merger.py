import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drainer.intake.merger import PAYLOAD_OVERHEAD_BYTES, RUN_BYTES, Merger
from penstock.errors import NeedsOperator
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog


def payload(ts: int) -> bytes:
    return b"%d" % ts


def push(merger: Merger, source: str, *commit_ts: int) -> None:
    merger.push(source, list(commit_ts), [payload(ts) for ts in commit_ts])


def everything(merger: Merger) -> list[int]:
    out: list[int] = []
    while (merged := merger.take()) is not None:
        assert [payload(ts) for ts in merged.commit_ts] == list(merged.payloads)
        out += merged.commit_ts
    return out


def test_the_example_of_the_seed_waits_for_the_pump_that_is_behind() -> None:
    merger = Merger(0)
    for source in "abc":
        merger.add(source)
    push(merger, "a", 1, 3, 5, 7)
    push(merger, "b", 2, 4, 6)
    assert merger.take() is None
    assert merger.holders == ["c"]
    push(merger, "c", 8, 9)
    assert everything(merger) == [1, 2, 3, 4, 5, 6]
    assert (merger.watermark, merger.holders) == (6, ["b"])
    push(merger, "b", 10)
    assert everything(merger) == [7]
    assert merger.holders == ["a"]


def test_nothing_above_a_bound_is_emitted_before_the_bound_is_raised() -> None:
    merger = Merger(0)
    for source in "ab":
        merger.add(source)
    push(merger, "a", 1, 3, 5, 7)
    push(merger, "b", 2, 4, 6)
    assert merger.take(0) is None
    first = merger.take(3)
    assert first is not None
    assert first.commit_ts == [1, 2, 3]
    assert merger.take(3) is None
    assert merger.add("new") == 3
    assert merger.take(9) is None, "who joins meanwhile is waited for, whatever the bound"
    push(merger, "new", 6)
    rest = merger.take(9)
    assert rest is not None
    assert rest.commit_ts == [4, 5, 6]


def test_a_pump_that_joins_late_enters_at_what_was_emitted() -> None:
    merger = Merger(0)
    merger.add("a")
    push(merger, "a", 1, 3, 5)
    assert everything(merger) == [1, 3, 5]
    assert merger.add("new") == 5
    push(merger, "a", 9)
    assert merger.take() is None
    push(merger, "new", 8, 12)
    assert everything(merger) == [8, 9]


def test_without_pumps_nothing_is_emitted() -> None:
    merger = Merger(7)
    assert merger.take() is None
    assert merger.watermark == 7


def test_a_pump_that_leaves_still_has_what_it_sent_emitted() -> None:
    merger = Merger(0)
    merger.add("a")
    merger.add("b")
    push(merger, "a", 1, 5)
    push(merger, "b", 2, 9)
    merger.finish("b")
    assert everything(merger) == [1, 2, 5]
    push(merger, "a", 20)
    assert everything(merger) == [9, 20]
    assert merger.sources == ["a"]


def test_when_all_pumps_have_left_the_rest_is_emitted() -> None:
    merger = Merger(0)
    merger.add("a")
    merger.add("b")
    push(merger, "a", 1, 5)
    push(merger, "b", 2)
    merger.finish("a")
    merger.finish("b")
    assert everything(merger) == [1, 2, 5]
    assert merger.add("c") == 5


def test_a_pump_that_sends_out_of_order_stops_the_merge() -> None:
    merger = Merger(0)
    merger.add("a")
    push(merger, "a", 5)
    for wrong in ((5,), (4,), (6, 6), (8, 7)):
        with pytest.raises(NeedsOperator, match="sent commit_ts"):
            push(merger, "a", *wrong)


def test_what_was_emitted_in_an_earlier_run_must_not_come_again() -> None:
    merger = Merger(100)
    assert merger.add("a") == 100
    with pytest.raises(NeedsOperator):
        push(merger, "a", 100)


def test_a_transaction_that_two_pumps_hold_is_emitted_once() -> None:
    merger = Merger(0)
    merger.add("a")
    merger.add("b")
    push(merger, "a", 1, 3, 5)
    push(merger, "b", 2, 3, 6)
    assert everything(merger) == [1, 2, 3, 5]
    assert merger.duplicates == 1


def test_the_same_transaction_may_differ_in_bytes_but_not_in_its_start() -> None:
    def commit(start_ts: int, key: bytes) -> bytes:
        return encode_binlog(
            Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=9, prewrite_key=key)
        )

    for other, is_same in ((commit(5, b"k2"), True), (commit(6, b"k"), False)):
        merger = Merger(0)
        merger.add("a")
        merger.add("b")
        merger.push("a", [9], [commit(5, b"k")])
        merger.push("b", [9], [other])
        if is_same:
            merged = merger.take()
            assert merged is not None
            assert list(merged.commit_ts) == [9]
        else:
            with pytest.raises(NeedsOperator, match="different transactions"):
                merger.take()


def test_the_weight_of_what_waits_goes_down_to_zero() -> None:
    merger = Merger(0)
    merger.add("a")
    merger.add("b")
    push(merger, "a", *range(1, 100))
    push(merger, "b", 50)
    assert merger.bytes_of("a") > 99 * 80
    everything(merger)
    assert merger.bytes_of("a") > 0  # Half of one chunk still waits.
    push(merger, "b", 200)
    everything(merger)
    assert (merger.bytes_of("a"), merger.bytes_of("gone")) == (0, 0)
    assert merger.bytes > 0  # 200 waits for a.


@given(
    st.lists(st.sets(st.integers(1, 400), max_size=60), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_any_arrival_gives_the_sorted_union_and_never_passes_the_low_water(
    streams: list[set[int]], rng: random.Random
) -> None:
    merger = Merger(0)
    todo = {str(i): sorted(stream) for i, stream in enumerate(streams)}
    last = {source: 0 for source in todo}
    for source in todo:
        merger.add(source)
    out: list[int] = []
    while todo:
        source = rng.choice(sorted(todo))
        size = rng.randint(1, 20)
        run, rest = todo[source][:size], todo[source][size:]
        if run:
            push(merger, source, *run)
            last[source] = run[-1]
        if rest:
            todo[source] = rest
        else:
            del todo[source]
            merger.finish(source)
            last.pop(source)
        if rng.random() < 0.7:
            out += everything(merger)
            if last:
                assert not out or out[-1] <= max(min(last.values()), out[-1])
                waiting = [ts for ts in set().union(*streams) if ts <= min(last.values())]
                assert set(waiting) <= set(out)
    out += everything(merger)
    assert out == sorted(set().union(*streams))
    assert merger.bytes == 0


def test_small_messages_of_many_pumps_leave_in_one_run_and_large_ones_do_not_gather() -> None:
    merger = Merger(0)
    for source in range(20):
        merger.add(str(source))
    for at in range(1, 2001):
        push(merger, str(at % 20), at)
    merged = merger.take()
    assert merged is not None
    assert list(merged.commit_ts) == list(range(1, 1982))

    large = Merger(0)
    for name in "ab":
        large.add(name)
        for at in range(1, 9):
            large.push(name, [at * 10 + (name == "b")], [bytes(RUN_BYTES)])
    run = large.take()
    assert run is not None
    assert list(run.commit_ts) == [10]


@given(
    pumps=st.integers(1, 200),
    message=st.integers(1, 40),
    skew=st.integers(1, 30),
    rng=st.randoms(use_true_random=False),
)
@settings(max_examples=30)
def test_each_run_of_many_pumps_is_full_and_bounded(
    pumps: int, message: int, skew: int, rng: random.Random
) -> None:
    merger, each = Merger(0), 10_000
    payload = bytes(each - PAYLOAD_OVERHEAD_BYTES)
    streams: dict[str, list[int]] = {str(at): [] for at in range(pumps)}
    for ts in range(1, 1001):
        streams[str(min(rng.randrange(pumps * skew), pumps - 1))].append(ts)
    for source, stream in streams.items():
        merger.add(source)
        for at in range(0, len(stream), message):
            run = stream[at : at + message]
            merger.push(source, run, [payload] * len(run))
        merger.push(source, [1001], [payload])
    counts = []
    while (merged := merger.take()) is not None:
        counts.append(len(merged.commit_ts))
    assert sum(counts) == 1001
    assert all(count * each >= RUN_BYTES for count in counts[:-1])
    assert all(count * each <= RUN_BYTES + (pumps + 1) * message * each for count in counts)


def test_a_transaction_that_three_pumps_hold_is_emitted_once_and_its_first_copy_is_kept() -> None:
    merger = Merger(0)
    for source in "abc":
        merger.add(source)
        push(merger, source, 3, 7, 9)
    assert everything(merger) == [3, 7, 9]
    assert merger.duplicates == 6


def test_a_run_that_is_refused_leaves_nothing_behind() -> None:
    merger = Merger(0)
    merger.add("a")
    with pytest.raises(NeedsOperator, match="sent commit_ts 6 after 6"):
        push(merger, "a", 5, 6, 6, 7)
    assert (merger.received_ts("a"), merger.bytes) == (0, 0)


def test_what_comes_too_late_does_not_count_as_received_and_holds_the_merge() -> None:
    def committed(ts: int) -> bytes:
        return encode_binlog(Binlog(tp=BinlogType.COMMIT, start_ts=ts - 1, commit_ts=ts))

    merger = Merger(10)
    merger.add("a")
    assert merger.add("back", 3) == 3
    push(merger, "a", 12, 14)
    with pytest.raises(NeedsOperator, match=r"transaction 5, .* of \(3, 10\] is not downstream"):
        merger.push("back", [5, 20], [committed(5), committed(20)])
    assert (merger.received_ts("back"), merger.watermark, merger.take()) == (3, 3, None)
