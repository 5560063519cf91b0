"""A DDL in the words of the server that runs it, and what that server cannot do."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from drainer.sinks.mysql.server import spelled
from penstock.errors import NeedsOperator
from tests.unit.penstock.ddl_session import DdlSession

MARIADB, MYSQL = "5.5.5-10.11.6-MariaDB", "9.7.0"


@dataclass
class Server:
    version: str

    def get_server_info(self) -> str:
        return self.version


def spelled_on(version: str, sql: str, *before: str, instead: str = "") -> str:
    session = DdlSession(*before)
    session.run(sql)
    change = session.changes[-1]
    if instead:
        change = replace(change, job=replace(change.job, query=instead))
    server: Any = Server(version)
    return spelled(server, change, is_tidb=False)


TABLE = "CREATE TABLE t (id INT PRIMARY KEY, u UUID, i INET4, v VARCHAR(40), n INT)"


@pytest.mark.parametrize(
    "operation",
    ["MODIFY v UUID", "MODIFY i INET6", "MODIFY u BINARY(16)", "CHANGE i n2 INT UNSIGNED"],
)
def test_a_mysql_does_not_convert_what_only_a_mariadb_can(operation: str) -> None:
    sql = f"ALTER TABLE t {operation}"
    assert spelled_on(MARIADB, sql, TABLE) == f"ALTER TABLE `t` {operation}"
    with pytest.raises(NeedsOperator, match="the downstream does not have") as refusal:
        spelled_on(MYSQL, sql, TABLE)
    assert "track this DDL" in refusal.value.hint


@pytest.mark.parametrize(
    "operation", ["MODIFY u CHAR(36)", "MODIFY i TEXT", "CHANGE u w UUID", "MODIFY n BIGINT"]
)
def test_a_mysql_has_texts_that_stay_what_they_are(operation: str) -> None:
    assert "ALTER TABLE `t`" in spelled_on(MYSQL, f"ALTER TABLE t {operation}", TABLE)


def test_an_operators_statement_may_stand_in_the_place_of_such_a_conversion() -> None:
    own = "ALTER TABLE t MODIFY v CHAR(36)"
    assert spelled_on(MYSQL, "ALTER TABLE t MODIFY v UUID", TABLE, instead=own) == own


def test_a_sequence_that_a_mysql_does_not_have_is_not_renamed_there() -> None:
    assert spelled_on(MYSQL, "RENAME TABLE s TO x", "CREATE SEQUENCE s") == ""
    both = spelled_on(MYSQL, "RENAME TABLE s TO x, t TO s", "CREATE SEQUENCE s", TABLE)
    assert both == "RENAME TABLE `t` TO `s`"
