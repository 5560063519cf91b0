"""Words for people: numbers with their units, times as ages, and errors without their machinery."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

NOT_KNOWN: Final = "–"

_LARGE: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_REASONS: Final = (
    "connection refused", "connection reset", "no route to host", "network is unreachable",
    "name or service not known", "temporary failure in name resolution", "broken pipe",
)  # fmt: skip
_MACHINERY: Final = (
    # gRPC, from its code to the system's error; aiohttp and PyMySQL with theirs.
    (re.compile(r"(?:\b[A-Z]\w*: )?failed to connect to all addresses[^;]*;[^;]*"), None),
    (re.compile(r"\(\d{4}, [\"']((?:[^\"']|(?<=\w)'(?=\w)|'[^\"']*')*)[\"']\)"), r"\1"),
    (re.compile(r"\s*\(?\[Errno -?\d+\] ([^)\n]*)\)?"), r": \1"),
    (re.compile(r"\b(?:\w+\.)*\w+(?:Error|Exception): "), ""),
    (re.compile(r"\b(?:DEADLINE_EXCEEDED|Deadline Exceeded)(?:: Deadline Exceeded)?"),
     "no answer in time"),
    (re.compile(r"\b(?:UNAVAILABLE|UNKNOWN|INTERNAL|ABORTED|CANCELLED): "), ""),
    (re.compile(r"; if it does not run, start it(?:; otherwise check its address)?"), ""),
    (re.compile(r"; otherwise check its address"), ""),
    (re.compile(r" failed: etcd connection failed"), " does not answer"),
    (re.compile(r" \(start etcd, or correct etcd-urls\)"), ""),
)  # fmt: skip
"""Parts of an error's text and the words for them; None for the reason within the part."""


def plain(text: str) -> str:
    """Return an error as a reader needs it: without codes of gRPC and names of exceptions."""
    for part, words in _MACHINERY:
        text = part.sub(_reason if words is None else words, text)
    return text


def _reason(found: re.Match[str]) -> str:
    said = found[0].lower()
    return next((each for each in _REASONS if each in said), "no connection")


def sentence(text: str) -> str:
    """Return a node's words as a sentence; a name at their beginning stays as it is."""
    text = re.sub(r"^[a-z]+(?= )", lambda found: found[0].capitalize(), text.strip())
    return f"{text}." if text and text[-1] not in ".!?:" else text


def ago(at_s: float, now_s: float) -> str:
    """Return the age of a time: `12 s ago`, `just now`."""
    age_s = now_s - at_s
    return "just now" if age_s < 1 else f"{age(age_s)} ago"


def age(seconds: float) -> str:
    """Return a duration in whole seconds."""
    return f"{seconds:.0f} s" if seconds < 10 else duration(seconds)


def duration(seconds: float | None) -> str:
    """Return `0.3 s`, `42 s`, `3 min 10 s`, `2 h 5 min` or `3 d 4 h`."""
    if seconds is None:
        return NOT_KNOWN
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds > 0 else "0 s"
    whole = round(seconds)
    for unit_s, unit, below_s, below in (
        (_DAY_S, "d", _HOUR_S, "h"),
        (_HOUR_S, "h", _MINUTE_S, "min"),
        (_MINUTE_S, "min", 1, "s"),
    ):
        if whole >= unit_s:
            rest = whole % unit_s // below_s
            return f"{whole // unit_s} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def percent(share: float | None) -> str:
    return NOT_KNOWN if share is None else f"{share:.0%}"


def quantity(value: float | None, unit: str = "") -> str:
    """Return three digits of a number and its unit: `0`, `0.25`, `12`, `3.4 k`."""
    if value is None:
        return NOT_KNOWN
    for size, prefix in _LARGE:
        if abs(value) >= size * 0.9995:
            return f"{_digits(value / size)} {prefix}{unit}"
    return f"{_digits(value)} {unit}".rstrip()


def rate(value: float | None, unit: str = "") -> str:
    """Return a quantity per second: `12/s`, `3.4 MB/s`."""
    return NOT_KNOWN if value is None else f"{quantity(value, unit)}/s"


def byte_rate(bytes_per_s: float | None) -> str:
    """Return bytes per second with powers of 1000, as is usual for networks."""
    return rate(bytes_per_s, "B")


def size(size_bytes: float | None) -> str:
    """Return a number of bytes: `3.4 MiB`."""
    if size_bytes is None:
        return NOT_KNOWN
    for one, unit in _BYTES:
        if abs(size_bytes) >= one:
            return f"{_digits(size_bytes / one)} {unit}"
    return f"{size_bytes:.0f} B"


def count(number: int, one: str, many: str = "") -> str:
    """Return `1 Pump`, `3 Pumps`, `no Pump`."""
    if number == 0:
        return f"no {one}"
    return f"{number} {one if number == 1 else many or one + 's'}"


def moment(at_s: float | None) -> str:
    """Return a time in UTC, `2026-11-21 09:30:00`; an invalid time is shown as unknown."""
    if not at_s:
        return NOT_KNOWN
    try:
        return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return NOT_KNOWN


def clock(at_s: float) -> str:
    """Return the time of a day in UTC, `09:30:00`."""
    return moment(at_s)[-8:]


def _digits(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".")
