"""The target tables of a load: found, dropped when left over, created."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace

from penstock.codes import Code
from penstock.ddl import Catalog, plan_ddl
from penstock.ddl.rewrite.explicit_collations import explicit
from penstock.ddl.syntax.lexer import quote_name, quote_path
from penstock.errors import NeedsOperator
from penstock.schema.model import TableInfo
from penstock.wire.binlog import Origin
from pumpclient.client import PumpClient
from pumpclient.mysql.load.tables import Fetch, SourceTable, create_database, create_table
from pumpclient.mysql.load.text_rows import text_rows
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.translate.statements.ddl_pieces import Translator
from pumpclient.mysql.translate.statements.statement_text import Dialect, built_into, plain_text
from pumpclient.rows import Table


class Targets:
    """The targets of one attempt; `planner` is a session in its snapshot.

    `next_origin` numbers its DDL.
    """

    def __init__(
        self,
        client: PumpClient,
        translator: Translator,
        planner: Fetch,
        dialect: Dialect,
        next_origin: Callable[[], Origin],
    ) -> None:
        self._client = client
        self._translator = translator
        self._planner = planner
        self._dialect = dialect
        self._next_origin = next_origin
        self.last_ddl_ts = 0
        """The commit_ts of the last DDL, 0 before the first."""

    def name(self, table: SourceTable) -> Name:
        return self._translator.target(*table.full_name)

    def check_free(self, tables: Iterable[SourceTable], stale: Iterable[Name]) -> None:
        """Raise `NeedsOperator` for a target that exists but is not from a stale source table."""
        ours = {self._translator.target(*name) for name in stale}
        for table in tables:
            target = self.name(table)
            if target not in ours and self.exists(target):
                raise NeedsOperator(
                    f"table {target[0]}.{target[1]} is there already, and not by this load",
                    hint="drop it, leave it out by the filters, or load into it (into-existing)",
                    code=Code.LOAD_TARGET,
                )

    def check_definitions(self, tables: Iterable[SourceTable]) -> None:
        """Raise `NeedsOperator` for a table that cannot be defined here, before any is dropped.

        The same goes for tables that are merged but have different columns, and for names that
        differ only in letter case, which is insignificant here.
        """
        ids = itertools.count(1)
        spelled: dict[str, Name] = {}
        columns: dict[Name, tuple[SourceTable, object]] = {}
        for table in tables:
            catalog, (schema, name) = Catalog(), self.name(table)
            try:
                for sql in (f"CREATE DATABASE {quote_name(schema)}", self._translated(table)):
                    for job in plan_ddl(sql, None, catalog, lambda: next(ids)):
                        catalog.apply(job)
                found = catalog.table(schema, name)
                assert found is not None, "its CREATE TABLE was planned"
                text_rows(found)
                other = spelled.setdefault(f"{schema}.{name}".lower(), (schema, name))
                if other != (schema, name):
                    raise NeedsOperator(
                        f"{'.'.join(other)} is loaded too, and letter case makes no difference",
                        hint="leave one of them out by the filters, or route it to another name",
                        code=Code.ROUTE_CONFLICT,
                    )
                first, known = columns.setdefault((schema, name), (table, _essence(found)))
                if known != _essence(found):
                    raise NeedsOperator(
                        f"it and {first.schema}.{first.name} go into one table, and their columns"
                        " differ",
                        hint="alter one of them on the server, then load again",
                        code=Code.ROUTE_CONFLICT,
                    )
            except NeedsOperator as error:
                raise NeedsOperator(
                    f"{table.schema}.{table.name} cannot be loaded: {error.problem}",
                    hint=error.hint,
                    code=error.code,
                ) from error

    def exists(self, target: Name) -> bool:
        try:
            self._client.table(quote_path(*target))
        except NeedsOperator:
            return False
        return True

    def drop(self, stale: Iterable[Name], say: Callable[[str], None]) -> None:
        for target in sorted({self._translator.target(*name) for name in stale}):
            if self.exists(target):
                say(f"{target[0]}.{target[1]} was not done: dropped, to be loaded again")
                self._ddl(f"DROP TABLE {quote_path(*target)}")

    def create_database(self, schema: str, target: str) -> None:
        self._ddl(create_database(self._planner, schema, target))

    def created(self, table: SourceTable) -> Table:
        target = self.name(table)
        if not self.exists(target):
            self._ddl(self._translated(table))
        return self._client.compiled(quote_path(*target))

    def _translated(self, table: SourceTable) -> str:
        text = plain_text(create_table(self._planner, table), 0, self._dialect)
        text = explicit(text, built_into(self._dialect))
        made = replace(self._translator, online=None).translate(text, table.schema, {})
        assert len(made.pieces) == 1, f"{table.full_name} is replicated and is one statement"
        return made.pieces[0].sql

    def _ddl(self, sql: str) -> None:
        done = self._client.execute_ddl(sql, origin=self._next_origin())
        self.last_ddl_ts = max(self.last_ddl_ts, *done, 0)


def _essence(table: TableInfo) -> object:
    """Return the column properties that must match so that one table's rows fit the other."""
    return {
        (c.name.lower(), c.tp, c.decimal, c.is_unsigned, c.charset, c.elems) for c in table.columns
    }
