"""A writer's view of the tables, as new as the schema version that the writer may use.

The DDL history in etcd is authoritative; `catch_up` reads its new jobs. The schema fence determines
when that must happen (after every DDL, before the next transaction), so no watch is needed. An
unknown table is first looked for in the history, because another writer may just have created it.

The history only grows. If the last job that was read is not in it any more, etcd was restored from
a backup, and the schema version that the fence names belongs to another history: then nothing is
written.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable

from penstock.cluster.history import History
from penstock.codes import Code
from penstock.ddl import Catalog
from penstock.errors import Malformed, NeedsOperator
from penstock.schema.model import DdlJob
from pumpclient.rows import Table


def split_name(name: str, schema: str | None) -> tuple[str, str]:
    """Return schema and table of "table", "schema.table" or the same in backticks."""
    parts = name.split(".") if "`" not in name else _quoted_parts(name)
    if len(parts) == 1 and schema:
        return schema, parts[0]
    if len(parts) != 2 or not all(parts):
        raise NeedsOperator(
            f"{name!r} names no table",
            'write "schema.table", or begin the transaction with a schema',
            Code.ROW_REFUSED,
        )
    return parts[0], parts[1]


class Schemas:
    """The current catalog, compiled per table on first use; thread-safe."""

    def __init__(self, history: History, refuse_lost: Callable[[], None] = lambda: None) -> None:
        """`refuse_lost` raises when the stream has a DDL that the history has lost."""
        self._history = history
        self._refuse_lost = refuse_lost
        self._lock = threading.Lock()
        self._catalog = Catalog()
        self._last: DdlJob | None = None
        self._by_id: dict[int, Table] = {}
        self._by_name: dict[tuple[str, str], Table] = {}

    @property
    def version(self) -> int:
        return self._catalog.version

    def catch_up(self, version: int | None = None) -> None:
        """Read the history up to its end, or up to `version`; raises `Retryable`.

        Raises `NeedsOperator` when it is no longer the history that was read before.
        """
        if version is not None and version <= self._catalog.version:
            return
        with self._lock:
            self._refuse_other_history()
            last_id = 0 if self._last is None else self._last.id
            jobs = self._history.jobs(self._catalog.version, last_id)
            if not jobs:
                return
            catalog = self._catalog.copy()
            for job in jobs:
                catalog.apply(job)
            # Unchanged tables stay compiled and the same object: transactions compare by identity.
            self._by_id = {
                table_id: table
                for table_id, table in self._by_id.items()
                if catalog.table_by_id(table_id) == (table.schema_name, table.info)
            }
            self._by_name = {}
            self._catalog, self._last = catalog, jobs[-1]

    def confirm(self, version: int) -> None:
        """Catch up for an opening fence, after other writers may have changed the history."""
        self._refuse_lost()
        with self._lock:
            self._refuse_other_history()
        self.catch_up(version)

    def _refuse_other_history(self) -> None:
        last = self._last
        if last is None or (found := self._history.get(last.id)) == last:
            return
        now = "nothing" if found is None else f"{found.query!r} of {found.finished_ts}"
        raise NeedsOperator(
            f"this writer knows schema version {last.schema_version} by DDL job {last.id}"
            f" ({last.query!r} of {last.finished_ts}), but the DDL history in etcd has {now} there",
            "etcd was restored from an older backup: restore it from one that has this DDL; or"
            " start this writer again to continue from the older schema, and load a fresh copy of"
            " the data into each downstream that has had the DDL",
            Code.DDL_HISTORY,
        )

    def catalog(self) -> Catalog:
        """Read and return the newest catalog; the caller must not modify it."""
        self.catch_up()
        return self._catalog

    def table(self, schema: str, name: str) -> Table:
        """Return a table ready for rows; raise `NeedsOperator` with the nearest name."""
        found = self._by_name.get((schema, name))
        if found is not None:
            return found
        with self._lock:
            catalog = self._catalog
            info = catalog.table(schema, name)
        if info is None:
            catalog = self.catalog()
            info = catalog.table(schema, name)
        if info is None:
            raise _unknown(catalog, schema, name)
        if info.kind != "TABLE":
            problem = f"{schema}.{name} is a {info.kind.lower()}"
            raise NeedsOperator(problem, "write to a table", Code.ROW_REFUSED)
        table = self.table_by_id(info.id)
        if table is None:  # The table has just been dropped.
            raise _unknown(catalog, schema, name)
        with self._lock:
            if self._by_id.get(info.id) is table:
                self._by_name[schema, name] = table
        return table

    def table_by_id(self, table_id: int) -> Table | None:
        """Return the current version of a table, always the same object while it is current."""
        with self._lock:
            table = self._by_id.get(table_id)
            if table is None:
                found = self._catalog.table_by_id(table_id)
                if found is None:
                    return None
                table = self._by_id[table_id] = Table(*found)
            return table


def _unknown(catalog: Catalog, schema: str, name: str) -> Malformed:
    near = difflib.get_close_matches(f"{schema}.{name}", _names(catalog), n=1)
    hint = f"did you mean {near[0]}?" if near else "create it with execute_ddl"
    return Malformed(f"there is no table {schema}.{name}", hint, Code.ROW_REFUSED)


def _names(catalog: Catalog) -> list[str]:
    return [f"{schema}.{table.name}" for schema, table in catalog.tables()]


def _quoted_parts(name: str) -> list[str]:
    """Split at dots outside of backticks; a doubled backtick stands for one."""
    parts, quoted = [""], False
    for piece in name.replace("``", "\0").split("`"):
        if quoted:
            parts[-1] += piece
        else:
            head, *rest = piece.split(".")
            parts[-1] += head
            parts += rest
        quoted = not quoted
    return [part.replace("\0", "`") for part in parts]
