"""A Drainer behind a TiDB: its DDL jobs from status ports, through outages, kills and overrides.

The TiDB is scripted: its jobs, binlogs, PD and TiKV. Pump, etcd, Drainer and all messages are real.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drainer.__main__ import main
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import open_sink
from penstock.datum.rows.row_codec import RowCodec
from penstock.local.etcd import EtcdServer
from penstock.pb import pump_pb2, pump_pb2_grpc
from penstock.stream import Ddl, Reader, ReaderOptions, Transaction
from penstock.wire.binlog import Binlog, BinlogType, MutationType, PrewriteValue, TableMutation
from penstock.wire.codec import encode_binlog, encode_prewrite_value
from tests.kit.fakes.scripted_tidb import CLUSTER_ID, TidbCluster, row_key
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes, Replication
from tests.kit.tidb.status_port import StatusPort
from tests.kit.tidb.tidb_history import TidbDdl, TidbHistory, ascending, failed
from tests.kit.wait import eventually

pytestmark = pytest.mark.etcd


@pytest.fixture
def cluster() -> Iterator[TidbCluster]:
    with TidbCluster() as found:
        yield found


@dataclass
class Tidb:
    """What a TiDB writes to a Pump."""

    cluster: TidbCluster
    pump: PumpProcess
    history: TidbHistory

    def write(self, prewrite: dict[str, Any], commit_ts: int | None = None) -> int:
        start_ts = commit_ts - 1 if commit_ts else self.cluster.next_ts()
        binlogs = [Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, **prewrite)]
        commit_ts = commit_ts or self.cluster.next_ts()
        binlogs.append(
            Binlog(
                tp=BinlogType.COMMIT,
                start_ts=start_ts,
                commit_ts=commit_ts,
                ddl_job_id=prewrite.get("ddl_job_id", 0),
            )
        )
        with self.pump.channel() as channel:
            stub = pump_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
            for binlog in binlogs:
                payload = encode_binlog(binlog)
                request = pump_pb2.WriteBinlogReq(clusterID=CLUSTER_ID, payload=payload)
                stub.WriteBinlog(request, timeout=20)
        return commit_ts

    def ddl(self, sql: str, **more: Any) -> TidbDdl:
        done = self.history.run(sql, **more)
        fields = {"ddl_query": sql.encode(), "ddl_job_id": done.fields["id"]}
        self.write({**fields, "ddl_schema_state": 5, "prewrite_key": b"m"}, done.commit_ts)
        return done

    def insert(self, *rows: tuple[object, ...]) -> int:
        table = self.history.table("t")
        codec = RowCodec(table)
        mutation = TableMutation(
            table_id=table.id,
            inserted_rows=tuple(map(codec.encode_insert, rows)),
            sequence=(MutationType.INSERT,) * len(rows),
        )
        value = PrewriteValue(schema_version=self.history.version, mutations=(mutation,))
        key = row_key(table.id, 1)
        return self.write({"prewrite_key": key, "prewrite_value": encode_prewrite_value(value)})


def rows(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.execute('SELECT * FROM "Shop.t" ORDER BY 1'))


@pytest.mark.fault(
    "all status ports away at a DDL; the job comes late",
    "waited for, status says which DDL; nothing overtakes it",
    cases="2",
)
@pytest.mark.slow
def test_a_drainer_follows_a_tidb_through_outages_of_its_status_ports_and_kills(
    replication: Replication, cluster: TidbCluster
) -> None:
    pump = replication.add_pump(pd_address=cluster.url)
    history = TidbHistory(cluster.next_ts)
    tidb, sink = Tidb(cluster, pump, history), replication.path
    with StatusPort(replication.etcd, lambda: ascending(history.all)) as port:
        tidb.ddl("CREATE DATABASE Shop")
        tidb.ddl("CREATE TABLE t (id INT PRIMARY KEY)")
        first_ts = tidb.insert((1,), (2,))
        drainer = replication.add_drainer(pd_address=cluster.url, apply_mode="snapshot")
        drainer.wait_until(first_ts)
        assert rows(sink) == [(1,), (2,)]
        port.stop()
        tidb.ddl("ALTER TABLE t ADD a INT DEFAULT 7")
        tidb.ddl("CREATE UNIQUE INDEX i ON t (a)", change=failed(3))
        second_ts = tidb.insert((3, 30))
        eventually(
            lambda: (
                "no TiDB server's status port answers" in drainer.status().details["ddl_waits_for"]
            ),
            60,
        )
        port.start()
        drainer.wait_until(second_ts)
        assert rows(sink) == [(1, 7), (2, 7), (3, 30)]
        assert drainer.status().details["ddl_waits_for"] == "nothing"
        drainer.kill()
        for name in "bcd":
            tidb.ddl(f"ALTER TABLE t ADD {name} INT DEFAULT 1")
            last_ts = tidb.insert((ord(name), 0, *[5] * (len(history.table("t").columns) - 2)))
        drainer.start()
        drainer.wait_until(last_ts)
    assert rows(sink) == [
        (1, 7, 1, 1, 1), (2, 7, 1, 1, 1), (3, 30, 1, 1, 1),
        (98, 0, 5, 1, 1), (99, 0, 5, 5, 1), (100, 0, 5, 5, 5),
    ]  # fmt: skip


@pytest.mark.thorough
def test_a_tidb_s_ddl_is_listed_and_overridden_by_the_time_at_which_its_job_finished(
    etcd: Any,
    etcd_server: EtcdServer,
    cluster: TidbCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    history = TidbHistory()
    history.run("CREATE DATABASE Shop")
    made = history.run("CREATE TABLE t (id INT PRIMARY KEY)")
    history.run("CREATE TABLE u (id INT PRIMARY KEY)", change=failed(5))
    coming = history.run("ALTER TABLE t ADD a INT")
    url = f"sqlite:///{tmp_path / 'down.db'}"
    with closing(open_sink(url, cluster_id=CLUSTER_ID)) as sink:
        sink.load_checkpoint()
        # At the binlog of the CREATE TABLE, whose job finished after that.
        sink.save_checkpoint(Checkpoint(made.commit_ts, made.job.schema_version))
    settings = ("--etcd-urls", etcd_server.url, "--pd-address", cluster.url, "--sink", url)

    def asked(*words: object) -> Any:
        capsys.readouterr()
        assert main(["ddl", *map(str, words), "-o", "json", *settings]) == 0
        return json.loads(capsys.readouterr().out)

    with StatusPort(etcd, lambda: ascending(history.all)):
        (listed,) = asked("list")["coming"]
        assert (listed["commit_ts"], listed["query"]) == (coming.job.finished_ts, coming.query)
        did = asked("skip", coming.job.finished_ts)
        assert any("values of column a of Shop.t are skipped" in each for each in did["messages"])
        (override,) = asked("list")["overrides"]
        assert (override["commit_ts"], override["is_passed"]) == (coming.job.finished_ts, False)
        asked("undo", coming.job.finished_ts)
        assert main(["ddl", "skip", str(made.job.finished_ts), *settings]) == 2
        assert "it was followed as it is" in capsys.readouterr().err


def test_a_program_reads_the_stream_of_a_tidb(nodes: Nodes, cluster: TidbCluster) -> None:
    pump = nodes.add_pump(pd_address=cluster.url)
    history = TidbHistory(cluster.next_ts)
    tidb, options = Tidb(cluster, pump, history), ReaderOptions(pd_address=cluster.url)
    with StatusPort(nodes.etcd, lambda: ascending(history.all)) as port:
        tidb.ddl("CREATE DATABASE Shop")
        tidb.ddl("CREATE TABLE t (id INT PRIMARY KEY)")
        tidb.insert((1,), (2,))
        with Reader.connect(nodes.url, options=options) as reader:
            first = [reader.get(30) for _ in range(3)]
            assert [type(each) for each in first] == [Ddl, Ddl, Transaction]
            stored = reader.checkpoint
        port.stop()
        tidb.ddl("ALTER TABLE t ADD a INT DEFAULT 7")
        tidb.ddl("CREATE UNIQUE INDEX i ON t (a)", change=failed(3))
        tidb.insert((3, 30))
        port.start()
        with Reader.connect(nodes.url, after=stored, options=options) as reader:
            altered, last = reader.get(30), reader.get(30)
            assert isinstance(altered, Ddl)
            assert altered.query == "ALTER TABLE t ADD a INT DEFAULT 7"
            assert isinstance(last, Transaction)
            assert [change.after for change in last.changes] == [{"id": 3, "a": 30}]
            port.stop()
            tidb.ddl("ALTER TABLE t ADD b INT")
            eventually(lambda: "no TiDB server's status port answers" in reader.waits_for(), 30)
            port.start()
            assert isinstance(reader.get(30), Ddl)
