"""Random schemas and histories on a real MariaDB: what is decoded is what SELECT said."""

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.rows.json_binary import double_text
from pumpclient.mysql.rows.rows_decoder import Decoder
from pumpclient.mysql.rows.table_map import TableMap, charset_of
from tests.kit.mysql.binlogs import current_file, events_of, read_file, rows_of
from tests.kit.mysql.row_encoding import encode_map
from tests.kit.servers.fix_mariadb import MariadbServer

Make = Callable[[random.Random], Any]
Kind = tuple[str, str, Make, dict[str, Any]]
"""SQL type, expression over `{}` that selects it, a maker of values, and what a map is given."""

UNSIGNED, SIGNED = {"is_unsigned": True}, {"is_unsigned": False}
WORDS = ["", "a", "é", "Ærø", "x" * 90, "tab\tnew\nline", "'quote\"", "ß" * 20]
LATIN_WORDS = ["", "a", "é", "x" * 90, "ß€"]


def between(low: int, high: int) -> Make:
    return lambda r: r.choice([low, high, r.randint(low, high), 0 if low <= 0 else low])


def decimal(precision: int, scale: int) -> Make:
    return lambda r: f"{r.choice('-+')}{r.randrange(10**precision)}e-{scale}"


def clock(r: random.Random, fsp: int, hours: int = 23) -> str:
    fraction = f".{r.randrange(10**fsp):0{fsp}d}" if fsp else ""
    return f"{r.randint(0, hours):02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}{fraction}"


def date(r: random.Random) -> str:
    known = ["0000-00-00", "2020-00-00", "9999-12-31", "1000-01-01", "2024-02-29"]
    return r.choice(
        [*known, f"{r.randint(1, 9999):04d}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"]
    )


def stamp(r: random.Random, fsp: int) -> str:
    day = f"{r.randint(1971, 2037)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"
    return f"{day} {clock(r, fsp)}" if r.random() < 0.9 else "0000-00-00 00:00:00"


def uuid_of(r: random.Random) -> str:
    tail = r.choice("0a") * 12
    return f"{r.randrange(1 << 32):08x}-1111-{r.choice('16')}222-8333-{tail}"


def temporal_kinds(fsp: int) -> list[Kind]:
    text = "CAST({} AS CHAR)"
    return [
        (f"TIME({fsp})", text, lambda r: r.choice(["", "-"]) + clock(r, fsp, 837), {}),
        (f"DATETIME({fsp})", text, lambda r: f"{date(r)} {clock(r, fsp)}", {}),
        (f"TIMESTAMP({fsp}) NULL", text, lambda r: stamp(r, fsp), {}),
    ]


def kinds() -> list[Kind]:
    out: list[Kind] = []
    for name, size in [
        ("TINYINT", 1),
        ("SMALLINT", 2),
        ("MEDIUMINT", 3),
        ("INT", 4),
        ("BIGINT", 8),
    ]:
        half = 1 << (8 * size - 1)
        out.append((name, "{}", between(-half, half - 1), SIGNED))
        out.append((f"{name} UNSIGNED", "{}", between(0, 2 * half - 1), UNSIGNED))
    for fsp in (0, 1, 2, 3, 5, 6):
        out += temporal_kinds(fsp)
    for precision, scale in [(5, 2), (10, 0), (18, 9), (65, 30), (38, 38)]:
        out.append((f"DECIMAL({precision},{scale})", "{}", decimal(precision, scale), SIGNED))
    words: Make = lambda r: r.choice(WORDS)  # noqa: E731
    latin: Make = lambda r: r.choice(LATIN_WORDS)  # noqa: E731
    raw: Make = lambda r: r.randbytes(r.randint(0, 9)) + r.choice([b"", b"\0", b"\0a"])  # noqa: E731
    for name in (
        "CHAR(100)",
        "VARCHAR(200)",
        "VARCHAR(60)",
        "TINYTEXT",
        "TEXT",
        "MEDIUMTEXT",
        "LONGTEXT",
        "VARCHAR(200) COMPRESSED",
        "TEXT COMPRESSED",
    ):
        out.append((name, "{}", words, {"collation": 45}))
    for charset, id_ in [("latin1", 8), ("ucs2", 35), ("utf16", 54), ("utf32", 60), ("cp1250", 26)]:
        if id_:
            out.append((f"VARCHAR(200) CHARACTER SET {charset}", "{}", latin, {"collation": id_}))
            out.append((f"CHAR(90) CHARACTER SET {charset}", "{}", latin, {"collation": id_}))
    for name in (
        "BINARY(12)",
        "VARBINARY(300)",
        "TINYBLOB",
        "BLOB",
        "MEDIUMBLOB",
        "LONGBLOB",
        "BLOB COMPRESSED",
    ):
        out.append((name, "{}", raw, {"collation": 63}))
    addresses = ["::1", "::", "fe80::1:0", "::ffff:1.2.3.4", "::1.2.3.4", "1:2:3:4:5:6:7:0", "1::"]
    inet6: Make = lambda r: r.choice(addresses)  # noqa: E731
    return [
        *out,
        (
            "FLOAT",
            "CAST({} AS DOUBLE)",
            lambda r: r.choice([0.1, -1e30, 16777217.0, r.random()]),
            SIGNED,
        ),
        ("DOUBLE", "{}", lambda r: r.choice([0.1, -1e300, 5e-324, r.random()]), SIGNED),
        ("YEAR", "{}+0", lambda r: r.choice([0, 1901, 2155]), UNSIGNED),
        ("BIT(1)", "{}+0", between(0, 1), {}),
        ("BIT(33)", "{}+0", between(0, 2**33 - 1), {}),
        ("DATE", "CAST({} AS CHAR)", date, {}),
        (
            "ENUM('a','ß','c,d')",
            "{}+0",
            lambda r: r.choice(["a", "ß", "c,d"]),
            {"labels": ("a", "ß", "c,d")},
        ),
        ("SET('x','ö','z')", "{}+0", lambda r: r.choice(["", "x", "x,ö,z", "z"]), {}),
        ("JSON", "{}", lambda r: r.choice(['{"b": [1.0, null]}', '"é"']), {"collation": 46}),
        ("UUID", "CAST({} AS CHAR)", uuid_of, {"declared": "uuid"}),
        ("INET6", "CAST({} AS CHAR)", inet6, {"declared": "inet6"}),
        (
            "INET4",
            "CAST({} AS CHAR)",
            lambda r: r.choice(["10.0.0.0", "1.2.3.4"]),
            {"declared": "inet4"},
        ),
    ]


KINDS = kinds()


class Story:
    """A table of random columns, and what it held after each statement."""

    def __init__(self, server: MariadbServer, seed: int) -> None:
        self.random = random.Random(seed)
        self.kinds = self.random.sample(KINDS, min(24, len(KINDS)))
        self.name = f"t{seed}"
        self.server = server
        self.seen: list[dict[int, tuple[Any, ...]]] = []
        self.ids = 0

    def write(self, settings: list[str]) -> None:
        connection = self.server.connect()
        with connection.cursor() as cursor:
            for sql in ["SET time_zone = '+00:00', sql_mode = ''", "USE m2", *settings]:
                cursor.execute(sql)
            columns = ", ".join(f"c{n} {kind[0]}" for n, kind in enumerate(self.kinds))
            cursor.execute(
                f"CREATE TABLE {self.name} (id INT PRIMARY KEY, {columns})"
                " CHARSET utf8mb4 COLLATE utf8mb4_general_ci"
            )
            for _ in range(14):
                if self._statement(cursor):
                    self._look(cursor)
        connection.close()

    def _value(self, kind: Kind) -> Any:
        return None if self.random.random() < 0.15 else kind[2](self.random)

    def _statement(self, cursor: Any) -> bool:
        r, width = self.random, len(self.kinds)
        choice = r.random()
        if choice < 0.5 or self.ids < 3:
            rows = []
            for _ in range(r.choice([1, 1, 4])):
                self.ids += 1
                rows.append([self.ids, *(self._value(kind) for kind in self.kinds)])
            marks = ", ".join(["(" + ", ".join(["%s"] * (width + 1)) + ")"] * len(rows))
            sql = f"INSERT INTO {self.name} VALUES {marks}"
            return bool(cursor.execute(sql, [value for row in rows for value in row]))
        where = f"id IN ({r.randint(1, self.ids)}, {r.randint(1, self.ids)})"
        if choice < 0.9:
            n = r.randrange(width)
            value = self._value(self.kinds[n])
            return bool(cursor.execute(f"UPDATE {self.name} SET c{n} = %s WHERE {where}", [value]))
        return bool(cursor.execute(f"DELETE FROM {self.name} WHERE {where}"))

    def _look(self, cursor: Any) -> None:
        asked = ", ".join(kind[1].format(f"c{n}") for n, kind in enumerate(self.kinds))
        cursor.execute(f"SELECT id, {asked} FROM {self.name}")
        self.seen.append({row[0]: self._plain(row) for row in cursor.fetchall()})

    def _plain(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Make a selected or decoded row comparable: floats as four bytes, the rest as it is."""
        is_float = [False, *(kind[0] == "FLOAT" for kind in self.kinds)]
        return tuple(
            struct.pack("<f", value) if flag and value is not None else value
            for flag, value in zip(is_float, row, strict=True)
        )

    def choose(self, table: TableMap, *, is_full: bool) -> Decoder | None:
        if table.table != self.name:
            return None
        all_hints: dict[int, dict[str, Any]] = {0: {} if is_full else SIGNED}
        for n, kind in enumerate(self.kinds):
            hints = (
                kind[3] if not is_full else {k: v for k, v in kind[3].items() if k == "declared"}
            )
            all_hints[n + 1] = hints
        if is_full:
            assert [c.name for c in table.columns] == [
                "id",
                *(f"c{n}" for n in range(len(self.kinds))),
            ]
            for n, kind in enumerate(self.kinds):
                column = table.columns[n + 1]
                for key, value in kind[3].items():
                    if key not in ("declared", "collation"):
                        assert getattr(column, key) == value, kind
            again = TableMap.decode(encode_map(table, Flavor.MARIADB), Flavor.MARIADB)
            assert again == table
        return Decoder(table.completed(all_hints))

    def check(self, data: bytes, *, is_full: bool) -> None:
        state: dict[int, tuple[Any, ...]] = {}
        seen = iter(self.seen)
        rows = rows_of(events_of(data), lambda table: self.choose(table, is_full=is_full))
        for is_last, changes in rows:
            for before, after in changes:
                if before is not None:
                    assert state.pop(before[0]) == self._plain(before)
                if after is not None:
                    state[after[0]] = self._plain(after)
            if is_last:
                expected = next(seen)
                for key, row in expected.items():
                    for n, value in enumerate(row):
                        kind = self.kinds[n - 1][0] if n else "id"
                        assert state[key][n] == value, (kind, state[key][n], value)
                assert state == expected
        assert next(seen, None) is None


@pytest.fixture
def schema(mariadb_binlog: MariadbServer) -> MariadbServer:
    mariadb_binlog.drop_user_databases()
    mariadb_binlog.query("CREATE DATABASE m2")
    return mariadb_binlog


VARIANTS = [
    (metadata, compress, checksum)
    for metadata in ("FULL", "MINIMAL", "NO_LOG")
    for compress, checksum in [("OFF", "CRC32"), ("ON", "NONE")]
]


def write_and_check(server: MariadbServer, variant: tuple[str, str, str], seeds: range) -> None:
    metadata, compress, checksum = variant
    server.query(
        f"SET GLOBAL binlog_row_metadata={metadata}, GLOBAL log_bin_compress={compress},"
        f" GLOBAL log_bin_compress_min_len=10, GLOBAL binlog_checksum={checksum}"
    )
    server.query("FLUSH BINARY LOGS")
    name = current_file(server)
    stories = [Story(server, seed) for seed in seeds]
    for story in stories:
        story.write([])
    server.query(
        "SET GLOBAL binlog_row_metadata=FULL, GLOBAL log_bin_compress=OFF,"
        " GLOBAL binlog_checksum=CRC32"
    )
    server.query("FLUSH BINARY LOGS")
    data = read_file(server, name)
    for story in stories:
        story.check(data, is_full=metadata == "FULL")


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_decoded_rows_are_what_select_said(
    schema: MariadbServer, variant: tuple[str, str, str]
) -> None:
    first = 10 * VARIANTS.index(variant)
    write_and_check(schema, variant, range(first, first + 2))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_many_random_histories_are_what_select_said(
    schema: MariadbServer, variant: tuple[str, str, str]
) -> None:
    write_and_check(schema, variant, range(100, 160))


@pytest.mark.thorough
def test_every_charset_of_single_bytes_reads_as_the_server_converts(
    mariadb_binlog: MariadbServer,
) -> None:
    charsets = mariadb_binlog.query(
        "SELECT MIN(id), character_set_name"
        " FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
        " WHERE id < 1000 GROUP BY 2"
    )
    assert len(charsets) > 30
    for id_, name in charsets:
        charset = charset_of(id_)
        assert charset.name == name
        if charset.is_binary:
            continue
        texts = ", ".join(
            f"CONVERT(CONVERT(X'{byte:02x}' USING {name}) USING utf8mb4)" for byte in range(256)
        )
        (row,) = mariadb_binlog.query(f"SELECT {texts}")
        for byte, text in enumerate(row):
            if text in ("?", "\ufffd", None) and byte != ord("?"):
                continue
            if byte >= 0x80 and charset.table is None and charset.codec in ("utf-8", "gb18030"):
                continue
            if name.startswith(("ucs2", "utf16", "utf32")):
                continue
            assert charset.decode(bytes([byte])) == text, (name, byte)


@pytest.mark.thorough
def test_doubles_print_as_the_server_prints_them(mariadb_binlog: MariadbServer) -> None:
    r = random.Random(5)
    values = [10.0**n for n in range(-20, 25)] + [1.5 * 10.0**n for n in range(-20, 25)]
    values += [struct.unpack("<d", r.randbytes(8))[0] for _ in range(200)] + [
        r.random() for _ in range(50)
    ]
    values = [value for value in values if abs(value) < 1e300]
    asked = ", ".join(f"CAST(CAST('{value!r}' AS DOUBLE) AS CHAR)" for value in values)
    (texts,) = mariadb_binlog.query(f"SELECT {asked}")
    assert [double_text(value) for value in values] == list(texts)
