"""Row SQL: the only place that builds its text, one `TableSql` per table version and dialect.

    statement   MySQL                                     SQLite
    delete      DELETE .. WHERE k IN (1,2)                the same
                DELETE .. WHERE (a,b) IN ((1,2),(3,4))    .. (a,b) IN (VALUES (1,2),(3,4))
    upsert      INSERT .. VALUES (..),(..)                the same
                ON DUPLICATE KEY UPDATE c=VALUES(c)       ON CONFLICT (k) DO UPDATE SET c=excluded.c
                (with a guard where it is needed, see below)
    one row     DELETE/UPDATE .. WHERE every column LIMIT 1 (SQLite: by row id)
                REPLACE .. VALUES (..)                    the same

An upsert over an existing row costs InnoDB half of REPLACE, and, unlike REPLACE, never removes
another row. A slice of a large transaction needs such a removal if another row can conflict: there
an upsert is a REPLACE of many rows. Generated columns are never written; SQLite's tables do not
have them. A table's constants (`penstock.filters.routes`) are written into every row, and no delete
or update touches a row with other constants.

**The guard** keeps an upsert on MySQL from changing a row other than the intended one:

    .. KEY UPDATE c=IF(k=VALUES(k) OR 1+LENGTH(k)+18446744073709551615,VALUES(c),VALUES(c))

MySQL has no conflict target. In a table with a further unique index the row that is found may have
another key, for example if somebody put it there by hand. Only for such a row the sum is computed,
which exceeds 64 bits: error 1690 in any sql_mode, and the statement changes nothing. The sum
depends on the row, because a server may compute constants beforehand, such as TiDB with subqueries.

Keys of texts are compared byte for byte. The downstream's collation may consider two keys equal
that upstream distinguishes (it pads, or ignores case or accents); the second would then change the
row of the first. Upstream itself never has two rows at a time that its own collation considers
equal, and compaction deletes one before it writes the other. The found row therefore has the very
same bytes, or is another row.
"""

# ruff: noqa: S608  -- values come from `literals` and names from `quote`, that is the whole job.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.task.sql.literals import MYSQL, SQLITE, Family, family, literal, literal_column
from drainer.task.sql.rows import EXACT, Row, apply_key, can_meet_others, is_written
from drainer.task.work_unit import BOUNDS
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnInfo, IndexInfo, MysqlType, TableInfo

STATEMENT_BYTES_MAX = 1 << 20

_TEXT = pa.large_string()
_CONSTANT = ColumnInfo(id=0, name="", offset=0, tp=MysqlType.VARCHAR, charset="utf8mb4")


def quote(name: str) -> str:
    """Return `name` as an identifier.

    SQLite also accepts backticks. They are preferable there, because it silently reads a
    double-quoted name that is not a column as a string.
    """
    return "`" + name.replace("`", "``") + "`"


def table_name(dialect: str, schema: str, name: str) -> str:
    """Return the table's quoted name; in SQLite, `schema.name` is a single name."""
    if dialect == MYSQL:
        return f"{quote(schema)}.{quote(name)}"
    return quote(f"{schema}.{name}")


class TableSql:
    """The statements of one table version in one dialect; pure, and cheap to keep."""

    def __init__(
        self,
        dialect: str,
        schema: str,
        name: str,
        table: TableInfo,
        *,
        displaces: bool = False,
        rows_max: int = BOUNDS.statement_rows_max,
    ) -> None:
        """With `displaces`, upserts remove every other row that conflicts with them."""
        assert dialect in (MYSQL, SQLITE), dialect
        self._rows_max = rows_max
        self.dialect = dialect
        self.table = table
        self._target = table_name(dialect, schema, name)
        self.written = [i for i, c in enumerate(table.columns) if is_written(c)]
        key = apply_key(table)
        self.key = [part.offset for part in key.columns] if key else []
        self._literals: list[Callable[[Any], str] | None] = [
            literal(dialect, c) if is_written(c) else None for c in table.columns
        ]
        write = literal(dialect, _CONSTANT)
        self._constants = [(quote(name), write(text)) for name, text in table.constants]
        self._row_end = "".join(f",{text}" for _, text in self._constants) + ")"
        self._only_ours = "".join(f" AND {name}={text}" for name, text in self._constants)
        names = ",".join([*map(self._name, self.written), *(name for name, _ in self._constants)])
        self._insert_head = f"INSERT INTO {self._target} ({names}) VALUES "
        self._upsert_head, self._upsert_tail = self._insert_head, ""
        if self.key:
            self._build_keyed(key)
            if displaces and can_meet_others(table):
                self._upsert_head = "REPLACE" + self._insert_head.removeprefix("INSERT")
                self._upsert_tail = ""

    def _name(self, position: int) -> str:
        return quote(self.table.columns[position].name)

    def _names(self, positions: Sequence[int]) -> str:
        return ",".join(map(self._name, positions))

    def _build_keyed(self, key: IndexInfo | None) -> None:
        assert key is not None
        names = self._names(self.key)
        if len(self.key) == 1:
            self._delete_head = f"DELETE FROM {self._target} WHERE {names} IN ("
        else:
            values = "VALUES " if self.dialect == SQLITE else ""
            self._delete_head = f"DELETE FROM {self._target} WHERE ({names}) IN ({values}"
        self._delete_tail = f"){self._only_ours}"
        others = [self._name(p) for p in self.written if p not in self.key]
        others += [name for name, _ in self._constants]
        if self.dialect == MYSQL:
            new = {n: f"VALUES({n})" for n in others or map(self._name, self.key)}
            if (bearer := carrier(self.table, key)) is not None:
                texts = [*map(self._name, texts_of(self.table, key))]
                named = [*map(self._name, self.key)]
                new = guarded(new, self._name(bearer), named, texts)
            made = ",".join(f"{name}={value}" for name, value in new.items())
            self._upsert_tail = f" ON DUPLICATE KEY UPDATE {made}"
            return
        # A prefix key is an index on an expression in SQLite, which no conflict target can name. If
        # rows of several sources meet, the key there may have more columns than ours.
        whole = all(part.length == -1 for part in key.columns) and not self._constants
        sets = ",".join(f"{n}=excluded.{n}" for n in others)
        action = f"DO UPDATE SET {sets}" if others else "DO NOTHING"
        self._upsert_tail = f" ON CONFLICT{f' ({names})' if whole else ''} {action}"

    # --- rows as text ----------------------------------------------------------------------

    def value(self, position: int, value: Any) -> str:
        if value is None:
            return "NULL"
        write = self._literals[position]
        assert write is not None, "generated columns are never written"
        return write(value)

    def row_text(self, row: Sequence[Any]) -> str:
        return "(" + ",".join([self.value(p, row[p]) for p in self.written]) + self._row_end

    def key_text(self, row: Sequence[Any]) -> str:
        values = ",".join([self.value(p, row[p]) for p in self.key])
        return values if len(self.key) == 1 else f"({values})"

    def rows_column(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return `(..),` for every row; `columns` are the written columns in storage form."""
        return self._joined(self.written, columns, "(", self._row_end + ",")

    def keys_column(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return every row's key with a comma after it, for the list of the delete statement."""
        bare = len(self.key) == 1
        return self._joined(self.key, columns, "" if bare else "(", "," if bare else "),")

    def _joined(
        self, positions: Sequence[int], columns: Sequence[pa.Array], first: str, last: str
    ) -> pa.Array:
        # Constant text between two columns becomes one scalar, so that one pass over all columns
        # writes the rows; only a column that holds NULLs needs a separate pass.
        parts: list[Any] = []
        constant = first
        for i, (position, array) in enumerate(zip(positions, columns, strict=True)):
            made = literal_column(self.dialect, self.table.columns[position], array)
            constant += "," if i else ""
            if made.values.null_count:
                sides = [_scalar(made.open), made.values, _scalar(made.close), _scalar("")]
                quoted = pc.binary_join_element_wise(*sides)
                parts += [_scalar(constant), pc.fill_null(quoted, _scalar("NULL"))]
                constant = ""
            else:
                parts += [_scalar(constant + made.open), made.values]
                constant = made.close
        parts += [_scalar(constant + last), _scalar("")]
        return pc.binary_join_element_wise(*parts)

    # --- statements ------------------------------------------------------------------------

    def deletes(self, keys: pa.Array) -> list[bytes]:
        return list(_cut(keys, self._delete_head, self._delete_tail, self._rows_max))

    def upserts(self, rows: pa.Array) -> list[bytes]:
        return list(_cut(rows, self._upsert_head, self._upsert_tail, self._rows_max))

    def few(self, gone: Sequence[Row], kept: Sequence[Row]) -> tuple[list[bytes], list[bytes]]:
        """Return a statement that deletes rows, and one that upserts rows, as far as there are any.

        All rows together fit one statement.
        """
        keys, rows = map(self.key_text, gone), map(self.row_text, kept)
        deletes = f"{self._delete_head}{','.join(keys)}{self._delete_tail}" if gone else ""
        upserts = f"{self._upsert_head}{','.join(rows)}{self._upsert_tail}" if kept else ""
        return [deletes.encode()] if gone else [], [upserts.encode()] if kept else []

    def insert_one(self, row: Sequence[Any]) -> bytes:
        return (self._insert_head + self.row_text(row)).encode()

    def replace_one(self, row: Sequence[Any]) -> bytes:
        """Return the insert of one row that removes any conflicting row."""
        return ("REPLACE" + self._insert_head.removeprefix("INSERT") + self.row_text(row)).encode()

    def label(self, row: Sequence[Any]) -> str:
        if not self.key:
            return f"{self._target}, a table without row key"
        return f"{self._target} {self._names(self.key)} = {self.key_text(row)}"

    def delete_one(self, row: Sequence[Any]) -> bytes:
        """Return the delete of one row, found by its key or, without a key, by all its values."""
        return f"DELETE FROM {self._target} WHERE {self._only(row)}".encode()

    def update_one(self, before: Sequence[Any], after: Sequence[Any]) -> bytes:
        sets = ",".join(f"{self._name(p)}={self.value(p, after[p])}" for p in self.written)
        return f"UPDATE {self._target} SET {sets} WHERE {self._only(before)}".encode()

    def change_one(self, before: Row | None, after: Row | None) -> bytes:
        if before is None:
            assert after is not None, "a change has an image"
            return self.insert_one(after)
        return self.delete_one(before) if after is None else self.update_one(before, after)

    def _only(self, row: Sequence[Any]) -> str:
        if self.key:
            keys = [f"{self._name(p)}={self.value(p, row[p])}" for p in self.key]
            return " AND ".join(keys) + self._only_ours
        where = " AND ".join(self._equals(p, row[p]) for p in self.written) + self._only_ours
        if self.dialect == MYSQL:
            return f"{where}{self._nearest(row)} LIMIT 1"
        taken = {c.name.lower() for c in self.table.columns}
        rowid = next((n for n in ("_rowid_", "rowid", "oid") if n not in taken), None)
        if rowid is None:
            raise NeedsOperator(
                f"table {self.table.name!r} has no key and names columns like every row id",
                "give the table a primary key",
                Code.TABLE_KEY,
            )
        return f"{rowid} = (SELECT {rowid} FROM {self._target} WHERE {where} LIMIT 1)"

    def _nearest(self, row: Sequence[Any]) -> str:
        """Sort a row with identical JSON text first: to MySQL, 1 and 1.0 are equal."""
        others = [
            f"{self._has_json_text(p, row[p])} DESC"
            for p in self.written
            if row[p] is not None and family(self.table.columns[p]) is Family.JSON
        ]
        return f" ORDER BY {','.join(others)}" if others else ""

    def _has_json_text(self, position: int, value: Any) -> str:
        text = f"/*!50708 CAST(CAST(*/{self.value(position, value)}/*!50708 AS JSON) AS CHAR)*/"
        held = f"CAST({self._name(position)} AS CHAR)"
        return f"CAST({held} AS BINARY)=CAST({text} AS BINARY)"

    def _equals(self, position: int, value: Any) -> str:
        column = self.table.columns[position]
        name = self._name(position)
        if value is None:
            return f"{name} IS NULL"
        text = self.value(position, value)
        if self.dialect == SQLITE:
            return f"{name}={text}"
        if family(column) is Family.JSON:
            # MySQL compares JSON with JSON only; MariaDB keeps JSON as text and skips comments for
            # versions between 5.7 and its own. A load reads JSON as text, so a time that the binlog
            # has may be a string downstream: only its text is equal.
            equal = f"{name}=/*!50708 CAST(*/{text}/*!50708 AS JSON)*/"
            return f"({equal} OR {self._has_json_text(position, value)})"
        if family(column) is Family.TEXT:
            # The plain comparison may use an index; the second distinguishes 'a' from 'A'. CHAR
            # drops trailing spaces when it is read.
            data = value.rstrip(" ") if column.tp is MysqlType.STRING else value
            exact = f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"
            return f"({name}={text} AND {exact}=x'{data.encode().hex()}')"
        return f"{name}={text}"


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, _TEXT)


def _cut(rows: pa.Array, head: str, tail: str, rows_max: int) -> Iterator[bytes]:
    """Cut row texts into statements of at most `rows_max` rows and STATEMENT_BYTES_MAX bytes.

    The texts are contiguous in the array's buffer, each with a comma at its end, so a statement's
    rows are one slice of it without the last comma.
    """
    count = len(rows)
    if not count:
        return
    assert rows.null_count == 0
    assert pa.types.is_large_string(rows.type)
    _, offsets, data = rows.buffers()
    ends = np.frombuffer(offsets, np.int64)[rows.offset : rows.offset + count + 1]
    text = memoryview(data)
    head_bytes, tail_bytes = head.encode(), tail.encode()
    start = 0
    while start < count:
        limit = ends[start] + STATEMENT_BYTES_MAX
        fit = int(np.searchsorted(ends, limit, "right")) - 1
        # A row above the limit is a separate statement: it cannot be made smaller.
        stop = max(start + 1, min(start + rows_max, fit, count))
        yield b"".join([head_bytes, text[int(ends[start]) : int(ends[stop]) - 1], tail_bytes])
        start = stop


@lru_cache(maxsize=1024)
def table_sql(
    dialect: str,
    schema: str,
    name: str,
    table: TableInfo,
    *,
    displaces: bool = False,
    rows_max: int = BOUNDS.statement_rows_max,
) -> TableSql:
    return TableSql(dialect, schema, name, table, displaces=displaces, rows_max=rows_max)


_CARRIERS = (EXACT, {MysqlType.VARCHAR, MysqlType.STRING})
"""IF preserves numbers and plain texts; it would turn an ENUM, for example, into a text."""


def carrier(table: TableInfo, key: IndexInfo) -> int | None:
    """Return the column whose new value contains the guard; None if no guard is needed.

    A table without texts in its key and without further unique indexes needs none. Nor does a key
    of prefixes: its rows are the same with another text after them.
    """
    offsets = [part.offset for part in key.columns]
    others = [i for i in table.indexes if i.unique and [p.offset for p in i.columns] != offsets]
    if not (others or texts_of(table, key)) or any(part.length != -1 for part in key.columns):
        return None
    free = [i for i, c in enumerate(table.columns) if is_written(c) and i not in offsets]
    for types in _CARRIERS:
        for position in (*free, *offsets):
            if table.columns[position].tp in types:
                return position
    return None


def texts_of(table: TableInfo, key: IndexInfo) -> list[int]:
    """Return the columns of a key that are compared by collation."""
    offsets = [part.offset for part in key.columns]
    return [offset for offset in offsets if family(table.columns[offset]) is Family.TEXT]


def guarded(
    new: Mapping[str, str], name: str, key: Sequence[str], texts: Sequence[str]
) -> dict[str, str]:
    """Return the new values by quoted name, with the guard in that of `name`.

    The guarded value comes first: an earlier assignment could make the keys equal. `texts` are of
    the key.
    """
    same = " AND ".join(
        f"CAST({each} AS BINARY)=CAST(VALUES({each}) AS BINARY)"
        if each in texts
        else f"{each}=VALUES({each})"
        for each in key
    )
    value = new.get(name, name)
    first = f"IF({same} OR 1+LENGTH({key[0]})+18446744073709551615,{value},{value})"
    return {name: first} | {n: v for n, v in new.items() if n != name}
