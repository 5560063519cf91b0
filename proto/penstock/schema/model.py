"""Schemas and DDL jobs as frozen values; `tidb_json.py` converts them to and from JSON.

Names and numbers are TiDB's, so that a history written by a real TiDB reads the same. A table or a
column keeps its id for life, even when it is renamed: row bytes name columns by id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

from penstock.schema.ddl_context import DdlContext
from penstock.wire.binlog import Origin


class MysqlType(IntEnum):
    """The type codes of MySQL's protocol, by TiDB's names."""

    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    DURATION = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    JSON = 0xF5
    NEWDECIMAL = 0xF6
    ENUM = 0xF7
    SET = 0xF8
    TINY_BLOB = 0xF9
    MEDIUM_BLOB = 0xFA
    LONG_BLOB = 0xFB
    BLOB = 0xFC
    VAR_STRING = 0xFD
    STRING = 0xFE
    GEOMETRY = 0xFF


_SQL_NAMES = {
    MysqlType.TINY: "TINYINT",
    MysqlType.SHORT: "SMALLINT",
    MysqlType.INT24: "MEDIUMINT",
    MysqlType.LONG: "INT",
    MysqlType.LONGLONG: "BIGINT",
    MysqlType.NEWDECIMAL: "DECIMAL",
    MysqlType.DURATION: "TIME",
    MysqlType.VAR_STRING: "VARCHAR",
    MysqlType.STRING: "CHAR",
    MysqlType.TINY_BLOB: "TINYTEXT",
    MysqlType.BLOB: "TEXT",
    MysqlType.MEDIUM_BLOB: "MEDIUMTEXT",
    MysqlType.LONG_BLOB: "LONGTEXT",
}
_SQL_NAMES_OF_BYTES = {
    MysqlType.VARCHAR: "VARBINARY",
    MysqlType.VAR_STRING: "VARBINARY",
    MysqlType.STRING: "BINARY",
    MysqlType.TINY_BLOB: "TINYBLOB",
    MysqlType.BLOB: "BLOB",
    MysqlType.MEDIUM_BLOB: "MEDIUMBLOB",
    MysqlType.LONG_BLOB: "LONGBLOB",
}


class ColumnFlag(IntFlag):
    """Column flags of MySQL's protocol that Penstock reads or writes."""

    NOT_NULL = 1
    PRI_KEY = 2
    UNIQUE_KEY = 4
    MULTIPLE_KEY = 8
    BLOB = 16
    UNSIGNED = 32
    ZEROFILL = 64
    BINARY = 128
    ENUM = 256
    AUTO_INCREMENT = 512
    TIMESTAMP = 1024
    SET = 2048
    ON_UPDATE_NOW = 8192


NO_FLAGS = ColumnFlag(0)

PUBLIC = 5
"""The schema state of a visible column or index; lower states are still being changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnInfo:
    """One column. `default` is for inserts without a value, `origin_default` for older rows."""

    id: int
    name: str
    offset: int
    tp: MysqlType
    flag: ColumnFlag = NO_FLAGS
    flen: int = -1
    decimal: int = -1
    charset: str = ""
    collate: str = ""
    elems: tuple[str, ...] = ()
    origin_default: str | None = None
    origin_is_expr: bool = False
    """In older rows the value is an expression over the row, which only a server computes."""
    default: str | None = None
    default_is_expr: bool = False
    generated_expr: str = ""
    generated_stored: bool = False
    comment: str = ""
    state: int = PUBLIC
    hidden: bool = False
    """True for a column that cannot be named, such as that of a TiDB's index over an expression."""
    native: str = ""
    """UUID, INET4 or INET6: a type that some servers have, whose values are texts here."""

    @property
    def sql_type(self) -> str:
        if self.native:
            return self.native
        names = _SQL_NAMES_OF_BYTES if self.is_binary else {}
        name = names.get(self.tp) or _SQL_NAMES.get(self.tp, self.tp.name)
        is_said = self.is_unsigned and self.tp not in (MysqlType.BIT, MysqlType.YEAR)
        return f"{name} UNSIGNED" if is_said else name

    @property
    def is_unsigned(self) -> bool:
        return ColumnFlag.UNSIGNED in self.flag

    @property
    def is_not_null(self) -> bool:
        return ColumnFlag.NOT_NULL in self.flag

    @property
    def is_generated(self) -> bool:
        return bool(self.generated_expr)

    @property
    def is_binary(self) -> bool:
        return self.charset == "binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexColumn:
    """One column of an index; `length` is a prefix in characters, -1 the whole column."""

    name: str
    offset: int
    length: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexInfo:
    """One index, its columns in key order."""

    id: int
    name: str
    columns: tuple[IndexColumn, ...]
    unique: bool = False
    primary: bool = False
    state: int = PUBLIC


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """One version of one table; columns are in their order in the table.

    `pk_is_handle`: the primary key is one integer column and is the row's handle.
    `is_common_handle`: any other primary key is the handle. Neither: a hidden row id is.
    `partitions` are names, () without partitions, None when it is not known; `partition_ids` their
    ids, in the same order, where they have any: a TiDB's. `constants` are columns that no row bytes
    have and every row gets: name and text. `expression_indexes` are names of indexes over
    expressions, which are otherwise unknown. `lacks_key`: rows are written where the table has no
    primary key, though it has one here. `period`: names of the start and end of a row's time where
    the table is system-versioned; it does not have these columns here. `own_period`: a PERIOD of
    columns that the table has: its name, its start and its end. `expires`: a TiDB deletes its rows
    after their time to live, without a binlog. `constraints` are names of its CHECKs and foreign
    keys, None where they are not known.
    """

    id: int
    name: str
    columns: tuple[ColumnInfo, ...] = ()
    indexes: tuple[IndexInfo, ...] = ()
    charset: str = "utf8mb4"
    collate: str = "utf8mb4_bin"
    pk_is_handle: bool = False
    is_common_handle: bool = False
    max_column_id: int = 0
    max_index_id: int = 0
    comment: str = ""
    is_view: bool = False
    is_sequence: bool = False
    constants: tuple[tuple[str, str], ...] = ()
    partitions: tuple[str, ...] | None = None
    partition_ids: tuple[int, ...] = ()
    expression_indexes: tuple[str, ...] = ()
    lacks_key: bool = False
    period: tuple[str, ...] = ()
    own_period: tuple[str, ...] = ()
    expires: bool = False
    constraints: tuple[str, ...] | None = None

    def __hash__(self) -> int:
        return hash(
            (self.id, self.name)
        )  # Caches ask for it with each batch, and versions are few.

    @property
    def kind(self) -> str:
        return "VIEW" if self.is_view else "SEQUENCE" if self.is_sequence else "TABLE"

    def column(self, name: str) -> ColumnInfo | None:
        wanted = name.lower()
        return next((c for c in self.columns if c.name.lower() == wanted), None)

    @property
    def primary_key(self) -> IndexInfo | None:
        """Return the primary key; an integer handle counts even without an index entry."""
        for index in self.indexes:
            if index.primary:
                return index
        if self.pk_is_handle:
            for c in self.columns:
                if ColumnFlag.PRI_KEY in c.flag:
                    part = IndexColumn(name=c.name, offset=c.offset)
                    return IndexInfo(
                        id=0, name="PRIMARY", columns=(part,), unique=True, primary=True
                    )
        return None

    @property
    def row_key(self) -> IndexInfo | None:
        """Return an index that identifies every row: the primary key, or unique without NULLs."""
        if self.primary_key is not None and not self.lacks_key:
            return self.primary_key
        for index in self.indexes:
            if index.primary:
                continue
            whole = all(part.length == -1 for part in index.columns)
            solid = all(self.columns[part.offset].is_not_null for part in index.columns)
            if index.unique and index.state == PUBLIC and whole and solid:
                return index
        return None

    def renamed(self, name: str) -> TableInfo:
        return replace(self, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaInfo:
    """One database."""

    id: int
    name: str
    charset: str = "utf8mb4"
    collate: str = "utf8mb4_bin"


class DdlType(IntEnum):
    """The kinds of DDL job, by TiDB's numbers; TiDB has none above 1000."""

    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    RENAME_TABLE = 14
    SET_DEFAULT = 15
    TABLE_COMMENT = 17
    RENAME_INDEX = 18
    ADD_PARTITION = 19
    DROP_PARTITION = 20
    CREATE_VIEW = 21
    MODIFY_TABLE_CHARSET = 22
    TRUNCATE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    MODIFY_SCHEMA_CHARSET = 26
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    CREATE_SEQUENCE = 34
    ALTER_SEQUENCE = 35
    DROP_SEQUENCE = 36
    EXCHANGE_PARTITION = 42
    RENAME_TABLES = 47
    MULTI_SCHEMA_CHANGE = 61
    REORGANIZE_PARTITION = 64
    ALTER_PARTITIONING = 71
    REMOVE_PARTITIONING = 72
    CONVERT_PARTITION = 1001
    CONVERT_TABLE = 1002


JOB_SYNCED = 6
"""The job state of a DDL that is done and visible to all."""
_FAILED_STATES = (3, 5)
"""Rolled back, and cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlJob:
    """One finished DDL as the history keeps it: the request, and the resulting table.

    `finished_ts` is the `commit_ts` of its binlog. `tables` holds (schema name, table) for jobs
    that change several tables, or drop several; `table` is the one table of the usual job; for
    TRUNCATE `table_id` is the old table and `table` the new table. For a DDL that is only passed
    on, `origin` is the place where it was made, and `context` its session there.

    A TiDB's job finishes after its binlog was committed, and `start_ts` is when it was requested.
    Of its `tables` only the schemas' ids may be known: `schema_ids`, one for each. For each part, a
    job of several parts has the schema version at which the part ended, 0 if unknown, and the id of
    the column that it added, 0 for none.
    """

    id: int
    type: int
    schema_id: int
    schema_name: str
    query: str
    schema_version: int
    table_id: int = 0
    table_name: str = ""
    finished_ts: int = 0
    state: int = JOB_SYNCED
    schema: SchemaInfo | None = None
    table: TableInfo | None = None
    tables: tuple[tuple[str, TableInfo], ...] = ()
    origin: Origin | None = None
    context: DdlContext | None = None
    start_ts: int = 0
    schema_ids: tuple[int, ...] = ()
    parts: tuple[tuple[int, int], ...] = ()

    @property
    def swap_version(self) -> int:
        """The schema version from which rows certainly have the resulting table's format."""
        return min((ended for ended, _ in self.parts if ended), default=self.schema_version)

    @property
    def has_failed(self) -> bool:
        """True for a DDL that was rolled back or cancelled, and thus had no effect."""
        return self.state in _FAILED_STATES
