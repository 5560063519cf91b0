"""The sides of a comparison: a MySQL, MariaDB or TiDB, or as downstream an SQLite file.

The upstream has an end, and the downstream's checkpoint shows whether it has reached that end:

    a server with a binlog    the binlog's end; the checkpoint has a place per source (`origins`)
    a TiDB                    a timestamp; transactions keep their commit_ts on the way downstream

Rows are compared in a canonical form:

    type                   form
    integers, YEAR, BIT    int
    FLOAT, DOUBLE          float; a FLOAT as exact as it is kept, minus zero is zero
    DECIMAL                Decimal
    CHAR                   text without trailing spaces
    JSON                   text with sorted keys and one spelling, decimals with all digits
    TIMESTAMP              text, UTC
    others                 text or bytes as they are

A fraction of a second of zeros is the same as no fraction.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from penstock.codes import Code
from penstock.datum import jsonb
from penstock.datum.jsonb import literal_of_text
from penstock.ddl.syntax.lexer import quote_name, quote_path
from penstock.errors import NeedsOperator, Retryable
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.load.readers import SnapshotSession
from pumpclient.mysql.load.tables import (
    IS_BOUND,
    SYSTEM_SCHEMAS,
    Range,
    SourceTable,
    base_tables,
    parameter_safe,
    quoted_key,
)
from pumpclient.mysql.protocol.server import (
    BinlogPlace,
    ServerAddress,
    cluster_ts,
    master_status,
    server_errors,
    version_of,
)
from pumpclient.mysql.rows.table_map import Name

INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"})
FLOATS = frozenset({"float", "double"})
BINARY = frozenset(
    {
        "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry", "point",
        "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
        "geometrycollection", "geomcollection",
    }
)  # fmt: skip
TIMES = frozenset({"datetime", "timestamp", "time"})

_LOCK_S = 60
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column that is compared."""

    name: str
    type: str
    is_generated: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not the same: `missing` and `extra` are as seen from the downstream."""

    table: str
    kind: str
    key: Key
    columns: tuple[str, ...] = ()

    def __str__(self) -> str:
        key = f" ({', '.join(map(_shown, self.key))})" if self.key else ""
        where = f" in {', '.join(self.columns)}" if self.columns else ""
        return f"{self.table}{key}: {self.kind}{where}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def normal(value: Any, type_: str) -> object:
    if value is None:
        return None
    if type_ in INTEGERS:
        return int(value)
    if type_ in FLOATS:
        return float(value) + 0.0
    if type_ == "decimal":
        return Decimal(value)
    if type_ in BINARY:
        return value.encode() if isinstance(value, str) else bytes(value)
    text = value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)
    if type_ == "json":
        read = json.loads(text, parse_float=_json_number)
        return json.dumps(read, sort_keys=True, ensure_ascii=False)
    if type_ == "char":
        return text.rstrip(" ")
    if type_ in TIMES and "." in text:
        return text.rstrip("0").rstrip(".")
    return text


def _json_number(text: str) -> object:
    number = jsonb.json_number(text)
    return number if isinstance(number, float) else ["decimal", text]


@dataclass(slots=True)
class ComparedRows:
    """One side's rows of a chunk, by key: the values in canonical form, and as they were read."""

    columns: tuple[ComparedColumn, ...]
    by_key: dict[Key, Key]
    raw: dict[Key, Sequence[object]]


def rows_of(
    columns: tuple[ComparedColumn, ...], key: Sequence[str], found: Sequence[Sequence[Any]]
) -> ComparedRows:
    """Return the rows by key; without a key, row and occurrence number form the key."""
    positions = [n for n, c in enumerate(columns) if c.name in key]
    by_key: dict[Key, Key] = {}
    raw: dict[Key, Sequence[object]] = {}
    seen: Counter[Key] = Counter()
    for row in found:
        values = tuple(normal(v, c.type) for v, c in zip(row, columns, strict=True))
        identity = tuple(values[n] for n in positions)
        if not positions:
            seen[values] += 1
            identity = (*values, seen[values])
        by_key[identity] = values
        raw[identity] = row
    return ComparedRows(columns, by_key, raw)


def compared(
    before: ComparedRows, downstream: ComparedRows, after: ComparedRows
) -> tuple[dict[Key, tuple[str, tuple[str, ...]]], set[Key]]:
    """Return the certain differences (kind, columns) by key, and the undecided keys."""
    differing: dict[Key, tuple[str, tuple[str, ...]]] = {}
    undecided: set[Key] = set()
    names = [c.name for c in before.columns]
    for key in before.by_key.keys() | downstream.by_key.keys() | after.by_key.keys():
        there, here = before.by_key.get(key), downstream.by_key.get(key)
        if here == there:
            continue
        if there != after.by_key.get(key):
            if here != after.by_key.get(key):
                undecided.add(key)
        elif here is None:
            differing[key] = "missing", ()
        elif there is None:
            differing[key] = "extra", ()
        else:
            pairs = zip(names, there, here, strict=True)
            differing[key] = "changed", tuple(name for name, a, b in pairs if a != b)
    return differing, undecided


@dataclass(frozen=True, slots=True)
class Position:
    """A downstream's progress: its checkpoint's commit_ts and origins."""

    commit_ts: int = 0
    origins: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def source(self, asked: str) -> str:
        """Return the source asked for, or the only source; empty if there are several."""
        names = self.sources()
        return asked or (names[0] if len(names) == 1 else "")

    def sources(self) -> list[str]:
        # Names with a slash are a source's reloads: the rows that they write count from then on.
        return [name for name in self.origins if "/" not in name]


@dataclass(frozen=True, slots=True)
class End:
    """Where an upstream ended: in a server's binlog, or at a timestamp of a TiDB's cluster."""

    at: BinlogPlace | int

    def is_in(self, position: Position, source: str) -> bool:
        """Return whether a downstream at `position` has everything up to this end."""
        if isinstance(self.at, int):
            return position.commit_ts >= self.at
        place = position.origins.get(position.source(source))
        return place is not None and tuple(place[1:]) >= self.at.floor

    def doubt(self, position: Position, source: str) -> str:
        """Return a line for a wait that ended without proof that this end was reached."""
        names = position.sources()
        if isinstance(self.at, int):
            return (
                f"the downstream's checkpoint is at {position.commit_ts}: what differs may be under"
                f" way, up to {self}"
            )
        if not names:
            what = (
                "the downstream's checkpoint names no source: what differs may be under way, from"
            )
        elif not position.source(source):
            several = ", ".join(names)
            what = (
                f"which of {several} brings this? Without --source what differs may be under way,"
                " at"
            )
        else:
            what = (
                "the downstream did not show in time that it is there: what differs may be under"
                " way, at"
            )
        return f"{what} {self}"

    def __str__(self) -> str:
        return f"commit_ts {self.at}" if isinstance(self.at, int) else str(self.at)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


Checksum = tuple[object, ...]


def selected(column: ComparedColumn) -> str:
    """Return a column's SELECT expression, safe in a statement with parameters."""
    name = parameter_safe(quote_name(column.name))
    if column.type == "bit":
        return f"{name} + 0"
    return f"{name} * 1e0" if column.type == "float" else name


def checksum_sql(columns: Sequence[ComparedColumn]) -> str:
    """Return SQL for a chunk's checksum, equal for equal rows in any order."""
    parts = ", ".join(f"IF({_bytes(c)} IS NULL, 'N', CONCAT('V', LENGTH({_bytes(c)}), ':',"
                      f" {_bytes(c)}))" for c in columns)  # fmt: skip
    digest = f"SHA2(CONCAT({parts}), 224)"  # MySQL no longer has MD5().
    # A row too long for CONCAT is NULL, which no other aggregate would notice.
    return (
        f"COUNT(*), BIT_XOR(CAST(CONV(LEFT({digest}, 16), 16, 10) AS UNSIGNED)),"
        f" SUM(CAST(CONV(RIGHT({digest}, 12), 16, 10) AS UNSIGNED)), SUM({digest} IS NULL)"
    )


def _bytes(column: ComparedColumn) -> str:
    name = selected(column)
    if column.type in BINARY:
        return name
    if column.type in INTEGERS or column.type in FLOATS:
        return f"CAST({name} AS CHAR)"
    if column.type in ("decimal", "date", "datetime", "timestamp", "time"):
        return f"CAST({name} AS CHAR)"
    return f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"


class MysqlSide:
    """A server, as upstream or downstream."""

    def __init__(self, address: ServerAddress, checkpoint: str = "tidb_binlog.checkpoint") -> None:
        self._address = address
        self._checkpoint = tuple(checkpoint.split("."))
        if len(self._checkpoint) != 2:
            raise NeedsOperator(
                f"{checkpoint!r} is no table", "write schema.table", Code.COMMAND_INVALID
            )
        self.session = SnapshotSession(address)
        """Outside of any snapshot, for queries other than rows."""
        self.flavor: Flavor | None = Flavor.of_version(version_of(self.session.connection))
        self._snapshot = SnapshotSession(address)
        self._snapshot.connection.decoders = {}  # Values as text.

    def end(self) -> End:
        assert self.flavor is not None
        with self._address.session() as connection:
            is_tidb = self.session.is_tidb
            return End(
                cluster_ts(connection) if is_tidb else master_status(connection, self.flavor)
            )

    def shows(self, end: BinlogPlace, gtids: str) -> bool:
        """Return whether a snapshot from now on has all transactions up to an end of the binlog.

        A binlog has a transaction before its engine shows it. A MariaDB names the place of a
        snapshot, a MySQL the committed GTIDs; one without GTIDs says nothing, which is taken for
        true.
        """
        if self.flavor is Flavor.MARIADB:
            self.refresh()
            found = dict(self._snapshot.fetch("SHOW STATUS LIKE 'binlog_snapshot_%'"))
            names = {_text(name).lower(): _text(value) for name, value in found.items()}
            file, position = names["binlog_snapshot_file"], names["binlog_snapshot_position"]
            return BinlogPlace(file, int(position)).floor >= end.floor
        sql = "SELECT GTID_SUBSET(%s, @@global.gtid_executed)"
        return bool(self.session.fetch(sql, (gtids,))[0][0])

    def tables(self) -> list[Name]:
        """Return all tables, except those of the server itself and of the Drainer."""
        return [table.full_name for table in base_tables(self.session.fetch)]

    def columns(self, table: SourceTable) -> tuple[ComparedColumn, ...]:
        """Return a table's columns, empty if the table does not exist."""
        found = self.session.fetch(
            "SELECT column_name, data_type, COALESCE(generation_expression, '')"  # noqa: S608
            " FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
            f" AND NOT {IS_BOUND} ORDER BY ordinal_position",
            table.full_name,
        )
        return tuple(
            ComparedColumn(str(name), str(type_).lower(), bool(generated))
            for name, type_, generated in found
        )

    def key_collations(self, table: Name) -> tuple[str, ...]:
        """Return the collations of a primary key's text columns, in key order."""
        found = self.session.fetch(
            "SELECT c.collation_name FROM information_schema.statistics s"
            " JOIN information_schema.columns c ON c.table_schema = s.table_schema"
            " AND c.table_name = s.table_name AND c.column_name = s.column_name"
            " WHERE s.index_name = 'PRIMARY' AND c.collation_name IS NOT NULL"
            " AND s.table_schema = %s AND s.table_name = %s ORDER BY s.seq_in_index",
            table,
        )
        return tuple(str(name).replace("utf8_", "utf8mb3_") for (name,) in found)

    def checksum(
        self, table: SourceTable, columns: Sequence[ComparedColumn], range_: Range
    ) -> Checksum:
        """Return a checksum of a chunk, comparable with a server of the same flavor."""
        return tuple(self._select(checksum_sql(columns), table, range_)[0])

    def rows(
        self, table: SourceTable, columns: Sequence[ComparedColumn], range_: Range
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a chunk, numbers and times as text."""
        return self._select(", ".join(map(selected, columns)), table, range_)

    def _select(self, what: str, table: SourceTable, range_: Range) -> list[tuple[Any, ...]]:
        condition, values = range_.condition(quoted_key(table))
        where = f" WHERE {condition}" if condition else ""
        sql = f"SELECT {what} FROM {table.quoted}{where}"  # noqa: S608
        return self._snapshot.fetch(sql if values else sql.replace("%%", "%"), values)

    def refresh(self) -> None:
        """Start a new snapshot; all reads until the next call see one point in time."""
        self._snapshot.begin()

    def position(self) -> Position:
        """Return the checkpoint that the last `refresh` read."""
        there = self.session.fetch(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            self._checkpoint,
        )
        if not there:
            return Position()
        name = quote_path(*self._checkpoint)
        return _position(self._snapshot.fetch(f"SELECT checkPoint FROM {name}"))  # noqa: S608

    def lock(self) -> None:
        """Wait until a killed repair's session has ended; raise `Retryable` if one is at work."""
        (taken,) = self.session.fetch(f"SELECT GET_LOCK('penstock verify', {_LOCK_S})")[0]
        if taken != 1:
            raise Retryable(f"{self._address}: another repair is at work", Code.SERVER_AWAY)

    def write(
        self,
        table: SourceTable,
        columns: Sequence[ComparedColumn],
        deleted: Sequence[Key],
        written: Sequence[Sequence[object]],
    ) -> None:
        """Delete rows by key and write other rows completely, in one transaction."""
        kept = [n for n, c in enumerate(columns) if not c.is_generated]
        names = ", ".join(parameter_safe(quote_name(columns[n].name)) for n in kept)
        condition = " AND ".join(f"{name} = %s" for name in quoted_key(table))
        with server_errors(self._address), self.session.connection.cursor() as cursor:
            cursor.execute("SET SESSION foreign_key_checks = 0")
            cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO'")
            if self.session.is_tidb:
                cursor.execute("SET SESSION allow_auto_random_explicit_insert = 1")
            cursor.execute("START TRANSACTION READ WRITE")
            for key in deleted:
                cursor.execute(f"DELETE FROM {table.quoted} WHERE {condition}", key)  # noqa: S608
            for row in written:
                written_values = [_written(row[n], columns[n].type) for n in kept]
                marks = ", ".join(mark for mark, _ in written_values)
                cursor.execute(
                    f"REPLACE INTO {table.quoted} ({names}) VALUES ({marks})",  # noqa: S608
                    [value for _, parameters in written_values for value in parameters],
                )
            cursor.execute("COMMIT")

    def close(self) -> None:
        self._snapshot.close()
        self.session.close()


class SqliteSide:
    """A file that a Drainer writes."""

    flavor: Flavor | None = None

    def __init__(self, path: str) -> None:
        """Open the file; raise `NeedsOperator` if it does not exist."""
        database = None
        try:
            database = sqlite3.connect(f"file:{path}?mode=rw", uri=True, isolation_level=None)
            database.execute("SELECT name FROM sqlite_master")  # Opening alone reads nothing.
        except sqlite3.Error as error:
            if database is not None:
                database.close()
            raise NeedsOperator(
                f"{path}: {error}", "name the Drainer's file", Code.SINK_FILE
            ) from error
        self._database = database

    def tables(self) -> list[Name]:
        found = self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        names = [str(name).partition(".") for (name,) in found.fetchall()]
        return sorted((s, t) for s, _, t in names if t and s not in SYSTEM_SCHEMAS)

    def columns(self, table: SourceTable) -> tuple[ComparedColumn, ...]:
        """Return a table's columns; their types come from the upstream."""
        found = self._database.execute(f"PRAGMA table_xinfo({_sqlite_name(table)})").fetchall()
        return tuple(ComparedColumn(str(row[1]), "") for row in found)

    def key_collations(self, table: Name) -> tuple[str, ...]:
        raise NotImplementedError

    def checksum(
        self, table: SourceTable, columns: Sequence[ComparedColumn], range_: Range
    ) -> Checksum:
        raise NotImplementedError

    def rows(
        self, table: SourceTable, columns: Sequence[ComparedColumn], range_: Range
    ) -> list[tuple[Any, ...]]:
        condition, values = range_.condition([quote_name(name) for name in table.key])
        where = f" WHERE {condition}" if condition else ""
        names = ", ".join(quote_name(c.name) for c in columns)
        sql = f"SELECT {names} FROM {_sqlite_name(table)}{where}"  # noqa: S608
        return self._database.execute(sql.replace("%s", "?") if values else sql, values).fetchall()

    def refresh(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")
        self._database.execute("BEGIN")

    def position(self) -> Position:
        try:
            found = self._database.execute(
                "SELECT checkPoint FROM `tidb_binlog.checkpoint`"
            ).fetchall()
        except sqlite3.Error:
            return Position()
        return _position(found)

    def lock(self) -> None:
        """Do nothing: `write` refuses."""

    def write(
        self,
        table: SourceTable,
        columns: Sequence[ComparedColumn],
        deleted: Sequence[Key],
        written: Sequence[Sequence[object]],
    ) -> None:
        """Refuse: only the Drainer decides how values are stored there."""
        raise NeedsOperator(
            "an SQLite downstream is not repaired",
            "build it again from a load",
            Code.COMMAND_INVALID,
        )

    def close(self) -> None:
        self._database.close()


Downstream = MysqlSide | SqliteSide
"""The side that is compared with the upstream."""


def _sqlite_name(table: SourceTable) -> str:
    return quote_name(f"{table.schema}.{table.name}")


def _written(value: object, type_: str) -> tuple[str, list[object]]:
    if value is not None and type_ == "json":
        text = value.decode() if isinstance(value, bytes) else str(value)
        return parameter_safe(literal_of_text(text)), []
    is_number = value is not None and type_ in INTEGERS
    return "%s", [int(value) if is_number else value]  # type: ignore[call-overload]


def _position(found: Sequence[Sequence[Any]]) -> Position:
    if len(found) != 1:
        return Position()
    stored = json.loads(found[0][0])
    return Position(int(stored.get("commitTS", 0)), stored.get("origins", {}))
