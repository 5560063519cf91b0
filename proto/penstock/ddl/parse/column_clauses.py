"""Parses column definitions and table options, which CREATE TABLE and ALTER TABLE share.

Read and passed on downstream, but not tracked, because no row image depends on them: CHECK and the
action clauses of FOREIGN KEY, index types and comments, COLUMN_FORMAT, STORAGE, engine and storage
options, PARTITION BY. Refused because the rows cannot be known: types without a row encoding, MERGE
tables, CREATE TABLE AS SELECT.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.ddl.parse import versioning
from penstock.ddl.parse.cursor import TABLE_COMMENT_MAX, Cursor
from penstock.ddl.parse.key_clauses import enforcement, reference
from penstock.ddl.syntax import statements as ast
from penstock.ddl.syntax.lexer import Kind, quote_name, read
from penstock.ddl.tables.column_types import GEOMETRIES, NATIVE

_ONE_WORD = {
    "BIT", "TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT", "DECIMAL", "FLOAT", "DOUBLE",
    "BOOL", "SERIAL", "DATE", "TIME", "DATETIME", "TIMESTAMP", "YEAR", "CHAR", "VARCHAR", "BINARY",
    "VARBINARY", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "TINYBLOB", "BLOB", "MEDIUMBLOB",
    "LONGBLOB", "ENUM", "SET", "JSON", *GEOMETRIES, *NATIVE,
}  # fmt: skip
_ALIASES = {
    "BOOLEAN": "BOOL", "INT1": "TINYINT", "INT2": "SMALLINT", "INT3": "MEDIUMINT",
    "MIDDLEINT": "MEDIUMINT", "INT4": "INT", "INTEGER": "INT", "INT8": "BIGINT",
    "DEC": "DECIMAL", "FIXED": "DECIMAL", "NUMERIC": "DECIMAL", "FLOAT4": "FLOAT",
    "FLOAT8": "DOUBLE", "REAL": "DOUBLE", "CHARACTER": "CHAR", "VARCHARACTER": "VARCHAR",
    "NCHAR": "CHAR", "NVARCHAR": "VARCHAR", "GEOMCOLLECTION": "GEOMETRYCOLLECTION",
}  # fmt: skip
_NATIONAL = ("NCHAR", "NVARCHAR")
_NO_ENCODING = {"VECTOR", "XMLTYPE"}


JSON_TEXT = "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_ASCII = "CHARACTER SET ascii COLLATE ascii_bin"


def read_type(cur: Cursor) -> ast.TypeSpec:
    written = cur.token.upper
    if written in _NO_ENCODING:
        cur.refuse(f"columns of type {written}", "binlogs have no row encoding for it")
    spec = _long_type(cur) or _plain_type(cur)
    start = cur.token.start
    if cur.is_sign("(") and spec.name in ("ENUM", "SET"):
        spec = replace(spec, elems=cur.in_parentheses(lambda: cur.raw() or cur.text()))
    elif cur.is_sign("("):
        spec = replace(spec, numbers=cur.in_parentheses(lambda: _size(cur)))
    if spec.name == "YEAR" and spec.numbers == (2,):
        cur.lacks(ast.Flavor.MYSQL, start, "YEAR(2)")
    if spec.name in GEOMETRIES and cur.take("REF_SYSTEM_ID"):
        cur.expect_sign("=")
        cur.integer()
    return _attributes(cur, spec)


def _long_type(cur: Cursor) -> ast.TypeSpec | None:
    if cur.take("LONG"):
        if cur.take("VARBINARY"):
            return ast.TypeSpec(name="MEDIUMBLOB")
        _ = cur.take("VARCHAR") or cur.take("VARCHARACTER") or cur.take("CHAR", "VARYING")
        return ast.TypeSpec(name="MEDIUMTEXT")
    if cur.take("NATIONAL"):
        spec = _plain_type(cur)
        if spec.name not in ("CHAR", "VARCHAR"):
            cur.fail("CHAR or VARCHAR")
        return replace(spec, charset=ast.CharsetClause(charset="utf8"))
    return None


def _plain_type(cur: Cursor) -> ast.TypeSpec:
    written = cur.token.upper
    name = _ALIASES.get(written, written)
    if name not in _ONE_WORD:
        cur.fail("a column type")
    token = cur.next()
    if written == "GEOMCOLLECTION":  # A name that only MySQL knows.
        cur.edits.append(ast.Edit(token.start, token.end, name))
    if name in NATIVE:
        length = NATIVE[name][1]
        cur.lacks(
            ast.Flavor.MYSQL, token.start, f"columns of type {name}", f"CHAR({length}) {_ASCII}"
        )
    if name == "DOUBLE":
        cur.take("PRECISION")
    if name == "CHAR" and (cur.take("VARYING") or (written == "NCHAR" and cur.take("VARCHAR"))):
        name = "VARCHAR"
    charset = ast.CharsetClause(charset="utf8") if written in _NATIONAL else ast.CharsetClause()
    return ast.TypeSpec(name=name, charset=charset)


def _size(cur: Cursor) -> int:
    """Read a number in a type's parentheses; servers read 10.2 as 10."""
    token = cur.token
    whole, dot, _ = token.text.partition(".")
    if token.kind is Kind.NUMBER and dot and whole.isdigit():
        cur.next()
        cur.edits.append(ast.Edit(token.start, token.end, whole))
        return int(whole)
    return cur.integer()


def _attributes(cur: Cursor, spec: ast.TypeSpec) -> ast.TypeSpec:
    charset = replace(spec.charset, end=cur.last_end)
    while True:
        if cur.take("UNSIGNED"):
            spec = replace(spec, unsigned=True)
        elif cur.take("ZEROFILL"):
            spec = replace(spec, zerofill=True, unsigned=True)
        elif cur.take("BINARY"):
            spec = replace(spec, binary=True)
        elif (more := _charset_attribute(cur, charset)) is not None:
            charset = more
        elif not cur.take("SIGNED") and not _compressed(cur):
            return replace(spec, charset=charset)


_OLD_CHARSETS = {"ASCII": "latin1", "UNICODE": "ucs2"}


def _charset_attribute(cur: Cursor, charset: ast.CharsetClause) -> ast.CharsetClause | None:
    start = cur.token.start
    if cur.take("BYTE"):
        return ast.CharsetClause(charset="binary", collate="binary")
    if word := cur.take_any(*_OLD_CHARSETS):
        return ast.CharsetClause(charset=_OLD_CHARSETS[word], end=cur.last_end)
    if not take_charset(cur):
        return None
    if cur.take("DEFAULT"):
        cur.drop_text(start)  # The table's, as without it.
        return charset
    return replace(charset, charset=_charset_name(cur), end=cur.last_end)


def _compressed(cur: Cursor) -> bool:
    """Skip COMPRESSED[=method]: how MariaDB stores values and writes them to binlogs."""
    start = cur.token.start
    if not cur.take("COMPRESSED"):
        return False
    if cur.take_sign("="):
        cur.next()
    cur.lacks(ast.Flavor.MYSQL, start, "columns that are COMPRESSED")
    return True


def take_charset(cur: Cursor) -> bool:
    return cur.take("CHARACTER", "SET") or cur.take("CHAR", "SET") or cur.take("CHARSET")


def _charset_name(cur: Cursor) -> str:
    if cur.token.kind is Kind.STRING:
        return cur.string().lower()
    if cur.take("BINARY"):
        return "binary"
    return cur.name().lower()


def read_charset(cur: Cursor, given: ast.CharsetClause) -> ast.CharsetClause | None:
    """Read [DEFAULT] CHARACTER SET or COLLATE with or without `=`; None if neither is here."""
    start, begin = cur.at, cur.token.start
    cur.take("DEFAULT")
    is_charset = take_charset(cur)
    if not is_charset and not cur.take("COLLATE"):
        cur.at = start
        return None
    cur.take_sign("=")
    if cur.take("DEFAULT"):
        cur.drop_text(begin)
        if is_charset:
            return replace(given, is_default=True, end=cur.last_end)
        return replace(given, collate_is_default=True, end=cur.last_end)
    name = _charset_name(cur)
    if is_charset:
        return replace(given, charset=name, end=cur.last_end)
    return replace(given, collate=name, end=cur.last_end)


def with_keys_at(column: ast.ColumnDef, at: int) -> ast.ColumnDef:
    return replace(column, keys=tuple(replace(key, at=at) for key in column.keys))


def read_column(cur: Cursor, name: str | None = None) -> ast.ColumnDef:
    name = name or cur.column_name()
    first, start = cur.at, cur.token.start
    column = ast.ColumnDef(name=name, type=read_type(cur))
    if column.type.name == "SERIAL":
        written_out = ast.Edit(start, cur.last_end, "BIGINT UNSIGNED NOT NULL AUTO_INCREMENT")
        part = ast.KeyPart(name=column.name)
        serial = ast.KeyDef(name=None, parts=(part,), unique=True, inline=written_out)
        column = replace(column, not_null=True, auto_increment=True, keys=(serial,))
    nulls: list[ast.Edit] = []
    while True:
        start, is_null = cur.token.start, cur.is_word("NULL")
        more = _column_attribute(cur, column)
        if more is None:
            _note_json(cur, column, first)
            return column
        nulls += [ast.Edit(start, cur.last_end, "")] if is_null and not column.generated else []
        if more.auto_increment and not column.auto_increment:
            # Old dumps have NULL before it: the column still has no NULLs.
            cur.edits += nulls
        column = more


def _note_json(cur: Cursor, column: ast.ColumnDef, first: int) -> None:
    """Record how a JSON column reads where JSON is text, such as in MariaDB's SHOW CREATE TABLE."""
    if column.type.name != "JSON":
        return
    tokens = cur.source.tokens[first : cur.at]
    text = JSON_TEXT if column.type.charset.says_nothing else "LONGTEXT"
    cur.json.append(ast.Edit(tokens[0].start, tokens[0].end, text))
    if not column.generated and not any(token.upper == "CHECK" for token in tokens):
        check = f" CHECK (json_valid({quote_name(column.name)}))"
        cur.json.append(ast.Edit(cur.last_end, cur.last_end, check))


def _column_attribute(cur: Cursor, column: ast.ColumnDef) -> ast.ColumnDef | None:
    start = cur.token.start
    if cur.take("NOT", "NULL") or cur.take("NULL"):
        if column.generated:
            # MariaDB cannot express this; the expression alone decides whether NULLs can occur.
            cur.drop_text(start)
            return column
        return replace(column, not_null=cur.peek(-2).upper == "NOT")
    if cur.take("DEFAULT"):
        return replace(column, default=_default(cur, column, start))
    if cur.take("ON", "UPDATE"):
        now_start = cur.token.start
        now = cur.now()
        if now is None:
            cur.fail("CURRENT_TIMESTAMP")
        _same_decimals(cur, column, now, now_start)
        return replace(column, on_update_now=True)
    if cur.take("AUTO_INCREMENT"):
        return replace(column, auto_increment=True, not_null=True)
    if cur.take("COMMENT"):
        return replace(column, comment=cur.comment())
    if cur.take("COLLATE"):
        if cur.take("DEFAULT"):
            cur.drop_text(start)
            given = column.type.charset
            charset = replace(given, collate_is_default=True, end=cur.last_end)
        else:
            charset = replace(column.type.charset, collate=_charset_name(cur))
        return replace(column, type=replace(column.type, charset=charset))
    return (
        versioning.column_attribute(cur, column)
        or _key_attribute(cur, column)
        or _quiet_attribute(cur, column)
    )


_TIMES = ("DATETIME", "TIMESTAMP")
_BARE = (ast.ValueKind.NULL, ast.ValueKind.EXPRESSION)
"""Values that a MySQL accepts as written, also for a TEXT or BLOB."""


def _default(cur: Cursor, column: ast.ColumnDef, start: int) -> ast.Value:
    """Read a default in a form that both flavors accept; `start` is the offset of DEFAULT."""
    value_start, refs = cur.token.start, len(cur.refs)
    value = cur.value()
    if len(cur.refs) > refs:
        cur.lacks(ast.Flavor.MYSQL, start, ast.SEQUENCE_DEFAULTS)
    elif column.type.name.endswith(("TEXT", "BLOB")) and value.kind not in _BARE:
        for at, sign in ((value_start, "("), (cur.last_end, ")")):
            cur.foreign.append(ast.Edit(at, at, sign, ast.Flavor.MYSQL))
    elif value.kind is ast.ValueKind.NOW and column.type.name in _TIMES:
        return _decimals(cur, column, value, value_start)
    elif value.kind is ast.ValueKind.NOW:
        return cur.bare(value_start)
    return value


def _decimals(cur: Cursor, column: ast.ColumnDef, now: ast.Value, start: int) -> ast.Value:
    """Give the current time the column's decimals for MySQL; MariaDB may have fewer."""
    wanted = column.type.numbers[0] if column.type.numbers else 0
    if not 0 < int(now.text) < wanted:
        return _same_decimals(cur, column, now, start)
    cur.lacks(ast.Flavor.MYSQL, start, "fewer decimals", f"CURRENT_TIMESTAMP({wanted})")
    return now


def _same_decimals(cur: Cursor, column: ast.ColumnDef, now: ast.Value, start: int) -> ast.Value:
    wanted = str(column.type.numbers[0]) if column.type.numbers else "0"
    if now.text != wanted:
        text = "CURRENT_TIMESTAMP" + f"({wanted})" * (wanted != "0")
        cur.edits.append(ast.Edit(start, cur.last_end, text))
    return replace(now, text=wanted)


def _key_attribute(cur: Cursor, column: ast.ColumnDef) -> ast.ColumnDef | None:
    part = (ast.KeyPart(name=column.name),)
    if cur.take("PRIMARY", "KEY") or cur.take("PRIMARY") or cur.take("KEY"):
        return replace(column, keys=(*column.keys, ast.KeyDef(name=None, parts=part, primary=True)))
    start = cur.last_end
    if cur.take("UNIQUE"):
        cur.take("KEY")
        inline = ast.Edit(start, cur.last_end, "")
        key = ast.KeyDef(name=None, parts=part, unique=True, inline=inline)
        return replace(column, keys=(*column.keys, key))
    if cur.take("GENERATED", "ALWAYS", "AS") or cur.take("AS"):
        return replace(column, generated=cur.parenthesised())
    start = cur.token.start
    if column.generated and (kind := cur.take_any("STORED", "PERSISTENT", "VIRTUAL")):
        if kind == "PERSISTENT":
            cur.edits.append(ast.Edit(start, cur.last_end, "STORED"))
        return replace(column, stored=kind != "VIRTUAL")
    return None


_ENGINE_WISHES = (
    "COLUMN_FORMAT", "STORAGE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE",
)  # fmt: skip


def _quiet_attribute(cur: Cursor, column: ast.ColumnDef) -> ast.ColumnDef | None:
    start = cur.token.start
    if cur.dropped("VISIBLE") or cur.dropped("NOT", "SECONDARY"):
        return column
    if cur.take_any(*_ENGINE_WISHES):
        # Options of MySQL Cluster and other engines, which MariaDB does not know.
        cur.setting()
        cur.drop_text(start)
    elif column.type.name in GEOMETRIES and cur.take("SRID"):
        # MySQL's, and only a check: every value has its own. MariaDB cannot express it here.
        cur.integer()
        cur.drop_text(start)
    elif cur.is_word("CHECK") or cur.is_word("CONSTRAINT"):
        if cur.take("CONSTRAINT") and not cur.is_word("CHECK"):
            cur.name()
        unnamed = ast.Edit(start, cur.token.start, "", ast.Flavor.MARIADB)
        cur.expect("CHECK")
        expression = cur.parenthesised()
        if enforcement(cur):
            cur.lacks(ast.Flavor.MARIADB, start, "CHECK … NOT ENFORCED")
        elif _is_json_valid(expression, column.name):
            cur.lacks(ast.Flavor.MYSQL, start, "")
        else:  # MariaDB does not name a column's constraints.
            cur.foreign.append(unnamed)
    elif cur.take("REFERENCES"):
        # MySQL reads an inline REFERENCES and ignores it, MariaDB does not: omit it.
        column = replace(column, reference=reference(cur))
        cur.drop_text(start)
    elif not _compressed(cur) and not cur.take("INVISIBLE"):
        return None
    return column


def _is_json_valid(expression: str, name: str) -> bool:
    texts = [token.text.lower() for token in read(expression).tokens]
    return texts[:-1] == ["json_valid", "(", name.lower(), ")"]


def read_place(cur: Cursor, column: ast.ColumnDef) -> ast.ColumnDef:
    if cur.take("FIRST"):
        return replace(column, after="")
    if cur.take("AFTER"):
        return replace(column, after=cur.column_name())
    return column


_MARIADB_OPTIONS = (
    "PAGE_CHECKSUM", "TRANSACTIONAL", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "ENCRYPTED",
    "ENCRYPTION_KEY_ID", "IETF_QUOTES",
)  # fmt: skip
_MYSQL_OPTIONS = (
    "AUTOEXTEND_SIZE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "SECONDARY_ENGINE",
    "TABLESPACE", "NODEGROUP", "CONNECTION", "PASSWORD",
)  # fmt: skip
"""Options of a single server or engine: omitted."""
_WORD_OPTIONS = (
    *_MARIADB_OPTIONS, *_MYSQL_OPTIONS,
    "ENGINE", "AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHECKSUM", "PAGE_CHECKSUM", "COMPRESSION",
    "DELAY_KEY_WRITE", "ENCRYPTION", "ENCRYPTED", "INSERT_METHOD", "KEY_BLOCK_SIZE", "MAX_ROWS",
    "MIN_ROWS", "PACK_KEYS", "ROW_FORMAT", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
    "STATS_SAMPLE_PAGES", "TRANSACTIONAL", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL",
    "SHARD_ROW_ID_BITS", "PRE_SPLIT_REGIONS", "AUTO_ID_CACHE", "AUTO_RANDOM_BASE",
)  # fmt: skip
_TIDB_OPTIONS = _WORD_OPTIONS[-4:]


def read_option(cur: Cursor, options: ast.TableOptions) -> ast.TableOptions | None:
    if (charset := read_charset(cur, options.charset)) is not None:
        return replace(options, charset=charset, end=cur.last_end)
    start = cur.token.start
    if cur.take("COMMENT"):
        cur.take_sign("=")
        comment = cur.comment(TABLE_COMMENT_MAX)
        return replace(options, comment=comment, end=cur.last_end)
    if cur.take("DATA", "DIRECTORY") or cur.take("INDEX", "DIRECTORY"):
        # Paths of one server mean nothing on another.
        cur.take_sign("=")
        cur.string()
        cur.drop_text(start)
    elif cur.take("STORAGE"):
        if not cur.take_any("DISK", "MEMORY", "DEFAULT"):
            cur.fail("DISK, MEMORY or DEFAULT")
        cur.drop_text(start)
    elif cur.take("UNION"):
        cur.take_sign("=")
        cur.parenthesised()
        cur.drop_text(start)
    else:
        word = cur.take_any(*_WORD_OPTIONS)
        if cur.token.kind is Kind.QUOTED and cur.peek().text == "=":
            word = cur.next().text.upper()
        if not word:
            return None
        _option_value(cur, word, start)
    return replace(options, end=cur.last_end)


def _option_value(cur: Cursor, word: str, start: int) -> None:
    value = cur.setting()
    if value.kind not in (Kind.WORD, Kind.NUMBER, Kind.STRING, Kind.QUOTED):
        cur.fail(f"a value for {word}")
    if word == "ENGINE" and value.text.upper() in ("MERGE", "MRG_MYISAM"):
        cur.refuse("MERGE tables", "rows would come by two tables: use partitions or a view")
    if word == "TABLESPACE" and cur.take("STORAGE"):
        cur.next()
    if word in (*_TIDB_OPTIONS, *_MYSQL_OPTIONS):
        cur.drop_text(start)
    elif word in _MARIADB_OPTIONS or (word == "ENGINE" and value.text.upper() == "ARIA"):
        cur.lacks(ast.Flavor.MYSQL, start, f"the option {word}")
