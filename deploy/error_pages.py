"""Generates error pages in Markdown: a page for each subject of the codes, and an index.

A code's meaning, its consequence and its remedy are in the catalog (`penstock.codes`). The messages
are those of the raise sites, read from the source: a placeholder stands for each value.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from penstock.codes import SUBJECTS, Code
from penstock.node import command

_ROOT: Final = Path(__file__).parents[1]
_FOLDERS: Final = ("proto/penstock", "pump", "drainer", "pumpclient", "deploy")
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


def page_of(subject: int) -> str:
    return f"reference/errors/{subject}xxx.md"


def index() -> str:
    parts = [_INTRODUCTION]
    parts += [f"| {code} | {meaning} |\n" for code, meaning in exit_codes()]
    for subject, title in SUBJECTS.items():
        parts.append(f"\n## {title}\n\n| code | meaning |\n|---|---|\n")
        page = page_of(subject).removeprefix("reference/")
        for code in _codes_of(subject):
            parts.append(f"| [{code}]({page}#{_anchor(code)}) | {code.meaning} |\n")
    return "".join(parts)


def pages() -> Iterator[tuple[str, str]]:
    """Yield path and text of each subject's page; links are relative to the root folder."""
    messages = messages_of_sites()
    for subject, title in SUBJECTS.items():
        parts = [f"# {title}\n"]
        for code in _codes_of(subject):
            parts.append(
                f"\n## {code}\n\n**{code.meaning}**\n\n{code.meanwhile}\n\n"
                f"*What to do:* {code.remedy}\n"
            )
            if shown := messages.get(code.name):
                parts.append("\nAs it is said:\n\n")
                parts += [f"* `` {message} ``\n" for message in shown]
        yield page_of(subject), "".join(parts)


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
    return sorted((c for c in Code if c.number // 1000 == subject), key=lambda c: c.number)


def _anchor(code: Code) -> str:
    return str(code).lower()


def _code_name(call: ast.Call) -> str:
    for keyword in call.keywords:
        if keyword.arg == "code":
            of, _, name = ast.unparse(keyword.value).rpartition(".")
            return name if of == Code.__name__ else ""
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
    texts = [text for each in call.args if (text := _template(each, constants))]
    if not texts:
        return
    text = texts[-1] if len(call.args) == 3 else texts[0]
    if not text.strip(f" {_VALUE}:;,.()'"):
        return
    where = f"{_VALUE}, offset {_VALUE}: " if len(call.args) == 3 else ""
    hint = next((_template(k.value, constants) for k in call.keywords if k.arg == "hint"), "")
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
