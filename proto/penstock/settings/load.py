"""Settings loader: defaults, a TOML file, the environment and flags into a frozen dataclass.

    flag > environment > TOML file > default

Before the default of `etcd_urls` comes PENSTOCK_ETCD_URLS, the same for all programs.

A field `data_dir` is the key `data-dir`, the flag `--data-dir`, the variable `<PREFIX>_DATA_DIR`;
a nested dataclass is a TOML section, its flags and variables carry the section's name. Settings
whose name ends in `_bytes` also accept "64 MiB", those in `_s` also "8h" (a last `_max` aside). A
key that no field has is an error that names the nearest key: a typo must not become a silent
default. A variable that begins with the prefix is also an error when it is near to a setting's; any
other is logged as ignored, since a container's platform sets its own variables.

A class attribute `REMOVED` has the keys of former settings, each with the remedy: a file, flag or
variable that still sets one is refused with that hint.

The field `given` is not a setting: it gets the flags with which another command finds the same
values: the file, and the settings of environment and flags beside it. Paths are absolute, secrets
empty. etcd's endpoints are always among these flags, unless the file has them.

Arrays of tables and tables by name are set in the file alone; keys inside are checked likewise:

    [[filter.routes]]                             routes: tuple[RouteRule, ...]
    schema-pattern = "shop_?"

    [syncer.binlog-filter-rule.no-drop]           binlog_filter_rule: dict[str, BinlogFilterRule]
    ignore-event = ["drop table"]
"""

import argparse
import dataclasses
import difflib
import logging
import math
import os
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from penstock import __version__
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.settings.setting import did_you_mean, pasted

log = logging.getLogger(__name__)

T = TypeVar("T")

_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
ETCD_URLS = "PENSTOCK_ETCD_URLS"
_ETCD = ("etcd_urls",)
_GIVEN = "given"
_NEAR = 0.75
"""The similarity, of 1, from which a name is taken for a typo of another name."""
_OF_KUBERNETES = re.compile(r"SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP).*)?")
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class _Setting:
    path: tuple[str, ...]
    kind: Any
    field: dataclasses.Field[Any]

    @property
    def key(self) -> str:
        return ".".join(_kebab(part) for part in self.path)

    @property
    def flag(self) -> str:
        return "--" + "-".join(_kebab(part) for part in self.path)

    @property
    def dest(self) -> str:
        return ".".join(self.path)

    def variable(self, prefix: str) -> str:
        return "_".join((prefix, *self.path)).upper()


def read_settings(
    cls: type[T],
    argv: Sequence[str] | None = None,
    *,
    prog: str,
    env_prefix: str,
    env: Mapping[str, str] | None = None,
    rewrite: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: values,
    required: Sequence[Collection[str]] = (),
) -> T:
    """Return `cls` built from every source; exits for --help and --version.

    `rewrite` gets the file's keys, with their sections before them, and may rename them. Of each
    group of settings in `required`, at least one must be given.

    Raises `NeedsOperator` for an unknown key, flag or variable, a value of the wrong kind, a
    required setting that is missing, or a file that cannot be read.
    """
    settings = list(_settings(cls))
    environment = os.environ if env is None else env
    argv = sys.argv[1:] if argv is None else argv
    removed: Mapping[str, str] = getattr(cls, "REMOVED", {})
    for key in removed:
        _check_removed(key, removed, argv, environment, env_prefix)
    flags = vars(_parser(cls, settings, prog, env_prefix).parse_args(argv))
    known = {setting.variable(env_prefix) for setting in settings if not row_type(setting.kind)}
    check_variables(environment, env_prefix, {*known, f"{env_prefix}_CONFIG"})
    values: dict[tuple[str, ...], Any] = {}
    if ETCD_URLS in environment and any(setting.path == _ETCD for setting in settings):
        values[_ETCD] = environment[ETCD_URLS]
    path = flags.pop("config") or environment.get(f"{env_prefix}_CONFIG")
    in_file = _from_file(Path(path), settings, rewrite, removed) if path else {}
    values.update(in_file)
    beside: dict[tuple[str, ...], str] = {}
    for setting in settings:
        if row_type(setting.kind) is not None:
            continue
        name = setting.variable(env_prefix)
        for source, text in ((name, environment.get(name)), (setting.flag, flags[setting.dest])):
            if text is not None:
                values[setting.path] = _parsed(setting, text, source)
                beside[setting.path] = text
        if setting.path == _ETCD and _ETCD not in in_file:
            urls = values.get(_ETCD, _default(setting.field))
            beside.setdefault(_ETCD, urls if isinstance(urls, str) else ",".join(urls))
    for keys in required:
        _check_required(values, keys, prog)
    values[_GIVEN,] = tuple(_given(settings, values, beside, path))
    return _build(cls, values)


def _check_removed(
    key: str, removed: Mapping[str, str], argv: Sequence[str], env: Mapping[str, str], prefix: str
) -> None:
    name = key.replace(".", "-")
    variable = f"{prefix}_{name.replace('-', '_').upper()}"
    given = {word.partition("=")[0] for word in argv} & {f"--{name}", f"--no-{name}"}
    for place in (*given, *([variable] if variable in env else [])):
        raise _former(place, key, removed)


def _former(place: str, key: str, removed: Mapping[str, str]) -> NeedsOperator:
    return NeedsOperator(
        f"{place}: {key} is no longer a setting", removed[key], Code.SETTING_UNKNOWN
    )


def _given(
    settings: Sequence[_Setting],
    values: Mapping[tuple[str, ...], Any],
    beside: Mapping[tuple[str, ...], str],
    path: str | None,
) -> Iterator[str]:
    if path:
        yield f"--config={Path(path).absolute()}"
    for setting in (each for each in settings if each.path in beside):
        if setting.kind is bool:
            is_on = values[setting.path]
            yield setting.flag if is_on else f"--no-{setting.flag.removeprefix('--')}"
        else:
            yield f"{setting.flag}={pasted(setting.key, beside[setting.path])}"


def _check_required(
    values: Collection[tuple[str, ...]], required: Collection[str], prog: str
) -> None:
    given = {".".join(map(_kebab, p[:depth])) for p in values for depth in range(1, len(p) + 1)}
    if given.isdisjoint(required):
        is_etcd = _kebab(_ETCD[0]) in required
        also = f", or {ETCD_URLS} in the environment" if is_etcd else ""
        raise NeedsOperator(
            f"{prog} needs {' or '.join(required)}, and has no default for it",
            "give the settings of the node itself, after the command: --config FILE, or flags such"
            f" as --{next(iter(required))}{also}",
            Code.SETTING_VALUE,
        )


def check_variables(env: Mapping[str, str], prefix: str, known: Collection[str]) -> None:
    """Raise `NeedsOperator` for a variable that looks like a typo of one of `known`.

    The log names other variables with the prefix, except those that Kubernetes sets for a service
    of that name.
    """
    names = {name.removeprefix(f"{prefix}_"): name for name in known}
    for name in sorted(env):
        rest = name.removeprefix(f"{prefix}_")
        if rest == name or name in known or _OF_KUBERNETES.fullmatch(rest):
            continue
        near = difflib.get_close_matches(rest, names, 1, _NEAR)
        if near:
            raise NeedsOperator(
                f"unknown variable {name} in the environment",
                f"did you mean {names[near[0]]}? if it is for another program, unset it here",
                Code.SETTING_UNKNOWN,
            )
        log.warning("%s in the environment is no setting, and is left out", name)


def size_bytes(text: str) -> int:
    """Return the bytes in a size such as "64 MiB", "1 gb" or "4096"."""
    return int(_quantity(text, _BYTES, "a size such as 64 MiB"))


def duration_s(text: str) -> float:
    """Return the seconds in a duration such as "8h", "7d", "250ms" or "3"."""
    return _quantity(text, _SECONDS, "a duration such as 8h or 250ms")


def _quantity(text: str, units: Mapping[str, float], wanted: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} is not {wanted}")
    found = float(match[1]) * units[match[2].lower()]
    if not math.isfinite(found):
        raise ValueError(f"{text!r} is not {wanted}")
    return found


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _settings(cls: type[Any], path: tuple[str, ...] = ()) -> Iterator[_Setting]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            yield from _settings(kind, (*path, field.name))
        elif field.name != _GIVEN:
            yield _Setting((*path, field.name), kind, field)


class Parser(argparse.ArgumentParser):
    """The parser of every program: an error is `NeedsOperator`, with the word that was meant."""

    def error(self, message: str) -> NoReturn:
        raise NeedsOperator(message, f"see {self.prog} --help", Code.SETTING_VALUE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse; raise `NeedsOperator` for an unknown flag first, then for one that is missing."""
        words = list(sys.argv[1:] if args is None else args)
        for word in words[: words.index("--")] if "--" in words else words:
            flag = word.split("=")[0]
            is_one = any(each.startswith(flag) for each in self._option_string_actions)
            if flag.startswith("--") and not is_one and self._subparsers is None:
                self._refuse(word)
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self._refuse(*rest)
        return found, rest

    def _refuse(self, *words: str) -> NoReturn:
        known, otherwise = self._option_string_actions, f"see {self.prog} --help"
        hint = did_you_mean(words[0].split("=")[0], known, otherwise)
        problem = f"unrecognized arguments: {' '.join(words)}"
        raise NeedsOperator(problem, hint, Code.SETTING_UNKNOWN)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = list(map(str, action.choices))
        what = "/".join(action.option_strings) or action.metavar or action.dest
        hint = did_you_mean(str(value), known, f"use {', '.join(known)}")
        raise NeedsOperator(f"unknown {what} {value!r}", hint, Code.COMMAND_INVALID)


def check_command(prog: str, argv: Sequence[str], known: Collection[str]) -> None:
    """Raise `NeedsOperator` if `argv` begins with a word that is not a command of a node."""
    if argv and not argv[0].startswith("-") and argv[0] not in known:
        hint = did_you_mean(argv[0], known, f"use {', '.join(known)}, or no command, to run it")
        raise NeedsOperator(f"unknown command: {prog} {argv[0]}", hint, Code.COMMAND_INVALID)


def _parser(cls: type[Any], settings: Sequence[_Setting], prog: str, prefix: str) -> Parser:
    parser = Parser(
        prog=prog,
        description=(cls.__doc__ or "").strip(),
        epilog=f"Settings also come from {prefix}_<NAME> and from the TOML file; flags win.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{prog} {__version__}")
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings")
    for setting in settings:
        if row_type(setting.kind) is not None:
            continue
        default = _default(setting.field)
        text = setting.field.metadata.get("help", "")
        names = [*filter(None, [setting.field.metadata.get("flag")]), setting.flag]
        action: Any = argparse.BooleanOptionalAction if setting.kind is bool else "store"
        extra: dict[str, Any] = {} if setting.kind is bool else {"metavar": "VALUE"}
        shown = "" if default in ("", None, ()) else f" (default: {default})".replace("%", "%%")
        parser.add_argument(
            *names, action=action, default=None, dest=setting.dest, help=text + shown, **extra
        )
    return parser


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _from_file(
    path: Path,
    settings: Sequence[_Setting],
    rewrite: Callable[[dict[str, Any]], dict[str, Any]],
    removed: Mapping[str, str],
) -> dict[tuple[str, ...], Any]:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise NeedsOperator(
            f"cannot read {path}: {error.strerror}", "check --config", Code.SETTING_VALUE
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problem = f"{path} is not TOML: {error}"
        raise NeedsOperator(problem, _toml_hint(str(error)), Code.SETTING_VALUE) from error
    by_key = {setting.key: setting for setting in settings}
    values = {}
    named = {s.key for s in settings if typing.get_origin(s.kind) is dict}
    for key, value in rewrite(dict(_flatten(document, named))).items():
        setting = by_key.get(key)
        if key in removed:
            raise _former(f"{path}{_line(text, key)}", key, removed)
        if setting is None:
            hint = did_you_mean(key, by_key, "keys are listed by --help", repr)
            raise NeedsOperator(
                f"{path}{_line(text, key)}: unknown key {key!r}", hint, Code.SETTING_UNKNOWN
            )
        values[setting.path] = _parsed(setting, value, f"{path}{_line(text, key)}: {key}")
    return values


def _toml_hint(problem: str) -> str:
    found = re.search(r"immutable namespace \((.*?),?\) \(at", problem)
    if found is None:
        return "compare it with the samples: penstock init DIR writes them into a new folder"
    *section, key = re.findall(r"'(.*?)'", found[1])
    of = f" of [{'.'.join(section)}]" if section else ""
    return f"remove the line {key} = …{of}: [[{'.'.join((*section, key))}]] says the same"


def _line(text: str, key: str) -> str:
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        if head:
            section = head[1] + "."
        name = head[1] if head else section + line.partition("=")[0].strip().strip("\"'")
        if name == key:
            return f":{number}"
    return ""


def _flatten(
    table: Mapping[str, Any], whole: Collection[str], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and prefix + key not in whole:
            yield from _flatten(value, whole, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _parsed(setting: _Setting, value: Any, source: str) -> Any:
    parse = setting.field.metadata.get("parse")
    if row_type(setting.kind) is not None:
        return read_tables(
            setting.kind,
            value,
            source,
            lambda field, kind, each, where: _parsed(
                _Setting((field.name,), kind, field), each, where
            ),
        )
    try:
        return parse(value) if parse else _coerced(setting, value)
    except (ValueError, TypeError) as error:
        kind = getattr(setting.kind, "__name__", str(setting.kind))
        hint = f"{setting.key} takes a value of type {kind}"
        raise NeedsOperator(f"{source}: {error}", hint, Code.SETTING_VALUE) from error


def _coerced(setting: _Setting, value: Any) -> Any:
    kind, name = setting.kind, setting.path[-1].removesuffix("_max")
    if isinstance(kind, types.UnionType):
        kind = next(k for k in typing.get_args(kind) if k is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(str(part).strip() for part in parts if str(part).strip())
    if kind is bool:
        return _boolean(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is not a {kind.__name__}")
    if kind is str or kind is Path:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is not text")
        return kind(value)
    return _number(kind, name, value)


def _number(kind: Any, name: str, value: str | int | float) -> Any:
    if isinstance(value, str) and name.endswith("_bytes"):
        return size_bytes(value)
    if isinstance(value, str) and name.endswith("_s"):
        return kind(duration_s(value))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    try:
        number = kind(value)
    except ValueError as error:
        whole = "whole " if kind is int else ""
        raise ValueError(f"{value!r} is not a {whole}number") from error
    # Text is not compared with its float: a commit_ts has more digits than that can hold.
    if isinstance(value, float) and number != value:
        raise ValueError(f"{value!r} is not a whole number")
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"{value!r} is not a number")
    return number


def _boolean(value: Any) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError(f"{value!r} is neither true nor false")


def _build(cls: type[T], values: Mapping[tuple[str, ...], Any], path: tuple[str, ...] = ()) -> T:
    assert dataclasses.is_dataclass(cls)
    arguments: dict[str, Any] = {}
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        here = (*path, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            section = hints[field.name]
            assert isinstance(section, type)
            arguments[field.name] = _build(section, values, here)
        elif here in values:
            arguments[field.name] = values[here]
        elif _default(field) is None and field.default is dataclasses.MISSING:
            raise NeedsOperator(
                f"{'.'.join(map(_kebab, here))} is not set",
                "give it as a flag or in the config file",
                Code.SETTING_VALUE,
            )
    return typing.cast(T, cls(**arguments))


ReadValue = Callable[[dataclasses.Field[Any], Any, Any, str], Any]
"""(field, its type, value in the file, where that stands) to the value of the field."""


def row_type(kind: Any) -> type[Any] | None:
    """Return the dataclass for each table of a setting, None for any other setting."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple or origin is dict:
        row = arguments[1] if origin is dict else arguments[0]
        if dataclasses.is_dataclass(row) and isinstance(row, type):
            return row
    return kind if dataclasses.is_dataclass(kind) and isinstance(kind, type) else None


def read_tables(kind: Any, value: Any, source: str, read: ReadValue) -> Any:
    """Return the tables of a setting; raise `NeedsOperator` for anything invalid in them."""
    row = row_type(kind)
    assert row is not None, kind
    origin = typing.get_origin(kind)
    wanted = dict if origin is not tuple else list
    names = [value] if isinstance(value, str) else value
    is_list = origin is tuple and isinstance(names, list)
    if is_list and names and all(isinstance(each, str) for each in names):
        raise NeedsOperator(
            f"{source} is {value!r}", _as_tables(row, source, names), Code.SETTING_VALUE
        )
    if not isinstance(value, wanted):
        shown = f"[[{source.rpartition(' ')[2]}]]" if wanted is list else "a table"
        raise NeedsOperator(f"{source} is {value!r}", f"write it as {shown}", Code.SETTING_VALUE)
    if origin is tuple:
        return tuple(_row(row, each, f"{source}[{i}]", read) for i, each in enumerate(value, 1))
    if origin is dict:
        named = dict(value)
        return {n: _row(row, each, f"{source}.{n}", read) for n, each in named.items()}
    return _row(row, value, source, read)


def _as_tables(row: type[Any], source: str, names: Sequence[str]) -> str:
    """Return the line to write instead of `names`, such as shop.log."""
    section, _, key = source.rpartition(" ")[2].rpartition(".")
    keys = [_kebab(field.name) for field in dataclasses.fields(row)]
    tables = (
        ", ".join(f'{k} = "{v}"' for k, v in zip(keys, name.split(".", 1), strict=False))
        for name in names
    )
    return f"in [{section}], write {key} = [{', '.join(f'{{ {each} }}' for each in tables)}]"


def _row(row: type[Any], table: Any, source: str, read: ReadValue) -> Any:
    if not isinstance(table, Mapping):
        raise NeedsOperator(f"{source} is {table!r}", "it must be a table", Code.SETTING_VALUE)
    hints = typing.get_type_hints(row)
    fields = {field.name.replace("_", "-"): field for field in dataclasses.fields(row)}
    values = {}
    for key, value in table.items():
        field = fields.get(key)
        if field is None:
            hint = did_you_mean(key, fields, f"keys are {', '.join(fields)}", repr)
            raise NeedsOperator(f"{source}: unknown key {key!r}", hint, Code.SETTING_UNKNOWN)
        if hints[field.name] is Any:
            values[field.name] = value
        else:
            values[field.name] = read(field, hints[field.name], value, f"{source}: {key}")
    return row(**values)
