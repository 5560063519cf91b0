"""What an operator decided about single DDLs: track, skip, or run another statement in its place.

    {"verb": "track" | "skip" | "replace", "replace": sql | null, "made": …, "ended": commit_ts}

    track     the DDL is tracked and not run: the downstream has, or gets by hand, what it does
    skip      it is tracked and not run, and what it brings is left out downstream, counted
    replace   it is tracked, and another statement runs; what that does not bring is left out

The schema is tracked as upstream has it in each case; `drainer.differences.deviations` says what of
it the downstream lacks. Without "verb", as older versions wrote it, an override with a statement is
a replacement and one without is a skip. `ended` is where a skip or a replacement was taken back:
from there on nothing is left out because of it.

All overrides are in the checkpoint, with the downstream that they are about: of DDL to come, and of
DDL that it has passed. So whichever Drainer writes that downstream next goes on with the same ones,
and rebuilds the schema with what really happened to it. Older versions kept those to come in etcd
(`drainer.ddl.override_store`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from penstock.ddl import Catalog, plan_ddl
from penstock.errors import NeedsOperator
from penstock.schema.model import DdlJob, TableInfo

TRACK, SKIP, REPLACE = "track", "skip", "replace"
VERBS = (TRACK, SKIP, REPLACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """For the DDL at `commit_ts`; `sql` is there for a replacement only."""

    commit_ts: int
    verb: str
    sql: str | None = None
    made: str = ""
    ended_ts: int = 0

    def planned(self, job: DdlJob, catalog: Catalog) -> DdlJob:
        """Return the job of the statement that runs in the place of `job`'s.

        `catalog` is what the downstream has; NeedsOperator when the statement does not fit it.
        """
        assert self.sql is not None
        fresh: Iterator[int] = chain([job.id], count(-1, -1))
        jobs = plan_ddl(self.sql, job.schema_name or None, catalog, lambda: next(fresh))
        if len(jobs) != 1:
            raise NeedsOperator(
                f"the statement in place of the DDL at {self.commit_ts} comes to {len(jobs)} DDLs",
                hint="give one that comes to exactly one",
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
        """Return the override in words."""
        words = {TRACK: "tracked and not run", SKIP: "skipped", REPLACE: f"replaced by: {self.sql}"}
        ended = f", taken back at {self.ended_ts}" if self.ended_ts else ""
        return words[self.verb] + ended

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's values."""
        fields: dict[str, Any] = {"verb": self.verb, "replace": self.sql, "made": self.made}
        return fields | ({"ended": self.ended_ts} if self.ended_ts else {})

    @classmethod
    def from_json(cls, commit_ts: int, fields: Mapping[str, Any]) -> Override:
        """Return what `to_json` wrote; KeyError, TypeError or ValueError for anything else."""
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
    """Return `table` with the ids that rows will carry, as far as the original has its columns."""
    if table.name.lower() != original.name.lower():
        return table
    known = {c.name.lower(): c.id for c in original.columns}
    spare = count(max(table.max_column_id, original.max_column_id) + 1)
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
    """Return the overrides of a downstream at `up_to_ts` from where an older version kept them.

    `recorded` are those in etcd; `passed` those in the checkpoint, None in one of before these were
    there. Of those that were passed the record only says whether they were taken back.
    """
    if passed is None:
        return dict(recorded)
    found = {ts: each for ts, each in recorded.items() if ts > up_to_ts}
    for ts, each in passed.items():
        other = recorded.get(ts)
        ended = other is not None and other.ended_ts and not each.ended_ts
        found[ts] = replace(each, ended_ts=other.ended_ts) if other and ended else each
    return found
