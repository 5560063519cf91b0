"""Random histories of DDL: whatever the planner accepts leaves a sound catalog.

And it leaves the very table that its own definition, written out and read anew, would make.
"""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ddl import Catalog
from penstock.errors import NeedsOperator
from penstock.schema import ColumnFlag, ColumnInfo, MysqlType, TableInfo
from tests.unit.penstock.ddl_session import DdlSession, check_invariants

NAMES = st.sampled_from(["a", "b", "c", "D", "e`e"])
TABLES = st.sampled_from(["t", "u", "W", "x.t", "x.u"])
TYPES = st.sampled_from(
    [
        "INT",
        "BIGINT UNSIGNED NOT NULL",
        "TINYINT(1) DEFAULT 1",
        "DECIMAL(8,3) DEFAULT 1.5",
        "VARCHAR(20)",
        "VARCHAR(20) CHARACTER SET latin1 NOT NULL DEFAULT 'q'",
        "TEXT",
        "BLOB",
        "DATETIME(3) DEFAULT '2020-01-01'",
        "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP",
        "ENUM('p','q') DEFAULT 'q'",
        "BIT(5) NOT NULL DEFAULT b'11'",
        "YEAR",
        "INT UNIQUE",
        "INT PRIMARY KEY",
        "JSON",
    ]
)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@st.composite
def places(draw: st.DrawFn) -> str:
    kind = draw(st.sampled_from(["", " FIRST", " AFTER "]))
    return kind + quoted(draw(NAMES)) if kind == " AFTER " else kind


@st.composite
def key_bodies(draw: st.DrawFn) -> str:
    parts = draw(st.lists(NAMES, min_size=1, max_size=3))
    prefix = draw(st.sampled_from(["", "(3)", "(20)"]))
    return "(" + ", ".join(quoted(p) + prefix for p in parts) + ")"


@st.composite
def operations(draw: st.DrawFn) -> str:
    a, b = quoted(draw(NAMES)), quoted(draw(NAMES))
    tp, place, body = draw(TYPES), draw(places()), draw(key_bodies())
    return draw(
        st.sampled_from(
            [
                f"ADD {a} {tp}{place}",
                f"ADD COLUMN IF NOT EXISTS {a} {tp}",
                f"ADD ({a} {tp}, {b} INT)",
                f"DROP {a}",
                f"DROP COLUMN IF EXISTS {a}",
                f"MODIFY {a} {tp}{place}",
                f"CHANGE {a} {b} {tp}{place}",
                f"RENAME COLUMN {a} TO {b}",
                f"ADD INDEX {body}",
                f"ADD UNIQUE {a} {body}",
                f"ADD PRIMARY KEY {body}",
                "DROP PRIMARY KEY",
                f"DROP INDEX {a}",
                f"RENAME INDEX {a} TO {b}",
                f"ALTER {a} SET DEFAULT 1",
                f"ALTER {a} DROP DEFAULT",
                "COMMENT 'x'",
                "CONVERT TO CHARACTER SET utf8",
                "DEFAULT CHARSET latin1",
                "RENAME TO u",
            ]
        )
    )


@st.composite
def statements(draw: st.DrawFn) -> str:
    t, u = draw(TABLES), draw(TABLES)
    columns = draw(st.lists(NAMES, min_size=1, max_size=5, unique_by=str.lower))
    body = ", ".join(f"{quoted(c)} {draw(TYPES)}" for c in columns)
    alters = ", ".join(draw(st.lists(operations(), min_size=1, max_size=3)))
    create = f"CREATE TABLE {t} ({body})"
    alter = f"ALTER TABLE {t} {alters}"
    others = [
        f"CREATE TABLE {t} LIKE {u}",
        f"DROP TABLE {t}",
        f"TRUNCATE {t}",
        f"RENAME TABLE {t} TO {u}",
        f"RENAME TABLE {t} TO tmp, {u} TO {t}, tmp TO {u}",
        f"CREATE INDEX k ON {t} {draw(key_bodies())}",
        f"DROP INDEX k ON {t}",
        "ALTER DATABASE d CHARSET latin1",
        "DROP DATABASE x",
        "CREATE DATABASE x",
    ]
    return draw(st.sampled_from([create, create, alter, alter, alter, alter, *others]))


HISTORIES = st.lists(statements(), min_size=3, max_size=25)


def run(history: list[str]) -> DdlSession:
    session = DdlSession("CREATE DATABASE x", "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(20))")
    for sql in history:
        try:
            session.run(sql)
        except NeedsOperator:
            continue
    return session


@settings(max_examples=120, deadline=None)
@given(HISTORIES)
def test_any_history_leaves_a_sound_catalog_and_no_id_is_used_twice(history: list[str]) -> None:
    session = run(history)
    check_invariants(session.catalog)
    replayed = Catalog()
    for job in session.history:
        change = replayed.apply(job)
        for _, before, after in change.altered:
            assert after.max_column_id >= before.max_column_id
            fresh = {c.id for c in after.columns} - {c.id for c in before.columns}
            assert all(i > before.max_column_id for i in fresh)
    assert replayed.tables() == session.catalog.tables()
    assert len({job.id for job in session.history}) == len(session.history)


@settings(max_examples=120, deadline=None)
@given(HISTORIES)
def test_a_table_written_out_and_read_anew_is_the_same_table(history: list[str]) -> None:
    session = run(history)
    for _, table in session.catalog.tables():
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
    """CREATE TABLE with everything said outright."""
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
