"""What every oracle promises, in memory and behind gRPC."""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from penstock.oracle.client import Oracle, OracleClient, open_oracle
from penstock.ts import physical_ms
from tests.kit.fakes.oracle import MemoryOracle, OracleNode


@pytest.fixture(params=["memory", "etcd", "pd"])
def oracle(request: pytest.FixtureRequest) -> Iterator[Oracle]:
    if request.param == "memory":
        yield MemoryOracle(lambda: int(time.time() * 1000))
        return
    etcd = request.getfixturevalue("etcd")
    node = OracleNode(etcd)
    client = open_oracle(etcd, node.address if request.param == "pd" else None)
    yield client
    client.close()
    node.stop()


def test_each_timestamp_is_larger_than_the_one_before(oracle: Oracle) -> None:
    taken = [oracle.get_ts() for _ in range(200)]
    assert all(a < b for a, b in pairwise(taken))


def test_a_timestamp_has_the_time(oracle: Oracle) -> None:
    before_ms = time.time() * 1000
    taken_ms = physical_ms(oracle.get_ts())
    assert before_ms - 1 <= taken_ms <= time.time() * 1000 + 5000


def test_many_are_consecutive_and_after_what_came_before(oracle: Oracle) -> None:
    first = oracle.get_ts()
    many = oracle.get_many(1000)
    assert len(many) == 1000
    assert many[0] > first
    assert list(many) == list(range(many[0], many[0] + 1000))
    assert oracle.get_ts() > many[-1]


def test_threads_never_share_a_timestamp_and_each_sees_time_grow(oracle: Oracle) -> None:
    """A timestamp is larger than all that were received before it was asked for."""
    taken: list[list[int]] = [[] for _ in range(16)]
    newest = 0
    lock = threading.Lock()
    late: list[tuple[int, int]] = []

    def work(mine: list[int]) -> None:
        nonlocal newest
        for turn in range(40):
            with lock:
                known = newest
            got = [oracle.get_ts()] if turn % 4 else list(oracle.get_many(3))
            with lock:
                newest = max(newest, got[-1])
            if got[0] <= known:
                late.append((known, got[0]))
            mine.extend(got)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [ts for mine in taken for ts in mine]
    assert not late
    assert len(everything) == 16 * 60
    assert len(set(everything)) == len(everything)


def test_two_clients_of_one_oracle_agree_on_the_order(etcd: object) -> None:
    node = OracleNode(etcd)
    one, other = OracleClient(etcd), OracleClient(node.address)
    taken = [client.get_ts() for _ in range(50) for client in (one, other)]
    assert all(a < b for a, b in pairwise(taken))
    one.close()
    other.close()
    node.stop()
