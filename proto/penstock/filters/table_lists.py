"""Table lists: which schemas and tables are replicated at all, by patterns of names.

    block-allow list    do-dbs not empty     the schema must match one, else out
                        do-dbs empty         a schema in ignore-dbs is out
                        then, for tables     in do-tables: kept; in ignore-tables: out;
                                             in neither: kept if do-tables is empty
    drainer.toml        with do-dbs or do-tables, one of them must match; then ignore-tables
                        and ignore-dbs exclude

A statement about a schema alone passes the block-allow list's second half. In drainer.toml's list
it passes when a do-table is in that schema, because without its schema no table could be made.

    wildcard    *       zero or more bytes, and only as the last character of the pattern
                ?       exactly one byte (of UTF-8, so two of them for an "ä")
                [a-z]   one byte of a class; [!a-z] one byte outside of it
    ~re         a regular expression, found anywhere in the name unless it is anchored

Both ignore letter case by default. Where TiDB-Binlog accepted a regular expression for a plain name
(`replicate-do-db` and similar settings), `plain_regex` does so: a "." there matches anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters.settings import FilterConfig, TablePattern

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
    """Return the test for `~re` or a full name, the syntax of TiDB-Binlog's drainer.toml."""
    anchored = pattern[1:] if pattern.startswith("~") else f"^(?:{pattern})$"
    compiled = regex(anchored, case_sensitive=False)
    return lambda name: compiled.search(name) is not None


def regex(pattern: str, *, case_sensitive: bool) -> re.Pattern[str]:
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


SYSTEM_SCHEMAS = frozenset(
    {
        "mysql",
        "information_schema",
        "performance_schema",
        "sys",
        "inspection_schema",
        "metrics_schema",
        "dm_heartbeat",
        "tidb_binlog",
    }
)
"""Never replicated: servers keep them for themselves, and the Drainer its checkpoint."""


TableFilter = Callable[[str, str], bool]
"""Decides by schema and table; an empty table name stands for the schema itself."""

_Pair = tuple[Matches, Matches]


def block_allow_list(config: FilterConfig) -> TableFilter:
    """Compile the list of the data migration tool; `NeedsOperator` for an invalid pattern."""

    def compiled(pattern: str) -> Matches:
        return either(pattern, case_sensitive=config.case_sensitive)

    do_dbs = _names(config.do_dbs, compiled, "do-dbs")
    ignore_dbs = _names(config.ignore_dbs, compiled, "ignore-dbs")
    do_tables = _pairs(config.do_tables, compiled, "do-tables")
    ignore_tables = _pairs(config.ignore_tables, compiled, "ignore-tables")

    def is_replicated(schema: str, table: str) -> bool:
        if do_dbs:
            if not any(matches(schema) for matches in do_dbs):
                return False
        elif any(matches(schema) for matches in ignore_dbs):
            return False
        if not table or _any(do_tables, schema, table):
            return True
        return not do_tables and not _any(ignore_tables, schema, table)

    return is_replicated


def drainer_list(
    *,
    do_dbs: Iterable[str] = (),
    do_tables: Iterable[TablePattern] = (),
    ignore_dbs: Iterable[str] = (),
    ignore_tables: Iterable[TablePattern] = (),
) -> TableFilter:
    """Compile the lists of TiDB-Binlog's drainer.toml, for which letter case never matters.

    Raises `NeedsOperator` for an invalid pattern.
    """
    dbs = _names(do_dbs, plain_regex, "replicate-do-db")
    tables = _pairs(do_tables, plain_regex, "replicate-do-table")
    without_dbs = _names(ignore_dbs, plain_regex, "ignore-schemas")
    without_tables = _pairs(ignore_tables, plain_regex, "ignore-table")

    def is_replicated(schema: str, table: str) -> bool:
        if dbs or tables:
            in_tables = any(s(schema) and (not table or t(table)) for s, t in tables)
            if not in_tables and not any(matches(schema) for matches in dbs):
                return False
        if table and _any(without_tables, schema, table):
            return False
        return not any(matches(schema) for matches in without_dbs)

    return is_replicated


def _any(pairs: Iterable[_Pair], schema: str, table: str) -> bool:
    return any(s(schema) and t(table) for s, t in pairs)


def _names(patterns: Iterable[str], compiled: Callable[[str], Matches], key: str) -> list[Matches]:
    out = []
    for pattern in patterns:
        if not pattern or pattern == "~":
            raise NeedsOperator(f"{key} has an empty pattern", "leave it out", Code.FILTER_RULE)
        out.append(compiled(pattern))
    return out


def _pairs(
    patterns: Iterable[TablePattern], compiled: Callable[[str], Matches], key: str
) -> list[_Pair]:
    out = []
    for pattern in patterns:
        schemas = _names([pattern.db_name], compiled, f"{key}: db-name")
        tables = _names([pattern.tbl_name], compiled, f"{key}: tbl-name")
        out.append((schemas[0], tables[0]))
    return out
