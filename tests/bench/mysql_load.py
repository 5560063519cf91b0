"""The initial load of sysbench-like tables, rows/s, against `mariadb-dump | mariadb`.

`mysql.load` ends when all rows are readable in the second server, through a Pump and the Drainer;
`mysql.load.pumps` when all are durable on the Pump; `mysql.load.sink` writes them straight there,
into tables that the Drainer creates. The baseline ends when the pipe does, in the
same second server. All of it shares one machine; servers sync as they do by default.

On a machine that others use, the pipe takes 4 to 30 s. So each way runs several times, in turn with
the others, and its fastest run counts. `detail` has the seconds of all runs, the CPU microseconds
per row of each process in the fastest run, and how many times the pipe's all of them are.
"""

import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from penstock.local.cluster import Cluster
from penstock.local.sql_server import MariadbServer
from pumpclient import PumpClient
from pumpclient.mysql.load.loader import Load, LoadOptions
from pumpclient.mysql.load.sink import SinkOptions
from pumpclient.mysql.protocol.server import address_in
from pumpclient.mysql.translate.ddl_pieces import Translator
from tests.bench.lag import cpu_s, wait_until
from tests.bench.mysql_sides import dump_and_load
from tests.bench.rig import Figure, process_s, running, sized, timed
from tests.kit.servers.binlog_server import BinlogServer

TABLES, ROWS = 2, sized(200_000, 2_000)
READERS = 2
ROUNDS = sized(3)
_PIPE = "mariadb-dump | mariadb"

Cpu = dict[str, float]
"""Of each part."""


def _fill(server: BinlogServer) -> None:
    words = " ".join(["LPAD(FLOOR(RAND() * 1e11), 11, '0')"] * 10).replace(" LPAD", ", LPAD")
    pad = ", ".join(["LPAD(FLOOR(RAND() * 1e11), 11, '0')"] * 5)
    server.run("CREATE DATABASE sbtest", "USE sbtest")
    for n in range(1, TABLES + 1):
        table = f"sbtest.sbtest{n}"
        server.run(
            f"CREATE TABLE {table} (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL"
            " DEFAULT 0, c CHAR(120) NOT NULL DEFAULT '', pad CHAR(60) NOT NULL DEFAULT '',"
            " KEY k_1 (k))",
            "USE sbtest",
            f"INSERT INTO {table} (k, c, pad) SELECT FLOOR(RAND() * {ROWS}),"
            f" CONCAT_WS('-', {words}), CONCAT_WS('-', {pad}) FROM seq_1_to_{ROWS}",
            f"ANALYZE TABLE {table}",
        )


class Run(NamedTuple):
    seconds: float
    cpu: Cpu


def _dump_and_load(source: MariadbServer, target: MariadbServer) -> Run:
    before = _pipe_cpu(source, target)
    took_s = timed(lambda: dump_and_load(source, target, ["--databases", "sbtest"], []))
    return Run(took_s, _per_row(before, _pipe_cpu(source, target)))


def _pipe_cpu(source: MariadbServer, target: MariadbServer) -> Cpu:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "clients": ended.ru_utime + ended.ru_stime,
        "source": process_s(source.pid),
        "mariadb": process_s(target.pid),
    }


def _cluster_cpu(source: MariadbServer, cluster: Cluster) -> Cpu:
    return {"load": _own_s(), "source": process_s(source.pid), **cpu_s(cluster)}


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _per_row(before: Cpu, after: Cpu) -> Cpu:
    return {part: round((after[part] - before[part]) / TABLES / ROWS * 1e6, 1) for part in after}


def _sums(server: MariadbServer) -> list[object]:
    return [server.query(f"CHECKSUM TABLE sbtest.sbtest{n}")[0] for n in range(1, TABLES + 1)]


def measure(home: Path) -> Iterator[Figure]:
    source = BinlogServer(home / "source")
    with running(source), Cluster(home, pumps=1, sink="mysql") as cluster:
        runs = _runs(source, cluster, home)
    piped = min(runs.pop(_PIPE), key=itemgetter(0))
    for name, found in runs.items():
        best = min(found, key=itemgetter(0))
        detail = {
            "rows": TABLES * ROWS,
            "readers": READERS,
            "seconds": [round(run.seconds, 1) for run in found],
            "cpu_us_per_row": best.cpu,
            "cpu_ratio": round(sum(best.cpu.values()) / sum(piped.cpu.values()), 2),
            "baseline": _PIPE,
            "baseline_cpu_us_per_row": piped.cpu,
        }
        rate, piped_rate = (TABLES * ROWS / run.seconds for run in (best, piped))
        yield Figure(name, rate, "rows/s", piped_rate, detail)


def _runs(source: BinlogServer, cluster: Cluster, home: Path) -> dict[str, list[Run]]:
    target = cluster.mariadb
    assert target is not None
    _fill(source)
    expected = _sums(source)
    runs: defaultdict[str, list[Run]] = defaultdict(list)
    with PumpClient.connect(cluster.etcd.url) as client:
        client.execute_ddl("CREATE DATABASE warm")
        client.execute_ddl("CREATE TABLE warm.t (id BIGINT PRIMARY KEY)")
        _settle(client, target)  # Spark takes some seconds to start.
        ways = {"mysql.load": None, "mysql.load.sink": SinkOptions(address_in(target.url, "sink"))}
        for number in range(ROUNDS):
            runs[_PIPE].append(_dump_and_load(source, target))
            assert _sums(target) == expected
            target.run("DROP DATABASE sbtest")
            for name, sink in ways.items():
                options = LoadOptions(translator=Translator(), readers=READERS, sink=sink)
                begun, before = time.perf_counter(), _cluster_cpu(source, cluster)
                load = f"{name}.{number}"
                Load(source.address, client, home / load, options).run(load, 1)
                seconds = {f"{name}.pumps" if sink is None else name: time.perf_counter() - begun}
                own_s = _own_s()  # Waiting costs, too.
                if sink is None:
                    _settle(client, target)
                    seconds[name] = time.perf_counter() - begun
                cpu = _per_row(before, {**_cluster_cpu(source, cluster), "load": own_s})
                for figure, took_s in seconds.items():
                    runs[figure].append(Run(took_s, cpu))
                assert _sums(target) == expected
                client.execute_ddl("DROP DATABASE sbtest")
                _settle(client, target)
    return runs


def _settle(client: PumpClient, target: MariadbServer) -> None:
    with client.begin("warm") as last:
        last.insert("t", {"id": client.session.oracle.get_ts()})
    wait_until(target, last.commit_ts or 0, 0.02)
