"""Slices of a transaction on a real MariaDB leave what the whole transaction would leave."""

from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.sinks.mysql.session import SQL_MODE
from drainer.task.sql.literals import MYSQL
from tests.kit.fakes.sliced import sliced, sql_of
from tests.kit.servers.fix_mariadb import MariadbServer
from tests.kit.workloads.changes import CASES, Case, Upstream, batch_of, examples, histories, played


@pytest.mark.main_case("integer key and unique values")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_slices_leave_what_the_whole_transaction_leaves(mariadb: MariadbServer, case: Case) -> None:
    table = case.table
    with closing(mariadb.connect()) as connection, connection.cursor() as cursor:
        for schema in ("s", "whole"):
            cursor.execute(f"CREATE OR REPLACE DATABASE {schema}")
            cursor.execute(f"USE {schema}")
            cursor.execute("SET sql_mode = ''")
            cursor.execute(case.sql)
        cursor.execute(f"SET SESSION sql_mode = '{SQL_MODE}', time_zone = '+00:00'")

        def content(schema: str) -> list[Any]:
            cursor.execute(f"SELECT * FROM {schema}.t")
            return sorted(cursor.fetchall(), key=repr)

        @examples(8)
        @given(drawn=histories(case, 30), bytes_max=st.sampled_from([1, 150, 400]))
        def check(drawn: Any, bytes_max: int) -> None:
            for schema in ("s", "whole"):
                connection.query(f"DELETE FROM {schema}.t")
            upstream = Upstream(table)
            for changes in played(case, upstream, drawn):
                connection.begin()
                for statement in sliced(table, changes, bytes_max, MYSQL):
                    connection.query(statement)
                for statement in sql_of(batch_of(table, changes, schema="whole"), MYSQL):
                    connection.query(statement)
                connection.commit()
                assert content("s") == content("whole")
                assert len(content("s")) == len(upstream.rows)

        check()
