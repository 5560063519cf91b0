"""Patterns of names: wildcards, and regular expressions after a `~`.

    wildcard    *       zero or more bytes, and only as the last character of the pattern
                ?       exactly one byte (of UTF-8, so two of them for an "ä")
                [a-z]   one byte of a class; [!a-z] one byte outside of it
    ~re         a regular expression, found anywhere in the name unless it is anchored

Both ignore letter case by default. Where TiDB-Binlog accepted a regular expression for a plain name
(`replicate-do-db` and similar settings), `plain_regex` does so: a "." there matches anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.codes import Code
from penstock.errors import NeedsOperator

Matches = Callable[[str], bool]


def wildcard(pattern: str, *, case_sensitive: bool) -> Matches:
    """Return the test for a wildcard; raise `NeedsOperator` for an invalid pattern."""
    data = _cased(pattern, case_sensitive).encode()
    if not set(data) & set(b"*?["):
        return lambda name: _cased(name, case_sensitive).encode() == data
    compiled = re.compile(_translated(pattern, data), re.DOTALL)
    return lambda name: compiled.fullmatch(_cased(name, case_sensitive).encode()) is not None


def either(pattern: str, *, case_sensitive: bool) -> Matches:
    """Return the test for `~re` or a wildcard; `NeedsOperator` for an invalid pattern."""
    if pattern.startswith("~"):
        compiled = regex(pattern[1:], case_sensitive=case_sensitive)
        return lambda name: compiled.search(name) is not None
    return wildcard(pattern, case_sensitive=case_sensitive)


def plain_regex(pattern: str) -> Matches:
    """Return the test for `~re` or a full name, as in TiDB-Binlog's drainer.toml."""
    anchored = pattern[1:] if pattern.startswith("~") else f"^(?:{pattern})$"
    compiled = regex(anchored, case_sensitive=False)
    return lambda name: compiled.search(name) is not None


def regex(pattern: str, *, case_sensitive: bool) -> re.Pattern[str]:
    """Compile a regular expression; raise `NeedsOperator` for an invalid pattern."""
    try:
        return re.compile(pattern, re.NOFLAG if case_sensitive else re.IGNORECASE)
    except re.error as error:
        raise NeedsOperator(
            f"{pattern!r} is no regular expression: {error}",
            "correct the filter rule",
            Code.FILTER_RULE,
        ) from error


def _cased(name: str, case_sensitive: bool) -> str:
    return name if case_sensitive else name.lower()


def _translated(pattern: str, data: bytes) -> bytes:
    out = b""
    at = 0
    while at < len(data):
        sign = data[at : at + 1]
        if sign == b"*":
            if at != len(data) - 1:
                raise _bad(pattern, "* stands only at the end", "use ~ and a regular expression")
            out += b".*"
        elif sign == b"?":
            out += b"."
        elif sign == b"[":
            end = data.find(b"]", at + 1)
            if end < 0 or not data[at + 1 : end].removeprefix(b"!"):
                raise _bad(pattern, "a class has no end or is empty", "write [a-z] or [!a-z]")
            out += _class(pattern, data[at + 1 : end])
            at = end
        else:
            out += re.escape(sign)
        at += 1
    return out


def _class(pattern: str, inside: bytes) -> bytes:
    negated = inside.startswith(b"!")
    inside = inside.removeprefix(b"!")
    out = b""
    at = 0
    while at < len(inside):
        low = inside[at]
        if inside[at + 1 : at + 2] == b"-" and at + 2 < len(inside):
            high = inside[at + 2]
            if high < low:
                raise _bad(pattern, "a class goes backwards", "write [a-z]")
            out += re.escape(bytes([low])) + b"-" + re.escape(bytes([high]))
            at += 3
        else:
            out += re.escape(bytes([low]))
            at += 1
    return b"[" + (b"^" if negated else b"") + out + b"]"


def _bad(pattern: str, why: str, hint: str) -> NeedsOperator:
    return NeedsOperator(f"the pattern {pattern!r} cannot be: {why}", hint, Code.FILTER_RULE)
