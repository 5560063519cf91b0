"""An operator at a source: whatever is typed, what is missing is exactly what is counted.

Random sequences of `penstock source`'s commands, of kills and restarts, while a server does what
can be followed and what cannot. At each checkpoint the figures of what was left out are those of
the rows that did not come, and in the end no row differs that was not among them.

A command is added by one line in `COMMANDS`.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drainer.planner import Origins
from pumpclient.mysql.translate.outputs import place_text
from tests.kit.operated.memory_server import SCHEMA, Change, Logged, MemoryTable
from tests.kit.operated.source import World
from tests.kit.operated.source_world import twins

pytestmark = pytest.mark.fault

TABLES = ("a", "b", "c")
HARMLESS = "ALTER TABLE {}.{} COMMENT 'x'"


@dataclass(frozen=True)
class Aim:
    """What a step is aimed at; not all of it matters to every step."""

    world: World
    table: str
    number: int
    keys: itertools.count[int]

    @property
    def label(self) -> str:
        return f"{SCHEMA}.{self.table}"

    @property
    def other(self) -> str:
        return TABLES[(TABLES.index(self.table) + 1 + self.number % 2) % 3]

    @property
    def logged(self) -> Logged:
        """One of the last things in the server's log; no RENAME, which no one should leave out."""
        found = [each for each in self.world.server.log if not each.renames]
        return found[-1 - self.number % min(6, len(found))]

    @property
    def failed(self) -> Logged | None:
        unit = self.world.unit
        place = "" if unit is None else unit.counters.statement_place
        found = [each for each in self.world.server.log if place_text(each.end) == place]
        return found[0] if found else None

    def instead(self, logged: Logged | None, *, inject: bool) -> str:
        """Return what makes of a table what a statement does; harmless where no one can know."""
        words = [] if logged is None else logged.sql.split()
        if words[3:5] != ["MODIFY", "COLUMN"] or logged is None:
            is_alter = words[:2] == ["ALTER", "TABLE"] and logged is not None and not inject
            return logged.sql if is_alter and logged else HARMLESS.format(SCHEMA, self.table)
        name, column = words[2], words[5]
        unit = self.world.unit
        client = None if unit is None or unit.reloads is None else unit.reloads.context.client
        known = None if client is None else client.session.schemas.catalog().table(*name.split("."))
        if known is None or column in [each.name for each in known.columns]:
            return HARMLESS.format(*name.split(".")) if inject else logged.sql
        return f"ALTER TABLE {name} ADD COLUMN {column} {'INT' if inject else 'BIGINT'}"


def _at(aim: Aim) -> list[str]:
    return ["--at", place_text(aim.logged.end)]


COMMANDS: dict[str, Callable[[Aim], list[str]]] = {
    "status": lambda _: ["status"],
    "pause": lambda _: ["pause"],
    "resume": lambda _: ["resume"],
    "skip": lambda _: ["skip"],
    "skip --at": lambda aim: ["skip", *_at(aim)],
    "replace": lambda aim: ["replace", aim.instead(aim.failed, inject=False)],
    "replace --at": lambda aim: ["replace", aim.instead(aim.logged, inject=False), *_at(aim)],
    "inject": lambda aim: ["inject", aim.instead(aim.failed, inject=True)],
    "inject --at": lambda aim: ["inject", aim.instead(aim.logged, inject=True), *_at(aim)],
    "skip-table": lambda aim: ["skip-table", aim.label],
    "reload": lambda aim: ["reload", aim.label],
    "revoke": lambda aim: ["revoke", aim.label],
    "revoke a place": lambda aim: ["revoke", place_text(aim.logged.end)],
    "revoke --accept-gap": lambda aim: ["revoke", aim.label, "--accept-gap"],
    "purge inactive": lambda _: ["purge", "inactive"],
    "purge filename": lambda aim: ["purge", "filename", f"mysql-bin.{aim.number + 1:06d}"],
    "purge time": lambda _: ["purge", "time", "0"],
}
"""Every command but `check`, which only looks, by what it is aimed at."""


def _insert(aim: Aim) -> None:
    _inserted(aim, aim.table)


def _insert_two(aim: Aim) -> None:
    _inserted(aim, aim.table, aim.other)


def _inserted(aim: Aim, *names: str) -> None:
    changes = []
    for name in names:
        table = aim.world.server.tables[name]
        row: dict[str, int | None] = dict.fromkeys(table.columns, aim.number)
        changes.append(Change(name, None, {**row, "id": next(aim.keys)}))
    aim.world.server.commit(*changes)


def _changed(aim: Aim, *, gone: bool = False, minimal: bool = False) -> None:
    rows = aim.world.server.tables[aim.table].rows
    if not rows:
        return
    before = list(rows.values())[aim.number % len(rows)]
    after = None if gone else {**before, "v": (before["v"] or 0) + 10}
    aim.world.server.commit(Change(aim.table, before, after, is_minimal=minimal))


def _add_column(aim: Aim, *, logged: bool = True) -> None:
    table = aim.world.server.tables[aim.table]
    name = f"c{len(table.columns)}"
    if name in table.columns:
        return
    table.columns[name] = "INT"
    for row in table.rows.values():
        row[name] = None
    if logged:
        aim.world.server.statement(f"ALTER TABLE {aim.label} ADD COLUMN {name} INT")


def _modify(aim: Aim) -> None:
    table = aim.world.server.tables[aim.table]
    name = list(table.columns)[-1]
    table.columns[name] = "BIGINT"
    aim.world.server.statement(f"ALTER TABLE {aim.label} MODIFY COLUMN {name} BIGINT")


def _truncate(aim: Aim) -> None:
    aim.world.server.tables[aim.table].rows.clear()
    aim.world.server.statement(f"TRUNCATE TABLE {aim.label}")


def _swap(aim: Aim) -> None:
    tables, one, two = aim.world.server.tables, aim.table, aim.other
    tables[one], tables[two] = tables[two], tables[one]
    renames = (one, "tmp"), (two, one), ("tmp", two)
    text = ", ".join(f"{SCHEMA}.{old} TO {SCHEMA}.{new}" for old, new in renames)
    aim.world.server.statement(f"RENAME TABLE {text}", *renames)


def _create_again(aim: Aim) -> None:
    server = aim.world.server
    server.statement(f"DROP TABLE {aim.label}")
    server.tables[aim.table] = MemoryTable()
    server.statement(server.tables[aim.table].definition(aim.table))


def _log_as_statement(aim: Aim) -> None:
    rows = aim.world.server.tables[aim.table].rows
    if rows:
        key = list(rows)[aim.number % len(rows)]
        lost = Change(aim.table, rows.pop(key), None)
        aim.world.server.statement(f"DELETE FROM {aim.label} WHERE id = {key}", lost=lost)


LOAD: dict[str, Callable[[Aim], None]] = {
    "insert": _insert,
    "insert into two": _insert_two,
    "update": _changed,
    "delete": lambda aim: _changed(aim, gone=True),
    "add a column": _add_column,
    "modify a column": _modify,
    "truncate": _truncate,
    "swap two tables": _swap,
    "drop and create": _create_again,
    "rotate": lambda aim: aim.world.server.rotate(),
}
"""What a server does and a source follows."""

TROUBLE: dict[str, Callable[[Aim], None]] = {
    "update with a minimal image": lambda aim: _changed(aim, minimal=True),
    "add a column without the log": lambda aim: _add_column(aim, logged=False),
    "log a change as a statement": _log_as_statement,
}
"""What no source can follow."""


def _die_soon(aim: Aim) -> None:
    aim.world.incarnation.calls_left = aim.number * 3


def _start(aim: Aim) -> None:
    if aim.world.incarnation.is_dead:
        aim.world.stop()
    aim.world.start()


ACTS: dict[str, Callable[[Aim], None]] = {
    "kill": lambda aim: aim.world.kill(),
    "kill at a later call": _die_soon,
    "stop": lambda aim: aim.world.stop(),
    "start": _start,
}

Step = tuple[str, int, int, bool]
SEQUENCES = st.lists(
    st.tuples(
        st.sampled_from([*LOAD, *LOAD, *TROUBLE, *TROUBLE, *COMMANDS, *ACTS, "start", "start"]),
        st.integers(0, 2),
        st.integers(0, 7),
        st.booleans(),
    ),
    min_size=5,
    max_size=40,
)


@contextmanager
def following(folder: Path) -> Iterator[World]:
    world = World(folder)
    with twins(world):
        try:
            for name in TABLES:
                table = world.server.tables[name] = MemoryTable()
                world.server.statement(table.definition(name))
            world.start()
            world.settle()
            yield world
        finally:
            world.kill()


def live(sequence: list[Step], folder: Path) -> None:
    keys = itertools.count(1)
    with following(folder) as world:
        for step, table, number, waits in sequence:
            aim = Aim(world, TABLES[table], number, keys)
            if step in COMMANDS:
                world.ask(*COMMANDS[step](aim))
            else:
                world.typed.append(f"{step}: {aim.table} {number}")
                {**LOAD, **TROUBLE, **ACTS}[step](aim)
            if waits:
                world.settle()
        world.finish()
        world.judge()


def run(sequence: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        live(sequence, Path(folder))


def sequences(count: int) -> settings:
    return settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.fault(
    "an operator types any command at any node at any moment: at a source of a MySQL or"
    " MariaDB: every command of `penstock source`, also senseless ones, kills before any of"
    " its calls to the world, while a server does what no source can follow",
    "at each checkpoint the figures are those of the rows that are missing downstream; no"
    " other row differs in the end",
    cases=(
        "10 / 250 random sequences of a twin, 1 / 4 of a real MariaDB, source, Pumps and Drainer"
    ),
)
@sequences(10)
@given(SEQUENCES)
def test_whatever_is_typed_at_a_source_what_is_missing_is_what_is_counted(
    sequence: list[Step],
) -> None:
    run(sequence)


@pytest.mark.slow
@sequences(250)
@given(SEQUENCES)
def test_many_sequences_at_a_source_leave_out_what_is_counted(sequence: list[Step]) -> None:
    run(sequence)


def test_a_purge_leaves_what_the_next_process_would_still_read(tmp_path: Path) -> None:
    with following(tmp_path) as world:
        aim = Aim(world, "a", 1, itertools.count(1))
        world.server.rotate()
        _insert(aim)
        world.settle()
        world.ask("purge", "inactive")  # What was read last may not be in the checkpoint yet.
        world.kill()
        world.start()
        world.finish()
        world.judge()


def test_a_purge_leaves_what_a_reload_has_still_to_read(tmp_path: Path) -> None:
    taken, going = Event(), Event()

    def wait() -> None:
        taken.set()
        assert going.wait(60)

    with following(tmp_path) as world:
        aim = Aim(world, "a", 1, itertools.count(1))
        world.while_loading = wait
        world.ask("reload", aim.label)
        assert taken.wait(60)
        _insert(aim)
        world.server.rotate()
        _insert_two(aim)
        world.until(lambda: world.saved[-1].place == world.server.end)
        world.ask("purge", "inactive")
        going.set()
        world.finish()
        world.judge()
        assert not world.saved[-1].left_out


def test_a_table_whose_reload_was_ended_is_taken_back_by_a_reload_only(tmp_path: Path) -> None:
    taken, going = Event(), Event()

    def wait() -> None:
        taken.set()
        assert going.wait(60)

    with following(tmp_path) as world:
        aim = Aim(world, "a", 1, itertools.count(1))
        _insert(aim)
        world.settle()
        world.while_loading = wait
        world.ask("reload", aim.label)
        assert taken.wait(60)
        assert "is being loaded again" in world.ask("revoke", aim.label, "--accept-gap")
        world.ask("skip-table", aim.label)
        going.set()
        world.while_loading = lambda: None
        refused = world.ask("revoke", aim.label, "--accept-gap")
        assert "an unknown part of it is downstream" in refused
        assert world.saved[-1].left_out[0].is_partial
        world.ask("reload", aim.label)
        _insert(aim)
        world.finish()
        world.judge()
        assert not world.saved[-1].left_out


def test_what_is_missing_of_a_table_goes_along_with_its_name(tmp_path: Path) -> None:
    with following(tmp_path) as world:
        aim = Aim(world, "a", 0, itertools.count(1))
        _insert(aim)
        _changed(aim, minimal=True)
        world.settle()
        world.ask("skip")
        _swap(aim)
        world.finish()
        world.judge()
        (found,) = world.saved[-1].left_out
        assert (found.table, found.rows, found.is_whole) == (aim.other, 1, False)


def test_a_decision_that_does_not_help_is_offered_to_be_taken_back(tmp_path: Path) -> None:
    with following(tmp_path) as world:
        aim = Aim(world, "a", 0, itertools.count(1))
        world.ask("pause")
        _modify(aim)
        place = place_text(aim.logged.end)
        world.ask("replace", "DROP TABLE shop.nothing", "--at", place)
        world.ask("resume")
        world.settle()
        assert world.unit is not None
        assert world.unit.counters.overrides[0].startswith(f"penstock source revoke {place} --")
        world.ask("revoke", place)
        world.finish()
        world.judge()
        assert not world.saved[-1].left_out


@pytest.mark.fault(
    "a Pump rolls back one transaction of a source's group, and takes the later ones, as"
    " after a pause of the source",
    "the source stops; the Drainer stops before the next one and names the one that is missing",
    cases="3",
)
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_transaction_that_a_pump_rolled_back_before_later_ones_of_its_group_is_a_gap(
    tmp_path: Path, lost: int
) -> None:
    """As a source that was paused for txn-timeout-s does it: resumed, it brings the row again."""
    with following(tmp_path) as world:
        aim = Aim(world, "a", 0, itertools.count(1))
        _insert(aim)
        world.settle()
        world.stop()
        for _ in range(4):
            _insert(aim)
        world.pump.refuses = lost
        world.start()
        world.until(lambda: world.state == "failed")
        world.stop()
        (world.config.data_dir / "db-1.journal").unlink()
        world.start()
        world.settle()
        world.stop()
        seen, found, dropped = Origins({}), [], []
        for commit_ts, what in sorted(world.committed, key=lambda each: each[0]):
            assert what.origin is not None
            if seen.is_repeated(commit_ts, what.origin):
                dropped.append(what.origin.place)
                continue
            if seen.gap(commit_ts, what.origin) is not None:
                found.append(what.origin)
            seen.note(what.origin)
        ((epoch, previous),) = [(each.epoch, each.previous) for each in found]
        assert previous is not None
        assert (epoch, *previous) in dropped


@pytest.mark.fault(
    "the last group before the server falls silent is rolled back",
    "it is not noted as committed; the next run brings it in",
    cases="1",
)
def test_a_group_that_failed_is_not_noted_as_committed_while_the_server_is_silent(
    tmp_path: Path,
) -> None:
    with following(tmp_path) as world:
        aim = Aim(world, "a", 0, itertools.count(1))
        world.pump.refuses = 0
        _insert(aim)
        world.until(lambda: world.saved[-1].place == world.server.log[-1].end)
        assert world.pump.refuses is None
        world.stop()
        world.judge()


def test_a_reload_says_what_it_loaded_and_fails_for_a_table_that_the_server_lost(
    tmp_path: Path,
) -> None:
    with following(tmp_path) as world:
        a, b = (Aim(world, name, 0, itertools.count(1)) for name in "ab")
        _insert(a)
        _insert(a)
        world.settle()
        assert "2 rows loaded" in world.ask("reload", a.label, "--wait")
        assert "0 rows loaded" in world.ask("reload", b.label, "--wait")
        assert "does not have shop.z" in world.ask("reload", "shop.z")
        world.ask("skip-table", a.label)
        lost = world.server.tables.pop("a")
        said = world.ask("reload", a.label, "--wait")
        assert "does not have shop.a, and its binlog has no DROP of it" in said
        assert world.saved[-1].reloaded["shop.a"]["rows"] == 2
        world.server.statement("DROP TABLE IF EXISTS shop.a")
        world.settle()
        report = world.saved[-1].reloaded["shop.a"]
        assert (report["rows"], bool(report["dropped"])) == (0, True)
        assert not world.saved[-1].left_out
        assert lost.rows
        world.stop()
        world.judge()
