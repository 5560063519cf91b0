"""Server: what a downstream server lacks, and how a DDL is rewritten for it or rejected.

**Collations.** DDL names all its collations. Collations that the downstream has are passed
unchanged; for the rest `substitutes` of `penstock.ddl.rewrite.foreign` has the nearest ones. Each
substitute in use is logged once and shown in the status. A key decides which rows are one row. A
unique key therefore takes *fine* substitutes only, and if the downstream has none, the DDL is
rejected before it runs. The upsert's guard stops the Drainer where a substitute still differs, for
letters that one of the two servers does not know.

**Engines.** A table of an engine without transactions (MyISAM, Aria, MEMORY) keeps the rows of a
batch that was rolled back, so the checkpoint says nothing about it. Hence:

    the Drainer's own tables    are created with ENGINE=InnoDB; an existing one that has no
                                transactions is refused
    a DDL that names such an    runs with InnoDB in its place; if the server refuses that, for
    engine                      example an AUTO_INCREMENT within a key, it runs unchanged
    other tables without        are logged once. After a crash their rows are written again, which
    transactions                is right for tables with a key only

**Privileges.** A Drainer that fails at its first row, or at a DDL at night, should have reported
the missing privilege at its start. SHOW GRANTS lists the privileges of an account on every server,
including those that MariaDB grants to PUBLIC. Privileges of a role are not listed everywhere, so an
account with a role is assumed to have every privilege that it needs.

**Missing tables** are those that the checkpoint says are downstream but that do not exist. Rows and
checkpoint are tables of one server. A server that was restored as a whole has both in the same
state. After a single database was dropped or restored, its tables lack rows that the checkpoint
says are there. Neither its definition nor its creation time distinguishes a table that was created
again from a table that an ALTER has rebuilt. Only `penstock verify` can therefore find rows that
are missing in an existing table. A table that does not exist is reported here: its own rows will
stop the Drainer, and its absence means that the other tables of its database must be compared.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import ER
from pymysql.err import MySQLError

from drainer.settings.targets import COLLATIONS
from drainer.sinks.mysql.session import (
    OWN_ENGINE,
    Connection,
    is_mariadb,
    many,
    one,
    passes,
    version_of,
)
from penstock.codes import Code
from penstock.ddl.charsets import charset_of_collation
from penstock.ddl.parse.parser import parse
from penstock.ddl.rewrite.constraint_names import as_server_names
from penstock.ddl.rewrite.foreign import (
    SUBSTITUTE_CHARSETS,
    Substitute,
    aliases,
    recollated,
    spelled_for,
    substitutes,
)
from penstock.ddl.syntax.lexer import Kind, quote_path, read
from penstock.ddl.syntax.statements import AlterTable, ChangeColumn, Edit, Flavor, edited
from penstock.ddl.tables.column_types import TEXT_TYPES
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import ColumnInfo, IndexInfo, TableInfo

if TYPE_CHECKING:
    from drainer.sinks.mysql.session import Connection
    from penstock.ddl import SchemaChange
    from penstock.ddl.syntax.statements import TableRef
    from penstock.schema.model import ColumnInfo

log = logging.getLogger(__name__)


def spelled(connection: Connection, change: SchemaChange, *, is_tidb: bool) -> str:
    """Return a job's statement as the server can parse it; log the parts it omits."""
    query = change.job.query
    own = Flavor.MARIADB if is_mariadb(version_of(connection)) else Flavor.MYSQL
    flavor = Flavor.TIDB if is_tidb else own
    before = [old for _, old, _ in change.altered] + [old for _, old, _, _ in change.renamed]
    indexes = [name for table in before for name in table.expression_indexes]
    sequences = [(schema, t.name) for schema, t, _, _ in change.renamed if t.is_sequence]
    try:
        found = spelled_for(flavor, query, indexes, sequences)
    except NeedsOperator:
        return query  # Not of our grammar: a TiDB's, or an operator's own.
    if flavor is not Flavor.MARIADB:
        _check_conversions(change)
    if found.lacking:
        lacking = ", ".join(found.lacking)
        log.warning("the downstream, a %s, does not have %s: %s", flavor.value, lacking, query)
    return _with_own_names(connection, change, found.sql) if found.sql else ""


def _with_own_names(connection: Connection, change: SchemaChange, sql: str) -> str:
    """Return a statement with the names that constraints have on this server."""
    context = change.job.context or DdlContext()
    version = dict(context.variables).get("version", "")

    def there(ref: TableRef) -> dict[str, str]:
        schema, table = connection.escape(ref.schema or change.job.schema_name), ref.name
        found = many(
            connection,
            "SELECT constraint_name, constraint_type FROM"  # noqa: S608
            " information_schema.table_constraints"
            f" WHERE LOWER(table_schema) = LOWER({schema})"
            f" AND LOWER(table_name) = LOWER({connection.escape(table)})",
        )
        return {str(name): str(type_) for name, type_ in found}

    is_moved = is_mariadb(version) and not is_mariadb(version_of(connection))
    return as_server_names(sql, there, numbers_by_table=is_moved)


def _check_conversions(change: SchemaChange) -> None:
    """Reject conversions from or to a type that only MariaDB has, except for texts.

    MySQL stores these values as texts, so it would cut or keep values that MariaDB converts.
    """
    for schema, old, new in change.altered:
        before = {column.id: column for column in old.columns}
        for column in new.columns:
            was = before.get(column.id)
            if was is None or was.native == column.native:
                continue
            is_kept = was.native and not column.native and _is_text(column)
            if is_kept or not _converts(change.job.query, was, column):
                continue
            raise NeedsOperator(
                f"column {column.name!r} of {schema}.{new.name} turns from {was.sql_type} into"
                f" {column.sql_type}, and the downstream does not have"
                f" {was.native or column.native}",
                "make the column so downstream by hand, with upstream's values; then track"
                " this DDL",
                Code.SINK_DDL_MOMENT,
            )


def _is_text(column: ColumnInfo) -> bool:
    return column.tp in TEXT_TYPES and not column.is_binary and not column.elems


def _converts(query: str, was: ColumnInfo, column: ColumnInfo) -> bool:
    _, statements = parse(query)
    parts = [p.operation for s in statements if isinstance(s, AlterTable) for p in s.parts]
    return any(
        isinstance(each, ChangeColumn)
        and each.old.lower() == was.name.lower()
        and column.native in ("", each.column.type.name)
        for each in parts
    )


_FULL_NAMES = (
    "SELECT full_collation_name FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
)
_KeyPart = tuple[IndexInfo, ColumnInfo]


class Collations:
    """One downstream's collations, read once, when a DDL first needs them."""

    def __init__(self, policy: str) -> None:
        """`policy` is `map` or `stop`."""
        self._policy = policy
        self._there: frozenset[str] = frozenset()
        self._charsets: frozenset[str] = frozenset()
        self._in_use: Mapping[str, str] = {}

    @property
    def in_use(self) -> Mapping[str, str]:
        """The substitute for each missing collation met so far; callable from any thread."""
        return self._in_use

    def look_at(self, connection: Any, tables: Iterable[TableInfo]) -> None:
        self._ask(connection)
        columns = [c for table in tables for c in table.columns]
        for name in {c.collate for c in columns if c.tp in TEXT_TYPES and not c.is_binary}:
            if not self._has(name) and (found := self._nearest(name, fine=False)) is not None:
                self._note(name, found.name)

    def query_of(self, connection: Any, change: SchemaChange, query: str) -> str:
        """Return the statement of a DDL with collations that the downstream has.

        Raises `NeedsOperator` for a collation without substitute.
        """
        self._ask(connection)
        return self._recollated(query, self._checked_keys(change))

    def clause_of(self, connection: Any, charset: str, collation: str) -> str:
        self._ask(connection)
        return self._recollated(f"CHARACTER SET {charset} COLLATE {collation}", frozenset())

    # --- details ---------------------------------------------------------------------------

    def _ask(self, connection: Any) -> None:
        if self._there:
            return
        found = many(connection, "SELECT collation_name FROM information_schema.COLLATIONS")
        try:
            found += many(connection, _FULL_NAMES)
        except MySQLError as error:
            if error.args[0] != ER.BAD_FIELD_ERROR:
                raise  # Only newer MariaDBs have names without their charset, and this column.
        names = {str(name) for (name,) in found}
        self._charsets = frozenset(map(charset_of_collation, names))
        self._there = frozenset(names)

    def _has(self, name: str) -> bool:
        return not name or name in self._there or any(a in self._there for a in aliases(name))

    def _nearest(self, name: str, *, fine: bool) -> Substitute | None:
        for each in substitutes(name):
            if self._has(each.name) and (each.is_fine or not fine):
                return each
        return None

    def _recollated(self, sql: str, in_keys: frozenset[str]) -> str:
        def collation(name: str) -> str:
            if name in self._there or not name:
                return name
            for alias in aliases(name):
                if alias in self._there:
                    return alias
            found = self._nearest(name, fine=name in in_keys)
            if found is None:
                return name  # Not a collation, or one that only the server knows.
            if self._policy == COLLATIONS[1]:
                raise NeedsOperator(
                    f"the downstream has no collation {name}",
                    f'set apply.collations = "map" to have {found.name} in its place, or run'
                    " another statement instead: penstock drainer ddl replace",
                    Code.SINK_DDL,
                )
            self._note(name, found.name)
            return next((a for a in aliases(found.name) if a in self._there), found.name)

        def charset(name: str) -> str:
            return name if name in self._charsets else SUBSTITUTE_CHARSETS.get(name, name)

        return recollated(sql, collation, charset)

    def _note(self, name: str, substitute: str) -> None:
        if self._in_use.get(name) == substitute:
            return
        self._in_use = {**self._in_use, name: substitute}
        log.warning(
            "the downstream has no collation %s: its columns have %s there, which may compare and"
            " sort some texts otherwise",
            name,
            substitute,
        )

    def _checked_keys(self, change: SchemaChange) -> frozenset[str]:
        """Return missing collations of unique-key columns; refuse DDL that would lose rows."""
        lacking = set()
        made: list[tuple[str, TableInfo | None, TableInfo]]
        made = [(schema, None, table) for schema, table in change.created]
        made += change.altered
        made += [(schema, before, after) for _, before, schema, after in change.renamed]
        for schema, before, after in made:
            old = set(_unique_texts(before)) if before else set()
            old_columns = {c.id for c in before.columns} if before else set()
            for index, column in _unique_texts(after):
                if (index, column) in old or self._has(column.collate):
                    continue
                # An existing column already has the nearest one, fine or not.
                nearest = self._nearest(column.collate, fine=False)
                is_kept = column.id in old_columns
                usable = nearest if is_kept else self._nearest(column.collate, fine=True)
                if nearest is not None and (usable is None or not usable.is_fine):
                    raise _coarse(f"{schema}.{after.name}", index, column, nearest.name)
                lacking.add(column.collate)
        return frozenset(lacking)


def _unique_texts(table: TableInfo) -> Iterator[_KeyPart]:
    primary = table.primary_key
    for index in {i for i in (*table.indexes, primary) if i is not None and i.unique}:
        for part in index.columns:
            column = table.columns[part.offset]
            if column.tp in TEXT_TYPES and not column.is_binary:
                yield index, column


def _coarse(table: str, index: IndexInfo, column: ColumnInfo, substitute: str) -> NeedsOperator:
    return NeedsOperator(
        f"{table}: {column.name!r} is in the unique key {index.name!r}, and the downstream has no"
        f" collation {column.collate}; {substitute}, which comes nearest, takes texts for equal"
        " that upstream tells apart, so rows would be lost",
        "give the column upstream a collation that both servers have, such as utf8mb4_bin, or"
        " run the statement with a finer one instead: penstock drainer ddl replace",
        Code.SINK_DDL,
    )


# --- engines, privileges, tables -------------------------------------------------------------

_WITHOUT_TRANSACTIONS = (
    "SELECT t.table_schema, t.table_name, t.engine FROM information_schema.tables t"
    " JOIN information_schema.engines e ON e.engine = t.engine"
    " WHERE t.table_type = 'BASE TABLE' AND e.transactions <> 'YES'"
)
_REPLACED = {"MYISAM", "ARIA", "MEMORY", "HEAP", "ISAM", "ARCHIVE", "CSV"}
_LISTED = 10
Name = tuple[str, str]


def report_engines(connection: Any, names: Iterable[Name], known: set[Name]) -> None:
    """Log each of these tables whose engine has no transactions, and add it to the `known` ones."""
    if not (found := [each for each in _without(connection, names) if each[0] not in known]):
        return
    known |= {name for name, _ in found}
    listed = ", ".join(f"{quote_path(*name)} ({engine})" for name, engine in found[:_LISTED])
    log.warning(
        "%d tables of the downstream have an engine without transactions: %s%s. A crash can"
        " leave a part of a batch in them until the Drainer continues, and rows twice where a"
        " table has no key (ALTER TABLE … ENGINE=InnoDB ends that)",
        len(known), listed, ", …" if len(found) > _LISTED else "",
    )  # fmt: skip


def check_own(connection: Any, names: Iterable[Name]) -> None:
    """Raise `NeedsOperator` when one of the Drainer's own tables has no transactions."""
    for name, engine in _without(connection, names):
        table = quote_path(*name)
        raise NeedsOperator(
            f"table {table} of the Drainer has the engine {engine}, which has no transactions",
            f"ALTER TABLE {table} {OWN_ENGINE}",
            Code.ENGINE_WITHOUT_TRANSACTIONS,
        )


def _without(connection: Any, names: Iterable[Name]) -> Iterator[tuple[Name, str]]:
    names = list(names)
    wanted = {(schema.lower(), table.lower()) for schema, table in names}
    if not wanted:
        return
    schemas = ",".join(connection.escape(schema) for schema in sorted({s for s, _ in wanted}))
    where = f" AND LOWER(t.table_schema) IN ({schemas})"
    if len(names) == 1:  # Without the exact name, servers read the definitions of all tables.
        schema, table = map(connection.escape, names[0])
        where = f" AND t.table_schema = {schema} AND t.table_name = {table}"
    for schema, table, engine in many(connection, _WITHOUT_TRANSACTIONS + where):
        name = str(schema).lower(), str(table).lower()
        if name in wanted:
            yield name, str(engine)


def with_transactions(sql: str) -> str:
    """Replace a non-transactional engine by InnoDB in CREATE or ALTER TABLE."""
    try:
        tokens = read(sql).tokens
    except NeedsOperator:
        return sql  # Not of our grammar: an operator's own statement.
    edits: list[Edit] = []
    depth, has_partitions = 0, False
    for at, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0) if token.kind is Kind.SIGN else 0
        has_partitions |= token.upper == "PARTITION"
        # Within parentheses it is a column in an expression, except for a partition's engine.
        if token.upper == "ENGINE" and (not depth or has_partitions):
            value = tokens[at + (2 if tokens[at + 1].text == "=" else 1)]
            if value.text.upper() in _REPLACED:
                edits.append(Edit(value.start, value.end, "InnoDB"))
    return edited(sql, 0, len(sql), edits) if edits else sql


_ROWS = ("SELECT", "INSERT", "UPDATE", "DELETE")
_DDL = ("CREATE", "ALTER", "DROP", "INDEX")


def check_grants(connection: Connection, schema: str, checkpoint_table: str) -> None:
    """Raise `NeedsOperator` if rows or the checkpoint cannot be written; warn of DDL.

    `schema` is the checkpoint's. Both statements touch no row; without a privilege they fail like
    the statements of a batch.
    """
    connection.query(f"UPDATE {checkpoint_table} SET checkPoint = checkPoint WHERE 1 = 0")  # noqa: S608
    connection.query(
        f"INSERT INTO {checkpoint_table} SELECT clusterID, checkPoint"  # noqa: S608
        f" FROM {checkpoint_table} WHERE 1 = 0"
    )
    account = str(one(connection, "SELECT CURRENT_USER()")[0])
    if _has_a_role(connection):
        return
    granted = _granted(connection, schema)
    for needed, what in ((_ROWS, "write rows"), (_DDL, "follow every DDL")):
        missing = [each for each in needed if each not in granted]
        if not missing:
            continue
        problem = f"the downstream's account {account} has no right to {', '.join(missing)}"
        hint = f"GRANT {', '.join((*_ROWS, *_DDL))} on *.*, or on the schemas that are written"
        if needed is _ROWS:
            raise NeedsOperator(f"{problem}: it cannot {what}", hint, Code.SINK_GRANT)
        log.warning("%s: it cannot %s, and stops at the first one (%s)", problem, what, hint)


_GRANT = re.compile(r"GRANT (.+?) ON (?:TABLE )?(.+?)\.(.+?) TO ", re.IGNORECASE | re.DOTALL)
_COLUMNS = re.compile(r"\([^)]*\)")


def _granted(connection: Connection, schema: str) -> set[str]:
    found: set[str] = set()
    for (line,) in many(connection, "SHOW GRANTS"):
        grant = _GRANT.match(str(line))
        # In the pattern of a schema, `_` and `%` may be escaped.
        named = "" if grant is None else re.sub(r"\\([_%])", r"\1", grant[2].strip("`"))
        if grant is not None and named.lower() != schema.lower():
            found |= {name.strip().upper() for name in _COLUMNS.sub("", grant[1]).split(",")}
    return {*_ROWS, *_DDL} if found & {"ALL", "ALL PRIVILEGES"} else found - {"USAGE"}


def _has_a_role(connection: Connection) -> bool:
    try:
        role = one(connection, "SELECT CURRENT_ROLE()")[0]
    except pymysql.err.MySQLError as error:
        if passes(error):
            raise
        return False  # A server of a version without roles.
    return role not in (None, "", "NONE")


def report_missing(connection: Any, names: Iterable[Name]) -> None:
    """Log the tables that the server does not have, ignoring letter case."""
    wanted = {(schema.lower(), table.lower()): (schema, table) for schema, table in names}
    if not wanted:
        return
    schemas = ",".join(connection.escape(schema) for schema in sorted({s for s, _ in wanted}))
    where = f"WHERE LOWER(table_schema) IN ({schemas})"
    sql = f"SELECT table_schema, table_name FROM information_schema.tables {where}"  # noqa: S608
    for schema, table in many(connection, sql):
        wanted.pop((str(schema).lower(), str(table).lower()), None)
    found = list(wanted.values())
    if found:
        listed = ", ".join(quote_path(*name) for name in found[:_LISTED])
        log.warning(
            "%d tables that the checkpoint says are downstream do not exist there: %s%s. If a"
            " database was dropped or restored from an older backup, its other tables lack rows"
            " too: compare them with penstock verify. Leave a table that is dropped for good out"
            " by a filter",
            len(found), listed, ", …" if len(found) > _LISTED else "",
        )  # fmt: skip
