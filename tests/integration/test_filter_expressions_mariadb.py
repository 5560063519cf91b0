"""Expressions of the row filter yield what a real MariaDB yields for the same rows."""

from itertools import count
from typing import Any

from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, plan_ddl
from penstock.filters.expressions.compiler import compile_expression
from tests.kit.servers.fix_mariadb import MariadbServer

TABLE = (
    "CREATE TABLE f.t (id INT PRIMARY KEY, n INT, u BIGINT UNSIGNED, d DECIMAL(12,3), x DOUBLE,"
    " s VARCHAR(30) COLLATE utf8mb4_bin, c VARCHAR(30) COLLATE utf8mb4_general_ci,"
    " b VARBINARY(20), e ENUM('on','off'), day DATE, at DATETIME(3), clock TIME, j JSON)"
)
ROWS: list[tuple[Any, ...]] = [
    (1, 5, 2**64 - 1, "1.500", 0.1, "Abc", "Abc", b"Abc", "on", "2026-11-21",
     "2026-11-21 08:30:00.250", "08:30:00", "{}"),
    (2, -7, 0, "-1.500", -2.5, "12abc", "ABC ", b"\x00\xff", "off", "1999-12-31",
     "1999-12-31 23:59:59.000", "-12:00:00", "[1]"),
    (3, None, None, None, None, None, None, None, None, None, None, None, None),
    (4, 0, 10, "0.000", 1e10, "", "é", b"", "on", "2026-02-28", "2026-02-28 00:00:00.000",
     "100:00:00", "1"),
    (5, 2147483647, 9007199254740993, "123456789.125", 3.0, "a_b%c", "x  ", b"abc", "off",
     "2000-01-01", "2000-01-01 12:00:00.001", "00:00:01", '"s"'),
]  # fmt: skip
EXPRESSIONS = [
    "n > 0", "n = 5 OR n IS NULL", "NOT n = 5", "n <=> NULL", "n <> -7", "n != 5",
    "n BETWEEN -7 AND 0", "n NOT BETWEEN 0 AND 5", "n IN (5, -7)", "n IN (5, NULL)",
    "n NOT IN (5, NULL)", "n NOT IN (5)", "n AND s", "n XOR x > 0", "n OR NULL", "NULL AND n",
    "n = '5'", "n = '5abc'", "s = 12", "s > 1", "u = 18446744073709551615",
    "u = '18446744073709551615'", "u = '9007199254740993'", "u > n", "d = 1.5", "d = '1.5'",
    "x = 0.1", "x = d", "d > x", "n + 1 = 6", "n - 10 < 0", "n * 2 = -14", "n / 2 = 2.5",
    "n / 3 = 1.6667", "n DIV 2 = 2", "n DIV 2 = -3", "n % 3 = 2", "n % 3 = -1", "MOD(n, 3) = -1",
    "n / 0 IS NULL", "-n = 7", "+n = 5", "1 + 2 * 3 = 7", "(1 + 2) * 3 = 9", "d + 0.5 = 2",
    "s = 'Abc'", "s = 'abc'", "s = 'Abc '", "c = 'abc'", "c = 'ABC'", "c = 'e'", "c = 'x'",
    "c < 'b'", "s < 'B'", "s LIKE 'A%'", "s LIKE 'a%'", "c LIKE 'aB_'", "s LIKE 'a\\_b\\%c'",
    "s LIKE 'a|_b%' ESCAPE '|'", "s NOT LIKE '%c'", "s REGEXP '^[0-9]+'", "s NOT REGEXP 'b'",
    "c REGEXP '^aB'", "b = 'Abc'", "b = 'abc'", "b > 'A'", "e = 'on'", "e <> 'ON'", "e IN ('off')",
    "day = '2026-11-21'", "day > '2000-01-01'", "day = DATE '2026-11-21'", "day < at",
    "day >= '2026-11-21 00:00:00'", "day = 20261121", "at = '2026-11-21 08:30:00.25'",
    "at > '2026-11-21'", "at BETWEEN '1999-01-01' AND '2000-12-31'", "at = 20260228000000",
    "clock > '08:00:00'", "clock < '00:00:00'", "clock = '100:00:00'", "clock > 83000",
    "YEAR(day) = 2026", "MONTH(at) = 11", "DAY(day) = 31", "HOUR(at) = 8", "MINUTE(at) = 30",
    "SECOND(at) = 59", "HOUR(clock) = 100", "DATE(at) = '2026-11-21'", "DAYOFMONTH(day) = 28",
    "j IS NULL", "n IS NOT NULL", "s IS NULL OR n IS NULL", "(n > 0) IS TRUE",
    "(n > 0) IS NOT TRUE",
    "n IS FALSE", "n IS UNKNOWN", "LENGTH(c) = 2", "CHAR_LENGTH(c) = 1", "LOWER(s) = 'abc'",
    "UPPER(c) = 'ABC'", "CONCAT(s, n) = 'Abc5'", "LEFT(s, 2) = 'Ab'", "RIGHT(s, 2) = 'bc'",
    "SUBSTRING(s, 2) = 'bc'", "SUBSTR(s, -2, 1) = 'b'", "SUBSTRING(s, 0) = ''",
    "MID(s, 1, 2) = 'Ab'",
    "TRIM(c) = 'abc'", "REPLACE(s, 'b', 'x') = 'Axc'", "REVERSE(s) = 'cbA'", "INSTR(s, 'b') = 2",
    "LOCATE('c', s) = 3", "ABS(n) = 7", "SIGN(n) = -1", "FLOOR(d) = -2", "CEIL(d) = 2",
    "IF(n > 0, 'p', 'q') = 'p'", "IFNULL(n, -1) = -1", "COALESCE(n, id) = 3",
    "NULLIF(n, 5) IS NULL",
    "CASE WHEN n > 0 THEN 1 WHEN n < 0 THEN 2 ELSE 3 END = 2", "CASE n WHEN 5 THEN 'a' END = 'a'",
    "CAST(s AS SIGNED) = 12", "CAST(d AS SIGNED) = 2", "CAST(n AS UNSIGNED) > 100",
    "CAST(n AS CHAR) = '5'", "CAST(at AS DATE) = '2026-11-21'", "BINARY c = 'Abc'",
    "n = 5 AND s = 'Abc' OR id = 2", "NOT (n > 0 OR n < 0)", "NOT n IS NULL", "!n",
    "n && 1", "n || 0",
    "n = 5 = 1", "1 = n IS NULL", "TRUE", "FALSE", "NULL", "'1'", "'abc'", "0.0", "`n` > 0",
    "N > 0",
    "n IN ('5', -7)", "n BETWEEN '1' AND '9'", "5 = n", "'2026-01-01' < day", "id MOD 2",
    "ISNULL(n)", "n > 0 XOR n > 3 AND TRUE", "s = 'x' OR NOT s > 'B' AND n < 9",
]  # fmt: skip


def test_every_expression_is_true_for_the_same_rows_as_on_a_server(mariadb: MariadbServer) -> None:
    catalog, ids = Catalog(), count(1)
    for sql in ("CREATE DATABASE f", TABLE):
        for job in plan_ddl(sql, None, catalog, lambda: next(ids)):
            catalog.apply(job)
        mariadb.query(f"{sql} COLLATE utf8mb4_bin")
    table = catalog.table("f", "t")
    assert table is not None
    codec = RowCodec(table)
    decoded = []
    connection = mariadb.connect(autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET NAMES utf8mb4 COLLATE utf8mb4_bin")
            marks = ", ".join(["%s"] * len(ROWS[0]))
            cursor.executemany(f"INSERT INTO f.t VALUES ({marks})", ROWS)
            for row in ROWS:
                values = [bytes(v) if isinstance(v, bytes) else v for v in row]
                decoded.append(codec.decode_insert(codec.encode_insert(values)))
            wrong = []
            for text in EXPRESSIONS:
                cursor.execute(
                    f"SELECT id FROM f.t WHERE {text} ORDER BY id".replace("%", "%%"), []
                )
                theirs = [row[0] for row in cursor.fetchall()]
                test = compile_expression(text, table)
                mine = [row[0] for row in decoded if test(row)]
                if mine != theirs:
                    wrong.append((text, mine, theirs))
    finally:
        connection.close()
    assert wrong == []
