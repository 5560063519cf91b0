"""Old rows get the moment downstream that they have upstream, in a column that begins with now."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from drainer.sinks.ddl_effects import moment_of, session_of
from drainer.sinks.mysql.ddl_progress import things
from penstock.ddl import SchemaChange
from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import DdlContext
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
    assert moment_of(change("ALTER TABLE t ADD b INT")) == (NOW_MS / 1000, "+00:00")
    for kind in ("TIMESTAMP", "DATETIME(3)"):
        digits = "(3)" if "3" in kind else ""
        sql = f"ALTER TABLE t ADD b {kind} DEFAULT CURRENT_TIMESTAMP{digits}"
        assert moment_of(change(sql)) == (NOW_MS / 1000, "+00:00")


@pytest.mark.parametrize("kind", ["TIMESTAMP", "DATETIME"])
def test_a_tidb_s_own_moment_counts_where_it_has_kept_one(kind: str) -> None:
    sql = f"ALTER TABLE t ADD b {kind} DEFAULT CURRENT_TIMESTAMP, ADD c INT"
    wanted = datetime(2026, 11, 22, 23, 59, 58, tzinfo=UTC).timestamp()
    assert moment_of(change(sql, b=LITERAL)) == (wanted, "+00:00")
    exact = f"ALTER TABLE t ADD b {kind}(6) DEFAULT CURRENT_TIMESTAMP(6)"
    assert moment_of(change(exact, b=f"{LITERAL}.250000")) == (wanted + 0.25, "+00:00")
    fixed = f"ALTER TABLE t ADD b {kind} DEFAULT '{LITERAL}'"
    assert moment_of(change(fixed)) == (NOW_MS / 1000, "+00:00")


def test_columns_that_got_different_moments_are_refused() -> None:
    sql = "ALTER TABLE t ADD b DATETIME DEFAULT NOW(), ADD c TIMESTAMP DEFAULT NOW()"
    wanted = datetime(2026, 11, 22, 23, 59, 58, tzinfo=UTC).timestamp()
    assert moment_of(change(sql, b=LITERAL, c=LITERAL)) == (wanted, "+00:00")
    for origins in ({"b": LITERAL, "c": "2026-11-22 15:59:57"}, {"b": LITERAL}, {"c": LITERAL}):
        with pytest.raises(NeedsOperator, match="different moments") as caught:
            moment_of(change(sql, **origins))
        assert "SET TIMESTAMP" in caught.value.hint
    with pytest.raises(NeedsOperator, match="which is none"):
        moment_of(change(sql, b="soon"))


def test_two_texts_of_one_moment_say_in_which_zone_a_tidb_s_session_was() -> None:
    sql = "ALTER TABLE t ADD b DATETIME DEFAULT NOW(), ADD c TIMESTAMP DEFAULT NOW()"
    utc = datetime(2026, 11, 22, 15, 59, 58, tzinfo=UTC).timestamp()
    assert moment_of(change(sql, b=LITERAL, c="2026-11-22 15:59:58")) == (utc, "+08:00")
    half = datetime(2026, 11, 23, 3, 29, 58, tzinfo=UTC).timestamp()
    assert moment_of(change(sql, b=LITERAL, c="2026-11-23 03:29:58")) == (half, "-03:30")


def test_a_tidb_s_literal_says_in_which_zone_it_was_written() -> None:
    sql = "ALTER TABLE t ADD b TIMESTAMP DEFAULT '2020-01-01 00:00:00'"
    made = change(sql)
    table = made.job.table
    assert table is not None
    columns = (table.columns[0], replace(table.columns[1], default="2019-12-31 16:00:00"))
    stored = replace(table, columns=columns)
    job = replace(made.job, table=stored, start_ts=5)
    assert moment_of(replace(made, job=job)) == (NOW_MS / 1000, "+08:00")
    ours = replace(made.job, table=stored)
    assert moment_of(replace(made, job=ours)) == (NOW_MS / 1000, "+00:00")


def test_a_context_says_moment_and_zone() -> None:
    sql = "ALTER TABLE t ADD b DATETIME DEFAULT NOW()"
    made = change(sql, b=LITERAL)
    known = DdlContext(moment_us=1_500_000_000_250_000, time_zone="Asia/Shanghai")
    said = replace(made, job=replace(made.job, context=known))
    assert moment_of(said) == (1_500_000_000.25, "Asia/Shanghai")
    zone_only = DdlContext(time_zone="+08:00")
    of_tidb = replace(made, job=replace(made.job, context=zone_only))
    utc = datetime(2026, 11, 22, 15, 59, 58, tzinfo=UTC).timestamp()
    assert moment_of(of_tidb) == (utc, "+08:00")


def test_who_has_the_text_of_a_ddl_only_gets_its_whole_session() -> None:
    sql = "ALTER TABLE t ADD b DATETIME DEFAULT NOW(), ADD c TIMESTAMP DEFAULT NOW()"
    assert session_of(change(sql)) is None
    of_a_server = DdlContext(moment_us=1_500_000_000_250_000, time_zone="Asia/Shanghai")
    made = change(sql)
    assert session_of(replace(made, job=replace(made.job, context=of_a_server))) == of_a_server
    of_a_tidb = change(sql, b=LITERAL, c="2026-11-22 15:59:58")
    known = DdlContext(sql_mode=frozenset({"NO_ZERO_DATE"}))
    shown = session_of(replace(of_a_tidb, job=replace(of_a_tidb.job, context=known)))
    moment = datetime(2026, 11, 22, 15, 59, 58, tzinfo=UTC)
    assert shown == DdlContext(
        moment_us=int(moment.timestamp()) * 1_000_000,
        time_zone="+08:00",
        offset_s=8 * 3600,
        sql_mode=frozenset({"NO_ZERO_DATE"}),
    )
    mixed = session_of(change(sql, b=LITERAL, c="2026-11-22 15:59:57"))
    assert mixed is not None
    assert dict(mixed.variables).keys() == {"timestamp"}


def test_what_no_one_can_see_downstream_is_not_looked_for_there() -> None:
    done = change("ALTER TABLE t ADD b INT, ADD INDEX i (b), ADD INDEX j (a)")
    ((schema, before, after),) = done.altered
    hidden = tuple(replace(c, hidden=c.name == "b") for c in after.columns)
    made = replace(after, columns=hidden, expression_indexes=("i",))
    seen = things(replace(done, altered=((schema, before, made),)))[1]
    assert ("index", "d", "t", "j") in seen
    assert not {("index", "d", "t", "i"), ("column", "d", "t", "b")} & seen
