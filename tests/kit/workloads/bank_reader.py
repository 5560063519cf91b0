"""Who reads a bank's downstream, all the time: each read is one transaction of the reader.

What is read together with the checkpoint must be the ledger's state at that `commit_ts`, and the
money in all accounts must be the bank's, at every read.
"""

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pymysql
from pymysql.constants import ER

from penstock.local.sql_server import SqlServer
from tests.kit.fakes.local_drainer import CLUSTER
from tests.kit.wait import deadline
from tests.kit.workloads.bank import TOTAL, Bank, State

Read = Callable[[], "tuple[int, State] | None"]
"""Returns a checkpoint and what the tables held in the same snapshot; None before there is one."""

NOT_YET = {ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE}
AGAIN = {ER.TABLE_DEF_CHANGED, 0, 1927, 2002, 2003, 2006, 2013, 2014, ER.SERVER_SHUTDOWN}
_ACCOUNTS = "SELECT id, owner, balance FROM {}"
_ENTRIES = "SELECT account, amount FROM {}"


def of_sqlite(path: Path) -> Read:

    def read() -> tuple[int, State] | None:
        if not path.exists():
            return None
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
            connection.execute("BEGIN")
            try:
                found = connection.execute('SELECT checkPoint FROM "tidb_binlog.checkpoint"')
                text = found.fetchone()
                accounts = connection.execute(_ACCOUNTS.format('"bank.account"')).fetchall()
                entries = connection.execute(_ENTRIES.format('"bank.entry"')).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return None
                raise
        return json.loads(text[0])["commitTS"], State(frozenset(accounts), Counter(entries))

    return read


def of_mariadb(server: SqlServer) -> Read:
    """Return how to read a server; one that is away, or a DDL just then, is tried again."""

    def once() -> tuple[int, State] | None:
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute(
                f"SELECT checkPoint FROM tidb_binlog.checkpoint WHERE clusterID = {CLUSTER}"
            )
            text = cursor.fetchone()
            cursor.execute(_ACCOUNTS.format("bank.account"))
            accounts = frozenset(cursor.fetchall())
            cursor.execute(_ENTRIES.format("bank.entry"))
            entries = Counter(cursor.fetchall())
        assert text is not None
        return json.loads(text[0])["commitTS"], State(accounts, entries)

    def read() -> tuple[int, State] | None:
        deadline_s = deadline(90)
        while True:
            try:
                return once()
            except pymysql.err.MySQLError as error:
                code = error.args[0] if error.args else 0
                if code in NOT_YET:
                    return None
                if code not in AGAIN or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.01)

    return read


def money(state: State) -> int:
    return sum(int(str(balance)) for _, _, balance in state.accounts)


def check(bank: Bank, found: tuple[int, State] | None) -> int:
    """Assert that a read is a state of the ledger's, and the one it says; return its commit_ts."""
    if found is None:
        return 0
    commit_ts, state = found
    if commit_ts >= bank.first_ts:
        assert money(state) == TOTAL, f"{money(state)} at {commit_ts}"
    wanted = bank.state_at(commit_ts)
    assert state.accounts == wanted.accounts, f"accounts at {commit_ts}"
    assert state.entries == wanted.entries, f"entries at {commit_ts}"
    return commit_ts


class BankReader:
    """What a checker in the background has seen so far."""

    def __init__(self) -> None:
        self.reads = 0
        self.stamps: set[int] = set()


@contextmanager
def reading_all_the_time(bank: Bank, read: Read) -> Iterator[BankReader]:
    """Check read after read in the background; fail with the first that is wrong."""
    reader, closing_time = BankReader(), threading.Event()
    failures: list[BaseException] = []

    def read_on() -> None:
        last_ts = 0
        try:
            while not closing_time.wait(0.002):
                commit_ts = check(bank, read())
                assert commit_ts >= last_ts, f"the checkpoint went back from {last_ts}"
                last_ts = commit_ts
                reader.reads += 1
                reader.stamps.add(commit_ts)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=read_on)
    thread.start()
    try:
        yield reader
    finally:
        closing_time.set()
        thread.join()
    if failures:
        raise failures[0]
