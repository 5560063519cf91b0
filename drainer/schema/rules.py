"""Stream rules: how a stream's rows and DDL go together, by who wrote them.

| | `FENCED`: writers of ours | `TIDB`: a TiDB |
|---|---|---|
| a row is of | the schema version at its place | that version or the one before |
| two versions at a time | never: the fence | always: rows of the one before a DDL come after it |
| a row of a new table | never before its DDL | before a multi-schema change's only binlog |
| a job is in the history | before its Commit | some time after it, and later than its commit_ts |
| what runs is | the job's query | the binlog's, in which TiDB marks its own words |
| a DDL that failed | is not in the stream | is, and did nothing |
| database `mysql` | has no tables | has, without a job that made it |

The source of the jobs hands over the rules, since it knows whose they are; no row is looked at to
find out. Each row is read with the newest table at its place. Why that is right for a TiDB: rows
name their columns by id, a version lives until the one after the next, and a column whose id is
missing has its origin default. Where a multi-schema change swapped a table's columns before its
binlog, it is followed first (`drainer.ddl.catch_up`): so the newest table is right for them, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from penstock.schema.model import DdlJob, SchemaInfo


class Moment(NamedTuple):
    """A place in the stream: a commit_ts, and the schema version there, 0 where none is known."""

    commit_ts: int
    schema_version: int = 0


ALWAYS = Moment((1 << 63) - 1)
"""After all that there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRules:
    """What holds for a stream, for as long as it is one; see the table above."""

    name: str
    is_fenced: bool
    unknown_table_hint: str
    """What an operator can do where rows name a table that no DDL made."""
    system_schemas: tuple[SchemaInfo, ...] = ()
    """Databases that are there without a job."""
    system_ids_from: int = 1 << 63
    """From here on ids are those of the first such database's tables that no job made either."""

    def has_passed(self, job: DdlJob, moment: Moment) -> bool:
        """Return whether the stream has had a DDL at a moment.

        A TiDB's job finishes later than its binlog is committed: one that has finished has passed.
        """
        if job.finished_ts <= moment.commit_ts:
            return True
        return not self.is_fenced and job.schema_version <= moment.schema_version

    def may_have_passed(self, job: DdlJob, moment: Moment) -> bool:
        """Return whether a DDL that has not certainly passed may have passed."""
        return not self.is_fenced and job.start_ts <= moment.commit_ts


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
