"""Random histories of DDL: whatever the planner accepts leaves a sound catalog.

And it leaves the very table that its own definition, written out and read again, would make.
"""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ddl import Catalog
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnFlag, ColumnInfo, MysqlType, TableInfo
from tests.kit.workloads.ddl_history import RandomDdl, quoted
from tests.unit.penstock.ddl_session import DdlSession, check_invariants

SEEDS = st.integers(0, 1 << 32)


def run(seed: int, session: DdlSession | None = None) -> DdlSession:
    session = session or DdlSession()
    session.run("CREATE DATABASE x", "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(20))")
    ddl = RandomDdl(seed, session.catalog, plain=True)
    for _ in range(10):
        try:
            session.run(ddl.statement())
        except NeedsOperator:
            continue
    return session


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_any_history_leaves_a_sound_catalog_and_no_id_is_used_twice(seed: int) -> None:
    session = run(seed)
    check_invariants(session.catalog)
    replayed = Catalog()
    for job in session.history:
        change = replayed.apply(job)
        check_invariants(replayed)
        changed = [(before, after) for _, before, after in change.altered]
        changed += [(before, after) for _, before, _, after in change.renamed]
        for before, after in changed:
            assert after.max_column_id >= before.max_column_id
            assert after.max_index_id >= before.max_index_id
            fresh = {c.id for c in after.columns} - {c.id for c in before.columns}
            assert all(i > before.max_column_id for i in fresh)
    assert replayed.tables() == session.catalog.tables()
    assert len({job.id for job in session.history}) == len(session.history)


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_a_table_written_out_and_read_again_is_the_same_table(seed: int) -> None:
    for _, table in run(seed).catalog.tables():
        again = DdlSession(definition(table))
        assert essence(again.table(table.name)) == essence(table), definition(table)


def essence(table: TableInfo) -> object:
    """All that rows and keys depend on, without ids and what older rows read."""
    columns = [
        replace(c, id=0, origin_default=None, flag=c.flag & ~ColumnFlag.TIMESTAMP)
        for c in table.columns
    ]
    indexes = [(i.name, i.columns, i.unique, i.primary) for i in table.indexes]
    return table.name, columns, sorted(indexes), table.pk_is_handle, table.is_common_handle


def definition(table: TableInfo) -> str:
    parts = [f"{quoted(c.name)} {type_text(c)}{rest(c)}" for c in table.columns]
    indexes = list(table.indexes)
    primary = table.primary_key
    if primary is not None and primary not in indexes:
        indexes.append(primary)
    for index in indexes:
        kind = "PRIMARY KEY" if index.primary else "UNIQUE KEY" if index.unique else "KEY"
        name = "" if index.primary else quoted(index.name)
        columns = ", ".join(
            quoted(p.name) + (f"({p.length})" if p.length != -1 else "") for p in index.columns
        )
        parts.append(f"{kind} {name} ({columns})")
    charset = f"CHARSET={table.charset} COLLATE={table.collate}"
    return f"CREATE TABLE {quoted(table.name)} ({', '.join(parts)}) {charset}"


_WORDS = {
    MysqlType.TINY: "TINYINT",
    MysqlType.LONG: "INT",
    MysqlType.LONGLONG: "BIGINT",
    MysqlType.YEAR: "YEAR",
    MysqlType.JSON: "JSON",
    MysqlType.BIT: "BIT",
    MysqlType.BLOB: "TEXT",
    MysqlType.MEDIUM_BLOB: "MEDIUMTEXT",
    MysqlType.LONG_BLOB: "LONGTEXT",
    MysqlType.VARCHAR: "VARCHAR",
    MysqlType.DATETIME: "DATETIME",
    MysqlType.TIMESTAMP: "TIMESTAMP",
    MysqlType.NEWDECIMAL: "DECIMAL",
    MysqlType.ENUM: "ENUM",
}


def type_text(c: ColumnInfo) -> str:
    text = _WORDS[c.tp]
    if c.tp in (MysqlType.TINY, MysqlType.LONG, MysqlType.LONGLONG, MysqlType.BIT):
        text += f"({c.flen})"
    if c.tp is MysqlType.VARCHAR:
        text += f"({c.flen})"
    if c.tp is MysqlType.NEWDECIMAL:
        text += f"({c.flen},{c.decimal})"
    if c.tp in (MysqlType.DATETIME, MysqlType.TIMESTAMP):
        text += f"({c.decimal})"
    if c.tp is MysqlType.ENUM:
        text += "(" + ",".join(f"'{e}'" for e in c.elems) + ")"
    if c.is_unsigned and c.tp not in (MysqlType.BIT, MysqlType.YEAR):
        text += " UNSIGNED"
    is_text = c.tp in (MysqlType.VARCHAR, MysqlType.ENUM) or text.endswith("TEXT")
    return text + (f" CHARACTER SET {c.charset} COLLATE {c.collate}" if is_text else "")


def rest(c: ColumnInfo) -> str:
    text = " NOT NULL" if c.is_not_null else ""
    if c.default is not None:
        bare = c.default.startswith("CURRENT_TIMESTAMP") or c.tp is MysqlType.BIT
        text += f" DEFAULT {c.default}" if bare else f" DEFAULT '{c.default}'"
    return text
