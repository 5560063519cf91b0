"""A writer: a process that embeds `pumpclient`, and notes in a journal what it is answered.

python -m tests.chaos.writer NAME RUN ETCD_URLS JOURNAL SEED

Threads share one client. Each is an owner after the other (`tests.chaos.history`): it moves money
among its accounts, changes its items, now and then writes or deletes hundreds of pages in one
large transaction. The first writer has a thread that runs DDL. SIGTERM ends it in order, once it
knows what became of all it sent, or has waited for that for long enough.
"""

import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from pumpclient import Options, PumpClient
from pumpclient.errors import OutcomeUnknown
from tests.chaos import history
from tests.chaos.history import ACCOUNTS, CAPITAL, ENTRIES, ITEMS, PAGES, Change, Outcome, Row

log = logging.getLogger("writer")

FOUNDER = "founder"
"""The name under which it only creates the tables, and the account that has all the money."""
NO_DDL = "no-ddl"
"""While there is a file of this name beside the journal, no DDL is begun."""
THREADS = 2
UNKNOWN_S_MAX = 60.0
"""Longer than `COMMIT_TIMEOUT_S`: afterwards no one delivers a Commit any more."""
COMMIT_TIMEOUT_S = 40.0
_OPENING = {"bank.checking": 5000, "bank.savings": 3000, "bank.loans": -8000}
_PAUSE_S = 0.15
_LARGE_EVERY_S = 40.0
_PAGES = 500
_DDL_EVERY_S = 6.0
_IDS_OF_AN_OWNER = 100_000
_TEXTS = (None, "", "plain", "it's", 'a "quote"', "back\\slash", "100 %", "zwölf", "火", "nl\n")

CREATES = (
    "CREATE DATABASE bank",
    *(
        f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, owner VARCHAR(40) NOT NULL,"
        " balance BIGINT NOT NULL)"
        for table in ACCOUNTS
    ),
    f"CREATE TABLE {ENTRIES} (owner VARCHAR(40) COLLATE utf8mb4_bin, number INT)",
    "CREATE DATABASE shop",
    f"CREATE TABLE {ITEMS} (id BIGINT PRIMARY KEY, code VARCHAR(60) COLLATE utf8mb4_bin UNIQUE,"
    " note TEXT)",
    f"CREATE TABLE {PAGES} (id BIGINT PRIMARY KEY, body TEXT)",
)


class Journal:
    """A file of lines, each there with one write, also after a kill."""

    def __init__(self, path: Path) -> None:
        self.no_ddl = path.with_name(NO_DDL)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, **said: Any) -> None:
        line = json.dumps({"at": round(time.time(), 3), **said}, ensure_ascii=False) + "\n"
        os.write(self._file, line.encode())


def outcome_of(attempt: Callable[[], object]) -> Outcome:
    try:
        attempt()
    except OutcomeUnknown as doubt:
        log.warning("%s", doubt)
        return Outcome.ACKNOWLEDGED if doubt.wait(UNKNOWN_S_MAX) else Outcome.UNKNOWN
    except PenstockError as refusal:  # It says that nothing happened, and never will.
        log.warning("%s", refusal)
        return Outcome.REFUSED
    return Outcome.ACKNOWLEDGED


class Owner:
    """Rows that only one thread changes, and what they are after the last answer."""

    def __init__(self, client: PumpClient, journal: Journal, name: str, first_id: int) -> None:
        self._client = client
        self._journal = journal
        self.name = name
        self.ids = itertools.count(first_id)
        self._numbers = itertools.count(1)
        self.rows: dict[str, dict[int, Row]] = {}
        self.is_lost = False
        """An outcome is unknown, so what its rows are is, too."""

    def commit(self, changes: Sequence[Change]) -> bool:
        """Write a transaction of these changes and its entry; return whether it is there."""
        place = [self.name, next(self._numbers)]
        entry = Change(ENTRIES, None, dict(zip(("owner", "number"), place, strict=True)))
        changes = [*changes, entry]
        self._journal.note(begin=place, changes=history.changes_json(changes))
        outcome = outcome_of(lambda: self._write(changes, place))
        self._journal.note(end=place, outcome=outcome)
        self.is_lost = outcome is Outcome.UNKNOWN
        if outcome is not Outcome.ACKNOWLEDGED:
            return False
        for change in changes:
            rows = self.rows.setdefault(change.table, {})
            if change.before is not None and "id" in change.before:
                del rows[change.before["id"]]
        for change in changes:
            if change.after is not None and "id" in change.after:
                self.rows[change.table][change.after["id"]] = change.after
        return True

    def _write(self, changes: Sequence[Change], place: list[Any]) -> None:
        transaction = self._client.begin()
        for table, before, after in ((c.table, c.before, c.after) for c in changes):
            if before is None:
                assert after is not None
                transaction.insert(table, after)
            elif after is None:
                transaction.delete(table, self._whole(table, before))
            else:
                transaction.update(table, self._whole(table, before), after)
        transaction.commit(
            decide=lambda commit_ts: self._journal.note(decided=place, commit_ts=commit_ts)
        )

    def _whole(self, table: str, row: Row) -> Row:
        """Return a row with the columns that DDL has added: all have their defaults."""
        if table not in ACCOUNTS:
            return row
        columns = self._client.table(table).columns
        added = {c.name: int(c.default or 0) for c in columns if c.name not in row}
        return {**row, **added}


class Writing:
    """One thread of a writer."""

    def __init__(self, client: PumpClient, journal: Journal, name: str, first_id: int) -> None:
        self._client, self._journal, self._name = client, journal, name
        self._first_ids = itertools.count(first_id, _IDS_OF_AN_OWNER)
        self._generations = itertools.count(1)

    def next_owner(self) -> Owner:
        """Return one without rows."""
        name = f"{self._name}.{next(self._generations)}"
        return Owner(self._client, self._journal, name, next(self._first_ids))

    def trade(self, dice: random.Random, stopping: threading.Event) -> None:
        """Move money and change items until it is to stop."""
        large_s = time.monotonic() + dice.random() * _LARGE_EVERY_S
        while not stopping.is_set():
            owner = self.next_owner()
            opening = [
                Change(table, None, {"id": next(owner.ids), "owner": owner.name, "balance": money})
                for table, money in _OPENING.items()
                for _ in range(2)
            ]
            while not owner.commit(opening) and not stopping.wait(_PAUSE_S):
                if owner.is_lost:
                    break
            while not owner.is_lost and not stopping.wait(_PAUSE_S * 2 * dice.random()):
                if time.monotonic() > large_s:
                    large_s += _LARGE_EVERY_S
                    owner.commit(_pages(owner))
                else:
                    owner.commit([*_transfer(owner, dice), *_items(owner, dice)])

    def define(self, dice: random.Random, stopping: threading.Event) -> None:
        """Run DDL until it is to stop: each statement once, each table and column a new one."""
        for number in itertools.count(1):
            unique = f"{self._name.replace('.', '_').replace('-', '_')}_{number}"
            names = {"table": dice.choice(ACCOUNTS), "column": f"c_{unique}", "value": number}
            added = self._ddl(history.ADD.format(**names), stopping)
            if added and not stopping.wait(_DDL_EVERY_S):
                self._ddl(history.DROP_COLUMN.format(**names), stopping)
            self._extra(f"shop.extra_{unique}", stopping)
            if stopping.wait(_DDL_EVERY_S):
                return

    def _extra(self, table: str, stopping: threading.Event) -> None:
        """Create a table, fill, truncate, fill and drop it, unless a step fails."""
        owner = self.next_owner()

        def fill() -> bool:
            new = [{"id": next(owner.ids), "note": table} for _ in range(20)]
            return owner.commit([Change(table, None, row) for row in new])

        steps: list[Callable[[], bool]] = [
            lambda: self._ddl(history.CREATE.format(table=table), stopping),
            fill,
            lambda: self._ddl(history.TRUNCATE.format(table=table), stopping),
            fill,
            lambda: self._ddl(history.DROP.format(table=table), stopping),
        ]
        for step in steps:
            if stopping.wait(_DDL_EVERY_S / 4) or not step():
                return

    def _ddl(self, query: str, stopping: threading.Event) -> bool:
        while self._journal.no_ddl.exists():
            if stopping.wait(_PAUSE_S):
                return False
        self._journal.note(begin=query)
        outcome = outcome_of(lambda: self._client.execute_ddl(query))
        self._journal.note(end=query, outcome=outcome)
        return outcome is Outcome.ACKNOWLEDGED


def _transfer(owner: Owner, dice: random.Random) -> list[Change]:
    one, other = dice.sample(ACCOUNTS, 2)
    amount = dice.randint(1, 500)
    changes = []
    for table, by in ((one, -amount), (other, amount)):
        row = dice.choice(list(owner.rows[table].values()))
        changes.append(Change(table, row, {**row, "balance": row["balance"] + by}))
    return changes


def _items(owner: Owner, dice: random.Random) -> list[Change]:
    """Insert, change or delete an item, or swap the unique codes of two of them, or nothing."""
    rows = list(owner.rows.get(ITEMS, {}).values())
    kind = dice.choice(("none", "insert", "insert", "change", "delete", "swap"))
    if kind == "none":
        return []
    if kind == "insert" or len(rows) < 2:
        number = next(owner.ids)
        row = {"id": number, "code": f"code {number}", "note": dice.choice(_TEXTS)}
        return [Change(ITEMS, None, row)]
    one, other = dice.sample(rows, 2)
    if kind == "delete":
        return [Change(ITEMS, one, None)]
    if kind == "change":
        moved = {"id": next(owner.ids)} if dice.random() < 0.3 else {}
        return [Change(ITEMS, one, {**one, "note": dice.choice(_TEXTS), **moved})]
    return [
        Change(ITEMS, one, {**one, "code": other["code"]}),
        Change(ITEMS, other, {**other, "code": one["code"]}),
    ]


def _pages(owner: Owner) -> list[Change]:
    """Write hundreds of pages, or delete those that there are: two megabytes."""
    if pages := owner.rows.get(PAGES):
        return [Change(PAGES, row, None) for row in pages.values()]
    return [Change(PAGES, None, history.page(next(owner.ids))) for _ in range(_PAGES)]


def found(client: PumpClient, journal: Journal) -> None:
    """Create the tables, and the account that has all the money, as soon as that is possible."""
    for statement in CREATES:
        while outcome_of(partial(client.execute_ddl, statement)) is not Outcome.ACKNOWLEDGED:
            time.sleep(1)
    row = {"id": 1, "owner": "the bank", "balance": CAPITAL}
    bank = Owner(client, journal, "the bank", 1)
    while not bank.commit([Change("bank.checking", None, row)]):
        time.sleep(1)


def connected(etcd_urls: str, stopping: threading.Event) -> PumpClient | None:
    """Return a client as soon as there can be one; None when it is to stop before."""
    options = Options(spill_bytes=1 << 20, commit_timeout_s=COMMIT_TIMEOUT_S)
    while not stopping.is_set():
        try:
            return PumpClient.connect(etcd_urls, options=options)
        except PenstockError as refusal:
            log.warning("%s", refusal)
            stopping.wait(1)
    return None


def main() -> None:
    """Write until SIGTERM."""
    name, run, etcd_urls, journal_path, seed = sys.argv[1:]
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level="INFO")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    client = connected(etcd_urls, stopping)
    if client is None:
        return
    journal = Journal(Path(journal_path))
    if name == FOUNDER:
        found(client, journal)
        client.close()
        return
    writer = int(name.rpartition("-")[2])
    jobs = [Writing.trade] * THREADS + ([Writing.define] if writer == 1 else [])
    threads = []
    for number, job in enumerate(jobs):
        whole = (writer * 10_000 + int(run)) * 10 + number
        writing = Writing(
            client, journal, f"{name}.{run}.{number}", whole * 1000 * _IDS_OF_AN_OWNER
        )
        dice = random.Random(f"{seed} {whole}")
        threads.append(threading.Thread(target=job, args=(writing, dice, stopping)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    client.close()


if __name__ == "__main__":
    main()
