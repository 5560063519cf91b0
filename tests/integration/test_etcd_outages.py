"""etcd is killed, frozen and restarted under calls, watches, leases and locks."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from penstock.cluster.etcd import Lease, Watch, connect, read
from penstock.cluster.history import LOCK_KEY, History
from penstock.cluster.node_registry import NodeKind, NodeState, NodeStatus, Registry
from penstock.errors import Retryable
from penstock.local.etcd import EtcdServer
from penstock.local.process import free_port
from penstock.schema.model import DdlJob, DdlType
from tests.kit.wait import answered, eventually

pytestmark = pytest.mark.alone


@pytest.fixture
def client(fresh_etcd: EtcdServer) -> Iterator[Any]:
    client = connect(fresh_etcd.url, timeout_s=2)
    yield client
    client.close()


def status(node_id: str) -> NodeStatus:
    return NodeStatus(node_id=node_id, host=node_id, state=NodeState.ONLINE)


def job(version: int) -> DdlJob:
    return DdlJob(
        id=100 + version,
        type=DdlType.CREATE_SCHEMA,
        schema_id=version,
        schema_name="s",
        query="create schema s",
        schema_version=version,
    )


def test_the_registry_fails_fast_without_etcd_and_works_again_with_it(
    fresh_etcd: EtcdServer,
) -> None:
    with closing(connect(fresh_etcd.url, timeout_s=600)) as client:
        registry = Registry(client)
        cluster_id = registry.cluster_id()
        registry.put(NodeKind.PUMP, status("a:1"))
        fresh_etcd.kill()
        for call in (
            registry.cluster_id,
            lambda: registry.put(NodeKind.PUMP, status("b:1")),
            lambda: registry.list(NodeKind.PUMP),
            lambda: registry.watch(NodeKind.PUMP, lambda _: None),
        ):
            start_s = time.monotonic()
            with pytest.raises(Retryable):
                call()
            # In real time, since connections are: below the time-out of 600 s.
            assert time.monotonic() - start_s < 60
        fresh_etcd.start()
        answered(lambda: registry.put(NodeKind.PUMP, status("b:1")))
        assert [s.node_id for s in registry.list(NodeKind.PUMP)] == ["a:1", "b:1"]
        assert registry.cluster_id() == cluster_id


@pytest.mark.fault("etcd answers nothing", "every call ends in its time-out", cases="1")
@pytest.mark.thorough
def test_a_frozen_etcd_is_retryable_within_the_timeout(fresh_etcd: EtcdServer, client: Any) -> None:
    registry = Registry(client)
    registry.put(NodeKind.PUMP, status("a:1"))
    fresh_etcd.freeze()
    with pytest.raises(Retryable, match="connection timeout"):
        registry.put(NodeKind.PUMP, status("a:1"))
    fresh_etcd.thaw()
    answered(lambda: registry.put(NodeKind.PUMP, status("b:1")))


@pytest.mark.thorough
def test_a_watch_continues_after_every_restart(fresh_etcd: EtcdServer, client: Any) -> None:
    registry = Registry(client)
    seen: list[list[str]] = []
    watch = registry.watch(NodeKind.PUMP, lambda all_: seen.append([s.node_id for s in all_]))
    expected: list[str] = []
    for turn in range(3):
        fresh_etcd.restart()
        expected.append(f"{turn}:1")
        answered(lambda: registry.put(NodeKind.PUMP, status(expected[-1])))
        eventually(lambda: seen[-1] == expected)
    watch.cancel()


def test_a_watch_learns_what_was_deleted_and_compacted_while_it_was_cut_off(
    fresh_etcd: EtcdServer, client: Any
) -> None:
    client.put("/w/gone", "1")
    seen: list[set[str]] = []
    watch = Watch(client, "/w/", lambda items: seen.append(set(items)))
    fresh_etcd.restart()
    other = connect(fresh_etcd.url)

    def change() -> None:
        other.delete("/w/gone")
        other.put("/w/new", "1")
        other.compact(other.get_response("/w/new").header.revision)

    change()
    eventually(lambda: seen[-1] == {"/w/new"})
    other.put("/w/newer", "1")
    eventually(lambda: seen[-1] == {"/w/new", "/w/newer"})
    watch.cancel()
    other.close()


@pytest.mark.thorough
def test_a_watch_can_be_cancelled_while_etcd_is_away(fresh_etcd: EtcdServer, client: Any) -> None:
    watch = Watch(client, "/w/", lambda _: None)
    fresh_etcd.kill()
    time.sleep(0.3)
    cancelling = threading.Thread(target=watch.cancel, daemon=True)
    cancelling.start()
    cancelling.join(60)
    assert not cancelling.is_alive(), "it waits until etcd is back"


def test_a_watch_ends_when_its_client_is_closed(fresh_etcd: EtcdServer) -> None:
    client = connect(fresh_etcd.url)
    Watch(client, "/w/", lambda _: None)
    client.close()
    eventually(lambda: not any(t.name == "watch /w/" for t in threading.enumerate()))


def test_a_failing_listener_does_not_silence_later_changes(
    fresh_etcd: EtcdServer, client: Any
) -> None:
    seen: list[int] = []

    def listen(items: dict[str, bytes]) -> None:
        seen.append(len(items))
        if len(items) == 1:
            raise RuntimeError("a listener's bug")

    watch = Watch(client, "/w/", listen)
    client.put("/w/1", "")
    client.put("/w/2", "")
    eventually(lambda: seen[-1] == 2)
    watch.cancel()


@pytest.mark.fault("etcd restarts; one of two endpoints is dead")
def test_one_dead_endpoint_of_two_does_not_matter(fresh_etcd: EtcdServer) -> None:
    for urls in (
        f"127.0.0.1:{free_port()},{fresh_etcd.url}",
        [f"http://{fresh_etcd.url}/", f"http://localhost:{free_port()}"],
    ):
        client = connect(urls)
        client.put("/a", "1")
        assert read(client, "/a") == b"1"
        client.close()


@pytest.mark.thorough
def test_a_lease_is_not_held_while_etcd_is_away_too_long_and_held_again_after(
    fresh_etcd: EtcdServer, client: Any
) -> None:
    lease = Lease(client, 2)
    client.put("/l", "1", lease=lease.id)
    fresh_etcd.kill()
    eventually(lambda: not lease.is_held())
    fresh_etcd.start()
    eventually(lease.is_held)
    assert read(client, "/l") == b"1"
    lease.close()
    assert not lease.is_held()
    assert read(client, "/l") is None


def test_a_revoked_lease_is_lost_for_good(fresh_etcd: EtcdServer, client: Any) -> None:
    lease = Lease(client, 2)
    client.revoke_lease(lease.id)
    eventually(lease.is_lost)
    assert not lease.is_held()
    lease.close()


@pytest.mark.thorough
def test_history_continues_after_a_restart_within_the_lock(
    fresh_etcd: EtcdServer, client: Any
) -> None:
    history = History(client)
    seen: list[int] = []
    watch = history.watch(lambda j: seen.append(j.schema_version))
    with history.lock("me"):
        history.append(job(1))
        fresh_etcd.kill()
        with pytest.raises(Retryable):
            history.append(job(2))
        fresh_etcd.start()
        answered(lambda: history.append(job(2)))
        answered(lambda: history.append(job(2)))
    eventually(lambda: seen == [1, 2])
    assert [j.schema_version for j in history.jobs()] == [1, 2]
    watch.cancel()


@pytest.mark.thorough
def test_a_lost_lock_refuses_the_job_even_if_someone_else_holds_one(
    fresh_etcd: EtcdServer, client: Any
) -> None:
    mine, other = History(client), History(client)
    with mine.lock("me") as lock:
        client.revoke_lease(client.get(LOCK_KEY)[1].lease_id)
        with pytest.raises(Retryable, match="not recorded"):
            mine.append(job(1))
        with other.lock("other"):
            with pytest.raises(Retryable, match="not recorded"):
                mine.append(job(1))
            other.append(job(1))
        eventually(lambda: not lock.is_held())
    assert mine.schema_version() == 1


@pytest.mark.thorough
def test_the_lock_of_a_process_that_stopped_is_free_after_its_lease(
    fresh_etcd: EtcdServer, client: Any
) -> None:
    dead = client.lease(2)  # No one renews it.
    client.put(LOCK_KEY, "dead", lease=dead.id)
    with History(client).lock("me", wait_s_max=10):
        assert read(client, LOCK_KEY) == b"me"
