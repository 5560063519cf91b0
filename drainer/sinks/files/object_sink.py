"""Object sink: files in an object store, where nothing can be appended, renamed or locked.

    folder/
      savepoint                               the checkpoint, the last file, and `runs`
      binlog-0000000000000000-60214073918825  the records of one commit
      schema-0000000000000000-60214073918825  the tables as they are where that file begins

Each commit is a separate file, so changes gather for longer than on a disk. A commit writes the
two objects, and then replaces the savepoint on the condition that it is still the one that was read
(`If-Match`). That is the commit: of two Drainers one fails, and stops.

A name ends with digits that belong to a run of the sink, and to no other: a run that was replaced
cannot touch an object of its successor, and an object that a crash has left is not taken for one
of the files. `runs` in the savepoint has the number of the first file of each run, and its digits.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import unquote

from drainer.settings.targets import FilesTarget
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.files.binlog_files import Tail, object_name
from drainer.sinks.files.savepoint import (
    NAME,
    FileEnd,
    FilePosition,
    FileSchema,
    Savepoint,
    encoded,
    encoded_schema,
    parsed,
    schema_name,
)
from drainer.sinks.files.sink import FileSink
from drainer.sinks.objects import Bucket, ObjectPath, check_conditions
from drainer.sinks.protocol import (
    checkpoint_stored,
    rows_changed,
    transaction_begun,
    transaction_committed,
)
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError
from penstock.log.files import Files

if TYPE_CHECKING:
    from penstock.ddl import Catalog

_DIGITS = 10**14
_GATHERED_BYTES, _GATHERED_ROWS = 64 << 20, 1 << 20


class ObjectFileSink(FileSink):
    """See `EventSink`; usable from any one thread at a time."""

    _catalog: Catalog

    def __init__(self, target: FilesTarget, *, cluster_id: int, retry_s_max: float) -> None:
        super().__init__(target, cluster_id=cluster_id, retry_s_max=retry_s_max)
        self._objects = ObjectPath(Bucket(target.bucket), unquote(target.path))
        self._digits = _new_digits()
        self._tag: str | None = None
        """The tag of the savepoint that was read last; None without one."""
        self._runs: tuple[tuple[int, str], ...] = ()
        self.gathers_s = target.interval_s
        self.gathered_bytes_max, self.gathered_rows_max = _GATHERED_BYTES, _GATHERED_ROWS

    def _commit(self, work: Callable[[Tail], None], checkpoint: Checkpoint) -> None:
        def attempt(text: str, retried: bool) -> None:
            saved = self._own()
            stored = None if saved is None else saved.text
            if self._ledger.is_written(stored, text, retried=retried):
                return
            transaction_begun()
            with TemporaryDirectory(prefix="penstock-file-") as folder:
                tail = Tail(Files(), Path(folder), bytes_max=1 << 62, begin=lambda *_: None)
                work(tail)
                rows_changed()
                tail.close()
                position, last_crc = self._put(saved, tail, Path(folder))
            is_begin = self._ledger.is_new and position is None
            begun_ts = 0 if saved is None else saved.begin_ts
            self._store(text, position, last_crc, checkpoint.commit_ts if is_begin else begun_ts)
            transaction_committed()

        self._storing(attempt, checkpoint)

    def _put(
        self, saved: Savepoint | None, tail: Tail, folder: Path
    ) -> tuple[FilePosition | None, int | None]:
        """Write the objects of a commit, if it has records; return the end of the last file."""
        position = None if saved is None else saved.position
        last_crc = None if saved is None else saved.last_crc
        if tail.position is None:
            return position, last_crc
        number, after_ts, before = 0, 0 if saved is None else saved.begin_ts, None
        if saved is not None and position is not None:
            number, after_ts = position.file + 1, saved.checkpoint.commit_ts
            before = FileEnd(position.offset, last_crc)
        schema = encoded_schema(FileSchema(after_ts, self._catalog, before))
        (self._objects / f"{schema_name(number)}-{self._digits}").put(schema)
        (file,) = folder.iterdir()
        (self._objects / object_name(number, self._digits)).put(file)
        if not self._runs or self._runs[-1][1] != self._digits:
            self._runs += ((number, self._digits),)
        counts = self.file_counts
        counts.commits += 1
        counts.files_added += 1
        counts.bytes_added += tail.bytes_appended
        counts.last_commit_s = time.time()
        return FilePosition(number, tail.position.offset), tail.last_crc

    def _store(
        self, text: str, position: FilePosition | None, last_crc: int | None, begin_ts: int
    ) -> None:
        savepoint = self._savepoint(text, position, last_crc, begin_ts)
        checkpoint_stored()
        data = encoded(replace(savepoint, runs=self._runs))
        self._tag = (self._objects / NAME).put(data, after=self._tag)

    def _loaded(self) -> Savepoint | None:
        path = self._objects / NAME
        try:
            data, self._tag = path.read_tagged()
        except FileNotFoundError:
            check_conditions(self._objects / "_penstock", replaces=True)
            self._tag, self._runs = None, ()
            return None
        saved = parsed(data, str(path))
        self._runs = saved.runs
        return saved

    def _has_files(self) -> bool:
        """Return False: a first run leaves files without a savepoint if it dies."""
        return False

    def _let_go(self) -> None:
        self._digits = _new_digits()  # An abandoned call may still write its object.

    @contextmanager
    def _locked(self) -> Iterator[None]:
        yield

    def _passing(self, error: Exception) -> str:
        if isinstance(error, PenstockError) or not isinstance(error, OSError):
            raise error
        if isinstance(error, FileExistsError):
            return "another program has stored a savepoint"
        if isinstance(error, ConnectionError | TimeoutError):
            return str(error)
        raise NeedsOperator(
            f"the files in {self._objects} cannot be written: {error.strerror or error}",
            "check the bucket and the account (AWS_…); nothing is lost: a start continues where"
            " the savepoint is",
            Code.SINK_FILE,
        ) from error


def _new_digits() -> str:
    return f"{secrets.randbelow(_DIGITS):014d}"


def download(target: FilesTarget, folder: Path) -> None:
    """Copy the files that a target's savepoint names into an empty folder.

    Files that a rule of the bucket has removed are missing there, from the oldest on.
    """
    objects = ObjectPath(Bucket(target.bucket), unquote(target.path))
    saved = objects / NAME
    try:
        data = saved.read_bytes()
    except FileNotFoundError as error:
        raise NeedsOperator(
            f"there is no savepoint in {objects}",
            "name the folder of a Drainer's sink, as file+s3://bucket/folder",
            Code.PATH_UNUSABLE,
        ) from error
    (folder / NAME).write_bytes(data)
    savepoint = parsed(data, str(saved))
    last = -1 if savepoint.position is None else savepoint.position.file
    ends = [first for first, _ in savepoint.runs[1:]] + [last + 1]
    there = {str(each["path"]) for each in objects.objects()}
    for (first, digits), end in zip(savepoint.runs, ends, strict=True):
        for number in range(first, end):
            for name in (object_name(number, digits), f"{schema_name(number)}-{digits}"):
                if (path := objects / name).key in there:
                    path.copy_to(folder / name.removesuffix(f"-{digits}"))
