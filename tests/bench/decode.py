"""Ten-column rows decoded per second in one process: by column over Arrow, and row by row."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from penstock.datum.columnar.decode import decode_columns
from penstock.datum.rows.row_codec import RowCodec
from penstock.schema.model import (
    ColumnFlag,
    ColumnInfo,
    IndexColumn,
    IndexInfo,
    MysqlType,
    TableInfo,
)
from penstock.wire.binlog import MutationType
from tests.bench.figure import Figure

ROWS = 100_000
ROUNDS = 5

KINDS: tuple[tuple[MysqlType, dict[str, object]], ...] = (
    (MysqlType.LONGLONG, {"flag": ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL}),
    (MysqlType.LONGLONG, {}),
    (MysqlType.VARCHAR, {"flen": 40, "charset": "utf8mb4"}),
    (MysqlType.VARCHAR, {"flen": 40, "charset": "utf8mb4"}),
    (MysqlType.LONG, {}),
    (MysqlType.NEWDECIMAL, {"flen": 12, "decimal": 2}),
    (MysqlType.DOUBLE, {}),
    (MysqlType.DATETIME, {"decimal": 0}),
    (MysqlType.VARCHAR, {"flen": 255, "charset": "utf8mb4"}),
    (MysqlType.VARCHAR, {"flen": 64, "charset": "binary"}),
)
TABLE = TableInfo(
    id=1,
    name="t",
    columns=tuple(
        ColumnInfo(id=n + 1, name=f"c{n}", offset=n, tp=tp, **extra)  # type: ignore[arg-type]
        for n, (tp, extra) in enumerate(KINDS)
    ),
    indexes=(
        IndexInfo(
            id=1,
            name="PRIMARY",
            columns=(IndexColumn(name="c0", offset=0),),
            unique=True,
            primary=True,
        ),
    ),
    pk_is_handle=True,
)


def row(n: int) -> tuple[object, ...]:
    """Return one row, different for each `n`."""
    minute = f"2026-11-{n % 28 + 1:02d} {n % 24:02d}:{n % 60:02d}:{n % 59:02d}"
    decimal = f"{n * 37 % 10**9}.{n % 100:02d}"
    words = f"name {n}", f"city {n % 977}", "z" * (n % 80)
    return (
        n,
        n * 7919,
        words[0],
        words[1],
        n % 5000,
        decimal,
        n / 7,
        minute,
        words[2],
        b"\x00" * 16,
    )


def measure(home: Path) -> Iterator[Figure]:
    """Yield rows/s of update rows' after images decoded by column; the baseline is row by row."""
    codec = RowCodec(TABLE)
    inserts = [codec.encode_insert(row(n)) for n in range(ROWS)]
    array = pa.array(inserts, pa.binary())
    best = min(
        _timed(lambda: decode_columns(TABLE, MutationType.INSERT, array)) for _ in range(ROUNDS)
    )
    few = inserts[: ROWS // 10]
    slow = min(_timed(lambda: [codec.decode_insert(data) for data in few]) for _ in range(ROUNDS))
    yield Figure(
        name="decode.rows",
        value=ROWS / best,
        unit="rows/s",
        baseline=len(few) / slow,
        detail={"columns": len(KINDS), "rows": ROWS, "baseline": "RowCodec, row by row"},
    )


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
