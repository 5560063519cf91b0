"""What mysql-replication reads right, it reads as Penstock does: the same bytes, value by value.

It is asked of a MariaDB that logs full metadata, for the types that it knows: integers of both
signs, DECIMAL, FLOAT, DOUBLE, dates and times that are not zero, texts, bytes and NULL. It takes
bytes for texts, so they are ASCII here.
"""

import datetime as dt
import random
import struct
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest
from pymysql.protocol import MysqlPacket
from pymysqlreplication import row_event
from pymysqlreplication.packet import BinLogPacketWrapper

from pumpclient.mysql.events.frame import ROWS_TYPES, EventType
from tests.kit.mysql.binlogs import BinlogFile, current_file, read_file, rows_of
from tests.kit.servers.fix_mariadb import MariadbServer

Image = tuple[Any, ...] | None
ROWS, SEED = 120, 11
_ALLOWED = (
    row_event.TableMapEvent,
    row_event.WriteRowsEvent,
    row_event.UpdateRowsEvent,
    row_event.DeleteRowsEvent,
)
Make = Callable[[random.Random], Any]
INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}
BYTES = "VARBINARY(300)", "BLOB", "MEDIUMBLOB"
DECIMALS = [(5, 2), (12, 2), (18, 9), (38, 10), (65, 30)]


def _between(low: int, end: int) -> Make:
    return lambda r: r.choice([low, end - 1, r.randrange(low, end)])


def _decimal(digits: int, scale: int) -> Make:
    return lambda r: f"{r.choice('-+')}{r.randrange(10**digits)}e-{scale}"


def _columns() -> dict[str, Make]:
    out: dict[str, Make] = {}
    for name, bits in INTEGERS.items():
        half = 1 << bits - 1
        out[name] = _between(-half, half)
        out[f"{name} UNSIGNED"] = _between(0, 2 * half)
    for digits, scale in DECIMALS:
        out[f"DECIMAL({digits},{scale})"] = _decimal(digits, scale)
    out["FLOAT"] = lambda r: r.choice([0.1, -1e30, r.random()])
    out["DOUBLE"] = lambda r: r.choice([5e-324, -1e300, r.random(), 1 / 3])
    out["DATE"] = lambda r: _moment(r).date()
    for fsp in range(7):
        out[f"DATETIME({fsp})"] = _moment
        out[f"TIMESTAMP({fsp}) NULL"] = lambda r: _moment(r, 1971, 2037)
        out[f"TIME({fsp})"] = lambda r: f"{r.randrange(839)}:{r.randrange(60)}:{r.randrange(60)}"
    words = ["", "é", "Ærø", "😀" * 9, "tab\t", "x" * 90]
    for name in ("CHAR(100)", "VARCHAR(60)", "VARCHAR(200)", "TEXT", "LONGTEXT"):
        out[name] = lambda r: r.choice(words)
    for name in BYTES:
        out[name] = lambda r: bytes(r.randrange(128) for _ in range(r.randrange(300)))
    return out


def _moment(r: random.Random, first: int = 1, last: int = 9999) -> dt.datetime:
    date = dt.date(r.randint(first, last), r.randint(1, 12), r.randint(1, 28))
    day = dt.datetime.combine(date, dt.time())
    return day + dt.timedelta(microseconds=r.randrange(86400 * 10**6 - 10**6))


COLUMNS = _columns()


class _Control:
    """What mysql-replication asks of its second connection."""

    charset = "utf8mb4"

    def _get_dbms(self) -> str:
        return "mariadb"


def read_there(data: bytes) -> Iterator[tuple[Image, Image]]:
    """Yield the rows before and after that mysql-replication reads."""
    control, tables = _Control(), dict[int, Any]()
    for _, header, raw in BinlogFile(BytesIO(data)):
        if header.type != EventType.TABLE_MAP and header.type not in ROWS_TYPES:
            continue
        said = BinLogPacketWrapper(
            MysqlPacket(b"\0" + raw, "utf8"), tables, control, (10, 11, 0), True, _ALLOWED,
            None, None, None, None, False, False, False, True, False,
        ).event  # fmt: skip
        if header.type == EventType.TABLE_MAP:
            tables[said.table_id] = said.get_table()
            continue
        for row in said.rows:
            if isinstance(said, row_event.UpdateRowsEvent):
                yield tuple(row["before_values"].values()), tuple(row["after_values"].values())
            elif isinstance(said, row_event.WriteRowsEvent):
                yield None, tuple(row["values"].values())
            else:
                yield tuple(row["values"].values()), None


def ours(value: Any, type_: str) -> Any:
    """Return a value of theirs as Penstock has it: times are texts, with all digits of the type."""
    if type_ == "FLOAT" and value is not None:
        return struct.pack("<f", value)
    if isinstance(value, str) and type_ in BYTES:
        return value.encode()
    if isinstance(value, dt.timedelta):
        seconds, minus = divmod(abs(value) // dt.timedelta(seconds=1), 60), value.days < 0
        (hours, minute), second = divmod(seconds[0], 60), seconds[1]
        clock = f"{'-' * minus}{hours:02d}:{minute:02d}:{second:02d}"
        return _with_digits(clock, abs(value).microseconds, type_)
    if isinstance(value, dt.datetime):
        whole = value.replace(microsecond=0).isoformat(" ")
        return _with_digits(whole, value.microsecond, type_)
    return value.isoformat() if isinstance(value, dt.date) else value


def _with_digits(whole: str, microseconds: int, type_: str) -> str:
    digits = int(type_.partition("(")[2][0])
    return f"{whole}.{microseconds:06d}"[: len(whole) + 1 + digits] if digits else whole


def written(server: MariadbServer) -> bytes:
    """Return a file of inserts, updates and deletes of random rows."""
    server.drop_user_databases()
    server.query("CREATE DATABASE m2")
    names = ", ".join(f"c{n} {type_}" for n, type_ in enumerate(COLUMNS))
    server.query(f"CREATE TABLE m2.t (id INT PRIMARY KEY, {names}) CHARSET utf8mb4")
    server.query("FLUSH BINARY LOGS")
    name = current_file(server)
    r = random.Random(SEED)

    def row() -> list[Any]:
        return [None if r.random() < 0.1 else make(r) for make in COLUMNS.values()]

    marks = ", ".join(["%s"] * (len(COLUMNS) + 1))
    changed = ", ".join(f"c{n} = %s" for n in range(len(COLUMNS)))
    connection = server.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
        for id_ in range(ROWS):
            cursor.execute(f"INSERT INTO m2.t VALUES ({marks})", [id_, *row()])
        for id_ in range(0, ROWS, 3):
            cursor.execute(f"UPDATE m2.t SET {changed} WHERE id = {id_}", row())
        cursor.execute("DELETE FROM m2.t WHERE id % 2")
    connection.close()
    server.query("FLUSH BINARY LOGS")
    return read_file(server, name)


# Python 3.12 and later warn of what that library does.
@pytest.mark.filterwarnings("ignore:datetime.datetime.utcfromtimestamp:DeprecationWarning")
def test_values_are_those_that_mysql_replication_reads(mariadb_binlog: MariadbServer) -> None:
    data = written(mariadb_binlog)
    types = ["INT", *COLUMNS]
    here = [change for _, _, changes in rows_of(data) for change in changes]
    there = list(read_there(data))
    assert len(here) == ROWS + ROWS // 3 + ROWS // 2
    for mine, theirs in zip(here, there, strict=True):
        for image, other in zip(mine, theirs, strict=True):
            assert (image is None) == (other is None)
            if image is None or other is None:
                continue
            for value, oracle, type_ in zip(image, other, types, strict=True):
                if type_ == "FLOAT" and value is not None:
                    value = struct.pack("<f", value)
                expected = ours(oracle, type_)
                assert (value, str(value)) == (expected, str(expected)), type_
