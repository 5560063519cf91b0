"""Options of a query: the texts that a Spark user gives, checked before anything connects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from drainer.stream.feed import BEGINNING, NOW, check_name
from drainer.task.row_fetch import Pem
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.security.tls import Tls
from penstock.ts import compose

KNOWN: Final = (
    "etcd", "table", "after", "until", "name", "maxBytesPerTrigger", "maxTransactionsPerTrigger",
    "ca", "cert", "key",
)  # fmt: skip
BYTES_MAX: Final = 64 << 20
"""The bytes of a micro-batch, as the Pumps store them, unless the query sets another limit."""
_HINT: Final = 'correct the options of format("penstock"); the page about Spark lists them'


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """A query's options; `place` is a table's (schema, name), None for all tables."""

    etcd: str = "127.0.0.1:2379"
    place: tuple[str, str] | None = None
    after: int = BEGINNING
    until: int | None = None
    name: str = ""
    bytes_max: int = BYTES_MAX
    transactions_max: int | None = None
    pem: Pem | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """Return checked options; names in any letter case. Raises `NeedsOperator`."""
        names = {name.lower(): name for name in KNOWN}
        values: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() not in names:
                raise _refused(f"the option {name!r} does not exist")
            values[names[name.lower()]] = value
        if name := values.get("name", ""):
            check_name(name)
        until = values.get("until")
        pem = (values.get("ca"), values.get("cert"), values.get("key"))
        made = cls(
            etcd=values.get("etcd", cls.etcd),
            place=_place(values["table"]) if "table" in values else None,
            after=_moment("after", values.get("after", "beginning")),
            until=None if until is None else _moment("until", until),
            name=values.get("name", ""),
            bytes_max=_count("maxBytesPerTrigger", values) or BYTES_MAX,
            transactions_max=_count("maxTransactionsPerTrigger", values),
            pem=pem if any(pem) else None,
        )
        made.tls()
        return made

    def tls(self) -> Tls | None:
        if self.pem is None:
            return None
        ca, cert, key = self.pem
        return Tls(ca=ca, cert=cert, key=key)

    def check_batch(self) -> None:
        """Raise `NeedsOperator` for an option that only a streaming query has."""
        if self.name:
            raise _refused("the option 'name' is for a streaming query")
        if self.until is not None and self.until < max(self.after, 0):
            raise _refused(f"until {self.until} is before after {self.after}")

    def check_stream(self) -> None:
        """Raise `NeedsOperator` for an option that only a batch query has."""
        if self.until is not None:
            raise _refused("the option 'until' is for spark.read")


def _place(text: str) -> tuple[str, str]:
    schema, dot, table = text.partition(".")
    if not (schema and dot and table):
        raise _refused(f"the option table is {text!r}, not schema.table")
    return schema, table


def _moment(option: str, text: str) -> int:
    """Return the commit_ts of a number, a time, `beginning` or `now`."""
    named = {"beginning": BEGINNING, "now": NOW}
    if text.lower() in named:
        return named[text.lower()]
    if text.isascii() and text.isdigit() and int(text) < 1 << 63:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment.timestamp() < 0:
        raise _refused(
            f"the option {option} is {text!r}, neither a commit_ts, nor a time with its time zone"
            " (2026-11-26T21:00:00Z), nor beginning or now"
        )
    return compose(int(moment.timestamp() * 1000), 0)


def _count(option: str, values: Mapping[str, str]) -> int | None:
    text = values.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise _refused(f"the option {option} is {text!r}, not a number above zero")
    return int(text)


def _refused(problem: str) -> NeedsOperator:
    return NeedsOperator(problem, _HINT, Code.READER_MISUSED)
