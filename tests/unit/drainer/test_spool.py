"""Binlogs that come in pieces: what arrives is what was sent, or an error that says why not."""

import asyncio
import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drainer.intake.merger import Merger
from drainer.intake.payload import Spooled, opened
from drainer.intake.spool import DDL_BYTES_MAX, Spool, chunk_of
from penstock.errors import Malformed, NeedsOperator
from penstock.pb import penstock_pb2
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from tests.kit.wait import never, turn, until

PIECE_BYTES = 1000


def merged(commit_ts: int, size: int = 10_000, *, start_ts: int = 0, ddl_job_id: int = 0) -> bytes:
    value = random.Random(commit_ts).randbytes(size)
    start_ts = start_ts or commit_ts - 1
    prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=value)
    commit = Binlog(
        tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts, ddl_job_id=ddl_job_id
    )
    return encode_binlog(prewrite) + encode_binlog(commit)


def pieces(commit_ts: int, data: bytes, piece_bytes: int = PIECE_BYTES) -> list[Any]:
    return [
        penstock_pb2.PullBatch(
            piece=penstock_pb2.PullPiece(
                commit_ts=commit_ts, bytes=len(data), offset=at, data=data[at : at + piece_bytes]
            )
        )
        for at in range(0, len(data), piece_bytes)
    ]


async def receive(spool: Spool, batches: Sequence[Any], pump: str = "p") -> Any:
    rest = iter(batches[1:])

    async def read() -> Any:
        return next(rest, None)

    return await spool.receive(pump, chunk_of(batches[0]), read)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def content(payload: Spooled) -> bytes:
    with opened(payload.path) as source:
        return source(0, payload.size + 1)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_pieces_become_one_file_that_is_gone_when_it_is_released(folder: Path) -> None:
    spool = Spool(folder, bytes_max=1000)
    data = merged(50)
    commit_ts, (payload,) = await receive(spool, pieces(50, data))
    assert commit_ts == [50]
    assert isinstance(payload, Spooled)
    assert content(payload) == data
    assert (payload.outline.start_ts, payload.outline.commit_ts) == (49, 50)
    assert len(payload) < 5000 < payload.size == len(data)
    payload.release()
    assert names(folder) == []


async def test_a_stream_that_ends_early_leaves_nothing_and_begins_again(folder: Path) -> None:
    spool = Spool(folder, bytes_max=1000)
    batches = pieces(50, merged(50))
    for cut in range(1, len(batches)):
        assert await receive(spool, batches[:cut]) is None
        assert names(folder) == []
    assert await receive(spool, batches) is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda batches: batches.pop(3),
        lambda batches: batches.insert(3, batches[2]),
        lambda batches: batches.insert(3, penstock_pb2.PullBatch(payloads=[b"x"], commit_ts=[51])),
        lambda batches: setattr(batches[3].piece, "commit_ts", 51),
        lambda batches: setattr(batches[3].piece, "bytes", 51),
        lambda batches: setattr(batches[3].piece, "data", b""),
        lambda batches: setattr(batches[-1].piece, "data", bytes(5000)),
        lambda batches: setattr(batches[0].piece, "offset", 1),
        lambda batches: setattr(batches[0].piece, "bytes", 0),
        lambda batches: batches[4].payloads.append(b"y"),
    ],
    ids=["gap", "twice", "another", "ts", "total", "empty", "long", "start", "none", "both"],
)
async def test_pieces_that_do_not_fit_together_are_an_error(folder: Path, change: Any) -> None:
    spool = Spool(folder, bytes_max=1000)
    batches = pieces(50, merged(50))
    change(batches)
    with pytest.raises(Malformed):
        await receive(spool, batches)
    assert names(folder) == []


async def test_what_is_no_committed_binlog_is_an_error(folder: Path) -> None:
    spool = Spool(folder, bytes_max=1000)
    for ts, data in ((50, merged(51)), (51, merged(51) + b"\x07"), (51, bytes(3000))):
        with pytest.raises(Malformed):
            await receive(spool, pieces(ts, data))
        assert names(folder) == []


async def test_a_full_disk_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(folder, bytes_max=1000)

    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(NeedsOperator, match=r"No space left.*make room in the data-dir"):
            await receive(spool, pieces(50, merged(50)))
    assert names(folder) == []
    assert await receive(spool, pieces(50, merged(50))) is not None


async def test_a_new_run_removes_what_the_last_one_left(folder: Path) -> None:
    await receive(Spool(folder, bytes_max=1000), pieces(50, merged(50)))
    assert len(names(folder)) == 1
    Spool(folder, bytes_max=1000)
    assert names(folder) == []


async def test_a_pump_has_one_file_at_a_time_and_holds_up_no_other(folder: Path) -> None:
    spool = Spool(folder, bytes_max=1000)
    _, (first,) = await receive(spool, pieces(50, merged(50)))
    second = asyncio.create_task(receive(spool, pieces(60, merged(60))))
    assert await receive(spool, pieces(55, merged(55)), "q") is not None
    await turn()
    assert not second.done()
    assert len(names(folder)) == 2
    first.release()
    _, (payload,) = await second
    assert content(payload) == merged(60)


async def test_a_cancelled_puller_leaves_no_file(folder: Path) -> None:
    spool = Spool(folder, bytes_max=1000)
    first = pieces(50, merged(50))[0].piece

    task = asyncio.create_task(spool.receive("p", first, never))
    await until(lambda: names(folder) != [])
    assert len(names(folder)) == 1
    task.cancel()
    await asyncio.wait((task,))
    assert names(folder) == []


async def test_a_ddl_is_bytes_whatever_way_it_came(folder: Path) -> None:
    spool = Spool(folder, bytes_max=1000)
    data = merged(50, ddl_job_id=4)
    assert await receive(spool, pieces(50, data)) == ([50], [data])
    assert names(folder) == []
    data = merged(50, DDL_BYTES_MAX, ddl_job_id=4)
    with pytest.raises(NeedsOperator, match="are the most"):
        await receive(spool, pieces(50, data, 1 << 20))


async def test_what_comes_whole_but_is_too_large_goes_to_the_disk(folder: Path) -> None:
    spool = Spool(folder, bytes_max=1000)
    data = {ts: merged(ts, 5000 if ts % 3 == 0 else 10) for ts in range(10, 18)}
    seen: list[tuple[int, bytes]] = []
    async for commit_ts, payloads in spool.keep_large("p", (list(data), list(data.values()))):
        for ts, payload in zip(commit_ts, payloads, strict=True):
            assert isinstance(payload, Spooled) == (ts % 3 == 0)
            if isinstance(payload, Spooled):
                assert len(payloads) == 1
                seen.append((ts, content(payload)))
                payload.release()
            else:
                assert isinstance(payload, bytes)
                seen.append((ts, payload))
    assert seen == list(data.items())


async def test_the_same_large_binlog_from_two_pumps_is_merged_once(folder: Path) -> None:
    spool = Spool(folder, bytes_max=1000)
    merger = Merger(0)
    for pump in "pq":
        merger.add(pump)
        merger.push(pump, *await receive(spool, pieces(50, merged(50)), pump))
    found = merger.take()
    assert found is not None
    assert (list(found.commit_ts), merger.duplicates) == ([50], 1)
    kept = found.payloads[0]
    assert isinstance(kept, Spooled)
    assert names(folder) == [kept.path.name]
    kept.release()
    for pump, other in (("p", merged(60)), ("q", merged(60, start_ts=7))):
        merger.push(pump, *await receive(spool, pieces(60, other), pump))
    with pytest.raises(NeedsOperator, match="different transactions"):
        merger.take()
