"""The table of servers and features in `pumpclient/mysql/README.md` claims what tests show."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "pumpclient" / "mysql" / "README.md"
SERVERS = {"mariadb-10.11": "MariaDB 10.11", "mysql-9": "MySQL 9", "mariadb-11.8": "MariaDB 11.8"}

_SOURCE = "test_mysql_source.py::test_"
_LEFT_OUT = "test_mysql_left_out.py::test_"
_ONLINE = (
    "test_mysql_online_ddl.py::test_an_online_ddl_is_followed_without_its_copy_also_by_a_source_"
    "that_dies_in_it"
)
_RELAY = "test_mysql_relay.py::test_"
_TRANSLATE = "test_mysql_translate_mariadb.py::test_"
FEATURES: dict[str, str | dict[str, str]] = {
    "rows and DDL, exactly once": _SOURCE + "rows_and_ddl_come_out_as_they_are_on_the_server",
    "starts by GTID, by place and now; filters and routes": _SOURCE
    + "start_points_filters_and_routes_bring_what_they_should",
    "a refused statement: skip, replace, a restart between": _SOURCE
    + "a_statement_that_cannot_be_followed_waits_for_a_decision",
    "a table left out and counted (MINIMAL row images)": _LEFT_OUT
    + "a_table_whose_rows_lack_columns_is_left_out_and_counted_while_others_continue",
    "a left-out table through RENAME, DROP and CREATE": _LEFT_OUT
    + "a_left_out_table_stays_so_through_a_swap_a_drop_and_a_creation",
    "a VECTOR column: the table left out and counted": {
        server: _LEFT_OUT
        + f"a_table_with_a_vector_is_left_out_and_counted_while_others_continue[{server}]"
        for server in ("mysql-9", "mariadb-11.8")
    },
    "dates of ALLOW_INVALID_DATES": _LEFT_OUT + "dates_that_no_calendar_has_come_out_as_they_are",
    "generated columns, also where the server does not log them": "test_mysql_generated.py::"
    "test_generated_columns_are_downstream_what_they_are_on_the_server",
    "rows near max_allowed_packet": "test_mysql_packets.py::"
    "test_events_larger_than_the_packets_of_a_server_come_out",
    "gh-ost followed without its copy, killed at the rename": {
        server: _ONLINE + f"[{server}-gh_ost]" for server in SERVERS
    },
    "pt-online-schema-change, the same": {
        server: _ONLINE + f"[{server}-pt_osc]" for server in SERVERS
    },
    "tables of two servers in one": "test_mysql_merged.py::"
    "test_two_servers_tables_become_one_in_any_order_of_alters_and_a_conflict_stops",
    "`inject`, `skip` and `replace` as commands": "test_mysql_commands.py::"
    "test_inject_runs_before_the_statement_that_failed_and_skip_and_replace_in_its_place",
    "the relay log, byte for byte": {
        server: _RELAY + f"files_are_those_of_the_server_and_of_its_own_tool[{server}-OFF-CRC32]"
        for server in SERVERS
    },
    "the same, compressed": {
        server: _RELAY + f"files_are_those_of_the_server_and_of_its_own_tool[{server}-ON-CRC32]"
        for server in SERVERS
    },
    "a relay log through killed dumps": _RELAY
    + "a_killed_dump_and_many_reconnects_leave_neither_gap_nor_duplicate",
    "a relay log through RESET": _RELAY
    + "a_reset_server_begins_a_sub_directory_once_that_is_accepted",
    "a table loaded again under load": "test_mysql_reload.py::"
    "test_what_could_not_be_followed_is_whole_again_after_a_reload_under_load",
    "a reload that is killed": "test_mysql_reload.py::"
    "test_a_reload_that_is_killed_at_any_moment_brings_every_row_once",
    "tables merged into one loaded again together": "test_mysql_reload.py::test_tables_that_are_"
    "merged_into_one_are_loaded_again_together_with_one_that_comes_meanwhile",
    "merged tables of two servers: a reload, then `verify`": "test_mysql_merged.py::test_a_table_"
    "that_several_sources_fill_is_whole_again_after_a_reload_and_a_repair",
    "every type and kind of key loaded, killed between": "test_mysql_load.py::"
    "test_a_killed_load_continues_and_ends_equal_with_every_type_and_kind_of_key",
    "a load straight into the sink, killed, then the binlog": "test_mysql_load_sink.py::"
    "test_a_load_into_the_sink_that_is_cut_off_and_killed_ends_equal_with_the_binlog_behind_it",
    "load and follow, killed between": "test_mysql_load_follow.py::"
    "test_rows_that_change_during_a_load_that_is_killed_come_out_as_they_are",
    "all column types, at random": {
        "mariadb-10.11": _TRANSLATE + "what_was_transcoded_is_what_the_server_holds[0-FULL]",
        "mysql-9": _TRANSLATE
        + "what_a_mysql_logs_comes_to_what_it_holds_in_every_form_that_it_has[FULL-OFF-]",
    },
    "transactions or rows compressed in the binlog": {
        "mariadb-10.11": _TRANSLATE + "what_was_transcoded_is_what_the_server_holds[1-FULL]",
        "mysql-9": _TRANSLATE + "what_a_mysql_logs_comes_to_what_it_holds_in_every_form_that_it_has"
        "[FULL-ON-PARTIAL_JSON]",
    },
    "`PARTIAL_JSON`, GTIDs with tags, MINIMAL metadata": {
        "mysql-9": _TRANSLATE + "what_a_mysql_logs_comes_to_what_it_holds_in_every_form_that_it_has"
        "[MINIMAL-ON-PARTIAL_JSON]"
    },
    "XA, CREATE TABLE … SELECT, temporary tables": {
        "mariadb-10.11": _TRANSLATE + "the_servers_own_framing_of_xa_selects_and_many_tables",
        "mysql-9": _TRANSLATE + "a_mysql_frames_xa_selects_and_many_tables_in_its_own_way",
    },
}


def shown_by(test: str | dict[str, str], server: str) -> str | None:
    """Return the id of the test that shows a feature on a server, None where none does."""
    return test.get(server) if isinstance(test, dict) else f"{test}[{server}]"


def collected(marks: str) -> set[str]:
    """Return the ids of all tests that a selection by marks would run, without their folder."""
    files = sorted({
        name.split("::")[0]
        for test in FEATURES.values()
        for name in (test.values() if isinstance(test, dict) else (test,))
    })  # fmt: skip
    folder = "tests/integration"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks]
        + [f"{folder}/{name}" for name in files],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    return {line.removeprefix(f"{folder}/") for line in done.stdout.splitlines() if "::" in line}


def table(often: set[str], seldom: set[str]) -> str:
    """Return the table as these tests show it."""
    lines = ["| | " + " | ".join(SERVERS.values()) + " |", "|---" * (len(SERVERS) + 1) + "|"]
    for feature, test in FEATURES.items():
        cells = []
        for server in SERVERS:
            name = shown_by(test, server)
            assert name is None or name in often | seldom, f"no test {name}"
            cells.append("–" if name is None else "yes" if name in often else "slow")
        lines.append(f"| {feature} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_the_table_of_servers_and_features_is_what_the_tests_show() -> None:
    wanted = table(collected("not slow"), collected("slow"))
    assert wanted in README.read_text(), f"put this into {README}:\n{wanted}"
