"""The documentation site: pages that are kept beside the code, and pages generated from it.

A hook of MkDocs (`mkdocs.yml`). Links between pages beside the code are turned into links of the
site; a link to a file without a page is shown as the name of that file.

Settings are shown as in their samples, which a test compares with the programs. Options are read
from the source of `pumpclient.options`: a comment above an option is its explanation. Commands are
shown as `--help` prints them.

`error_texts.toml` contains meaning, effect and remedy of each error code (`penstock.codes`).
The messages are those of the raise sites, read from the source: a placeholder stands for a value.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from drainer import ddl_command
from drainer.settings.targets import (
    FilesTarget,
    KafkaTarget,
    LakeTarget,
    MysqlTarget,
    Target,
    option_name,
    options_of,
)
from penstock import __main__ as penstock
from penstock import completion
from penstock.codes import SUBJECTS, Code
from penstock.ctl import commands as ctl
from penstock.local import init
from penstock.local.demo import __main__ as demo
from penstock.node import command
from pumpclient.mysql.source import command as source
from pumpclient.mysql.verify import command as verify

_ROOT = Path(__file__).parents[1]
_GUIDES = sorted((_ROOT / "drainer/guide").glob("*.md"))
PAGES: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "reference/changelog.md",
    "proto/penstock/ctl/README.md": "operate/ctl.md",
    "deploy/README.md": "operate/running.md",
    "deploy/monitoring/runbook.md": "operate/runbook.md",
    "drainer/README.md": "drainer/overview.md",
    "pump/README.md": "operate/pump.md",
    "pumpclient/README.md": "writers/pumpclient.md",
    "pumpclient/mysql/README.md": "writers/mysql.md",
    **{f"drainer/guide/{path.name}": f"drainer/{path.name}" for path in _GUIDES},
}
"""Files of the project, and their places in the site."""
_FROM_ROOT = "."
"""The place of a generated page whose links are relative to the root folder."""
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for file, page in PAGES.items():
        text = (_ROOT / file).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=linked(text, file, page)))
    for page, text in (*pages(), (INDEX, error_index())):
        files.append(File.generated(config, page, content=text))
    for page, text in error_pages():
        files.append(File.generated(config, page, content=linked(text, _FROM_ROOT, page)))
    return files


def linked(text: str, source: str, page: str) -> str:
    def link(found: re.Match[str]) -> str:
        shown, target, anchor = found[1], found[2], found[3] or ""
        if not target or "://" in target:
            return found[0]
        file = os.path.normpath(PurePosixPath(source).parent / target)
        of_site = PAGES.get(file, file.removeprefix("docs/") if file.startswith("docs/") else "")
        if of_site:
            there = os.path.relpath(of_site, PurePosixPath(page).parent)
            return f"[{shown}]({there}{anchor})"
        return shown if "`" in shown or shown == file else f"{shown} (`{file}`)"

    return _LINK.sub(link, text)


_SAMPLES: Final[Mapping[str, str]] = {
    "A Pump": "pump.toml",
    "A Drainer": "drainer.toml",
    "A source": "mysql_source.toml",
}
_SINKS: Final[Mapping[str, type[Target]]] = {
    "MySQL, MariaDB, TiDB": MysqlTarget,
    "Files": FilesTarget,
    "Kafka": KafkaTarget,
    "Delta tables": LakeTarget,
}
_COLUMNS: Final = "92"
"""The width of a help text."""


def pages() -> Iterator[tuple[str, str]]:
    yield "reference/settings.md", settings()
    yield "reference/options.md", options()
    yield "reference/commands.md", commands()


def settings() -> str:
    parts = [
        "# Every setting\n",
        "As keys of the file that `--config` names. Each is also a flag and a variable: `data-dir`"
        " of a Pump is `--data-dir` and `PUMP_DATA_DIR`; `group-count-max` in `[sync]` of a source"
        " is `--sync-group-count-max` and `MYSQL_SOURCE_SYNC_GROUP_COUNT_MAX`. Flags win over"
        " variables, variables over the file. What a program writes is in"
        " [Every option of a writer](options.md).\n",
    ]
    for title, name in _SAMPLES.items():
        text = (_ROOT / "deploy/conf" / name).read_text(encoding="utf-8")
        parts.append(f"## {title}\n\n```toml\n{text}```\n")
    parts.append(
        "## Options of a sink's URL\n\nThe URL in `sink` of a Drainer ends with its options:"
        " `?name=value&name=value`. Percent-encode special characters. SQLite has no options.\n"
    )
    for name, target in _SINKS.items():
        head = f"### {name}\n\n| option | default | meaning |\n|---|---|---|"
        parts.append("\n".join((head, *map(_option, options_of(target)), "")))
    return "\n".join(parts)


def _option(option: Any) -> str:
    metadata, default = option.metadata, option.default
    if option.name.endswith("_s"):
        default = f"{default:g}s"
    elif isinstance(default, bool):
        default = str(default).lower()
    shown = "" if default in ("", None, ()) else f"`{default}`"
    text = metadata["help"]
    if values := ", ".join(f"`{each}`" for each in metadata["choices"] if each):
        text += f". Values: {values}"
    if metadata["only"]:
        text += f". Only for: {', '.join(metadata['only'])}"
    return f"| `{option_name(option)}` | {shown} | {text} |"


def options() -> str:
    parts = [
        "# Every option of a writer\n",
        "Fields of `pumpclient.Options`, for a program that writes:"
        ' `PumpClient.connect(etcd_urls, options=Options(labels=("zone=a",)))`. Few programs ever'
        " need to change one. Bounds are for each Pump unless they say otherwise.\n",
        "| option | type | default | meaning |\n|---|---|---|---|",
    ]
    parts += [f"| {' | '.join(row)} |" for row in options_of_a_writer()]
    return "\n".join(parts)


def options_of_a_writer() -> Iterator[tuple[str, str, str, str]]:
    text = (_ROOT / "pumpclient/options.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    defined = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    for node in defined.body:
        if not isinstance(node, ast.AnnAssign) or node.value is None:
            continue
        above: list[str] = []
        number = node.lineno - 2
        while lines[number].startswith("    # "):
            above.insert(0, lines[number].removeprefix("    # "))
            number -= 1
        kind = ast.unparse(node.annotation).replace("|", "or")
        name, default = f"`{ast.unparse(node.target)}`", f"`{ast.unparse(node.value)}`"
        yield name, kind, default, " ".join(above)


def commands() -> str:
    parts = [
        "# Every command\n\n"
        "As `--help` prints it. The flags that start a Pump, a Drainer or a source are its"
        " [settings](settings.md). Exit codes are those of [every program](errors.md#exit-codes).\n"
    ]
    for title, text in helps():
        parts.append(f"\n## {title}\n\n```text\n{text.rstrip()}\n```\n")
    return "".join(parts)


def helps() -> Iterator[tuple[str, str]]:
    with _neutral():
        yield "penstock", _printed(penstock.main)
        for prefix, parser in (
            ("penstock ctl", ctl.command_parser()),
            ("penstock source", source.command_parser()),
        ):
            for name, each in _commands_of(parser).items():
                yield f"{prefix} {name}", each.format_help()
        yield "penstock drainer ddl", ddl_command.USAGE
        yield "penstock verify", verify.command_parser().format_help()
        yield "penstock init", _printed(init.main)
        yield "penstock completion", _printed(completion.main)
        yield "penstock demo", _printed(demo.main)


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError(f"{parser.prog} has no commands")


def _printed(main: Callable[[Sequence[str]], int]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(["--help"])
    return out.getvalue()


@contextlib.contextmanager
def _neutral() -> Iterator[None]:
    before = dict(os.environ)
    os.environ["COLUMNS"] = _COLUMNS
    for name in [each for each in os.environ if each.startswith("PENSTOCK_")]:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# --- errors --------------------------------------------------------------------------------------

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

_FORMER: Final = """\

## Former codes

Penstock no longer reports these codes. Each situation has the code in the second column.

| former code | code | meaning |
|---|---|---|
"""


def page_of(subject: int) -> str:
    return f"reference/errors/{subject}xxx.md"


def texts() -> dict[Code, dict[str, Any]]:
    data = tomllib.loads((_ROOT / "deploy/error_texts.toml").read_text(encoding="utf-8"))
    return {Code[name]: text for name, text in data.items()}


def error_index() -> str:
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
    return ((case["former"], case) for case in text.get("cases", ()) if "former" in case)


def error_pages() -> Iterator[tuple[str, str]]:
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
    """Return the messages of each code: of calls with a code, or of a factory of errors.

    A factory is a function `f(problem, hint)` that returns an error with a code.
    """
    trees = {}
    for path in (path for folder in _FOLDERS for path in sorted((_ROOT / folder).rglob("*.py"))):
        if "pb" not in path.parts:
            module = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
            trees[module.removeprefix("proto.")] = ast.parse(path.read_text(encoding="utf-8"))
    factories = {m: dict(_factories(tree)) for m, tree in trees.items()}
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        codes = dict(factories[module])
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module in factories:
                made = factories[node.module]
                codes |= {each.name: made[each.name] for each in node.names if each.name in made}
        for call, texts in _calls(tree):
            name = _code_name(call) or codes.get(ast.unparse(call.func), "")
            found[name].update(_message(call, texts))
    return {name: sorted(each) for name, each in found.items() if name}


def _factories(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return):
            made = node.body[-1].value
            names = [arg.arg for arg in node.args.args]
            if isinstance(made, ast.Call) and [ast.unparse(a) for a in made.args[:2]] == names:
                yield node.name, _code_name(made)


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, dict[str, str]]]:
    """Yield all calls, each with the texts of the names that its module and function assign."""
    constants = {name: text for _, name, text in _assigned(tree.body)}
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ClassDef):
            pending += node.body
            continue
        local = sorted(_assigned(ast.walk(node)))
        for call in ast.walk(node):
            if isinstance(call, ast.Call):
                before = {name: text for line, name, text in local if line < call.lineno}
                yield call, constants | before


def _codes_of(subject: int) -> list[Code]:
    return sorted((c for c in Code if c.value // 1000 == subject), key=lambda c: c.value)


def _code_name(call: ast.Call) -> str:
    found = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    if ast.unparse(call.func).rpartition(".")[2][:1].isupper():
        found += call.args
    return next((name for each in found if (name := _code(each))), "")


def _code(value: ast.expr) -> str:
    if isinstance(value, ast.Attribute) and ast.unparse(value.value) == Code.__name__:
        return value.attr
    return ""


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and text of each assignment; the text is empty if it is not a literal."""
    for node in (each for each in nodes if isinstance(each, ast.Assign)):
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    yield node.lineno, name.id, _template(value, {})


def _message(call: ast.Call, constants: Mapping[str, str]) -> Iterator[str]:
    """Yield the text of an error that a call makes, if it is a literal.

    For `Corrupt` the text is the third argument, after path and offset.
    """
    given = [each for each in call.args if not _code(each)]
    hint = next((_template(k.value, constants) for k in call.keywords if k.arg == "hint"), "")
    if len(given) == 2 and not hint:  # By position.
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
