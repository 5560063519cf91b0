"""A source for an operator, in one process: started, killed, asked, and judged in the end.

The world around it is `tests.kit.operated.source_world`.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drainer.planner import Origins
from penstock.datum.rows.row_codec import RowCodec
from penstock.ddl import Catalog
from penstock.errors import PenstockError
from penstock.schema.model import DdlJob
from penstock.wire.binlog import Binlog, MutationType
from penstock.wire.codec import decode_prewrite_value
from pumpclient.mysql.relay.layout import Location
from pumpclient.mysql.source import command
from pumpclient.mysql.source.service import SourceService
from pumpclient.mysql.source.state.skipped import NO_TABLE
from pumpclient.mysql.translate.outputs import place_text
from tests.kit.operated.memory_server import SCHEMA, Change, Row
from tests.kit.operated.source_world import PACE, SOURCE, TURN_S, WITHIN_S, Incarnation, Outside
from tests.kit.wait import deadline


class World(Outside):
    """The world, with the source's process in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.typed: list[str] = []
        self._thread: threading.Thread | None = None
        self._settings = folder / "source.toml"
        self._settings.write_text(f'source-id = "{SOURCE}"\n')

    # --- the process ---------------------------------------------------------------------------

    def start(self) -> None:
        if self.unit is not None:
            return
        self.incarnation, self.ended = Incarnation(), None
        self.unit = unit = SourceService(self.config, PACE)

        def run() -> None:
            try:
                unit.run()
            except PenstockError as error:
                self.ended = error

        self._thread = threading.Thread(target=run, name="twin source")
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        if self.unit is None or self._thread is None:
            return
        self.unit.stop()
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), self.describe()
        self.unit = self._thread = None
        self.etcd.end_leases()

    def kill(self) -> None:
        """Kill it: at the call that was said before, or now."""
        self.incarnation.is_dead = True
        self.stop()

    def ask(self, *argv: str) -> str:
        """Run a command of `penstock source`; return what it says, or how it was refused."""
        self.typed.append(" ".join(argv))
        try:
            said = command.ask([*argv, "--config", str(self._settings)])
        except PenstockError as error:
            said = f"{type(error).__name__}: {error}"
        if argv[0] != "status":
            self.typed.append(f"  {said.strip()}")
        return said

    @property
    def state(self) -> str:
        return "" if self.unit is None else self.unit.counters.state

    def settle(self) -> None:
        """Wait until the source can do no more: it has all, or waits for an operator."""
        self.until(self._is_settled)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = deadline(WITHIN_S)
        while not condition():
            assert time.monotonic() < deadline_s, self.describe()
            time.sleep(TURN_S)

    def _is_settled(self) -> bool:
        unit = self.unit
        if unit is None or self.incarnation.is_dead or self.ended is not None:
            return True
        counters = unit.counters
        if counters.state == "failed" or (counters.state == "paused" and unit._paused):
            return True
        has_all = counters.state == "syncing" and counters.idle
        has_all &= counters.read_location == self.server.end and not unit._edits
        return has_all and not self._reloads_run(unit)

    def _reloads_run(self, unit: SourceService) -> bool:
        failed = {} if unit.reloads is None else unit.reloads.statuses
        return any(
            each.reload and getattr(failed.get(each.reload), "state", "") != "failed"
            for each in unit.counters.left_out
        )

    # --- the end -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Have whatever is refused left out, until all that the server has is read."""
        self.incarnation.calls_left = None
        if self.incarnation.is_dead or self.ended is not None:
            self.stop()
        self.start()
        self.ask("resume")
        for _ in range(60):
            self.settle()
            assert self.unit is not None
            if self.ended is not None:
                raise AssertionError(self.describe()) from self.ended
            if self.state == "failed":
                self._decide()
            elif self._failed_reloads():
                self.ask("reload", self._failed_reloads()[0])
            else:
                break
        else:
            raise AssertionError(f"no end of it: {self.describe()}")
        self.stop()
        assert self.saved[-1].place == self.server.log[-1].end, self.describe()

    def _failed_reloads(self) -> list[str]:
        assert self.unit is not None
        statuses = {} if self.unit.reloads is None else self.unit.reloads.statuses
        failed = {number for number, each in statuses.items() if each.state == "failed"}
        return [each.label for each in self.unit.counters.left_out if each.reload in failed]

    def _decide(self) -> None:
        """Take back what does not help, or else leave a table out, or what is refused."""
        assert self.unit is not None
        counters = self.unit.counters
        assert counters.overrides, self.describe()
        offered = [each.partition(": ")[0].split()[1:] for each in counters.overrides]
        found = [words for words in offered if words[0] in ("revoke", "skip-table")]
        if found:
            self.ask(*found[0])
        else:
            self.ask("skip")

    def judge(self) -> None:
        """Assert that what is missing downstream is what is counted, at each checkpoint."""
        down = _Downstream(self)
        figures = _Figures(self, down)
        figures.check()
        final = {each.name: each for each in self.saved[-1].left_out}
        for name, table in self.server.tables.items():
            found = final.get((SCHEMA, name))
            if found is not None and (found.statements or found.is_partial):
                continue
            held = down.tables.get(name, {})
            keys = held.keys() | table.rows.keys()
            differ = {key for key in keys if not _same(held.get(key), table.rows.get(key))}
            silent = differ - figures.keys[name]
            assert not silent, f"{name} differs at {silent} without a word: {self.describe()}"

    def describe(self) -> str:
        lines = ["", *self.typed, f"server at {self.server.end}"]
        lines += [f"{each.end}: {each.sql or each.changes}" for each in self.server.log]
        if self.saved:
            lines.append(f"saved {self.saved[-1]}")
        if self.unit is not None:
            counters = self.unit.counters
            lines.append(f"{counters.state} {counters.problem} {counters.overrides}")
            statuses = {} if self.unit.reloads is None else self.unit.reloads.statuses
            lines.append(f"read {counters.read_location}, {counters.left_out}, reloads {statuses}")
        return "\n".join([*lines, f"ended {self.ended!r}"])


def _same(held: Row | None, row: Row | None) -> bool:
    if held is None or row is None:
        return held is row
    return all(held[name] == row[name] for name in held.keys() & row.keys())


class _Downstream:
    """What the committed stream comes to, with what came again left out as a Drainer does."""

    def __init__(self, world: World) -> None:
        self.tables: dict[str, dict[int, Row]] = {}
        self.applied: Counter[tuple[tuple[int, int], str]] = Counter()
        """Row changes by the place of their transaction's end, and table; without reloads."""
        self._catalog = Catalog()
        seen = Origins({})
        for commit_ts, what in sorted(world.committed, key=lambda each: each[0]):
            if seen.is_repeated(commit_ts, what.origin):
                continue
            assert seen.gap(commit_ts, what.origin) is None, "a source makes no gap"
            seen.note(what.origin)
            if isinstance(what, DdlJob):
                self._ddl(what)
            else:
                self._rows(what)

    def _ddl(self, job: DdlJob) -> None:
        change = self._catalog.apply(job)
        for _, table in change.dropped:
            self.tables.pop(table.name, None)
        for _, table in change.created:
            self.tables[table.name] = {}
        moved = {new.name: self.tables.pop(old.name) for _, old, _, new in change.renamed}
        self.tables |= moved
        for _, _, after in change.altered:
            names = [column.name for column in after.columns]
            for row in self.tables[after.name].values():
                for name in names:
                    row.setdefault(name, None)

    def _rows(self, binlog: Binlog) -> None:
        for mutation in decode_prewrite_value(binlog.prewrite_value).mutations:
            found = self._catalog.table_by_id(mutation.table_id)
            assert found is not None
            info = found[1]
            assert binlog.origin is not None
            if binlog.origin.source == SOURCE:
                place = binlog.origin.file, binlog.origin.position
                self.applied[place, info.name] += len(mutation.sequence)
            codec, rows = RowCodec(info), self.tables[info.name]
            names = [column.name for column in info.columns]
            inserted, updated, deleted = map(
                iter, (mutation.inserted_rows, mutation.updated_rows, mutation.deleted_rows)
            )
            for kind in mutation.sequence:
                values: Any
                if kind is MutationType.INSERT:
                    values = codec.decode_insert(next(inserted))
                elif kind is MutationType.UPDATE:
                    values = codec.decode_update(next(updated))[1]
                else:
                    values = codec.decode_delete(next(deleted))
                rows.pop(values[0], None)
                if kind is not MutationType.DELETE:
                    rows[values[0]] = dict(zip(names, values, strict=True))


class _Figures:
    """What the counters must say, from what the server logged and what came downstream of it."""

    def __init__(self, world: World, down: _Downstream) -> None:
        self._world = world
        self._down = down
        self.rows: Counter[str] = Counter()
        self.keys: dict[str, set[int]] = {name: set() for name in world.server.tables}

    def check(self) -> None:
        """Hold each stored checkpoint's counters against what is missing up to its place."""
        log = iter(self._world.server.log)
        following = next(log, None)
        before: Mapping[str, Any] = {}
        for checkpoint in self._world.saved:
            known = set(before)
            while following is not None and following.end <= checkpoint.place:
                decided = checkpoint.rulings.get(place_text(following.end))
                self._changes(following.end, following.changes)
                if following.lost is not None:
                    self.keys[following.lost.table].add(following.lost.key)
                for old, new in following.renames if decided is None else ():
                    known = self._renamed(old, new, known)
                following = next(log, None)
            now = {each.table: each for each in checkpoint.left_out if each.name != NO_TABLE}
            for name in [name for name in self.rows if name not in now]:
                if name in before and before[name].reload:
                    self.rows.pop(name)
                    self.keys[name] = set()
            counted = {name: each.rows for name, each in now.items() if each.rows}
            wanted = {name: count for name, count in self.rows.items() if count}
            assert counted == wanted, (
                f"at {checkpoint.done} {counted} rows are counted, {wanted} are missing:"
                f" {self._world.describe()}"
            )
            before = now

    def _changes(self, end: Location, changes: Any) -> None:
        there: dict[str, list[Change]] = {}
        for each in changes:
            there.setdefault(each.table, []).append(each)
        for name, rows in there.items():
            applied = self._down.applied[(end.file.number, end.position), name]
            assert applied <= len(rows), f"{name} at {end} came twice: {self._world.describe()}"
            self.rows[name] += len(rows) - applied
            if applied < len(rows):
                self.keys.setdefault(name, set()).update(each.key for each in rows)

    def _renamed(self, old: str, new: str, known: set[str]) -> set[str]:
        self.keys[new], self.keys[old] = self.keys.get(old, set()), set()
        if not {old, new} & known:
            return known
        self.rows[new] = self.rows.pop(old, 0)
        return known - {old, new} | ({new} if old in known else set())
