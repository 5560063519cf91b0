"""A node's settings as its log tells them: what is not the default, and no secret in it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

_SECRET = re.compile(r"password|passwd|secret|token|credential", re.IGNORECASE)
_PATH = re.compile(r"[-_](file|path|dir)$", re.IGNORECASE)
_MASK = "***"


def differing(settings: Any, default: Any, prefix: str = "") -> Iterator[str]:
    """Yield `key = value` for each setting that is not as in `default`, secrets masked."""
    for field in dataclasses.fields(settings):
        key = prefix + field.name.replace("_", "-")
        value, usual = getattr(settings, field.name), getattr(default, field.name)
        if dataclasses.is_dataclass(value):
            yield from differing(value, usual, f"{key}.")
        elif value != usual:
            yield f"{key} = {_told(key, value)}"


def _told(key: str, value: Any) -> str:
    if _is_secret(key):
        return _MASK
    if isinstance(value, tuple):
        return f"[{', '.join(_one(each) for each in value)}]"
    return _one(value)


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(name)) and not _PATH.search(name)


def _one(value: Any) -> str:
    if not isinstance(value, str):
        return str(value)
    name, is_pair, _ = value.partition("=")
    if is_pair and _is_secret(name) and "://" not in name:
        return f"{name}={_MASK}"
    return repr(without_password(value))


def without_password(url: str) -> str:
    """Return a URL with its password masked, and any other text as it is."""
    try:
        netloc = urlsplit(url).netloc
    except ValueError:
        return _MASK
    account, is_there, host = netloc.rpartition("@")
    user, has_password, _ = account.partition(":")
    if not (is_there and has_password):
        return url
    return url.replace(netloc, f"{user}:{_MASK}@{host}", 1)
