"""What a QUERY says of its session, as servers write it, and the DDL context that it comes to."""

from collections.abc import Callable

import pytest

from penstock.errors import NeedsOperator
from penstock.schema.ddl_context import ROUNDS
from pumpclient.mysql.events.transactions import StatusVariables, decode_status
from pumpclient.mysql.source.ddl.session import ServerDefaults, context_of, modes_named
from pumpclient.mysql.translate.statement_text import dialect_of

MARIADB, MYSQL = dialect_of("10.11.19-MariaDB"), dialect_of("9.7.4")
EVENT_S = 1_795_642_840

# Of ALTER TABLE … ADD d DATETIME(6) … DEFAULT CURRENT_TIMESTAMP(6) at +08:00.
OF_MARIADB_10_11 = bytes.fromhex(
    "00000000010100002054000000000603737464042d002d002d0005062b30383a303080482b01811100000000000000"
)
OF_MYSQL_9 = bytes.fromhex(
    "0000000000012000a04500000000060373746404ff00ff00ff0005062b30383a3030"
    "0c0173686f70000d01300e11120000000000000012ff001300"
)


def no_server() -> ServerDefaults:
    return ServerDefaults()


def berlin() -> ServerDefaults:
    return ServerDefaults("Europe/Berlin", {"old_mode": "ZERO_DATE_TIME_CAST,OTHER"})


def test_what_a_mariadb_writes_is_read() -> None:
    found = decode_status(OF_MARIADB_10_11)
    assert found == StatusVariables(
        flags2=1 << 24,
        sql_mode=0x54200000,
        charsets=(45, 45, 45),
        time_zone="+08:00",
        mariadb_hrnow_us=76_616,
    )
    context = context_of(found, MARIADB, EVENT_S, no_server)
    assert context.moment_us == EVENT_S * 1_000_000 + 76_616
    assert (context.time_zone, context.offset_s) == ("+08:00", 28_800)
    assert context.sql_mode is not None
    assert set(context.sql_mode) == {
        "STRICT_TRANS_TABLES", "ERROR_FOR_DIVISION_BY_ZERO", "NO_AUTO_CREATE_USER",
        "NO_ENGINE_SUBSTITUTION",
    }  # fmt: skip
    assert dict(context.variables) == {
        "auto_increment_increment": "1",
        "auto_increment_offset": "1",
        "collation_connection": "utf8mb4_general_ci",
        "lc_time_names": "0",
        "old_mode": "",
        "version": "10.11.19-MariaDB",
    }


def test_what_a_mysql_writes_is_read() -> None:
    found = decode_status(OF_MYSQL_9)
    assert (found.microseconds, found.time_zone) == (929_793, "+08:00")
    assert found.default_collation_utf8mb4 == 255
    context = context_of(found, MYSQL, EVENT_S, no_server)
    assert context.moment_us == EVENT_S * 1_000_000 + 929_793
    assert context.sql_mode is not None
    assert ROUNDS in context.sql_mode
    variables = dict(context.variables)
    assert variables["default_collation_for_utf8mb4"] == "utf8mb4_0900_ai_ci"
    assert variables["old_mode"] == "UTF8_IS_UTF8MB3"
    assert variables["version"] == "9.7.4"


def test_numbers_that_are_not_the_usual_ones_are_taken() -> None:
    said = StatusVariables(auto_increment=(5, 3), lc_time_names=4)
    variables = dict(context_of(said, MARIADB, EVENT_S, no_server).variables)
    assert variables["auto_increment_increment"] == "5"
    assert variables["auto_increment_offset"] == "3"
    assert variables["lc_time_names"] == "4"


def test_system_is_the_servers_zone_at_the_moment_of_the_event() -> None:
    said = StatusVariables(time_zone="SYSTEM")
    summer = context_of(said, MARIADB, 1_625_000_000, berlin)
    winter = context_of(said, MARIADB, 1_610_000_000, berlin)
    assert (summer.time_zone, summer.offset_s) == ("Europe/Berlin", 7200)
    assert (winter.time_zone, winter.offset_s) == ("Europe/Berlin", 3600)
    assert dict(winter.variables)["old_mode"] == "ZERO_DATE_TIME_CAST"


@pytest.mark.parametrize(("zone", "defaults"), [("SYSTEM", no_server), ("Europe/Nowhere", berlin)])
def test_a_zone_that_no_one_knows_stops_with_a_way_out(
    zone: str, defaults: Callable[[], ServerDefaults]
) -> None:
    with pytest.raises(NeedsOperator, match="time zone") as caught:
        context_of(StatusVariables(time_zone=zone), MARIADB, EVENT_S, defaults)
    assert "statement to run instead" in caught.value.hint


def test_a_statement_that_used_no_zone_has_none() -> None:
    context = context_of(StatusVariables(), MARIADB, EVENT_S, no_server)
    assert (context.time_zone, context.offset_s, context.sql_mode) == (None, 0, None)


def test_whether_fractions_are_rounded_is_said_alike_of_both_servers() -> None:
    cuts, rounds = 1 << 32, 1 << 34
    assert ROUNDS in modes_named(0, MYSQL)
    assert modes_named(cuts, MYSQL) == frozenset()
    assert modes_named(0, MARIADB) == frozenset()
    assert modes_named(rounds, MARIADB) == {ROUNDS}
    assert modes_named(1 << 32, MARIADB) == {"EMPTY_STRING_IS_NULL"}
