"""Batches that admission lets run at a time end where upstream is, wherever a run ends."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drainer.apply.admission import Admission
from drainer.task.compaction import plan_units
from drainer.task.partitions import arranged
from drainer.task.sql.digests import Digests, Touched, merged
from drainer.task.sql.generate import generate
from drainer.task.sql.literals import MYSQL
from drainer.task.sql.rows import after_image, apply_key, before_image, can_meet_others, row_codec
from drainer.task.work_unit import Bounds, Op, Statements
from penstock.schema.model import TableInfo
from penstock.wire.binlog import MutationType
from tests.kit.workloads.changes import (
    CASES,
    Case,
    Row,
    Upstream,
    batch_of,
    collated,
    histories,
    padded,
    play,
    unique_values,
)
from tests.kit.workloads.sqlite_copies import Changes

SMALL = Bounds(rowwise_max=3)
"""A few rows are enough for the way by columns."""
UNDER_WAY_MAX = 6


class Duplicate(Exception):
    """An upsert met another row than its own: error 1062, or the guard's 1690."""


@dataclass
class Server:
    """One table as a server keeps it: it compares by collation and refuses duplicates."""

    table: TableInfo
    rows: list[Row] = field(default_factory=list)

    def delete(self, row: Row) -> None:
        self.rows = [each for each in self.rows if self._key(each) != self._key(row)]

    def upsert(self, row: Row, *, displaces: bool) -> None:
        wanted = unique_values(self.table, row)
        met = [each for each in self.rows if wanted & unique_values(self.table, each)]
        if not (displaces and can_meet_others(self.table)):
            for each in met:
                if self._key_bytes(each) != self._key_bytes(row):
                    raise Duplicate(f"{row} meets {each}")
        self.rows = [each for each in self.rows if each not in met] + [row]

    def change(self, old: Row | None, new: Row | None) -> None:
        """Make one change of a table without row key."""
        if old is not None:
            self.rows.remove(old)
        if new is not None:
            self.rows.append(new)

    def _key(self, row: Row) -> list[Any]:
        key = apply_key(self.table)
        assert key is not None
        return [collated(self.table.columns[p.offset], row[p.offset]) for p in key.columns]

    def _key_bytes(self, row: Row) -> list[Any]:
        key = apply_key(self.table)
        assert key is not None
        return [row[part.offset] for part in key.columns]


Act = tuple[Op, Row | None, Row | None]
"""The rows before and after; of a delete and an upsert, one of them."""


class Applied:
    """One batch on its way: its digests, and the transactions that it still needs."""

    def __init__(
        self, table: TableInfo, changes: Changes, luck: Random, *, displaces: bool
    ) -> None:
        self.displaces = displaces
        self._acts: list[Act] = []
        found: list[Digests] = []
        made: list[tuple[bool, Statements]] = []
        batch = batch_of(table, changes, schema="shop")
        for unit in plan_units(batch, MYSQL, SMALL):
            touched = Touched(unit)
            generate(unit, SMALL, touched)
            found.append(touched.digests())
            made.append((can_meet_others(table), self._numbered(table, unit.rows)))
        self.digests = merged(found)
        work = arranged(made, connections=luck.choice([1, 3]), bytes_min=1)
        self.phases = [list(phase) for phase in work.phases]
        self.last = work.last

    def _numbered(self, table: TableInfo, rows: Any) -> Statements:
        """Return the numbers of a unit's acts in place of their statements."""
        made, codec = Statements(), row_codec(table)
        places = {Op.DELETE: made.deletes, Op.UPSERT: made.upserts, Op.ORDERED: made.ordered}
        for op, kind, data in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            places[op].append(b"%d" % len(self._acts))
            old = new = None
            if op != Op.UPSERT and kind != MutationType.INSERT:
                old = padded(table, before_image(codec, kind, data))
            if op != Op.DELETE and kind != MutationType.DELETE:
                new = padded(table, after_image(codec, kind, data))
            self._acts.append((Op(op), old, new))
        return made

    @property
    def is_once(self) -> bool:
        """True for changes that only the transaction with the checkpoint may make."""
        return any(op is Op.ORDERED for op, _, _ in self._acts)

    def commit(self, server: Server, statements: Sequence[bytes]) -> None:
        for number in statements:
            op, old, new = self._acts[int(number)]
            if op is Op.ORDERED:
                server.change(old, new)
            elif op is Op.DELETE:
                assert old is not None
                server.delete(old)
            else:
                assert new is not None
                server.upsert(new, displaces=self.displaces)


class Run:
    """One run of a Drainer from a checkpoint; any number of its steps may come before its end."""

    def __init__(
        self, server: Server, batches: Sequence[Changes], luck: Random, *, applying: int
    ) -> None:
        """The first `applying` batches may be partly downstream."""
        self.server = server
        self.admission = Admission()
        self.begun = 0
        self.at_a_time = 0
        """The most batches that have been admitted at a time."""
        self._luck = luck
        self._batches = [
            Applied(server.table, changes, luck, displaces=number <= applying)
            for number, changes in enumerate(batches, start=1)
        ]
        self._unknown: set[int] = set()
        self._open: set[int] = set()

    def step(self) -> bool:
        """Do one of the possible things; False if everything is done."""
        things = list(self._things())
        if not things:
            return False
        act, number, at = self._luck.choice(things)
        batch = self._batches[number - 1]
        if act == "begin":
            self.begun = number
            self._open.add(number)
            self._unknown.add(number)
            self.admission.begin(number)
        elif act == "know":
            self._unknown.remove(number)
            self.admission.know(number, batch.digests)
        elif act == "commit":
            batch.commit(self.server, batch.phases[0].pop(at))
            if not batch.phases[0]:
                batch.phases.pop(0)
        else:
            batch.commit(self.server, batch.last)
            self._open.remove(number)
            self.admission.finish(number)
        self.at_a_time = max(self.at_a_time, sum(map(self.admission.admits, self._open)))
        return True

    def _things(self) -> Iterator[tuple[str, int, int]]:
        if self.begun < len(self._batches) and len(self._open) < UNDER_WAY_MAX:
            # As likely as everything else together, so that several are under way most of the time.
            yield from [("begin", self.begun + 1, 0)] * (1 + len(self._open))
        for number in self._open:
            batch = self._batches[number - 1]
            if number in self._unknown:
                yield "know", number, 0
            if not self.admission.admits(number):
                continue
            if batch.phases:
                for at in range(len(batch.phases[0])):
                    yield "commit", number, at
            elif not batch.is_once or self.admission.finished == number - 1:
                yield "finish", number, 0


def cut(changes: Changes, luck: Random) -> list[Changes]:
    """Return the changes in batches of random sizes."""
    batches = []
    while changes:
        size = luck.randint(1, 4)
        batches.append(changes[:size])
        changes = changes[size:]
    return batches


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=repr)


SOME = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LUCK = st.integers(0, 2**32).map(Random)
"""Drawn numbers of its own would make most schedules plain, and miss one in two defects."""


@pytest.mark.fault(
    "several batches at a time, whose keys and unique values cross",
    "equal to upstream",
    cases="12 histories of each of 9 tables, cut and interleaved at random",
)
@pytest.mark.parametrize("case", CASES, ids=str)
@SOME
@given(data=st.data(), luck=LUCK)
def test_batches_at_a_time_end_where_upstream_is(
    case: Case, data: st.DataObject, luck: Random
) -> None:
    upstream, server = Upstream(case.table), Server(case.table)
    for steps in data.draw(histories(case, 30, min_size=15)):
        run = Run(server, cut(play(case, upstream, steps), luck), luck, applying=0)
        while run.step():
            pass
        wanted = [padded(case.table, row) for _, row in upstream.rows]
        assert in_order(server.rows) == in_order(wanted)


@pytest.mark.fault(
    "crashes while several batches are being applied, which are then cut elsewhere",
    "equal to upstream; rows without a key are written once",
    cases="12 histories of each of 9 tables, 3 crashes each, interleaved at random",
)
@pytest.mark.main_case("integer key")
@pytest.mark.parametrize("case", CASES, ids=str)
@SOME
@given(data=st.data(), luck=LUCK)
def test_a_restart_repairs_all_batches_that_were_being_applied(
    case: Case, data: st.DataObject, luck: Random
) -> None:
    """Everything up to the end of the last batch that had begun displaces other rows."""
    upstream, server = Upstream(case.table), Server(case.table)
    changes = [
        change
        for each in data.draw(histories(case, 30, min_size=15))
        for change in play(case, upstream, each)
    ]
    checkpoint = applying = 0
    for crashes in (True, True, True, False):
        batches = cut(changes[checkpoint:], luck)
        ends = [checkpoint]
        for batch in batches:
            ends.append(ends[-1] + len(batch))
        partial = sum(begin < applying for begin in ends[:-1])
        run = Run(server, batches, luck, applying=partial)
        steps_max = luck.randint(0, 4 * len(batches)) if crashes else -1
        while steps_max != 0 and run.step():
            steps_max -= 1
        checkpoint, applying = ends[run.admission.finished], max(applying, ends[run.begun])
    wanted = [padded(case.table, row) for _, row in upstream.rows]
    assert in_order(server.rows) == in_order(wanted)


def test_batches_of_different_rows_are_all_applied_at_a_time() -> None:
    """Without it the tests above would also pass if all batches waited for one another."""
    case = CASES[0]
    upstream, server, luck = Upstream(case.table), Server(case.table), Random(1)
    for number in range(40):
        upstream.insert((number, number, number, number, None))
    run = Run(server, cut(upstream.changes, luck), luck, applying=0)
    while run.step():
        pass
    assert run.at_a_time == UNDER_WAY_MAX
    assert len(server.rows) == 40


def test_a_repaired_batch_takes_a_unique_value_from_a_later_one_that_was_apply() -> None:
    """The last three batches were downstream when the first was not: it holds the checkpoint."""
    case = CASES[0]
    upstream, server, luck = Upstream(case.table), Server(case.table), Random(1)
    upstream.insert((9, 9, None, 1, None))
    upstream.insert((1, 5, None, 1, None))
    upstream.update(1, (1, 6, None, 1, None))
    upstream.insert((2, 5, None, 1, None))

    def apply(number: int, *, displaces: bool) -> None:
        batch = Applied(case.table, [upstream.changes[number]], luck, displaces=displaces)
        for transaction in (*(each for phase in batch.phases for each in phase), batch.last):
            batch.commit(server, transaction)

    for number in (1, 2, 3):
        apply(number, displaces=False)
    with pytest.raises(Duplicate):
        apply(1, displaces=False)
    for number in range(4):
        apply(number, displaces=True)
    assert in_order(server.rows) == in_order([row for _, row in upstream.rows])
