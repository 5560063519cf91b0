"""Parses keys and constraints, in CREATE TABLE and in ALTER TABLE.

The columns, the prefixes and the uniqueness of a key are tracked. A foreign key is tracked as the
index it requires; a CHECK is read and passed on downstream.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.ddl.parse import versioning
from penstock.ddl.parse.cursor import Cursor
from penstock.ddl.syntax.statements import Edit, Flavor, KeyDef, KeyPart, Reference, left_out

_ACTIONS = ("SET", "NULL"), ("SET", "DEFAULT"), ("NO", "ACTION"), ("CASCADE",), ("RESTRICT",)


def at_key(cur: Cursor) -> bool:
    words = ("CONSTRAINT", "PRIMARY", "UNIQUE", "INDEX", "KEY", "FULLTEXT", "SPATIAL", "FOREIGN")
    return cur.token.upper in (*words, "CHECK")


def read_key(cur: Cursor) -> KeyDef:
    constraint, absent = None, False
    if cur.take("CONSTRAINT"):
        absent = cur.kept_if("IF", "NOT", "EXISTS")
        constraint = cur.name() if cur.is_name() else None
    if cur.take("CHECK"):
        cur.parenthesised()
        is_remark = enforcement(cur)
        found = KeyDef(name=constraint, parts=(), is_check=True, is_remark=is_remark)
        return replace(found, if_not_exists=absent)
    if cur.take("PRIMARY", "KEY"):
        absent = cur.if_not_exists()
        if cur.is_name() and not cur.is_word("USING"):
            cur.name()
        return _key_body(cur, KeyDef(name=None, parts=(), primary=True, if_not_exists=absent))
    if cur.take("FOREIGN", "KEY"):
        key = _foreign_key(cur, constraint)
        return replace(key, if_not_exists=absent or key.if_not_exists)
    kind_start = cur.token.start
    kind = cur.take_any("UNIQUE", "FULLTEXT", "SPATIAL")
    kind_end = cur.last_end
    if not cur.take_any("KEY", "INDEX"):
        if not kind:
            cur.fail("a key")
        kind_end = -1
    key = _named_key(cur, replace(key_of_kind(kind), name=constraint))
    if kind == "UNIQUE" and key.is_over_expression:
        without_uniqueness(cur, Edit(kind_start, kind_end, ""), kind_start)
    return key


def _named_key(cur: Cursor, key: KeyDef) -> KeyDef:
    key = replace(key, if_not_exists=cur.if_not_exists())
    if cur.is_name() and not (cur.is_word("USING") or cur.is_word("TYPE")):
        key = replace(key, name=cur.name())
    elif key.name is None:
        key = replace(key, name_at=cur.last_end)
    return _key_body(cur, key)


def without_uniqueness(cur: Cursor, unique: Edit, start: int) -> None:
    """Replace a UNIQUE key over expressions by a plain key: rows cannot be ordered for it."""
    if unique.end == -1:
        unique = Edit(start, start + len("UNIQUE"), "KEY")
    what = "UNIQUE over an expression"
    cur.foreign.append(replace(unique, flavor=Flavor.MYSQL, what=what))


def key_of_kind(kind: str) -> KeyDef:
    """Return a key without columns; `kind` is UNIQUE, FULLTEXT, SPATIAL or empty."""
    return KeyDef(
        name=None,
        parts=(),
        unique=kind == "UNIQUE",
        fulltext=kind == "FULLTEXT",
        spatial=kind == "SPATIAL",
    )


def _foreign_key(cur: Cursor, constraint: str | None) -> KeyDef:
    if_not_exists = cur.kept_if("IF", "NOT", "EXISTS")
    name = cur.name() if cur.is_name() else None
    parts = tuple(KeyPart(name=n) for n in cur.names())
    cur.expect("REFERENCES")
    refers = reference(cur)
    return KeyDef(
        name=constraint or name,
        parts=parts,
        implied=True,
        at=cur.last_end,
        if_not_exists=if_not_exists,
        reference=refers,
    )


def _key_body(cur: Cursor, key: KeyDef) -> KeyDef:
    index_options(cur)
    first = cur.at
    parts = key_parts(cur)
    if (key.unique or key.primary) and cur.period:
        versioning.check_unique(cur, first)
    index_options(cur)
    return replace(key, parts=parts)


def key_parts(cur: Cursor) -> tuple[KeyPart, ...]:
    cur.expect_sign("(")
    parts: list[KeyPart] = []
    places: list[tuple[int, int, bool]] = []
    while not parts or cur.take_sign(","):
        start = cur.token.start
        parts.append(_key_part(cur))
        places.append((start, cur.last_end, parts[-1].name.lower() not in cur.period))
    cur.expect_sign(")")
    kept = tuple(part for part, (*_, stays) in zip(parts, places, strict=True) if stays)
    if kept:
        cur.edits += left_out(places)
    return kept or tuple(parts)


def _key_part(cur: Cursor) -> KeyPart:
    if cur.is_sign("("):
        cur.parenthesised()
        cur.take_any("ASC", "DESC")
        return KeyPart(name="", is_expression=True)
    start = cur.token.start
    name, length = cur.name(), -1
    if cur.take("WITHOUT", "OVERLAPS"):
        return KeyPart(name=name, period_at=(start, cur.last_end))
    if cur.take_sign("("):
        length = cur.integer()
        cur.expect_sign(")")
        if length == 0:
            cur.refuse("a key prefix of length 0", "give the prefix a length")
    cur.take_any("ASC", "DESC")
    return KeyPart(name=name, length=length)


def index_options(cur: Cursor) -> None:
    """Skip index options, none of which affect a row image."""
    while True:
        start = cur.token.start
        if cur.take_any("USING", "TYPE"):
            if not cur.take_any("BTREE", "HASH", "RTREE"):
                cur.fail("BTREE or HASH")
        elif cur.take("KEY_BLOCK_SIZE"):
            cur.take_sign("=")
            cur.integer()
        elif cur.take("COMMENT"):
            cur.comment()
        elif cur.take("WITH", "PARSER"):
            # A plugin of one server; rows are the same without it.
            cur.name()
            cur.drop_text(start)
        elif visibility(cur):
            continue
        elif cur.take_any("ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "CLUSTERING"):
            cur.setting()
            cur.drop_text(start)
        else:
            return


def visibility(cur: Cursor) -> bool:
    """Move past whether an optimizer may use an index, in either server's words."""
    start = cur.token.start
    is_mariadbs = cur.is_word("NOT") or cur.is_word("IGNORED")
    if cur.take("NOT", "IGNORED") or cur.take("VISIBLE"):
        text, of_mariadb = "VISIBLE", "NOT IGNORED"
    elif cur.take_any("IGNORED", "INVISIBLE"):
        text, of_mariadb = "INVISIBLE", "IGNORED"
    else:
        return False
    cur.lacks(Flavor.MARIADB, start, "", of_mariadb)
    if is_mariadbs:
        cur.edits.append(Edit(start, cur.last_end, text))
        cur.lacks(Flavor.MYSQL, start, "", text)
    return True


def enforcement(cur: Cursor) -> bool:
    """Skip ENFORCED after a CHECK; return whether it is NOT ENFORCED, merely a remark."""
    if cur.take("NOT", "ENFORCED"):
        return True
    cur.dropped("ENFORCED")
    return False


def reference(cur: Cursor) -> Reference:
    table = cur.table_ref()
    columns = tuple(cur.names()) if cur.is_sign("(") else ()
    if cur.take("MATCH"):
        cur.next()
    actions: list[str] = []
    while cur.take("ON"):
        event = cur.take_any("DELETE", "UPDATE")
        if not event:
            cur.fail("DELETE or UPDATE")
        action = next((words for words in _ACTIONS if cur.take(*words)), None)
        if action is None:
            cur.fail("an action")
        actions.append(" ".join(("ON", event, *action)))
    return Reference(table, columns, tuple(actions))
