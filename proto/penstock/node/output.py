"""Output of commands: text for people, or JSON for programs (`-o json`, `--output json`).

JSON is one document on stdout, or one object a line where a command goes through many records. Keys
are snake_case, timestamps numbers, times UTC as in RFC 3339. Errors stay lines on stderr, and the
exit code is the same.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import Any, Final

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.wire.binlog_text import time_text

TEXT: Final = "text"
JSON: Final = "json"


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", choices=(TEXT, JSON), default=TEXT, help="text (default), or json"
    )


def take_output(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return the output that a command line asks for, and the command line without that.

    For commands whose other flags are a node's settings; raises `NeedsOperator` for another output.
    """
    form, rest, words = TEXT, [], iter(argv)
    for word in words:
        if word in ("-o", "--output"):
            form = next(words, "")
        elif word.startswith("--output="):
            form = word.partition("=")[2]
        else:
            rest.append(word)
    if form not in (TEXT, JSON):
        raise NeedsOperator(
            f"unknown output {form!r}", "use -o text or -o json", Code.COMMAND_INVALID
        )
    return form, rest


def show(arguments: argparse.Namespace, facts: Any, text: str) -> None:
    write(arguments.output, facts, text)


def write(output: str, facts: Any, text: str) -> None:
    if output == JSON:
        text = json.dumps(facts, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write(f"{text}\n")


def write_line(facts: Any) -> None:
    sys.stdout.write(json.dumps(facts, ensure_ascii=False, default=str) + "\n")


def plain(value: object) -> object:
    """Return a value of a row as JSON has it: numbers and texts as they are, bytes in hexadecimal.

    A value without a form in JSON, such as a date or a decimal, is text.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def moment_of(ts: int) -> str | None:
    return time_text(ts) if ts else None
