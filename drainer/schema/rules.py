"""Stream rules: how a stream's rows and DDL relate, depending on the writers.

| | `FENCED`: writers of ours | `TIDB`: a TiDB |
|---|---|---|
| a row is of | the schema version at its place | that version or the one before |
| two versions at a time | never: the fence | always: rows of the one before a DDL come after it |
| a row of a new table | never before its DDL | before a multi-schema change's only binlog |
| a job is in the history | before its Commit | some time after it, and later than its commit_ts |
| the statement that runs | the job's query | the binlog's, in which TiDB marks its own words |
| a DDL that failed | is not in the stream | is, and did nothing |
| database `mysql` | has no tables | has, without a job that made it |

The source of the jobs returns the rules, because it knows the writers; no row is inspected for
that. Each row is read with the newest table at its place. For a TiDB this is right because rows
name their columns by id, a version lives until the one after the next, and a column whose id is
missing has its origin default. If a multi-schema change swapped a table's columns before its
binlog, the change is followed first (`drainer.ddl.catch_up`), so the newest table is right for
those rows also.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock.schema.model import DdlJob, SchemaInfo


class StreamPosition(NamedTuple):
    """A place in the stream: a commit_ts, and the schema version there, 0 if it is unknown."""

    commit_ts: int
    schema_version: int = 0


ALWAYS = StreamPosition((1 << 63) - 1)
"""After everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRules:
    """The rules of a stream, which never change; see the table above."""

    name: str
    is_fenced: bool
    unknown_table_hint: str
    """An operator's remedy if rows name a table that no DDL made."""
    system_schemas: tuple[SchemaInfo, ...] = ()
    """Databases that exist without a job."""
    system_ids_from: int = 1 << 63
    """Ids from here on are tables of the first such database that also have no job."""

    def has_passed(self, job: DdlJob, position: StreamPosition) -> bool:
        """Return whether the stream has had a DDL at a position.

        A TiDB's job finishes after its binlog is committed: a finished job has passed.
        """
        if job.finished_ts <= position.commit_ts:
            return True
        return not self.is_fenced and job.schema_version <= position.schema_version

    def may_have_passed(self, job: DdlJob, position: StreamPosition) -> bool:
        """Return whether a DDL that has not certainly passed may have passed."""
        return not self.is_fenced and job.start_ts <= position.commit_ts


FENCED = StreamRules(
    name="fenced",
    is_fenced=True,
    unknown_table_hint="the DDL history is incomplete: was it wiped, or is the cluster id another?",
)
TIDB = StreamRules(
    name="tidb",
    is_fenced=False,
    unknown_table_hint="its CREATE TABLE is from before the stream: begin with a copy of the data"
    " and its initial-commit-ts, on a fresh downstream; or was TiDB's DDL history wiped?",
    system_schemas=(SchemaInfo(id=1, name="mysql"),),
    system_ids_from=(1 << 48) - 1000,
)
ALL_RULES = {rules.name: rules for rules in (FENCED, TIDB)}
