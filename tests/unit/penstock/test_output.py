"""What commands print: text for people, JSON for programs."""

import datetime as dt
import decimal
import json

import pytest

from penstock.errors import NeedsOperator
from penstock.node.output import JSON, TEXT, moment_of, plain, take_output, write, write_line
from penstock.ts import compose


@pytest.mark.parametrize("flag", [["-o", "json"], ["--output", "json"], ["--output=json"]])
def test_the_output_is_taken_out_wherever_it_stands_and_the_rest_stays_as_it_is(
    flag: list[str],
) -> None:
    rest = ["replace", "5", "-- a comment\nDROP TABLE t", "--", "--addr=x"]
    for at in range(len(rest) + 1):
        assert take_output([*rest[:at], *flag, *rest[at:]]) == (JSON, rest)
    assert take_output(rest) == (TEXT, rest)


@pytest.mark.parametrize("flag", [["-o", "xml"], ["--output="], ["-o"]])
def test_another_output_is_refused(flag: list[str]) -> None:
    with pytest.raises(NeedsOperator, match="use -o text or -o json"):
        take_output(["list", *flag])


def test_facts_are_one_document_or_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"name": "Grüße\n", "ts": 463_000_000_000_000_001}
    write(JSON, facts, "text")
    assert json.loads(capsys.readouterr().out) == facts
    write(TEXT, facts, "text")
    assert capsys.readouterr().out == "text\n"
    write_line(facts)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == facts


def test_values_of_rows_have_a_form_in_json() -> None:
    values = [None, True, 1, 1.5, "a", b"\x00\xff", decimal.Decimal("1.50"), dt.date(2026, 11, 22)]
    expected = [None, True, 1, 1.5, "a", "00ff", "1.50", "2026-11-22"]
    assert [plain(value) for value in values] == expected
    assert plain(float("nan")) == "nan"


def test_the_moment_of_a_timestamp_is_utc_and_that_of_none_is_none() -> None:
    assert moment_of(compose(1_700_000_000_016, 3)) == "2023-11-14T22:13:20.016Z"
    assert moment_of(0) is None
