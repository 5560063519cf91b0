"""Main file: whether the file below SQLite's log is still the one that the log continues.

In WAL mode a database is a file and a log (`-wal`). SQLite copies the log into the file from time
to time and never checks whether another program has written the file since, such as a `cp` that
restores a backup under its name. Pages of two states are mixed then, without an error. Each state
of the file therefore has an id of 15 random bits, in the header's `PRAGMA user_version`:

    bits 30 to 16   the id of the file when the log was started
    bits 14 to 0    the id of the file once the log has been copied into it

A transaction after such a copy chooses the next id, so that the log has an id that its file does
not have. The file's own id must then be one of these two; otherwise it is another file. Files of
older versions, which had no ids, have id 0.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from contextlib import closing
from pathlib import Path

_ID_BITS = 16
_ID_MASK = 0x7FFF
_TRIES, _PAUSE_S = 5, 0.05
"""Another process, such as a shell's `wal_checkpoint`, may be copying the log into the file."""


_FileState = tuple[int, int, int]
"""When the file has changed, in nanoseconds; its size; and that of its log."""


class MainFile:
    """One connection's knowledge of the file that it writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._id: int | None = 0
        """The file's id; None if the file cannot be read, or is cut."""
        self._version = 0
        """The database's version, its log included."""
        self._next = 0
        self._data_version = 0
        self._seen: _FileState = (0, 0, 0)

    def is_cut(self) -> bool:
        """Return whether the file ends within a page and no log has the rest of the page."""
        if self._size(self._log) or not self._size(self._path):
            return False
        try:
            _, page_size = self._header()
        except sqlite3.Error as error:  # Opening it reports a file that is not a database.
            return error.sqlite_errorcode != sqlite3.SQLITE_NOTADB
        return self._size(self._path) % page_size != 0

    def open(self, connection: sqlite3.Connection) -> bool:
        """Start on a new connection; return whether file and log have the same state."""
        self._read_version(connection)
        self._seen, self._id = self._file_state(), self._stored_id()
        if self._id is not None and self._seen[1]:
            return self._id in self._ids()
        # A process that died while it copied the log leaves a file that only the log completes.
        return connection.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]

    def is_kept(self, connection: sqlite3.Connection) -> bool:
        """Return whether no other program has written the file, or cut it or its log, since `open`.

        No transaction is open. Commits of another connection are accepted.
        """
        for _ in range(_TRIES):
            now, seen = self._file_state(), self._seen
            if now[:2] == seen[:2] and now[2] >= seen[2]:
                self._seen = now
                return True
            if self._data_version != self._now(connection, "data_version"):
                self._read_version(connection)
            if self._is_one_state(connection, is_log_cut=now[2] < seen[2]):
                self._seen = self._file_state()
                return True
            time.sleep(_PAUSE_S)
        return False

    def _is_one_state(self, connection: sqlite3.Connection, *, is_log_cut: bool) -> bool:
        own, before = self._ids()
        found = self._stored_id()
        if found == before != own and self._id == before and not is_log_cut:
            # When SQLite considers the whole log copied, it starts the next log in its place.
            busy, logged, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if busy or logged != copied:
                return True
            found = self._stored_id()
        self._id = found if found == own else self._id
        return found == own

    def mark(self, connection: sqlite3.Connection) -> None:
        """Choose the next id, within a transaction, if the file has the last id."""
        self._next = self._version
        own = self._ids()[0]
        if self._id == own:
            made = own
            while made in (0, own):
                made = secrets.randbits(_ID_BITS - 1)
            self._next = own << _ID_BITS | made
            connection.execute(f"PRAGMA user_version = {self._next}")

    def committed(self) -> None:
        self._version = self._next

    def _read_version(self, connection: sqlite3.Connection) -> None:
        self._version = self._next = self._now(connection, "user_version")
        self._data_version = self._now(connection, "data_version")

    def _now(self, connection: sqlite3.Connection, name: str) -> int:
        return int(connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _ids(self) -> tuple[int, int]:
        return self._version & _ID_MASK, self._version >> _ID_BITS & _ID_MASK

    def _file_state(self) -> _FileState:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return (0, 0, 0)
        return found.st_mtime_ns, found.st_size, self._size(self._log)

    def _stored_id(self) -> int | None:
        """Return the file's own id, without its log; None if it is cut or not a database."""
        try:
            version, page_size = self._header()
        except sqlite3.Error:
            return None
        return None if self._size(self._path) % page_size else version & _ID_MASK

    def _header(self) -> tuple[int, int]:
        """Return the version and the bytes of a page that the file has, without its log.

        It uses a connection of SQLite's, because closing a file in this process releases all its
        locks.
        """
        uri = f"{self._path.absolute().as_uri()}?immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        return int(version), int(page_size)

    def _size(self, path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0


def reader_of(path: Path) -> sqlite3.Connection:
    """Return a connection that keeps SQLite from copying the log when the writing one is closed.

    The last connection of a database copies the log, unless it may only read.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    reader = sqlite3.connect(uri, uri=True, check_same_thread=False)
    reader.execute("PRAGMA schema_version").fetchone()
    return reader
