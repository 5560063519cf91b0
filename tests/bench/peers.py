"""Penstock and Debezium's MariaDB connector, from one binlog into one local Kafka, in turns.

    peers.kafka.catchup      rows/s of a history, sysbench's `oltp_write_only`
    peers.kafka.lag.<rate>   from a commit's acknowledgement to a reader with read_committed, p99
    peers.kafka.cpu.<rate>   CPU of the pipeline without the broker, for each transaction

The baseline is Debezium's figure. Its connector runs in Kafka Connect with the JVM's options of
Kafka's own scripts, JSON without schemas, and a `poll.interval.ms` of 5: by default it looks for
changes twice a second. Its delivery is at least once. Penstock's is exactly once, in canal-json.

Both are started, and have delivered a message, before their time begins; what that takes is in the
details as `start`. Their time begins when they are let follow the binlog from before the history,
by a source's start and a connector's resumption; `first` is when its first message is there. While
one is measured, the other one does not follow the binlog, and no Pump runs until Debezium rests. In
the end both must have delivered as many messages for each table, and those of every transaction.

PEERS_RATES (`100 500`) and PEERS_PUMPS set the rates and the number of Pumps.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter

from penstock.local.cluster import Cluster
from penstock.local.upstream import Sysbench
from tests.bench.mysql_sides import (
    MARKS,
    ROWS,
    TABLES,
    THREADS,
    WAIT_S_MAX,
    Cpu,
    Lagged,
    Place,
    Spent,
    SysbenchTables,
    upstream_at,
)
from tests.bench.peer_sides import BROKER, PENSTOCK, Debezium, Peer, Penstock
from tests.bench.rig import Figure, percentile, running, sized, timed
from tests.kit.wait import eventually

TRANSACTIONS = sized(100_000, 1_000)
SECONDS = sized(15, 3)
RATES = [int(rate) for rate in os.environ.get("PEERS_RATES", "100 250 500 1000").split()]
PUMPS = int(os.environ.get("PEERS_PUMPS", "1"))
CHANGES_PER_TRANSACTION = 4
"""Of the writers at a steady rate, besides the mark."""
FIRST, LAST = 1_000_000, 1_000_001
"""The marks before and after the history. Lower ones are of starts, higher ones of what follows."""
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a side took, and the messages it delivered, before the steady rates and in the end.

    Until its end the catch-up counts as one piece: how many rows it has is known later.
    """

    start_cpu_s: float
    first_s: float
    caught_up: Spent
    memory_bytes: int
    lagged: dict[int, Lagged]
    rows_before: Counter[str]
    rows: Counter[str]


def measure(home: Path) -> Iterator[Figure]:
    """Yield the rate of catching up, then lag and CPU at each steady rate."""
    upstream = upstream_at(home)
    sink = f"kafka?prefix={PENSTOCK}&format=canal-json"
    with running(upstream), Cluster(home, pumps=PUMPS, sink=sink, with_drainer=False) as cluster:
        for pump in cluster.pumps.values():
            pump.stop()
        assert cluster.kafka is not None
        sysbench = Sysbench(upstream, TABLES, ROWS, workload="oltp_write_only")
        tables, numbers = SysbenchTables(sysbench, MARKS), count(2 * FIRST, FIRST)
        with closing(Debezium(home, upstream, sysbench.schema, cluster.kafka)) as debezium:
            their_start_s = timed(partial(debezium.start, tables))
            debezium.rest()
            place = upstream.end()
            _write_history(home, tables)
            with closing(Penstock(home, upstream, sysbench.schema, cluster)) as penstock:
                our_start_s = timed(partial(penstock.start, tables))
                ours = _measured(penstock, tables, place, numbers)
            theirs = _measured(debezium, tables, place, numbers, before=ours)
    assert theirs.rows_before == ours.rows + Counter(marks=1), "the messages differ"
    yield _catchup(ours, theirs, start_s=our_start_s, baseline_start_s=their_start_s)
    for rate in RATES:
        yield from _steady(rate, ours.lagged[rate], theirs.lagged[rate])


def _write_history(home: Path, tables: SysbenchTables) -> None:
    _say(f"{TRANSACTIONS} transactions of history")
    tables.mark(FIRST)
    run = tables.sysbench.running(
        home / "sysbench.log", f"--events={TRANSACTIONS}", "--time=0", f"--threads={THREADS}"
    )
    run.start().ended(WAIT_S_MAX)
    tables.mark(LAST)


def _measured(
    peer: Peer,
    tables: SysbenchTables,
    place: Place,
    numbers: Iterator[int],
    before: Measured | None = None,
) -> Measured:
    """Let a side catch up, then follow each rate; raise when messages are missing or too many.

    What was measured `before` knows how many messages the binlog has until now.
    """
    _say(f"{peer.name} catches up")
    begun_s, cpu = perf_counter(), Cpu({}, peer.cpu_s)
    start_cpu_s = _pipeline_s(peer.cpu_s())
    peer.follow(place)
    peer.until(FIRST)
    first_s = perf_counter() - begun_s
    peer.until(LAST)
    if before:
        _until_delivered(peer, _changes(before.rows_before))
    caught_up = Spent(count=1, seconds=perf_counter() - begun_s, cpu_s=cpu.spent_s())
    memory_bytes = peer.memory_bytes()
    _mark(peer, tables, next(numbers))
    if before:
        _until_delivered(peer, _changes(before.rows))
    rows_before = peer.rows(FIRST)
    lagged = {}
    for rate in RATES:
        _say(f"{peer.name} follows {rate} transactions/s")
        first = next(numbers)
        _mark(peer, tables, first - 1)
        cpu = Cpu({}, peer.cpu_s)
        lagged[rate] = tables.lagged(
            peer.look, cpu, peer.log_tail, rate=rate, seconds=SECONDS, first=first
        )
    _mark(peer, tables, next(numbers))
    done = sum(each.spent.count for each in lagged.values())
    changes = _changes(rows_before)
    total = changes.total() + CHANGES_PER_TRANSACTION * done
    eventually(lambda: peer.delivered(changes).total() >= total, WAIT_S_MAX)
    rows = peer.rows(FIRST)
    _ensure_whole(rows - rows_before, done)
    return Measured(
        start_cpu_s=start_cpu_s, first_s=first_s, caught_up=caught_up, memory_bytes=memory_bytes,
        lagged=lagged, rows_before=rows_before, rows=rows,
    )  # fmt: skip


def _ensure_whole(more: Counter[str], transactions: int) -> None:
    """Raise when these are not the messages of so many transactions of the writers."""
    marks = transactions + len(RATES) + 1
    rows = _changes(more).total()
    found = f"{more} of {transactions} transactions"
    assert (more["marks"], rows) == (marks, CHANGES_PER_TRANSACTION * transactions), found


def _until_delivered(peer: Peer, changes: Counter[str]) -> None:
    """Wait for other tables than the marks, whose messages may come later."""
    eventually(lambda: peer.delivered(changes) >= changes, WAIT_S_MAX)


def _changes(rows: Counter[str]) -> Counter[str]:
    return Counter({table: number for table, number in rows.items() if table != "marks"})


def _mark(peer: Peer, tables: SysbenchTables, number: int) -> None:
    tables.mark(number)
    peer.until(number)


def _catchup(
    ours: Measured, theirs: Measured, *, start_s: float, baseline_start_s: float
) -> Figure:
    rows = ours.rows_before.total() - 1  # Without the mark after the last one.
    our, their = (replace(each.caught_up, count=rows) for each in (ours, theirs))
    detail = {
        "rows": rows,
        "transactions": TRANSACTIONS,
        "pumps": PUMPS,
        "start_s": round(start_s, 1),
        "baseline_start_s": round(baseline_start_s, 1),
        "start_cpu_s": round(ours.start_cpu_s, 1),
        "baseline_start_cpu_s": round(theirs.start_cpu_s, 1),
        "first_s": round(ours.first_s, 1),
        "baseline_first_s": round(theirs.first_s, 1),
        "cpu_us_per_row": _cpu_us(our),
        "baseline_cpu_us_per_row": _cpu_us(their),
        "memory_mib": ours.memory_bytes // _MIB,
        "baseline_memory_mib": theirs.memory_bytes // _MIB,
        "load": our.load,
        "baseline_load": their.load,
        "cores": os.cpu_count(),
        "baseline": "Debezium's MariaDB connector, from the same binlog",
    }
    return Figure("peers.kafka.catchup", our.rate, "rows/s", their.rate, detail)


def _steady(rate: int, ours: Lagged, theirs: Lagged) -> Iterator[Figure]:
    p50, baseline_p50 = (percentile(each.lags_ms, 0.5) for each in (ours, theirs))
    p99, baseline_p99 = (percentile(each.lags_ms, 0.99) for each in (ours, theirs))
    lag = {
        "p50_ms": round(p50, 1),
        "baseline_p50_ms": round(baseline_p50, 1),
        "transactions": len(ours.lags_ms),
        "transactions_per_s": round(ours.offered_per_s),
        "baseline_transactions_per_s": round(theirs.offered_per_s),
        "load": ours.spent.load,
        "baseline_load": theirs.spent.load,
        "baseline": "Debezium's p99, poll.interval.ms=5",
    }
    yield Figure(f"peers.kafka.lag.{rate}", p99, "ms", baseline_p99, lag)
    parts, baseline_parts = _cpu_us(ours.spent), _cpu_us(theirs.spent)
    cpu = {"cpu_us": parts, "baseline_cpu_us": baseline_parts, "baseline": "Debezium's"}
    yield Figure(
        f"peers.kafka.cpu.{rate}",
        parts[_PIPELINE],
        "us/transaction",
        baseline_parts[_PIPELINE],
        cpu,
    )


_PIPELINE = "pipeline"


def _cpu_us(spent: Spent) -> dict[str, float]:
    """Return each part's CPU for a row or transaction, and that of all but the broker."""
    found = {_PIPELINE: _pipeline_s(spent.cpu_s), **spent.cpu_s}
    return {part: round(s / spent.count * 1e6, 1) for part, s in found.items()}


def _pipeline_s(cpu_s: dict[str, float]) -> float:
    return sum(s for part, s in cpu_s.items() if part != BROKER)


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
