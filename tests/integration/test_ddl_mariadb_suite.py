"""The DDL of MariaDB's own tests is followed with equal tables, left out by design, or refused.

The statements of the files run on a real server. What it logs goes through the source's translation
and the planner. Afterwards each changed table is held against information_schema. A refused table
is read again from the server, so that later statements are judged alone.

Equal in meaning, though spelled otherwise, are: an expression as default and what a server makes of
a constant one; NOT NULL … ON UPDATE without a default and one of zeros; an index that a server
made for a foreign key, which is written out here and stays; the part of a long text that an index
of MyISAM holds; and NULL of an AUTO_INCREMENT.
"""

import contextlib
import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from pymysql.converters import escape_string

from penstock.ddl import Catalog, SchemaChange, plan_ddl
from penstock.ddl.rewrite.explicit import explicit
from penstock.ddl.syntax.lexer import quote_name
from penstock.errors import NeedsOperator
from penstock.local import sql_server as local
from penstock.schema.model import TableInfo
from pumpclient.mysql.relay.layout import FileName, Location
from pumpclient.mysql.source.ddl.execution import Statements
from pumpclient.mysql.source.ddl.session import ServerDefaults, context_of
from pumpclient.mysql.translate.assembler import Assembler
from pumpclient.mysql.translate.outputs import Refused, Statement
from pumpclient.mysql.translate.statement_text import built_into, dialect_of
from tests.integration.test_ddl_mariadb import (
    EXPRESSION,
    charset_name,
    differences,
    left_by,
    server_columns,
    server_indexes,
    server_partitions,
    tracked_columns,
    tracked_indexes,
    tracked_partitions,
)
from tests.kit.workloads.mariadb_tests import Reading

pytestmark = [pytest.mark.mariadb, pytest.mark.slow]

ROOT = Path("/usr/share/mysql/mysql-test")
SUITES = (
    "main/*.test", "suite/compat/oracle/t/*.test", "suite/engines/funcs/t/*.test",
    "suite/funcs_1/t/*.test", "suite/gcol/t/*.test", "suite/innodb/t/*.test",
    "suite/innodb_fts/t/*.test", "suite/innodb_gis/t/*.test", "suite/innodb_zip/t/*.test",
    "suite/json/t/*.test", "suite/maria/*.test", "suite/parts/t/*.test", "suite/period/t/*.test",
    "suite/roles/*.test", "suite/sql_sequence/*.test", "suite/vcol/t/*.test",
    "suite/versioning/t/*.test", "plugin/type_inet/type_inet/*.test",
    "plugin/type_uuid/type_uuid/*.test",
)  # fmt: skip
NTH = int(os.environ.get("SUITE_NTH", "12"))
"""Of each suite, every so many files."""
FOLLOWED_PERCENT_MIN = 98.0
FILE_S_MAX = 30.0
SYSTEM = ("mysql", "information_schema", "performance_schema", "sys")
UNUSABLE = re.compile(rb"restart_mysqld|shutdown_server|kill_mysqld|start_mysqld", re.IGNORECASE)
"""A file with these stops the server, or starts it with other options."""

SKIPPED = re.compile(
    rb"\s*(SHUTDOWN|KILL|RESET|CHANGE\s+MASTER|(START|STOP)\s+(ALL\s+)?SLAVES?|SLEEP|LOCK|BACKUP"
    rb"|INSTALL|UNINSTALL|FLUSH\s+TABLES?\b.*\bREAD\s+LOCK|SELECT|INSERT|UPDATE|DELETE|REPLACE|LOAD"
    rb"|SHOW|EXPLAIN|ANALYZE|CHECK|REPAIR|OPTIMIZE|CHECKSUM|DESC|DESCRIBE|HANDLER|DO|WITH|VALUES"
    rb"|HELP|BINLOG|PURGE|CACHE|TABLE|\()",
    re.IGNORECASE | re.DOTALL,
)
"""Statements that change no schema, or that concern the server."""
OF_SERVER = re.compile(
    rb"\bSET\b.*(\bGLOBAL\b|@@global\b|\bPASSWORD\b|sql_log_bin|server_id|gtid_|binlog_format)"
    rb"|mysql\s*\.\s*\w",
    re.IGNORECASE | re.DOTALL,
)
LOST = (0, 1927, 2006, 2013, 2055)
"""Errors after which a connection is of no more use."""


@dataclass
class Counts:
    """What became of the statements that the server logged."""

    followed: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    of_refused: int = 0
    """Statements of tables that a refused one made."""
    different: list[str] = field(default_factory=list)

    @property
    def percent(self) -> float:
        done = self.followed + self.left_out.total()
        return 100 * done / max(1, done + self.refused.total())

    def refuse(self, error: NeedsOperator, text: str) -> None:
        problem = re.sub(r"^[^ ]*:\d+: ", "", error.problem)
        kind = re.sub(r"'(?:[^'\\]|\\.)*'?|\"[^\"]*\"?|`[^`]*`?|\d+", "…", problem)[:80]
        self.refused[kind] += 1
        self.examples.setdefault(kind, text)

    def report(self) -> str:
        kinds = [f"{n:5} {kind}\n        {self.examples[kind]}" for kind, n in
                 self.refused.most_common()]  # fmt: skip
        return "\n".join([
            f"{self.followed} followed, {self.left_out.total()} left out,"
            f" {self.refused.total()} refused, {self.of_refused} of refused tables,"
            f" {len(self.different)} different: {self.percent:.2f} %",
            *(f"{n:5} left out: {why}" for why, n in self.left_out.most_common()),
            *kinds,
            *(f"different: {each}" for each in self.different),
        ])  # fmt: skip


def _equal(row: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Return whether a tracked row of columns or indexes means what a server's says."""
    if row == other:
        return True
    if len(row) < 12:  # An index: MyISAM holds 1,000 bytes at most.
        is_prefix = other[-2] is not None and (row[-2] is None or other[-2] < row[-2])
        return row[:-2] == other[:-2] and row[-1] == other[-1] == 1 and is_prefix
    mine, theirs = row[8], other[8]
    is_zero = theirs is None or re.fullmatch(r"'?[0:. -]+'?", theirs) is not None
    means = (
        (mine == EXPRESSION and theirs not in (None, "NULL"))
        or (theirs == EXPRESSION and mine is not None and mine.startswith("current_timestamp"))
        or (mine is None and is_zero)
        or (mine == "NULL" and theirs is None)
        or (mine is not None and theirs is not None and mine.lstrip("0") == theirs.lstrip("0"))
    )
    if "auto_increment" in row[9]:
        row, other = (*row[:7], "NO", *row[8:]), (*other[:7], "NO", *other[8:])
    return (means or mine == theirs) and row[:8] == other[:8] and row[9:] == other[9:]


def _unequal(ours: Sequence[tuple[Any, ...]], theirs: Sequence[tuple[Any, ...]]) -> list[str]:
    out = [f"here  {row}" for row in ours if not any(_equal(row, other) for other in theirs)]
    return out + [f"there {row}" for row in theirs if not any(_equal(r, row) for r in ours)]


def _without_served(
    rows: list[tuple[Any, ...]], others: list[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    """Return rows without those of indexes that only one side has, and another one serves."""
    mine, known = _columns_by_index(rows), _columns_by_index(others)
    served = {
        name
        for name, columns in mine.items()
        for other, longer in (*known.items(), *mine.items())
        if name not in known and other != name and longer[: len(columns)] == columns
    }
    return [row for row in rows if row[2] not in served or row[-1] == 0]


def _columns_by_index(rows: list[tuple[Any, ...]]) -> dict[str, list[str]]:
    columns: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: (row[2], row[3])):
        columns.setdefault(row[2], []).append(row[4].lower())
    return columns


def table_differences(connection: Any, schema: str, table: TableInfo) -> list[str]:
    """Return in what a tracked table is not the server's."""
    where = (
        f"table_schema = '{escape_string(schema)}' AND table_name = '{escape_string(table.name)}'"
    )
    bounds = {name.lower() for name in table.period}
    columns = [row for row in server_columns(connection, where) if row[3].lower() not in bounds]
    if not columns:
        return []  # A table that the server itself cannot open.
    if bounds:
        columns = [(*row[:2], n, *row[3:]) for n, row in enumerate(sorted(columns), 1)]
    out = _unequal(
        tracked_columns(schema, table, shows_stand_in=any(row[-1] for row in columns)), columns
    )
    theirs = [row for row in server_indexes(connection, where) if row[4].lower() not in bounds]
    if bounds:
        theirs = _renumbered(theirs)
    ours = tracked_indexes(schema, table)
    out += _unequal(_without_served(ours, theirs), _without_served(theirs, ours))
    if table.partitions is not None and not (bounds and not table.partitions):
        out += _unequal(tracked_partitions(schema, table), server_partitions(connection, where))
    return out


def _renumbered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    out: list[tuple[Any, ...]] = []
    for _, group in itertools.groupby(sorted(rows), key=lambda row: row[2]):
        out += [(*row[:3], n, *row[4:]) for n, row in enumerate(group, 1)]
    return out


class Followed:
    """One server whose binlog is followed into a catalog."""

    def __init__(self, server: local.MariadbServer) -> None:
        self.server = server
        self.counts = Counts()
        setup = "SET sql_log_bin = 0, time_zone = '+00:00', lock_wait_timeout = 2"
        self.admin = server.connect(init_command=setup)
        self._dialect = dialect_of(server.query("SELECT VERSION()")[0][0])
        self._assembler = Assembler(lambda table_map: None)
        self._file, self._at = 1, 4
        self._ids = itertools.count(1)
        self._has_namesakes = False
        self.catalog, self.refused = Catalog(), set[tuple[str, str]]()
        self._defaults = ServerDefaults("+00:00", {"old_mode": "UTF8_IS_UTF8MB3"})
        self._statements = self._followed_by_the_source()

    def _followed_by_the_source(self) -> Statements:
        rules = SimpleNamespace(
            is_replicated=lambda schema, table: schema.lower() not in SYSTEM,
            target=lambda schema, table: (schema, table),
        )
        schemas = SimpleNamespace(catalog=lambda: self.catalog)
        client: Any = SimpleNamespace(session=SimpleNamespace(schemas=schemas))
        tables: Any = SimpleNamespace(
            database_collation=lambda schema: None, server_defaults=self._defaults
        )
        made: Any = Statements
        return made(client, rules, None, None, tables=tables)  # type: ignore[no-any-return]

    def _events(self) -> Iterator[tuple[Location, Location, bytes]]:
        while True:
            name = FileName("mysql-bin", self._file)
            path = self.server.home / "data" / str(name)
            with path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
            at = 0
            while (size := int.from_bytes(data[at + 9 : at + 13], "little")) and (
                at + size <= len(data)
            ):
                place = Location(1, name, self._at + at)
                yield place, place.at(self._at + at + size), data[at : at + size]
                at += size
            self._at += at
            if not path.with_name(str(FileName("mysql-bin", self._file + 1))).exists():
                return
            self._file, self._at = self._file + 1, 4

    def _logged(self) -> list[Statement]:
        outputs = (
            output
            for begin, end, event in self._events()
            for output in self._assembler.take(begin, end, event)
        )
        return [output for output in outputs if isinstance(output, Statement)]

    def begin(self) -> None:
        """Make the server and the catalog empty, but for a database `test`."""
        with self.admin.cursor() as cursor:
            cursor.execute("SET foreign_key_checks = 0")
            cursor.execute("SHOW DATABASES")
            for (name,) in cursor.fetchall():
                if name.lower() not in SYSTEM:
                    cursor.execute(f"DROP DATABASE {quote_name(name)}")
            cursor.execute("CREATE DATABASE test CHARACTER SET latin1")
        self._logged()
        self._has_namesakes = False
        self.reload()

    def _plan(self, sql: str, schema: str | None, context: Any = None) -> list[SchemaChange]:
        jobs = plan_ddl(sql, schema, self.catalog, lambda: next(self._ids), context)
        return [self.catalog.apply(job) for job in jobs]

    def take(self) -> None:
        """Follow what was logged since, and hold the tables as they are now against the server."""
        changes: list[SchemaChange] = []
        texts: list[str] = []
        is_whole = True
        for statement in self._logged():
            texts.append(statement.query.statement.decode("utf8", "replace")[:1000])
            try:
                changes += self._taken(statement)
            except NeedsOperator as error:
                names = error.tables if isinstance(error, Refused) else ()
                names = names or self._statements.tables_of(statement)
                if not is_whole or self.refused & {(s.lower(), t.lower()) for s, t in names}:
                    self.counts.of_refused += 1
                else:
                    self.counts.refuse(error, texts[-1][:200])
                is_whole = False
        if not texts:
            return
        wrong = self._wrong(changes) if is_whole else []
        if wrong:
            self.counts.different.append(" ;; ".join([*texts[-3:], *wrong[:6]]))
        if wrong or not is_whole:
            self.reload()

    def _taken(self, statement: Statement) -> list[SchemaChange]:
        nothing: Any = SimpleNamespace(has=lambda *name: False)
        found = self._statements.translate(statement, {}, {}, nothing)
        if not found.pieces:
            self.counts.left_out[found.skipped] += 1
            return []
        context = context_of(
            statement.query.variables(),
            statement.dialect,
            statement.timestamp_s,
            lambda: self._defaults,
        )
        changes = [c for piece in found.pieces for c in self._plan(piece.sql, None, context)]
        self.counts.followed += 1
        return changes

    def _wrong(self, changes: Sequence[SchemaChange]) -> list[str]:
        wrong = self.lists()
        for schema, name in {(schema, t.name) for c in changes for schema, t in left_by(c)}:
            now = self.catalog.table(schema, name)
            if now is not None and now.kind == "TABLE":
                wrong += table_differences(self.admin, schema, now)
        return wrong

    def _listed(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        skipped = ", ".join(f"'{name}'" for name in SYSTEM)
        with self.admin.cursor() as cursor:
            cursor.execute(
                "SELECT schema_name, default_character_set_name, default_collation_name"
                f" FROM information_schema.schemata WHERE schema_name NOT IN ({skipped})"
            )
            schemas = list(cursor.fetchall())
            cursor.execute(
                "SELECT table_schema, table_name, REPLACE(REPLACE(table_type, 'BASE ', ''),"
                " 'SYSTEM VERSIONED', 'TABLE') FROM information_schema.tables WHERE"
                f" table_schema NOT IN ({skipped}) AND table_type NOT LIKE '%TEMPORARY%'"
            )
            tables = list(cursor.fetchall())
        labels = [row[0].lower() for row in schemas]
        labels += [f"{row[0]}.{row[1]}".lower() for row in tables]
        self._has_namesakes |= len(set(labels)) < len(labels)
        return schemas, tables

    def lists(self) -> list[str]:
        """Return the databases and tables that only one of the two has."""
        schemas, tables = self._listed()
        if self._has_namesakes:
            return []  # Names that letter case alone tells apart are one here.
        tables = [row for row in tables if self._is_expected(*row[:2])]
        ours = [
            (s.name, charset_name(s.charset), charset_name(s.collate))
            for s in self.catalog.schemas()
        ]
        wrong = differences(ours, schemas)
        return wrong + differences([(s, t.name, t.kind) for s, t in self.catalog.tables()], tables)

    def _is_expected(self, schema: str, name: str) -> bool:
        """Return whether a table of the server must be here: no statement of it was refused."""
        is_here = self.catalog.table(schema, name) is not None
        return is_here or (schema.lower(), name.lower()) not in self.refused

    def reload(self) -> None:
        """Read every table from the server; those that cannot be are left out."""
        schemas, tables = self._listed()
        self.catalog, self.refused = Catalog(), set()
        for name, charset, collation in schemas:
            with contextlib.suppress(NeedsOperator):  # Two names that letter case tells apart.
                clause = f"CHARACTER SET {charset} COLLATE {collation}"
                self._plan(f"CREATE DATABASE {quote_name(name)} {clause}", None)
        for schema, name, kind in tables:
            if not self._reloaded(schema, name, kind):
                self.refused.add((schema.lower(), name.lower()))

    def _reloaded(self, schema: str, name: str, kind: str) -> bool:
        try:
            sql = f"CREATE {kind} {quote_name(name)}" + " AS SELECT 1" * (kind == "VIEW")
            if kind == "TABLE":
                with self.admin.cursor() as cursor:
                    cursor.execute(f"SHOW CREATE TABLE {quote_name(schema)}.{quote_name(name)}")
                    (_, sql) = cursor.fetchone()
            self._plan(explicit(sql, built_into(self._dialect)), schema)
        except (NeedsOperator, pymysql.err.Error):
            return False
        table = self.catalog.table(schema, name)
        assert table is not None
        wrong = table_differences(self.admin, schema, table) if kind == "TABLE" else []
        if wrong:
            self.counts.different.append(" ;; ".join([sql, *wrong[:6]]))
            self._plan(f"DROP TABLE {quote_name(name)}", schema)
        return not wrong


class Runner:
    """Runs the statements of one file, each on the connection that the file names."""

    def __init__(self, server: local.MariadbServer) -> None:
        self._server = server
        self._open: dict[str, Any] = {}

    def close(self) -> None:
        for connection in self._open.values():
            with contextlib.suppress(pymysql.err.Error):
                connection.close()

    def _connection(self, name: str) -> Any:
        if name not in self._open:
            self._open[name] = self._server.connect(
                charset="latin1",
                database="test",
                read_timeout=20,
                init_command="SET max_statement_time = 3, lock_wait_timeout = 1,"
                " innodb_lock_wait_timeout = 1",
            )
        return self._open[name]

    def run(self, statement: bytes, name: str) -> None:
        if SKIPPED.match(statement) or OF_SERVER.search(statement):
            return
        try:
            connection = self._connection(name)
            connection.query(statement)
            while connection._result.has_next:
                connection.next_result()
        except (pymysql.err.Error, UnicodeError) as error:
            if error.args and error.args[0] in LOST:
                self._open.pop(name, None)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[local.MariadbServer]:
    made = local.MariadbServer(
        tmp_path / "server",
        options=(
            *local.mariadb_binlog_options(),
            "--character-set-server=latin1",
            "--innodb-flush-log-at-trx-commit=0",
            "--sync-binlog=0",
            "--max-connections=400",
            "--default-time-zone=+00:00",
        ),
    )
    made.install()
    made.start()
    yield made
    made.stop()


def files() -> Iterable[Path]:
    for pattern in SUITES:
        yield from sorted(ROOT.glob(pattern))[::NTH]


def test_the_ddl_of_mariadbs_own_tests_is_followed_or_refused_and_never_differs(
    server: local.MariadbServer,
) -> None:
    assert ROOT.is_dir(), "as root, apt-get install mariadb-test-data"
    followed = Followed(server)
    count = unread = unusable = late = 0
    for path in files():
        if UNUSABLE.search(path.read_bytes()):
            unusable += 1
            continue
        count += 1
        begun = time.monotonic()
        followed.begin()
        runner, reading = Runner(server), Reading(ROOT)
        before = len(followed.counts.different)
        for step in reading.steps(path):
            runner.run(step.statement, step.connection)
            followed.take()
            if time.monotonic() - begun > FILE_S_MAX:
                late += 1
                break
        runner.close()
        unread += reading.unread
        if len(followed.counts.different) > before:
            print(f"differs in {path}", flush=True)  # noqa: T201
    print(f"{count} files, {unusable} stop the server, {late} cut short, {unread} steps not read")  # noqa: T201
    print(followed.counts.report())  # noqa: T201
    assert count > 100 * 3 / NTH
    assert followed.counts.followed > 50 * count / NTH
    assert not followed.counts.different
    assert followed.counts.percent >= FOLLOWED_PERCENT_MIN
