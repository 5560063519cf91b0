"""A bank whose money neither grows nor shrinks: a ledger as a Drainer's merge would emit it.

Every transaction moves money, so that the total of `bank.account` is `TOTAL` after the first one,
whatever else happens to the rows: accounts change their numbers, swap their owners (a unique
column) through an owner that is NULL, end and begin again under the same number. `bank.entry` has
no key, so a repeated or lost change of it shows in a count. DDL comes in between. All is made from
a seed, alike in every process; `state_at` says what any downstream must hold at a checkpoint.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog, plan_ddl
from penstock.schema.model import DdlJob, TableInfo
from penstock.wire.binlog import Binlog, BinlogType, MutationType, PrewriteValue, TableMutation
from penstock.wire.codec import encode_binlog, encode_prewrite_value

ACCOUNTS = 24
BALANCE = 1000
TOTAL = ACCOUNTS * BALANCE
DDL = (
    "CREATE DATABASE bank",
    "CREATE TABLE bank.account (id INT PRIMARY KEY, owner VARCHAR(20) COLLATE utf8mb4_bin UNIQUE,"
    " balance BIGINT NOT NULL)",
    "CREATE TABLE bank.entry (account INT, amount BIGINT, note VARCHAR(2000))",
)
LATER = (
    "ALTER TABLE bank.account ADD COLUMN since INT DEFAULT 7",
    "CREATE INDEX by_balance ON bank.account (balance)",
    "CREATE TABLE bank.other (id INT PRIMARY KEY)",
    "ALTER TABLE bank.entry ADD COLUMN day INT",
)
_NOTE_BYTES_LARGE = 1500

Row = tuple[object, ...]


@dataclass(frozen=True)
class State:
    """What the tables hold; of accounts number, owner and balance, of entries the first two."""

    accounts: frozenset[Row]
    entries: Counter[Row]


class Bank:
    """The ledger: `binlogs` in commit order, `jobs` of its DDL, and the state after each."""

    def __init__(self, seed: int, *, transactions: int = 60, large_each: int = 0) -> None:
        """Make it up; each `large_each`th transaction brings some 30 KB of entries."""
        self.binlogs: list[tuple[int, bytes]] = []
        self.jobs: list[DdlJob] = []
        self.first_ts = 0
        """From here on the total is `TOTAL`."""
        self._random = random.Random(seed)
        self._catalog = Catalog()
        self._ids = itertools.count(1)
        self._ts = 1000
        self._accounts: dict[int, tuple[str | None, int]] = {}
        self._entries: list[tuple[int, int, str]] = []
        self._stamps: list[int] = [0]
        self._states = [State(frozenset(), Counter())]
        for sql in DDL:
            self._ddl(sql)
        self._open()
        later = list(LATER)
        for number in range(1, transactions):
            if later and number % max(1, transactions // (len(LATER) + 1)) == 0:
                self._ddl(later.pop(0))
            self._transaction(large=large_each > 0 and number % large_each == 0)
            if number % 7 == 0:
                self._fake()

    @property
    def last_ts(self) -> int:
        return self.binlogs[-1][0]

    def end_before(self, commit_ts: int) -> Bank:
        """Let the ledger end before `commit_ts`, and return it."""
        self.binlogs = [entry for entry in self.binlogs if entry[0] < commit_ts]
        return self

    def state_at(self, commit_ts: int) -> State:
        return self._states[bisect_right(self._stamps, commit_ts) - 1]

    def insert_again(self) -> Row:
        """Insert a key that is there already, as only a mistaken program does; return the row."""
        key = min(self._accounts)
        self._accounts[key] = ("somebody else", 5)
        writing = _Writing(self._catalog)
        writing.insert("account", (key, *self._accounts[key]))
        self._commit(writing)
        return (key, *self._accounts[key])

    # --- how it is made up -----------------------------------------------------------------

    def _next_ts(self) -> int:
        self._ts += 10
        return self._ts

    def _emit(self, binlog: Binlog) -> None:
        self.binlogs.append((self._ts, encode_binlog(binlog)))
        self._stamps.append(self._ts)
        accounts = frozenset((key, *rest) for key, rest in self._accounts.items())
        entries: Counter[Row] = Counter((account, amount) for account, amount, _ in self._entries)
        self._states.append(State(accounts, entries))

    def _fake(self) -> None:
        ts = self._next_ts()
        self._emit(Binlog(tp=BinlogType.ROLLBACK, start_ts=ts, commit_ts=ts))

    def _ddl(self, sql: str) -> None:
        for planned in plan_ddl(sql, "bank", self._catalog, lambda: next(self._ids)):
            ts = self._next_ts()
            job = replace(planned, finished_ts=ts)
            self._catalog.apply(job)
            self.jobs.append(job)
            query = job.query.encode()
            self._emit(
                Binlog(
                    tp=BinlogType.COMMIT,
                    start_ts=ts - 5,
                    commit_ts=ts,
                    ddl_query=query,
                    ddl_job_id=job.id,
                )
            )

    def _open(self) -> None:
        writing = _Writing(self._catalog)
        for key in range(1, ACCOUNTS + 1):
            self._accounts[key] = (f"owner {key}", BALANCE)
            writing.insert("account", (key, *self._accounts[key]))
        self._commit(writing)
        self.first_ts = self._ts

    def _transaction(self, *, large: bool) -> None:
        writing = _Writing(self._catalog)
        for _ in range(self._random.randint(1, 3)):
            one, two = self._random.sample(sorted(self._accounts), 2)
            self._random.choices((self._pay, self._move, self._swap, self._renew), (5, 2, 2, 1))[0](
                writing, one, two
            )
        if large:
            for _ in range(20):
                self._note(writing, one, 0, "x" * _NOTE_BYTES_LARGE)
        self._commit(writing)

    def _pay(self, writing: _Writing, one: int, two: int) -> None:
        amount = self._random.randint(1, 100)
        for key, change in ((one, -amount), (two, amount)):
            owner, balance = self._accounts[key]
            self._account(writing, key, key, (owner, balance + change))
            self._note(writing, key, change, self._random.choice(("", "rent", "it's")))
        if len(self._entries) > 30:
            for _ in range(2):
                gone = self._entries.pop(self._random.randrange(len(self._entries)))
                writing.delete("entry", gone)

    def _move(self, writing: _Writing, one: int, two: int) -> None:
        """Let two accounts exchange their numbers, by way of a third that is free."""
        free = 1000
        for source, target in ((one, free), (two, one), (free, two)):
            self._account(writing, source, target, self._accounts[source])

    def _swap(self, writing: _Writing, one: int, two: int) -> None:
        """Let two accounts exchange their owners, by way of NULL."""
        (first, balance), (second, other) = self._accounts[one], self._accounts[two]
        self._account(writing, one, one, (None, balance))
        self._account(writing, two, two, (first, other))
        self._account(writing, one, one, (second, balance))

    def _renew(self, writing: _Writing, one: int, two: int) -> None:
        """End an account and begin it again, its owner being the same."""
        row = (one, *self._accounts[one])
        writing.delete("account", row)
        writing.insert("account", row)

    def _account(
        self, writing: _Writing, key: int, new_key: int, new: tuple[str | None, int]
    ) -> None:
        writing.update("account", (key, *self._accounts.pop(key)), (new_key, *new))
        self._accounts[new_key] = new

    def _note(self, writing: _Writing, key: int, amount: int, note: str) -> None:
        self._entries.append((key, amount, note))
        writing.insert("entry", self._entries[-1])

    def _commit(self, writing: _Writing) -> None:
        ts = self._next_ts()
        head = Binlog(tp=BinlogType.COMMIT, start_ts=ts - 5, commit_ts=ts)
        self._emit(replace(head, prewrite_value=writing.value()))


class _Writing:
    """One transaction's changes, table by table."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._changes: dict[str, list[tuple[MutationType, bytes]]] = {}

    def insert(self, name: str, row: Row) -> None:
        codec, table = self._of(name)
        self._add(name, MutationType.INSERT, codec.encode_insert(_padded(table, row), rowid=1))

    def update(self, name: str, before: Row, after: Row) -> None:
        codec, table = self._of(name)
        both = _padded(table, before), _padded(table, after)
        self._add(name, MutationType.UPDATE, codec.encode_update(*both, rowid=1))

    def delete(self, name: str, row: Row) -> None:
        codec, table = self._of(name)
        self._add(name, MutationType.DELETE, codec.encode_delete(_padded(table, row), rowid=1))

    def value(self) -> bytes:
        mutations = []
        for name, changes in self._changes.items():
            lists: dict[MutationType, list[bytes]] = {kind: [] for kind in MutationType}
            for kind, data in changes:
                lists[kind].append(data)
            mutations.append(
                TableMutation(
                    table_id=self._of(name)[1].id,
                    inserted_rows=tuple(lists[MutationType.INSERT]),
                    updated_rows=tuple(lists[MutationType.UPDATE]),
                    deleted_rows=tuple(lists[MutationType.DELETE]),
                    sequence=tuple(kind for kind, _ in changes),
                )
            )
        version = self._catalog.version
        return encode_prewrite_value(
            PrewriteValue(schema_version=version, mutations=tuple(mutations))
        )

    def _add(self, name: str, kind: MutationType, data: bytes) -> None:
        self._changes.setdefault(name, []).append((kind, data))

    def _of(self, name: str) -> tuple[RowCodec, TableInfo]:
        table = self._catalog.table("bank", name)
        assert table is not None
        return _codec(table), table


@lru_cache
def _codec(table: TableInfo) -> RowCodec:
    return RowCodec(table)


def _padded(table: TableInfo, row: Sequence[object]) -> Row:
    """Return the row with what a column that came later holds: 7 in `since`, NULL elsewhere."""
    added = table.columns[len(row) :]
    return (*row, *(7 if column.name == "since" else None for column in added))
