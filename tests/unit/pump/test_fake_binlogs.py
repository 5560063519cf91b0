import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from penstock.codes import Code
from penstock.errors import Retryable
from penstock.wire.codec import decode_binlog
from pump.cluster.clock import FakeBinlogs
from pump.store.record import Record
from tests.kit.wait import pass_time, run_in_virtual_time


class Stream:
    """Storage, writer and pulls of a Pump in one: what is written can be pulled at once."""

    def __init__(self) -> None:
        self.max_commit_ts = 0
        self.moved_at_s = self.logged_at_s = float("-inf")
        self.puller_waits = asyncio.Event()
        self.asked = asyncio.Event()
        self.asked_ts = 0
        self.held_up = False
        self.written: list[tuple[float, int]] = []
        self.watermarks: list[tuple[float, int]] = []

    async def between_groups(self, call: Callable[[], None]) -> None:
        call()

    def advance(self, ts: int) -> None:
        self.watermarks.append((asyncio.get_running_loop().time(), ts))
        if not self.held_up:
            self.moves_to(ts)

    def wake(self) -> None:
        pass

    async def write(self, records: Sequence[Record]) -> None:
        for record in records:
            assert decode_binlog(record.payload).is_fake
            assert record.start_ts == record.commit_ts
            self.written.append((asyncio.get_running_loop().time(), record.commit_ts))
            if not self.held_up:
                self.is_logged_to(record.commit_ts)

    def is_logged_to(self, ts: int) -> None:
        self.moves_to(ts)
        self.logged_at_s = self.moved_at_s

    def moves_to(self, ts: int) -> None:
        self.max_commit_ts = ts
        self.moved_at_s = asyncio.get_running_loop().time()

    def ask(self, past_ts: int) -> None:
        self.asked_ts = past_ts
        self.asked.set()

    @property
    def stamps(self) -> list[int]:
        return [ts for _, ts in self.watermarks]


def run(
    body: Callable[[Stream, FakeBinlogs], Awaitable[None]], next_ts: Callable[[], int]
) -> Stream:
    async def main() -> Stream:
        stream = Stream()

        async def ask() -> int:
            return next_ts()

        fake_binlogs = FakeBinlogs(
            stream,  # type: ignore[arg-type]
            stream,  # type: ignore[arg-type]
            stream,  # type: ignore[arg-type]
            ask,
            interval_pulled_s=0.02,
            interval_idle_s=0.2,
        )
        fake_binlogs.retry_s = 0.01
        task = asyncio.create_task(fake_binlogs.run())
        try:
            await body(stream, fake_binlogs)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return stream

    return run_in_virtual_time(main())


def counter(begin: int = 1000) -> Callable[[], int]:
    return itertools.count(begin).__next__


def test_an_idle_pump_that_no_one_pulls_writes_rarely() -> None:
    async def body(stream: Stream, fake_binlogs: FakeBinlogs) -> None:
        await pass_time(0.3)

    assert len(run(body, counter()).written) == 2


def test_a_stream_that_is_ahead_of_the_oracle_gets_no_more_than_any_other() -> None:
    async def body(stream: Stream, fake_binlogs: FakeBinlogs) -> None:
        stream.is_logged_to(10**9)
        stream.held_up = True
        stream.puller_waits.set()
        await pass_time(0.1)

    assert 1 <= len(run(body, counter()).stamps) <= 6


def test_a_waiting_puller_gets_one_at_once_and_then_one_each_interval() -> None:
    async def body(stream: Stream, fake_binlogs: FakeBinlogs) -> None:
        stream.is_logged_to(1)
        await pass_time(0.05)
        assert stream.stamps == []
        begin_s = asyncio.get_running_loop().time()
        stream.puller_waits.set()
        await pass_time(0.01)
        assert len(stream.stamps) == 1
        assert stream.watermarks[0][0] - begin_s < 0.01
        await pass_time(0.1)

    stream = run(body, counter())
    pauses = [b - a for (a, _), (b, _) in itertools.pairwise(stream.watermarks)]
    assert pauses == pytest.approx([0.02] * 5)
    assert stream.written == []


def test_a_log_that_only_watermarks_pass_gets_a_fake_binlog_each_idle_interval() -> None:
    async def body(stream: Stream, fake_binlogs: FakeBinlogs) -> None:
        stream.is_logged_to(1)
        stream.puller_waits.set()
        await pass_time(0.65)

    stream = run(body, counter())
    assert len(stream.written) == 3
    assert 25 <= len(stream.watermarks) <= 33
    advanced = [ts for _, ts in sorted([*stream.written, *stream.watermarks])]
    assert advanced == sorted(advanced)


async def test_a_watermark_is_confirmed_after_it_was_taken_and_else_not_published() -> None:
    steps: list[str] = []

    async def next_ts() -> int:
        steps.append("taken")
        return 1000 + len(steps)

    def confirm() -> None:
        steps.append("confirmed")
        if steps == ["taken", "confirmed"]:
            raise Retryable("a copy does not answer", code=Code.TOO_FEW_COPIES)

    stream: Any = Stream()
    fake_binlogs = FakeBinlogs(stream, stream, stream, next_ts, confirm=confirm)
    with pytest.raises(Retryable):
        await fake_binlogs.advance()
    assert stream.stamps == []
    await fake_binlogs.advance()
    assert (stream.stamps, steps) == ([1003], ["taken", "confirmed"] * 2)


def test_a_stream_that_moves_by_itself_needs_none() -> None:
    async def body(stream: Stream, fake_binlogs: FakeBinlogs) -> None:
        stream.puller_waits.set()
        for ts in range(1, 30):
            stream.is_logged_to(ts)
            await pass_time(0.005)

    stream = run(body, counter())
    assert (stream.written, stream.watermarks) == ([], [])


def test_no_second_one_while_the_first_is_held_up_by_an_open_transaction() -> None:
    async def body(stream: Stream, fake_binlogs: FakeBinlogs) -> None:
        stream.is_logged_to(1)
        stream.held_up = True
        stream.puller_waits.set()
        await pass_time(0.1)
        assert stream.stamps == [1000]
        stream.held_up = False
        stream.moves_to(1000)
        await pass_time(0.05)

    assert run(body, counter()).stamps[:2] == [1000, 1001]


def test_one_who_asks_gets_one_at_once_where_the_stream_is_not_there_yet() -> None:
    async def body(stream: Stream, fake_binlogs: FakeBinlogs) -> None:
        stream.is_logged_to(500)
        stream.puller_waits.set()
        await pass_time(0.001)
        stream.ask(500 - 1)
        await pass_time(0.001)
        assert stream.stamps == []
        stream.ask(500 + 1)
        await pass_time(0.001)
        assert stream.stamps == [1000]
        await pass_time(0.015)

    assert run(body, counter()).stamps == [1000], "one for each time that someone asks"


def test_one_who_asks_for_a_time_far_ahead_gets_no_more_than_one() -> None:
    async def body(stream: Stream, fake_binlogs: FakeBinlogs) -> None:
        stream.is_logged_to(500)
        stream.puller_waits.set()
        stream.ask(1 << 62)
        await pass_time(0.015)

    assert run(body, counter()).stamps == [1000]


def test_one_who_asks_is_answered_by_the_open_transaction_that_holds_up_the_last_one() -> None:
    async def body(stream: Stream, fake_binlogs: FakeBinlogs) -> None:
        stream.is_logged_to(500)
        stream.puller_waits.set()
        stream.held_up = True
        for _ in range(5):
            stream.ask(900)
            await pass_time(0.001)

    assert run(body, counter()).stamps == [1000]


def test_a_dead_oracle_is_reported_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    answers = itertools.count(75)

    def next_ts() -> int:
        answer = next(answers)
        if answer < 77:
            raise Retryable("no leader", code=Code.ETCD_AWAY)
        return answer

    async def body(stream: Stream, fake_binlogs: FakeBinlogs) -> None:
        stream.is_logged_to(1)
        stream.puller_waits.set()
        await pass_time(0.06)

    assert run(body, next_ts).stamps[0] == 77
    assert caplog.text.count("no timestamp for an idle stream") == 1
