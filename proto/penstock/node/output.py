"""Output of commands: text for people, or JSON for programs (`-o json`, `--output json`).

JSON is one document on stdout, or one object a line where a command goes through many records. Keys
are snake_case, timestamps numbers, times UTC as in RFC 3339. Errors stay lines on stderr, and the
exit code is the same.

A node's status is text for people; as JSON it has numbers, booleans and snake_case keys:

    uptime_s                    "12"             "uptime_s": 12
    leads_oracle                "True"           "leads_oracle": true
    pump h:8250                 "online, ok"     "pumps": [{"node_id": "h:8250",
    pump h:8250 received_ts     "463…"                      "summary": "online, ok",
                                                            "received_ts": 463…}]

The left side is `StatusReply.details`, a line for each.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.pb import penstock_pb2
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


_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")
_TRUTHS: Final = {"True": True, "False": False}
_KINDS: Final = {
    "pump": "node_id",
    "drainer": "node_id",
    "transaction": "start_ts",
    "problem": "time",
}
"""The subjects of details, and the JSON key that names each of them."""
_TEXTS: Final = frozenset({"node_id", "instance", "labels", "label", "key"})
"""Values that are names, even if they look like numbers."""
_NO_KEY = re.compile(r"[^a-z0-9]+")


def facts_of(reply: penstock_pb2.StatusReply) -> dict[str, Any]:
    return {
        "node_id": reply.node_id,
        "state": reply.state,
        "max_commit_ts": reply.max_commit_ts,
        **typed(reply.details),
    }


def typed(details: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    named: dict[tuple[str, str], dict[str, Any]] = {}
    for key, text in sorted(details.items()):
        kind, _, rest = key.partition(" ")
        if kind not in _KINDS or not rest:
            name = key_of(key)
            facts[name] = _value(name, text)
            continue
        one, _, name = rest.partition(" ")
        about = named.setdefault((kind, one), {_KINDS[kind]: _value(_KINDS[kind], one)})
        what = key_of(name) or "summary"
        about[what] = _value(what, text)
    for (kind, _), about in named.items():
        facts.setdefault(f"{kind}s", []).append(about)
    return facts


def _value(name: str, text: str) -> Any:
    return text if name in _TEXTS else value_of(text)


def key_of(name: str) -> str:
    return _NO_KEY.sub("_", name.lower()).strip("_")


def value_of(text: str) -> Any:
    if text in _TRUTHS:
        return _TRUTHS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
