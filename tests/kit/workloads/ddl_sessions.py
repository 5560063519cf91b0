"""Random DDL that computes values, in random sessions, on a real server; and a way downstream.

`Way` does what a source and a Drainer do with a server's DDL, without what is between them: it
reads the binlog's file, executes statements as a source does into a catalog, and runs the jobs, as
JSON brings them, through the sink. Rows are copied by their values, because only DDL is tried.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pymysql

from drainer.settings.targets import MysqlTarget
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.mysql.session import many
from drainer.sinks.mysql.sink import MysqlSink
from penstock.ddl import Catalog, plan_ddl
from penstock.filters import FilterConfig, Rules
from penstock.filters.settings import RouteRule
from penstock.local.sql_server import SqlServer
from penstock.schema.ddl_context import DdlContext
from penstock.schema.tidb_json import job_from_json, job_to_json
from penstock.ts import compose
from penstock.wire.binlog import Origin
from pumpclient.mysql.events.frame import FILE_MAGIC, read_header
from pumpclient.mysql.protocol.server import ServerAddress
from pumpclient.mysql.relay.layout import FileName, Location
from pumpclient.mysql.source.ddl.execution import Statements
from pumpclient.mysql.source.ddl.table_mapping import database_collation, server_defaults
from pumpclient.mysql.source.state.skipped import SkippedTables
from pumpclient.mysql.translate.assembler import Assembler
from pumpclient.mysql.translate.outputs import Statement
from tests.kit.sink_target import sink_target

UP, DOWN = "up", "down"
HOURS_BEHIND_MS = 6 * 3_600_000
_AT_UTC = "SET SESSION time_zone = '+00:00', sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'"
_EVENT_MS = 1_800_000_000_000


class Way:
    """Takes DDL of one schema of a server to another schema of a server, maybe the same one."""

    def __init__(self, upstream: SqlServer, downstream: SqlServer, options: str = "") -> None:
        self.upstream = self._up = upstream
        self.downstream = self._down = downstream
        versions = [str(each.query("SELECT VERSION()")[0][0]) for each in (upstream, downstream)]
        self.is_mariadb, is_mariadb_down = ("MariaDB" in version for version in versions)
        self.is_one_kind = self.is_mariadb == is_mariadb_down
        self.catalog = Catalog()
        self._followed = Catalog()
        self._ids = iter(range(1, 1_000_000))
        self._rules = Rules(
            FilterConfig(do_dbs=(UP,), routes=(RouteRule(schema_pattern=UP, target_schema=DOWN),))
        )
        self._at = self._end()
        self.contexts: list[DdlContext | None] = []
        address = ServerAddress(upstream.host, upstream.port, upstream.user, upstream.password)
        with address.session() as connection:
            self.defaults = server_defaults(connection)
            self._collations = {UP: database_collation(connection, UP)}
        url = f"{downstream.url}?checkpoint-schema=penstock_ddl{options}"
        self.sink = MysqlSink(sink_target(MysqlTarget, url), cluster_id=1, retry_s_max=10)
        self.sink.load_checkpoint()
        self._outside = outside = cast("Any", SimpleNamespace)(
            server_defaults=self.defaults,
            session=address.session,
            database_collation=lambda schema: self._collations.get(schema),
            namesake=lambda schema, name: "",
            look_at=lambda pieces, dialect: None,
        )
        client: Any = SimpleNamespace(
            session=SimpleNamespace(schemas=SimpleNamespace(catalog=lambda: self.catalog)),
            last_ddl_origin=lambda source: None,
            execute_ddl=self._execute,
        )
        self._statements = Statements(client, self._rules, None, outside, tables=outside)

    def _end(self) -> Location:
        file, position = self._up.end()
        return Location(1, FileName("mysql-bin", int(file.rsplit(".", 1)[1])), position)

    def follow(self) -> int:
        """Run what the upstream has done since; return how many jobs that were."""
        before = next(self._ids)
        assembler = Assembler(lambda table_map: None)
        since, self._at = self._at, self._end()
        for begin, end, event in events(cast("Any", self._up), since):
            for each in assembler.take(begin, end, event):
                if isinstance(each, Statement) and since <= begin < self._at:
                    self._run(each)
        return next(self._ids) - before - 1

    def _run(self, statement: Statement) -> None:
        if not statement.query.statement.strip().upper().startswith((b"CREATE", b"ALTER", b"DROP")):
            return
        made = self._statements.translate(statement, {}, {}, SkippedTables(()))
        origin = Origin(source="s", epoch=1, file=1, position=statement.end.position)
        self._statements.execute(statement, made.pieces, origin)

    def _execute(
        self, sql: str, schema: str | None = None, *, origin: Any = None, context: Any = None
    ) -> list[int]:
        made = plan_ddl(sql, schema, self.catalog, lambda: next(self._ids), context)
        for job in made:
            late = compose(_EVENT_MS + HOURS_BEHIND_MS + job.id, 1)
            done = job_from_json(
                json.loads(json.dumps(job_to_json(replace(job, finished_ts=late))))
            )
            self.contexts.append(done.context)
            self.catalog.apply(done)
            change = self._followed.apply(done)
            self.sink.run_ddl(change, Checkpoint(late, done.schema_version), maybe_done=False)
        return [job.id for job in made]

    def copy_rows(self, table: str) -> None:
        columns = [c for c in shown_columns(self._up, UP, table) if not c[1]]
        names = ", ".join(f"`{name}`" for name, _ in columns)
        rows = self._up.query(f"SELECT {names} FROM {UP}.{table}", **AS_TEXTS)
        for row in rows:
            values = ", ".join("NULL" if v is None else _quoted(v) for v in row)
            self._down.run(_AT_UTC, f"INSERT INTO {DOWN}.{table} ({names}) VALUES ({values})")

    def rows(self, table: str) -> tuple[list[Any], list[Any]]:
        both = ((self._up, UP), (self._down, DOWN))
        texts = [
            server.query(f"SELECT * FROM {schema}.{table} ORDER BY id", **AS_TEXTS)
            for server, schema in both
        ]
        return texts[0], texts[1]

    def defaults_of(self, table: str) -> tuple[list[Any], list[Any]]:
        """Return names and defaults of a table's columns in UTC, upstream and downstream."""
        sql = (
            "SELECT column_name, column_default FROM information_schema.columns"
            " WHERE table_schema = '{}' AND table_name = '{}' ORDER BY ordinal_position"
        )
        both = ((self._up, UP), (self._down, DOWN))
        found = [server.query(sql.format(s, table), **AS_TEXTS) for server, s in both]
        return found[0], found[1]

    def downstream_session(self, sql: str) -> list[Any]:
        """Return what a query says in the session in which the sink runs its statements."""
        return self.sink._session.retrying(lambda connection, _: many(connection, sql))

    def system_zone(self, name: str) -> None:
        self._outside.server_defaults = replace(self.defaults, system_zone=name)

    def close(self) -> None:
        self.sink.close()


AS_TEXTS: dict[str, Any] = {"conv": {}, "init_command": _AT_UTC}
"""A session that shows each value as the server prints it, in UTC."""


def _quoted(value: str | bytes) -> str:
    text = value.decode() if isinstance(value, bytes) else value
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def shown_columns(server: SqlServer, schema: str, table: str) -> list[tuple[str, bool]]:
    """Return a table's columns, and whether each is computed."""
    sql = (
        "SELECT column_name, extra FROM information_schema.columns WHERE table_schema ="
        f" '{schema}' AND table_name = '{table}' ORDER BY ordinal_position"
    )
    return [(str(name), "GENERATED" in str(extra)) for name, extra in server.query(sql)]


def events(server: Any, since: Location) -> Iterator[tuple[Location, Location, bytes]]:
    """Yield the events of a server's binlog files from that of `since` on."""
    for path in sorted((server.home / "data").glob("mysql-bin.0*[0-9]")):
        file = FileName("mysql-bin", int(path.suffix[1:]))
        data, at = path.read_bytes(), len(FILE_MAGIC)
        while file.number >= since.file.number and at < len(data):
            size = read_header(data, at).size
            yield Location(1, file, at), Location(1, file, at + size), data[at : at + size]
            at += size


TABLE = (
    f"CREATE TABLE {UP}.t (id INT NOT NULL, k INT NOT NULL, ts TIMESTAMP(2) NULL, dt DATETIME(3),"
    " tm TIME(1), da DATE, v VARCHAR(40), n INT, d DECIMAL(20,6), UNIQUE KEY (id))"
)
ROWS = (
    "(1, 0, '2020-06-01 12:00:00.25', '2020-06-01 12:00:00.750', '10:11:12.5', '2020-02-29',"
    " '12abc', 300, 1.5)",
    "(2, 7, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "(3, 9, '2021-01-31 23:59:59.99', '2021-12-31 23:59:59.999', '23:59:59.9', '2021-12-31',"
    " '2021-03-04 05:06:07.55', -7, 99999.999999)",
    "(4, 12, '2001-01-01 00:00:00', '1999-07-07 07:07:07', '00:00:00', '1999-07-07', '', 0, 0)",
)
ZONES = ("+08:00", "-03:30", "SYSTEM", "+00:00", "+13:00")
MODES = (
    "", "STRICT_TRANS_TABLES", "STRICT_ALL_TABLES", "NO_AUTO_VALUE_ON_ZERO", "NO_ZERO_DATE",
    "NO_ZERO_IN_DATE", "ALLOW_INVALID_DATES", "ERROR_FOR_DIVISION_BY_ZERO", "ANSI_QUOTES",
    "NO_UNSIGNED_SUBTRACTION", "NO_BACKSLASH_ESCAPES", "PAD_CHAR_TO_FULL_LENGTH", "IGNORE_SPACE",
)  # fmt: skip
OF_MARIADB = ("TIME_ROUND_FRACTIONAL", "ORACLE")
OF_MYSQL = ("TIME_TRUNCATE_FRACTIONAL",)
_INTO = {
    "ts": ("DATETIME", "DATETIME(3)", "DATE", "TIME", "VARCHAR(40)", "BIGINT", "TIMESTAMP NULL",
           "TIMESTAMP(2) NOT NULL"),
    "dt": ("TIMESTAMP NULL", "TIMESTAMP(2) NULL", "DATE", "TIME", "VARCHAR(40)", "DATETIME"),
    "tm": ("DATETIME", "TIMESTAMP(1) NULL", "VARCHAR(20)", "INT", "TIME", "DATE"),
    "da": ("DATETIME", "TIMESTAMP NULL", "VARCHAR(20)", "INT"),
    "v": ("INT", "DATETIME(1)", "DATE", "TIME", "VARCHAR(3)", "VARCHAR(3) NOT NULL", "TINYINT",
          "DECIMAL(6,2)", "TIMESTAMP NULL"),
    "n": ("TINYINT", "VARCHAR(2)", "INT UNSIGNED", "YEAR", "INT NOT NULL", "DATE"),
    "d": ("DECIMAL(4,1)", "INT", "VARCHAR(4)", "FLOAT"),
    "k": ("INT NOT NULL AUTO_INCREMENT, ADD KEY (k)",
          "BIGINT UNSIGNED NOT NULL AUTO_INCREMENT UNIQUE"),
}  # fmt: skip
_ADDED = (
    "DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP", "DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6)",
    "TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)",
    "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP",
    "TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00'", "DATETIME NOT NULL", "DATE NOT NULL",
    "TIMESTAMP NULL", "VARCHAR(9) DEFAULT 'a\\\\b'", "INT NOT NULL DEFAULT '7'",
    "DECIMAL(20,10) AS (n / 7) STORED", "INT AS (WEEK(da)) STORED", "INT AS (n DIV 7) STORED",
    "DATE AS (dt + INTERVAL 1 MONTH) STORED", "VARCHAR(60) AS (CONCAT(v, '-', n)) STORED",
    "INT AS (NOT n BETWEEN -10 AND 5) STORED",
)  # fmt: skip


def session(rng: random.Random, *, is_mariadb: bool) -> list[str]:
    modes = rng.sample([*MODES, *(OF_MARIADB if is_mariadb else OF_MYSQL)], rng.randint(0, 4))
    settings = [
        f"SET time_zone = '{rng.choice(ZONES)}'",
        f"SET sql_mode = '{','.join(filter(None, modes))}'",
    ]
    settings += rng.sample(
        [
            f"SET timestamp = {rng.choice(('1500000000.25', '1000000000', '1700000000.999999'))}",
            "SET auto_increment_increment = 5, auto_increment_offset = 3",
            "SET lc_time_names = 'de_DE'",
            "SET default_week_format = 3, div_precision_increment = 12",
            "SET foreign_key_checks = 0, unique_checks = 0",
            "SET collation_connection = 'latin1_german1_ci'",
        ],
        rng.randint(0, 4),
    )
    return settings + (["SET check_constraint_checks = 0"] if is_mariadb else [])


def ddl(rng: random.Random) -> str:
    kind = rng.randrange(10)
    if kind < 5:
        column = rng.choice(sorted(_INTO))
        return f"ALTER TABLE {UP}.t MODIFY {column} {rng.choice(_INTO[column])}"
    if kind < 9:
        added = rng.sample(_ADDED, 2)
        parts = (f"ADD a{number} {each}" for number, each in enumerate(added))
        return f"ALTER TABLE {UP}.t {', '.join(parts)}"
    return f"ALTER TABLE {UP}.t ADD CONSTRAINT positive CHECK (n > 0)"


def ran(cursor: Any, statement: str) -> bool:
    """Run a statement; return False where the server refuses it."""
    try:
        cursor.execute(statement)
    except pymysql.err.MySQLError:
        return False
    return True


def begin(server: SqlServer, settings: Sequence[str] = ()) -> Any:
    connection = server.connect()
    cursor = connection.cursor()
    for each in settings:
        cursor.execute(each)
    return cursor
