"""TiDB history: the DDL of a TiDB, as its own jobs in its own JSON, made from plain statements.

A job of a TiDB differs from one of Penstock's in more than its spelling: it names schemas in lower
case, it finishes some time after its binlog was committed, versions are skipped between two jobs,
tables are those of the job alone, and what it asks for is in `raw_args`.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from penstock.ddl import Catalog, plan_ddl
from penstock.schema.model import DdlJob, SchemaInfo, TableInfo
from penstock.schema.tidb_json import job_from_json, job_to_json
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog

STEPS = 4
"""How many schema versions a job takes; only the last one has a binlog."""
LATER = 7
"""So much later than its binlog a job finishes."""

_UNFOLLOWABLE = (62, 63)

Json = dict[str, Any]


@dataclass(frozen=True)
class TidbDdl:
    """One DDL: its job as the status port has it, and the commit_ts of its binlog."""

    fields: Json
    commit_ts: int
    query: str

    @property
    def job(self) -> DdlJob:
        return job_from_json(self.fields)

    def binlog(self, *, state: int = 5, commit_ts: int | None = None) -> bytes:
        """Return its binlog, merged, as a Pump streams it out."""
        ts = self.commit_ts if commit_ts is None else commit_ts
        return encode_binlog(
            Binlog(
                tp=BinlogType.COMMIT,
                start_ts=ts - 1,
                commit_ts=ts,
                ddl_query=self.query.encode(),
                ddl_job_id=self.fields["id"],
                ddl_schema_state=state,
            )
        )


class TidbHistory:
    """Plans statements as a TiDB would, from a TiDB's bootstrapped state on."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        """Take timestamps from a clock; without one they are 100 apart."""
        self._clock = clock
        self.catalog = Catalog.of(0, [SchemaInfo(id=1, name="mysql")], ())
        self.all: list[TidbDdl] = []
        self._ids = itertools.count(100)
        self._version = 20
        self._ts = 1000

    def run(
        self,
        sql: str,
        *,
        schema: str = "Shop",
        sent: str | None = None,
        change: Callable[[DdlJob], DdlJob] | None = None,
        **fields: Any,
    ) -> TidbDdl:
        """Run one statement that comes to one job; `sent` is what the binlog says instead.

        `change` makes of the planned job what a TiDB would; `fields` stand beside the others.
        """
        (job,) = plan_ddl(sql, schema, self.catalog, self._ids.__next__)
        if change is not None:
            job = change(job)
        self._version += STEPS
        self._ts = self._ts + 100 if self._clock is None else self._clock()
        finished_ts = self._ts + LATER
        job = replace(
            job,
            schema_version=self._version,
            finished_ts=finished_ts,
            start_ts=self._ts - 50,
            query=sql,
        )
        home = self.catalog.schema(job.schema_name)
        if not job.has_failed and job.type not in _UNFOLLOWABLE:
            self.catalog.apply(job)
        written = job_to_json(job)
        written.pop("table_schemas", None)
        written |= {"schema_name": job.schema_name.lower(), "multi_schema_info": None, **fields}
        if home is not None:
            written["schema_id"] = home.id
        done = TidbDdl(written, self._ts, sql if sent is None else sent)
        self.all.append(done)
        return done

    def later(self, steps: int = 1) -> int:
        """Let versions go by that no binlog names, and return the last."""
        self._version += steps
        return self._version

    @property
    def version(self) -> int:
        """The schema version after the last job."""
        return self._version

    def now(self) -> int:
        """Return a timestamp after all there was."""
        self._ts += 10
        return self._ts

    def table(self, name: str, schema: str = "Shop") -> TableInfo:
        found = self.catalog.table(schema, name)
        assert found is not None, f"there is no {schema}.{name}"
        return found


def with_new_ids(*names: str) -> Callable[[DdlJob], DdlJob]:
    """Return what makes a job one of a TiDB that had to rewrite the values of these columns."""

    def change(job: DdlJob) -> DdlJob:
        assert job.table is not None
        ids = itertools.count(job.table.max_column_id + 1)
        columns = [replace(c, id=next(ids)) if c.name in names else c for c in job.table.columns]
        largest = max(c.id for c in columns)
        table = replace(job.table, columns=tuple(columns), max_column_id=largest)
        return replace(job, table=table)

    return change


def failed(state: int) -> Callable[[DdlJob], DdlJob]:
    """Return what makes a job one that a TiDB rolled back (3) or cancelled (5)."""
    return lambda job: replace(job, state=state)


def of_type(number: int, *, has_table: bool = False) -> Callable[[DdlJob], DdlJob]:
    """Return what makes a job one of a kind that only a TiDB has."""

    def change(job: DdlJob) -> DdlJob:
        return replace(job, type=number, table=job.table if has_table else None, tables=())

    return change


def with_partition_ids(first: int) -> Callable[[DdlJob], DdlJob]:
    """Return what gives a job's partitions ids, as each of a TiDB's has one."""

    def change(job: DdlJob) -> DdlJob:
        assert job.table is not None
        assert job.table.partitions is not None
        ids = tuple(range(first, first + len(job.table.partitions)))
        return replace(job, table=replace(job.table, partition_ids=ids))

    return change


def ascending(ddls: Iterable[TidbDdl]) -> list[Json]:
    """Return jobs as a history has them: by id."""
    return sorted((ddl.fields for ddl in ddls), key=lambda fields: fields["id"])
