"""Filters by kind of change: which events on which tables are replicated, and a DDL's events.

    no rule matches the table            replicated
    a rule with action Ignore matches    not replicated
    a rule with action Error matches     refused: the operator wants to know
    a rule with action Do                does not match: not replicated

A rule's `events` and `sql-pattern` are checked one after the other, each only if it is given; the
latter is for DDL. Rules are tried in their order, and the first that ignores decides. A rule with
an empty `table-pattern` is for the schema and everything in it, others only for tables.

`none`, `none dml` and `none ddl` in a rule cancel `all`, `all dml` and `all ddl`; an event that is
named explicitly counts nevertheless.

A DDL may be several events: `ALTER TABLE … DROP COLUMN` is `alter table` and `drop column`. A DDL
with several operations, of which a rule matches only some, cannot be split: that is
`Decision.MIXED`, which the caller must refuse. Most operations of ALTER TABLE show in the table
before and after. These are the more reliable source, because the statement's wording does not
matter. Operations without a trace there (partitions, foreign keys, storage engines) are looked for
among the statement's words outside strings and comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.codes import Code
from penstock.ddl import SchemaChange
from penstock.ddl.syntax.lexer import Kind, read
from penstock.errors import NeedsOperator
from penstock.filters.settings import EventRule
from penstock.filters.table_lists import Matches, regex, wildcard
from penstock.schema.model import ColumnFlag, ColumnInfo, DdlType, MysqlType, TableInfo

Names = frozenset[str]

_BY_TYPE: dict[int, str] = {
    DdlType.CREATE_SCHEMA: "create database",
    DdlType.DROP_SCHEMA: "drop database",
    DdlType.CREATE_TABLE: "create table",
    60: "create table",
    DdlType.DROP_TABLE: "drop table",
    DdlType.TRUNCATE_TABLE: "truncate table",
    DdlType.RENAME_TABLE: "rename table",
    DdlType.RENAME_TABLES: "rename table",
    DdlType.CREATE_VIEW: "create view",
    DdlType.DROP_VIEW: "drop view",
    25: "recover table",
}
_BY_WORDS = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\bADD PARTITION\b", "add table partition"),
        (r"\bDROP PARTITION\b", "drop table partition"),
        (r"\bTRUNCATE PARTITION\b", "truncate table partition"),
        (r"\bREORGANIZE PARTITION\b", "reorganize table partition"),
        (r"\bREBUILD PARTITION\b", "rebuild table partition"),
        (r"\bCOALESCE PARTITION\b", "coalesce table partition"),
        (r"\bSPLIT\b.*\bPARTITION\b", "split table partition"),
        (r"\bEXCHANGE PARTITION\b", "exchange table partition"),
        (r"\bREMOVE PARTITIONING\b", "remove table partitioning"),
        (r"\bPARTITION BY\b", "alter table partitioning"),
        (r"\bADD (CONSTRAINT (\S+ )?)?FOREIGN KEY\b", "add foreign key"),
        (r"\bDROP FOREIGN KEY\b", "drop foreign key"),
        (r"\b(ADD|DROP|ALTER) (CONSTRAINT (\S+ )?)?CHECK\b", "modify constraint"),
        (r"\b(DROP|ALTER) CONSTRAINT\b", "modify constraint"),
        (r"\bENGINE =", "modify storage engine"),
        (r"\bAUTO_INCREMENT =", "rebase auto id"),
        (r"\bALTER INDEX \S+ (IN)?VISIBLE\b", "alter index visibility"),
    )
]
_INT_WIDTHS = {
    MysqlType.TINY: 1,
    MysqlType.SHORT: 2,
    MysqlType.INT24: 3,
    MysqlType.LONG: 4,
    MysqlType.LONGLONG: 8,
}


def operations(change: SchemaChange) -> list[Names]:
    """Return the operations of a DDL, at least one, each with all its names."""
    job = change.job
    if job.type == DdlType.MODIFY_SCHEMA_CHARSET:
        return [frozenset({"alter database", "modify schema charset and collate"})]
    words = ddl_words(job.query)
    kinds = ("INDEX", "UNIQUE", "FULLTEXT", "SPATIAL")
    if words.startswith(tuple(f"CREATE {kind}" for kind in kinds)):
        return [frozenset({"create index"})]
    if words.startswith("DROP INDEX"):
        return [frozenset({"drop index"})]
    if job.type in _BY_TYPE and not words.startswith("ALTER TABLE"):
        return [frozenset({_BY_TYPE[job.type]})]
    found = list(_kinds(change, words))
    if not found:
        return [frozenset({"alter table"})]
    several = {"multi schema change"} if len(found) > 1 else set()
    return [frozenset({"alter table", *names, *several}) for names in found]


def ddl_words(query: str) -> str:
    """Return a statement's words in capitals and signs, space-separated; `_` for the rest."""
    try:
        tokens = read(query).tokens
    except NeedsOperator:
        return ""
    shown = []
    for token in tokens:
        if token.kind is Kind.WORD:
            shown.append(token.text.upper())
        elif token.kind is not Kind.END:
            shown.append(token.text if token.kind is Kind.SIGN else "_")
    return " ".join(shown)


def _kinds(change: SchemaChange, words: str) -> Iterator[set[str]]:
    for _, before, after in change.altered:
        yield from _differences(before, after)
    for _, before, _, after in change.renamed:
        yield {"rename table"}
        yield from _differences(before, after)
    for pattern, name in _BY_WORDS:
        if pattern.search(words):
            yield {name}


def _differences(before: TableInfo, after: TableInfo) -> Iterator[set[str]]:
    old, new = {c.id: c for c in before.columns}, {c.id: c for c in after.columns}
    yield from ({"add column"} for i in new if i not in old)
    yield from ({"drop column"} for i in old if i not in new)
    for i, column in new.items():
        names = _column_change(old[i], column) if i in old else set()
        if names:
            yield names
    if [i for i in old if i in new] != [i for i in new if i in old]:
        yield {"modify columns order"}
    yield from _index_differences(before, after)
    if (before.charset, before.collate) != (after.charset, after.collate):
        yield {"modify table charset and collate"}
    if before.comment != after.comment:
        yield {"modify table comment"}


def _column_change(old: ColumnInfo, new: ColumnInfo) -> set[str]:
    """Return the events of a column's change, a single operation despite several names."""
    names: set[str] = set()
    if old.name != new.name:
        names.add("rename column")
    unsigned, auto = ColumnFlag.UNSIGNED, ColumnFlag.AUTO_INCREMENT
    kinds = [
        (c.tp, c.flen, c.decimal, c.elems, c.flag & unsigned, c.is_not_null) for c in (old, new)
    ]
    if kinds[0] != kinds[1]:
        names.add("modify column")
        if _is_narrower(old, new):
            names.add("value range decrease")
        if 0 <= new.decimal < old.decimal:
            names.add("precision decrease")
    if (old.default, old.default_is_expr) != (new.default, new.default_is_expr):
        names |= {"modify default value", "set default value"}
    if old.charset != new.charset:
        names.add("modify charset")
    if old.collate != new.collate:
        names.add("modify collation")
    if auto in old.flag and auto not in new.flag:
        names.add("remove auto increment")
    return names


def _is_narrower(old: ColumnInfo, new: ColumnInfo) -> bool:
    if old.tp in _INT_WIDTHS and new.tp in _INT_WIDTHS:
        return old.is_unsigned != new.is_unsigned or _INT_WIDTHS[new.tp] < _INT_WIDTHS[old.tp]
    if old.tp is not new.tp or old.is_unsigned != new.is_unsigned:
        return True
    if old.tp is MysqlType.NEWDECIMAL:
        return new.flen - new.decimal < old.flen - old.decimal
    return 0 <= new.flen < old.flen or new.elems[: len(old.elems)] != old.elems


def _index_differences(before: TableInfo, after: TableInfo) -> Iterator[set[str]]:
    if before.primary_key is None and after.primary_key is not None:
        yield {"add primary key"}
    if before.primary_key is not None and after.primary_key is None:
        yield {"drop primary key"}
    old = {i.id: i for i in before.indexes if not i.primary}
    new = {i.id: i for i in after.indexes if not i.primary}
    yield from ({"create index"} for i in new if i not in old)
    for i, index in old.items():
        if i not in new:
            yield {"drop unique key", "drop index"} if index.unique else {"drop index"}
    for i in old.keys() & new.keys():
        if old[i].name != new[i].name:
            yield {"rename index"}


DML = frozenset({"insert", "update", "delete"})
INCOMPATIBLE = frozenset(
    {
        "value range decrease", "precision decrease", "modify column", "rename column",
        "rename index", "drop column", "drop primary key", "drop unique key",
        "modify default value", "modify constraint", "modify columns order", "modify charset",
        "modify collation", "remove auto increment", "modify storage engine",
        "reorganize table partition", "rebuild table partition", "coalesce table partition",
        "split table partition", "exchange table partition",
    }
)  # fmt: skip
DDL = INCOMPATIBLE | frozenset(
    {
        "create database", "drop database", "alter database", "create table", "drop table",
        "truncate table", "rename table", "create index", "drop index", "create view",
        "drop view", "alter table", "add table partition", "drop table partition",
        "truncate table partition", "add foreign key", "drop foreign key",
        "modify schema charset and collate", "modify table charset and collate",
        "modify table comment", "recover table", "alter table partitioning",
        "remove table partitioning", "add column", "set default value", "rebase auto id",
        "add primary key", "alter index visibility", "alter ttl info", "alter ttl remove",
        "multi schema change",
    }
)  # fmt: skip
_ALIASES = {f"{verb} schema": f"{verb} database" for verb in ("create", "drop", "alter")}
_GROUPS = {
    "all": DML | DDL,
    "all dml": DML,
    "all ddl": DDL,
    "incompatible ddl changes": INCOMPATIBLE,
}
_NONE = {"none": DML | DDL, "none dml": DML, "none ddl": DDL}


class Decision(Enum):
    """The decision of a rule, or of all rules, about a change."""

    DO = "Do"
    IGNORE = "Ignore"
    ERROR = "Error"
    MIXED = "some of it"


@dataclass(frozen=True, slots=True)
class _Rule:
    schema: Matches
    table: Matches | None
    events: Names | None
    sql: re.Pattern[str] | None
    action: Decision


class EventFilter:
    """All event rules, compiled."""

    def __init__(self, rules: Sequence[EventRule], *, case_sensitive: bool = False) -> None:
        """Compile; raise `NeedsOperator` for an invalid or duplicate rule."""
        seen: dict[tuple[str, str], int] = {}
        self._rules = []
        for number, rule in enumerate(rules, 1):
            place = (rule.schema_pattern, rule.table_pattern)
            key = place if case_sensitive else (place[0].lower(), place[1].lower())
            if key in seen:
                raise NeedsOperator(
                    f"event rules {seen[key]} and {number} have the same patterns {place}",
                    "make one rule of them",
                    Code.FILTER_RULE,
                )
            seen[key] = number
            self._rules.append(_compiled(rule, number, case_sensitive))

    def decision(
        self, schema: str, table: str, operations: Sequence[Names], sql: str = ""
    ) -> Decision:
        """Return the decision about a change.

        `operations` are those of a DDL, each under all its names, or one event of a row; `sql` is
        a DDL's text. An empty `table` stands for a statement about the schema itself.
        """
        for rule in self._rules:
            if not rule.schema(schema):
                continue
            if rule.table is not None and not (table and rule.table(table)):
                continue
            decision = _applied(rule, operations, sql)
            if decision is not Decision.DO:
                return decision
        return Decision.DO


def _applied(rule: _Rule, operations: Sequence[Names], sql: str) -> Decision:
    if rule.events is not None and operations:
        hits = sum(not rule.events.isdisjoint(names) for names in operations)
        if hits and rule.action is Decision.ERROR:
            return Decision.ERROR
        if 0 < hits < len(operations):
            return Decision.MIXED
        if (hits > 0) is (rule.action is Decision.IGNORE) and rule.action is not Decision.ERROR:
            return Decision.IGNORE
    if rule.sql is not None and sql:
        hit = rule.sql.search(sql) is not None
        if hit and rule.action is Decision.ERROR:
            return Decision.ERROR
        if hit is (rule.action is Decision.IGNORE) and rule.action is not Decision.ERROR:
            return Decision.IGNORE
    return Decision.DO


def events_named(names: Iterable[str]) -> Names:
    """Return the events named in a rule's `events`; raise `NeedsOperator` for a typo."""
    named: set[str] = set()
    grouped: set[str] = set()
    taken: set[str] = set()
    for written in names:
        name = _ALIASES.get(written.lower().strip(), written.lower().strip())
        if name in _GROUPS:
            grouped |= _GROUPS[name]
        elif name in _NONE:
            taken |= _NONE[name]
        elif name in DML | DDL:
            named.add(name)
        else:
            raise _unknown(written)
    return frozenset((grouped - taken) | named)


def _unknown(written: str) -> NeedsOperator:
    # Imported here, because only a mistake needs it.
    from difflib import get_close_matches

    known = [*DML, *DDL, *_GROUPS, *_NONE]
    near = get_close_matches(written.lower(), known, 1)
    hint = f"did you mean {near[0]!r}?" if near else "use insert, update, delete, all ddl, …"
    return NeedsOperator(f"unknown event {written!r} in a filter rule", hint, Code.FILTER_RULE)


def _compiled(rule: EventRule, number: int, case_sensitive: bool) -> _Rule:
    if not rule.schema_pattern:
        raise NeedsOperator(
            f"event rule {number} has no schema-pattern", "use * for every schema", Code.FILTER_RULE
        )
    actions = {each.value.lower(): each for each in Decision if each is not Decision.MIXED}
    action = actions.get(rule.action.lower())
    if action is None:
        raise NeedsOperator(
            f"event rule {number} has the action {rule.action!r}",
            "use Do, Ignore or Error",
            Code.FILTER_RULE,
        )
    if not rule.events and not rule.sql_pattern:
        raise NeedsOperator(
            f"event rule {number} has neither events nor a sql-pattern",
            "it would do nothing",
            Code.FILTER_RULE,
        )
    patterns = [regex(each, case_sensitive=False).pattern for each in rule.sql_pattern]
    joined = "|".join(f"(?:{each})" for each in patterns)
    table = rule.table_pattern
    return _Rule(
        schema=wildcard(rule.schema_pattern, case_sensitive=case_sensitive),
        table=wildcard(table, case_sensitive=case_sensitive) if table else None,
        events=events_named(rule.events) if rule.events else None,
        sql=regex(joined, case_sensitive=False) if joined else None,
        action=action,
    )
