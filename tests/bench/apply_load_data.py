"""New rows by the Drainer against LOAD DATA of the same rows, both into an empty table."""

import os
from collections.abc import Iterator
from pathlib import Path

from tests.bench.apply_cells import ensure_equal
from tests.bench.apply_sides import measured, parallel, snapshot, warm_up
from tests.bench.figure import Figure
from tests.bench.sysbench import Tables, batches, fill, running

ROWS = 200_000
_SCHEMAS = ("loaded", "snapshot", "parallel")


def measure(home: Path) -> Iterator[Figure]:
    """Yield rows/s; the baseline is one LOAD DATA of a file that lies there."""
    tables = Tables(1, 0)
    file = home / "rows"
    with running(home / "mariadb") as server:
        fill(server, tables, _SCHEMAS)
        history = tables.history("insert", ROWS)
        made, split = (list(batches(tables, history, name, 1)) for name in _SCHEMAS[1:])
        file.write_text("".join(f"{i}\t{k}\t{c}\t{pad}\n" for i, k, c, pad in tables.rows_of(0)))
        warm_up(made[0])
        with server.connect(local_infile=True) as connection:
            load = f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE loaded.sbtest0"
            loaded = measured(server, ROWS, lambda: connection.query(load))
        ours = snapshot(server, made, cluster_id=1)
        parted = parallel(server, split, cluster_id=2)
        ensure_equal(server, tables, _SCHEMAS)
    yield Figure(
        name="apply.load_data.insert",
        value=ours.rate,
        unit="rows/s",
        baseline=loaded.rate,
        detail={
            "cpu_us_per_row": ours.cpu_us_per_row,
            "baseline_cpu_us_per_row": loaded.cpu_us_per_row,
            "cpu_ratio": ours.cpu_ratio(loaded),
            "parallel_rows_per_s": round(parted.rate),
            "parallel_cpu_us_per_row": parted.cpu_us_per_row,
            "rows": ROWS,
            "machine_load": round(os.getloadavg()[0], 1),
            "baseline": "LOAD DATA LOCAL of a file with the final rows, in key order",
        },
    )
