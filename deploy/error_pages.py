"""Generates error pages in Markdown: a page for each subject of the codes, and an index.

`errors.toml` contains the meaning, the effect and the remedy of each code (`penstock.codes`). The
messages are those of the raise sites, read from the source: a placeholder stands for each value.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.codes import SUBJECTS, Code
from penstock.node import command

_ROOT: Final = Path(__file__).parents[1]
_FOLDERS: Final = (
    "proto/penstock",
    "pump",
    "drainer",
    "pumpclient",
    "ctl",
    "penstock_local",
    "deploy",
)
_VALUE: Final = "…"

INDEX: Final = "reference/errors.md"
_INTRODUCTION: Final = f"""\
# Every error

An error ends with its code, as `[PS-1001]`: the line of a command, a node's log line, the status of
a call, and the field `code` where the output is JSON. A code never changes its meaning, so it is
what to search for and what to alert on; the words before it may become better. Where a line quotes
another node, the code is that node's. In the messages below "{_VALUE}" stands for a value, and what
is in parentheses says what can be done.

A command that is given an unknown flag shows its `usage:` and has no code. In a program that uses
`pumpclient`, the code is `error.code`, and a traceback shows it below the text.

## Exit codes

The same for every program. [Running Penstock](../operate/running.md#exit-codes) says what a
supervisor should do about each.

| code | meaning |
|---|---|
"""

_FORMER: Final = """\

## Former codes

Penstock no longer reports these codes. Each situation has the code in the second column.

| former code | code | meaning |
|---|---|---|
"""


def page_of(subject: int) -> str:
    return f"reference/errors/{subject}xxx.md"


def texts() -> dict[Code, dict[str, Any]]:
    """Return the text of each code: its meaning, effect and remedy, or those of each case."""
    data = tomllib.loads((_ROOT / "deploy/errors.toml").read_text(encoding="utf-8"))
    return {Code[name]: text for name, text in data.items()}


def index() -> str:
    found = texts()
    parts = [_INTRODUCTION]
    parts += [f"| {code} | {meaning} |\n" for code, meaning in exit_codes()]
    for subject, title in SUBJECTS.items():
        parts.append(f"\n## {title}\n\n| code | meaning |\n|---|---|\n")
        parts += [f"| {_link(code)} | {found[code]['meaning']} |\n" for code in _codes_of(subject)]
    parts.append(_FORMER)
    former = ((number, code, case) for code in found for number, case in former_cases(found[code]))
    for number, code, case in sorted(former, key=lambda each: each[0]):
        parts.append(f"| PS-{number} | {_link(code)} | {case['meaning']} |\n")
    return "".join(parts)


def former_cases(text: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each former code of a code, and the case that it named."""
    return ((case["former"], case) for case in text.get("cases", ()) if "former" in case)


def pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of each subject's page; links are relative to the root folder."""
    found, messages = texts(), messages_of_sites()
    for subject, title in SUBJECTS.items():
        parts = [f"# {title}\n"]
        for code in _codes_of(subject):
            text = found[code]
            parts.append(f"\n## {code}\n\n**{text['meaning']}**\n")
            for case in text.get("cases", ()):
                former = f" (formerly PS-{case['former']})" if "former" in case else ""
                parts.append(f"\n*{case['meaning']}*{former}\n\n{_remedy(case)}")
            if "cases" not in text:
                parts.append(f"\n{_remedy(text)}")
            if shown := messages.get(code.name):
                parts.append("\nMessages:\n\n")
                parts += [f"* `` {message} ``\n" for message in shown]
        yield page_of(subject), "".join(parts)


def _remedy(text: Mapping[str, str]) -> str:
    return f"{text['meanwhile']}\n\nRemedy: {text['remedy']}\n"


def _link(code: Code) -> str:
    page = page_of(code.value // 1000).removeprefix("reference/")
    return f"[{code}]({page}#{str(code).lower()})"


def exit_codes() -> Iterator[tuple[str, str]]:
    """Yield the exit codes with their meaning, from the docstring of `penstock.node.command`.

    Their lines start with the number; continuation lines are indented.
    """
    rows: list[list[str]] = []
    for line in (command.__doc__ or "").splitlines():
        if line[:1].isdigit():
            number, _, meaning = line.partition(" ")
            rows.append([number, meaning.strip()])
        elif line.startswith(" ") and rows:
            rows[-1][1] += " " + line.strip()
    return ((number, meaning) for number, meaning in rows)


def messages_of_sites() -> dict[str, list[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for folder in _FOLDERS:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            if "pb" in path.parts:
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            constants = _constants(tree)
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and (name := _code_name(node)):
                    found[name].update(_message(node, constants))
    return {name: sorted(each) for name, each in found.items()}


def _codes_of(subject: int) -> list[Code]:
    return sorted((c for c in Code if c.value // 1000 == subject), key=lambda c: c.value)


def _code_name(call: ast.Call) -> str:
    """Return the code of a call that makes an error: the argument `code`, or one by position."""
    found = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    if ast.unparse(call.func).rpartition(".")[2][:1].isupper():
        found += call.args
    return next((name for each in found if (name := _code(each))), "")


def _code(value: ast.expr) -> str:
    if isinstance(value, ast.Attribute) and ast.unparse(value.value) == Code.__name__:
        return value.attr
    return ""


def _constants(tree: ast.Module) -> dict[str, str]:
    return {
        target.id: text
        for node in tree.body
        if isinstance(node, ast.Assign) and (text := _template(node.value, {}))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _message(call: ast.Call, constants: Mapping[str, str]) -> Iterator[str]:
    """Yield the text of an error that a call makes, if it is a literal.

    For `Corrupt` the text is the third argument, after path and offset.
    """
    given = [each for each in call.args if not _code(each)]
    hint = next((_template(k.value, constants) for k in call.keywords if k.arg == "hint"), "")
    if len(given) == 2 and len(given) < len(call.args):  # A hint and a code by position.
        hint = _template(given.pop(), constants)
    texts = [text for each in given if (text := _template(each, constants))]
    if not texts:
        return
    has_place = len(given) == 3
    text = texts[-1] if has_place else texts[0]
    if not text.strip(f" {_VALUE}:;,.()'"):
        return
    where = f"{_VALUE}, offset {_VALUE}: " if has_place else ""
    yield " ".join(f"{where}{text}{f' ({hint})' if hint else ''}".split())


def _template(value: ast.expr, constants: Mapping[str, str]) -> str:
    if isinstance(value, ast.Name):
        return constants.get(value.id, "")
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else _VALUE for part in value.values
        )
    return ""
