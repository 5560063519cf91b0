"""Networks that drop, reset and crawl between writers, Pumps and the merge.

Real Pumps behind proxies; the ledger judges what the merge emits.
"""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from drainer.intake.merge_holder import Condition
from drainer.intake.puller import SILENCE_S_MAX
from penstock.cluster.node_registry import Registry
from penstock.local.process import free_port
from penstock.oracle.client import OracleClient
from penstock.wire.codec import decode_binlog
from pumpclient import Options, PumpClient
from tests.kit.crash.slow_proxy import SlowProxy
from tests.kit.fakes.merging import Merging
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.wait import eventually
from tests.kit.workloads.ledger import Ledger, LedgerWriter

pytestmark = [pytest.mark.fault, pytest.mark.alone]

_LONG_S = 150


class Field:
    """Two Pumps, a proxy before each, and the answers that the writers got."""

    def __init__(self, etcd: Any, pumps: list[PumpProcess], stack: ExitStack) -> None:
        self.pumps = pumps
        self.registry = Registry(etcd)
        self.oracle = OracleClient(etcd)
        self.ledger = Ledger()
        self.proxies = [stack.enter_context(SlowProxy(pump.addr)) for pump in pumps]

    def writer(self, number: int, **settings: Any) -> LedgerWriter:
        addr, cluster_id = self.pumps[number].addr, self.registry.cluster_id()
        return LedgerWriter(self.ledger, self.oracle, addr, cluster_id, seed=number, **settings)

    @contextmanager
    def writing(self, *numbers: int, **settings: Any) -> Iterator[None]:
        writers = [self.writer(number, **settings) for number in numbers]
        for writer in writers:
            writer.start()
        try:
            yield
        finally:
            for writer in writers:
                writer.stop()

    def merging(self, folder: Path, **settings: Any) -> Merging:
        ways = {p.node_id: x.url for p, x in zip(self.pumps, self.proxies, strict=True)}
        return Merging(self.registry, self.oracle, folder, by_way_of=ways, **settings)

    def judge(self, merging: Merging) -> int:
        """Wait for the last Commit and hold all that was emitted against the ledger."""
        last_ts = self.ledger.last_commit_ts
        eventually(lambda: bool(merging.found) and merging.found[-1][0] >= last_ts, _LONG_S)
        return self.ledger.check(list(merging.found))


@pytest.fixture
def field(nodes: Nodes) -> Iterator[Field]:
    with ExitStack() as stack:
        field = Field(nodes.etcd, [nodes.add_pump() for _ in range(2)], stack)
        yield field
        field.oracle.close()


@pytest.mark.fault(
    "a stream is cut without a word",
    "named after 6 s, abandoned after 20 s (8 s by default), continues after what came last",
    cases="1 / 2",
)
@pytest.mark.thorough
@pytest.mark.parametrize(
    "silence_s", [8.0, pytest.param(SILENCE_S_MAX, marks=pytest.mark.slow, id="as it is")]
)
def test_a_stream_that_is_cut_without_a_word_is_noticed_and_continues_where_it_was(
    field: Field, tmp_path: Path, silence_s: float
) -> None:
    with field.merging(tmp_path, silence_s_max=silence_s) as merging, field.writing(0, 1):
        eventually(lambda: len(merging.found) > 200, _LONG_S)
        field.proxies[1].is_black_hole = True
        cut_s = time.monotonic()

        def seen() -> str:
            view = merging.views()["pump-2"]
            return view.why if view.condition is Condition.SLOW else ""

        eventually(lambda: "no message for" in seen(), _LONG_S)
        assert "pump-2 (slow: no message for" in str(merging.facts().held_by)
        eventually(lambda: seen() != "" and "no message" not in seen(), _LONG_S)
        noticed_s = time.monotonic() - cut_s
        assert merging.views()["pump-1"].condition is Condition.OK
        held_ts = merging.found[-1][0]
        field.proxies[1].is_black_hole = False
        eventually(lambda: merging.found[-1][0] > held_ts, _LONG_S)
    print(f"noticed after {noticed_s:.1f} s")  # noqa: T201


@pytest.mark.fault(
    "a Pump at 64 kB/s",
    "slow is not dead: no stream breaks; the others wait within the room that is set; all is"
    " emitted in order",
    cases="1, of 300 transactions",
)
@pytest.mark.thorough
def test_a_pump_at_64_kb_a_second_holds_the_others_within_their_room(
    field: Field, tmp_path: Path
) -> None:
    with field.writing(0, value_bytes_max=40_000), field.writing(1, value_bytes_max=4_000):
        eventually(lambda: field.ledger.acknowledged > 300, _LONG_S)
    field.proxies[1].bytes_per_s = 64_000
    room_bytes = 2 << 20
    with field.merging(tmp_path, room_bytes=room_bytes) as merging:
        assert field.judge(merging) >= 300
        assert merging.breaks() == 0, "slow is not dead"
    # Each Pump may be one message above its share.
    assert merging.peak_bytes <= room_bytes + 2 * (2 << 20)


@pytest.mark.fault(
    "connections are reset all the time",
    "the stream continues, nothing lost or repeated",
    cases="40 resets",
)
@pytest.mark.thorough
def test_connections_that_are_reset_all_the_time_lose_and_repeat_nothing(
    field: Field, tmp_path: Path
) -> None:
    with field.merging(tmp_path) as merging:
        with field.writing(0, 1):
            for number in range(40):
                eventually(lambda: field.proxies[0].accepted > 0, _LONG_S)
                field.proxies[number % 2].reset()
                time.sleep(0.1)
        assert field.judge(merging) > 0
        assert merging.breaks() >= 20


@pytest.mark.fault(
    "writers are cut off from a Pump in the middle of their requests",
    "they continue by way of the next one; each transaction is emitted once",
    cases="1, 4 writers",
)
def test_a_writer_cut_off_from_a_pump_goes_to_the_next_and_nothing_comes_twice(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.add_pump()
    address = f"127.0.0.1:{free_port()}"
    committed: dict[int, int] = {}
    with SlowProxy(address) as proxy:
        nodes.add_pump(addr=address, advertise_addr=proxy.url)
        oracle, closing = OracleClient(nodes.etcd), threading.Event()
        merging = Merging(Registry(nodes.etcd), oracle, tmp_path, by_way_of={"pump-2": address})
        options = Options(attempt_timeout_s=1.0)
        with PumpClient.connect(nodes.url, options=options) as client, merging:
            client.execute_ddl("CREATE DATABASE cut")
            client.execute_ddl("CREATE TABLE cut.t (id INT PRIMARY KEY)")

            def write(first: int) -> None:
                for row in itertools.count(first, 10):
                    if closing.is_set():
                        return
                    with client.begin("cut") as txn:
                        txn.insert("t", [row])
                    assert txn.commit_ts is not None
                    committed[row] = txn.commit_ts

            threads = [threading.Thread(target=write, args=(first,)) for first in range(4)]
            for thread in threads:
                thread.start()
            eventually(lambda: len(committed) > 100, _LONG_S)
            proxy.is_black_hole = True  # In the middle of four requests.
            eventually(lambda: _is_healthy_again(committed), _LONG_S)
            proxy.is_black_hole = False
            closing.set()
            for thread in threads:
                thread.join(_LONG_S)
                assert not thread.is_alive()
            last_ts = max(committed.values())
            eventually(lambda: bool(merging.found) and merging.found[-1][0] >= last_ts, _LONG_S)
        oracle.close()
    binlogs = [decode_binlog(payload) for _, payload in merging.found]
    starts = [b.start_ts for b in binlogs if not b.is_fake]
    assert len(starts) == len(set(starts)), "a transaction came twice"
    assert set(committed.values()) <= {commit_ts for commit_ts, _ in merging.found}


def _is_healthy_again(committed: dict[int, int]) -> bool:
    """Return whether commits continue at a pace, by way of the other Pump."""
    before = len(committed)
    time.sleep(0.5)
    return len(committed) > before + 5
