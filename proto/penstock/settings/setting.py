"""Setting: its help and its checks as a field, and its form in the log, without secrets."""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.codes import Code
from penstock.errors import NeedsOperator

_SECRET = re.compile(r"password|passwd|secret|token|credential", re.IGNORECASE)
_PATH = re.compile(r"[-_.](file|path|dir)$|ssl-(ca|cert|key)$", re.IGNORECASE)
_MASK = "***"


def setting(default: Any, text: str, **extra: str) -> Any:
    """Return a dataclass field with its `--help` text; `flag="-L"` adds a short flag."""
    return dataclasses.field(default=default, metadata={"help": text, **extra})


def check_address(name: str, address: str) -> None:
    """Raise `NeedsOperator` unless `address` is host:port; empty is valid if it has a default.

    There may be several PDs, comma-separated, and each may begin with https://, or http://.
    """
    if not address and name != "addr":
        return
    parts = [address]
    if name == "pd_address":
        parts = [each.strip() for each in address.split(",")]
        parts = [each.removeprefix("https://").removeprefix("http://") for each in parts]
    for part in parts:
        host, _, port = part.rpartition(":")
        if not host or "/" in part or not port.isdecimal() or int(port) > 65535:
            raise out_of_range(name, address, "write host:port, such as 127.0.0.1:8250")


def check_advertised(address: str) -> None:
    """Raise `NeedsOperator` for a wildcard address, to which no one can connect."""
    host, _, port = address.rpartition(":")
    if host in ("0.0.0.0", "[::]", "::"):
        hint = f"others cannot connect to {host}: name an address of this node, as 10.0.0.1:{port}"
        raise out_of_range("advertise_addr", address, hint)


def did_you_mean(
    word: str, known: Iterable[str], otherwise: str, shown: Callable[[str], str] = str
) -> str:
    """Return a hint with the known word that is nearest to `word`, else another hint."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {shown(near[0])}?" if near else otherwise


def out_of_range(name: str, value: object, hint: str) -> NeedsOperator:
    return NeedsOperator(f"{name.replace('_', '-')} is {value!r}", hint, Code.SETTING_VALUE)


def changed_text(settings: Any, default: Any) -> str:
    return "; ".join(differing(settings, default)) or "all defaults"


def differing(settings: Any, default: Any, prefix: str = "") -> Iterator[str]:
    """Yield `key = value` for each setting that differs from `default`, secrets masked."""
    for field in (each for each in dataclasses.fields(settings) if each.compare):
        key = prefix + field.name.replace("_", "-")
        value, usual = getattr(settings, field.name), getattr(default, field.name)
        if dataclasses.is_dataclass(value):
            yield from differing(value, usual, f"{key}.")
        elif value != usual:
            yield f"{key} = {_shown(key, value)}"


def _shown(key: str, value: Any) -> str:
    if _is_secret(key):
        return _MASK
    if isinstance(value, tuple):
        return f"[{', '.join(_one(each) for each in value)}]"
    return _one(value)


def pasted(key: str, value: str) -> str:
    """Return a value for a command to paste in any folder: a path absolute, a secret empty."""
    if _is_secret(key):
        return ""
    if value and _PATH.search(key):
        return str(Path(value).absolute())
    return without_password(value, "")


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(name)) and not _PATH.search(name)


def _one(value: Any) -> str:
    if not isinstance(value, str):
        return str(value)
    name, is_pair, _ = value.partition("=")
    if is_pair and _is_secret(name) and "://" not in name:
        return f"{name}={_MASK}"
    return repr(without_password(value))


def without_password(url: str, instead: str = f":{_MASK}") -> str:
    """Return a URL with `instead` of its password, and any other text unchanged."""
    try:
        netloc = urlsplit(url).netloc
    except ValueError:
        return _MASK
    account, is_there, host = netloc.rpartition("@")
    user, has_password, _ = account.partition(":")
    if not (is_there and has_password):
        return url
    return url.replace(netloc, f"{user}{instead}@{host}", 1)
