"""The rule by which a transaction of a TiDB ends: TiKV's answer, and nothing but a final one."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.pb import tikvpb_pb2
from penstock.ts import compose
from pump.cluster.resolver import ROLLED_BACK, UNKNOWN, Outcome, Question, Resolution
from pump.cluster.tikv_resolver import TikvResolver
from pump.tikv import State, TransactionStatus, described, status_of
from tests.kit.fakes.scripted_tidb import meta_key, row_key

BEGAN_MS = 1_700_000_000_000
START_TS = compose(BEGAN_MS, 7)
COMMIT_TS = compose(BEGAN_MS + 5, 0)
KEY = row_key(42, 1)
ABSENT = TransactionStatus(State.ABSENT)
GONE = TransactionStatus(State.ROLLED_BACK)
COMMITTED = TransactionStatus(State.COMMITTED, COMMIT_TS)
Answer = TransactionStatus | Retryable | NeedsOperator


def locked(ttl_ms: int) -> TransactionStatus:
    return TransactionStatus(State.LOCKED, ttl_ms=ttl_ms)


class World:
    """A TiKV that gives one answer after the other, the last one again and again; and a clock."""

    def __init__(
        self, *answers: Answer, safe_point: int = 0, given_up: tuple[int, ...] = ()
    ) -> None:
        self.answers = list(answers)
        self.safe_point = safe_point
        self.now_s = 1.0
        self.asked: list[tuple[bytes, int, int, bool]] = []
        self.elsewhere: list[Question] = []
        self.pd_is_away = False
        self.on_forbid: Callable[[], None] = lambda: None
        store: Any = self
        self.resolver = TikvResolver(
            store,
            self.next_ts,
            _Otherwise(self),
            lock_wait_s=3.0,
            given_up=given_up,
            monotonic_s=lambda: self.now_s,
        )

    async def next_ts(self) -> int:
        if self.pd_is_away:
            raise Retryable("PD is away", code=Code.ETCD_AWAY)
        return compose(BEGAN_MS + int(self.now_s * 1000), 0)

    async def status(
        self, key: bytes, start_ts: int, current_ts: int, *, forbid: bool = False
    ) -> TransactionStatus:
        self.asked.append((key, start_ts, current_ts, forbid))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if forbid:
            self.on_forbid()
            return GONE if answer is ABSENT else answer
        return answer

    async def gc_safe_point(self) -> int:
        return self.safe_point

    async def close(self) -> None:
        pass

    def ask(self, size_bytes: int = 100, key: bytes = KEY, ddl_job_id: int = 0) -> Resolution:
        question = Question(START_TS, key, ddl_job_id, self.now_s, size_bytes)
        return asyncio.run(self.resolver.resolve(question))

    @property
    def forbids(self) -> int:
        return sum(forbid for *_, forbid in self.asked)


class _Otherwise:
    def __init__(self, world: World) -> None:
        self._world = world

    async def resolve(self, question: Question) -> Resolution:
        self._world.elsewhere.append(question)
        return ROLLED_BACK

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(COMMITTED, Resolution(Outcome.COMMITTED, COMMIT_TS)), (GONE, ROLLED_BACK)],
)
def test_a_final_answer_is_one_at_the_first_look(
    answer: TransactionStatus, expected: Resolution
) -> None:
    world = World(answer)
    assert world.ask() == expected
    assert world.asked == [(KEY, START_TS, compose(BEGAN_MS + 1000, 0), False)]


def test_a_live_lock_keeps_its_transaction_open_and_says_for_how_long() -> None:
    world = World(locked(20_000))
    world.now_s = 5.0
    found = world.ask()
    assert found == UNKNOWN
    assert found.why == "its lock in TiKV lasts 15.0 s more, unless it is renewed"
    assert found.again_s == 2.0
    world.now_s = 19.5
    assert 0.5 < world.ask().again_s < 0.6, "it is asked again right after the lock's end"
    world.now_s = 10_000.0
    assert world.ask() == UNKNOWN, "TiKV says when a lock is over, no clock of ours"
    assert world.forbids == 0


def test_the_lock_of_an_async_commit_never_ends_by_its_age() -> None:
    world = World(TransactionStatus(State.LOCKED, ttl_ms=1, is_async_commit=True))
    world.now_s = 9_999.0
    assert world.ask() == UNKNOWN
    assert "async commit" in world.ask().why


def test_a_transaction_that_commits_while_it_is_asked_is_committed() -> None:
    world = World(locked(3_000), COMMITTED)
    assert world.ask() == UNKNOWN
    assert world.ask() == Resolution(Outcome.COMMITTED, COMMIT_TS)


def test_an_absent_lock_is_forbidden_only_after_the_wait() -> None:
    world = World(ABSENT)
    waited = []
    for now_s in (1.0, 2.0, 3.9):
        world.now_s = now_s
        found = world.ask()
        waited.append((found.outcome, world.forbids))
        assert "no lock and no record" in found.why
    assert waited == [(Outcome.UNKNOWN, 0)] * 3
    world.now_s = 4.0
    assert world.ask() == ROLLED_BACK
    assert world.forbids == 1


def test_the_pauses_of_an_absent_lock_end_with_the_wait() -> None:
    world = World(ABSENT)
    spent_s = 0.0
    while (found := world.ask()) == UNKNOWN:
        world.now_s += found.again_s
        spent_s += found.again_s
    assert found == ROLLED_BACK
    assert spent_s < 3.2


def test_a_lock_that_comes_in_the_last_moment_is_respected() -> None:
    world = World(ABSENT, ABSENT, locked(3_000))
    world.ask()
    world.now_s = 4.5
    assert world.ask() == UNKNOWN
    assert world.forbids == 1
    world.answers = [COMMITTED]
    assert world.ask().commit_ts == COMMIT_TS


def test_the_wait_begins_again_after_an_answer_that_did_not_come() -> None:
    world = World(ABSENT, Retryable("the region has no leader", code=Code.ETCD_AWAY), ABSENT)
    world.ask()
    world.now_s = 3.5
    failed = world.ask()
    assert (failed, failed.failure) == (UNKNOWN, True)
    assert failed.why == "the region has no leader [PS-2001]"
    for now_s in (4.5, 7.0):
        world.now_s = now_s
        assert world.ask() == UNKNOWN, "a TiDB that waits for the region must have its turn first"
    world.now_s = 7.5
    assert world.ask() == ROLLED_BACK


def test_an_answer_that_is_none_is_a_failure_and_decides_nothing() -> None:
    world = World(
        NeedsOperator("TiKV has an error", hint="look at its log", code=Code.DDL_UNSUPPORTED)
    )
    found = world.ask()
    assert (found, found.failure) == (UNKNOWN, True)
    assert "TiKV has an error" in found.why


def test_without_a_time_from_pd_nothing_is_asked_and_nothing_decided() -> None:
    world = World(ABSENT)
    world.ask()
    world.now_s, world.pd_is_away = 3_600.0, True
    found = world.ask()
    assert (found, found.failure, found.why) == (UNKNOWN, True, "PD is away [PS-2001]")
    assert len(world.asked) == 1


def test_a_large_transaction_may_still_have_its_regions_split() -> None:
    world = World(ABSENT)
    for now_s in range(1, 151, 2):
        world.now_s = float(now_s)
        assert world.ask(size_bytes=5 << 20) == UNKNOWN
    world.now_s = 151.0
    assert world.ask(size_bytes=5 << 20) == ROLLED_BACK


def test_an_absence_that_was_not_looked_at_for_long_is_counted_again_from_zero() -> None:
    world = World(ABSENT)
    world.ask()
    world.now_s = 500.0
    assert world.ask() == UNKNOWN
    assert world.forbids == 0


@pytest.mark.parametrize("safe_point", [START_TS, START_TS + 1])
def test_what_tikv_may_have_forgotten_stays_open_and_names_its_key(safe_point: int) -> None:
    world = World(ABSENT, safe_point=safe_point)
    world.ask()
    for now_s in (4.5, 9_999.0, 10_003.0):
        world.now_s = now_s
        found = world.ask()
        assert found == UNKNOWN
    assert found.failure
    assert f"{START_TS} with the key {KEY.hex()}" in found.why
    assert world.forbids == 0


def test_what_was_given_up_is_left_out_and_named_but_only_where_tikv_has_forgotten_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(locked(9_000), ABSENT, safe_point=START_TS, given_up=(START_TS,))
    assert world.ask() == UNKNOWN
    assert world.ask() == UNKNOWN
    world.now_s = 4.5
    assert world.ask() == ROLLED_BACK
    assert (world.forbids, "left out" in caplog.text) == (0, True)
    assert str(START_TS) in caplog.text
    assert KEY.hex() in caplog.text
    world.answers = [COMMITTED]
    assert world.ask().commit_ts == COMMIT_TS


def test_what_began_after_the_safe_point_cannot_be_forgotten() -> None:
    world = World(ABSENT, safe_point=START_TS - 1)
    world.ask()
    world.now_s = 4.5
    assert world.ask() == ROLLED_BACK


def test_a_ddl_of_a_tidb_is_tikv_s_to_answer_and_not_the_history_s() -> None:
    world = World(COMMITTED)
    assert world.ask(key=meta_key(), ddl_job_id=77).commit_ts == COMMIT_TS
    assert world.elsewhere == []


@pytest.mark.parametrize("key", [b"", b"outbox/shop/" + b"0" * 32, b"the key", b"me", b"t"])
def test_what_has_no_key_of_tidb_is_asked_elsewhere(key: bytes) -> None:
    world = World(COMMITTED)
    assert world.ask(key=key, ddl_job_id=3) == ROLLED_BACK
    assert [q.prewrite_key for q in world.elsewhere] == [key]
    assert world.asked == []


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 30),
            st.sampled_from(
                [ABSENT, locked(3_000), locked(60_000), Retryable("away", code=Code.ETCD_AWAY)]
            ),
        ),
        max_size=30,
    )
)
def test_nothing_is_forbidden_before_three_seconds_of_nothing_but_absence(
    looks: list[tuple[float, Answer]],
) -> None:
    world = World(ABSENT)

    async def follow() -> None:
        absent_since: float | None = None
        for pause_s, answer in looks:
            world.now_s += pause_s
            world.answers, before = [answer], world.forbids
            found = await world.resolver.resolve(Question(START_TS, KEY))
            absent_since = (absent_since or world.now_s) if answer is ABSENT else None
            if world.forbids > before:
                assert absent_since is not None
                assert world.now_s - absent_since >= 3.0 - 1e-9
                absent_since = None
            assert (found == ROLLED_BACK) == (world.forbids > before)

    asyncio.run(follow())


async def test_many_absences_of_transactions_that_were_matched_are_forgotten() -> None:
    world = World(ABSENT)

    for number in range(10_000):
        world.now_s += 0.1
        await world.resolver.resolve(Question(START_TS + number, KEY))
    assert len(world.resolver._absences) <= 4096 + 1


def answer(**fields: object) -> tikvpb_pb2.CheckTxnStatusResponse:
    return tikvpb_pb2.CheckTxnStatusResponse(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (answer(commit_version=COMMIT_TS), COMMITTED),
        (answer(lock_ttl=3000), locked(3000)),
        (answer(lock_ttl=3000, action=3), locked(3000)),
        (answer(lock_info=tikvpb_pb2.LockInfo(lock_version=START_TS)), locked(0)),
        (answer(), GONE),
        (answer(action=1), GONE),
        (answer(action=2), GONE),
        (answer(error=tikvpb_pb2.KvError(txn_not_found=tikvpb_pb2.TxnNotFound())), ABSENT),
    ],
)
def test_an_answer_of_tikv_is_read_as_what_it_is(
    said: tikvpb_pb2.CheckTxnStatusResponse, expected: TransactionStatus
) -> None:
    assert status_of(said, START_TS) == expected


@pytest.mark.parametrize(
    "said",
    [
        answer(action=4),
        answer(action=5),
        answer(action=17),
        answer(commit_version=START_TS),
        answer(error=tikvpb_pb2.KvError()),
        answer(error=tikvpb_pb2.KvError(primary_mismatch=tikvpb_pb2.PrimaryMismatch())),
        answer(error=tikvpb_pb2.KvError(abort="aborted")),
    ],
)
def test_an_answer_that_settles_nothing_is_never_a_rollback(
    said: tikvpb_pb2.CheckTxnStatusResponse,
) -> None:
    with pytest.raises(NeedsOperator):
        status_of(said, START_TS)


def test_a_region_error_says_its_kind_and_its_message() -> None:
    busy = tikvpb_pb2.RegionError(
        message="too much", server_is_busy=tikvpb_pb2.ServerIsBusy(reason="scheduler")
    )
    assert described(busy) == "server_is_busy, too much"
    assert described(tikvpb_pb2.RegionError()) == "a region error of no known kind"
