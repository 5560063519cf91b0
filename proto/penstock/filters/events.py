"""Rules by kind of change: which events on which tables are replicated.

    no rule matches the table          replicated
    a rule that says Ignore matches    not replicated
    a rule that says Error matches     refused: the operator wants to know
    a rule that says Do                does not match: not replicated

A rule's `events` and `sql-pattern` are looked at one after the other, each only if it is given; the
latter is for DDL. Rules are tried in their order, and the first that ignores decides. A rule with
an empty `table-pattern` is for the schema and everything in it, others only for tables.

`none`, `none dml` and `none ddl` in a rule take away what `all`, `all dml` and `all ddl` say; an
event that is named by itself counts nevertheless.

A DDL may be several events at once: `ALTER TABLE … DROP COLUMN` is `alter table` and `drop column`.
One that does several things, of which a rule takes some and not others, cannot be split: that is
`Decision.MIXED`, for the caller to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.errors import NeedsOperator
from penstock.filters.patterns import Matches, regex, wildcard
from penstock.filters.settings import EventRule

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

Names = frozenset[str]


class Decision(Enum):
    """What a rule or all of them say about a change."""

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
        """Compile; raise `NeedsOperator` for a rule that cannot be or that stands twice."""
        seen: dict[tuple[str, str], int] = {}
        self._rules = []
        for number, rule in enumerate(rules, 1):
            place = (rule.schema_pattern, rule.table_pattern)
            key = place if case_sensitive else (place[0].lower(), place[1].lower())
            if key in seen:
                raise NeedsOperator(
                    f"event rules {seen[key]} and {number} have the same patterns {place}",
                    hint="make one rule of them",
                )
            seen[key] = number
            self._rules.append(_compiled(rule, number, case_sensitive))

    def of_row(self, schema: str, table: str, event: str) -> Decision:
        """Return what becomes of an insert, update or delete."""
        assert event in DML, event
        return self._decided(schema, table, (frozenset({event}),), "")

    def of_ddl(self, schema: str, table: str, operations: Sequence[Names], sql: str) -> Decision:
        """Return what becomes of a DDL: its operations, each under all its names, and its text.

        An empty `table` stands for a statement about the schema itself.
        """
        return self._decided(schema, table, operations, sql)

    def _decided(self, schema: str, table: str, operations: Sequence[Names], sql: str) -> Decision:
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
    """Return the events that a rule's `events` stand for; raise `NeedsOperator` for a typo."""
    told: set[str] = set()
    grouped: set[str] = set()
    taken: set[str] = set()
    for written in names:
        name = _ALIASES.get(written.lower().strip(), written.lower().strip())
        if name in _GROUPS:
            grouped |= _GROUPS[name]
        elif name in _NONE:
            taken |= _NONE[name]
        elif name in DML | DDL:
            told.add(name)
        else:
            raise _unknown(written)
    return frozenset((grouped - taken) | told)


def _unknown(written: str) -> NeedsOperator:
    # Imported here, because only a mistake needs it.
    from difflib import get_close_matches

    known = [*DML, *DDL, *_GROUPS, *_NONE]
    near = get_close_matches(written.lower(), known, 1)
    hint = f"did you mean {near[0]!r}?" if near else "use insert, update, delete, all ddl, …"
    return NeedsOperator(f"unknown event {written!r} in a filter rule", hint=hint)


def _compiled(rule: EventRule, number: int, case_sensitive: bool) -> _Rule:
    if not rule.schema_pattern:
        raise NeedsOperator(
            f"event rule {number} has no schema-pattern", hint="use * for every schema"
        )
    actions = {each.value.lower(): each for each in Decision if each is not Decision.MIXED}
    action = actions.get(rule.action.lower())
    if action is None:
        raise NeedsOperator(
            f"event rule {number} has the action {rule.action!r}", hint="use Do, Ignore or Error"
        )
    if not rule.events and not rule.sql_pattern:
        raise NeedsOperator(
            f"event rule {number} has neither events nor a sql-pattern", hint="it would do nothing"
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
