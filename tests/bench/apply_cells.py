"""Histories applied by the Drainer's default way and by TiDB-Binlog's, table count by table count.

The three ways have copies of the same tables. The classic one gets the beginning of the history,
as much as it can do in some seconds, and is then brought to its end by `snapshot`, so that all
copies can be compared. 100 tables have 10,000 rows each, not 100,000: else filling would take
longer than all else. Where others work on the machine, sixteen connections get more of it than one:
there `cpu_ratio` says more than the ratio of the wall clock.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.apply_sides import classic, parallel, snapshot, warm_up
from tests.bench.figure import Figure
from tests.bench.sysbench import (
    CHANGES_PER_TRANSACTION,
    KINDS,
    Tables,
    Transaction,
    batches,
    fill,
    running,
)
from tests.kit.servers.fix_mariadb import MariadbServer

COUNTS = (1, 10, 100)
ROWS = 100_000
ROWS_MAX = 1_000_000
CHANGES = 200_000
CLASSIC_CHANGES = 16_000
_SCHEMAS = ("classic", "snapshot", "parallel")


def names(count: int) -> str:
    """Return the names of the figures for so many tables; asking for one measures all of them."""
    cells = " ".join(f"apply.merge.{kind}.t{count}" for kind in KINDS)
    return f"{cells} drainer.apply.t{count}"


def measure(count: int, home: Path) -> Iterator[Figure]:
    """Yield rows/s of each kind of history; the baseline is the classic way."""
    tables = Tables(count, min(ROWS, ROWS_MAX // count))
    with running(home / "mariadb") as server:
        fill(server, tables, _SCHEMAS)
        first = 1
        for kind in KINDS:
            history = tables.history(kind, CHANGES)
            yield _measured(server, tables, history, f"apply.merge.{kind}.t{count}", first)
            first += len(history)
        ensure_equal(server, tables, _SCHEMAS)


def _measured(
    server: MariadbServer, tables: Tables, history: list[Transaction], name: str, first: int
) -> Figure:
    some = CLASSIC_CHANGES // CHANGES_PER_TRANSACTION
    warm_up(next(batches(tables, history, "snapshot", first)))
    theirs = classic(server, tables, "classic", history[:some])
    ours = snapshot(server, list(batches(tables, history, "snapshot", first)), cluster_id=1)
    split = parallel(server, list(batches(tables, history, "parallel", first)), cluster_id=2)
    snapshot(server, list(batches(tables, history[some:], "classic", first)), cluster_id=3)
    return Figure(
        name=name,
        value=ours.rate,
        unit="rows/s",
        baseline=theirs.rate,
        detail={
            "cpu_us_per_row": ours.cpu_us_per_row,
            "baseline_cpu_us_per_row": theirs.cpu_us_per_row,
            "cpu_ratio": ours.cpu_ratio(theirs),
            "parallel_rows_per_s": round(split.rate),
            "parallel_cpu_us_per_row": split.cpu_us_per_row,
            "rows": ours.rows,
            "baseline_rows": theirs.rows,
            "rows_per_table": tables.first_rows,
            "machine_load": round(os.getloadavg()[0], 1),
            "baseline": "16 connections, one row per statement, 20 rows per transaction",
        },
    )


def ensure_equal(server: MariadbServer, tables: Tables, schemas: Sequence[str]) -> None:
    """Raise when a way has not ended with the rows that the upstream has."""
    first, *others = schemas
    for number in range(len(tables.infos)):
        checksums = [
            server.query(f"CHECKSUM TABLE {schema}.sbtest{number}")[0][1] for schema in schemas
        ]
        assert len(set(checksums)) == 1, f"{first} and {others} differ in table {number}"
    held = server.query(f"SELECT * FROM {first}.sbtest0 ORDER BY id")
    assert held == tables.rows_of(0), f"{first} does not hold what the upstream has"
