"""Differences of the downstream from the upstream: an operator's overrides, and exact counts.

    {"verb": "track" | "skip" | "replace", "replace": sql | null, "made": …, "ended": commit_ts}

    track     the DDL is tracked and not run: the downstream has its effect, or gets it by hand
    skip      it is tracked and not run, and changes that need it are skipped and counted
    replace   it is tracked, and another statement runs; changes that need the rest are skipped

In each case the schema is tracked as upstream has it; `drainer.schema.drift` derives the parts of
it that the downstream lacks. Without "verb", as older versions wrote it, an override with a
statement is a replacement and one without is a skip. `ended` is where a skip or a replacement was
taken back: from there on it causes no skipping.

All overrides are in the checkpoint, with the downstream that they are about: of future DDL, and of
DDL that it has passed. The next Drainer that writes that downstream therefore continues with them,
and rebuilds the schema with its actual history. Older versions stored overrides of future DDL in
etcd (`drainer.ddl.starting_schema`).

Changes that do not go downstream are counted by cause and table:

    kind          counts one for each
    rows          row change that ends here
    values        row change that goes downstream without the value of one column
    converted     row change whose value of one column goes into one of another definition
    ddls          DDL that is tracked and not run, or not run unchanged
    transactions  transaction that is skipped whole; its rows are also counted, if known

    cause                  reason for skipping
    override               `penstock drainer ddl`
    filter                 a filter
    ignore-txn-commit-ts   the setting of this name
    dropped-table          the table was dropped before the row came
    sync-ddl               the setting of this name
    loop-back              the transaction came from here, and is there already
    upstream-only          the DDL is about a TiDB's own: placement, locks, caches, TiFlash

A step carries its counts, which become part of the totals in the transaction that commits it: the
totals are in the checkpoint. A crash therefore neither loses nor repeats a count, and a downstream
that is reset has the totals that were true for it.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from drainer.facts import SkippedCount, SkippedFacts
from penstock.codes import Code
from penstock.ddl import Catalog, SchemaChange, adopted, plan_ddl
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlJob, DdlType, TableInfo

TRACK, SKIP, REPLACE = "track", "skip", "replace"
VERBS = (TRACK, SKIP, REPLACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """The decision about the DDL at `commit_ts`; only a replacement has `sql`."""

    commit_ts: int
    verb: str
    sql: str | None = None
    made: str = ""
    ended_ts: int = 0

    def planned(self, job: DdlJob, catalog: Catalog) -> DdlJob:
        """Return the job of the statement that runs in place of `job`'s, in the same session.

        `catalog` is the downstream's; NeedsOperator if the statement does not fit it.
        """
        assert self.sql is not None
        fresh: Iterator[int] = itertools.chain([job.id], itertools.count(-1, -1))
        default = job.schema_name or None
        jobs = plan_ddl(self.sql, default, catalog, lambda: next(fresh), job.context)
        if len(jobs) != 1:
            raise NeedsOperator(
                f"the statement in place of the DDL at {self.commit_ts} comes to {len(jobs)} DDLs",
                "give one that comes to exactly one",
                Code.COMMAND_INVALID,
            )
        planned = jobs[0]
        if planned.table is not None and job.table is not None:
            planned = replace(planned, table=_with_ids(planned.table, job.table))
        return replace(
            planned,
            id=job.id,
            schema_version=job.schema_version,
            finished_ts=job.finished_ts or self.commit_ts,
        )

    def describe(self) -> str:
        words = {TRACK: "tracked and not run", SKIP: "skipped", REPLACE: f"replaced by: {self.sql}"}
        ended = f", taken back at {self.ended_ts}" if self.ended_ts else ""
        return words[self.verb] + ended

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"verb": self.verb, "replace": self.sql, "made": self.made}
        return fields | ({"ended": self.ended_ts} if self.ended_ts else {})

    @classmethod
    def from_json(cls, commit_ts: int, fields: Mapping[str, Any]) -> Override:
        """Parse the fields of `to_json`; KeyError, TypeError or ValueError for anything else."""
        sql = fields["replace"]
        verb = fields.get("verb", SKIP if sql is None else REPLACE)
        if verb not in VERBS or (verb == REPLACE) != isinstance(sql, str):
            raise ValueError(f"{fields!r} is no override")
        return cls(
            commit_ts=commit_ts,
            verb=verb,
            sql=sql,
            made=fields["made"],
            ended_ts=int(fields.get("ended", 0)),
        )


def _with_ids(table: TableInfo, original: TableInfo) -> TableInfo:
    """Return `table` with the ids that rows will carry, for columns that the original has."""
    if table.name.lower() != original.name.lower():
        return table
    known = {c.name.lower(): c.id for c in original.columns}
    spare = itertools.count(max(table.max_column_id, original.max_column_id) + 1)
    columns = []
    for column in table.columns:
        taken = column.id in known.values()
        column_id = known.get(column.name.lower()) or (next(spare) if taken else column.id)
        columns.append(replace(column, id=column_id))
    largest = max([c.id for c in columns] + [original.max_column_id])
    return replace(table, id=original.id, columns=tuple(columns), max_column_id=largest)


def in_force(
    recorded: Mapping[int, Override], passed: Mapping[int, Override] | None, up_to_ts: int
) -> dict[int, Override]:
    """Return the overrides of a downstream at `up_to_ts` from the storage of an older version.

    `recorded` are those in etcd; `passed` those in the checkpoint, None in a checkpoint of a
    version that stored none. For passed DDL the record only says whether the override was taken
    back.
    """
    if passed is None:
        return dict(recorded)
    found = {ts: each for ts, each in recorded.items() if ts > up_to_ts}
    for ts, each in passed.items():
        other = recorded.get(ts)
        ended = other is not None and other.ended_ts and not each.ended_ts
        found[ts] = replace(each, ended_ts=other.ended_ts) if other and ended else each
    return found


_BY_PARTITION = (
    DdlType.ADD_PARTITION,
    DdlType.DROP_PARTITION,
    DdlType.TRUNCATE_PARTITION,
    DdlType.EXCHANGE_PARTITION,
    DdlType.REORGANIZE_PARTITION,
    DdlType.CONVERT_PARTITION,
    DdlType.CONVERT_TABLE,
)
_UNKNOWN = "what it does is not known, so rows of tables that it made are skipped"


def subject_of(change: SchemaChange) -> str:
    """Return the name of the table or database that a DDL concerns; one of several."""
    for schema, table in (*change.created, *change.dropped):
        if not change.schemas_dropped:
            return f"{schema}.{table.name}"
    for schema, _, after in change.altered:
        return f"{schema}.{after.name}"
    for schema, before, _, _ in change.renamed:
        return f"{schema}.{before.name}"
    names = (*change.schemas_created, *change.schemas_dropped)
    return names[0] if names else change.job.schema_name


TRACK_MEANS = (
    "nothing is skipped: the downstream has what the statement does already, or you do it there by"
    " hand before the next start"
)
REPLACE_MEANS = (
    "your statement runs instead; what upstream has and it does not bring is skipped and counted"
)


def means(verb: str, change: SchemaChange | None) -> str:
    """Return the effect of an override of a DDL; `change` is None if the DDL cannot be tracked."""
    fixed = {TRACK: TRACK_MEANS, REPLACE: REPLACE_MEANS}
    return fixed.get(verb) or skip_means(change)


def commands(commit_ts: int, flags: str = "") -> dict[str, str]:
    """Return a command for each override of a DDL, by its verb, safest first.

    `flags` complete each command: they name the Drainer's settings.
    """
    given = {TRACK: "", REPLACE: ' "<sql>"', SKIP: ""}
    return {
        verb: f"penstock drainer ddl {verb} {commit_ts}{sql}{flags}" for verb, sql in given.items()
    }


def skip_means(change: SchemaChange | None) -> str:
    """Describe the effect of skipping a DDL; `change` is None if it cannot be tracked."""
    return "; ".join(_skipped(change)) if change is not None else _UNKNOWN


def _skipped(change: SchemaChange) -> Iterator[str]:
    for name in change.schemas_created:
        yield f"the rows of all tables in {name} are skipped and counted"
    for name in change.schemas_dropped:
        yield f"{name} stays as it is, with its tables and their rows"
    yield from _came_and_went(change)
    for old_schema, old, schema, new in change.renamed:
        yield (
            f"the rows of {schema}.{new.name} are skipped and counted, and"
            f" {old_schema}.{old.name} stays as it is"
        )
    for schema, before, after in change.altered:
        yield from _altered(f"{schema}.{after.name}", adopted(change.job, before, after), after)
    if change.job.type in _BY_PARTITION:
        yield "rows that it removes or moves stay where they are"
    elif change.is_nothing:
        yield "no row depends on it"


def _came_and_went(change: SchemaChange) -> Iterator[str]:
    dropped = {(schema, table.name) for schema, table in change.dropped}
    created = {(schema, table.name) for schema, table in change.created}
    for schema, table in change.created:
        name = f"{schema}.{table.name}"
        if table.kind != "TABLE":
            yield f"the {table.kind.lower()} {name} stays as it is, or is not there"
        elif (schema, table.name) in dropped:
            yield f"{name} keeps the rows that upstream removed"
        else:
            yield f"the rows of {name} are skipped and counted"
    for schema, name in sorted(dropped - created) if not change.schemas_dropped else ():
        yield f"{schema}.{name} stays as it is, with its rows"


def _altered(name: str, before: TableInfo, after: TableInfo) -> Iterator[str]:
    known = {c.id: c for c in before.columns}
    lacking = [c.name for c in after.columns if c.id not in known or known[c.id].name != c.name]
    kept = {c.id for c in after.columns}
    changed = [
        c.name
        for c in after.columns
        if c.id in known and c.name == known[c.id].name
        and (c.tp, c.flen, c.decimal, c.flag, c.elems, c.charset)
        != (known[c.id].tp, known[c.id].flen, known[c.id].decimal, known[c.id].flag,
            known[c.id].elems, known[c.id].charset)
    ]  # fmt: skip
    gone = [c.name for c in before.columns if c.id not in kept]
    if lacking:
        yield f"the values of {_columns(name, lacking)} are skipped and counted"
    if changed:
        yield (
            f"{_columns(name, changed)} keeps its definition: a value that does not fit stops the"
            " Drainer, a number or a time may be rounded; such values are counted"
        )
    if gone:
        yield f"{_columns(name, gone)} stays, and rows that are written again have its default"
    if not (lacking or changed or gone):
        yield f"{name} keeps its indexes, partitions and options as they are"


def _columns(table: str, names: list[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {', '.join(names)} of {table}"


log = logging.getLogger(__name__)

ROWS, VALUES, CONVERTED = "rows", "values", "converted"
DDLS, TRANSACTIONS = "ddls", "transactions"
KINDS = (ROWS, VALUES, CONVERTED, DDLS, TRANSACTIONS)

OVERRIDE, FILTER, IGNORED = "override", "filter", "ignore-txn-commit-ts"
DROPPED, SYNC_DDL, LOOP_BACK = "dropped-table", "sync-ddl", "loop-back"
UPSTREAM_ONLY = "upstream-only"

NAMED_MAX = 200
"""The number of tables or columns counted separately per kind and cause; the rest is one count."""
OTHERS = "(others)"

_SENTENCES = {
    ROWS: "rows of %s do not go downstream (%s)",
    VALUES: "the values of column %s do not go downstream (%s)",
    CONVERTED: "the values of column %s go into a column of another definition downstream (%s)",
    DDLS: "DDL of %s does not run downstream (%s)",
    TRANSACTIONS: "whole transactions do not go downstream%s (%s)",
}
_QUIET = (FILTER, LOOP_BACK, SYNC_DDL)


class Skipped(NamedTuple):
    """One counted category; `table` is schema.table, and may be empty, as may `column`."""

    kind: str
    cause: str
    table: str = ""
    column: str = ""

    @property
    def name(self) -> str:
        return f"{self.table}.{self.column}" if self.column else self.table


Counts = Counter[Skipped]
Totals = Mapping[Skipped, int]


class SkippedTotals:
    """The totals up to the checkpoint."""

    def __init__(self, totals: Totals) -> None:
        self._totals: Totals = dict(totals)
        self._logged: set[Skipped] = set()

    @property
    def totals(self) -> Totals:
        return self._totals

    def after(self, counts: Counts) -> Totals:
        """Return the totals after a step with these counts; log each new entry once."""
        if not counts:
            return self._totals
        made = dict(self._totals)
        named = Counter((each.kind, each.cause) for each in made)
        for each, count in counts.items():
            if each not in self._logged and len(self._logged) <= NAMED_MAX * len(KINDS):
                self._logged.add(each)
                level = logging.INFO if each.cause in _QUIET else logging.WARNING
                log.log(level, _SENTENCES[each.kind] + "; they are counted", each.name, each.cause)
            if each not in made:
                if named[each.kind, each.cause] >= NAMED_MAX:
                    each = Skipped(each.kind, each.cause, OTHERS)
                named[each.kind, each.cause] += 1
            made[each] = made.get(each, 0) + count
        return made

    def reached(self, totals: Totals) -> None:
        """Adopt the totals that `after` returned: the step is downstream."""
        self._totals = totals

    def total(self, kind: str, *causes: str) -> int:
        return total(self._totals, kind, *causes)

    def facts(self) -> SkippedFacts:
        return SkippedFacts(
            rows_left_out=self.total(ROWS),
            values_left_out=self.total(VALUES),
            ddls_left_out=self.total(DDLS),
            transactions_returned=self.total(TRANSACTIONS, LOOP_BACK),
            left_out="; ".join(lines(self._totals)) or "nothing",
            left_out_counts=tuple(
                SkippedCount(kind=each.kind, cause=each.cause, name=each.name, count=count)
                for each, count in _in_order(self._totals)
            ),
        )


def total(totals: Totals, kind: str, *causes: str) -> int:
    wanted = (n for each, n in totals.items() if each.kind == kind)
    if causes:
        wanted = (n for e, n in totals.items() if e.kind == kind and e.cause in causes)
    return sum(wanted)


def lines(totals: Totals) -> list[str]:
    return [
        f"{each.cause}: {count} {each.kind}{' of ' + each.name if each.name else ''}"
        for each, count in _in_order(totals)
    ]


def _in_order(totals: Totals) -> list[tuple[Skipped, int]]:
    return sorted(totals.items(), key=lambda item: (KINDS.index(item[0].kind), item[0]))


def to_lists(totals: Totals) -> list[list[str | int]]:
    return [[*each, count] for each, count in sorted(totals.items())]


def from_lists(lists: Iterable[Iterable[object]]) -> dict[Skipped, int]:
    """Parse the lists of `to_lists`; raise ValueError for anything else."""
    found: dict[Skipped, int] = {}
    for entry in lists:
        *names, count = entry
        known = len(names) == 4 and names[0] in KINDS and all(isinstance(n, str) for n in names)
        if not known or isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(f"{entry!r} is no count")
        found[Skipped(*map(str, names))] = count
    return found
