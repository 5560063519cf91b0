"""The DDL parser: text into statements; any text it cannot fully read raises NeedsOperator.

    CREATE | ALTER | DROP {DATABASE | SCHEMA}
    CREATE [OR REPLACE] TABLE … (…) | LIKE …   DROP TABLE a, b      TRUNCATE [TABLE]
    ALTER TABLE …       RENAME TABLE …         CREATE | DROP INDEX … ON …
    CREATE [OR REPLACE] VIEW …                 ALTER VIEW …         DROP VIEW a, b
    CREATE [OR REPLACE] SEQUENCE [IF NOT EXISTS] name …
    ALTER SEQUENCE [IF EXISTS] name …          DROP SEQUENCE [IF EXISTS] a, b

Sequences are MariaDB's: they hold no rows, and their numbers travel within rows. Their options are
START, RESTART, INCREMENT, MINVALUE, MAXVALUE, CACHE with numbers, NO…, CYCLE, and a table's.

The grammar is our own and not sqlglot's, because sqlglot's reading of MySQL loses information that
row images depend on: INT8 and REAL become TINYINT and FLOAT, LONG becomes BIGINT, `/*! … */`
becomes a comment, and RENAME TABLE, ADD COLUMN (…), CONVERT TO, ALTER DATABASE and PARTITION BY are
not read at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

from penstock.codes import Code
from penstock.ddl.parse import alter_clauses, versioning
from penstock.ddl.parse.column_clauses import read_charset, read_column, read_option, with_keys_at
from penstock.ddl.parse.cursor import Cursor
from penstock.ddl.parse.key_clauses import (
    at_key,
    index_options,
    key_of_kind,
    key_parts,
    read_key,
    without_uniqueness,
)
from penstock.ddl.parse.partition_clauses import partition_by
from penstock.ddl.syntax import statements as ast
from penstock.ddl.syntax.lexer import Kind, Source, read
from penstock.errors import NeedsOperator

_NOT_REPLICATED = {
    "TRIGGER": "triggers would change rows a second time downstream",
    "PROCEDURE": "routines change no rows by themselves: create them downstream by hand",
    "FUNCTION": "routines change no rows by themselves: create them downstream by hand",
    "EVENT": "events would change rows a second time downstream",
    "USER": "accounts belong to one server: manage them there",
    "ROLE": "accounts belong to one server: manage them there",
    "SERVER": "it belongs to one server: create it there",
    "TABLESPACE": "it belongs to one server: create it there",
    "TEMPORARY": "temporary tables live in one session and are not replicated",
}


def parse(sql: str) -> tuple[Source, list[ast.Statement]]:
    """Return the statements in `sql`, at least one, and the text their places refer to."""
    source, statements = _remembered(sql) if len(sql) <= _REMEMBERED_CHARS_MAX else _parsed(sql)
    return source, [*statements]


def _parsed(sql: str) -> tuple[Source, list[ast.Statement]]:
    source = read(sql)
    cur = Cursor(source)
    statements = []
    while True:
        while cur.take_sign(";"):
            pass
        if cur.at_end():
            break
        statements.append(_statement(cur))
    if not statements:
        raise NeedsOperator("the DDL is empty", "give at least one statement", Code.DDL_UNREADABLE)
    return source, statements


# A statement passes several steps, and most of them do not change it.
_remembered = lru_cache(4)(_parsed)
_REMEMBERED_CHARS_MAX = 64 << 10


def rewritten(sql: str, edits_of: Callable[[ast.Statement, Source], Iterable[ast.Edit]]) -> str:
    """Return the statements in `sql`, each with its edits; raise NeedsOperator as `parse` does."""
    source, statements = parse(sql)
    return "; ".join(
        ast.edited(source.text, each.start, each.end, edits_of(each, source)) for each in statements
    )


def _statement(cur: Cursor) -> ast.Statement:
    start, cur.edits, cur.foreign, cur.refs = cur.token.start, [], [], []
    cur.json = []
    cur.statement_start, cur.period = start, ()
    verb = cur.next().upper
    reader = _READERS.get(verb)
    if reader is None:
        raise NeedsOperator(
            f"{verb or 'this'} starts no DDL that Penstock can follow",
            "schema changes are CREATE, ALTER, DROP, TRUNCATE and RENAME",
            Code.DDL_UNREADABLE,
        )
    found = reader(cur)
    if not cur.at_end():
        cur.fail("the end of the statement")
    return replace(
        found,
        start=start,
        end=cur.last_end,
        edits=tuple(cur.edits),
        foreign=tuple(cur.foreign),
        json=tuple(cur.json),
        refs=tuple(cur.refs),
    )


def _create(cur: Cursor) -> ast.Statement:
    start = cur.token.start
    replaces = cur.take("OR", "REPLACE")
    temporary = cur.token.start
    if cur.take("GLOBAL", "TEMPORARY"):
        # A TiDB's: its rows last for one transaction, and have no binlog.
        _lacks_everywhere(cur, temporary)
    if cur.take("TABLE"):
        return _create_table(cur, replaces, start)
    if cur.take_any("DATABASE", "SCHEMA"):
        absent = cur.take("IF", "NOT", "EXISTS")
        name = cur.schema_name()
        return ast.CreateSchema(
            name=name, if_not_exists=absent, charset=_schema_options(cur), or_replace=replaces
        )
    if cur.take("SEQUENCE"):
        absent = cur.if_not_exists()
        ref = cur.table_ref()
        if cur.take("AS"):
            while cur.take_any(*_TYPES):
                pass
        _options(cur)
        return ast.CreateSequence(ref=ref, or_replace=replaces, if_not_exists=absent)
    if (index := _create_index(cur, replaces, start)) is not None:
        return index
    return _create_view(cur, replaces=replaces, must_exist=False)


def _lacks_everywhere(cur: Cursor, start: int) -> None:
    cur.drop_from_mariadb(start)
    cur.lacks(ast.Flavor.MYSQL, start, "")


def _schema_options(cur: Cursor) -> ast.CharsetClause:
    charset = ast.CharsetClause()
    while True:
        if (more := read_charset(cur, charset)) is not None:
            charset = more
        elif cur.take("DEFAULT", "ENCRYPTION") or cur.take_any("ENCRYPTION", "COMMENT"):
            # A server's storage of a database, and its notes about it, are local to the server.
            cur.take_sign("=")
            cur.string()
        elif cur.take("READ", "ONLY"):
            # Here it would block the very changes that come from there.
            cur.setting()
        else:
            return charset


def _create_index(cur: Cursor, replaces: bool, start: int) -> ast.Statement | None:
    before = cur.at
    kind = cur.take_any("UNIQUE", "FULLTEXT", "SPATIAL")
    if not cur.take("INDEX"):
        cur.at = before
        return None
    if replaces:  # The index before is dropped by a separate job.
        cur.edits.append(ast.Edit(start, cur.source.tokens[before].start, ""))
    cur.take_any("ONLINE")
    key = replace(key_of_kind(kind), if_not_exists=cur.if_not_exists(), name=cur.name())
    index_options(cur)
    cur.expect("ON")
    ref = cur.table_ref()
    cur.waits()
    key = replace(key, parts=key_parts(cur))
    cur.waits()
    index_options(cur)
    alter_clauses.tuning_options(cur)
    if key.is_over_expression:
        first = cur.source.tokens[before]
        if kind == "UNIQUE":
            without_uniqueness(cur, ast.Edit(first.start, first.end, ""), first.start)
        cur.lacks(ast.Flavor.MARIADB, cur.statement_start, "indexes over expressions")
    return ast.IndexStatement(ref=ref, operation=key, or_replace=replaces)


def _create_table(cur: Cursor, replaces: bool, start: int) -> ast.Statement:
    if replaces:  # The table before is dropped by a separate job.
        cur.edits.append(ast.Edit(start, cur.source.tokens[cur.at - 1].start, ""))
    absent = cur.if_not_exists()
    if replaces and absent:
        cur.refuse("OR REPLACE with IF NOT EXISTS", "leave one of them out")
    ref = cur.table_ref()
    in_parens = cur.peek().upper == "LIKE" and cur.take_sign("(")
    if cur.take("LIKE"):
        like = cur.table_ref()
        if in_parens:
            cur.expect_sign(")")
        return ast.CreateLike(ref=ref, if_not_exists=absent, like=like, or_replace=replaces)
    if not cur.is_sign("("):
        cur.refuse(
            "CREATE TABLE … SELECT", "create the table with its columns, then insert the rows"
        )
    cur.period = versioning.named_period(cur)
    columns, keys, own_period = _table_elements(cur)
    options, is_versioned = _table_options(cur)
    is_versioned |= any(column.is_versioned for column in columns)
    if versioning.take_partitions(cur):
        partitions: tuple[str, ...] | None = ()
    else:
        partitions = partition_by(cur).names if cur.is_word("PARTITION", "BY") else ()
    if cur.token.upper in ("AS", "SELECT", "IGNORE", "REPLACE"):
        cur.refuse("CREATE TABLE … SELECT", "create the table first, then insert the rows")
    return ast.CreateTable(
        ref=ref,
        if_not_exists=absent,
        or_replace=replaces,
        columns=columns,
        keys=keys,
        options=options,
        partitions=partitions,
        period=cur.period or (versioning.IMPLICIT if is_versioned else ()),
        own_period=own_period,
    )


def _table_options(cur: Cursor) -> tuple[ast.TableOptions, bool]:
    options, is_versioned = ast.TableOptions(end=cur.last_end), False
    while True:
        if versioning.take_clause(cur):
            is_versioned = True
        elif (more := read_option(cur, options)) is not None:
            options = more
        elif cur.is_word("ON", "COMMIT"):
            begin = cur.token.start
            cur.expect("ON", "COMMIT", "DELETE", "ROWS")
            _lacks_everywhere(cur, begin)
        else:
            return options, is_versioned
        comma = cur.token.start
        if cur.take_sign(","):  # It may follow an omitted option.
            cur.drop_text(comma)


def _table_elements(
    cur: Cursor,
) -> tuple[tuple[ast.ColumnDef, ...], tuple[ast.KeyDef, ...], tuple[str, ...]]:
    """Read the elements in the parentheses; keys come in the order in which MySQL names them.

    The last result is the user's PERIOD, if it has one.
    """
    columns: list[ast.ColumnDef] = []
    keys: list[ast.KeyDef] = []
    own_period: tuple[str, ...] = ()
    places: list[tuple[int, int, bool]] = []
    cur.expect_sign("(")
    while True:
        first, edits, foreign = cur.at, len(cur.edits), len(cur.foreign)
        stays = True
        if cur.is_word("PERIOD", "FOR", "SYSTEM_TIME"):
            stays = versioning.take_period(cur) is None
        elif cur.is_word("PERIOD", "FOR"):
            own_period = _period(cur)
        elif at_key(cur):
            found = _key_element(cur)
            stays = not versioning.is_over_period(cur, found)
            keys += found if stays else []
            if not found:
                versioning.check_expressions(cur, first)
        else:
            column = read_column(cur)
            column = with_keys_at(column, cur.last_end)
            stays = not column.is_bound
            columns += [column] if stays else []
            keys += column.keys if stays else ()
            versioning.check_expressions(cur, first)
        if not stays:
            del cur.edits[edits:], cur.foreign[foreign:]
        places.append((cur.source.tokens[first].start, cur.last_end, stays))
        if not cur.take_sign(","):
            break
    cur.expect_sign(")")
    if not columns:
        cur.fail("a column")
    cur.edits += ast.left_out(places)
    dated = {name.lower() for name in own_period[1:]}
    solid = [replace(c, not_null=True) if c.name.lower() in dated else c for c in columns]
    return tuple(solid), tuple(keys), own_period


def _period(cur: Cursor) -> tuple[str, ...]:
    before = cur.source.tokens[cur.at - 1]
    start = before.start if before.text == "," else cur.token.start
    cur.expect("PERIOD", "FOR")
    names = (cur.name(), *cur.names())
    end = cur.last_end if before.text == "," else cur.token.end
    cur.foreign.append(ast.Edit(start, end, "", ast.Flavor.MYSQL, "PERIOD FOR"))
    return names


def _key_element(cur: Cursor) -> list[ast.KeyDef]:
    """Read a key or constraint; MariaDB lacks expression keys and CHECKs as remarks."""
    before = cur.source.tokens[cur.at - 1]
    start = before.start if before.text == "," else cur.token.start
    key = read_key(cur)
    if key.is_over_expression or key.is_remark:
        end = cur.last_end if before.text == "," else cur.token.end
        what = "CHECK … NOT ENFORCED" if key.is_remark else "indexes over expressions"
        cur.foreign.append(ast.Edit(start, end, "", ast.Flavor.MARIADB, what))
    return [] if key.is_check else [key]


def _create_view(cur: Cursor, *, replaces: bool, must_exist: bool) -> ast.Statement:
    start = cur.token
    if cur.take("ALGORITHM"):
        cur.expect_sign("=")
        cur.next()
    if cur.take("DEFINER"):
        cur.expect_sign("=")
        while not cur.at_end() and not (cur.is_word("SQL") or cur.is_word("VIEW")):
            if cur.token.upper in _NOT_REPLICATED:
                start = cur.token
                break
            cur.next()
    if cur.take("SQL", "SECURITY"):
        cur.next()
    if not cur.take("VIEW"):
        start = cur.token if cur.token.upper in _NOT_REPLICATED else start
        what = start.text.upper()
        hint = _NOT_REPLICATED.get(what, "only databases, tables, indexes and views are replicated")
        cur.refuse(f"CREATE or ALTER {what}", hint)
    absent = cur.if_not_exists()
    ref = cur.table_ref()
    if cur.is_sign("("):
        cur.names()
    cur.expect("AS")
    select = cur.token.start
    while not cur.at_end():
        cur.next()
    return ast.CreateView(
        ref=ref,
        or_replace=replaces,
        must_exist=must_exist,
        if_not_exists=absent,
        select_start=select,
    )


def _alter(cur: Cursor) -> ast.Statement:
    if cur.take_any("DATABASE", "SCHEMA"):
        starts = cur.token.upper in ("DEFAULT", "COLLATE", "CHARSET") or (
            cur.is_word("COMMENT") and (cur.peek().kind is Kind.STRING or cur.peek().text == "=")
        )
        name = None if starts or cur.is_word("CHARACTER", "SET") else cur.schema_name()
        before = cur.at
        charset = _schema_options(cur)
        if cur.at == before:
            cur.fail("CHARACTER SET or COLLATE")
        return ast.AlterSchema(name=name, charset=charset)
    cur.dropped("ONLINE")
    if cur.is_word("IGNORE"):
        cur.refuse("ALTER IGNORE TABLE", "it deletes rows silently: delete them first")
    if cur.take("TABLE"):
        return alter_clauses.alter_table(cur)
    if cur.take("SEQUENCE"):
        absent = cur.if_exists()
        ref = cur.table_ref()
        _options(cur)
        return ast.AlterSequence(ref=ref, if_exists=absent)
    return _create_view(cur, replaces=True, must_exist=True)


def _drop(cur: Cursor) -> ast.Statement:
    if cur.take_any("DATABASE", "SCHEMA"):
        absent = cur.if_exists()
        return ast.DropSchema(name=cur.schema_name(), if_exists=absent)
    if cur.take("INDEX"):
        absent = cur.if_exists()
        name = cur.name()
        cur.expect("ON")
        ref = cur.table_ref()
        cur.waits()
        alter_clauses.tuning_options(cur)
        if name.upper() == "PRIMARY":
            return ast.IndexStatement(ref=ref, operation=ast.DropPrimary())
        return ast.IndexStatement(ref=ref, operation=ast.DropKey(name, if_exists=absent))
    kind = cur.take_any("TABLE", "TABLES", "VIEW", "SEQUENCE").removesuffix("S")
    if not kind:
        what = cur.token.text.upper()
        cur.refuse(f"DROP {what}", _NOT_REPLICATED.get(what, "it changes no table"))
    absent = cur.if_exists()
    refs = cur.listed(cur.table_ref)
    cur.waits()
    cur.take_any("RESTRICT", "CASCADE")
    return ast.DropTables(refs=refs, if_exists=absent, kind=kind)


def _truncate(cur: Cursor) -> ast.Statement:
    cur.take("TABLE")
    ref = cur.table_ref()
    cur.waits()
    return ast.TruncateTable(ref=ref)


def _rename(cur: Cursor) -> ast.Statement:
    if not cur.take_any("TABLE", "TABLES"):
        cur.refuse("RENAME of anything but tables", "rename tables only")

    def pair() -> tuple[ast.TableRef, ast.TableRef]:
        old = cur.table_ref()
        cur.waits()
        cur.expect("TO")
        return old, cur.table_ref()

    absent = cur.if_exists()
    return ast.RenameTables(pairs=cur.listed(pair), if_exists=absent)


_READERS: dict[str, Callable[[Cursor], ast.Statement]] = {
    "CREATE": _create,
    "ALTER": _alter,
    "DROP": _drop,
    "TRUNCATE": _truncate,
    "RENAME": _rename,
}

_NUMBERS = ("START", "RESTART", "INCREMENT", "MINVALUE", "MAXVALUE", "CACHE")
_SWITCHES = ("NOMINVALUE", "NOMAXVALUE", "NOCACHE", "CYCLE", "NOCYCLE")
_TYPES = ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "SIGNED", "UNSIGNED")


def _options(cur: Cursor) -> None:
    while not cur.at_end():
        if cur.take("NO"):
            if not cur.take_any("MINVALUE", "MAXVALUE", "CACHE", "CYCLE"):
                cur.fail("MINVALUE, MAXVALUE, CACHE or CYCLE")
        elif word := cur.take_any(*_NUMBERS):
            _ = cur.take_any("WITH", "BY") or cur.take_sign("=")
            if cur.literal() is None and word != "RESTART":
                cur.fail(f"a number for {word}")
        elif not cur.take_any(*_SWITCHES) and read_option(cur, ast.TableOptions()) is None:
            cur.fail("an option of a sequence")
