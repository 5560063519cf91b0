"""DDL session: runs a DDL downstream in the session it had upstream, and restores the session.

    moment, time_zone             as upstream had them (`ddl_effects`)
    sql_mode                      upstream's, without the modes that only say how a text is read:
                                  the texts of jobs read correctly without any
    variables of the context      as upstream had them
    explicit_defaults_for_timestamp, check_constraint_checks, innodb_strict_mode, …
                                  so that a statement that upstream accepted is also accepted here,
                                  with the same meaning (`_ALWAYS`)

A job without a context is from a writer of ours, or from an older source. Its session is in UTC,
and has the mode that the operator chose for this downstream, or `SQL_MODE`.

If the downstream lacks a variable or refuses to set it, and the statement could depend on it, the
statement is refused before it runs. If upstream was of the other kind, features that MySQL and
MariaDB compute differently in any session are also refused (`_differs`). Variables that the
operator sets in `params` are not changed. Each variable is restored after the statement; after an
error the connection is not used any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pymysql

from drainer.sinks.ddl_effects import moment_of
from drainer.sinks.mysql.session import (
    Connection,
    code_of,
    ddl_sql_mode,
    is_mariadb,
    many,
    one,
    passes,
    version_of,
)
from penstock.codes import Code
from penstock.datum.rows.fields import INTEGER_BITS
from penstock.ddl import adopted
from penstock.ddl.charsets import charset_of_collation
from penstock.ddl.parse.parser import parse
from penstock.ddl.rewrite.explicit import defined_columns, explicit_timestamps
from penstock.ddl.rewrite.foreign import aliases
from penstock.ddl.syntax.lexer import Kind, read
from penstock.ddl.syntax.statements import AlterTable, ColumnDef, ValueKind
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import CUTS, ROUNDS, DdlContext, shown_sql, shows
from penstock.schema.model import MysqlType

if TYPE_CHECKING:
    from drainer.settings.targets import MysqlTarget
    from penstock.ddl import SchemaChange
    from penstock.schema.model import ColumnInfo

_OF_TEXTS = frozenset({
    "ANSI", "ANSI_QUOTES", "DB2", "MAXDB", "MSSQL", "MYSQL323", "MYSQL40", "NO_AUTO_CREATE_USER",
    "NO_BACKSLASH_ESCAPES", "NO_FIELD_OPTIONS", "NO_KEY_OPTIONS", "NO_TABLE_OPTIONS",
    "ONLY_FULL_GROUP_BY", "ORACLE", "PIPES_AS_CONCAT", "POSTGRESQL", "REAL_AS_FLOAT",
    "SIMULTANEOUS_ASSIGNMENT", "TRADITIONAL",
})  # fmt: skip
"""Modes that a job's text no longer depends on, or that no DDL depends on."""

_ALWAYS = {
    "check_constraint_checks": "OFF",
    "explicit_defaults_for_timestamp": "ON",
    "innodb_strict_mode": "OFF",
    "sql_require_primary_key": "OFF",
}
"""Set if the downstream has them and permits it: they reject statements, or add to a text."""

_USUAL = {"auto_increment_increment": "1", "auto_increment_offset": "1", "lc_time_names": "0"}

_CONCERNS = {
    "auto_increment_increment": ("1", r"\bAUTO_INCREMENT\b"),
    "auto_increment_offset": ("1", r"\bAUTO_INCREMENT\b"),
    "default_collation_for_utf8mb4": ("utf8mb4_0900_ai_ci", r"_UTF8MB4|\bUTF8MB4\s*\)"),
    "default_week_format": ("0", r"\bWEEK\b"),
    "div_precision_increment": ("4", r"/"),
    "timestamp": ("", r""),
    "lc_time_names": ("0", r"\b(DATE_FORMAT|TIME_FORMAT|DAYNAME|MONTHNAME|STR_TO_DATE|FORMAT)\b"),
}
"""For each variable its value on a server that lacks it, and the statements that depend on it."""

_EXPLICIT = "explicit_defaults_for_timestamp"
_ENGLISH = ("lc_time_names", "0", "en_US")
_TEMPORAL = (MysqlType.DATETIME, MysqlType.TIMESTAMP, MysqlType.DURATION)
_WHOLE = (*INTEGER_BITS, MysqlType.YEAR)
_NUMBERS = (*_WHOLE, MysqlType.FLOAT, MysqlType.DOUBLE, MysqlType.NEWDECIMAL)
_UNKNOWN_ZONE = 1298
_ZERO_DATE_CAST = "ZERO_DATE_TIME_CAST"


@contextmanager
def as_upstream(
    connection: Connection, change: SchemaChange, query: str, target: MysqlTarget
) -> Iterator[str]:
    """Run the body as upstream ran a job; raise `NeedsOperator` before it if that is not possible.

    `query` is the job's statement for this server; the yielded value is the text to run.
    """
    moment_s, zone = moment_of(change)
    session = _Session(connection, change, query, dict(target.variables))
    session.set_modes(ddl_sql_mode(target))
    session.set_zone(zone)
    session.check_kind()
    context = change.job.context or DdlContext()
    for name, value in (_USUAL | dict(context.variables) | _ALWAYS).items():
        session.set(name, value)
    # NULLs of such a column become the moment of the DDL.
    if any(
        n.tp is MysqlType.TIMESTAMP and n.is_not_null and not old.is_not_null
        for old, n in _kept(change)
    ):
        session.set("old_alter_table", "ON")  # In place a MySQL refuses NULL (1138).
    connection.query(f"SET TIMESTAMP = {moment_s:.6f}")
    yield query if session.is_explicit else written_out(query)
    connection.query("SET TIMESTAMP = DEFAULT")
    session.put_back()


def written_out(query: str) -> str:
    """Return a statement as it runs where a TIMESTAMP column is not what its definition says."""
    try:
        return explicit_timestamps(query)
    except NeedsOperator:
        return query  # Not of our grammar: an operator's own statement.


class _Session:
    """A session's variables, as they were and as one DDL has them."""

    def __init__(
        self, connection: Connection, change: SchemaChange, query: str, own: Mapping[str, str]
    ) -> None:
        self._connection = connection
        self._change = change
        self._query = query
        self._own = own
        names = {*_USUAL, *_ALWAYS, *_CONCERNS, "collation_connection", "old_alter_table",
                 "old_mode", "sql_mode", "time_zone"}  # fmt: skip
        listed = ", ".join(f"'{name}'" for name in sorted(names))
        found = many(connection, f"SHOW SESSION VARIABLES WHERE Variable_name IN ({listed})")
        self._before = {str(name): str(value) for name, value in found}
        self._changed: set[str] = set()

    def put_back(self) -> None:
        """Restore all changed variables."""
        values = (f"{name} = {self._literal(self._before[name])}" for name in sorted(self._changed))
        if self._changed:
            self._connection.query(f"SET SESSION {', '.join(values)}")

    @property
    def is_explicit(self) -> bool:
        """True if a TIMESTAMP column follows its definition."""
        return _EXPLICIT in self._changed or self._before.get(_EXPLICIT, "ON") == "ON"

    def set(self, name: str, value: str) -> None:
        """Set one variable, or raise `NeedsOperator` if the statement could depend on it."""
        there = self._before.get(name)
        if name in self._own or there == value or (name, value, there) == _ENGLISH:
            return
        if name == "old_mode":
            self._set_old_mode(value)
        elif name == "collation_connection":
            self._set_collation(value)
        elif (error := self._tried(name, value)) and name in _CONCERNS:
            usual, dependent = _CONCERNS[name]
            is_usual = there is None and value == usual
            if not is_usual and re.search(dependent, self._query, re.IGNORECASE):
                raise self._unable(f"{name} = {value}", error)

    def check_kind(self) -> None:
        """Raise `NeedsOperator` for features that MySQL and MariaDB compute differently."""
        context = self._change.job.context or DdlContext()
        version, there = dict(context.variables).get("version"), version_of(self._connection)
        if version is None or is_mariadb(version) == is_mariadb(there):
            return
        rounds = ROUNDS in (context.sql_mode or ())
        if what := _differs(self._change, self._query, rounds=rounds):
            raise NeedsOperator(
                f"the statement ran on a {version} upstream, and the downstream,"
                f" {there}, computes {what} in another way:"
                f" {self._change.job.query}",
                "run a statement downstream that gives upstream's values, such as one with"
                " ROUND() around a quotient; or do it by hand, then track the DDL",
                Code.SINK_DDL_MOMENT,
            )

    def set_modes(self, own: str) -> None:
        """Set sql_mode to upstream's, or to `own` if upstream's is unknown."""
        context = self._change.job.context
        if context is None or context.sql_mode is None:
            if error := self._tried("sql_mode", own):
                raise error
            return
        wanted = context.sql_mode - _OF_TEXTS
        if not is_mariadb(version_of(self._connection)):
            wanted = wanted - {ROUNDS} if ROUNDS in wanted else wanted | {CUTS}
        if self._tried("sql_mode", ",".join(sorted(wanted))) is None:
            return
        lacking = {mode for mode in wanted if self._tried("sql_mode", mode) is not None}
        for mode in sorted(lacking):
            if self._depends_on(mode):
                raise self._unable(f"sql_mode = {mode}", "it has no such mode")
        if error := self._tried("sql_mode", ",".join(sorted(wanted - lacking))):
            raise error

    def set_zone(self, zone: str) -> None:
        """Set time_zone, or SYSTEM if the server lacks the named zone but runs in it."""
        error = self._tried("time_zone", zone)
        if error is not None and code_of(error) == _UNKNOWN_ZONE:
            self._connection.query("SET SESSION time_zone = 'SYSTEM'")
            self._changed.add("time_zone")
            if shows(one(self._connection, shown_sql()), zone):
                return
        if error is not None:
            raise NeedsOperator(
                f"the statement ran in time zone {zone} upstream, which the downstream does not"
                f" have: {error}",
                "load the downstream's time zone tables (mysql_tzinfo_to_sql, or"
                " mariadb-tzinfo-to-sql)",
                Code.SINK_DDL_MOMENT,
            )

    # --- details ---------------------------------------------------------------------------

    def _literal(self, value: str) -> str:
        return value if value.isdecimal() else str(self._connection.escape(value))

    def _tried(self, name: str, value: str) -> Exception | None:
        if name not in self._before:
            return KeyError("it has no such variable")
        try:
            self._connection.query(f"SET SESSION {name} = {self._literal(value)}")
        except pymysql.err.MySQLError as error:
            if passes(error):
                raise
            return error
        self._changed.add(name)
        return None

    def _set_collation(self, value: str) -> None:
        """Set collation_connection; its charset matters, its collation hardly ever."""
        charset = charset_of_collation(value)
        options = (value, *aliases(value), f"{charset}_general_ci", f"{charset}_bin")
        if any(self._tried("collation_connection", each) is None for each in options):
            return
        if not self._query.isascii():
            raise self._unable(f"collation_connection = {value}", "it has none of that charset")

    def _set_old_mode(self, value: str) -> None:
        """Set MariaDB's old_mode; a server without it or its value has the usual mode."""
        cast = _ZERO_DATE_CAST if _ZERO_DATE_CAST in value else ""
        if not self._tried("old_mode", value) or not self._tried("old_mode", cast) or not cast:
            return
        if any(old.tp is MysqlType.DURATION for old, _ in _converted(self._change)):
            raise self._unable(f"old_mode = {cast}", "it has no such mode")

    def _depends_on(self, mode: str) -> bool:
        if mode in (CUTS, ROUNDS):
            return any(new.tp in _TEMPORAL for _, new in _converted(self._change))
        if mode == "EMPTY_STRING_IS_NULL":
            return re.search(r"''|\"\"", self._query) is not None
        return mode != "IGNORE_BAD_TABLE_OPTIONS"

    def _unable(self, setting: str, why: object) -> NeedsOperator:
        return NeedsOperator(
            f"the statement ran with {setting} upstream, which the downstream cannot do ({why}):"
            f" {self._change.job.query}",
            "run a statement downstream that gives the same values without it",
            Code.SINK_DDL_MOMENT,
        )


def _differs(change: SchemaChange, query: str, *, rounds: bool) -> str:
    """Return the part of an ALTER TABLE that MySQL and MariaDB compute differently, "" for none.

    `rounds` tells that upstream rounded fractions of seconds: a MariaDB never does for a DATE.
    """
    try:
        statements = parse(query)[1]
    except NeedsOperator:
        return ""  # Not of our grammar: an operator's own statement.
    converted = {new.name.lower(): (old, new) for old, new in _converted(change)}
    for statement in statements:
        for column in defined_columns(statement) if isinstance(statement, AlterTable) else ():
            old, new = converted.get(column.name.lower(), (None, None))
            if old is not None and new is not None:
                is_cut = new.tp in _WHOLE or (rounds and new.tp is MysqlType.DATE)
                if is_cut and old.tp in _TEMPORAL and old.decimal > 0:
                    return f"{new.name} from times with fractions of a second"
                if old.tp in _NUMBERS and new.tp in (*_TEMPORAL, MysqlType.DATE):
                    return f"{new.name} from numbers"
            if what := _computed_differently(change, column):
                return what
    return ""


def _computed_differently(change: SchemaChange, column: ColumnDef) -> str:
    is_default = column.default is not None and column.default.kind is ValueKind.EXPRESSION
    text = column.generated if column.stored else ""
    text += column.default.text if column.default is not None and is_default else ""
    tokens = read(text).tokens
    if any(token.kind is Kind.SIGN and token.text == "/" for token in tokens):
        return f"quotients ({column.name})"
    names = {token.text.lower() for token in tokens}
    for _, _, after in change.altered:
        made = after.column(column.name)
        is_coarse = made is not None and made.tp in (*_WHOLE, MysqlType.DATE)
        for each in after.columns if is_coarse else ():
            if each.name.lower() in names and each.tp in _TEMPORAL and each.decimal > 0:
                return f"{column.name} from times with fractions of a second"
    return ""


def _converted(change: SchemaChange) -> Iterator[tuple[ColumnInfo, ColumnInfo]]:
    for old, new in _kept(change):
        if (old.tp, old.decimal) != (new.tp, new.decimal):
            yield old, new


def _kept(change: SchemaChange) -> Iterator[tuple[ColumnInfo, ColumnInfo]]:
    """Yield each column of the altered tables that existed before, before and after."""
    for _, before, after in change.altered:
        known = {c.id: c for c in adopted(change.job, before, after).columns}
        for column in after.columns:
            old = known.get(column.id) or before.column(column.name)
            if old is not None:
                yield old, column
