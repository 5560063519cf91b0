"""The history: what writers meant to do and were answered, as they noted it, and what follows.

Each writer appends lines of JSON to a journal of its own, each line by one write, so that a kill
leaves whole lines and everything up to its moment:

    {"at": …, "begin": [owner, number], "changes": […]}    before anything is sent
    {"at": …, "decided": [owner, number], "commit_ts": …}  the Prewrite is durable, no Commit sent
    {"at": …, "end": [owner, number], "outcome": …}        what the client said
    {"at": …, "begin": "ALTER …"}, {"at": …, "end": "ALTER …", "outcome": …}    the same of a DDL

An **owner** is one thread of a writer until an outcome stays unknown to it or it dies; rows belong
to one owner, and nobody else changes them, so no answer that is missing makes a row uncertain for
a later transaction. A transaction that was not `decided` can never be committed.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from zlib import crc32

Row = Mapping[str, Any]
Place = tuple[str, int]
"""A transaction's name: its owner, and the how many-eth of it."""

ACCOUNTS = ("bank.checking", "bank.savings", "bank.loans")
ENTRIES = "bank.entry"
"""A table without a key that has one row of each transaction: its owner and number."""
ITEMS, PAGES = "shop.item", "shop.page"
COLUMNS = {
    **dict.fromkeys(ACCOUNTS, ("id", "owner", "balance")),
    ENTRIES: ("owner", "number"),
    ITEMS: ("id", "code", "note"),
    PAGES: ("id", "body"),
}
EXTRA = ("id", "note")
"""Columns of the tables that DDL makes and drops."""
CAPITAL = 1_000_000
"""The money in all accounts, once the first transaction is there."""
PAGE_BYTES = 4000


class Outcome(StrEnum):
    """What a writer knows of one transaction or DDL."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"  # The client raised an error that says that it did not happen.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Change:
    """A row before and after; no `before` is an insert, no `after` a delete."""

    table: str
    before: Row | None
    after: Row | None


@dataclass(slots=True)
class Transaction:
    """One transaction as its writer saw it."""

    place: Place
    changes: list[Change]
    commit_ts: int = 0
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class Ddl:
    """One DDL statement, no other has its text; `commit_ts` is that of its job, 0 without one."""

    query: str
    outcome: Outcome = Outcome.UNKNOWN
    commit_ts: int = 0


@dataclass(slots=True)
class History:
    """All that was meant and answered."""

    transactions: dict[Place, Transaction] = field(default_factory=dict)
    ddl: dict[str, Ddl] = field(default_factory=dict)

    def note(self, line: str) -> None:
        said: dict[str, Any] = json.loads(line)
        if isinstance(said.get("begin"), str):
            query: str = said["begin"]
            assert query not in self.ddl, query
            self.ddl[query] = Ddl(query)
        elif "begin" in said:
            place = _place(said["begin"])
            assert place not in self.transactions, place
            changes = [change for each in said["changes"] for change in _changes(each)]
            self.transactions[place] = Transaction(place, changes)
        elif "decided" in said:
            self.transactions[_place(said["decided"])].commit_ts = said["commit_ts"]
        elif isinstance(said["end"], str):
            self.ddl[said["end"]].outcome = Outcome(said["outcome"])
        else:
            self.transactions[_place(said["end"])].outcome = Outcome(said["outcome"])

    def count(self, outcome: Outcome) -> int:
        return sum(each.outcome is outcome for each in self.transactions.values())


def history_of(lines: Iterable[str]) -> History:
    """Return what journals say; a line without its end is left out."""
    history = History()
    for line in lines:
        if line.endswith("\n"):
            history.note(line)
    return history


def changes_json(changes: Iterable[Change]) -> list[Any]:
    """Return changes for a journal; pages only by their range, for they are many and large."""
    short: list[Any] = []
    for change in changes:
        row = change.after or change.before
        assert row is not None
        if change.table != PAGES:
            short.append([change.table, change.before, change.after])
        elif short and short[-1][0] == PAGES:
            short[-1][2] += 1
        else:
            short.append([PAGES, row["id"], 1, change.after is not None])
    return short


def page(number: int) -> Row:
    text = f"page {number} "
    return {"id": number, "body": (text * (PAGE_BYTES // len(text) + 1))[:PAGE_BYTES]}


def _changes(short: list[Any]) -> Iterator[Change]:
    if short[0] != PAGES:
        yield Change(*short)
        return
    _, first, count, is_insert = short
    for number in range(first, first + count):
        yield Change(PAGES, None, page(number)) if is_insert else Change(PAGES, page(number), None)


def _place(of: list[Any]) -> Place:
    owner, number = of
    return owner, number


ADD = "ALTER TABLE {table} ADD COLUMN {column} INT DEFAULT {value}"
DROP_COLUMN = "ALTER TABLE {table} DROP COLUMN {column}"
CREATE = "CREATE TABLE {table} (id BIGINT PRIMARY KEY, note VARCHAR(100))"
TRUNCATE = "TRUNCATE TABLE {table}"
DROP = "DROP TABLE {table}"
_READ = [
    (re.compile(re.escape(text).replace(r"\{", "(?P<").replace(r"\}", r">[\w.]+)")), effect)
    for text, effect in ((ADD, "add"), (DROP_COLUMN, "drop column"), (CREATE, "create"),
                         (TRUNCATE, "truncate"), (DROP, "drop"))
]  # fmt: skip


def _read(query: str) -> tuple[re.Match[str], str]:
    return next((found, effect) for text, effect in _READ if (found := text.fullmatch(query)))


def table_of(query: str) -> str:
    return _read(query)[0]["table"]


def ddl_key(query: str) -> str:
    """Return what names a DDL of ours, in a journal's text and in the one the cluster keeps."""
    return re.sub(r"`|\b(bank|shop)\.| \(.*", "", query)


class Tables:
    """Tables in memory, with sums over their own columns that change with each row.

    A table without a key is a multiset, so here every table is: of one with a key no row may be
    there twice, which `problems` says.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Counter[tuple[Any, ...]]] = {table: Counter() for table in COLUMNS}
        self.added: dict[str, dict[str, int]] = {table: {} for table in ACCOUNTS}
        self.sums: dict[str, tuple[int, int]] = dict.fromkeys(COLUMNS, (0, 0))
        self.total = 0
        self.problems: list[str] = []

    def apply(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            if change.before is not None:
                self._count(change.table, change.before, -1)
        for change in transaction.changes:
            if change.after is not None:
                self._count(change.table, change.after, 1)

    def _count(self, table: str, row: Row, by: int) -> None:
        columns = COLUMNS.get(table, EXTRA)
        values = tuple(row[name] for name in columns)
        rows = self.rows.setdefault(table, Counter())
        rows[values] += by
        if rows[values] < 0 or (table != ENTRIES and rows[values] > 1):
            self.problems.append(f"{table}: the history itself has {rows[values]} of {values}")
        if not rows[values]:
            del rows[values]
        if table in self.sums:
            count, checksum = self.sums[table]
            self.sums[table] = count + by, checksum + by * checksum_of(values)
        if table in ACCOUNTS:
            self.total += by * int(row["balance"])

    def alter(self, query: str) -> None:
        found, effect = _read(query)
        table = found["table"]
        if effect == "add":
            self.added[table][found["column"]] = int(found["value"])
        elif effect == "drop column":
            del self.added[table][found["column"]]
        elif effect == "drop":
            del self.rows[table]
        else:
            self.rows[table] = Counter()


def checksum_of(values: tuple[Any, ...]) -> int:
    """Return the checksum of a row's own columns, as `CHECKSUM_SQL` has it."""
    return crc32("|".join("~" if value is None else str(value) for value in values).encode())


def checksum_sql(table: str) -> str:
    """Return a SELECT of the number of rows and the sum of their checksums."""
    values = ", ".join(f"COALESCE({name}, '~')" for name in COLUMNS[table])
    return f"SELECT COUNT(*), COALESCE(SUM(CRC32(CONCAT_WS('|', {values}))), 0) FROM {table}"
