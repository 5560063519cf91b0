"""The codes of errors: none changes, none is used twice, and a person sees one of them, once."""

import errno
import json
import logging
import re
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy.site import former_cases, texts
from penstock.codes import SUBJECTS, Code, code_named
from penstock.errors import (
    Corrupt,
    Malformed,
    NeedsOperator,
    Retryable,
    code_fields,
    code_of_call,
    coded,
)
from penstock.node import command
from penstock.node.logs import JsonLines, TextLines, message_of
from tests.test_house import modules

RECORDED = Path(__file__).with_name("codes.txt")
REQUIRED = ("meanwhile", "remedy")
ERROR = NeedsOperator("there is no x", hint="make one", code=Code.SETTING_UNKNOWN)


TEXTS = texts()


def test_a_code_never_changes_its_meaning_and_is_never_used_again() -> None:
    """A new code gets a line; the line of a former code stays, and names the code's successor.

    The words of a line may become better, together with those of the code; what they mean may not.
    """
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    known = dict(line.split(" ", 1) for line in lines)
    assert len(known) == len(lines), "a number is recorded twice"
    assert lines == sorted(lines)
    for code in Code:
        assert known.pop(str(code)) == f"{code.name}: {TEXTS[code]['meaning']}"
    former = {
        f"PS-{number}": f"{case['meaning']} Now {code}."
        for code, text in TEXTS.items()
        for number, case in former_cases(text)
    }
    assert {number: text.split(": ", 1)[1] for number, text in known.items()} == former


def test_no_number_stands_for_two_codes() -> None:
    assert len({text["meaning"] for text in TEXTS.values()}) == len(Code) == len(TEXTS)
    assert {code.value // 1000 for code in Code} == set(SUBJECTS)


def test_every_code_is_one_that_can_be_met() -> None:
    text = "\n".join(path.read_text() for path in modules() if path.name != "codes.py")
    used = set(re.findall(r"\bCode\.([A-Z][A-Z_]+)\b", text))
    assert {code.name for code in Code} - used == set()


def test_a_code_is_explained_in_whole_sentences() -> None:
    for text in TEXTS.values():
        assert len(text["meaning"]) <= 100, text["meaning"]
        for case in text.get("cases", [text]):
            for sentence in (text["meaning"], *(case[key] for key in ("meaning", *REQUIRED))):
                assert sentence[0].isupper() or sentence[0] == "`", sentence
                assert sentence.endswith((".", "?")), sentence
                assert "  " not in sentence, sentence


def test_what_a_person_sees_ends_with_the_code() -> None:
    assert str(ERROR) == "there is no x (make one)"
    assert coded(ERROR) == "there is no x (make one) [PS-1001]"
    assert coded(Corrupt("f", 3, "bad", code=Code.SEGMENT_DAMAGED)).endswith("bad [PS-3001]")
    assert coded(OSError(5, "no")) == "[Errno 5] no"


def test_an_error_that_quotes_another_node_shows_the_code_of_that_node_and_no_second_one() -> None:
    quoted = Retryable(f"pump-1: {coded(ERROR)}", code=Code.PULL_REFUSED)
    assert coded(quoted) == "pump-1: there is no x (make one) [PS-1001]"


def test_a_failed_call_carries_the_code_of_the_error_beside_its_text() -> None:
    given: list[object] = [code_fields(ERROR), None, ()]
    ended = [SimpleNamespace(trailing_metadata=partial(list[object].pop, given, 0)) for _ in given]
    assert [code_of_call(each) for each in ended] == [Code.SETTING_UNKNOWN, None, None]
    assert code_fields(OSError(5, "no")) == ()


def test_a_code_of_a_newer_version_is_none_of_ours() -> None:
    assert code_named("PS-9999") is None
    assert code_named("PS-2001") is Code.ETCD_AWAY


def test_data_that_an_error_quotes_does_not_pass_for_a_code() -> None:
    quoted = Retryable("the row 'PS-1001' is locked", code=Code.SINK_AWAY)
    assert coded(quoted) == "the row 'PS-1001' is locked [PS-7002]"


def test_a_traceback_shows_the_code_below_the_text() -> None:
    assert traceback.format_exception_only(ERROR)[-1].strip() == "PS-1001"


def record(text: str, *given: object) -> logging.LogRecord:
    return logging.LogRecord("some", logging.ERROR, "f", 1, text, given, None)


def test_a_log_line_about_an_error_has_its_code_once() -> None:
    assert message_of(record("%s: %s", "here", ERROR)) == (
        "here: there is no x (make one) [PS-1001]"
    )
    assert message_of(record("%s", coded(ERROR))).count("PS-1001") == 1
    assert message_of(record("all is %s", "well")) == "all is well"
    assert TextLines().format(record("%s", ERROR)).endswith(" [PS-1001]")


def test_a_log_line_as_json_has_the_code_as_a_field() -> None:
    assert json.loads(JsonLines().format(record("%s", ERROR)))["code"] == "PS-1001"
    assert "code" not in json.loads(JsonLines().format(record("all is well")))


@pytest.mark.parametrize(
    ("error", "exit_code", "code"),
    [
        (ERROR, 2, "PS-1001"),
        (Malformed("x", hint="y", code=Code.ETCD_VALUE), 2, "PS-2003"),
        (Retryable("x", code=Code.ETCD_AWAY), 1, "PS-2001"),
        (FileNotFoundError(2, "No such file", "/nowhere"), 2, "PS-1010"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "PS-1010"),
        (ModuleNotFoundError("no plyvel", name="plyvel"), 2, "PS-1009"),
    ],
)
def test_a_command_that_fails_says_the_code_and_whether_a_restart_may_help(
    error: Exception, exit_code: int, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> int:
        raise error

    assert command.run("some", body) == exit_code
    assert capsys.readouterr().err.endswith(f" [{code}]\n")
