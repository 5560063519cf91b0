"""A source that loses its lease because it, or etcd, slept: it continues if no one else had it."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.etcd import connect, etcd_errors, read
from penstock.cluster.node_registry import SOURCES
from penstock.errors import Retryable
from penstock.local.etcd import EtcdServer
from penstock.pb.etcd import rpc_pb2
from pumpclient.mysql.source.state.checkpoint import (
    Checkpoint,
    SourceStore,
    SourceTaken,
    save_with_retries,
)
from tests.kit.servers.binlog_server import BinlogServer, binlog_server
from tests.kit.servers.fix_source import LONG_S, SourceRig, cleared
from tests.kit.wait import eventually

pytestmark = pytest.mark.fault
OWNER = SOURCES + "db-1/owner"
BEGUN = Checkpoint(epoch=1, server="0-1", done="mysql-bin|000001.000001:4")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BinlogServer]:
    home = tmp_path_factory.mktemp("source-lease")
    with binlog_server(home, 1, "--binlog-row-metadata=FULL") as running:
        yield running


@pytest.fixture
def server(shared: BinlogServer) -> BinlogServer:
    return cleared(shared)


def owner(etcd: Any) -> int:
    """Return the lease of the source's owner, 0 without one."""
    with etcd_errors():
        answer = etcd.kvstub.Range(rpc_pb2.RangeRequest(key=OWNER.encode()), 5)
    return int(answer.kvs[0].lease) if answer.kvs else 0


def revoke(etcd: Any, lease: int) -> None:
    """End a lease, as etcd does once it was not heard of."""
    with etcd_errors():
        etcd.revoke_lease(lease)


def lose(etcd: Any, store: SourceStore) -> None:
    revoke(etcd, owner(etcd))
    eventually(store.is_lost)


@pytest.mark.fault(
    "a MySQL source is frozen for longer than its lease",
    "it takes its lease again and continues, unless another process had it meanwhile",
    cases="1",
)
@pytest.mark.mariadb
def test_a_source_that_was_frozen_for_longer_than_its_lease_continues(
    etcd: Any, server: BinlogServer, rig: SourceRig
) -> None:
    source = rig.begin(server)
    source.catch_up(server)
    for round_ in range(2):
        source.freeze()
        server.insert(20, first=round_ * 20)
        eventually(lambda: read(etcd, OWNER) is None)
        source.thaw()
        source.catch_up(server)
    assert "so this one continues" in source.text()
    assert source.stop() == 0
    rig.check(server)


@pytest.mark.thorough
@pytest.mark.mariadb
def test_a_source_whose_etcd_was_frozen_continues(
    fresh_etcd: EtcdServer, pump_factory: Any, server: BinlogServer, tmp_path: Path
) -> None:
    client = connect(fresh_etcd.url)
    rig = SourceRig(client, fresh_etcd.url, pump_factory, tmp_path / "source")
    try:
        source = rig.begin(server)
        source.catch_up(server)
        before = owner(client)
        fresh_etcd.freeze()
        server.insert(20)
        time.sleep(3)  # Longer than the lease; etcd's clock is what counts.
        fresh_etcd.thaw()
        with suppress(Retryable):
            revoke(client, before)  # It may have been renewed before etcd looked.
        eventually(lambda: owner(client) not in (0, before), LONG_S)
        source.finish(server)
        rig.check(server)
    finally:
        rig.close()
        client.close()


@pytest.mark.thorough
@pytest.mark.mariadb
def test_a_source_that_another_process_had_meanwhile_ends(
    etcd: Any, server: BinlogServer, rig: SourceRig
) -> None:
    source = rig.begin(server)
    source.catch_up(server)
    source.freeze()
    eventually(lambda: read(etcd, OWNER) is None)
    other = SourceStore(etcd, "db-1", ttl_s=10)
    other.own("other")
    try:
        source.thaw()
        assert source.wait(60) == 1
    finally:
        other.close()
    assert "other runs this source" in source.text()


@pytest.mark.thorough
def test_a_lost_source_is_taken_again_only_with_the_checkpoint_that_was_left(etcd: Any) -> None:
    mine, other = SourceStore(etcd, "db-1"), SourceStore(etcd, "db-1")
    mine.own("mine")
    try:
        assert mine.load() is None
        lose(etcd, mine)
        mine.own_again()
        mine.save(BEGUN)
        lose(etcd, mine)
        with pytest.raises(Retryable):
            mine.save(replace(BEGUN, epoch=2))
        save_with_retries(mine, threading.Event(), replace(BEGUN, epoch=3))
        lose(etcd, mine)
        other.own("other")
        with pytest.raises(SourceTaken, match="other runs this source"):
            save_with_retries(mine, threading.Event(), BEGUN)
        with pytest.raises(SourceTaken, match="other runs this source"):
            mine.own_again()
        assert other.load() == replace(BEGUN, epoch=3)
        other.save(replace(BEGUN, epoch=4))
        other.close()
        assert mine.load() == replace(BEGUN, epoch=4)
        with pytest.raises(SourceTaken, match="has had this source"):
            mine.own_again()
    finally:
        mine.close()
        other.close()


@pytest.mark.thorough
def test_a_source_that_lost_its_lease_before_it_read_its_checkpoint_is_taken_again(
    etcd: Any,
) -> None:
    before, mine = SourceStore(etcd, "db-1"), SourceStore(etcd, "db-1")
    before.own("before")
    before.save(BEGUN)
    before.close()
    mine.own("mine")
    try:
        lose(etcd, mine)
        assert mine.load() == BEGUN
        save_with_retries(mine, threading.Event(), replace(BEGUN, epoch=2))
        assert mine.load() == replace(BEGUN, epoch=2)
    finally:
        mine.close()
