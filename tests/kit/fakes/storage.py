"""A Pump's storage on a disk in memory, and the records to feed it with."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from penstock.log.files import Files
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog, encode_binlog
from pump.store.storage import Pulled, Record, Storage, StorageConfig

SMALL = StorageConfig(stop_write_at_available_bytes=0, segment_bytes_max=2000)


def prewrite(start_ts: int, value: bytes = b"rows") -> Record:
    binlog = Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=value)
    return Record(BinlogType.PREWRITE, start_ts, 0, encode_binlog(binlog))


def commit(start_ts: int, commit_ts: int, job: int = 0) -> Record:
    binlog = Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts, ddl_job_id=job)
    payload = encode_binlog(binlog)
    return Record(BinlogType.COMMIT, start_ts, commit_ts, payload, ddl_job_id=job)


def rollback(start_ts: int) -> Record:
    binlog = Binlog(tp=BinlogType.ROLLBACK, start_ts=start_ts)
    return Record(BinlogType.ROLLBACK, start_ts, 0, encode_binlog(binlog))


def fake(ts: int) -> Record:
    binlog = Binlog(tp=BinlogType.ROLLBACK, start_ts=ts, commit_ts=ts)
    return Record(BinlogType.ROLLBACK, ts, ts, encode_binlog(binlog))


def opened(path: Path, files: Files | None = None, config: StorageConfig = SMALL) -> Storage:
    return Storage.open(path, config, files=files)


def write(storage: Storage, *records: Record) -> None:
    """Append and index `records` as one group."""
    storage.index(storage.append(records))


def pulled(
    storage: Storage, after_ts: int = 0, *, bytes_max: int = 1 << 20, count_max: int = 1000
) -> list[Binlog]:
    """Pull all there is, batch by batch, and check that timestamps and payloads agree."""
    found: list[Binlog] = []
    while True:
        piece: Pulled = storage.pull(after_ts, bytes_max=bytes_max, count_max=count_max)
        binlogs = [decode_binlog(payload) for payload in piece.payloads]
        assert [binlog.commit_ts for binlog in binlogs] == piece.commit_ts
        if piece.large is not None:
            whole = b"".join(storage.stream.chunks(piece.large))
            assert len(whole) == piece.large.size_bytes
            binlogs = [decode_binlog(whole)]
        found += binlogs
        if piece.last_ts <= after_ts:
            return found
        after_ts = piece.last_ts


def commits(storage: Storage, after_ts: int = 0) -> list[tuple[int, int]]:
    """Return (start_ts, commit_ts) of every merged binlog that can be pulled; no fake ones."""
    return [(b.start_ts, b.commit_ts) for b in pulled(storage, after_ts) if not b.is_fake]


def die(storage: Storage) -> None:
    """Let go of what a killed process would, and do nothing that a clean stop does."""
    storage._closed = True
    storage._flusher.join()
    storage._index.close()
    os.close(storage._lock_file)


def copy_index(path: Path, copy: Path) -> None:
    """Copy the index as it is on the disk now: what a crash of the machine may go back to."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path / "index", copy, ignore=shutil.ignore_patterns("LOCK"))


def put_index(path: Path, copy: Path | None) -> None:
    shutil.rmtree(path / "index", ignore_errors=True)
    if copy is not None:
        shutil.copytree(copy, path / "index")


def index_dump(storage: Storage) -> list[tuple[bytes, bytes]]:
    """Return the index without its places of restart: what two equal logs must agree on."""
    rows: Sequence[tuple[bytes, bytes]] = list(storage._index._db.iterator())
    return [(key, value) for key, value in rows if key not in (b"h", b"k", b"f", b"n")]
