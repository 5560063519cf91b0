"""File sink: appends every change to files in TiDB-Binlog's format (`drainer.sinks.files`).

A transaction takes these steps: take the folder's lock; check in the savepoint that no other run
has written; cut the bytes behind its position; append; sync; replace the savepoint; release the
lock. The lock is held only during these steps. A standby can therefore read the folder, and a
Drainer that takes over fences its predecessor. A Drainer of TiDB-Binlog holds the lock for as long
as it runs, and is waited for.

`Upkeep` packs full files if requested, and removes expired ones. It runs in a dedicated thread,
because packing half a gigabyte takes longer than a batch may. It does not check whether readers
still need a file; `retention` decides that. The file that is being written is never touched. A
packed file is first written under another name, synced and renamed. It keeps the original's time,
which decides when it expires, before the original is removed.
"""

from __future__ import annotations

import gzip
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from drainer.settings.targets import FilesTarget
from drainer.sinks.checkpoint import Checkpoint, OverrideChange, of_another_cluster, overridden
from drainer.sinks.ddl_effects import session_of
from drainer.sinks.files.binlog_files import COMPRESSED, Tail, binlog_files, end_of
from drainer.sinks.files.savepoint import (
    FileEnd,
    FilePosition,
    FileSchema,
    Savepoint,
    changed,
    load_savepoint,
    schema_name,
    schema_numbers,
    store_savepoint,
    write_schema,
)
from drainer.sinks.patience import LOCK, PASSING_ERRNOS, RetryingSink, locked
from drainer.sinks.protocol import (
    EventSink,
    FileCounts,
    ddl_run,
    rows_changed,
    transaction_begun,
    transaction_committed,
)
from drainer.task.events.event_unit import TIDB_BINLOG_FILE, Encoding, encoder_of
from drainer.task.events.messages import Messages
from penstock.codes import Code
from penstock.ddl import Catalog
from penstock.errors import NeedsOperator, PenstockError
from penstock.log.files import DRAFT, Files, sync_folder

if TYPE_CHECKING:
    from drainer.sinks.protocol import Slices
    from penstock.ddl import SchemaChange

INTERVAL_S = 3600.0
_LEVEL = 6
_CHUNK_BYTES = 1 << 20


class Upkeep:
    """The pending upkeep of a folder; `consider` is called with the file that is being written."""

    def __init__(self, target: FilesTarget, counts: FileCounts) -> None:
        self._target = target
        self._counts = counts
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._looked_s = -INTERVAL_S
        self._live = -1

    def consider(self, live: int) -> None:
        """Start due work when a file became full or an hour has passed; return immediately."""
        target, now_s = self._target, time.monotonic()
        is_due = live != self._live or now_s - self._looked_s >= INTERVAL_S
        if not is_due or not (target.compress or target.retention_s):
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._live, self._looked_s = live, now_s
        self._thread = threading.Thread(
            target=self._run, args=(live,), name="upkeep of files", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Leave work in progress undone; a later run starts it again."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, live: int) -> None:
        try:
            self.expire(live, time.time())
            self.pack(live)
        except (OSError, PenstockError) as error:
            log.warning("the upkeep of %s will be tried again: %s", self._target.folder, error)

    def expire(self, live: int, now_s: float) -> None:
        folder, retention_s = self._target.folder, self._target.retention_s
        if not retention_s:
            return
        for each in binlog_files(os.listdir(folder), folder):
            path = folder / each.name
            found = path.stat()
            if each.number >= live or found.st_mtime > now_s - retention_s:
                return  # Later files are younger, and the numbers must have no gap.
            log.info("%s has expired: it is removed", path)
            (folder / schema_name(each.number)).unlink(missing_ok=True)
            path.unlink()
            path.with_name(path.name + COMPRESSED).unlink(missing_ok=True)
            sync_folder(folder)
            self._counts.files_removed += 1
            self._counts.bytes_removed += found.st_size

    def pack(self, live: int) -> None:
        folder = self._target.folder
        if not self._target.compress:
            return
        for each in binlog_files(os.listdir(folder), folder):
            if each.number >= live:
                return
            if not each.is_compressed and not self._pack(folder / each.name):
                return

    def _pack(self, path: Path) -> bool:
        packed = path.with_name(path.name + COMPRESSED)
        draft = packed.with_name(packed.name + DRAFT)
        times = path.stat()
        with path.open("rb") as source, draft.open("wb") as file:
            with gzip.GzipFile(path.name, "wb", _LEVEL, file, times.st_mtime) as out:
                while chunk := source.read(_CHUNK_BYTES):
                    if self._closing.is_set():
                        draft.unlink()
                        return False
                    out.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.utime(draft, ns=(times.st_atime_ns, times.st_mtime_ns))
        draft.rename(packed)
        sync_folder(path.parent)
        path.unlink()
        size = packed.stat().st_size
        self._counts.compactions += 1
        self._counts.bytes_removed += times.st_size - size
        log.info("%s is packed, %d of %d bytes", packed, size, times.st_size)
        return True


log = logging.getLogger(__name__)


class FileSink(RetryingSink, EventSink):
    """See `EventSink`; usable from any one thread at a time."""

    def __init__(
        self,
        target: FilesTarget,
        *,
        cluster_id: int,
        retry_s_max: float,
        files: Files | None = None,
    ) -> None:
        super().__init__(target.shown, cluster_id=cluster_id, retry_s_max=retry_s_max)
        self._target = target
        self._folder = target.folder
        self._files = files or Files()
        self._catalog = Catalog()
        self._tail: Tail | None = None
        self._upkeep = Upkeep(self._target, self.file_counts)
        self.encoding = Encoding(TIDB_BINLOG_FILE, time_zone=target.time_zone)

    # --- the protocol ----------------------------------------------------------------------

    def load_checkpoint(self) -> Checkpoint | None:
        saved = self._patience.retrying(lambda _: self._own())
        return self._ledger.loaded(None if saved is None else saved.text)

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._commit(lambda tail: None, checkpoint)

    def change_overrides(self, change: OverrideChange) -> None:
        def attempt(_: bool) -> None:
            with self._locked():
                saved = self._own()
                text = overridden(None if saved is None else saved.text, change)
                position = None if saved is None else self._position_in(saved)
                last_crc = None if saved is None else saved.last_crc
                self._store(text, position, last_crc, _begin_of(saved))

        self._patience.retrying(attempt)

    def put(self, messages: Sequence[Messages], checkpoint: Checkpoint) -> None:
        def work(tail: Tail) -> None:
            for each in messages:
                tail.append(each)

        self._commit(work, checkpoint)

    def put_slices(self, slices: Slices[Messages], checkpoint: Checkpoint) -> None:
        def work(tail: Tail) -> None:
            with closing(slices()) as parts:
                tail.append_parts(parts, checkpoint.commit_ts)

        self._commit(work, checkpoint)

    def run_ddl(self, change: SchemaChange, checkpoint: Checkpoint, *, maybe_done: bool) -> None:
        """Append the record of a DDL, with its session, and store `checkpoint`.

        `maybe_done` changes nothing: bytes behind the checkpoint do not count.
        """
        shown = replace(change, job=replace(change.job, context=session_of(change)))
        made = encoder_of(self.encoding).ddl(checkpoint.commit_ts, shown)
        messages = Messages.of((checkpoint.commit_ts, message) for message in made)

        def work(tail: Tail) -> None:
            tail.append(messages)
            ddl_run()

        self._commit(work, checkpoint)
        self._catalog = changed(self._catalog, change)

    def look_at(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def close(self) -> None:
        super().close()
        self._upkeep.close()

    # --- details ---------------------------------------------------------------------------

    def _commit(self, work: Callable[[Tail], None], checkpoint: Checkpoint) -> None:
        def attempt(text: str, retried: bool) -> FilePosition | None:
            with self._locked():
                saved = self._own()
                stored = None if saved is None else saved.text
                if self._ledger.is_written(stored, text, retried=retried):
                    assert saved is not None
                    self._files.sync_folder(self._folder)
                    return saved.position
                transaction_begun()
                tail = self._tail_at(saved)
                before, bytes_before = tail.position, tail.bytes_appended
                work(tail)
                rows_changed()
                tail.sync()
                if not tail.is_in_place:
                    raise self._replaced()
                is_begin = self._ledger.is_new and tail.position is None
                begin_ts = checkpoint.commit_ts if is_begin else _begin_of(saved)
                self._store(text, tail.position, tail.last_crc, begin_ts)
                transaction_committed()
                if tail.position is not None and tail.bytes_appended > bytes_before:
                    counts = self.file_counts
                    counts.commits += 1
                    counts.files_added += tail.position.file - (before.file if before else -1)
                    counts.bytes_added += tail.bytes_appended - bytes_before
                    counts.last_commit_s = time.time()
                return tail.position

        position = self._storing(attempt, checkpoint)
        if position is not None:
            self._upkeep.consider(position.file)

    def _own(self) -> Savepoint | None:
        """Return the savepoint; `NeedsOperator` if it is another cluster's, or files lack one."""
        saved, place = self._loaded(), self._target.shown
        if saved is None:
            # A Drainer stores its first savepoint before it writes, so files are foreign output.
            if self._has_files():
                raise NeedsOperator(
                    f"{place} has binlog files and no savepoint, which says up to where they"
                    " hold and of which cluster they are",
                    "put the savepoint back; or use another folder",
                    Code.CHECKPOINT_DAMAGED,
                )
            return None
        if saved.cluster_id not in (None, self._cluster_id):
            raise of_another_cluster(self._cluster_id, [saved.cluster_id], "folder")
        if saved.time_zone not in ("", self._target.time_zone):
            raise NeedsOperator(
                f"TIMESTAMPs in the files of {place} are in time zone {saved.time_zone}, not"
                f" {self._target.time_zone}",
                f"write time-zone={saved.time_zone} in the sink's URL, with %2B for +; or use"
                " another folder",
                Code.SINK_SETTING,
            )
        return saved

    def _loaded(self) -> Savepoint | None:
        return load_savepoint(self._files, self._folder)

    def _has_files(self) -> bool:
        return bool(binlog_files(self._files.names(self._folder), self._folder))

    def _tail_at(self, saved: Savepoint | None) -> Tail:
        position = None if saved is None else self._position_in(saved)
        # Before the first record only time has advanced since the start.
        last_ts = _begin_of(saved)
        if saved is not None and position is not None:
            last_ts = saved.checkpoint.commit_ts
        tail = self._tail
        if tail is not None and tail.position == position and tail.position is not None:
            if tail.is_in_place:
                return tail
            log.warning("the newest file in %s was replaced or cut: it is checked", self._folder)
        self._let_go()
        self._tail = tail = Tail(
            self._files, self._folder, bytes_max=self._target.file_bytes_max, begin=self._begin_file
        )
        tail.cut(position, last_ts, None if saved is None else saved.last_crc)
        if position is not None and position.file not in schema_numbers(
            self._files.names(self._folder)
        ):
            tail.begin_file()  # A file of TiDB-Binlog's; later files have schemas.
        return tail

    def _position_in(self, saved: Savepoint) -> FilePosition | None:
        if not saved.is_of_tidb_binlog:
            return saved.position
        found = binlog_files(self._files.names(self._folder), self._folder)
        return end_of(self._folder, found, saved.checkpoint.commit_ts)

    def _begin_file(self, number: int, after_ts: int, before: FileEnd | None) -> None:
        schema = FileSchema(after_ts, self._catalog, before)
        write_schema(self._files, self._folder, number, schema)

    def _store(
        self, text: str, position: FilePosition | None, last_crc: int | None, begin_ts: int
    ) -> None:
        savepoint = self._savepoint(text, position, last_crc, begin_ts)
        store_savepoint(self._files, self._folder, savepoint)

    def _savepoint(
        self, text: str, position: FilePosition | None, last_crc: int | None, begin_ts: int
    ) -> Savepoint:
        return Savepoint(
            text=text,
            position=position,
            last_crc=last_crc,
            cluster_id=self._cluster_id,
            time_zone=self._target.time_zone,
            begin_ts=begin_ts,
        )

    def _let_go(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock, as TiDB-Binlog does; `BlockingIOError` if it is taken."""
        if self._ledger.has_no_row:
            self._files.names(self._folder)  # Creates the folder.
        elif not self._folder.is_dir():
            raise self._replaced()
        with locked(self._folder):
            yield

    def _passing(self, error: Exception) -> str:
        if not isinstance(error, OSError):
            raise error
        if error.errno not in PASSING_ERRNOS:
            raise NeedsOperator(
                f"the files in {self._folder} cannot be written: {error.strerror or error}",
                "check the path, its rights and its disk; nothing is lost: a start continues where"
                " the savepoint is",
                Code.SINK_FILE,
            ) from error
        if isinstance(error, BlockingIOError):
            return f"another program holds {LOCK}"
        return error.strerror or str(error)

    def _replaced(self) -> NeedsOperator:
        return NeedsOperator(
            f"{self._folder}, or the newest file in it, was removed or replaced while this Drainer"
            " wrote there: what it has written is not in that place",
            "put the folder back as it was, savepoint included, and start the Drainer; or name"
            " another folder and begin it with initial-commit-ts",
            Code.FILES_GAP,
        )


def _begin_of(saved: Savepoint | None) -> int:
    return 0 if saved is None else saved.begin_ts
