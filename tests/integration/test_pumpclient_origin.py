"""What a writer passes on from elsewhere says so in the Pumps' streams; no DDL is done twice."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cluster.history import History
from penstock.cluster.node_registry import Registry
from penstock.errors import NeedsOperator
from penstock.wire.binlog import Origin
from pumpclient import Options, PumpClient
from tests.kit.servers.fix_pump import streamed
from tests.kit.servers.fix_replication import Nodes

HERE = Origin(source="db-1", epoch=1, file=7, position=100, gtid="0-1-5")


def at(position: int) -> Origin:
    return replace(HERE, position=position)


def test_an_origin_travels_with_rows_small_and_large_and_a_ddl_is_done_once(
    nodes: Nodes, tmp_path: Path
) -> None:
    pump = nodes.add_pump()
    options = Options(spill_bytes=64 << 10, spill_dir=str(tmp_path))
    with PumpClient.connect(nodes.url, options=options) as client:
        client.execute_ddl("CREATE DATABASE shop")
        create = "CREATE TABLE shop.t (id INT PRIMARY KEY, v LONGTEXT)"
        assert len(client.execute_ddl(create, origin=at(100))) == 1
        assert client.execute_ddl(create, origin=at(100)) == []
        assert client.execute_ddl("DROP TABLE shop.t", origin=at(99)) == []
        truncated = client.execute_ddl("TRUNCATE shop.t", origin=at(101))
        assert client.execute_ddl("TRUNCATE shop.t", origin=at(101)) == []
        assert client.last_ddl_origin("db-1") == at(101)
        client.execute_ddl("CREATE TABLE shop.t2 (id INT PRIMARY KEY)")
        with pytest.raises(NeedsOperator, match="2 jobs"):
            client.execute_ddl("CREATE OR REPLACE TABLE shop.t2 (a INT)", origin=at(102))
        with client.begin("shop", origin=at(200)) as small:
            small.insert("t", (1, "x"))
        with client.begin("shop", origin=at(300)) as large:
            for i in range(40):
                large.insert("t", (i + 2, "y" * 10_000))
        with client.begin("shop") as last:
            last.insert("t", (99, "z"))
        until_ts = last.commit_ts or 0
    found = streamed(pump, Registry(nodes.etcd).cluster_id(), until_ts)
    origins = {binlog.commit_ts: binlog.origin for binlog in found}
    assert origins[truncated[0]] == at(101)
    assert origins[small.commit_ts or 0] == at(200)
    assert origins[until_ts] is None
    assert origins[large.commit_ts or 0] == at(300)
    assert [job.origin for job in History(nodes.etcd).jobs()] == [None, at(100), at(101), None]
