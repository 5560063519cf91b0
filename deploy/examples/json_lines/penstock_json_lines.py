"""A sink that appends every change to a file: `jsonl:///folder/changes.jsonl`.

A line is a row's change, a DDL or a savepoint. Lines behind the last savepoint do not count: a
reader ignores them, and the next write cuts them off. A write is therefore all or nothing.
"""

import fcntl
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from penstock.sinks import Address, Ddl, Moved, Transaction, TransactionSink

_MARK = b'\n{"savepoint": '


class JsonLines(TransactionSink):
    """One file; programs that write to it take turns."""

    def __init__(self, address: Address) -> None:
        if address.place or not address.path.strip("/") or address.options:
            raise ValueError("write jsonl:///folder/file, without options")
        self._path = Path(address.path)

    def load(self) -> str | None:
        with self._locked() as file:
            return _last(file)[0]

    def write(
        self, changes: Sequence[Transaction | Ddl], savepoint: str, after: str | None
    ) -> None:
        with self._locked() as file:
            stored, end = _last(file)
            if stored != after:
                raise Moved
            file.truncate(end)
            file.seek(end)
            file.writelines(_line(each) for change in changes for each in _lines(change))
            file.write(_line({"savepoint": savepoint}))
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        with open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Closing the file releases it.
            yield file


def _last(file: IO[bytes]) -> tuple[str | None, int]:
    """Return the last whole savepoint, and the position behind it."""
    if not os.fstat(file.fileno()).st_size:
        file.write(b"\n")  # Each line follows the end of another.
        file.flush()
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.rfind(_MARK)
        if at >= 0 and (end := data.find(b"\n", at + 1)) < 0:  # It was being written.
            at = data.rfind(_MARK, 0, at)
            end = data.find(b"\n", at + 1)
        return (json.loads(data[at + 1 : end])["savepoint"], end + 1) if at >= 0 else (None, 1)


def _lines(each: Transaction | Ddl) -> Iterator[dict[str, Any]]:
    ts = {"commit_ts": each.commit_ts}
    if isinstance(each, Ddl):
        yield ts | {"schema": each.schema, "ddl": each.query}
        return
    for change in each.changes:
        table = {"table": f"{change.schema}.{change.table}", "kind": change.kind}
        yield ts | table | {"before": change.before, "after": change.after}


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, default=_text).encode() + b"\n"


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
