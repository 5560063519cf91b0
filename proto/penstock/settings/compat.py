"""Compatibility: maps another program's keys, flags and variables to a node's settings.

Settings with the same name here need no entry. Every other setting has one of three answers:
another name; accepted, because the node behaves that way anyway, with a line in the log; or an
error that names the replacement, unless the value changes nothing. Nothing is dropped silently.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.codes import Code
from penstock.errors import NeedsOperator


@dataclass(frozen=True, slots=True)
class Renamed:
    """The same setting under another key; `convert` turns the value into one of that key.

    `also` is a second key that gets the value, unless it is set explicitly.
    """

    key: str
    convert: Callable[[Any], Any] = lambda value: value
    also: str = ""


@dataclass(frozen=True, slots=True)
class Met:
    """Accepted without effect: `why` says why it holds anyway. `usual` values are not logged."""

    why: str
    usual: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Not supported: `hint` names the replacement; `harmless` values ask for nothing."""

    hint: str
    harmless: tuple[Any, ...] = ("",)


Answer = Renamed | Met | Refused


def is_true(value: Any) -> bool:
    """Parse a boolean from a file's value or a flag's text; raise `NeedsOperator`."""
    if isinstance(value, bool) or str(value).lower() in ("true", "false", "1", "0"):
        return str(value).lower() in ("true", "1")
    raise NeedsOperator(
        f"{value!r} is neither true nor false", "write true or false", Code.SETTING_VALUE
    )


@dataclass(slots=True, kw_only=True)
class Translation:
    """From the other program's settings to ours; `notes` are lines about it for the log.

    `flags` has the key of each flag, which may begin with one dash; `switches` are flags without a
    value, `switched` are our keys without a value. An `opposite` key is dropped when its
    counterpart is present. Keys below `gathered` become one list of name=value.
    """

    keys: Mapping[str, Answer]
    flags: Mapping[str, str]
    prefixes: tuple[str, str]
    switches: frozenset[str] = frozenset()
    switched: frozenset[str] = frozenset()
    opposites: Mapping[str, str] = field(default_factory=dict)
    gathered: str = ""
    notes: list[str] = field(default_factory=list)

    def document(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of a file, sections before them, under our names.

        Raises `NeedsOperator` for an unsupported key, and for two keys that set the same thing.
        """
        made: dict[str, Any] = {}
        params = []
        for key, value in values.items():
            if self.opposites.get(key) in values:
                continue
            if self.gathered and key.startswith(f"{self.gathered}."):
                params.append(f"{key.removeprefix(self.gathered + '.')}={value}")
                continue
            for new, converted in self._answered(key, value):
                if self._is_extra(key, new) and new in values:
                    continue
                if new in made or (new != key and new in values):
                    raise NeedsOperator(
                        f"{new} is set twice, as {key} too", "leave one out", Code.SETTING_VALUE
                    )
                made[new] = converted
        return {**made, self.gathered: params} if params else made

    def arguments(self, argv: Sequence[str]) -> list[str]:
        made, rest = [], list(argv)
        given = {word.partition("=")[0] for word in argv}
        while rest:
            token = rest.pop(0)
            name, is_joined, value = token.lstrip("-").partition("=")
            if not token.startswith("-") or name not in self.flags:
                made.append(token)
                continue
            if name == "V":
                made.append("--version")
                continue
            if not is_joined:
                if name in self.switches:
                    value = "true"
                elif rest and not rest[0].startswith("--"):
                    value = rest.pop(0)
                else:
                    raise NeedsOperator(
                        f"{token} has no value", f"write {token}=…", Code.SETTING_VALUE
                    )
            key = self.flags[name]
            for new, converted in self._answered(key, value):
                flag = self._flag(new, converted)
                if not (self._is_extra(key, new) and flag.partition("=")[0] in given):
                    made.append(flag)
        return made

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        prefix, own = self.prefixes
        theirs = {f"{prefix}_{_upper(f)}": key for f, key in self.flags.items() if len(f) > 1}
        made = {name: value for name, value in env.items() if name not in theirs}
        for name, key in theirs.items():
            if name in env:
                for new, value in self._answered(key, env[name]):
                    made.setdefault(f"{own}_{_upper(new)}", str(value))
        return made

    def _is_extra(self, key: str, new: str) -> bool:
        answer = self.keys.get(key)
        return isinstance(answer, Renamed) and answer.also == new

    def _flag(self, key: str, value: Any) -> str:
        name = key.replace(".", "-")
        if key in self.switched:
            return f"--{name}" if is_true(value) else f"--no-{name}"
        return f"--{name}={value}"

    def _answered(self, key: str, value: Any) -> Iterator[tuple[str, Any]]:
        answer = self.keys.get(key)
        if answer is None:
            yield key, value
        elif isinstance(answer, Renamed):
            yield answer.key, answer.convert(value)
            if answer.also:
                yield answer.also, answer.convert(value)
        elif isinstance(answer, Met):
            if not _is_among(value, answer.usual):
                self.notes.append(f"{key} has no effect: {answer.why}")
        elif not _is_among(value, answer.harmless):
            raise NeedsOperator(f"{key} is not supported", answer.hint, Code.SETTING_UNKNOWN)


def _is_among(value: Any, values: Sequence[Any]) -> bool:
    return any(value == each and type(value) is type(each) for each in values)


def _upper(key: str) -> str:
    return key.upper().replace(".", "_").replace("-", "_")
