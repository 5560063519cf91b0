"""Delta sink: a batch is a commit for each of its tables, then the checkpoint's.

    applying     the checkpoint says up to where changes may be there
    a table      a commit with the batch's commit_ts, unless it has that already   …  each table
    versions     a row with the versions of all tables
    checkpoint   the batch is there

`drainer.sinks.delta` explains why that applies a batch once, and as one state.

Upkeep combines small files, and removes files that no retained version needs. It runs in the sink's
thread, one table after a commit, so that it never conflicts with another commit of ours. It
rewrites only data that arrived since its last run, and therefore takes as long as some batches.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from drainer.settings.targets import CHANGES, MIRROR, LakeTarget
from drainer.sinks.checkpoint import Checkpoint, OverrideChange, of_another_cluster, overridden
from drainer.sinks.delta.folders import modified_s, remove
from drainer.sinks.delta.incoming import Incoming, commit_files
from drainer.sinks.delta.lake import (
    ONCE,
    OWN,
    RETAINED,
    Lake,
    OwnTable,
    Place,
    VersionsTable,
    app_of,
    configuration,
    forget_log,
    text_of,
)
from drainer.sinks.delta.lake_ddl import DROPPED, LakeDdl
from drainer.sinks.patience import LOCK, PASSING_ERRNOS, RetryingSink, locked
from drainer.sinks.protocol import (
    TableSink,
    ddl_run,
    rows_changed,
    transaction_begun,
    transaction_committed,
    versions_stored,
)
from drainer.task.sql.lake_merge import (
    LakeChanges,
    Merged,
    by_table,
    merge,
    merge_unit,
    merged,
    pieces_of,
)
from drainer.task.sql.lake_rows import LakeFile
from drainer.task.sql.literals import ARROW
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.log.files import sync_folder

if TYPE_CHECKING:
    from drainer.sinks.protocol import Ask, StatementLists
    from penstock.ddl import SchemaChange

log = logging.getLogger(__name__)

MERGE_ROWS_MIN, MERGE_BYTES_MIN = 1000, 8 << 20
"""With fewer rows, in a table with fewer bytes, the Drainer merges."""
_LOOK_S = 0.2
_GATHERED_ROW_BYTES = 64
"""What a row takes in memory, in columns."""
_PROBLEM_SHOWN = 300
_STORE = re.compile(r"Generic S3 error|HTTP error|error sending request|Server returned")
_ANSWERED = re.compile(r"status code: 4(?!29|08)\d\d")
_ERRNO = re.compile(r"\(os error (\d+)\)")


class LakeSink(RetryingSink):
    """The common base of both kinds of lakes; see `Sink`."""

    _ddl: LakeDdl

    def __init__(self, target: LakeTarget, *, cluster_id: int, retry_s_max: float) -> None:
        self._lake = Lake(target, cluster_id)
        self._folder = self._lake.folder
        super().__init__(str(self._folder), cluster_id=cluster_id, retry_s_max=retry_s_max)
        self._target = target
        self._checkpoints = OwnTable(self._lake, "checkpoint")
        self._versions = VersionsTable(self._lake)
        incoming = self._folder / OWN / "incoming"
        self._incoming = Incoming(incoming if isinstance(incoming, Path) else None)
        self._upkeep: Iterator[None] = iter(())
        self._upkeep_due_s = time.monotonic()
        self.gathers_s, self.gathered_bytes_max = target.interval_s, target.batch_bytes
        self.gathered_rows_max = target.batch_bytes // _GATHERED_ROW_BYTES
        self.file_counts = self._lake.file_counts

    # --- the protocol ----------------------------------------------------------------------

    def load_checkpoint(self) -> Checkpoint | None:
        def attempt(_: bool) -> str | None:
            with self._locked():
                stored = self._stored()
                self._check_mode()
                self._prepare()
                self._lake.forget()
                self._lake.versions = self._versions.last()
                return stored

        return self._ledger.loaded(self._patience.retrying(attempt))

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._commit(lambda: None, checkpoint)

    def change_overrides(self, change: OverrideChange) -> None:
        def attempt(_: bool) -> None:
            with self._locked():
                self._store(overridden(self._stored(), change))

        self._patience.retrying(attempt)

    def run_ddl(self, change: SchemaChange, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        """Change the tables and store `checkpoint`.

        `maybe_done` changes nothing: each table records which part of a DDL it has.
        """

        def work() -> None:
            self._change_tables(change, checkpoint)
            ddl_run()
            self._add_versions(checkpoint)

        self._commit(work, checkpoint)

    # --- details ---------------------------------------------------------------------------

    def _begin(self, checkpoint: Checkpoint) -> None:
        """Record that changes up to `checkpoint` may be present in part."""
        last = self._ledger.last
        if last is None or last.applying_ts != checkpoint.commit_ts:
            self.save_checkpoint(self._ledger.applying(checkpoint, Checkpoint(0, 0)))

    def _prepare(self) -> None:
        """Prepare the folder for a run, which holds its lock."""
        self._incoming.make()
        if not isinstance(self._folder, Path):
            from drainer.sinks.objects import check_conditions

            check_conditions(self._folder / OWN)

    def _change_tables(self, change: SchemaChange, checkpoint: Checkpoint) -> None:
        self._ddl.run(change, checkpoint.commit_ts)

    def _check_mode(self) -> None:
        versions = self._versions.opened()
        (other,) = {MIRROR, CHANGES} - {self._target.mode}
        app = app_of(self._cluster_id, other)
        if versions is not None and versions.transaction_version(app) is not None:
            raise NeedsOperator(
                f"the lake in {self._folder} was begun with mode={other}, and the sink's URL says"
                f" mode={self._target.mode}",
                f"write mode={other} into the URL, or name another folder",
                Code.SINK_SETTING,
            )

    def _add_versions(self, checkpoint: Checkpoint) -> None:
        self._versions.add(checkpoint.commit_ts, self._lake.versions)
        versions_stored()

    def _commit(self, work: Callable[[], None], checkpoint: Checkpoint) -> None:
        def attempt(text: str, retried: bool) -> None:
            with self._locked():
                if self._ledger.is_written(self._stored(), text, retried=retried):
                    return
                transaction_begun()
                work()
                self._store(text)
                transaction_committed()

        self._storing(attempt, checkpoint)
        self._tidy()

    def _tidy(self) -> None:
        """Do the next piece of upkeep that is due; failures are retried the next time."""
        target = self._target
        if not target.optimize_s:
            return
        try:
            with self._patience.using, self._locked():
                if time.monotonic() >= self._upkeep_due_s:
                    self._upkeep_due_s = time.monotonic() + target.optimize_s
                    self._upkeep = self._upkeep_steps()
                next(self._upkeep, None)
        except (DeltaError, OSError) as error:
            self._let_go()
            log.warning("the upkeep of %s will be tried again: %s", self._folder, error)

    def _upkeep_steps(self) -> Iterator[None]:
        self._incoming.remove_old()
        retention_s = self._target.retention_s
        if self._target.mode == MIRROR:  # A change log is kept forever.
            dropped = self._folder / OWN / DROPPED
            for each in dropped.iterdir() if dropped.exists() else ():
                if modified_s(each) < time.time() - retention_s:
                    log.info("the retention of %s has passed: it is removed", each)
                    remove(each)
            yield
        self._versions.expire(datetime.now(UTC) - timedelta(seconds=retention_s))
        for own in (self._versions, self._checkpoints):
            if (table := own.opened()) is not None:
                tidied(configuration(0), table, ONCE)
                own.noted()
                own.forget()
                forget_log(own.path, table.version())
            yield
        lake, oldest = self._lake, self._versions.oldest()
        for place in list(lake.versions):
            if lake.has(place):  # It has not been dropped since.
                lake.commit(place, None, partial(tidied, lake.configuration))
                forget_log(lake.path(place), oldest.get(place, lake.versions[place]))
                yield

    def _stored(self) -> str | None:
        table = self._checkpoints.opened()
        rows = [] if table is None else table.to_pyarrow_table().to_pylist()
        try:
            # A row without text is not a checkpoint, but differs from no row.
            found = {int(row["cluster_id"]): row["checkpoint"] or "" for row in rows}
        except (KeyError, TypeError, ValueError) as error:
            raise NeedsOperator(
                f"{self._checkpoints.path} is not the table of a lake's checkpoint: {error!r}",
                "put it back as it was; or use another folder",
                Code.CHECKPOINT_DAMAGED,
            ) from error
        if found and self._cluster_id not in found:
            raise of_another_cluster(self._cluster_id, list(found), "folder")
        return found.get(self._cluster_id)

    def _store(self, text: str) -> None:
        row = {"cluster_id": str(self._cluster_id), "checkpoint": text}
        self._checkpoints.write([row], "overwrite", ONCE)

    def _let_go(self) -> None:
        self._lake.forget()
        self._checkpoints.forget()
        self._versions.forget()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not isinstance(self._folder, Path):
            yield  # The commits of Delta exclude each other.
            return
        if not self._folder.is_dir():
            if not self._ledger.has_no_row:
                raise NeedsOperator(
                    f"the lake's folder {self._folder} is gone, which this Drainer wrote",
                    "put it back as it was; or name another folder and begin it with"
                    " initial-commit-ts",
                    Code.SINK_FILE,
                )
            self._folder.mkdir(parents=True, mode=0o700)
            sync_folder(self._folder.parent)
        with locked(self._folder):
            yield

    def _passing(self, error: Exception) -> str:
        if not isinstance(error, DeltaError | OSError):
            raise error
        if not isinstance(self._folder, Path) and _is_away(error):
            return str(error).splitlines()[0][:_PROBLEM_SHOWN]
        if not isinstance(error, CommitFailedError) and _number_of(error) not in PASSING_ERRNOS:
            raise self._unusable(error) from error
        return f"another program holds {LOCK}" if isinstance(error, BlockingIOError) else str(error)

    def _unusable(self, error: Exception) -> NeedsOperator:
        return NeedsOperator(
            f"the lake in {self._folder} cannot be used: {error}",
            f"check the {'bucket and the account (AWS_…)' if self._target.bucket else 'disk'},"
            " the path and its rights; nothing is lost: a start continues where"
            " the checkpoint is",
            Code.SINK_FILE,
        )


class DeltaSink(LakeSink, TableSink):
    """See `TableSink`; its statements are blocks of Arrow (`drainer.task.sql.lake_rows`)."""

    dialect = ARROW
    """From the first checkpoint on, it also has the folder for the files of tasks."""

    def __init__(self, target: LakeTarget, *, cluster_id: int, retry_s_max: float) -> None:
        super().__init__(target, cluster_id=cluster_id, retry_s_max=retry_s_max)
        self._ddl = LakeDdl(self._lake, keeps_columns=target.drop_column == "keep")
        self._ask: Ask | None = None

    def use_tasks(self, ask: Ask) -> None:
        self._ask = None if self._incoming.run is None else ask

    def _prepare(self) -> None:
        super()._prepare()
        self.dialect = f"{ARROW}{self._incoming.run or ''}"

    def apply(self, statements: Sequence[str | bytes], checkpoint: Checkpoint) -> None:
        if statements:
            self.apply_slices(lambda: (each for each in (statements,)), checkpoint)
        else:
            self.save_checkpoint(checkpoint)

    def apply_slices(self, slices: StatementLists, checkpoint: Checkpoint) -> None:
        """Write list after list of blocks into their tables and store `checkpoint`.

        A table that is in several lists gets a commit for each; the last commit marks it complete.
        """
        self._begin(checkpoint)
        taken: list[LakeFile] = []

        def work() -> None:
            waiting: dict[Place, LakeChanges] = {}
            with closing(slices()) as lists:
                for changes in (c for each in lists for c in by_table(each)):
                    place = changes.place
                    taken.extend(file for file, _ in changes.files)
                    if place in waiting and not changes.key:
                        waiting[place].add(changes)  # They can be committed only once, at the end.
                        continue
                    if place in waiting and not self._lake.has_through(place, checkpoint.commit_ts):
                        self._merge(waiting[place], None)
                    waiting[place] = changes
            made = self._by_tasks(waiting.values(), checkpoint.commit_ts)
            for changes in waiting.values():
                self._merge(changes, checkpoint.commit_ts, made.get(changes.place))
            rows_changed()
            self._add_versions(checkpoint)

        self._commit(work, checkpoint)
        self._incoming.discard(taken)

    def _merge(
        self, changes: LakeChanges, commit_ts: int | None, made: Merged | None = None
    ) -> None:
        last = self._ledger.last
        if not changes.key and commit_ts is not None and last is not None and last.commit_ts:
            self._lake.check_behind(changes.place, last.commit_ts, commit_ts)

        def work(table: DeltaTable, properties: CommitProperties) -> None:
            warn_of_nulled(changes)
            if made is None:
                changes.pieces = pieces_of(changes, self._incoming.read)
                missed = merge(table, changes, properties)
            else:
                folder, missed = self._lake.path(changes.place), made.missed
                assert isinstance(folder, Path), "tasks write into folders only"
                added = [self._incoming.move(file, folder) for file in made.added]
                commit_files(table, added, properties, made.removed)
                self._incoming.discard(made.added)
            if missed:
                log.warning("%s: %d rows to be removed are not there", text_of(changes.place),
                            missed)  # fmt: skip

        self._lake.commit(changes.place, commit_ts, work)

    def _by_tasks(self, waiting: Iterable[LakeChanges], commit_ts: int) -> dict[Place, Merged]:
        """Let tasks merge large changes concurrently; return the merges that they made."""
        run = self._incoming.run
        if self._ask is None or run is None:
            return {}
        units = {
            each.place: merge_unit(run, self._lake.opened(each.place), each)
            for each in waiting
            if not self._lake.has_through(each.place, commit_ts)
            and is_for_tasks(self._lake.opened(each.place), each, self._lake.configuration)
        }
        if not units:
            return {}
        answers = self._answered(self._ask(list(units.values())))
        found = {place: merged(each) for place, each in zip(units, answers, strict=True)}
        return {place: made for place, made in found.items() if made is not None}

    def _answered(self, asked: Future[list[bytes]]) -> list[bytes]:
        while True:
            try:
                return asked.result(_LOOK_S)
            except TimeoutError:
                if self._patience.closing.is_set():
                    asked.cancel()
                    raise Retryable("the sink is closed while tasks merge", Code.CLOSED) from None


def is_for_tasks(table: DeltaTable, changes: LakeChanges, known: Mapping[str, str]) -> bool:
    """Return whether a task takes a merge from the Drainer for less than the hand-over costs.

    A table with properties or partitions that are not the Drainer's may need more than the names
    of files in a commit.
    """
    found = table.metadata()
    if found.partition_columns or not found.configuration.keys() <= known.keys():
        return False
    if sum(map(len, changes.pieces)) >= MERGE_ROWS_MIN or changes.files:
        return True
    sizes = pa.table(table.get_add_actions()).column("size_bytes")
    return int(pc.sum(sizes).as_py() or 0) >= MERGE_BYTES_MIN


def warn_of_nulled(changes: LakeChanges) -> None:
    if changes.nulled:
        counts = ", ".join(f"{count} of {name}" for name, count in changes.nulled.items())
        log.warning(
            "%s: dates that a lake has no form for are NULL there: %s", text_of(changes.place),
            counts,
        )  # fmt: skip


def _is_away(error: Exception) -> bool:
    """Return whether an error of deltalake's or of the store's says that a store does not answer.

    The store itself answers with 4xx, and only a busy one with 429 or 5xx.
    """
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return bool(_STORE.search(str(error))) and not _ANSWERED.search(str(error))


def _number_of(error: Exception) -> int:
    """Return the errno in a Delta error's message; 0 without one."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = _ERRNO.search(str(error))
    return int(found[1]) if found else 0


def tidied(settings: Mapping[str, str], table: DeltaTable, properties: CommitProperties) -> None:
    known = table.metadata().configuration
    if any(known.get(name) != value for name, value in settings.items()):
        table.alter.set_table_properties(dict(settings), commit_properties=properties)
    table.optimize.compact(commit_properties=properties)
    vacuum = partial(
        table.vacuum,
        retention_hours=int(settings[RETAINED].split()[1]),
        enforce_retention_duration=False,
        full=True,
    )
    if vacuum(dry_run=True):
        vacuum(dry_run=False, commit_properties=properties)
