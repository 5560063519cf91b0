"""A note of foreign keys' changes ends only once the table is, or will be, as the upstream has it.

Upstream, source, Drainer and `verify` take their steps in random order. The upstream's engine shows
a transaction later than its binlog has it, the source sends it later, and the Drainer applies it
later still. Some of the upstream's changes are cascaded: these are in no stream.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.load.tables import Range, SourceTable
from pumpclient.mysql.protocol.server import BinlogPlace
from pumpclient.mysql.verify import verifier as unit
from pumpclient.mysql.verify.sides import ComparedColumn, End, Position
from pumpclient.mysql.verify.source_pages import SourcePages
from pumpclient.mysql.verify.verifier import Names, Verifier

TABLE = SourceTable("d", "c", "InnoDB", 10, ("id",), ("int",))
COLUMNS = (ComparedColumn("id", "int"), ComparedColumn("v", "int"))
KEYS = 2
Rows = dict[int, int]


class World:
    """All four; place and commit_ts of a change are its number, from 1 on."""

    def __init__(self, chance: random.Random, cascades: int) -> None:
        self.chance = chance
        self.changes: list[tuple[int, int | None, bool]] = []
        """Key, value (None is a delete), and whether it was cascaded."""
        self.shown = self.sent = self.applied = 0
        self.written: list[tuple[int, Rows, Sequence[int]]] = []
        self.down: Rows = {}
        self.cascades = cascades
        self.now_s = 0.0
        self.weights = [chance.choice((1, 10, 100)) for _ in range(4)]
        """How often the upstream changes a row, shows a change, and so on."""

    def change(self, *, is_cascaded: bool) -> None:
        key, value = self.chance.randrange(KEYS), self.chance.choice([None, 1, 2])
        self.changes.append((key, value, is_cascaded))

    def step(self) -> None:
        for _ in range(self.chance.randrange(4)):
            self._step()

    def _step(self) -> None:
        match self.chance.choices(range(4), self.weights)[0]:
            case 0:
                is_cascaded = self.cascades > 0 and self.chance.random() < 0.2
                self.cascades -= is_cascaded
                self.change(is_cascaded=is_cascaded)
            case 1 if self.shown < len(self.changes):
                self.shown += 1
            case 2 if self.sent < len(self.changes):
                self.sent += 1
            case 3 if self.applied < self.sent:
                key, value, is_cascaded = self.changes[self.applied]
                self.applied += 1
                if not is_cascaded:
                    put(self.down, key, value)

    def up(self) -> Rows:
        found: Rows = {}
        for key, value, _ in self.changes[: self.shown]:
            put(found, key, value)
        return found

    def end(self) -> None:
        """Let everything arrive."""
        self.shown = self.sent = len(self.changes)
        self.weights = [0, 0, 0, 1]
        while self.applied < self.sent:
            self.step()

    @property
    def last(self) -> int:
        """The place of the last cascaded change that the source has sent."""
        sent = enumerate(self.changes[: self.sent], 1)
        return max((place for place, (*_, is_cascaded) in sent if is_cascaded), default=0)

    # The clock of the unit.

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.step()


def begun(chance: random.Random, cascades: int) -> World:
    """Return a world with a note."""
    world = World(chance, cascades)
    for _ in range(chance.randrange(10)):
        world.step()
    world.change(is_cascaded=True)
    world.sent = len(world.changes)
    return world


def put(rows: Rows, key: int, value: int | None) -> None:
    rows.pop(key, None)
    if value is not None:
        rows[key] = value


class Side:
    """A side in its snapshot."""

    def __init__(self, world: World, flavor: Flavor, *, is_up: bool) -> None:
        self.flavor, self._world, self._is_up = flavor, world, is_up
        self.session = self
        self.refresh()

    def fetch(self, *_: Any) -> list[Any]:
        return []

    def refresh(self) -> None:
        world = self._world
        world.step()
        self._rows = world.up() if self._is_up else dict(world.down)
        # An idle Drainer saves a checkpoint above all that it has.
        self._ts = world.applied + (world.applied == world.sent)

    def position(self) -> Position:
        return Position() if self._is_up else Position(self._ts)

    def end(self) -> End:
        return End(place_of(len(self._world.changes)))

    def shows(self, end: BinlogPlace, gtids: str) -> bool:
        self._world.step()
        return self._world.shown >= end.position

    def lock(self) -> None:
        assert not self._is_up

    def columns(self, table: SourceTable) -> tuple[ComparedColumn, ...]:
        return COLUMNS

    def rows(self, *_: Any) -> list[tuple[int, int]]:
        return sorted(self._rows.items())

    def checksum(self, *_: Any) -> tuple[object, ...]:
        return len(self._rows), tuple(sorted(self._rows.items())), 0, "0"

    def write(
        self, table: SourceTable, columns: Any, deleted: Sequence[Any], written: Sequence[Any]
    ) -> None:
        for _ in range(self._world.chance.randrange(6)):
            self._world.step()
        for (key,) in deleted:
            self._world.down.pop(key, None)
        self._world.down.update(dict(written))


def place_of(number: int) -> BinlogPlace:
    return BinlogPlace("f.000001", number, "")


class Source(SourcePages):
    """The source's pages; `ended` is whether the note has ended."""

    def __init__(self, world: World) -> None:
        self._world, self.ended = world, False
        super().__init__("127.0.0.1:1")

    def read(self) -> None:
        self.notes = {"d.c": str(self._world.last)}

    def ts_beyond(self, end: BinlogPlace) -> int:
        self._world.step()
        return self._world.sent + 1 if self._world.sent >= end.position else 0

    def repaired(self, table: str) -> None:
        self.ended = str(self._world.last) == self.notes[table]


def verified(
    patch: pytest.MonkeyPatch, world: World, flavor: Flavor, wait_s: float
) -> tuple[Source, unit.VerifyReport]:
    patch.setattr(unit, "base_tables", lambda fetch: [TABLE])
    patch.setattr(unit, "chunks_of", lambda *_: [Range()])
    patch.setattr(unit, "time", world)
    up: Any = Side(world, Flavor.MARIADB, is_up=True)
    down: Any = Side(world, flavor, is_up=False)
    source = Source(world)
    found = Verifier(
        up, down, lambda line: None,
        names=Names(), tables=["*"], strict=False, rows_per_chunk=100, wait_s=wait_s,
        differences_max=9, repair=source,
    ).run()  # fmt: skip
    return source, found


@settings(max_examples=500)
@given(
    seed=st.integers(0, 1 << 30),
    flavor=st.sampled_from((Flavor.MARIADB, Flavor.MYSQL)),
    wait_s=st.sampled_from((0.0, 1.0, 20.0)),
)
def test_a_note_that_ends_leaves_no_row_that_differs(
    seed: int, flavor: Flavor, wait_s: float
) -> None:
    """Servers of one flavour are compared by checksums first."""
    chance = random.Random(seed)
    world = begun(chance, chance.randrange(3))
    with pytest.MonkeyPatch.context() as patch:
        source, found = verified(patch, world, flavor, wait_s)
    assert ("d.c" in found.ended) != ("d.c" in found.open)
    if source.ended:
        is_later = any(each for *_, each in world.changes[world.sent :])
        world.end()
        assert world.down == world.up() or is_later


@settings(max_examples=100)
@given(seed=st.integers(0, 1 << 30))
def test_a_note_ends_once_nothing_is_noted_any_more(seed: int) -> None:
    world = begun(random.Random(seed), cascades=0)
    world.weights = [1, 2, 2, 3]
    for _ in range(20):
        with pytest.MonkeyPatch.context() as patch:
            source, _ = verified(patch, world, Flavor.MYSQL, 100.0)
        if source.ended:
            return
    raise AssertionError("it has not ended")


@pytest.mark.parametrize("flavor", [Flavor.MARIADB, Flavor.MYSQL])
def test_equal_tables_prove_nothing_before_the_downstream_is_beyond_the_note(
    flavor: Flavor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child was inserted, and deleted with its parent: the downstream has neither so far."""
    world = World(random.Random(1), cascades=0)
    world.weights = [0, 0, 1, 0]
    world.changes = [(1, 1, False), (1, None, True)]
    world.shown = world.sent = 2
    source, found = verified(monkeypatch, world, flavor, 5.0)
    assert (source.ended, found.different, found.open) == (False, 0, {"d.c": unit.NOT_THERE})
    world.end()
    assert world.down == {1: 1}, "the INSERT came later"
    source, found = verified(monkeypatch, world, flavor, 5.0)
    assert (source.ended, found.repaired, world.down) == (True, 1, {})
