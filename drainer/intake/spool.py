"""Spool: keeps binlogs too large for memory in files of the data-dir until they are downstream.

    <data-dir>/spool/<number>   one merged binlog, in the chunks that the Pump sent

A file is written while its chunks arrive, and handed to the merge as a `Spooled`. It is deleted
when its transaction is committed, when its stream breaks (the binlog is pulled again), and at the
next start. It is never the only copy, and therefore never synced.

Each Pump has one file at a time. Its next large binlog is not read before the last is
downstream, and until then gRPC's flow control holds the Pump back. This cannot deadlock the merge,
because a large binlog waits for nothing that comes after it. The disk therefore holds at most one
large binlog for each Pump.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drainer.intake.payload import Payload, Spooled, outline_in
from penstock.codes import Code
from penstock.errors import Malformed, NeedsOperator
from penstock.failpoints import point
from penstock.wire.binlog import BinlogType

log = logging.getLogger(__name__)

DDL_BYTES_MAX = 16 << 20
"""A DDL is handled in memory, however it was sent."""

_HINT = "Pump and Drainer must run compatible versions"
_chunk_written = point("drainer.piece_spooled")
_spooled = point("drainer.binlog_spooled")

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

Run = tuple[Sequence[int], Sequence[Payload]]
Read = Callable[[], Awaitable[Any]]


class Spool:
    """The spool's files; used from one event loop, which no write blocks."""

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        """Empty the folder; binlogs larger than `bytes_max` do not stay in memory."""
        self.bytes_max = bytes_max
        self._folder = folder
        self._numbers = itertools.count(1)
        self._free: dict[str, asyncio.Event] = {}
        with _disk(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            for left in folder.iterdir():
                left.unlink()

    async def receive(self, pump: str, first: Any, read: Read) -> Run | None:
        """Write chunks to a file; None if the stream ends before the last chunk.

        `read` returns the next `PullBatch`, None at the end of the stream. Raises `Malformed` for
        chunks that do not fit together, `NeedsOperator` if the disk is full or broken.
        """
        async with _Writing(self, pump, first.commit_ts, first.bytes) as file:
            chunk = first
            while True:
                await file.add(chunk)
                if file.is_complete:
                    return [first.commit_ts], [await file.finish()]
                batch = await read()
                if batch is None:
                    return None
                chunk = chunk_of(batch)
                if chunk is None:
                    raise Malformed(
                        f"Pump {pump} sent {file.size} of {first.bytes} bytes of the binlog at "
                        f"{first.commit_ts} and then something else",
                        _HINT,
                        Code.PULL_MALFORMED,
                    )

    async def keep_large(self, pump: str, run: Run) -> AsyncGenerator[Run]:
        """Yield a run in parts, with binlogs too large for memory on the disk.

        This is for Pumps that send every binlog whole.
        """
        commit_ts, payloads = run
        start = 0
        for at, payload in enumerate(payloads):
            if len(payload) <= self.bytes_max or not isinstance(payload, bytes):
                continue
            if at > start:
                yield commit_ts[start:at], payloads[start:at]
            async with _Writing(self, pump, commit_ts[at], len(payload)) as file:
                await file.write(payload)
                spooled = await file.finish()
            yield [commit_ts[at]], [spooled]
            start = at + 1
        if start < len(payloads):
            yield commit_ts[start:], payloads[start:]

    async def next_path(self, pump: str) -> Path:
        """Wait until a Pump's previous file is gone; return the path of its next file."""
        free = self._free.get(pump)
        if free is not None:
            await free.wait()
        self._free[pump] = asyncio.Event()
        return self._folder / f"{next(self._numbers):08d}"

    def released(self, pump: str) -> None:
        self._free[pump].set()


def chunk_of(batch: Any) -> Any:
    """Return the chunk in a `PullBatch`, None if absent; `Malformed` if more is in it."""
    if not batch.HasField("piece"):
        return None
    if batch.payloads or batch.commit_ts:
        raise Malformed(
            "a Pump sent a chunk and whole binlogs in one message", _HINT, Code.PULL_MALFORMED
        )
    return batch.piece


class _Writing:
    """One file while it grows; it is deleted on exit unless it was finished."""

    def __init__(self, spool: Spool, pump: str, commit_ts: int, total: int) -> None:
        self._spool = spool
        self._pump = pump
        self._commit_ts = commit_ts
        self._total = total
        self._digest = hashlib.blake2b(digest_size=16)
        self._descriptor = -1
        self._path = Path()
        self._kept = False
        self.size = 0

    async def __aenter__(self) -> _Writing:
        self._path = await self._spool.next_path(self._pump)
        try:
            with _disk(self._path):
                self._descriptor = os.open(
                    self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
                )
        except BaseException:
            self._spool.released(self._pump)
            raise
        log.info(
            "Pump %s sends a binlog of %d bytes at commit_ts %d: it goes through %s",
            self._pump, self._total, self._commit_ts, self._path,
        )  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if not self._kept:
            self._path.unlink(missing_ok=True)
            self._spool.released(self._pump)

    @property
    def is_complete(self) -> bool:
        return self.size == self._total

    async def add(self, chunk: Any) -> None:
        """Append a chunk, which must be the next one of this binlog."""
        stated = (chunk.commit_ts, chunk.bytes, chunk.offset)
        fits = stated == (self._commit_ts, self._total, self.size)
        if not fits or not chunk.data or self.size + len(chunk.data) > self._total:
            raise Malformed(
                f"Pump {self._pump} sent {len(chunk.data)} bytes at {chunk.offset} of a binlog of "
                f"{chunk.bytes} bytes at {chunk.commit_ts}, after {self.size} bytes of one of "
                f"{self._total} bytes at {self._commit_ts}",
                _HINT,
                Code.PULL_MALFORMED,
            )
        await self.write(chunk.data)

    async def write(self, data: bytes) -> None:
        # A cancelled write must end before its file is closed.
        writing = asyncio.ensure_future(asyncio.to_thread(self._write, data))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait((writing,))
            raise

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        with _disk(self._path):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        self._digest.update(data)
        self.size += len(data)
        _chunk_written()

    async def finish(self) -> Payload:
        """Return the handle or, for a DDL, its bytes."""
        assert self.is_complete
        spooled = Spooled(
            self._path,
            self.size,
            self._digest.digest(),
            await asyncio.to_thread(outline_in, self._path, self.size),
            lambda: self._spool.released(self._pump),
            self._pump,
        )
        self._check(spooled)
        if spooled.outline.ddl_job_id > 0:
            return await asyncio.to_thread(self._path.read_bytes)
        self._kept = True
        _spooled()
        return spooled

    def _check(self, spooled: Spooled) -> None:
        found = spooled.outline
        if found.tp != BinlogType.COMMIT or found.commit_ts != self._commit_ts:
            raise Malformed(
                f"a Pump sent a binlog of type {found.tp} with commit_ts {found.commit_ts} as "
                f"{self._commit_ts}",
                "the Pumps and the Drainer must speak the same binlog.proto",
                Code.PULL_MALFORMED,
            )
        if found.ddl_job_id > 0 and self.size > DDL_BYTES_MAX:
            raise NeedsOperator(
                f"the DDL at commit_ts {found.commit_ts} has {self.size} bytes, "
                f"{DDL_BYTES_MAX} are the most",
                "no one writes such a statement by hand: look for its writer",
                Code.BINLOG_UNDECODABLE,
            )


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Translate errors of a full or broken disk into `NeedsOperator`."""
    try:
        yield
    except OSError as error:
        hint = "repair the disk of the data-dir; nothing is lost, the Pump has the binlog"
        if error.errno in _FULL:
            hint = "make room in the data-dir for the largest transaction of each Pump, or move it"
        raise NeedsOperator(
            f"cannot spool to {path}: {error.strerror}", hint, Code.PATH_UNUSABLE
        ) from error
