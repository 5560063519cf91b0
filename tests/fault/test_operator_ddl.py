"""An operator who overrides DDL that stops a Drainer, in any way, while a writer writes.

Downstream somebody was there before: it has columns and tables that the upstream is about to make,
or a DDL is one that SQLite has not. Whatever is decided about each, what is missing downstream in
the end is what the Drainer's figures say, table by table and column by column.
"""

import json
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Self

import pytest

from drainer.differences import DDLS, OVERRIDE, ROWS, VALUES
from penstock.errors import PenstockError
from tests.fault.test_drainer_ddl import EMPTY_P0, Site, site

__all__ = ["site"]  # The fixture.

pytestmark = [pytest.mark.fault, pytest.mark.thorough]

_PARTS = "CREATE TABLE shop.parts (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2"
_END_S = 240.0
Row = dict[str, Any]


class Trouble:
    """A DDL that stops the Drainer, and what is done by hand where a decision asks for it."""

    def __init__(
        self, ts: int, sql: str, *, in_the_way: tuple[str, ...], instead: tuple[str, ...]
    ) -> None:
        """`in_the_way` removes what keeps it from running; `instead` is done before `track`."""
        self.ts, self.sql = ts, sql
        self.in_the_way, self.instead = in_the_way, instead
        self.is_left_out = False


class Overriding:
    """A writer who never stops, an operator, and what the upstream's tables hold."""

    def __init__(self, site: Site, seed: int) -> None:
        self.tables: dict[str, dict[int, Row]] = {}
        self.typed: list[str] = []
        self._site = site
        self._random, self._draw = random.Random(seed), random.Random(seed)
        self._columns: dict[str, list[str]] = {}
        self._troubles: dict[int, Trouble] = {}
        self._last_ts = 0
        self._next = 1
        self._upstream = threading.Lock()
        self._stopping = threading.Event()
        self._writer = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._ddl("t", "CREATE TABLE shop.t (id INT PRIMARY KEY)", ["id"])
        self._ddl("parts", _PARTS, ["id"])
        self._writer.start()
        self._site.drainer.wait_until(self._last_ts)
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._writer.join()

    def _write(self) -> None:
        while not self._stopping.wait(0.02):
            with self._upstream:
                table = self._draw.choice(sorted(self._columns))
                row = dict.fromkeys(self._columns[table], self._next)
                with suppress(PenstockError):
                    self._last_ts = self._site.add(table, **row)
                    self.tables.setdefault(table, {})[self._next] = row
                self._next += 1

    def _ddl(self, table: str, sql: str, columns: list[str]) -> int:
        with self._upstream:
            self._last_ts = ts = self._site.ddl(sql)
            self._columns[table] = columns
            if sql == EMPTY_P0:
                self.tables["parts"] = {k: r for k, r in self.tables["parts"].items() if k % 2}
            return ts

    # --- what stops a Drainer ------------------------------------------------------------------

    def make_trouble(self) -> None:
        kind, number = self._random.choice(("column", "table", "partition")), len(self._troubles)
        if kind == "column":
            name = f"c{number}"
            sql, drop = f"ALTER TABLE shop.t ADD COLUMN {name} INT", f"DROP COLUMN {name}"
            self._site.by_hand(f'ALTER TABLE "shop.t" ADD COLUMN {name} INTEGER')
            columns = [*self._columns["t"], name]
            ts = self._ddl("t", sql, columns)
            made = Trouble(ts, sql, in_the_way=(f'ALTER TABLE "shop.t" {drop}',), instead=())
        elif kind == "table":
            name = f"late{number}"
            sql = f"CREATE TABLE shop.{name} (id INT PRIMARY KEY, v INT)"
            self._site.by_hand(f'CREATE TABLE "shop.{name}" (id INTEGER)')
            ts = self._ddl(name, sql, ["id", "v"])
            drop = f'DROP TABLE "shop.{name}"'
            create = f'CREATE TABLE "shop.{name}" (id INTEGER PRIMARY KEY, v INTEGER)'
            made = Trouble(ts, sql, in_the_way=(drop,), instead=(drop, create))
        else:
            ts = self._ddl("parts", EMPTY_P0, ["id"])
            empty = ('DELETE FROM "shop.parts" WHERE id % 2 = 0',)
            made = Trouble(ts, EMPTY_P0, in_the_way=(), instead=empty)
        self._troubles[ts] = made
        self.typed.append(f"{ts}: {made.sql}")

    # --- what an operator does about it --------------------------------------------------------

    def proceed(self) -> None:
        """Let the Drainer get to the end of what was committed, deciding wherever it stops."""
        drainer, until_ts = self._site.drainer, self._last_ts
        if not drainer.is_running:
            drainer.spawn()
        killed = self._random.random() < 0.3
        deadline_s = time.monotonic() + _END_S
        while drainer.checkpoint_ts() < until_ts:
            assert time.monotonic() < deadline_s, (self.typed, drainer.log_text()[-3000:])
            if killed and drainer.is_running and "serves at" in drainer.log_text():
                killed = False
                drainer.kill()
                self.typed.append("kill")
                drainer.spawn()
            if drainer.is_running:
                time.sleep(0.05)
                continue
            assert drainer.wait(1) == 2, (self.typed, drainer.log_text()[-3000:])
            ts = min(t for t in self._troubles if t > drainer.checkpoint_ts())
            assert f"penstock drainer ddl skip {ts}" in drainer.log_text(), self.typed
            self._decide(self._troubles[ts])
            drainer.spawn()
            deadline_s = time.monotonic() + _END_S

    def _ddl_command(self, *words: object, codes: tuple[int, ...] = (0,)) -> None:
        code = self._site.ddl_command(*words)
        self.typed.append(f"{' '.join(map(str, words))} -> {code}")
        assert code in codes, self.typed

    def _decide(self, trouble: Trouble) -> None:
        """Type this and that; what is decided last is what counts."""
        other = "ALTER TABLE shop.t COMMENT 'another'"
        for verb in self._random.choices(("list", "undo", "passed", "track", "skip"), k=2):
            words = {"list": ("list",), "passed": ("skip", self._site.drainer.checkpoint_ts())}
            self._ddl_command(*words.get(verb, (verb, trouble.ts)), codes=(0, 2))
        verbs = ["track", "skip", "skip", "other"] + ["itself"] * bool(trouble.in_the_way)
        verb = self._random.choice(verbs)
        if verb == "track":
            self._site.by_hand(*trouble.instead)
            self._ddl_command("track", trouble.ts)
        elif verb == "itself":
            self._site.by_hand(*trouble.in_the_way)
            self._ddl_command("replace", trouble.ts, trouble.sql)
        elif verb == "other":
            self._ddl_command("replace", trouble.ts, other)
        else:
            self._ddl_command("skip", trouble.ts)
        trouble.is_left_out = verb in ("skip", "other")

    def take_back(self) -> None:
        found = [each for each in self._troubles.values() if each.is_left_out]
        if not found:
            return
        self._site.drainer.stop()
        trouble = self._random.choice(found)
        self._ddl_command("track", trouble.ts)
        if trouble.sql != EMPTY_P0:  # Its rows stay gone upstream, and there downstream.
            self._site.by_hand(*trouble.instead)
        trouble.is_left_out = False

    # --- at the end ----------------------------------------------------------------------------

    def finish(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Hold what is missing downstream against what the Drainer says is left out."""
        self._stopping.set()
        self._writer.join()
        self.proceed()
        self._site.drainer.stop()
        capsys.readouterr()
        assert self._site.ddl_command("list", "-o", "json") == 0
        counted, ddls = Counter[tuple[str, str]](), Counter[str]()
        for each in json.loads(capsys.readouterr().out)["left_out"]:
            assert each["cause"] == OVERRIDE, (each, self.typed)
            if each["kind"] == DDLS:
                ddls[each["table"]] += each["count"]
            else:
                assert each["kind"] == (VALUES if each["column"] else ROWS), (each, self.typed)
                counted[each["table"], each["column"]] += each["count"]
        assert counted == self._missing(ddls), self.typed

    def _missing(self, ddls: Counter[str]) -> Counter[tuple[str, str]]:
        missing = Counter[tuple[str, str]]()
        for table, rows in self.tables.items():
            held = self._site.held(table)
            name = f"shop.{table}"
            if set(held) - set(rows):
                assert table == "parts", (table, self.typed)
                assert ddls[name], (ddls, self.typed)
            for key, row in rows.items():
                if key not in held:
                    missing[name, ""] += 1
                    continue
                for column in (column for column in row if held[key][column] != row[column]):
                    assert held[key][column] is None, (table, key, self.typed)
                    missing[name, column] += 1
        return missing


@pytest.mark.fault(
    "an operator types any command at any node at any moment: overrides of DDL that stops a"
    " Drainer, changed, undone and taken back, kills between",
    "rows and values that are missing downstream are those that are counted, by table and column",
    cases="1 / 4 sequences",
)
@pytest.mark.parametrize(
    ("seed", "rounds"), [(1, 1), *(pytest.param(n, 3, marks=pytest.mark.slow) for n in range(2, 6))]
)
def test_what_an_operators_overrides_leave_out_is_exactly_what_is_counted(
    site: Site, capsys: pytest.CaptureFixture[str], seed: int, rounds: int
) -> None:
    chance = random.Random(seed)
    with Overriding(site, seed) as operator:
        for _ in range(rounds):
            for _ in range(chance.randint(1, 2)):
                operator.make_trouble()
            operator.proceed()
            if chance.random() < 0.5:
                operator.take_back()
        operator.finish(capsys)
