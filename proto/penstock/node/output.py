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

from penstock.errors import NeedsOperator
from penstock.wire.binlog_text import time_text

TEXT: Final = "text"
JSON: Final = "json"


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add `-o` to a command."""
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
        raise NeedsOperator(f"unknown output {form!r}", hint="use -o text or -o json")
    return form, rest


def show(arguments: argparse.Namespace, facts: Any, text: str) -> None:
    """Print what a command found: `facts` as JSON, or `text`."""
    write(arguments.output, facts, text)


def write(output: str, facts: Any, text: str) -> None:
    """Print `facts` as JSON when that is the output, else `text`."""
    if output == JSON:
        text = json.dumps(facts, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write(f"{text}\n")


def write_line(facts: Any) -> None:
    """Print one object of many, on one line."""
    sys.stdout.write(json.dumps(facts, ensure_ascii=False, default=str) + "\n")


def plain(value: object) -> object:
    """Return a value of a row as JSON has it: numbers and texts as they are, bytes in hexadecimal.

    What JSON has no form for, as a date or a decimal, is text.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def moment_of(ts: int) -> str | None:
    """Return the time of a timestamp, None for none."""
    return time_text(ts) if ts else None
