"""The TiDB demo's plan leaves sysbench its tables, and kills the TiDB between two of its DDLs."""

from itertools import pairwise

from penstock.local.demo.servers import RESTART, TABLES, TIDB_PLAN
from tests.unit.penstock.ddl_session import DdlSession
from tests.unit.test_demo_mysql import sbtest


def test_after_the_plan_all_that_sysbench_names_is_still_there() -> None:
    session = DdlSession(*map(sbtest, range(1, TABLES + 1)))
    for step in TIDB_PLAN:
        for statement in step.sql:
            if not statement.startswith(("INSERT", "UPDATE")):
                session.run(statement)
    for number in range(1, TABLES + 1):
        table = session.table(f"sbtest{number}")
        assert {"id", "k", "c", "pad"} <= {column.name for column in table.columns}
    changed = {statement.split()[2] for step in TIDB_PLAN for statement in step.sql}
    assert f"sbtest{TABLES}" not in changed


def test_the_plan_is_in_order_and_kills_the_tidb_once_with_ddl_before_and_after() -> None:
    assert all(0 < one.share < two.share < 1 for one, two in pairwise(TIDB_PLAN))
    (killed,) = [number for number, step in enumerate(TIDB_PLAN) if step.action == RESTART]
    assert 0 < killed < len(TIDB_PLAN) - 1
    statements = " ".join(statement for step in TIDB_PLAN for statement in step.sql)
    assert "ADD INDEX" in statements
    assert "MODIFY COLUMN" in statements
