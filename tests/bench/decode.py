"""Rows decoded per second in one process: TiDB's row bytes, and binlog files of a MariaDB.

    decode.rows                 by column over Arrow, against row by row; ten columns
    mysql.decode.single, multi  against mysql-replication on the same bytes: transactions of one
                                ten-column row, and inserts of 1,000 rows

Of binlogs both sides read the TABLE_MAPs and rows of events. mysql-replication does not look at the
maps' optional metadata, which would take it longer. Seconds are processor time; files are in
memory on both sides.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pymysql.protocol import MysqlPacket
from pymysqlreplication import row_event
from pymysqlreplication.packet import BinLogPacketWrapper

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
from pumpclient.mysql.events.frame import ROWS_TYPES, EventType, Header
from tests.bench.rig import Figure, running, sized, timed
from tests.kit.mysql.binlogs import current_file, events_of, read_file, rows_of
from tests.kit.servers.fix_mariadb import MariadbServer

ROWS = sized(100_000, 1_000)
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
        timed(lambda: decode_columns(TABLE, MutationType.INSERT, array)) for _ in range(ROUNDS)
    )
    few = inserts[: ROWS // 10]
    slow = min(timed(lambda: [codec.decode_insert(data) for data in few]) for _ in range(ROUNDS))
    yield Figure(
        "decode.rows",
        ROWS / best,
        "rows/s",
        len(few) / slow,
        {"columns": len(KINDS), "rows": ROWS, "baseline": "RowCodec, row by row"},
    )


ROWS_PER_INSERT = 1_000
SINGLE_ROWS, MULTI_ROWS = sized(20_000, 1_000), sized(100, 2) * ROWS_PER_INSERT
MYSQL_ROUNDS = 3
Events = list[tuple[Header, bytes]]
MYSQL_TABLE = (
    "CREATE TABLE b.t (id BIGINT PRIMARY KEY AUTO_INCREMENT, a BIGINT, b VARCHAR(40),"
    " c VARCHAR(40), d INT, e DECIMAL(12,2), f DOUBLE, g DATETIME, h VARCHAR(255), i VARBINARY(64))"
)
_ALLOWED = (row_event.TableMapEvent, row_event.WriteRowsEvent)


def _mysql_row(n: int) -> tuple[Any, ...]:
    day = f"2026-11-{n % 28 + 1:02d} {n % 24:02d}:{n % 60:02d}:{n % 59:02d}"
    money = f"{n * 37 % 10**9}.{n % 100:02d}"
    words = f"name {n}", f"city {n % 977}", "z" * (n % 80)
    return n * 7919, words[0], words[1], n % 5000, money, n / 7, day, words[2], bytes(16)


def _capture(server: MariadbServer, count: int, per_insert: int) -> bytes:
    server.query("FLUSH BINARY LOGS")
    name = current_file(server)
    connection = server.connect()
    mark = "(" + ", ".join(["%s"] * 9) + ")"
    sql = f"INSERT INTO b.t (a, b, c, d, e, f, g, h, i) VALUES {', '.join([mark] * per_insert)}"
    with connection.cursor() as cursor:
        for first in range(0, count, per_insert):
            cursor.execute(
                sql, [v for n in range(first, first + per_insert) for v in _mysql_row(n)]
            )
    connection.close()
    server.query("FLUSH BINARY LOGS")
    return read_file(server, name)


def decode_here(events: Events) -> int:
    """Read the rows to values; return how many rows."""
    return sum(len(changes) for _, changes in rows_of(events))


class _Control:
    """What mysql-replication asks of its second connection."""

    charset = "utf8mb4"

    def _get_dbms(self) -> str:
        return "mariadb"


def decode_there(events: Events) -> int:
    """The same by mysql-replication: its packets are made here."""
    control, tables, count = _Control(), dict[int, Any](), 0
    for header, raw in events:
        packet = MysqlPacket(b"\0" + raw + bytes(4), "utf8")
        wrapped = BinLogPacketWrapper(
            packet, tables, control, (10, 11, 0), True, _ALLOWED,
            None, None, None, None, False, False, False, False, False,
        )  # fmt: skip
        said = wrapped.event
        if header.type == EventType.TABLE_MAP:
            tables[said.table_id] = said.get_table()
        elif said is not None and header.type in ROWS_TYPES:
            count += len(said.rows)
    return count


def _fastest(work: Callable[[], int], count: int) -> float:
    best = float("inf")
    for _ in range(MYSQL_ROUNDS):
        begun = time.process_time()
        assert work() == count
        best = min(best, time.process_time() - begun)
    return best


def measure_mysql(home: Path) -> Iterator[Figure]:
    options = (
        "--log-bin=mysql-bin", "--server-id=1", "--binlog-format=ROW",
        "--binlog-row-metadata=FULL", "--sync-binlog=0",
    )  # fmt: skip
    with running(MariadbServer(home, options=options)) as server:
        server.query("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        server.query("SET GLOBAL binlog_checksum = CRC32")
        server.query("CREATE DATABASE b")
        server.query(MYSQL_TABLE)
        files = {
            "single": (_capture(server, SINGLE_ROWS, 1), SINGLE_ROWS),
            "multi": (_capture(server, MULTI_ROWS, ROWS_PER_INSERT), MULTI_ROWS),
        }
    for name, (data, count) in files.items():
        events = list(events_of(data))
        here = _fastest(partial(decode_here, events), count)
        there = _fastest(partial(decode_there, events), count)
        yield Figure(
            f"mysql.decode.{name}",
            count / here,
            "rows/s",
            count / there,
            {"rows": count, "bytes": len(data), "baseline": "mysql-replication"},
        )
