"""Parses the operations of ALTER TABLE.

Followed: every operation on columns, keys, defaults, names, comments, character sets and partitions
(`partition_clauses`). Passed on but not tracked: foreign keys, CHECKs, storage options,
ENABLE/DISABLE KEYS, FORCE, ORDER BY. Refused: tablespace operations, which add or remove rows
without a row change in the stream.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.ddl.parse import versioning
from penstock.ddl.parse.column_clauses import (
    read_column,
    read_option,
    read_place,
    take_charset,
    with_keys_at,
)
from penstock.ddl.parse.cursor import Cursor
from penstock.ddl.parse.key_clauses import at_key, read_key, visibility
from penstock.ddl.parse.partition_clauses import (
    is_partition_operation,
    partition_by,
    partition_operation,
)
from penstock.ddl.syntax import statements as ast
from penstock.ddl.tables.default_values import NATIVE_ZEROS


def alter_table(cur: Cursor) -> ast.AlterTable:
    absent = cur.if_exists()
    ref = cur.table_ref()
    cur.waits()
    cur.period = versioning.named_period(cur)
    parts: list[ast.Part] = []
    while not cur.at_end():
        if cur.is_word("PARTITION", "BY"):
            start = cur.token.start
            is_by_time = versioning.take_partitions(cur, "REMOVE PARTITIONING")
            operation = ast.PartitionBy(()) if is_by_time else partition_by(cur)
            parts.append(ast.Part(operation, start, cur.last_end))
            break
        parts += _grouped(cur) or [_part(cur)]
        if not cur.take_sign(","):
            # Table options and partitioning clauses may follow without commas.
            last = cur.is_word("PARTITION", "BY") or cur.is_word("REMOVE", "PARTITIONING")
            if not last and not isinstance(parts[-1].operation, ast.TableOptions):
                break
        elif cur.at_end():
            cur.fail("an operation")
    if len(parts) > 1 and any(isinstance(p.operation, ast.Partitions) for p in parts):
        cur.refuse("partition operations among others", "use two statements, as MySQL wants it")
    return ast.AlterTable(ref=ref, parts=tuple(parts), if_exists=absent)


def _part(cur: Cursor) -> ast.Part:
    start, edits, foreign = cur.token.start, len(cur.edits), len(cur.foreign)
    operation = versioning.take_operation(cur) or _period(cur) or _operation(cur)
    is_dropped = isinstance(operation, ast.Versioning)
    if versioning.is_of_period(cur, operation):
        operation, is_dropped = ast.Untracked(tuning=True), True
    if is_dropped:
        del cur.edits[edits:], cur.foreign[foreign:]
        cur.drop_text(start)
    return _placed(operation, start, cur.last_end)


def _placed(operation: ast.Operation, start: int, end: int) -> ast.Part:
    """Return a part; the keys of its columns would be written after it."""
    match operation:
        case ast.AddColumns(columns):
            operation = ast.AddColumns(tuple(with_keys_at(each, end) for each in columns))
        case ast.ChangeColumn(column=column):
            operation = replace(operation, column=with_keys_at(column, end))
    return ast.Part(operation, start, end)


def _grouped(cur: Cursor) -> list[ast.Part]:
    """Read ADD (column, key, …) as separate operations, and write it so; else nothing.

    Columns alone stay one operation, unless some of them may exist already.
    """
    begun, opened = cur.at, cur.token.start
    _ = cur.take("ADD") and cur.take("COLUMN")
    absent = cur.at > begun and cur.take("IF", "NOT", "EXISTS")
    if cur.at == begun or not cur.take_sign("(") or not (absent or _has_key(cur)):
        cur.at = begun
        return []
    cur.edits.append(ast.Edit(opened, cur.last_end, "ADD "))
    parts: list[ast.Part] = []
    while not parts or cur.take_sign(","):
        start = cur.token.start
        if parts:
            cur.edits.append(ast.Edit(start, start, "ADD "))
        if at_key(cur):
            operation = _added_key(cur, start)
        else:
            operation = ast.AddColumns((replace(read_column(cur), if_not_exists=absent),))
        if versioning.is_of_period(cur, operation):
            cur.refuse("ADD (…) with ROW START or ROW END and keys", "add them one by one")
        parts.append(_placed(operation, start if parts else opened, cur.last_end))
    closed = cur.token.start
    cur.expect_sign(")")
    cur.edits.append(ast.Edit(closed, cur.last_end, ""))
    return parts


def _has_key(cur: Cursor) -> bool:
    begun, depth, found = cur.at, 0, at_key(cur)
    while depth >= 0 and not cur.at_end() and not found:
        depth += cur.is_sign("(") - cur.is_sign(")")
        is_next = depth == 0 and cur.is_sign(",")
        cur.next()
        found = is_next and at_key(cur)
    cur.at = begun
    return found


def _period(cur: Cursor) -> ast.Operation | None:
    begun, start = cur.at, cur.token.start
    verb = cur.take_any("ADD", "DROP")
    if not verb or not cur.take("PERIOD"):
        cur.at = begun
        return None
    _ = cur.take("IF", "NOT", "EXISTS") or cur.take("IF", "EXISTS")
    if not cur.take("FOR"):
        cur.at = begun
        return None
    name = cur.name()
    period = (name, *cur.names()) if verb == "ADD" else ()
    cur.lacks(ast.Flavor.MYSQL, start, "PERIOD FOR")
    return ast.OwnPeriod(period)


def _added_key(cur: Cursor, start: int) -> ast.Operation:
    key = read_key(cur)
    if key.is_over_expression or key.is_remark:
        what = "CHECK … NOT ENFORCED" if key.is_remark else "indexes over expressions"
        cur.lacks(ast.Flavor.MARIADB, start, what)
    if not key.is_check:
        return key
    return ast.Untracked(present=(key.name or "") if key.if_not_exists else "")


def _operation(cur: Cursor) -> ast.Operation:
    start = cur.token.start
    if cur.take_any("SECONDARY_LOAD", "SECONDARY_UNLOAD"):
        # They are for a second engine of one server; rows stay in the first.
        if cur.take("PARTITION"):
            cur.names()
        cur.drop_text(start)
        return ast.Untracked(tuning=True)
    if is_partition_operation(cur):
        return partition_operation(cur)
    reader = _READERS.get(cur.token.upper)
    if reader is not None:
        cur.next()
        return reader(cur)
    return _quiet(cur) or _options(cur)


def _add(cur: Cursor) -> ast.Operation:
    start = cur.source.tokens[cur.at - 1].start
    if at_key(cur):
        return _added_key(cur, start)
    cur.take("COLUMN")
    absent = cur.if_not_exists()
    if not cur.is_sign("("):
        column = read_place(cur, _new_column(cur))
        return ast.AddColumns((replace(column, if_not_exists=absent),))
    return ast.AddColumns(cur.in_parentheses(lambda: _new_column(cur)))


def _new_column(cur: Cursor) -> ast.ColumnDef:
    """Read an added column; for MySQL, a default that existing rows need is written out."""
    column = read_column(cur)
    zero = NATIVE_ZEROS.get(column.type.name)
    if zero and column.not_null and column.default is None and not column.generated:
        cur.lacks(ast.Flavor.MYSQL, cur.last_end, "", f" DEFAULT '{zero}'")
    return column


def _drop(cur: Cursor) -> ast.Operation:
    start = cur.token.start
    if cur.take("CONSTRAINT", "PRIMARY", "KEY"):  # MariaDB's.
        cur.edits.append(ast.Edit(start, cur.last_end, "PRIMARY KEY"))
        return ast.DropPrimary()
    if cur.take("PRIMARY", "KEY"):
        return ast.DropPrimary()
    if cur.take("FOREIGN", "KEY"):
        absent = cur.kept_if("IF", "EXISTS")
        name = cur.name()
        return ast.Untracked(absent=name if absent else "")
    if cur.take("CHECK"):
        # MariaDB and MySQL agree on DROP CONSTRAINT only.
        cur.edits.append(ast.Edit(start, cur.last_end, "CONSTRAINT"))
        absent = _constraint_if_exists(cur)
        name = cur.name()
        return ast.Untracked(absent=name if absent else "")
    if cur.take("CONSTRAINT"):
        absent = _constraint_if_exists(cur)
        return ast.DropKey(cur.name(), if_exists=absent, lenient=True)
    if cur.take_any("INDEX", "KEY"):
        absent = cur.if_exists()
        name = cur.name()
        return (
            ast.DropPrimary() if name.upper() == "PRIMARY" else ast.DropKey(name, if_exists=absent)
        )
    cur.take("COLUMN")
    absent = cur.if_exists()
    name = cur.column_name()
    _ = cur.dropped("RESTRICT") or cur.dropped("CASCADE")
    return ast.DropColumn(name, if_exists=absent)


def _constraint_if_exists(cur: Cursor) -> bool:
    """Skip IF EXISTS before a constraint that MariaDB may lack: see `foreign`."""
    if cur.kept_if("IF", "EXISTS"):
        return True
    at = cur.token.start
    cur.foreign.append(ast.Edit(at, at, "IF EXISTS ", ast.Flavor.MARIADB))
    return False


def _modify(cur: Cursor) -> ast.Operation:
    cur.take("COLUMN")
    absent = cur.if_exists()
    column = read_place(cur, read_column(cur))
    return ast.ChangeColumn(column.name, column, if_exists=absent)


def _change(cur: Cursor) -> ast.Operation:
    cur.take("COLUMN")
    absent = cur.if_exists()
    old = cur.column_name()
    return ast.ChangeColumn(old, read_place(cur, read_column(cur)), if_exists=absent)


def _rename(cur: Cursor) -> ast.Operation:
    if cur.take("COLUMN"):
        absent = cur.if_exists()
        old = cur.column_name()
        cur.expect("TO")
        return ast.RenameColumn(old, cur.column_name(), if_exists=absent)
    if cur.take_any("INDEX", "KEY"):
        absent = cur.if_exists()
        old = cur.name()
        cur.expect("TO")
        return ast.RenameKey(old, cur.name(), if_exists=absent)
    if not cur.take_any("TO", "AS"):
        cur.take_sign("=")
    return ast.RenameTo(cur.table_ref())


def _alter(cur: Cursor) -> ast.Operation:
    start, word = cur.source.tokens[cur.at - 1].start, cur.token.start
    if cur.take_any("INDEX", "KEY"):
        if cur.peek(-1).upper == "KEY":  # Only a MariaDB reads that here.
            cur.lacks(ast.Flavor.MYSQL, word, "", "INDEX")
        absent = cur.if_exists()
        name = cur.name()
        if not visibility(cur):
            cur.fail("VISIBLE or INVISIBLE")
        return ast.AlterKey(name, if_exists=absent)
    if cur.take_any("CHECK", "CONSTRAINT"):
        cur.name()
        cur.take("NOT")
        cur.expect("ENFORCED")
        cur.lacks(ast.Flavor.MARIADB, start, "ALTER CHECK … ENFORCED")
        return ast.Untracked()
    cur.take("COLUMN")
    absent = cur.if_exists()
    name = cur.column_name()
    if cur.take("DROP", "DEFAULT"):
        return ast.SetDefault(name, None, if_exists=absent)
    cur.expect("SET")
    if cur.take_any("VISIBLE", "INVISIBLE"):
        # The columns of SELECT *: no row depends on it.
        cur.lacks(ast.Flavor.MARIADB, start, "ALTER COLUMN … SET VISIBLE")
        return ast.Untracked()
    cur.expect("DEFAULT")
    start = cur.token.start
    value = cur.value()
    return ast.SetDefault(name, value, if_exists=absent, at=(start, cur.last_end))


def _convert(cur: Cursor) -> ast.Operation:
    cur.expect("TO")
    if not take_charset(cur):
        cur.fail("CHARACTER SET")
    start = cur.token.start
    if cur.take("DEFAULT"):
        charset = ast.CharsetClause(is_default=True, end=cur.last_end)
    else:
        charset = ast.CharsetClause(charset=cur.next().text.lower(), end=cur.last_end)
    if cur.take("COLLATE"):
        cur.take_sign("=")
        collate = None if cur.take("DEFAULT") else cur.next().text.lower()
        is_default = collate is None
        charset = replace(charset, collate=collate, collate_is_default=is_default, end=cur.last_end)
    return ast.Convert(charset, start)


def _options(cur: Cursor) -> ast.Operation:
    first = read_option(cur, ast.TableOptions())
    if first is None:
        cur.fail("an operation of ALTER TABLE")
    options = first
    while not cur.at_end() and (more := read_option(cur, options)) is not None:
        options = more
    return options


_READERS = {
    "ADD": _add, "DROP": _drop, "MODIFY": _modify, "CHANGE": _change, "RENAME": _rename,
    "ALTER": _alter, "CONVERT": _convert,
}  # fmt: skip


def _quiet(cur: Cursor) -> ast.Operation | None:
    """Read options of the execution, or operations that change nothing tracked."""
    if _tuning(cur):
        return ast.Untracked(tuning=True)
    if cur.take("FORCE") or cur.take("ENABLE", "KEYS") or cur.take("DISABLE", "KEYS"):
        return ast.Untracked()
    if cur.take("ORDER", "BY"):
        while not cur.at_end():
            cur.column_name()
            cur.take_any("ASC", "DESC")
            if not cur.take_sign(","):
                break
        return ast.Untracked()
    start = cur.token.start
    if cur.take("WITH", "VALIDATION") or cur.take("WITHOUT", "VALIDATION"):
        cur.drop_from_mariadb(start)
        return ast.Untracked(tuning=True)
    if cur.is_word("DISCARD") or cur.is_word("IMPORT"):
        cur.refuse("tablespace operations", "rows would come or go without a binlog")
    return None


def _tuning(cur: Cursor) -> bool:
    """Skip ALGORITHM or LOCK and omit it: a downstream may not support that method."""
    start = cur.token.start
    if not cur.take_any("ALGORITHM", "LOCK"):
        return False
    cur.setting()
    cur.drop_text(start)
    return True


def tuning_options(cur: Cursor) -> None:
    while _tuning(cur):
        pass
