"""Compares tables chunk by chunk, and repairs rows that differ.

The compared tables and their names downstream follow from a source's settings: filters, routes,
copies of online DDL, which are skipped. A table is merged when several are routed into it: then the
downstream table also has rows of others, and a row that exists only there does not count for this
table.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.filters import FilterConfig, Rules
from penstock.filters.settings import RouteRule
from penstock.settings.load import read_settings
from pumpclient.mysql.load.tables import (
    INTEGER_TYPES,
    TEXT_TYPES,
    Range,
    SourceTable,
    base_tables,
    chunks_of,
)
from pumpclient.mysql.rows.table_map import Name
from pumpclient.mysql.source.config import OPTIMISTIC, SourceConfig
from pumpclient.mysql.translate.online_ddl import OnlineDdl
from pumpclient.mysql.verify.sides import (
    ComparedColumn,
    ComparedRows,
    Difference,
    Downstream,
    Key,
    MysqlSide,
    Position,
    compared,
    rows_of,
)
from pumpclient.mysql.verify.source_pages import SourcePages


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The rules; without any, all tables are compared under their own names."""

    rules: Rules = field(default_factory=Rules)
    online: OnlineDdl | None = None
    merges: bool = False
    source: str = ""
    """The name of the source in origins; empty for the only one."""
    leaves_rows_out: bool = False
    """Whether the settings skip rows by their values or by kinds of change."""

    def targets(self, tables: Iterable[Name]) -> dict[Name, Name]:
        online, rules = self.online, self.rules
        return {
            name: rules.target(*name)
            for name in tables
            if rules.is_replicated(*name) and not (online is not None and online.is_copy(name[1]))
        }

    def merged(self, targets: dict[Name, Name]) -> set[Name]:
        count = Counter(targets.values())
        return {
            name
            for name, target in targets.items()
            if count[target] > 1 or (self.merges and self.rules.router.is_routed(*name))
        }


def names_of(source_config: str, routes: Sequence[str]) -> Names:
    """Return the names by a source's settings file, or by routes like `shop_*.order_*=shop.orders`.

    Raises `NeedsOperator` for an unreadable file and for an invalid route.
    """
    if not source_config:
        rules = Rules(FilterConfig(routes=tuple(map(_route, routes))))
        return Names(rules=rules)
    if routes:
        raise NeedsOperator(
            "routes are given twice, by --source-config and by --route",
            "write them into the file",
            Code.COMMAND_INVALID,
        )
    if not Path(source_config).is_file():
        raise NeedsOperator(
            f"there is no file {source_config}", "name the source's settings", Code.COMMAND_INVALID
        )
    source = read_settings(
        SourceConfig, ["--config", source_config], prog="penstock verify", env_prefix="MYSQL_SOURCE"
    )
    return Names(
        rules=Rules(source.filter, source_id=source.source_id),
        online=source.online_ddl.rules(),
        merges=source.shard_mode == OPTIMISTIC,
        source=source.source_id,
        leaves_rows_out=bool(source.filter.events or source.filter.expressions),
    )


def _route(text: str) -> RouteRule:
    pattern, _, target = text.partition("=")
    schema, _, table = pattern.partition(".")
    target_schema, _, target_table = target.partition(".")
    if not schema or not target_schema:
        raise NeedsOperator(
            f"{text!r} is no route",
            "write schema.table=schema.table, or schema=schema",
            Code.COMMAND_INVALID,
        )
    return RouteRule(
        schema_pattern=schema, table_pattern=table,
        target_schema=target_schema, target_table=target_table,
    )  # fmt: skip


_POLL_S = 0.2
_ROUNDS = 3
NOT_THERE = "the downstream is not yet that far"
"""Why a table keeps its note: only rows that the upstream does not have were deleted."""
Found = dict[Key, tuple[str, tuple[str, ...]]]


@dataclass(slots=True)
class VerifyReport:
    """The findings. `differences` is bounded, `different` counts all."""

    commit_ts: int = 0
    tables: int = 0
    chunks: int = 0
    different: int = 0
    repaired: int = 0
    undecided: int = 0
    only_downstream: int = 0
    differences: list[Difference] = field(default_factory=list)
    open: dict[str, str] = field(default_factory=dict)
    """Why a table of the upstream is not proved to be equal, or is not repaired."""
    ended: list[str] = field(default_factory=list)
    """The tables whose note of foreign keys' changes has ended."""

    @property
    def is_equal(self) -> bool:
        """True if nothing differs, or no longer does after a repair."""
        return self.different == self.repaired and not self.undecided


@dataclass(frozen=True, slots=True)
class _TablePair:
    """An upstream table and the downstream table with its rows, and others' rows if merged."""

    here: SourceTable
    there: SourceTable
    is_merged: bool

    def __str__(self) -> str:
        names = [".".join(table.full_name) for table in (self.here, self.there)]
        return " -> ".join(dict.fromkeys(names))


class Verifier:
    """One comparison; for one thread."""

    def __init__(
        self,
        upstream: MysqlSide,
        downstream: Downstream,
        say: Callable[[str], None],
        *,
        names: Names,
        tables: Sequence[str],
        strict: bool,
        rows_per_chunk: int,
        wait_s: float,
        differences_max: int,
        repair: bool | SourcePages,
    ) -> None:
        """`tables` are patterns like `shop.*`.

        With `strict`, tables and columns that exist only downstream count as a difference. To
        repair by the pages of a source, the tables are those that it has notes of, and the notes of
        repaired tables end.
        """
        self._source = repair if isinstance(repair, SourcePages) else None
        self._up = upstream
        self._down = downstream
        self._say = say
        self._names = names
        self._tables = tables
        self._strict = strict
        self._rows_per_chunk = rows_per_chunk
        self._wait_s = wait_s
        self._differences_max = differences_max
        self._repairs = bool(repair)
        self._report = VerifyReport()
        self._has_waited = self._was_behind = False
        self._is_proved = True

    def run(self) -> VerifyReport:
        """Compare everything; raises `NeedsOperator` and `Retryable` when that cannot be done."""
        self._check_sides()
        source, names = self._source, self._names
        if source is not None:
            source.read()
            if not source.notes:
                return self._report
        tables = {table.full_name: table for table in base_tables(self._up.session.fetch)}
        targets = names.targets(tables)
        merged = names.merged(targets)
        chosen = [name for name in targets if self._is_chosen(name)]
        if source is not None:
            self._down.lock()
            self._see_all()
            self._is_proved &= self._wait()
            self._report.open = dict.fromkeys(source.notes, "the upstream does not have it")
        elif not chosen:
            hint = "patterns are like shop.*, and the source's filters also apply"
            problem = f"no table of the upstream is called {', '.join(self._tables)}"
            raise NeedsOperator(problem, hint, Code.COMMAND_INVALID)
        if names.leaves_rows_out:
            self._say("note: the filters of the source skip rows: they show as missing")
        if source is None:
            self._only_there(targets, {targets[name][0] for name in chosen})
        for name in chosen:
            there, owner = tables[name], targets[name]
            renamed = replace(there, schema=owner[0], name=owner[1])
            fitting = _fitting(there, self._up, self._down, owner)
            pair = _TablePair(fitting, renamed, name in merged)
            if source is None:
                self._table(pair)
            else:
                self._noted(source, pair)
        return self._report

    def _noted(self, source: SourcePages, pair: _TablePair) -> None:
        """Repair a table that foreign keys may have changed, and end the source's note."""
        name = ".".join(pair.here.full_name)
        label = next(each for each in source.notes if each.lower() == name.lower())
        why = ""
        if pair.is_merged:
            why = "rows of other tables are in the same table"
        elif not self._names.rules.takes_all_rows(*pair.here.full_name):
            why = "the filters of the source skip some of its rows"
        before, done = replace(self._report), self._report
        if not why:
            self._table(pair)
            why = "" if self._is_proved else NOT_THERE
        if done.different - done.repaired > before.different - before.repaired:
            why = why or ("some rows differ" if pair.there.key else "it has no key to repair it by")
        if why:
            self._report.open[label] = why
            return
        source.repaired(label)
        del self._report.open[label]
        self._report.ended.append(label)

    def _see_all(self) -> None:
        """Let the upstream's next snapshot have all that a binlog, and so the downstream, has."""
        if self._source is None:
            return
        end, deadline_s = self._up.end().at, time.monotonic() + self._wait_s
        assert not isinstance(end, int), "a TiDB has no source"
        while not self._up.shows(end, self._source.gtids):
            if time.monotonic() > deadline_s:
                self._is_proved = False
                return
            time.sleep(_POLL_S)

    def _check_sides(self) -> None:
        for side in (self._up, self._down):
            side.refresh()
        if self._up.position() != Position() == self._down.position():
            raise NeedsOperator(
                "a Drainer's checkpoint is in the upstream, and none is in the downstream",
                "swap --upstream and --downstream",
                Code.COMMAND_INVALID,
            )

    def _is_chosen(self, name: Name) -> bool:
        label = ".".join(name)
        if self._source is not None:
            return label.lower() in {each.lower() for each in self._source.notes}
        return any(fnmatchcase(label, pattern) for pattern in self._tables)

    def _only_there(self, targets: Mapping[Name, Name], schemas: set[str]) -> None:
        known = {tuple(map(str.lower, target)) for target in targets.values()}
        for name in self._down.tables():
            is_asked = name[0] in schemas and self._is_chosen(name)
            if is_asked and (name[0].lower(), name[1].lower()) not in known:
                self._note_only_there(".".join(name), "table", ())

    def _note_only_there(self, name: str, what: str, columns: tuple[str, ...]) -> None:
        self._report.only_downstream += 1
        if self._strict:
            self._note(Difference(name, f"{what} only downstream", columns))
        else:
            listed = f" {', '.join(columns)}" if columns else ""
            self._say(f"note: {name}: {what}{listed} only downstream")

    def _table(self, pair: _TablePair) -> None:
        report = self._report
        report.tables += 1
        columns = self._up.columns(pair.here)
        self._down.refresh()
        found = self._down.columns(pair.there)
        there = {c.name.lower() for c in found}
        lacking = [c.name for c in columns if c.name.lower() not in there]
        if lacking:
            kind = "no column" if there else "no table"
            self._note(Difference(str(pair), kind, tuple(lacking)))
            return
        own = there - {c.name.lower() for c in columns}
        only_there = tuple(c.name for c in found if c.name.lower() in own)
        if only_there:
            self._note_only_there(str(pair), "column", only_there)
        is_alike = self._up.flavor is self._down.flavor and not pair.is_merged
        by_server = is_alike and not any(c.type == "json" for c in columns)
        for range_ in chunks_of(self._up.session.fetch, pair.here, self._rows_per_chunk):
            report.chunks += 1
            if by_server:
                self._up.refresh()
                self._down.refresh()
                here = self._down.checksum(pair.there, columns, range_)
                if here == self._up.checksum(pair.here, columns, range_) and here[3] in (None, "0"):
                    report.commit_ts = self._down.position().commit_ts
                    continue
            self._by_rows(pair, columns, range_, can_repair=not only_there)

    def _by_rows(
        self,
        pair: _TablePair,
        columns: tuple[ComparedColumn, ...],
        range_: Range,
        *,
        can_repair: bool,
    ) -> None:
        found, undecided, rows, is_sure = self._examined(pair, columns, range_)
        self._report.undecided += undecided
        for key, (kind, names) in sorted(found.items(), key=lambda item: repr(item[0])):
            self._note(Difference(str(pair), kind, key, names))
        if found and self._repairs and not can_repair:
            self._say(f"{pair} has columns that only the downstream has: not repaired")
        elif found and self._repairs:
            is_sure = is_sure or self._source is None
            self._repair(pair, columns, range_, found, rows, only_deletes=not is_sure)

    def _note(self, difference: Difference) -> None:
        self._report.different += 1
        if len(self._report.differences) < self._differences_max:
            self._report.differences.append(difference)

    def _examined(
        self, pair: _TablePair, columns: tuple[ComparedColumn, ...], range_: Range
    ) -> tuple[Found, int, ComparedRows, bool]:
        """Return the differences, the number of undecided rows, the upstream's rows, and whether
        the downstream was proved to be at the upstream's end."""
        doubtful: set[Key] | None = None
        for _ in range(_ROUNDS):
            before = self._rows(self._up, pair.here, columns, range_)
            is_sure = self._wait() and self._is_proved
            there = self._rows(self._down, pair.there, columns, range_)
            self._report.commit_ts = self._down.position().commit_ts
            after = self._rows(self._up, pair.here, columns, range_)
            found, undecided = compared(before, there, after)
            if pair.is_merged:
                found = {key: what for key, what in found.items() if what[0] != "extra"}
            # A row that was equal once is not doubtful any more.
            now = found.keys() | undecided
            doubtful = now if doubtful is None else now & doubtful
            if not doubtful:
                break
        assert doubtful is not None, "there is at least one round"
        left = {key: what for key, what in found.items() if key in doubtful}
        return left, len(undecided & doubtful), after, is_sure

    def _rows(
        self,
        side: Downstream,
        table: SourceTable,
        columns: tuple[ComparedColumn, ...],
        range_: Range,
    ) -> ComparedRows:
        if side is self._up:
            self._see_all()
        side.refresh()
        return rows_of(columns, table.key, side.rows(table, columns, range_))

    def _wait(self) -> bool:
        """Wait until the downstream is at the upstream's end; return whether that is proved."""
        end, ts = self._up.end(), 0
        deadline_s = time.monotonic() + (self._wait_s if self._is_proved else 0)
        while True:
            self._down.refresh()
            position = self._down.position()
            if end.is_in(position, self._names.source):
                return True
            if self._source is not None and not isinstance(end.at, int):
                ts = ts or self._source.ts_beyond(end.at)
                if ts and position.commit_ts >= ts:
                    return True
            if time.monotonic() > deadline_s:
                if not self._was_behind:
                    self._was_behind = True
                    self._say(f"note: {end.doubt(position, self._names.source)}")
                return False
            if not self._has_waited:
                self._has_waited = True
                self._say(f"waiting until the downstream is at {end}")
            time.sleep(_POLL_S)

    def _repair(
        self,
        pair: _TablePair,
        columns: tuple[ComparedColumn, ...],
        range_: Range,
        found: Found,
        rows: ComparedRows,
        *,
        only_deletes: bool,
    ) -> None:
        table = pair.there
        if not table.key:
            self._say(f"{pair} has no key that names its rows: not repaired")
            return
        order = [[c.name for c in columns].index(part) for part in table.key]
        by_position = sorted(order)
        gone = [
            tuple(key[by_position.index(n)] for n in order) for key in found if key not in rows.raw
        ]
        written = [] if only_deletes else [rows.raw[k] for k in found if k in rows.raw]
        self._down.write(table, columns, gone, written)
        again, undecided, *_ = self._examined(pair, columns, range_)
        left = sum(key in again for key in found)
        self._report.repaired += len(found) - left
        self._say(f"{pair}: {len(found) - left} of {len(found)} rows repaired")
        self._report.undecided += undecided


def _fitting(table: SourceTable, up: MysqlSide, down: Downstream, there: Name) -> SourceTable:
    """Return the table as one chunk if the downstream orders its key differently."""
    types = set(table.key_types)
    if down.flavor is None:
        is_fit = types <= INTEGER_TYPES - {"bigint"}
    elif types & TEXT_TYPES:
        is_fit = up.key_collations(table.full_name) == down.key_collations(there)
    else:
        is_fit = True
    return table if is_fit else replace(table, rows_estimated=0)
