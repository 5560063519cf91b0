"""A downstream's sequence is ahead of the upstream's numbers, whatever the sequence is like."""

from hypothesis import given
from hypothesis import strategies as st

from pumpclient.mysql.events.transactions import (
    ALTER_BEGINS,
    ALTER_COMMITS,
    ALTER_IS_UNDONE,
    Query,
    StatusVariables,
    decode_status,
)
from pumpclient.mysql.translate.outputs import Numbers, Sequences
from pumpclient.mysql.translate.statement_text import dialect_of, phase_to_skip, plain_text
from tests.kit.mysql.encoding import encode_status

S = ("d", "s")


@given(
    st.sampled_from([-7, -1, 1, 5]),
    st.integers(0, 500),
    st.lists(st.integers(1, 5000), max_size=60),
)
def test_the_downstream_never_continues_with_a_number_that_was_given_away(
    increment: int, cache: int, steps: list[int]
) -> None:
    sequences, number, reserved, made = Sequences(), 1, None, 0
    for step in steps:
        number += step * increment
        sequences.note(S, Numbers(number, -(1 << 62), 1 << 62, increment, cache, False))
        for name, sql in sequences.take():
            assert (name, sql.rpartition(" ")[0]) == (S, "ALTER SEQUENCE `d`.`s` RESTART WITH")
            reserved, made = int(sql.rpartition(" ")[2]), made + 1
        assert reserved is not None
        assert reserved <= number if increment < 0 else reserved >= number
    assert made <= 1 + sum(steps) // 10_000


def test_what_is_reserved_stays_within_the_sequence() -> None:
    assert Numbers(95, 1, 100, 1, 1000, False).reserved() == 100
    assert Numbers(-95, -100, -1, -1, 1000, False).reserved() == -100
    assert Numbers(5, 1, 100, 1, 10, True).reserved() == 5


def test_only_the_end_of_an_alter_in_two_phases_is_run() -> None:
    for flags, runs in ((ALTER_BEGINS, False), (ALTER_COMMITS, True), (ALTER_IS_UNDONE, False)):
        number = 0 if flags == ALTER_BEGINS else 7
        variables = StatusVariables(sql_mode=0, mariadb_gtid_flags3=(flags, number))
        assert decode_status(encode_status(variables)) == variables
        skipped = phase_to_skip(Query(b"d", b"", encode_status(variables)).variables())
        assert (skipped == "") is runs
    assert not phase_to_skip(StatusVariables())


def test_what_set_statement_runs_is_what_counts() -> None:
    dialect = dialect_of("10.11.6-MariaDB")
    text = "SET STATEMENT sql_mode = '', lock_wait_timeout=(SELECT 1 FOR UPDATE) FOR DROP TABLE t"
    assert plain_text(text, 0, dialect) == "DROP TABLE t"
    assert plain_text("SET x = 1", 0, dialect) == "SET x = 1"
