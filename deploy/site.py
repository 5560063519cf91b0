"""The documentation site: pages that are kept beside the code, and pages generated from it.

A hook of MkDocs (`mkdocs.yml`). Links between pages beside the code are turned into links of the
site; a link to a file without a page is shown as the name of that file.

Settings are shown as in their samples, which a test compares with the programs. Options are read
from the source of `pumpclient.options`: a comment above an option is its explanation. Commands are
shown as `--help` prints them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from ctl import __main__ as penstock
from ctl import commands as ctl
from deploy import error_pages
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
from penstock_local import init
from penstock_local.demo import __main__ as demo
from pumpclient.mysql.source import command as source
from pumpclient.mysql.verify import command as verify

_ROOT = Path(__file__).parents[1]
_GUIDES = sorted((_ROOT / "drainer/guide").glob("*.md"))
PAGES: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "reference/changelog.md",
    "ctl/README.md": "operate/ctl.md",
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
    for page, text in (*pages(), (error_pages.INDEX, error_pages.index())):
        files.append(File.generated(config, page, content=text))
    for page, text in error_pages.pages():
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
