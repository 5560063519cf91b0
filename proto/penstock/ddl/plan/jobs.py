"""The jobs planned so far and the resulting schema, in which planning looks things up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.codes import Code
from penstock.ddl.catalog import Catalog
from penstock.ddl.dropping import Dropped, drop_job
from penstock.ddl.plan.new_names import check_file_name
from penstock.ddl.syntax.lexer import Source, quote_name, quote_path
from penstock.ddl.syntax.statements import Edit, Statement, TableRef, edited
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import DdlJob, SchemaInfo, TableInfo


class Jobs:
    """Jobs so far, and the catalog after them."""

    def __init__(
        self,
        source: Source,
        default_schema: str | None,
        catalog: Catalog,
        next_id: Callable[[], int],
        context: DdlContext | None = None,
    ) -> None:
        self.source = source
        self.default_schema = default_schema
        self.catalog = catalog
        self.next_id = next_id
        self.context = context
        self.jobs: list[DdlJob] = []

    def emit(self, type_: int, owner: SchemaInfo, query: str, **fields: object) -> None:
        """Add a job and apply it to the catalog; `owner` is the schema it runs in."""
        job = self._job(type_, owner, query)
        self._add(replace(job, **fields))  # type: ignore[arg-type]

    def emit_drop(self, dropped: Dropped) -> None:
        self._add(drop_job(self._job(0, self.schema(dropped[0][0]), ""), dropped))

    def _job(self, type_: int, owner: SchemaInfo, query: str) -> DdlJob:
        return DdlJob(
            id=self.next_id(),
            type=type_,
            schema_id=owner.id,
            schema_name=owner.name,
            query=query,
            schema_version=self.catalog.version + 1,
            context=self.context,
        )

    def _add(self, job: DdlJob) -> None:
        self.catalog.apply(job)
        self.jobs.append(job)

    def schema_name(self, name: str | None) -> str:
        wanted = name or self.default_schema
        if wanted is None:
            raise NeedsOperator(
                "no database is chosen", "write the table as schema.table", Code.DDL_OBJECT
            )
        return wanted

    def schema(self, name: str | None) -> SchemaInfo:
        """Return the schema of that name, or raise NeedsOperator."""
        wanted = self.schema_name(name)
        found = self.catalog.schema(wanted)
        if found is None:
            raise NeedsOperator(
                f"database {wanted!r} does not exist", "create it first", Code.DDL_OBJECT
            )
        return found

    def find(self, ref: TableRef) -> TableInfo | None:
        return self.catalog.table(self.schema_name(ref.schema), ref.name)

    def table(self, ref: TableRef) -> tuple[SchemaInfo, TableInfo]:
        """Return the table or view and its schema, or raise NeedsOperator."""
        schema = self.schema(ref.schema)
        table = self.catalog.table(schema.name, ref.name)
        if table is None:
            raise NeedsOperator(
                f"table {schema.name}.{ref.name} does not exist", "check the name", Code.DDL_OBJECT
            )
        return schema, table

    def base_table(self, ref: TableRef) -> tuple[SchemaInfo, TableInfo]:
        """Return the table, which must hold rows, and its schema, or raise NeedsOperator."""
        schema, table = self.table(ref)
        if table.kind != "TABLE":
            kind = table.kind.lower()
            raise NeedsOperator(
                f"{schema.name}.{table.name} is a {kind}",
                f"name a table, or a {kind} verb",
                Code.DDL_OBJECT,
            )
        return schema, table

    def check_free(self, schema: SchemaInfo, name: str, unless_id: int = 0) -> None:
        """Raise NeedsOperator if the schema has another table of that name, or servers cannot.

        Names that differ only in letter case count as equal: on many servers they would be.
        """
        found = self.catalog.table(schema.name, name)
        if found is None:
            check_file_name(name)
        elif found.id != unless_id:
            raise NeedsOperator(
                f"table {schema.name}.{found.name} exists",
                "drop it or choose another name",
                Code.DDL_OBJECT,
            )

    def text(self, statement: Statement, *edits: Edit) -> str:
        return edited(self.source.text, statement.start, statement.end, (*statement.edits, *edits))

    def emit_table(self, type_: int, schema: SchemaInfo, table: TableInfo, query: str) -> None:
        self.emit(type_, schema, query, table_id=table.id, table_name=table.name, table=table)


def qualified(schema: SchemaInfo, name: str, current: SchemaInfo | None) -> str:
    if current is not None and schema.name == current.name:
        return quote_name(name)
    return quote_path(schema.name, name)


def named(ref: TableRef, schema: SchemaInfo, name: str, current: SchemaInfo) -> Edit:
    return Edit(ref.start, ref.end, qualified(schema, name, current))
