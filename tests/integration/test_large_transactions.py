"""Transactions of gigabytes through a real Pump: bounded memory, the same bytes, no one waits."""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.cluster.node_registry import Registry
from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import Malformed, NeedsOperator
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.schema.model import TableInfo
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_prewrite_value, encode_binlog
from penstock.wire.protowire import read_uvarint
from pumpclient import Options, PumpClient, Transaction
from pumpclient.changes import SpoolFile
from tests.kit.crash.disks import small_volume
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.pages import asked
from tests.kit.wait import eventually, present

pytestmark = pytest.mark.alone

log = logging.getLogger(__name__)

MakePump = Callable[..., PumpProcess]
MIB = 1 << 20
ROW_BYTES = 256 << 10
GROWTH_BYTES_MAX = 200 * MIB
CREATE = "CREATE TABLE shop.big (id INT PRIMARY KEY, data LONGBLOB)"


def connected(etcd_url: str, **options: Any) -> PumpClient:
    fields: dict[str, Any] = {
        "probe_interval_s": 0.3,
        "commit_retry_s": 0.2,
        "attempt_timeout_s": 30.0,
    }
    return PumpClient.connect(
        etcd_url, write_timeout_s=60, options=Options(**{**fields, **options})
    )


@pytest.fixture
def shop(etcd_url: str, pump: PumpProcess) -> Iterator[PumpClient]:
    with connected(etcd_url) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl(CREATE)
        yield client


def row_data(number: int) -> bytes:
    return number.to_bytes(4, "big") * (ROW_BYTES // 4)


def resident_bytes(pid: str = "self", what: str = "VmHWM") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = present(re.search(rf"{what}:\s+(\d+) kB", status))
    return int(found[1]) << 10


def forget_peak(pid: str) -> None:
    """Let the peak of a process begin again at what it has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def streamed(pump: PumpProcess, cluster_id: int, after_ts: int) -> tuple[int, Iterator[bytes]]:
    """Return commit_ts and parts of the next large binlog after `after_ts`."""
    channel = pump.channel()
    request = penstock_pb2.PullRequest(
        cluster_id=cluster_id, after_ts=after_ts, pieces=True, drainer_id="test"
    )
    call = penstock_pb2_grpc.PumpStub(channel).Pull(  # type: ignore[no-untyped-call]
        request, timeout=570, wait_for_ready=True
    )
    first = next(batch.piece for batch in call if batch.HasField("piece"))

    def parts() -> Iterator[bytes]:
        chunk, expected = first, 0
        while True:
            assert (chunk.commit_ts, chunk.offset) == (first.commit_ts, expected)
            expected += len(chunk.data)
            yield chunk.data
            if expected == chunk.bytes:
                channel.close()
                return
            chunk = next(call).piece

    return first.commit_ts, parts()


def check_rows(parts: Iterator[bytes], start_ts: int, table: TableInfo, count: int) -> int:
    """Assert that a merged binlog holds rows 0 to `count` in order; return its size.

    Reads as a Drainer must: one mutation at a time.
    """
    codec, buffer, size, number = RowCodec(table), bytearray(), 0, 0
    for part in parts:
        buffer += part
        if not size:
            at = len(encode_binlog(Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts)))
            _, at = read_uvarint(buffer, at + 1)  # prewrite_value
            _, at = read_uvarint(buffer, at + 1)  # schema_version
            del buffer[:at]
        size += len(part)
        while buffer[:1] == b"\x12" and len(buffer) > 10:
            length, at = read_uvarint(buffer, 1)
            if len(buffer) < at + length:
                break
            value = decode_prewrite_value(bytes(buffer[: at + length]))
            del buffer[: at + length]
            for row in value.mutations[0].inserted_rows:
                assert codec.decode_insert(row) == (number, row_data(number))
                number += 1
    assert number == count
    assert bytes(buffer[:2]) == b"\x08\x01", "the Commit follows"
    return size


def cpu_s(pump: PumpProcess) -> float:
    times = psutil.Process(pump.pid).cpu_times()
    return float(times.user + times.system)


class SmallWriter(threading.Thread):
    """Commits small transactions one after the other until stopped."""

    def __init__(self, etcd_url: str) -> None:
        super().__init__(daemon=True)
        self.client = connected(etcd_url)
        self.stopping = threading.Event()
        self.committed: list[int] = []
        self.slowest_s = 0.0
        self.failure: Exception | None = None

    def run(self) -> None:
        number = 1_000_000
        try:
            with self.client:
                while not self.stopping.is_set():
                    begin_s = time.monotonic()
                    with self.client.begin("shop") as txn:
                        txn.insert("big", {"id": number, "data": b"small"})
                    assert txn.commit_ts is not None
                    self.committed.append(txn.commit_ts)
                    self.slowest_s = max(self.slowest_s, time.monotonic() - begin_s)
                    number += 1
                    time.sleep(0.01)
        except Exception as error:
            self.failure = error


@pytest.mark.fault(
    "a transaction of 2 GiB, of 64 MiB by default",
    "through a Pump in chunks, memory of Pump and client grows by less than 200 MiB, small"
    " writers continue",
    cases="1 / 2",
)
@pytest.mark.parametrize("size_mib", [64, pytest.param(2048, marks=pytest.mark.slow)])
def test_a_transaction_of_gigabytes_passes_in_bounded_memory_and_holds_up_no_one(
    etcd: Any, etcd_url: str, pump: PumpProcess, shop: PumpClient, size_mib: int
) -> None:
    cluster_id = Registry(etcd).cluster_id()
    count = size_mib * MIB // ROW_BYTES
    with shop.begin("shop") as warm:  # What imports and pools cost is not the transaction's.
        for number in range(72):
            warm.insert("big", {"id": number, "data": row_data(number)})
    assert warm.commit_ts is not None
    pid = str(pump.pid)
    small = SmallWriter(etcd_url)
    for process in (pid, "self"):
        forget_peak(process)
    before = {process: resident_bytes(process) for process in (pid, "self")}
    small.start()
    txn = shop.begin("shop")
    for number in range(count):
        txn.insert("big", {"id": number, "data": row_data(number)})
    begun = len(small.committed)
    write_cpu_s, begin_s = cpu_s(pump), time.monotonic()
    commit_ts = txn.commit()
    took_s, write_cpu_s = time.monotonic() - begin_s, cpu_s(pump) - write_cpu_s
    during = len(small.committed) - begun
    small.stopping.set()
    small.join(60)
    if small.failure is not None:
        raise small.failure
    assert during > 0, "small transactions were committed meanwhile"
    found_ts, parts = streamed(pump, cluster_id, warm.commit_ts)
    assert found_ts == commit_ts
    pull_cpu_s = cpu_s(pump)
    size = check_rows(parts, txn.start_ts, shop.table("shop.big"), count)
    growth = {process: resident_bytes(process) - before[process] for process in before}
    log.info(
        "%d bytes: commit %.1f s, Pump's CPU %.1f s to write and %.1f s to stream; %d small ones"
        " meanwhile, slowest %.2f s; memory of Pump +%d MiB, of client and test +%d MiB",
        *(size, took_s, write_cpu_s, cpu_s(pump) - pull_cpu_s, during, small.slowest_s),
        *(growth[process] >> 20 for process in (pid, "self")),
    )
    assert size > size_mib * MIB
    assert growth[pid] < GROWTH_BYTES_MAX
    assert growth["self"] < GROWTH_BYTES_MAX


def fill(client: PumpClient, mib: int) -> Transaction:
    txn = client.begin("shop")
    for number in range(mib * MIB // ROW_BYTES):
        txn.insert("big", {"id": number, "data": row_data(number)})
    return txn


def read_that(monkeypatch: pytest.MonkeyPatch, at_bytes: int, act: Callable[[], object]) -> None:
    """Do something once, when a client has read so many bytes of a transaction."""
    read, done = SpoolFile.read, threading.Event()

    def acting(spill: SpoolFile, offset: int, length: int) -> bytes:
        if offset >= at_bytes and not done.is_set():
            done.set()
            act()
        return read(spill, offset, length)

    monkeypatch.setattr(SpoolFile, "read", acting)


@pytest.mark.fault(
    "a transaction of 2 GiB: its Pump is killed in the middle",
    "nothing of it is there; sent again from the beginning",
    cases="1",
)
@pytest.mark.thorough
def test_a_pump_killed_in_the_middle_has_nothing_of_it_and_the_client_begins_again(
    etcd: Any, pump: PumpProcess, shop: PumpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = fill(shop, 40)
    found: list[str] = []

    def kill() -> None:
        pump.restart()
        found.append(pump.status().details["storage_unmatched"])

    read_that(monkeypatch, 25 * MIB, kill)
    commit_ts = txn.commit()
    assert found == ["0"], "chunks without their chunk list are no transaction"
    found_ts, parts = streamed(pump, Registry(etcd).cluster_id(), 0)
    assert found_ts == commit_ts
    check_rows(parts, txn.start_ts, shop.table("shop.big"), 160)
    code, page = asked(pump.status().details["status_pages"] + f"debug/binlog/{commit_ts}")
    assert code == 200
    assert re.search(r"The Prewrite has \d+ bytes, in 41 chunks from segment 0, offset", page)


@pytest.mark.fault(
    "a transaction of 2 GiB: above the limit",
    "the writer gets both sizes, client and Pump continue",
    cases="2",
)
def test_over_the_limit_the_writer_gets_both_sizes_and_continues(
    etcd_url: str, pump_factory: MakePump
) -> None:
    pump_factory(etcd_url, transaction_bytes_max=20 * MIB)
    with connected(etcd_url) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl(CREATE)
        txn = fill(client, 24)
        message = rf"\d+ bytes.*{20 * MIB} \(raise transaction-bytes-max"
        with pytest.raises(Malformed, match=message):
            txn.commit()
        with client.begin("shop") as after:
            after.insert("big", {"id": 1, "data": b"small"})
        assert after.commit_ts
    with connected(etcd_url, transaction_bytes_max=20 * MIB) as client:
        txn = fill(client, 19)
        with pytest.raises(NeedsOperator, match=rf"more than transaction_bytes_max, {20 * MIB}"):
            txn.insert("big", {"id": 1000, "data": bytes(2 * MIB)})
        with pytest.raises(NeedsOperator, match="the transaction is over"):
            txn.commit()
        with client.begin("shop") as after:
            after.insert("big", {"id": 2, "data": b"small"})
        assert after.commit_ts


@pytest.mark.fault(
    "a transaction of 2 GiB: the disk fills up in the middle, or cannot hold what is announced",
    "refused as out of space; continues with space",
    cases="2",
)
@pytest.mark.thorough
def test_a_disk_that_fills_up_in_the_middle_is_named_and_space_alone_helps(
    etcd_url: str, pump_factory: MakePump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_volume(tmp_path / "volume", 128 * MIB) as volume:
        pump = pump_factory(
            etcd_url,
            data_dir=volume.path / "data",
            storage_stop_write_at_available_bytes=8 * MIB,
            log_file="",
        )
        with connected(etcd_url) as client:
            client.execute_ddl("CREATE DATABASE shop")
            client.execute_ddl(CREATE)
            with pytest.raises(NeedsOperator, match=r"out of space.*announced are"):
                fill(client, 126).commit()
            txn = fill(client, 48)
            read_that(monkeypatch, 20 * MIB, volume.fill)
            with pytest.raises(NeedsOperator, match="out of space"):
                txn.commit()
            volume.free()
            eventually(lambda: fill(client, 24).commit() > 0, 60)
            with client.begin("shop") as small:
                small.insert("big", {"id": 1_000_000, "data": b"small"})
            assert small.commit_ts
        pump.kill()
