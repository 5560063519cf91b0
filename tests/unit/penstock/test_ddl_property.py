"""Random histories of DDL: whatever the planner accepts leaves a sound catalog.

And it leaves the very table that its own definition, written out and read again, would make.
"""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ddl import Catalog
from penstock.errors import NeedsOperator
from penstock.schema.model import ColumnFlag, ColumnInfo, MysqlType, TableInfo
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
    ]
)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class Steps:
    """Draws statements that mostly make sense: about tables and columns that are there."""

    def __init__(self, data: st.DataObject, session: DdlSession) -> None:
        self.data = data
        self.session = session
        self.tables = [(f"{s}.{t.name}", t) for s, t in session.catalog.tables()]

    def pick(self, values: Sequence[str]) -> str:
        return self.data.draw(st.sampled_from(values))

    def often(self, known: Sequence[str], others: st.SearchStrategy[str]) -> str:
        if known and self.data.draw(st.integers(0, 5)) > 0:
            return self.pick(known)
        return self.data.draw(others)

    def table(self) -> str:
        return self.often([name for name, _ in self.tables], TABLES)

    def fresh(self) -> str:
        return quoted(self.data.draw(NAMES))

    def old(self, table: TableInfo) -> str:
        return quoted(self.often([c.name for c in table.columns], NAMES))

    def index(self, table: TableInfo) -> str:
        return quoted(self.often([i.name for i in table.indexes], NAMES))

    def type(self) -> str:
        return self.data.draw(TYPES)

    def place(self, table: TableInfo) -> str:
        kind = self.pick(["", "", " FIRST", " AFTER "])
        return kind + self.old(table) if kind == " AFTER " else kind

    def key(self, table: TableInfo) -> str:
        columns = [c for c in table.columns if self.data.draw(st.booleans())]
        texts = (MysqlType.BLOB, MysqlType.MEDIUM_BLOB, MysqlType.LONG_BLOB)
        parts = [quoted(c.name) + "(3)" * (c.tp in texts) for c in columns]
        return "(" + ", ".join(parts or [self.old(table)]) + ")"

    def operation(self, table: TableInfo) -> str:
        a, b, place = self.old(table), self.fresh(), self.place(table)
        choices = [
            f"ADD {b} {self.type()}{place}",
            f"ADD ({b} {self.type()}, {self.fresh()} INT)",
            f"ADD COLUMN IF NOT EXISTS {b} {self.type()}",
            f"DROP {a}",
            f"DROP COLUMN IF EXISTS {b}",
            f"MODIFY {a} {self.type()}{place}",
            f"CHANGE {a} {b} {self.type()}{place}",
            f"RENAME COLUMN {a} TO {b}",
            f"RENAME COLUMN {a} TO {self.old(table)}",
            f"ADD INDEX {self.key(table)}",
            f"ADD UNIQUE {b} {self.key(table)}",
            f"ADD PRIMARY KEY {self.key(table)}",
            "DROP PRIMARY KEY",
            f"DROP INDEX {self.index(table)}",
            f"RENAME INDEX {self.index(table)} TO {b}",
            f"ALTER {a} SET DEFAULT 1",
            f"ALTER {a} DROP DEFAULT",
            "COMMENT 'x'",
            "CONVERT TO CHARACTER SET utf8",
            "DEFAULT CHARSET latin1",
            "RENAME TO d.u",
        ]
        return self.pick(choices)

    def statement(self) -> str:
        if self.tables and self.data.draw(st.integers(0, 3)) > 0:
            name, table = self.data.draw(st.sampled_from(self.tables))
            count = self.data.draw(st.integers(1, 2))
            return f"ALTER TABLE {name} " + ", ".join(self.operation(table) for _ in range(count))
        t, u = self.table(), self.table()
        fresh = self.data.draw(TABLES)
        columns = self.data.draw(st.lists(NAMES, min_size=1, max_size=5, unique_by=str.lower))
        body = ", ".join(f"{quoted(c)} {self.type()}" for c in columns)
        choices = [
            f"CREATE TABLE {fresh} ({body})",
            f"CREATE TABLE IF NOT EXISTS {fresh} ({body}, KEY ({quoted(columns[0])}))",
            f"CREATE TABLE {fresh} LIKE {u}",
            f"DROP TABLE {t}",
            f"TRUNCATE {t}",
            f"RENAME TABLE {t} TO {fresh}",
            f"RENAME TABLE {t} TO tmp, {u} TO {t}, tmp TO {u}",
            "ALTER DATABASE d CHARSET latin1",
            "DROP DATABASE IF EXISTS x",
            "CREATE DATABASE IF NOT EXISTS x",
        ]
        return self.pick(choices)


def run(data: st.DataObject, session: DdlSession | None = None) -> DdlSession:
    session = session or DdlSession()
    session.run("CREATE DATABASE x", "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR(20))")
    for _ in range(data.draw(st.integers(5, 15))):
        try:
            session.run(Steps(data, session).statement())
        except NeedsOperator:
            continue
    return session


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_history_leaves_a_sound_catalog_and_no_id_is_used_twice(data: st.DataObject) -> None:
    session = run(data)
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
@given(st.data())
def test_a_table_written_out_and_read_again_is_the_same_table(data: st.DataObject) -> None:
    for _, table in run(data).catalog.tables():
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
