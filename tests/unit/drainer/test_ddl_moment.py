"""Old rows get the moment downstream that they have upstream, in a column that begins with now."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from drainer.sinks.mysql.ddl_moment import moment_s
from drainer.sinks.mysql.ddl_progress import things
from penstock.ddl import SchemaChange
from penstock.errors import NeedsOperator
from penstock.ts import compose
from tests.unit.penstock.ddl_session import DdlSession

NOW_MS = 1_700_000_000_123
LITERAL = "2026-11-22 23:59:58"


def change(sql: str, **origins: str) -> SchemaChange:
    """Return what a statement did; `origins` are what older rows have in its columns."""
    session = DdlSession("CREATE TABLE t (a INT PRIMARY KEY)")
    (job,) = session.plan(sql)
    assert job.table is not None
    columns = tuple(
        replace(c, origin_default=origins.get(c.name, c.origin_default)) for c in job.table.columns
    )
    table = replace(job.table, columns=columns)
    return session.catalog.apply(replace(job, table=table, finished_ts=compose(NOW_MS, 5)))


def test_a_ddl_runs_at_the_time_of_its_commit() -> None:
    assert moment_s(change("ALTER TABLE t ADD b INT")) == NOW_MS / 1000
    for kind in ("TIMESTAMP", "DATETIME(3)"):
        digits = "(3)" if "3" in kind else ""
        sql = f"ALTER TABLE t ADD b {kind} DEFAULT CURRENT_TIMESTAMP{digits}"
        assert moment_s(change(sql)) == NOW_MS / 1000


@pytest.mark.parametrize("kind", ["TIMESTAMP", "DATETIME"])
def test_a_tidb_s_own_moment_counts_where_it_has_kept_one(kind: str) -> None:
    sql = f"ALTER TABLE t ADD b {kind} DEFAULT CURRENT_TIMESTAMP, ADD c INT"
    wanted = datetime(2026, 11, 22, 23, 59, 58, tzinfo=UTC).timestamp()
    assert moment_s(change(sql, b=LITERAL)) == wanted
    exact = f"ALTER TABLE t ADD b {kind}(6) DEFAULT CURRENT_TIMESTAMP(6)"
    assert moment_s(change(exact, b=f"{LITERAL}.250000")) == wanted + 0.25
    fixed = f"ALTER TABLE t ADD b {kind} DEFAULT '{LITERAL}'"
    assert moment_s(change(fixed)) == NOW_MS / 1000


def test_columns_that_got_different_moments_are_refused() -> None:
    sql = "ALTER TABLE t ADD b DATETIME DEFAULT NOW(), ADD c TIMESTAMP DEFAULT NOW()"
    wanted = datetime(2026, 11, 22, 23, 59, 58, tzinfo=UTC).timestamp()
    assert moment_s(change(sql, b=LITERAL, c=LITERAL)) == wanted
    for origins in ({"b": LITERAL, "c": "2026-11-22 15:59:58"}, {"b": LITERAL}, {"c": LITERAL}):
        with pytest.raises(NeedsOperator, match="different moments") as caught:
            moment_s(change(sql, **origins))
        assert "SET TIMESTAMP" in caught.value.hint
    with pytest.raises(NeedsOperator, match="which is none"):
        moment_s(change(sql, b="soon"))


def test_what_no_one_can_see_downstream_is_not_looked_for_there() -> None:
    done = change("ALTER TABLE t ADD b INT, ADD INDEX i (b), ADD INDEX j (a)")
    ((schema, before, after),) = done.altered
    hidden = tuple(replace(c, hidden=c.name == "b") for c in after.columns)
    made = replace(after, columns=hidden, expression_indexes=("i",))
    seen = things(replace(done, altered=((schema, before, made),)))[1]
    assert ("index", "d", "t", "j") in seen
    assert not {("index", "d", "t", "i"), ("column", "d", "t", "b")} & seen
