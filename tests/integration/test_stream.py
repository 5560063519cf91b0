"""Programs read the stream of real Pumps: in commit order, each transaction once, from anywhere."""

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.node_registry import NodeKind, NodeState, Registry
from penstock.ctl.commands import main as ctl
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.stream import (
    BEGINNING,
    NOW,
    AsyncReader,
    Change,
    Ddl,
    ExpressionRule,
    FilterConfig,
    Reader,
    ReaderOptions,
    TablePattern,
    Transaction,
)
from pumpclient import Options, PumpClient
from tests.kit.servers.authority import Authority
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.wait import eventually, present

MakePump = Callable[..., PumpProcess]
QUICK = Options(probe_interval_s=0.3, commit_retry_s=0.2)
WAIT_S = 30.0
PURGING: dict[str, Any] = {"gc_days": 1e-6, "storage_segment_bytes_max": 1 << 16}


@pytest.fixture
def shop(etcd_url: str, pump: PumpProcess) -> Iterator[PumpClient]:
    with PumpClient.connect(etcd_url, options=QUICK) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl(
            "CREATE TABLE shop.goods (id INT PRIMARY KEY, name VARCHAR(20), price DECIMAL(6,2))"
        )
        yield client


def put(client: PumpClient, *ids: int, name: str = "nut") -> int:
    with client.begin("shop") as txn:
        txn.insert_many("goods", [{"id": number, "name": name} for number in ids])
    assert txn.commit_ts
    return txn.commit_ts


def next_of(reader: Reader) -> Transaction | Ddl:
    found = reader.get(WAIT_S)
    assert found is not None, reader.waits_for()
    return found


def changes_of(reader: Reader) -> list[Change]:
    found = next_of(reader)
    assert isinstance(found, Transaction), found
    return list(found.changes)


def ids_of(reader: Reader) -> list[object]:
    return [change.after["id"] for change in changes_of(reader) if change.after is not None]


def purge(pump: PumpProcess) -> str:
    with pump.channel() as channel:
        stub = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
        return str(stub.TriggerGc(penstock_pb2.TriggerGcRequest(), timeout=20).message)


def test_rows_come_decoded_and_a_ddl_stands_where_it_took_effect(
    etcd_url: str, shop: PumpClient
) -> None:
    with shop.begin("shop") as txn:
        txn.insert("goods", {"id": 1, "name": "nut", "price": "1.50"})
    shop.execute_ddl("ALTER TABLE shop.goods ADD COLUMN stock INT DEFAULT 7, DROP COLUMN price")
    with shop.begin("shop") as later:
        later.update("goods", {"id": 1, "name": "nut", "stock": 7}, {"id": 2})
        later.delete("goods", {"id": 2, "name": "nut", "stock": 7})
    with Reader.connect(etcd_url) as reader:
        made = [next_of(reader), next_of(reader)]
        assert [type(each) for each in made] == [Ddl, Ddl]
        assert made[1].tables == ("shop.goods",)
        first = next_of(reader)
        assert (first.commit_ts, first.start_ts) == (txn.commit_ts, txn.start_ts)
        # A date of the same clock; a wrong unit or zone would show.
        assert abs(first.committed_at.timestamp() - time.time()) < 1000
        assert isinstance(first, Transaction)
        assert list(first.changes) == [
            Change(
                "insert", "shop", "goods", None,
                {"id": 1, "name": "nut", "price": Decimal("1.50")}, ("id",),
            )
        ]  # fmt: skip
        altered = next_of(reader)
        assert isinstance(altered, Ddl)
        assert (altered.schema, altered.query[:19]) == ("shop", "ALTER TABLE `goods`")
        ((_, before, after),) = altered.change.altered
        assert [column.name for column in before.columns] == ["id", "name", "price"]
        assert [column.name for column in after.columns] == ["id", "name", "stock"]
        rows = [(change.kind, change.before, change.after) for change in changes_of(reader)]
        one, two = ({"id": number, "name": "nut", "stock": 7} for number in (1, 2))
        assert rows == [("update", one, two), ("delete", two, None)]
        assert reader.get(0.2) is None
    assert re.fullmatch(r"<Reader of cluster \d+, closed at \d+>", repr(reader))
    with pytest.raises(NeedsOperator, match="the reader is closed"):
        reader.get()
    assert list(reader) == []


def test_a_reader_begins_after_a_commit_ts_a_checkpoint_or_now(
    etcd_url: str, pump_factory: MakePump, shop: PumpClient
) -> None:
    pump_factory(etcd_url)
    committed = [put(shop, number) for number in range(10)]
    with Reader.connect(etcd_url, after=committed[3]) as reader:
        assert [next_of(reader).commit_ts for _ in range(3)] == committed[4:7]
        stored = reader.checkpoint
        idle_ts = reader.checkpoint
    with (
        Reader.connect(etcd_url, after=NOW) as from_now,
        Reader.connect(etcd_url, after=stored) as resumed,
    ):
        assert [next_of(resumed).commit_ts for _ in range(3)] == committed[7:]
        last_ts = put(shop, 11)
        assert next_of(from_now).commit_ts == next_of(resumed).commit_ts == last_ts
        assert from_now.get(0.3) is None
        eventually(lambda: from_now.get(0.1) is None and from_now.checkpoint > idle_ts)
        idle = from_now.checkpoint
    with Reader.connect(etcd_url, after=idle) as reader:
        assert next_of_after(reader, put(shop, 12)) == [12]
    other = re.sub(r'"cluster": \d+', '"cluster": 1', stored)
    with pytest.raises(NeedsOperator, match="the checkpoint is of cluster 1, "):
        Reader.connect(etcd_url, after=other)


def next_of_after(reader: Reader, commit_ts: int) -> list[object]:
    found = next_of(reader)
    assert isinstance(found, Transaction)
    assert found.commit_ts == commit_ts
    return [change.after["id"] for change in found.changes if change.after is not None]


def test_a_filter_is_that_of_a_drainer(etcd_url: str, shop: PumpClient) -> None:
    shop.execute_ddl("CREATE TABLE shop.log (id INT PRIMARY KEY)")
    cheap = ExpressionRule(schema="shop", table="goods", insert_value_expr="id < 10")
    wanted = FilterConfig(
        do_tables=(TablePattern(db_name="shop", tbl_name="goods"),), expressions=(cheap,)
    )
    with Reader.connect(etcd_url, after=NOW, filter=wanted) as reader:
        put(shop, 1, 2)
        with shop.begin("shop") as txn:
            txn.insert("log", {"id": 20})
            txn.insert_many("goods", [{"id": 3}, {"id": 30}])
        assert ids_of(reader) == [30]
        assert sorted(reader.skipped()) == [
            "filter: 1 rows of shop.log",
            "filter: 3 rows of shop.goods",
        ]


@pytest.mark.thorough
def test_a_large_transaction_is_not_held_in_memory_and_filtered_too(
    etcd_url: str, shop: PumpClient, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    rows, options = 40_000, ReaderOptions(large_bytes=1 << 20, spool_dir=str(spool))
    odd = ExpressionRule(schema="shop", table="goods", insert_value_expr="id % 2 = 1")
    wanted = FilterConfig(expressions=(odd,))
    with Reader.connect(etcd_url, after=NOW, filter=wanted, options=options) as reader:
        large_ts = put(shop, *range(rows), name="x" * 20)
        put(shop, rows)
        large = next_of(reader)
        assert isinstance(large, Transaction)
        assert (large.commit_ts, large.is_large, large.tables) == (large_ts, True, ("shop.goods",))
        assert len([*spool.rglob("0*")]) == 1
        found = [change.after["id"] for change in large.changes if change.after is not None]
        assert found == [*range(0, rows, 2)]
        assert ids_of(reader) == [rows]
        with pytest.raises(NeedsOperator, match="are gone"):
            list(large.changes)
        eventually(lambda: not [*spool.rglob("0*")])
    assert not [*spool.iterdir()]


@pytest.mark.thorough
@pytest.mark.fault(
    "a program that reads the stream is killed under load: a Pump joins that no one has"
    " announced to it; another is killed; etcd cannot be read"
)
def test_a_pump_that_joins_unannounced_or_is_away_lets_nothing_be_missed(
    etcd_url: str, pump: PumpProcess, pump_factory: MakePump, shop: PumpClient
) -> None:
    committed: list[int] = []
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            committed.append(put(shop, number))

    with Reader.connect(etcd_url, after=NOW) as reader:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            found = [next_of(reader).commit_ts for _ in range(20)]
            second = pump_factory(etcd_url)
            while second.node_id not in {each.name for each in reader.pumps()}:
                found.append(next_of(reader).commit_ts)
            second.kill()
            eventually(lambda: "pump-2 (" in _waiting(reader, found), WAIT_S)
            second.start()
            found += [next_of(reader).commit_ts for _ in range(20)]
        finally:
            over.set()
            writer.join()
        while len(found) < len(committed):
            found.append(next_of(reader).commit_ts)
    assert found == committed


def _waiting(reader: Reader, found: list[int]) -> str:
    while (each := reader.get(0.1)) is not None:
        found.append(each.commit_ts)
    return reader.waits_for()


@pytest.mark.thorough
def test_a_purged_position_is_an_error_that_says_what_to_do(
    etcd_url: str, pump_factory: MakePump
) -> None:
    pump = pump_factory(etcd_url, **PURGING)
    with PumpClient.connect(etcd_url, options=QUICK) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.goods (id INT PRIMARY KEY, name TEXT)")
        first_ts = put(client, 0)
        for number in range(1, 8):
            put(client, number, name="x" * 30_000)
        eventually(lambda: "purged (0, " in purge(pump), WAIT_S)
        with Reader.connect(etcd_url, after=first_ts) as reader:
            for _ in range(2):
                with pytest.raises(NeedsOperator, match="are purged") as caught:
                    reader.get(WAIT_S)
                assert "begin with a fresh copy of the data" in caught.value.hint


def test_a_name_holds_the_purge_up_to_what_is_acknowledged_and_is_one_reader_s(
    etcd_url: str, etcd: Any, pump_factory: MakePump, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> tuple[int, str]:
        code = ctl([*words, "--etcd-urls", etcd_url])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    pump, registry = pump_factory(etcd_url, **PURGING), Registry(etcd)
    with PumpClient.connect(etcd_url, options=QUICK) as client:
        client.execute_ddl("CREATE DATABASE shop")
        client.execute_ddl("CREATE TABLE shop.goods (id INT PRIMARY KEY, name TEXT)")
        with Reader.connect(etcd_url, name="audit") as reader:
            for number in range(8):
                put(client, number, name="x" * 30_000)
            assert "drainer audit (reading) still needs binlogs after 0" in purge(pump)
            with pytest.raises(NeedsOperator, match="runs under the name audit"):
                Reader.connect(etcd_url, name="audit")
            assert re.search(r"audit +reader@\S+:0 +reading ", said("drainers")[1])
            code, text = said("status", "audit")
            assert (code, "a program that reads the stream" in text) == (0, True)
            code, text = said("offline-drainer", "audit")
            assert (code, "stop the program" in text) == (2, True)
            code, text = said("update-drainer", "audit", "--state", "offline")
            assert (code, "audit is alive" in text) == (2, True)
            for _ in range(10):
                last = next_of(reader)
            reader.acknowledge(last.checkpoint)
            eventually(lambda: "purged (0, " in purge(pump), WAIT_S)
        found = present(registry.get(NodeKind.DRAINER, "audit"))
        assert (found.state, found.max_commit_ts) == (NodeState.PAUSED, last.commit_ts)
        with Reader.connect(etcd_url, name="audit", after=last.checkpoint) as reader:
            assert next_of_after(reader, put(client, 100)) == [100]
        code, text = said("update-drainer", "audit", "--state", "offline")
        assert (code, "Pumps keep no binlogs for it any more" in text) == (0, True)


def test_another_thread_closes_a_reader_that_waits(etcd_url: str, shop: PumpClient) -> None:
    reader, found = Reader.connect(etcd_url), list[int]()

    def read() -> None:
        found.extend(each.commit_ts for each in reader)

    thread = threading.Thread(target=read)
    thread.start()
    last_ts = put(shop, 1)
    eventually(lambda: last_ts in found)
    reader.close()
    thread.join(10)
    assert not thread.is_alive()
    reader.close()
    assert not [each for each in threading.enumerate() if each.name == "penstock reader"]


def test_on_asyncio_a_reader_that_is_given_up_and_asked_again_loses_nothing(
    etcd_url: str, shop: PumpClient
) -> None:
    async def body() -> tuple[list[int], list[int]]:
        found, committed = list[int](), list[int]()
        async with await AsyncReader.connect(etcd_url, after=NOW) as reader:
            for number in range(10):
                assert await reader.get(0.02) is None
                committed.append(await asyncio.to_thread(put, shop, number))
                while len(found) <= number:
                    each = await reader.get(0.01)
                    found += [] if each is None else [each.commit_ts]
            closing = asyncio.get_running_loop().call_later(
                0.1, lambda: asyncio.create_task(reader.close())
            )
            assert [each async for each in reader] == []
            assert closing.when()
            with pytest.raises(NeedsOperator, match="closed"):
                await reader.get()
        return found, committed

    found, committed = asyncio.run(body())
    assert found == committed


@pytest.mark.slow
def test_with_tls_a_reader_shows_its_certificate_or_says_who_refuses_it(
    etcd_url: str, pump_factory: MakePump, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("node")
    pump_factory(etcd_url, **own.settings, security_cert_allowed_cn="node")
    with PumpClient.connect(etcd_url, tls=own.tls, options=QUICK) as client:
        client.execute_ddl("CREATE DATABASE shop")
    with Reader.connect(etcd_url, tls=own.tls) as reader:
        assert isinstance(next_of(reader), Ddl)
    stranger = authority.issue("stranger").tls
    with pytest.raises(PenstockError, match=r"certificate|stranger"):
        Reader.connect(etcd_url, after=NOW, tls=stranger)
    with Reader.connect(etcd_url, tls=stranger) as reader:
        eventually(lambda: "pump-1 (" in reader.waits_for(), WAIT_S)
        assert reader.get(0.1) is None


_FORGETFUL = """
import sys
from penstock.stream import Reader
reader = Reader.connect(sys.argv[1], name="forgetful")
print(reader.get(30).commit_ts > 0)
"""


def test_a_program_that_ends_without_closing_its_reader_ends_quietly(
    etcd_url: str, shop: PumpClient
) -> None:
    # What a node in this process has asked of gRPC is nothing that a program inherits.
    environment = {name: text for name, text in os.environ.items() if name != "GRPC_VERBOSITY"}
    done = subprocess.run(
        [sys.executable, "-c", _FORGETFUL, etcd_url],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_reader_of_no_cluster_says_so_and_leaves_no_thread() -> None:
    with pytest.raises(Retryable, match=r"127\.0\.0\.1:1"):
        Reader.connect("127.0.0.1:1", after=BEGINNING)
    assert not [each for each in threading.enumerate() if each.name == "penstock reader"]
