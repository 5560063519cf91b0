"""The schema fence between writers and DDL, with writers that linger, die, freeze and return."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from penstock.cluster.etcd import connect, read, read_prefix
from penstock.cluster.fence import PENDING_KEY, WRITERS, DdlFence, WriterFence
from penstock.cluster.history import LOCK_KEY, History
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.local.etcd import EtcdServer
from penstock.schema.model import DdlJob, DdlType
from tests.kit.fakes.oracle import MemoryOracle
from tests.kit.wait import eventually

pytestmark = pytest.mark.alone


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def job(version: int, finished_ts: int = 0) -> DdlJob:
    return DdlJob(
        id=100 + version,
        type=DdlType.CREATE_SCHEMA,
        schema_id=version,
        schema_name="s",
        query="create schema s",
        schema_version=version,
        finished_ts=finished_ts,
    )


def writer(etcd: Any, opened: ExitStack, name: str = "w", **more: Any) -> WriterFence:
    fence = WriterFence(etcd, name, **more)
    opened.callback(fence.close)
    with fence.pin():  # It takes part from here on.
        return fence


def run_ddl(etcd: Any, version: int, **more: Any) -> None:
    history = History(etcd)
    with history.lock("ddl"), DdlFence(etcd).raised(version, **more):
        history.append(job(version))


def pin_version(fence: WriterFence, wait_s_max: float = 10) -> int:
    with fence.pin(wait_s_max) as version:
        return version


def test_a_pin_yields_the_version_the_writer_has_caught_up_with(
    etcd: Any, opened: ExitStack
) -> None:
    History(etcd).append(job(1))
    caught_up: list[int] = []
    fence = writer(etcd, opened, on_version=caught_up.append)
    assert pin_version(fence) == 1
    assert caught_up == [1]
    run_ddl(etcd, 2)
    assert pin_version(fence) == 2
    assert caught_up == [1, 2]


def test_a_ddl_waits_for_what_is_pinned_and_holds_up_what_comes(
    etcd: Any, opened: ExitStack
) -> None:
    fences = [writer(etcd, opened, name) for name in ("a", "b")]
    events: list[str] = []
    history = History(etcd)

    def ddl() -> None:
        with history.lock("ddl"), DdlFence(etcd).raised(1):
            events.append("raised")
            time.sleep(0.2)
            history.append(job(1))
            events.append("done")

    def late_pin() -> None:
        assert pin_version(fences[1]) == 1
        events.append("pinned")

    with fences[0].pin() as version:
        assert version == 0
        ddl_thread = threading.Thread(target=ddl)
        ddl_thread.start()
        eventually(lambda: read(etcd, PENDING_KEY) is not None)
        time.sleep(0.2)
        late = threading.Thread(target=late_pin)
        late.start()
        time.sleep(0.3)
        events.append("left")
    ddl_thread.join()
    late.join()
    assert events == ["left", "raised", "done", "pinned"]


def test_a_ddl_without_writers_does_not_wait(etcd: Any) -> None:
    run_ddl(etcd, 1, wait_s_max=0)
    assert read(etcd, PENDING_KEY) is None


def test_a_writer_that_does_not_come_to_rest_is_named_and_the_ddl_abandoned(
    etcd: Any, opened: ExitStack
) -> None:
    fence = writer(etcd, opened, "slow")
    with fence.pin(), pytest.raises(Retryable, match="slow-"):
        run_ddl(etcd, 1, wait_s_max=0.5)
    assert read(etcd, PENDING_KEY) is None
    assert pin_version(fence) == 0
    run_ddl(etcd, 1)
    assert pin_version(fence) == 1


def test_a_ddl_that_fails_leaves_the_old_version_and_open_writers(
    etcd: Any, opened: ExitStack
) -> None:
    fence = writer(etcd, opened)
    for _ in range(3):  # The same version is announced again, and must be acknowledged again.
        with pytest.raises(RuntimeError), History(etcd).lock("ddl"), DdlFence(etcd).raised(1):
            raise RuntimeError("the DDL failed")
        assert pin_version(fence) == 0


def test_waiting_for_a_pending_ddl_ends_with_retryable(etcd: Any, opened: ExitStack) -> None:
    fence = writer(etcd, opened)
    with (
        History(etcd).lock("ddl"),
        DdlFence(etcd).raised(1),
        pytest.raises(Retryable, match="is pending"),
    ):
        pin_version(fence, wait_s_max=0.3)


def test_the_fence_cannot_be_raised_without_the_lock(etcd: Any) -> None:
    with pytest.raises(Retryable, match="lock"), DdlFence(etcd).raised(1):
        pass


def test_a_closed_writer_is_not_waited_for_and_pins_nothing(etcd: Any, opened: ExitStack) -> None:
    fence = writer(etcd, opened)
    fence.close()
    assert read_prefix(etcd, WRITERS)[0] == {}
    with pytest.raises(Retryable, match="closed"):
        pin_version(fence)
    run_ddl(etcd, 1)


@pytest.mark.thorough
def test_a_dead_writer_is_waited_for_only_until_its_lease_ends(etcd: Any) -> None:
    dead = etcd.lease(2)
    etcd.put(f"{WRITERS}dead", "0", lease=dead.id)
    run_ddl(etcd, 1)  # It would give up after 30 s, and fail.
    assert read_prefix(etcd, WRITERS)[0] == {}


def test_leaving_a_pin_fails_when_the_lease_was_lost_meanwhile(
    etcd: Any, opened: ExitStack
) -> None:
    fence = writer(etcd, opened, ttl_s=2)

    def lose_lease() -> None:
        (key,) = read_prefix(etcd, WRITERS)[0]
        etcd.revoke_lease(etcd.get(key)[1].lease_id)
        run_ddl(etcd, 1)  # No one stands in its way.
        eventually(lambda: key not in read_prefix(etcd, WRITERS)[0])
        time.sleep(1.0)  # Time for the next renewal.

    with pytest.raises(Retryable, match="lease ran out"), fence.pin():
        lose_lease()
    # It registers again by itself, and knows the new schema.
    assert pin_version(fence) == 1
    assert len(read_prefix(etcd, WRITERS)[0]) == 1


def test_an_error_inside_a_pin_is_not_hidden_by_a_lost_lease(etcd: Any, opened: ExitStack) -> None:
    fence = writer(etcd, opened)

    def fail() -> None:
        fence.close()
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"), fence.pin():
        fail()


@pytest.mark.thorough
def test_pins_fail_while_etcd_is_away_and_work_again_after(fresh_etcd: EtcdServer) -> None:
    etcd = connect(fresh_etcd.url, timeout_s=2)
    with ExitStack() as opened:
        opened.callback(etcd.close)
        fence = writer(etcd, opened, ttl_s=2)

        def outlast_lease() -> None:
            fresh_etcd.kill()
            time.sleep(2.5)

        with pytest.raises(Retryable, match="lease ran out"), fence.pin():
            outlast_lease()
        with pytest.raises(Retryable, match="no transaction can commit"):
            pin_version(fence, wait_s_max=0.3)
        fresh_etcd.start()
        assert pin_version(fence) == 0


@pytest.mark.thorough
def test_a_writer_may_start_before_etcd(fresh_etcd: EtcdServer) -> None:
    fresh_etcd.kill()
    etcd = connect(fresh_etcd.url, timeout_s=2)
    with ExitStack() as opened:
        opened.callback(etcd.close)
        fence = WriterFence(etcd, "early")
        opened.callback(fence.close)
        with pytest.raises(Retryable, match="etcd"):
            pin_version(fence, wait_s_max=0.5)
        fresh_etcd.start()
        assert pin_version(fence) == 0


@pytest.mark.thorough
def test_a_ddl_that_loses_its_lock_is_refused_and_writers_continue(
    etcd: Any, opened: ExitStack
) -> None:
    fence = writer(etcd, opened)
    history = History(etcd)
    with history.lock("ddl"), DdlFence(etcd).raised(1):
        etcd.revoke_lease(etcd.get(LOCK_KEY)[1].lease_id)
        assert pin_version(fence) == 0
        with pytest.raises(Retryable, match="not recorded"):
            history.append(job(1))
    assert history.schema_version() == 0


def test_a_schema_that_cannot_be_read_is_for_the_operator_until_it_can(
    etcd: Any, opened: ExitStack
) -> None:
    broken = True

    def on_version(version: int) -> None:
        if broken:
            raise NeedsOperator("job 7 is unreadable", hint="restore it", code=Code.DDL_UNSUPPORTED)

    fence = WriterFence(etcd, "w", on_version)
    opened.callback(fence.close)

    def complains() -> bool:
        try:
            pin_version(fence, wait_s_max=0.1)
        except NeedsOperator:
            return True
        except Retryable:
            return False
        return False

    eventually(complains)
    broken = False
    assert pin_version(fence) == 0


def test_no_commit_falls_on_the_wrong_side_of_a_ddl(etcd: Any, opened: ExitStack) -> None:
    """Whatever version rows are written with was in force at their `commit_ts`."""
    oracle = MemoryOracle()
    committed: list[tuple[int, int]] = []
    finished: dict[int, int] = {}
    over = threading.Event()
    fences = [writer(etcd, opened, f"w{n}") for n in range(3)]

    def write(fence: WriterFence, seed: int) -> None:
        pause = random.Random(seed)
        while not over.is_set():
            with fence.pin() as version:
                time.sleep(pause.uniform(0, 0.01))
                commit_ts = oracle.get_ts()
            committed.append((version, commit_ts))

    threads = [threading.Thread(target=write, args=(fences[n % 3], n)) for n in range(9)]
    for thread in threads:
        thread.start()
    history = History(etcd)
    for version in range(1, 11):
        with history.lock("ddl"), DdlFence(etcd).raised(version):
            finished[version] = oracle.get_ts()
            time.sleep(0.02)
            history.append(job(version, finished[version]))
        time.sleep(0.05)
    over.set()
    for thread in threads:
        thread.join()
    for version, commit_ts in committed:
        assert commit_ts > finished.get(version, 0)
        assert commit_ts < finished.get(version + 1, 1 << 62)
    assert {version for version, _ in committed} >= set(range(3, 10))
