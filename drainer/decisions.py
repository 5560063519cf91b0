"""What an operator decided about single DDLs: skip one, or follow another statement in its place.

    /penstock/v1/ddl_decisions/<node id>/<commit_ts, 20 digits>   {"replace": sql | null, "made": …}

They stand beside the history that they correct, one set for each Drainer, because downstreams
differ; they are never deleted, because whoever rebuilds the schema from history needs them again. A
Drainer reads them when it starts. A DDL has one commit_ts, so a decision is applied once.

Skipping counts as a schema version without a change: rows after it carry that version. A
replacement takes over the ids of the original's table and columns, which rows carry too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, count

from penstock.ddl import Catalog, plan_ddl
from penstock.errors import Malformed, NeedsOperator
from penstock.etcd import EtcdClient, etcd_errors, read_prefix
from penstock.schema import DdlJob, TableInfo

DECISIONS = "/penstock/v1/ddl_decisions/"
_CHANGES_NOTHING = 27  # TiDB's LOCK TABLES.


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """For the DDL at `commit_ts`: follow and run `sql` in its place, or nothing if that is None."""

    commit_ts: int
    sql: str | None
    made: str = ""

    def decided(self, job: DdlJob, catalog: Catalog) -> DdlJob:
        """Return the job to follow for `job`; NeedsOperator when the statement does not fit."""
        if self.sql is None:
            return replace(job, type=_CHANGES_NOTHING, query="", schema=None, table=None, tables=())
        fresh: Iterator[int] = chain([job.id], count(-1, -1))
        jobs = plan_ddl(self.sql, job.schema_name or None, catalog, lambda: next(fresh))
        if len(jobs) != 1:
            raise NeedsOperator(
                f"the statement in place of the DDL at {self.commit_ts} comes to {len(jobs)} DDLs",
                hint="give one that comes to exactly one, or skip the DDL",
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
        """Return the decision in words."""
        return "skipped" if self.sql is None else f"replaced by: {self.sql}"


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


def decide(etcd: EtcdClient, node_id: str, commit_ts: int, sql: str | None) -> Decision:
    """Record a decision, in place of an earlier one about the same DDL; may be Retryable."""
    made = datetime.now(UTC).isoformat(timespec="seconds")
    with etcd_errors():
        etcd.put(_key(node_id, commit_ts), json.dumps({"replace": sql, "made": made}))
    return Decision(commit_ts=commit_ts, sql=sql, made=made)


def decisions(etcd: EtcdClient, node_id: str) -> dict[int, Decision]:
    """Return a Drainer's decisions by commit_ts; may be Retryable or Malformed."""
    items, _ = read_prefix(etcd, f"{DECISIONS}{node_id}/")
    found = {}
    for key, value in items.items():
        try:
            fields = json.loads(value)
            commit_ts = int(key.rpartition("/")[2])
            decision = Decision(commit_ts=commit_ts, sql=fields["replace"], made=fields["made"])
        except (ValueError, KeyError, TypeError) as error:
            raise Malformed(
                f"{key} in etcd is no decision about a DDL: {value!r}",
                hint="make the decision anew with `drainer ddl skip` or `drainer ddl replace`",
            ) from error
        found[decision.commit_ts] = decision
    return found


def _key(node_id: str, commit_ts: int) -> str:
    return f"{DECISIONS}{node_id}/{commit_ts:020d}"
