import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import cast

import pytest

from penstock.cluster.history import History
from penstock.codes import Code
from penstock.errors import PenstockError, Retryable
from penstock.schema.model import DdlJob, DdlType
from penstock.ts import compose
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog, encode_binlog
from pump.cluster.resolver import (
    PATIENCE_S_MAX,
    ROLLED_BACK,
    UNKNOWN,
    DdlResolver,
    Outcome,
    Question,
    Resolution,
    Resolving,
    TimeoutResolver,
)
from pump.store.record import Record
from pump.store.storage import Unmatched
from tests.kit.wait import never, pass_time, run_in_virtual_time, until

START_TS = compose(1_000_000, 0)


class Waiting:
    """A storage that knows only unmatched Prewrites, and a writer that ends them."""

    def __init__(self, *prewrites: Binlog) -> None:
        self.open = {prewrite.start_ts: prewrite for prewrite in prewrites}
        self.written: list[Binlog] = []
        self.error: PenstockError | None = None
        self.floor_ts = 0
        self.reads = 0

    def reader(self, binlog: Binlog) -> Callable[[], bytes]:
        def read() -> bytes:
            self.reads += 1
            return encode_binlog(binlog)

        return read

    def unmatched(self, *, older_than_s: float) -> list[Unmatched]:
        assert older_than_s == 1.0
        return [
            Unmatched(ts, self.reader(binlog), self.floor_ts) for ts, binlog in self.open.items()
        ]

    async def write(self, records: Sequence[Record]) -> None:
        if self.error is not None:
            raise self.error
        for record in records:
            self.written.append(decode_binlog(record.payload))
            assert record.start_ts == self.written[-1].start_ts
            assert record.commit_ts == self.written[-1].commit_ts
            del self.open[record.start_ts]


class Oracle:
    """A resolver that says what it was made to say, and counts."""

    def __init__(self, *answers: Resolution | Retryable) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []
        self.questions: list[Question] = []

    async def resolve(self, question: Question) -> Resolution:
        self.asked.append(question.start_ts)
        self.questions.append(question)
        answer = self.answers.pop(0)
        if isinstance(answer, Retryable):
            raise answer
        return answer

    async def close(self) -> None:
        pass


def prewrite(start_ts: int = START_TS, ddl_job_id: int = 3) -> Binlog:
    return Binlog(
        tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_key=b"the key", ddl_job_id=ddl_job_id
    )


def ask(waiting: Waiting, resolver: Oracle, times: int = 1) -> Resolving:
    resolving = Resolving(waiting, waiting, resolver)  # type: ignore[arg-type]

    async def main() -> None:
        for _ in range(times):
            await resolving.ask()

    asyncio.run(main())
    return resolving


def test_a_committed_transaction_gets_its_commit() -> None:
    waiting = Waiting(prewrite())
    resolving = ask(waiting, Oracle(Resolution(Outcome.COMMITTED, START_TS + 5)))
    committed = Binlog(
        tp=BinlogType.COMMIT, start_ts=START_TS, commit_ts=START_TS + 5, ddl_job_id=3
    )
    assert waiting.written == [committed]
    assert resolving.resolved == 1


def test_a_transaction_rolled_back_gets_its_rollback() -> None:
    waiting = Waiting(prewrite())
    ask(waiting, Oracle(ROLLED_BACK))
    assert waiting.written == [Binlog(tp=BinlogType.ROLLBACK, start_ts=START_TS)]


def test_an_unknown_one_is_asked_about_again_only_after_a_pause() -> None:
    resolver = Oracle(UNKNOWN, UNKNOWN, UNKNOWN)
    waiting = Waiting(prewrite())
    ask(waiting, resolver, times=5)
    assert resolver.asked == [START_TS]
    assert waiting.written == []


def test_the_pauses_grow() -> None:
    waiting = Waiting(prewrite())
    resolving = Resolving(waiting, waiting, Oracle(*[UNKNOWN] * 10))  # type: ignore[arg-type]

    async def main() -> list[float]:
        lengths = []
        for _ in range(8):
            await resolving.ask()
            pause = resolving._cases[START_TS]
            lengths.append(pause.length_s)
            pause.until_s = 0
        return lengths

    assert asyncio.run(main()) == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_resolver_that_knows_when_it_will_know_more_is_asked_then() -> None:
    soon = Resolution(Outcome.UNKNOWN, why="its lock holds", again_s=0.7)
    waiting = Waiting(prewrite())
    resolving = Resolving(waiting, waiting, Oracle(soon))  # type: ignore[arg-type]

    async def main() -> float:
        await resolving.ask()
        return resolving._cases[START_TS].until_s - asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == pytest.approx(0.7)


class Slow(Waiting):
    """Writers of which each commits `takes_s` after its Prewrite, except the dead one."""

    def __init__(self, per_s: int, takes_s: float, dead_ts: int) -> None:
        super().__init__()
        self.per_s, self.takes_s, self.dead_ts = per_s, takes_s, dead_ts

    def unmatched(self, *, older_than_s: float) -> list[Unmatched]:
        now_s, started = asyncio.get_running_loop().time(), []
        for at in range(max(0, int((now_s - 1) * self.per_s) + 1)):
            begun_s = at / self.per_s
            dead = self.dead_ts == START_TS + at and not self.written
            if dead or now_s < begun_s + self.takes_s:
                started.append(prewrite(START_TS + at))
        self.open = {each.start_ts: each for each in started}
        return super().unmatched(older_than_s=older_than_s)


class KnowsDead(Oracle):
    def __init__(self, dead_ts: int) -> None:
        super().__init__()
        self.dead_ts = dead_ts

    async def resolve(self, question: Question) -> Resolution:
        self.answers = [ROLLED_BACK if question.start_ts == self.dead_ts else UNKNOWN]
        return await super().resolve(question)


@pytest.mark.parametrize(
    ("per_s", "takes_s", "dead"), [(16, 1.4, 200), (20, 3.0, 150), (20, 4.5, 150), (10, 8.0, 100)]
)
def test_only_the_dead_among_slow_writers_is_asked_about_and_within_the_limit(
    per_s: int, takes_s: float, dead: int
) -> None:
    dead_ts = START_TS + dead
    waiting = Slow(per_s, takes_s, dead_ts)
    resolver = KnowsDead(dead_ts)
    resolving = Resolving(waiting, waiting, resolver)  # type: ignore[arg-type]
    asked_s: dict[int, float] = {}

    async def main() -> None:
        until_s = dead / per_s + PATIENCE_S_MAX + 2
        while (now_s := asyncio.get_running_loop().time()) < until_s:
            await resolving.ask()
            for ts in resolver.asked:
                asked_s.setdefault(ts, now_s)
            await pass_time(0.25)

    run_in_virtual_time(main())
    begun_s = dead / per_s
    assert asked_s[dead_ts] <= begun_s + min(2 * takes_s + 2, PATIENCE_S_MAX + 1)
    # Before the first late Commits, nothing shows that the writers are alive.
    early = per_s * (takes_s + 1)
    others = [ts - START_TS for ts in asked_s if ts != dead_ts]
    assert all(at <= early for at in others), (early, others)


def test_one_slow_commit_among_few_lets_no_dead_writer_wait_longer() -> None:
    waiting, resolver = Waiting(prewrite()), Oracle(UNKNOWN, ROLLED_BACK)
    resolving = Resolving(waiting, waiting, resolver)  # type: ignore[arg-type]

    async def main() -> None:
        await resolving.ask()
        waiting.open = {START_TS + 1: prewrite(START_TS + 1)}
        await resolving.ask()

    run_in_virtual_time(main())
    assert resolver.asked == [START_TS, START_TS + 1]
    assert [each.start_ts for each in waiting.written] == [START_TS + 1]


def test_few_prewrites_of_many_are_read_in_a_tick_and_all_in_their_turn() -> None:
    waiting = Waiting(*(prewrite(START_TS + at) for at in range(1000)))
    resolving = Resolving(waiting, waiting, Oracle(*[ROLLED_BACK] * 1000))  # type: ignore[arg-type]

    async def main() -> list[int]:
        reads = [0]
        while waiting.open:
            await resolving.ask()
            reads.append(waiting.reads)
            await pass_time(0.25)
        return reads

    reads = run_in_virtual_time(main())
    assert max(two - one for one, two in pairwise(reads)) < 100
    assert [each.start_ts for each in waiting.written] == [START_TS + at for at in range(1000)]


def test_what_waits_is_listed_with_its_key_and_why() -> None:
    soon = Resolution(Outcome.UNKNOWN, why="its lock holds", again_s=9)
    waiting = Waiting(prewrite(), prewrite(START_TS + 1))
    resolving = ask(waiting, Oracle(soon, Retryable("PD is away", code=Code.ETCD_AWAY)))
    first, second = resolving.waiting()
    key = b"the key".hex()
    assert (first.start_ts, first.key, first.waits) == (START_TS, key, "its lock holds")
    assert (second.start_ts, second.waits) == (START_TS + 1, "PD is away [PS-2001]")
    # A date of this machine's clock, which is compared with nothing else; a zone would show.
    assert abs(time.time() - datetime.fromisoformat(first.open_since).timestamp()) < 1000


def test_a_failure_that_a_resolver_reports_is_reported_as_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = Resolution(Outcome.UNKNOWN, why="TiKV is away", again_s=2, failure=True)
    ask(Waiting(prewrite()), Oracle(failed))
    assert f"transaction {START_TS} stays open, trying again: TiKV is away" in caplog.text


def test_a_question_says_for_how_long_and_reads_the_prewrite_once() -> None:
    waiting, resolver = Waiting(prewrite()), Oracle(UNKNOWN, UNKNOWN)
    resolving = Resolving(waiting, waiting, resolver)  # type: ignore[arg-type]

    async def main() -> None:
        await resolving.ask()
        await pass_time(1.5)
        await resolving.ask()

    run_in_virtual_time(main())
    first, second = resolver.questions
    assert (first.start_ts, first.prewrite_key, first.ddl_job_id) == (START_TS, b"the key", 3)
    assert (first.waited_s, second.waited_s) == (1.0, 2.5)
    assert waiting.reads == 1


async def test_a_question_without_an_answer_keeps_no_other_from_being_asked() -> None:
    class Stuck(Oracle):
        async def resolve(self, question: Question) -> Resolution:
            if question.start_ts == START_TS:
                await never()
            return await super().resolve(question)

    waiting, resolver = Waiting(prewrite(), prewrite(START_TS + 1)), Stuck(ROLLED_BACK)
    resolving = Resolving(waiting, waiting, resolver)  # type: ignore[arg-type]

    running = asyncio.create_task(resolving.run())
    await until(lambda: bool(waiting.written))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [binlog.start_ts for binlog in waiting.written] == [START_TS + 1]
    assert list(waiting.open) == [START_TS]


def test_a_commit_that_the_stream_has_passed_belongs_to_another_pump() -> None:
    waiting = Waiting(prewrite())
    waiting.floor_ts = START_TS + 5
    ask(waiting, Oracle(Resolution(Outcome.COMMITTED, START_TS + 5)))
    assert waiting.written == [Binlog(tp=BinlogType.ROLLBACK, start_ts=START_TS)]


def test_a_resolver_that_breaks_its_promise_ends_the_task() -> None:
    class Broken(Oracle):
        async def resolve(self, question: Question) -> Resolution:
            raise ZeroDivisionError

    waiting = Waiting(prewrite())
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Resolving(waiting, waiting, Broken()).run())  # type: ignore[arg-type]


def test_the_same_failure_of_many_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    waiting = Waiting(*(prewrite(START_TS + i) for i in range(50)))
    ask(waiting, Oracle(*[Retryable("the database is away", code=Code.ETCD_AWAY)] * 50))
    assert caplog.text.count("the database is away") == 1


def test_one_failure_does_not_keep_others_from_being_resolved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting = Waiting(prewrite(), prewrite(START_TS + 1))
    ask(waiting, Oracle(Retryable("etcd is away", code=Code.ETCD_AWAY), ROLLED_BACK))
    assert [binlog.start_ts for binlog in waiting.written] == [START_TS + 1]
    assert f"transaction {START_TS} stays open, trying again: etcd is away" in caplog.text


def test_a_refused_answer_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    waiting = Waiting(prewrite())
    waiting.error = Retryable("the Pump is overloaded", code=Code.ETCD_AWAY)
    assert ask(waiting, Oracle(ROLLED_BACK)).resolved == 0
    assert "overloaded" in caplog.text


@pytest.mark.parametrize(("waited_s", "expected"), [(599, UNKNOWN), (601, ROLLED_BACK)])
@pytest.mark.parametrize("start_ts", [1, START_TS, 1 << 62])
def test_without_any_knowledge_the_time_that_it_was_open_here_decides(
    start_ts: int, waited_s: float, expected: Resolution
) -> None:
    resolver = TimeoutResolver(txn_timeout_s=600)
    assert asyncio.run(resolver.resolve(Question(start_ts, waited_s=waited_s))) == expected


def test_time_for_which_the_pump_was_stopped_does_not_make_a_transaction_older() -> None:
    waiting, resolver = Waiting(prewrite()), Oracle(UNKNOWN, UNKNOWN)
    resolving = Resolving(waiting, waiting, resolver)  # type: ignore[arg-type]

    async def main() -> None:
        await resolving.ask()
        await pass_time(3600)  # As under SIGSTOP: no tick in between.
        await resolving.ask()

    run_in_virtual_time(main())
    assert [each.waited_s for each in resolver.questions] == [1.0, 3.0]


def job(finished_ts: int, start_ts: int = 0) -> DdlJob:
    return DdlJob(
        id=7,
        type=DdlType.CREATE_SCHEMA,
        schema_id=1,
        schema_name="s",
        query="",
        schema_version=1,
        start_ts=start_ts,
        finished_ts=finished_ts,
    )


class Jobs:
    """A DDL history with one job at most, which may be recorded while a resolver decides."""

    def __init__(self, found: DdlJob | None = None, overtaken: int = 0) -> None:
        self.found = found
        self.late: DdlJob | None = None
        self.overtaken = overtaken
        self.rolled_back: list[int] = []

    def get(self, job_id: int) -> DdlJob | None:
        assert job_id in (7, 8)
        return self.found

    def is_overtaken(self, job_id: int) -> bool:
        return job_id == self.overtaken

    def roll_back(self, job_id: int) -> DdlJob | None:
        self.rolled_back.append(job_id)
        return self.late or self.found


def resolved(jobs: Jobs, otherwise: Resolution = UNKNOWN, job_id: int = 7) -> Resolution:
    resolver = DdlResolver(cast(History, jobs), Oracle(otherwise))
    return asyncio.run(resolver.resolve(Question(START_TS, ddl_job_id=job_id)))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (job(START_TS + 9), Resolution(Outcome.COMMITTED, START_TS + 9)),
        (job(START_TS + 9, START_TS), Resolution(Outcome.COMMITTED, START_TS + 9)),
        (job(START_TS + 9, START_TS + 5), UNKNOWN),  # The same id after a restore of etcd.
        (job(0), UNKNOWN),
        (None, UNKNOWN),
    ],
)
def test_a_ddl_is_looked_up_in_the_history(found: DdlJob | None, expected: Resolution) -> None:
    assert resolved(Jobs(found)) == expected


def test_a_ddl_that_was_not_recorded_before_a_later_one_is_rolled_back() -> None:
    assert resolved(Jobs(overtaken=7)) == ROLLED_BACK
    assert resolved(Jobs(overtaken=7), job_id=8) == UNKNOWN


def test_a_ddl_is_rolled_back_once_the_history_can_never_hold_it() -> None:
    jobs = Jobs()
    assert resolved(jobs, ROLLED_BACK) == ROLLED_BACK
    assert jobs.rolled_back == [7]


@pytest.mark.fault("a Pump rolls a DDL back while its writer records it")
def test_a_ddl_that_is_recorded_while_it_is_about_to_be_rolled_back_is_committed() -> None:
    jobs = Jobs()
    jobs.late = job(START_TS + 9, START_TS)
    assert resolved(jobs, ROLLED_BACK) == Resolution(Outcome.COMMITTED, START_TS + 9)


def test_what_is_no_ddl_is_not_looked_up() -> None:
    resolver = DdlResolver(cast(History, Jobs()), Oracle(ROLLED_BACK))
    assert asyncio.run(resolver.resolve(Question(START_TS))) == ROLLED_BACK
