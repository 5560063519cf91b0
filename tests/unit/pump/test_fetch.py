"""A Drainer gets the metadata of transactions first, and its tasks fetch them afterwards."""

from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.codes import Code
from penstock.errors import Corrupt
from penstock.pb import penstock_pb2
from penstock.wire.binlog import Binlog, BinlogType, Origin, fake_binlog
from penstock.wire.codec import decode_binlog, encode_binlog
from pump import penstock_service
from pump.store.record import PurgedRange, Record
from tests.unit.pump.test_server import CLUSTER, Aborted, Call, Pump, commit, prewrite


async def metadata_of(pump: Pump, **wanted: Any) -> Any:
    """Return the first message of a pull that wants no rows."""
    request = penstock_pb2.PullRequest(cluster_id=CLUSTER, metadata_only=True, **wanted)
    stream = pump.batches.pull(request.SerializeToString(), Call())
    try:
        async for data in stream:
            return penstock_pb2.PullBatch.FromString(data)
    finally:
        await stream.aclose()  # type: ignore[attr-defined]


async def fetched(pump: Pump, *commit_ts: int, cluster_id: int = CLUSTER) -> list[Any]:
    request = penstock_pb2.FetchRequest(cluster_id=cluster_id, commit_ts=commit_ts)
    stream = pump.batches.fetch(request.SerializeToString(), Call())
    return [penstock_pb2.PullBatch.FromString(data) async for data in stream]


async def test_the_metadata_has_sizes_instead_of_rows_and_all_of_a_ddl_and_an_origin(
    tmp_path: Path,
) -> None:
    origin = Origin(source="s", epoch=1, file=2, position=3, gtid="g")
    ddl = Binlog(tp=BinlogType.PREWRITE, start_ts=3, ddl_query=b"DROP TABLE t", ddl_job_id=9)
    passed_on = Binlog(
        tp=BinlogType.PREWRITE, start_ts=5, prewrite_value=b"rows" * 9, origin=origin
    )

    async with aclosing(Pump(tmp_path)) as pump:
        for binlog in (prewrite(1), commit(1, 2), ddl, commit(3, 4), passed_on, commit(5, 6)):
            await pump.write(binlog)
        assert len(await pump.pulled(3)) == 3  # Then the index has come so far.
        batch = await metadata_of(pump)
        plain, change, head = batch.payloads
        whole = encode_binlog(prewrite(1)) + encode_binlog(commit(1, 2))
        assert (batch.commit_ts, batch.start_ts) == ([2, 4, 6], [1, 3, 5])
        assert batch.sizes[:2] == [len(whole), 0]
        assert plain == b""
        assert decode_binlog(change).ddl_query == b"DROP TABLE t"
        assert decode_binlog(head).origin == origin
        assert decode_binlog(head).prewrite_value == b""
        assert batch.sizes[2] == len(encode_binlog(passed_on) + encode_binlog(commit(5, 6)))


async def test_one_message_has_the_metadata_of_many_reads_and_all_of_it_before_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        for ts in range(1, 400, 2):
            await pump.write_batches([[prewrite(ts, b"x" * 900), commit(ts, ts + 1)]])
        assert len(await pump.pulled(200)) == 200
        stamps = list(range(2, 401, 2))
        batch = await metadata_of(pump, batch_bytes_max=5000)
        assert batch.commit_ts == stamps
        monkeypatch.setattr(penstock_service, "METADATA_BYTES", 1000)
        some = await metadata_of(pump, batch_bytes_max=5000)
        assert some.commit_ts == stamps[: len(some.commit_ts)]
        assert 40 < len(some.commit_ts) < 60


async def test_what_is_written_during_a_pull_is_sent_without_waiting_for_more(
    tmp_path: Path,
) -> None:
    request = penstock_pb2.PullRequest(cluster_id=CLUSTER, metadata_only=True)
    async with aclosing(Pump(tmp_path)) as pump:
        await pump.write(prewrite(1))
        await pump.write(commit(1, 2))
        stream = pump.batches.pull(request.SerializeToString(), Call())
        for ts in range(3, 40, 4):
            batch = penstock_pb2.PullBatch.FromString(await anext(stream))
            assert (list(batch.commit_ts), len(batch.sizes)) == ([ts - 1], 1)
            rolled_back = Binlog(tp=BinlogType.ROLLBACK, start_ts=ts)
            for binlog in (prewrite(ts), rolled_back, prewrite(ts + 2), commit(ts + 2, ts + 3)):
                await pump.write(binlog)
        await stream.aclose()  # type: ignore[attr-defined]


async def test_metadata_that_was_read_before_a_damaged_place_is_sent_before_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        for ts in range(1, 40, 2):
            await pump.write_batches([[prewrite(ts, b"x" * 900), commit(ts, ts + 1)]])
        assert len(await pump.pulled(20)) == 20
        read = pump.storage.pull

        def damaged(after_ts: int, **limits: int) -> Any:
            if after_ts >= 20:
                raise Corrupt("segment", 7, "damaged", Code.SEGMENT_DAMAGED)
            return read(after_ts, **limits)

        monkeypatch.setattr(pump.storage, "pull", damaged)
        request = penstock_pb2.PullRequest(
            cluster_id=CLUSTER, metadata_only=True, batch_bytes_max=2000
        )
        stream = pump.batches.pull(request.SerializeToString(), Call())
        batch = penstock_pb2.PullBatch.FromString(await anext(stream))
        assert batch.commit_ts == list(range(2, 2 + 2 * len(batch.commit_ts), 2))
        assert batch.commit_ts[-1] >= 20
        with pytest.raises(Aborted, match="damaged"):
            await anext(stream)


async def test_exactly_what_is_asked_for_is_fetched_in_as_many_messages_as_it_takes(
    tmp_path: Path,
) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        for ts in range(1, 4000, 4):
            await pump.write_batches([[prewrite(ts, b"x" * 900), commit(ts, ts + 1)]])
        assert len(await pump.pulled(1000)) == 1000
        wanted = list(range(2, 4000, 8))
        pump.pulls._batch_bytes_max = 10_000
        batches = await fetched(pump, *wanted)
        assert [ts for batch in batches for ts in batch.commit_ts] == wanted
        found = [decode_binlog(payload) for batch in batches for payload in batch.payloads]
        assert [binlog.commit_ts for binlog in found] == wanted
        assert {binlog.prewrite_value for binlog in found} == {b"x" * 900}
        assert len(batches) > 10


async def test_what_is_purged_missing_unsorted_or_another_cluster_s_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(pump: Pump, *commit_ts: int, cluster_id: int = CLUSTER) -> Aborted:
        with pytest.raises(Aborted) as caught:
            await fetched(pump, *commit_ts, cluster_id=cluster_id)
        return caught.value

    async with aclosing(Pump(tmp_path)) as pump:
        for binlog in (prewrite(1), commit(1, 2), prewrite(3), commit(3, 6)):
            await pump.write(binlog)
        assert len(await pump.pulled(2)) == 2
        absent = await refused(pump, 2, 4, 6)
        assert absent.code is grpc.StatusCode.FAILED_PRECONDITION
        assert "4" in absent.details
        assert (await refused(pump, 7)).code is grpc.StatusCode.FAILED_PRECONDITION
        assert (await refused(pump, 6, 2)).code is grpc.StatusCode.INVALID_ARGUMENT
        other = await refused(pump, 2, cluster_id=8)
        assert other.code is grpc.StatusCode.PERMISSION_DENIED
        stream = pump.storage.stream
        monkeypatch.setattr(stream, "purge", stream.purge._replace(purged_ts=5))
        purged = await refused(pump, 2, 6)
        assert purged.code is grpc.StatusCode.OUT_OF_RANGE
        assert str(PurgedRange(1, 5).problem) in purged.details
        assert len((await fetched(pump, 6))[0].payloads) == 1


async def test_a_fake_binlog_is_described_as_a_whole(tmp_path: Path) -> None:
    async with aclosing(Pump(tmp_path)) as pump:
        await pump.write(prewrite(1))
        await pump.write(commit(1, 2))
        assert len(await pump.pulled(1)) == 1  # Then the index has come so far.
        payload = encode_binlog(fake_binlog(9))
        pump.storage.index(pump.storage.append([Record(BinlogType.ROLLBACK, 9, 9, payload)]))
        batch = await metadata_of(pump)
        assert batch.commit_ts == [2, 9]
        assert batch.sizes[1] == 0
        assert batch.payloads[1] == payload
