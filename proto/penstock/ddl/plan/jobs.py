"""The jobs planned so far and the resulting schema, in which planning looks things up.

New names that no MySQL or MariaDB accepts are refused before any object has them.
Both servers keep names in utf8mb3: no character above U+FFFF, and no NUL (error 1300). A database
and a table are a file each, whose name has five bytes for most characters beyond ASCII (`@4e2d`); a
name that does not fit a file system fails there, however few characters it has.

A name that is already in the schema is not checked: an earlier version may have accepted it, and
DROP and RENAME must stay possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from penstock.codes import Code
from penstock.ddl.catalog import Catalog, Dropped, drop_job
from penstock.ddl.syntax.lexer import Kind, Source, quote_name, quote_path
from penstock.ddl.syntax.statements import Edit, Statement, TableRef, edited
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import DdlContext
from penstock.schema.model import DdlJob, SchemaInfo, TableInfo

_UNFIT = re.compile("[\0\ud800-\udfff\U00010000-\U0010ffff]")
_FILE_BYTES_MAX = 255 - len(".ibd")
_ONE_BYTE = re.compile(r"[0-9A-Za-z_$]")
_THREE_BYTES = re.compile("[\u00c0-\u05ff\u1e00-\u1fff\u2160-\u217f\u24b0-\u24ef\uff20-\uff5f]")
_RAW_FILE = "#mysql50#"
"""After this prefix, a server reads the rest as a file name, not as a table name."""


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
            raise refused("no database is chosen", "write the table as schema.table")
        return wanted

    def schema(self, name: str | None) -> SchemaInfo:
        wanted = self.schema_name(name)
        found = self.catalog.schema(wanted)
        if found is None:
            raise refused(f"database {wanted!r} does not exist", "create it first")
        return found

    def find(self, ref: TableRef) -> TableInfo | None:
        return self.catalog.table(self.schema_name(ref.schema), ref.name)

    def table(self, ref: TableRef) -> tuple[SchemaInfo, TableInfo]:
        schema = self.schema(ref.schema)
        table = self.catalog.table(schema.name, ref.name)
        if table is None:
            raise refused(f"table {schema.name}.{ref.name} does not exist", "check the name")
        return schema, table

    def base_table(self, ref: TableRef) -> tuple[SchemaInfo, TableInfo]:
        """Return the table, which must hold rows, and its schema, or raise NeedsOperator."""
        schema, table = self.table(ref)
        if table.kind != "TABLE":
            kind = table.kind.lower()
            problem = f"{schema.name}.{table.name} is a {kind}"
            raise refused(problem, f"name a table, or a {kind} verb")
        return schema, table

    def check_free(self, schema: SchemaInfo, name: str, unless_id: int = 0) -> None:
        """Raise NeedsOperator if the schema has another table of that name, or servers cannot.

        Names that differ only in letter case count as equal: on many servers they would be.
        """
        found = self.catalog.table(schema.name, name)
        if found is None:
            check_file_name(name)
        elif found.id != unless_id:
            problem = f"table {schema.name}.{found.name} exists"
            raise refused(problem, "drop it or choose another name")

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


def check_new_names(source: Source, catalog: Catalog) -> None:
    """Raise `NeedsOperator` for a name with a character that servers reject in names."""
    if _UNFIT.search(source.text) is None:
        return
    known = set(_known(catalog))
    for token in source.tokens:
        unfit = _UNFIT.search(token.text)
        if unfit and token.kind in (Kind.WORD, Kind.QUOTED) and token.text not in known:
            raise NeedsOperator(
                f"the name {token.text!r} has the character U+{ord(unfit[0]):04X}, which MySQL and"
                " MariaDB do not allow in names",
                "use characters from U+0001 to U+FFFF",
                Code.DDL_DEFINITION,
            )


def check_file_name(name: str) -> None:
    """Raise `NeedsOperator` for a new database or table that cannot be named as a file."""
    threes = len(_THREE_BYTES.findall(name))
    ones = len(_ONE_BYTE.findall(name))
    size = ones + 3 * threes + 5 * (len(name) - ones - threes)
    if size > _FILE_BYTES_MAX or name.lower().startswith(_RAW_FILE):
        raise NeedsOperator(
            f"MySQL and MariaDB have no file for the name {name!r}: its file name has {size} bytes",
            f"choose a name whose file name has at most {_FILE_BYTES_MAX} bytes (each letter,"
            f" digit and _ of ASCII 1, most other characters 5) and that is not {_RAW_FILE}…",
            Code.DDL_DEFINITION,
        )


def _known(catalog: Catalog) -> Iterator[str]:
    yield from (schema.name for schema in catalog.schemas())
    for _, table in catalog.tables():
        yield table.name
        yield from (column.name for column in table.columns)
        yield from (index.name for index in table.indexes)
        yield from table.partitions or ()


def refused(problem: str, hint: str) -> NeedsOperator:
    return NeedsOperator(problem, hint, Code.DDL_OBJECT)
