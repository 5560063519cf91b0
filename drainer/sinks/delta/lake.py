"""Lake: its Delta tables, each with the version up to which its commits are known to be ours.

A table's folder has the name of the schema and of the table. Readers of Delta put such names into
URLs, and not all of them in the same way. Every character other than letters, digits and `_ - $ .`
is therefore written as `~` and two digits for each of its bytes: `Größe` is `Gr~C3~B6~C3~9Fe`. A
name that is then too long for a file system is cut, and ends with `~~` and the first 32 digits of
its SHA-256.

`LogWatch` finds out whether the log of a table still has the last entry that this run knows of. A
table that was removed, restored to an earlier version or replaced lacks the entry, or has another
entry under its number: each entry has the time of its commit.

The lake's own tables:

    _penstock/checkpoint   cluster_id string, checkpoint string        one row
    _penstock/versions     commit_ts long, committed_at timestamp,
                           tables array<struct<schema, table, version>>
    _penstock/ddl          commit_ts long, commit_time timestamp,
                           schema string, statement string             in a change log
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake

from drainer.settings.targets import LakeTarget
from drainer.sinks.delta.folders import folder_of, mark_of, options_of, sync, sync_names, table_in
from drainer.sinks.protocol import FileCounts, table_committed
from penstock.codes import Code
from penstock.errors import NeedsOperator

if TYPE_CHECKING:
    from drainer.sinks.delta.folders import Folder


class LogWatch:
    """Watches the log in one folder of a table; initially it knows no entry."""

    def __init__(self, path: Folder) -> None:
        self._path = path
        self._entry: Folder | None = None
        self._mark: tuple[Any, ...] = ()
        self._digest = b""

    def note(self, version: int) -> None:
        entry = self._path / "_delta_log" / f"{version:020}.json"
        try:
            self._mark, self._digest = mark_of(entry), _digest(entry)
            self._entry = entry
        except FileNotFoundError:  # A checkpoint of Delta's replaced it.
            self._entry = None

    def is_same(self) -> bool:
        """Return False once the noted entry is gone or changed."""
        if self._entry is None:
            return True
        try:
            now = mark_of(self._entry)
            if now != self._mark and _digest(self._entry) != self._digest:
                return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._mark = now
        return True


def _digest(entry: Folder) -> bytes:
    return hashlib.blake2b(entry.read_bytes(), digest_size=16).digest()


log = logging.getLogger(__name__)

OWN = "_penstock"
"""The folder of everything that is not an upstream table."""
_MARK = "penstock"
_NAME_BYTES_MAX = 255
_LOG = "_delta_log"
_ENTRY = re.compile(r"\d{20}\.")
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-$.")
RETAINED = "delta.deletedFileRetentionDuration"
MARGIN_HOURS = 1
_HARMLESS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END"})
"""Operations that change no row, so that other programs may run them."""

Place = tuple[str, str]
"""A table's schema and name."""
Work = Callable[[DeltaTable, CommitProperties], object]
Actions = list[dict[str, Any]]
"""A commit's entries in Delta's log, line by line."""


def app_of(cluster_id: int, mode: str) -> str:
    return f"penstock:{cluster_id}:{mode}"


def folder_name(name: str) -> str:
    made = "".join(chr(b) if b in _PLAIN else f"~{b:02X}" for b in name.encode())
    # Upstream's folders never have this name or start with a dot.
    if made == OWN or made[0] == ".":
        made = f"~{ord(made[0]):02X}{made[1:]}"
    if len(made) > _NAME_BYTES_MAX:
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        made = f"{made[: _NAME_BYTES_MAX - 34]}~~{digest}"
    return made


def text_of(place: Place) -> str:
    return ".".join(place)


class Lake:
    """The tables of one cluster in one folder; one thread at a time, which holds the lock."""

    def __init__(self, target: LakeTarget, cluster_id: int) -> None:
        self.folder = folder_of(target)
        self.mode = target.mode
        self.app = app_of(cluster_id, target.mode)
        self.versions: dict[Place, int] = {}
        """The version up to which each table is ours; an unlisted table is unknown."""
        self.file_counts = FileCounts()
        self.configuration = configuration(target.retention_s)
        self._accepted = target.accepted
        self._open: dict[Place, DeltaTable] = {}
        self._watches: dict[Place, LogWatch] = {}

    def path(self, place: Place) -> Folder:
        schema, name = place
        return self.folder / folder_name(schema) / folder_name(name)

    def has(self, place: Place) -> bool:
        return is_delta(self.path(place))

    def properties(self, commit_ts: int | None) -> CommitProperties:
        """Return a commit's properties; with `commit_ts` it ends a batch or a DDL."""
        ends = [] if commit_ts is None else [Transaction(self.app, commit_ts)]
        return CommitProperties(
            custom_metadata={_MARK: self.app}, max_commit_retries=0, app_transactions=ends
        )

    def create(self, place: Place, schema: pa.Schema, commit_ts: int | None) -> None:
        """Make a table, unless this very commit has made it; raise `NeedsOperator` for another.

        Without `commit_ts` upstream had the table before the first commit.
        """
        if self.has(place):
            if commit_ts is not None and self.has_through(place, commit_ts):
                return
            raise NeedsOperator(
                f"{self.path(place)} is there before upstream's table {text_of(place)} is made",
                "move it away; or use another folder",
                Code.DELTA_TABLE,
            )
        path = self.path(place)
        path.mkdir(parents=True, exist_ok=True)
        table = create_delta(path, schema, self.properties(commit_ts), self.configuration)
        sync_names(path.parent, self.folder)
        self._noted(place, table)

    def through(self, place: Place) -> int:
        """Return the commit_ts up to which a table is complete; -1 if it has nothing."""
        found = self.opened(place).transaction_version(self.app)
        return -1 if found is None else int(found)

    def has_through(self, place: Place, commit_ts: int) -> bool:
        return self.through(place) >= commit_ts

    def check_behind(self, place: Place, after_ts: int, commit_ts: int) -> None:
        """Raise `NeedsOperator` if a table has a part of a batch that begins after `after_ts`.

        Its rows are then newer than the checkpoint, or an earlier run cut the batch elsewhere. A
        table with all of the batch, up to `commit_ts`, is correct.
        """
        through, version = self.through(place), self.opened(place).version()
        if after_ts < through != commit_ts and (text_of(place), version) not in self._accepted:
            raise NeedsOperator(
                f"the Delta table {self.path(place)} is at version {version} and has changes up to"
                f" {through}, and the lake's checkpoint is at {after_ts}: a table without a key"
                " would get rows twice",
                f"if {OWN} was restored from a backup, restore the whole folder; if settings"
                " of the Drainer changed, put them back. Or bring its rows back by RESTORE to the"
                f" version that {OWN}/versions has for the checkpoint, and add"
                f" accept={text_of(place)}@<its version> to the sink's URL",
                Code.DELTA_TABLE,
            )

    def commit(self, place: Place, commit_ts: int | None, work: Work) -> None:
        """Let `work` make one commit of a table, unless the table has it.

        Without `commit_ts` the commit is a part of a change that ends later.
        """
        if commit_ts is not None and self.has_through(place, commit_ts):
            return
        table = self.opened(place)
        work(table, self.properties(commit_ts))
        self._noted(place, table)

    def opened(self, place: Place) -> DeltaTable:
        """Return a table as last known, or as found; `NeedsOperator` for a foreign table."""
        if not self.has(place):
            raise NeedsOperator(
                f"there is no Delta table in {self.path(place)}, which upstream's"
                f" {text_of(place)} goes into",
                "put it back as it was; or begin with an empty folder",
                Code.DELTA_TABLE,
            )
        table, watch = self._open.get(place), self._watch(place)
        is_same = watch.is_same()
        if table is None or not is_same:
            table = table_in(self.path(place))
            self._check(place, table, is_same=is_same)
            watch.note(table.version())
            self._open[place] = table
        return table

    def forget(self) -> None:
        """Reopen all tables on their next use."""
        self._open.clear()

    def moved(self, places: Mapping[Place, Place | None]) -> None:
        """Note that tables were renamed or, for None, dropped."""
        known = {new: self.versions.pop(old, None) for old, new in places.items()}
        for new, version in known.items():
            if new is not None and version is not None:
                self.versions[new] = version
        self._open.clear()
        for place in {*places, *filter(None, places.values())}:
            self._watches.pop(place, None)

    def _noted(self, place: Place, table: DeltaTable) -> None:
        """Adopt a commit once a power failure cannot undo it."""
        watch = self._watch(place)
        if not watch.is_same():
            raise self._changed(place, table.version(), self.versions.get(place, 0))
        self._sync(place, table.version())
        watch.note(table.version())
        self._open[place] = table
        table_committed()

    def _watch(self, place: Place) -> LogWatch:
        if place not in self._watches:
            self._watches[place] = LogWatch(self.path(place))
        return self._watches[place]

    def _sync(self, place: Place, version: int) -> None:
        for number in range(self.versions.get(place, version) + 1, version + 1):
            count_files(self.file_counts, sync_commit(self.path(place), number))
        self.versions[place] = version

    def _check(self, place: Place, table: DeltaTable, *, is_same: bool) -> None:
        """Raise `NeedsOperator` if a table's version is not one that we know or have made.

        `is_same`: its log still has the entry that this run knew last.
        """
        known, now, path = self.versions.get(place), table.version(), self.path(place)
        if known is None:
            log.info("%s is taken over as it is, at version %d", path, now)
        elif now < known or not is_same or not self._are_ours(table, path, now - known):
            if (text_of(place), now) not in self._accepted:
                raise self._changed(place, now, known)
            log.warning("%s is at version %d, which is accepted", path, now)
        self._sync(place, now)  # A run that was killed may not have synced it.

    def _are_ours(self, table: DeltaTable, path: Folder, count: int) -> bool:
        """Return whether the last `count` versions are ours, or change no row."""
        entry = path / _LOG / f"{table.version():020}.json"
        if entry.exists() and not entry.read_bytes():
            return False  # No commit writes an entry without actions.
        entries: list[dict[str, Any]] = table.history(count) if count else []
        return len(entries) == count and all(
            each.get(_MARK) == self.app or each.get("operation") in _HARMLESS for each in entries
        )

    def _changed(self, place: Place, now: int, known: int) -> NeedsOperator:
        return NeedsOperator(
            f"somebody else changed the Delta table {self.path(place)}: it is at version {now}, and"
            f" the last one of this cluster is {known}, which is not in its log or is another one",
            f"bring its rows back by RESTORE to version {known}, or put the folder back; then,"
            f" or if they are right as they are, add accept={text_of(place)}@<its version> to the"
            " sink's URL, and keep others from writing there",
            Code.DELTA_TABLE,
        )


def is_delta(path: Folder) -> bool:
    return any(_ENTRY.match(each.name) for each in entries_of(path))


def entries_of(path: Folder) -> Iterator[Folder]:
    """Yield the files of a table's log; none without a table."""
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from (path / _LOG).iterdir()


def configuration(retention_s: float) -> dict[str, str]:
    """Return a table's properties that keep each version readable for the retention.

    Only upkeep knows which entries of the log are no longer needed. A file without an entry there
    is taken for a file that no version ever had, so the entries of removed files stay for as long.
    """
    # A state may end a little before the row of the next one is written.
    hours = int(retention_s // 3600) + MARGIN_HOURS
    return {"delta.enableExpiredLogCleanup": "false", RETAINED: f"interval {hours} hours"}


def create_delta(
    path: Folder, schema: pa.Schema, properties: CommitProperties, settings: Mapping[str, str]
) -> DeltaTable:
    table = DeltaTable.create(
        str(path),
        schema=schema,
        configuration=settings,
        commit_properties=properties,
        storage_options=options_of(path),
    )
    sync_commit(path, table.version())
    return table


def sync_commit(path: Folder, version: int) -> Actions:
    """Sync the files that a commit has written, and return its actions.

    Files that were rewritten since need no sync.
    """
    entry = path / _LOG / f"{version:020}.json"
    if not entry.exists():
        return []  # The commit is so old that its entry was removed.
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    names = [path / each["add"]["path"] for each in actions if "add" in each]
    for file in (*names, entry):
        if isinstance(file, Path) and file.exists():
            sync(file)
    sync_names(path, entry.parent)
    return actions


def count_files(counts: FileCounts, actions: Actions) -> None:
    has_changes = False
    for action in actions:
        if added := action.get("add"):
            counts.files_added += 1
            counts.bytes_added += added["size"]
            if added["dataChange"]:
                has_changes = True
                counts.rows += json.loads(added.get("stats") or "{}").get("numRecords", 0)
        elif removed := action.get("remove"):
            has_changes |= removed["dataChange"]
            counts.files_removed += 1
            counts.bytes_removed += removed.get("size") or 0
        elif action.get("commitInfo", {}).get("operation") == "OPTIMIZE":
            counts.compactions += 1
    if has_changes:
        counts.commits += 1
        counts.last_commit_s = time.time()


def forget_log(path: Folder, oldest: int) -> None:
    """Remove the log of versions that are no longer read: `oldest` is the first that is read.

    A version is read from the last checkpoint of Delta's at or before it.
    """
    names = [(each.name, each) for each in entries_of(path)]
    found = [(int(n[:20]), n, each) for n, each in names if n[:20].isdecimal()]
    starts = [number for number, name, _ in found if ".checkpoint" in name and number <= oldest]
    first = max(starts, default=0)
    for number, _, each in found:
        if number < first:
            each.unlink()


# --- own tables ------------------------------------------------------------------------------

_TIME = pa.timestamp("us", "UTC")
_TABLE = pa.struct([("schema", pa.string()), ("table", pa.string()), ("version", pa.int64())])
_SCHEMAS = {
    "checkpoint": pa.schema([("cluster_id", pa.string()), ("checkpoint", pa.string())]),
    "versions": pa.schema(
        [("commit_ts", pa.int64()), ("committed_at", _TIME), ("tables", pa.list_(_TABLE))]
    ),
    "ddl": pa.schema(
        [("commit_ts", pa.int64()), ("commit_time", _TIME), ("schema", pa.string()),
         ("statement", pa.string())]
    ),
}  # fmt: skip
ONCE = CommitProperties(max_commit_retries=0)


class OwnTable:
    """One of these tables; it is created at its first write."""

    def __init__(self, lake: Lake, name: str) -> None:
        self.path = lake.folder / OWN / name
        self._lake = lake
        self._schema = _SCHEMAS[name]
        self._open: DeltaTable | None = None
        self._watch = LogWatch(self.path)
        self._is_there = False

    def opened(self) -> DeltaTable | None:
        if not self._watch.is_same():
            self._open = None  # It was removed or replaced: read the current table.
        if self._open is not None:
            self._open.update_incremental()
        elif is_delta(self.path):
            self._open = table_in(self.path)
        if self._open is not None:
            self._is_there = True
            self._watch.note(self._open.version())
        return self._open

    def forget(self) -> None:
        self._open = None

    def write(self, rows: list[dict[str, Any]], mode: Any, properties: CommitProperties) -> None:
        """Write after the version that was last opened, so that another writer's is not lost."""
        table = self._open if self._watch.is_same() else self.opened()
        if table is None and self._is_there:
            raise self._changed("removed")
        if table is None:
            self.path.mkdir(parents=True, exist_ok=True)
            self._open = table = create_delta(self.path, self._schema, ONCE, configuration(0))
        made = pa.Table.from_pylist(rows, self._schema)
        write_deltalake(table, made, mode=mode, commit_properties=properties)
        if not self._watch.is_same():
            raise self._changed("replaced")
        sync_commit(self.path, table.version())
        self.noted()

    def add_once(self, commit_ts: int, row: dict[str, Any]) -> None:
        """Append the row of a commit_ts unless it exists."""
        table = self.opened()
        through = None if table is None else table.transaction_version(self._lake.app)
        if through is None or through < commit_ts:
            row = {"commit_ts": commit_ts, **row}
            self.write([row], "append", self._lake.properties(commit_ts))

    def _changed(self, how: str) -> NeedsOperator:
        return NeedsOperator(
            f"the Delta table {self.path} was {how} while the Drainer wrote the lake",
            "put the folder of the lake back as it was; or begin with an empty folder",
            Code.DELTA_TABLE,
        )

    def noted(self) -> None:
        """Record the table's last version as the version expected next time."""
        assert self._open is not None, "it has just been written"
        self._is_there = True
        self._watch.note(self._open.version())


class VersionsTable(OwnTable):
    """For each commit_ts that a batch or a DDL ended at, the versions of all tables."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake, "versions")

    def last(self) -> dict[Place, int]:
        """Return the versions of the last row; empty if there is no row."""
        found = self._query("SELECT tables FROM versions ORDER BY commit_ts DESC LIMIT 1")
        tables = found[0]["tables"] if found else []
        return {(each["schema"], each["table"]): each["version"] for each in tables}

    def add(self, commit_ts: int, versions: Mapping[Place, int]) -> None:
        tables = [{"schema": s, "table": t, "version": v} for (s, t), v in sorted(versions.items())]
        self.add_once(commit_ts, {"committed_at": datetime.now(UTC), "tables": tables})

    def oldest(self) -> dict[Place, int]:
        """Return the oldest version of each table that a row names."""
        found = self._query(
            "SELECT t['schema'] AS s, t['table'] AS n, min(t['version']) AS v"
            " FROM (SELECT unnest(tables) AS t FROM versions) GROUP BY 1, 2"
        )
        return {(each["s"], each["n"]): each["v"] for each in found}

    def expire(self, before: datetime) -> None:
        """Remove rows of states that ended before `before`, except the last of them."""
        rows = self._query("SELECT commit_ts, committed_at FROM versions")
        ended = [row["commit_ts"] for row in rows if row["committed_at"] < before]
        table = self.opened()
        if table is not None and len(ended) > 1:
            table.delete(f"commit_ts < {max(ended)}", commit_properties=ONCE)

    def _query(self, sql: str) -> list[dict[str, Any]]:
        table = self.opened()
        if table is None:
            return []
        stream = QueryBuilder().register("versions", table).execute(sql)
        return list(pa.RecordBatchReader.from_stream(stream).read_all().to_pylist())
