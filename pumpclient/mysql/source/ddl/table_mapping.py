"""Maps each table of the server to a table of the cluster and to the transcoder of its rows.

A table that the cluster does not know is defined from the server's own CREATE TABLE. A table that
the filters exclude has no transcoder, and none of its rows is read.
"""

import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property

from penstock.codes import Code
from penstock.ddl.rewrite.explicit import explicit
from penstock.ddl.rewrite.routing import rename_tables
from penstock.ddl.syntax.lexer import quote_name, quote_path
from penstock.errors import NeedsOperator
from penstock.filters import Rules
from penstock.filters.rules import RowPolicy
from penstock.schema.ddl_context import shown_sql, zone_shown
from pumpclient.client import PumpClient
from pumpclient.mysql.load.tables import TABLE_TYPES
from pumpclient.mysql.protocol.server import Connection, ServerAddress, rows
from pumpclient.mysql.rows.table_map import TableMap
from pumpclient.mysql.source.ddl.session import GLOBALS, ServerDefaults
from pumpclient.mysql.translate.online_ddl import OnlineDdl
from pumpclient.mysql.translate.outputs import SequenceRows, Sequences
from pumpclient.mysql.translate.statement_objects import RowsChanged
from pumpclient.mysql.translate.statement_text import built_into, dialect_of
from pumpclient.mysql.translate.transcode import Transcoder
from pumpclient.rows import Table

log = logging.getLogger(__name__)

_SCAN_S_MAX = 86_400.0
_SEQUENCE = re.compile(r"\) ENGINE=\w+ SEQUENCE=1\b")


class Routed(Transcoder):
    """Reads the rows of one table of the server, and knows their target and which are wanted."""

    def __init__(
        self,
        table_map: TableMap,
        here: Table,
        policy: RowPolicy,
        *,
        is_merged: bool,
        on_history: Callable[[int], None],
    ) -> None:
        super().__init__(table_map, here.info, may_lack=is_merged, on_history=on_history)
        self.here = here
        self.policy = policy


class Tables:
    """The tables of one source, by the names and ids in rows events."""

    def __init__(
        self,
        client: PumpClient,
        rules: Rules,
        address: ServerAddress,
        online: OnlineDdl | None,
        *,
        merges: bool = False,
        only: frozenset[tuple[str, str]] | None = None,
        on_history: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Want the rows of the tables `only`, or of all that are replicated.

        `on_history` gets the numbers of rows that were skipped, see `Transcoder`.
        """
        self._only = only
        self._on_history = on_history
        self._client = client
        self._rules = rules
        self._address = address
        self._online = online
        self._merges = merges
        self.sequences = Sequences()
        self._said_versioned: set[tuple[str, str]] = set()
        self._sources: dict[str, set[tuple[str, str]]] = {}
        """The server's tables that are mapped to one table here, by its name in lower case."""

    def reserve_numbers(self) -> None:
        for (schema, name), sql in self.sequences.take():
            found = self._client.session.schemas.catalog().table(schema, name)
            if found is not None and found.is_sequence:
                self._client.execute_ddl(sql)

    def choose(self, table_map: TableMap) -> Routed | SequenceRows | None:
        """Return the current reader of a table's rows, None if the rows are not wanted."""
        schema, name = table_map.schema, table_map.table
        if self._only is not None and (schema, name) not in self._only:
            return None
        if not self._rules.is_replicated(schema, name) or self._is_online_ddl(name):
            return None
        target = self._rules.target(schema, name)
        if target == (schema, name) and (other := self.namesake(schema, name)):
            raise two_names(f"{schema}.{name}", other)
        sources = self._sources.setdefault(".".join(target).lower(), set())
        if (schema, name) not in sources:
            if sources:
                self.check_merged()
            sources.add((schema, name))
        if self._client.session.schemas.catalog().table(*target) is None:
            self.define(schema, name)
        known = self._client.session.schemas.catalog().table(*target)
        if known is not None and known.is_sequence:
            return SequenceRows(table_map, target, self.sequences)
        table = self._client.session.schemas.table(*target)
        policy = self._rules.of_rows(schema, replace(table.info, name=name))
        if policy.takes_nothing:
            return None
        is_merged = self._merges and self._rules.router.is_routed(schema, name)
        made = Routed(table_map, table, policy, is_merged=is_merged, on_history=self._on_history)
        if made.is_versioned and (schema, name) not in self._said_versioned:
            self._said_versioned.add((schema, name))
            log.warning(
                "%s.%s is system-versioned: its current rows are followed, its history is skipped",
                schema, name,
            )  # fmt: skip
        return made

    def check_merged(self) -> None:
        """Raise `NeedsOperator` where the server's tables are merged here without a route for it.

        Names without a route that differ in letter case only are refused with their first row.
        """
        router = self._rules.router
        if router.is_empty:
            return
        with self._address.session() as connection:
            found = server_tables(connection)
        places: dict[str, list[tuple[str, str]]] = {}
        for each in found:
            if self._rules.is_replicated(*each) and not self._is_online_ddl(each[1]):
                places.setdefault(".".join(self._rules.target(*each)).lower(), []).append(each)
        for names in places.values():
            if len(names) > 1 and any(router.is_routed(*each) for each in names):
                router.check_merged(names)

    def namesake(self, schema: str, name: str) -> str:
        """Return the name here that differs only in letter case and is another table on the server.

        An empty `name` is the database; the answer is empty where no such name exists.
        """
        catalog = self._client.session.schemas.catalog()
        found = catalog.schema(schema)
        if found is None:
            return ""
        table = catalog.table(found.name, name) if name else None
        here = (found.name, name if table is None else table.name)
        return ".".join(filter(None, here)) if here != (schema, name) and self._minds_case else ""

    @cached_property
    def _minds_case(self) -> bool:
        with self._address.session() as connection:
            (row,) = rows(connection, "SELECT @@lower_case_table_names AS folds")
        return not row["folds"]

    @property
    def server_defaults(self) -> ServerDefaults:
        with self._address.session() as connection:
            return server_defaults(connection)

    def session(self) -> AbstractContextManager[Connection]:
        """Open a session for statements that may read a whole table."""
        return replace(self._address, statement_timeout_s=_SCAN_S_MAX).session()

    def define(self, schema: str, name: str) -> None:
        with self._address.session() as connection:
            define_table(self._client, connection, (schema, name), self._rules.target)
        self._client.session.schemas.catch_up()

    def side_effects(self, changed: RowsChanged) -> str:
        """Name a trigger or stored function by which these changes may change other tables."""
        with self._address.session() as connection:
            for schema, name in changed.tables:
                for row in rows(connection, _TRIGGERS, schema, name):
                    return f"trigger {row['name']} of {schema}.{name} may change other tables"
            marks = ", ".join(["%s"] * len(changed.functions))
            sql = f"{_FUNCTIONS} AND routine_name IN ({marks})" if marks else ""
            for row in rows(connection, sql, *changed.functions) if sql else ():
                return f"the stored function {row['name']} may change other tables"
        return ""

    def database_collation(self, schema: str) -> str | None:
        """Return the collation that a database has on the server now, None when it is gone."""
        with self._address.session() as connection:
            return database_collation(connection, schema)

    def define_all(self, connection: Connection) -> int:
        """Create all replicated tables that the cluster lacks; return how many were created."""
        catalog = self._client.session.schemas.catalog()
        count = 0
        for schema, name in (*server_sequences(connection), *server_tables(connection)):
            if not self._rules.is_replicated(schema, name) or self._is_online_ddl(name):
                continue
            if catalog.table(*self._rules.target(schema, name)) is None:
                try:
                    define_table(self._client, connection, (schema, name), self._rules.target)
                except NeedsOperator as error:
                    # Its first rows retry this, and then an override can answer for this table.
                    log.warning("%s.%s cannot be defined yet: %s", schema, name, error)
                    continue
                catalog = self._client.session.schemas.catalog()
                count += 1
        return count

    def _is_online_ddl(self, name: str) -> bool:
        return self._online is not None and self._online.is_copy(name)


_TRIGGERS = (
    "SELECT trigger_name AS name FROM information_schema.triggers"
    " WHERE event_object_schema = %s AND event_object_table = %s"
)
_FUNCTIONS = (
    "SELECT routine_name AS name FROM information_schema.routines WHERE routine_type = 'FUNCTION'"
)


def two_names(name: str, other: str) -> NeedsOperator:
    return NeedsOperator(
        f"{name} and {other} are two on the server, but letter case makes no difference here",
        f"skip what is about {name}, or rename it on the server",
        Code.ROUTE_CONFLICT,
    )


def server_tables(connection: Connection) -> list[tuple[str, str]]:
    return _server_names(connection, *TABLE_TYPES)


def server_sequences(connection: Connection) -> list[tuple[str, str]]:
    return _server_names(connection, "SEQUENCE")


def _server_names(connection: Connection, *kinds: str) -> list[tuple[str, str]]:
    marks = ", ".join(["%s"] * len(kinds))
    found = rows(
        connection,
        "SELECT table_schema AS s, table_name AS t FROM information_schema.tables"  # noqa: S608
        f" WHERE table_type IN ({marks}) ORDER BY 1, 2",
        *kinds,
    )
    return [(str(row["s"]), str(row["t"])) for row in found]


def server_defaults(connection: Connection) -> ServerDefaults:
    """Return a server's defaults for all sessions; sets `connection` to the SYSTEM zone."""
    names = ", ".join(f"'{name}'" for name in GLOBALS)
    found = rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    ((likely,),) = (row.values() for row in rows(connection, "SELECT @@system_time_zone"))
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = 'SYSTEM'")
        cursor.execute(shown_sql())
        shown = cursor.fetchone()
    assert shown is not None, "a SELECT without a table has one row"
    zone = zone_shown(shown, str(likely))
    if zone is None:
        log.warning("the server's SYSTEM time zone %s is none that is known here", likely)
    variables = {str(row["variable_name"]): str(row["value"]) for row in found}
    return ServerDefaults(zone, variables)


def show_create(connection: Connection, table: tuple[str, str]) -> str:
    """Return the text of SHOW CREATE TABLE or SHOW CREATE SEQUENCE; empty for a view."""
    (row,) = rows(connection, f"SHOW CREATE TABLE {quote_path(*table)}")
    sql = str(row.get("create table", ""))
    if _SEQUENCE.search(sql):
        (row,) = rows(connection, f"SHOW CREATE SEQUENCE {quote_path(*table)}")
        sql = str(row["create table"])
    return sql


def define_table(
    client: PumpClient,
    connection: Connection,
    source: tuple[str, str],
    target: Callable[[str, str], tuple[str, str]],
) -> None:
    """Create a server's table in the cluster, from the server's own CREATE TABLE.

    `target` names it here. Does nothing when it exists. Raises `NeedsOperator` when the server has
    no such table, or when its statement cannot be read.
    """
    schema, name = source
    # Defaults of TIMESTAMP columns are shown in the session's zone, and read here as UTC.
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = '', sql_quote_show_create = 1")
    sql = show_create(connection, source)
    if not sql:
        raise NeedsOperator(
            f"{schema}.{name} is no table", "skip it with a filter", Code.DDL_OBJECT
        )
    here = target(schema, name)
    ensure_schema(client, here[0], database_collation(connection, schema))
    ((version,),) = (row.values() for row in rows(connection, "SELECT VERSION()"))
    kind = "SEQUENCE" if sql.startswith("CREATE SEQUENCE") else "TABLE"
    sql = f"CREATE {kind} IF NOT EXISTS" + sql.removeprefix(f"CREATE {kind}")
    sql = explicit(sql, built_into(dialect_of(version)))
    client.execute_ddl(rename_tables(sql, schema, target))
    log.info("%s.%s is defined as the server has it", *here)


def database_collation(connection: Connection, schema: str) -> str | None:
    found = rows(
        connection,
        "SELECT default_collation_name AS collation FROM information_schema.schemata"
        " WHERE schema_name = %s",
        schema,
    )
    return str(found[0]["collation"]) if found else None


def ensure_schema(client: PumpClient, schema: str, collation: str | None) -> None:
    clause = f" COLLATE {collation}" if collation else ""
    client.execute_ddl(f"CREATE DATABASE IF NOT EXISTS {quote_name(schema)}{clause}")
