"""A table with 40 types of columns, rows with their extreme values, and the stream that has them.

What a value reads as in a MySQL or MariaDB, and in a file, follows from it: `as_text`.
"""

import itertools
from dataclasses import replace

from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, plan_ddl
from penstock.schema.model import DdlJob, TableInfo
from penstock.wire.binlog import Binlog, BinlogType, MutationType, PrewriteValue, TableMutation
from penstock.wire.codec import encode_binlog, encode_prewrite_value

Row = tuple[object, ...]

_LONG = "ü" * 60
COLUMNS: tuple[tuple[str, str, object, object], ...] = (
    ("c01", "TINYINT", -128, 127),
    ("c02", "TINYINT UNSIGNED", 0, 255),
    ("c03", "SMALLINT", -(2**15), 2**15 - 1),
    ("c04", "SMALLINT UNSIGNED", 0, 2**16 - 1),
    ("c05", "MEDIUMINT", -(2**23), 2**23 - 1),
    ("c06", "MEDIUMINT UNSIGNED", 0, 2**24 - 1),
    ("c07", "INT", -(2**31), 2**31 - 1),
    ("c08", "INT UNSIGNED", 0, 2**32 - 1),
    ("c09", "BIGINT", -(2**63), 2**63 - 1),
    ("c10", "BIGINT UNSIGNED", 0, 2**64 - 1),
    ("c11", "FLOAT", -1.5, 16777216.0),
    ("c12", "DOUBLE", -1.7976931348623157e308, 5e-324),
    ("c13", "DECIMAL(65,30)", "-" + "9" * 35 + "." + "9" * 30, "0." + "0" * 29 + "1"),
    ("c14", "DECIMAL(5,0)", "-99999", "0"),
    ("c15", "DECIMAL(10,2) UNSIGNED", "0.00", "99999999.99"),
    ("c16", "DATE", "0000-00-00", "9999-12-31"),
    ("c17", "DATETIME", "1000-01-01 00:00:00", "9999-12-31 23:59:59"),
    ("c18", "DATETIME(6)", "0000-00-00 00:00:00.000000", "9999-12-31 23:59:59.999999"),
    ("c19", "TIMESTAMP NULL", "1970-01-01 00:00:01", "2038-01-19 03:14:07"),
    ("c20", "TIMESTAMP(3) NULL", "0000-00-00 00:00:00.000", "2038-01-19 03:14:07.999"),
    ("c21", "TIME", "-838:59:59", "838:59:59"),
    ("c22", "TIME(6)", "-00:00:00.000001", "838:59:58.999999"),
    ("c23", "YEAR", 0, 2155),
    ("c24", "CHAR(60)", "", _LONG),
    ("c25", "BINARY(4)", b"\0\0\0\0", b"\xff\0\xff\0"),
    ("c26", "VARCHAR(60)", 'it\'s \\ "x" \n\0', _LONG),
    ("c27", "VARBINARY(60)", b"", bytes(range(60))),
    ("c28", "TINYTEXT", "", "x" * 255),
    ("c29", "TEXT", "", "𝄞" * 100),
    ("c30", "MEDIUMTEXT", "", "y" * 70_000),
    ("c31", "LONGTEXT", "\t", "z" * 10),
    ("c32", "TINYBLOB", b"", b"\0" * 255),
    ("c33", "BLOB", b"'", bytes(range(256))),
    ("c34", "MEDIUMBLOB", b"", b"\\" * 70_000),
    ("c35", "LONGBLOB", b"\n", b"\xff" * 10),
    ("c36", "BIT(1)", 0, 1),
    ("c37", "BIT(64)", 0, 2**64 - 1),
    ("c38", "ENUM('x','it''s','')", "x", "it's"),
    ("c39", "SET('p','q''q','r')", "", "p,q'q,r"),
    ("c40", "JSON", "null", '{"a": [1, -9223372036854775808, 18446744073709551615, 1.5, "ü\'"]}'),
)
NAMES = tuple(name for name, _, _, _ in COLUMNS)
DDL = (
    "CREATE DATABASE kinds",
    "CREATE TABLE kinds.t (id INT PRIMARY KEY, "
    + ", ".join(f"{name} {sql}" + ("" if "NULL" in sql else " NULL") for name, sql, _, _ in COLUMNS)
    + ") DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
)
LOWEST: Row = (1, *(low for _, _, low, _ in COLUMNS))
HIGHEST: Row = (2, *(high for _, _, _, high in COLUMNS))
NOTHING: Row = (3, *(None for _ in COLUMNS))
ROWS = (LOWEST, HIGHEST, NOTHING)


class FortyTypes:
    """The stream: all rows are inserted, exchanged, set to NULL and back; one comes and goes."""

    def __init__(self) -> None:
        self.binlogs: list[tuple[int, bytes]] = []
        self.jobs: list[DdlJob] = []
        self.catalog = Catalog()
        self._ts = 1000
        ids = itertools.count(1)
        for sql in DDL:
            for planned in plan_ddl(sql, None, self.catalog, lambda: next(ids)):
                job = replace(planned, finished_ts=self._next_ts())
                self.catalog.apply(job)
                self.jobs.append(job)
                self._emit(Binlog(tp=BinlogType.COMMIT, start_ts=self._ts - 5, commit_ts=self._ts,
                                  ddl_query=job.query.encode(), ddl_job_id=job.id))  # fmt: skip
        self.codec = RowCodec(self.table)
        self._commit(*((MutationType.INSERT, self.codec.encode_insert(row)) for row in ROWS))
        low, high, null = ((1, *row[1:]) for row in ROWS)
        for before, after in ((low, high), (high, null), (null, low)):
            self._commit((MutationType.UPDATE, self.codec.encode_update(before, after)))
        gone = (4, *HIGHEST[1:])
        self._commit((MutationType.INSERT, self.codec.encode_insert(gone)))
        self._commit((MutationType.DELETE, self.codec.encode_delete(gone)))

    @property
    def table(self) -> TableInfo:
        found = self.catalog.table("kinds", "t")
        assert found is not None
        return found

    @property
    def last_ts(self) -> int:
        return self._ts

    def _next_ts(self) -> int:
        self._ts += 10
        return self._ts

    def _emit(self, binlog: Binlog) -> None:
        self.binlogs.append((self._ts, encode_binlog(binlog)))

    def _commit(self, *changes: tuple[MutationType, bytes]) -> None:
        lists = {kind: tuple(row for k, row in changes if k is kind) for kind in MutationType}
        mutation = TableMutation(
            table_id=self.table.id,
            inserted_rows=lists[MutationType.INSERT],
            updated_rows=lists[MutationType.UPDATE],
            deleted_rows=lists[MutationType.DELETE],
            sequence=tuple(kind for kind, _ in changes),
        )
        value = PrewriteValue(schema_version=self.catalog.version, mutations=(mutation,))
        ts = self._next_ts()
        head = Binlog(tp=BinlogType.COMMIT, start_ts=ts - 5, commit_ts=ts)
        self._emit(replace(head, prewrite_value=encode_prewrite_value(value)))
