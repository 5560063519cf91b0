"""The session of a DDL: the facts on which its result depends, and proofs of assumed ones.

The context of a QUERY:

    of the event         time, to the microsecond where its session asked for it; time zone,
                         sql_mode, lc_time_names, auto_increment_*, collation_connection and the
                         meaning of utf8mb4, all as the session had them
    of the server        its version; the meaning of SYSTEM as a time zone; global values of
                         `GLOBALS`, which no event has: `check_session` detects other values

A server writes a time zone only where the statement used it, and numbers of `auto_increment_*` and
`lc_time_names` only where they are not the usual ones.

Omitted, because a statement that the server accepted has the same effect without them:
`foreign_key_checks`, `unique_checks` and `check_constraint_checks`, which only refuse;
`explicit_defaults_for_timestamp` (`statement_text`), and character sets and collations of tables,
which are written into the statement.

No event carries a session's `default_week_format`, `div_precision_increment` and `old_mode`.
A context has the global values. Where a statement depends on a setting, the server itself shows
whether the session had the global value:

    a / b, EXTRACT(WEEK FROM d)     in stored columns, and in the default of a new column: the
                                    values that the table's rows have
    WEEK(d) on a MariaDB            the same; MariaDB accepts it in defaults only
    WEEK(d) on a MySQL              the definition, in which the server writes the mode
    TIME to DATETIME or TIMESTAMP   the values, on a MariaDB: whether the year is 0
    utf8                            the character sets of the columns, on a MariaDB

Nothing else depends on them. YEARWEEK(d) has the mode 0, and partitions allow none of these.
Columns that are not stored, and a MariaDB's CHECK, are computed in each session that needs them.
The rows of CREATE TABLE … SELECT, which may contain AVG, are logged as rows, and its columns with
their types.

`check_session` asks the server. Where the server shows another definition, or no longer has the
table, the statement is refused before it is executed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from penstock.codes import Code
from penstock.datum.rows.fields import INTEGER_BITS
from penstock.ddl import SchemaChange
from penstock.ddl.charsets import collation_name
from penstock.ddl.syntax.lexer import Kind, Token, quote_name, quote_path, read
from penstock.ddl.syntax.statements import (
    AddColumns,
    AlterTable,
    CreateTable,
    CreateView,
    IndexStatement,
    Statement,
    ValueKind,
)
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import CUTS, ROUNDS, DdlContext, modes_of, zone_named
from penstock.schema.model import ColumnInfo, MysqlType, TableInfo
from pumpclient.mysql.events.transactions import StatusVariables
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.protocol.server import Connection, rows
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.translate.ddl_pieces import Piece
from pumpclient.mysql.translate.statement_text import Dialect

GLOBALS = ("default_week_format", "div_precision_increment", "old_mode")
"""Variables that change values; a server may not have all of them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MARIADB_MODES = {32: "EMPTY_STRING_IS_NULL", 33: "SIMULTANEOUS_ASSIGNMENT", 34: ROUNDS}
_MYSQL_CUTS = 1 << 32
_OLD_MODES = ("UTF8_IS_UTF8MB3", "ZERO_DATE_TIME_CAST")
_OLD_MODE_OF_ALIAS_SINCE = 100601


@dataclass(frozen=True, slots=True)
class ServerDefaults:
    """A server's global settings."""

    system_zone: str | None = None
    """None where it has no name."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The server's values of `GLOBALS`."""


def context_of(
    variables: StatusVariables,
    dialect: Dialect,
    timestamp_s: int,
    defaults: Callable[[], ServerDefaults],
) -> DdlContext:
    """Return a QUERY's session context; raise `NeedsOperator` for an unknown time zone."""
    fraction_us = variables.microseconds or variables.mariadb_hrnow_us or 0
    moment_us = timestamp_s * 1_000_000 + fraction_us
    zone = variables.time_zone
    if zone == "SYSTEM":
        zone = defaults().system_zone
    offset_s = 0
    if variables.time_zone is not None:
        known = None if zone is None else zone_named(zone)
        if known is None:
            raise NeedsOperator(
                f"the statement's time zone {variables.time_zone} is not known here",
                "install the machine's time zone data (tzdata), or run the server in a zone"
                " that has a name there; or give a statement to run instead of it",
                Code.DDL_UNREADABLE,
            )
        offset = (_EPOCH + timedelta(microseconds=moment_us)).astimezone(known).utcoffset()
        offset_s = round(offset.total_seconds()) if offset is not None else 0
    is_mariadb = dialect.flavor is Flavor.MARIADB
    settings = defaults().variables
    old = [mode for mode in _OLD_MODES if mode in settings.get("old_mode", "").upper()]
    if not may_mean_utf8mb4(dialect) and _OLD_MODES[0] not in old:
        old.insert(0, _OLD_MODES[0])
    found = {**_of_event(variables, is_mariadb), **settings, "old_mode": ",".join(old)}
    found["version"] = dialect.version_text
    mode = variables.sql_mode
    return DdlContext(
        moment_us=moment_us,
        time_zone=zone,
        offset_s=offset_s,
        sql_mode=None if mode is None else modes_named(mode, dialect),
        variables=tuple(sorted(found.items())),
    )


def modes_named(mode: int, dialect: Dialect) -> frozenset[str]:
    names = set(modes_of(mode))
    if dialect.flavor is Flavor.MARIADB:
        names |= {name for bit, name in _MARIADB_MODES.items() if mode >> bit & 1}
    elif not mode & _MYSQL_CUTS:
        names.add(ROUNDS)
    assert CUTS not in names, "what does not round cuts"
    return frozenset(names)


def _of_event(variables: StatusVariables, is_mariadb: bool) -> dict[str, str]:
    increment, offset = variables.auto_increment or (1, 1)
    found = {
        "auto_increment_increment": str(increment),
        "auto_increment_offset": str(offset),
        "lc_time_names": str(variables.lc_time_names or 0),
    }
    if variables.charsets is not None:
        number = variables.charsets[1]
        found["collation_connection"] = collation_name(number, is_mariadb=is_mariadb)
    if variables.default_collation_utf8mb4 is not None:
        number = variables.default_collation_utf8mb4
        found["default_collation_for_utf8mb4"] = collation_name(number, is_mariadb=is_mariadb)
    return found


def may_mean_utf8mb4(dialect: Dialect) -> bool:
    """Return whether `old_mode` decides the meaning of utf8; elsewhere it is utf8mb3."""
    return dialect.flavor is Flavor.MARIADB and dialect.version >= _OLD_MODE_OF_ALIAS_SINCE


def means_utf8mb4(variables: Mapping[str, str]) -> bool:
    return _OLD_MODES[0] not in variables.get("old_mode", "").upper()


_ZERO_DATE_CAST = "ZERO_DATE_TIME_CAST"
_WHOLE = frozenset({*INTEGER_BITS, MysqlType.YEAR})
_TEXTS = frozenset({MysqlType.VARCHAR, MysqlType.VAR_STRING, MysqlType.STRING, MysqlType.BLOB,
                    MysqlType.TINY_BLOB, MysqlType.MEDIUM_BLOB, MysqlType.LONG_BLOB})  # fmt: skip
_DATED = frozenset({MysqlType.DATETIME, MysqlType.TIMESTAMP})


def conditions(
    statement: Statement,
    before: TableInfo | None,
    after: TableInfo | None,
    variables: Mapping[str, str],
    *,
    is_mariadb: bool,
) -> list[str]:
    """Return conditions that no row meets if a statement's session had the global `variables`.

    `before` and `after` are its table before and after the statement.
    """
    if not isinstance(statement, AlterTable) or after is None:
        return []
    computed = {c.name: c.generated_expr for c in after.columns if c.generated_stored}
    computed |= {
        column.name: column.default.text
        for part in statement.parts
        if isinstance(part.operation, AddColumns)
        for column in part.operation.columns
        if column.default is not None and column.default.kind is ValueKind.EXPRESSION
    }
    found = [
        f"NOT ({quote_name(column.name)} <=> {_stored(computed[column.name], column)})"
        for column in after.columns
        if column.name in computed and _is_open(computed[column.name], is_mariadb=is_mariadb)
    ]
    if is_mariadb and before is not None:
        is_zero = _ZERO_DATE_CAST in variables.get("old_mode", "").upper()
        found += (
            f"YEAR({quote_name(new.name)}) {'<>' if is_zero else '='} 0"
            for old, new in _kept(before, after)
            if old.tp is MysqlType.DURATION and new.tp in _DATED
        )
    return found


def week_modes(sql: str) -> list[str]:
    tokens = read(sql).tokens
    return [
        _second(tokens[at + 2 :])
        for at, token in enumerate(tokens[:-2])
        if token.upper == "WEEK" and tokens[at + 1].text == "("
    ]


def _is_open(expression: str, *, is_mariadb: bool) -> bool:
    tokens = read(expression).tokens
    for at, token in enumerate(tokens):
        if token.kind is Kind.SIGN and token.text == "/":
            return True
        if token.upper == "EXTRACT" and [each.upper for each in tokens[at + 2 : at + 3]] == [
            "WEEK"
        ]:
            return True
    return is_mariadb and "" in week_modes(expression)


def _stored(expression: str, column: ColumnInfo) -> str:
    if column.tp in _WHOLE:
        return f"ROUND({expression})"
    if column.tp is MysqlType.NEWDECIMAL:
        return f"ROUND({expression}, {max(column.decimal, 0)})"
    return f"CAST(({expression}) AS CHAR)" if column.tp in _TEXTS else f"({expression})"


def _kept(before: TableInfo, after: TableInfo) -> Iterator[tuple[ColumnInfo, ColumnInfo]]:
    old = {column.id: column for column in before.columns}
    by_name = {column.name.lower(): column for column in before.columns}
    for column in after.columns:
        known = old.get(column.id) or by_name.get(column.name.lower())
        if known is not None:
            yield known, column


def _second(tokens: Sequence[Token]) -> str:
    depth, begins = 0, -1
    for at, token in enumerate(tokens):
        if token.kind is Kind.SIGN:
            if depth == 0 and token.text == ")":
                return "".join(t.text for t in tokens[begins:at]) if begins >= 0 else ""
            if depth == 0 and token.text == ",":
                begins = at + 1
            depth += {"(": 1, ")": -1}.get(token.text, 0)
    return ""


Opens = Callable[[], AbstractContextManager[Connection]]

_MODES = frozenset({"HIGH_NOT_PRECEDENCE", "NO_UNSIGNED_SUBTRACTION", "PAD_CHAR_TO_FULL_LENGTH"})
"""Modes that change values, and not how the text is read, which is in plain text here."""
_VARIABLES = ("default_week_format", "div_precision_increment")


def check_session(
    piece: Piece,
    statements: Sequence[Statement],
    changes: Sequence[SchemaChange],
    context: DdlContext,
    opens: Opens,
    *,
    is_mariadb: bool,
    says_utf8: bool,
) -> None:
    """Raise `NeedsOperator` unless the server shows a session that `context` describes.

    `says_utf8` means that the statement has a character set by a name whose meaning `old_mode`
    decides. `opens` gives a session of the server; it is used for statements that depend on one.
    """
    for statement in statements:
        if isinstance(statement, (CreateTable, CreateView, AlterTable, IndexStatement)):
            settings = dict(context.variables)
            pairs = [(old, new) for change in changes for _, old, new in change.altered]
            pairs += [(old, new) for change in changes for _, old, _, new in change.renamed]
            before, after = (pairs[0][0], pairs[-1][1]) if pairs else (None, None)
            found = conditions(statement, before, after, settings, is_mariadb=is_mariadb)
            if found and _rows_meet(opens, piece.tables[0], found, context):
                raise _unproved(piece, "values that the table's rows have")
            modes = [] if is_mariadb else week_modes(piece.sql)
            if "" in modes:
                known = {settings.get("default_week_format", "0"), *modes}
                with opens() as connection:
                    (row,) = rows(connection, f"SHOW CREATE TABLE {quote_path(*piece.tables[0])}")
                definition = str(row.get("create table") or row.get("create view"))
                if not set(week_modes(definition)) <= known:
                    raise _unproved(piece, "the mode of WEEK in its definition")
    if says_utf8:
        _check_charsets(piece, changes, opens)


def _rows_meet(opens: Opens, name: Name, found: Sequence[str], context: DdlContext) -> bool:
    sql = f"SELECT 1 FROM {quote_path(*name)} WHERE {' OR '.join(found)} LIMIT 1"  # noqa: S608
    modes = ",".join(sorted(_MODES & (context.sql_mode or frozenset())))
    numbers = {name: value for name, value in context.variables if name in _VARIABLES}
    settings = [f"{each} = {int(value)}" for each, value in sorted(numbers.items())]
    with opens() as connection:
        with connection.cursor() as cursor:
            cursor.execute(
                f"SET SESSION time_zone = %s, sql_mode = %s{''.join(f', {s}' for s in settings)}",
                (context.time_zone or "+00:00", modes),
            )
        return bool(rows(connection, sql))


def _check_charsets(piece: Piece, changes: Sequence[SchemaChange], opens: Opens) -> None:
    """Raise `NeedsOperator` where a column has another character set on the server."""
    made = [table for change in changes for _, table in change.created]
    made += [table for change in changes for _, _, table in change.altered]
    made += [table for change in changes for _, _, _, table in change.renamed]
    schema = next((c.job.schema for c in changes if c.schemas_created), None)
    if not made and schema is None:
        return
    with opens() as connection:
        there = _charsets_there(connection, piece.tables[0])
    here = {"": _utf8mb3(schema.charset)} if schema is not None else {}
    if made:
        here = {each.name.lower(): _utf8mb3(each.charset) for each in made[-1].columns}
    wrong = sorted(name for name in here.keys() & there.keys() if here[name] != there[name])
    if wrong:
        raise _unproved(piece, f"the character set of {', '.join(filter(None, wrong)) or 'it'}")


def _charsets_there(connection: Connection, name: Name) -> dict[str, str]:
    schema, table = name
    if not table:
        sql = ("SELECT '' AS name, default_character_set_name AS charset"
               " FROM information_schema.schemata WHERE schema_name = %s")  # fmt: skip
        found = rows(connection, sql, schema)
    else:
        sql = (
            "SELECT column_name AS name, character_set_name AS charset"
            " FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
        )
        found = rows(connection, sql, schema, table)
    return {str(row["name"]).lower(): _utf8mb3(row["charset"]) for row in found if row["charset"]}


def _utf8mb3(name: object) -> str:
    return "utf8mb3" if name == "utf8" else str(name)


def _unproved(piece: Piece, shown: str) -> NeedsOperator:
    return NeedsOperator(
        "the statement depends on a setting of its session that the binlog does not have, and"
        f" the server's global setting does not give {shown}",
        "replace the statement by one that gives the server's values and does not depend on"
        " default_week_format, div_precision_increment or old_mode",
        Code.DDL_UNREADABLE,
    )
