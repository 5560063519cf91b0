"""Writers against real Pumps: what was committed is streamed, once, in order, and nothing else."""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from penstock.cluster.history import History
from penstock.cluster.node_registry import Registry
from penstock.codes import Code
from penstock.datum.rows.row_codec import RowCodec
from penstock.errors import Malformed, NeedsOperator, Retryable
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.schema.model import DdlJob
from penstock.wire.binlog import Binlog, BinlogType, MutationType
from penstock.wire.codec import decode_binlog, decode_prewrite_value
from pumpclient import NoPump, Options, PumpClient
from pumpclient.aio import AsyncPumpClient
from pumpclient.delivery.retries import Deliveries
from pumpclient.delivery.session import Session
from pumpclient.rows import Row
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.wait import eventually

MakePump = Callable[..., PumpProcess]
CREATE = "CREATE TABLE shop.goods (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL DEFAULT 'nut')"
QUICK = Options(probe_interval_s=0.3, commit_retry_s=0.2)


@pytest.fixture
def client(etcd_url: str, pump: PumpProcess) -> Iterator[PumpClient]:
    with PumpClient.connect(etcd_url, options=QUICK) as connected:
        yield connected


@pytest.fixture
def shop(client: PumpClient) -> PumpClient:
    client.execute_ddl("CREATE DATABASE shop")
    client.execute_ddl(CREATE)
    return client


def streamed(pump: PumpProcess, cluster_id: int, until_ts: int) -> list[Binlog]:
    """Return what the Pump streams from the beginning until its time has passed `until_ts`."""
    found: list[Binlog] = []
    with pump.channel() as channel:
        stub = penstock_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Pull(penstock_pb2.PullRequest(cluster_id=cluster_id), timeout=30)
        try:
            for batch in call:
                found += [b for b in map(decode_binlog, batch.payloads) if not b.is_fake]
                if batch.commit_ts and batch.commit_ts[-1] >= until_ts:
                    break
        finally:
            call.cancel()
    return [b for b in found if b.commit_ts <= until_ts]


@pytest.fixture
def stream_of(etcd: Any) -> Callable[[PumpProcess, int], list[Binlog]]:
    cluster_id = Registry(etcd).cluster_id()
    return lambda pump, until_ts: streamed(pump, cluster_id, until_ts)


StreamOf = Callable[[PumpProcess, int], list[Binlog]]


def test_the_example_of_the_readme_runs(etcd_url: str, pump: PumpProcess) -> None:
    example, on_asyncio = examples()[:2]
    assert len([line for line in example.splitlines() if line]) <= 10
    assert '"127.0.0.1:2379"' in example
    printed = StringIO()
    with redirect_stdout(printed):
        exec(example.replace("127.0.0.1:2379", etcd_url), {})
    assert int(printed.getvalue()) > 0
    exec(on_asyncio.replace("127.0.0.1:2379", etcd_url), {"__name__": "example"})


def examples() -> list[str]:
    readme = Path(__file__).parents[2] / "pumpclient" / "README.md"
    return re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)


def test_tasks_of_asyncio_commit_together_and_a_block_that_raises_does_not(
    shop: PumpClient, etcd_url: str, pump: PumpProcess, stream_of: StreamOf
) -> None:
    async def put(client: AsyncPumpClient, number: int) -> int:
        async with client.begin("shop") as txn:
            rows: list[Row] = [{"id": 2 * number}, {"id": 2 * number + 1, "name": "bolt"}]
            assert await txn.insert_many("goods", rows) == 2
        assert txn.commit_ts
        return txn.commit_ts

    async def fail(client: AsyncPumpClient) -> None:
        async with client.begin("shop") as txn:
            await txn.insert("goods", {"id": 1})
            await txn.delete("goods", {"id": 1})

    async def body() -> list[int]:
        async with await AsyncPumpClient.connect(etcd_url, options=QUICK) as client:
            committed = await asyncio.gather(*(put(client, number) for number in range(50)))
            with pytest.raises(Malformed, match="name"):
                await fail(client)
            assert (await client.table("goods", "shop")).name == "goods"
        return committed

    committed = asyncio.run(body())
    found = stream_of(pump, max(committed))
    assert {each.commit_ts for each in found if not each.is_ddl} == set(committed)
    eventually(lambda: not [each for each in threading.enumerate() if "aio" in each.name])


def test_a_client_that_is_closed_says_so_and_both_say_what_they_are(
    shop: PumpClient, etcd_url: str
) -> None:
    with PumpClient.connect(etcd_url, options=QUICK) as client:
        assert repr(client) == repr(shop)
        assert repr(client).endswith("1 Pumps>")
        txn = client.begin("shop")
        assert repr(txn) == "<Transaction open, 0 bytes of rows>"
        txn.insert_many("goods", ([number, "nut"] for number in range(3)))
        assert txn.commit() == txn.commit_ts
        assert repr(txn).startswith(f"<Transaction committed at {txn.commit_ts}, ")
    assert repr(client).endswith(", closed>")
    for call in (
        lambda: client.begin(),
        lambda: client.execute_ddl("CREATE DATABASE b"),
        lambda: client.table("shop.goods"),
        lambda: client.last_ddl_origin("a"),
    ):
        with pytest.raises(NeedsOperator, match=r"closed \(connect again\)"):
            call()


def test_on_asyncio_a_client_that_is_closed_says_so_too(shop: PumpClient, etcd_url: str) -> None:
    async def body() -> None:
        client = await AsyncPumpClient.connect(etcd_url, options=QUICK)
        txn = client.begin("shop")
        await client.close()
        await client.close()
        for call in (
            lambda: txn.insert("goods", {"id": 1}),
            lambda: client.execute_ddl("CREATE DATABASE b"),
            lambda: client.table("shop.goods"),
        ):
            with pytest.raises(NeedsOperator, match=r"closed \(connect again\)"):
                await call()
        with pytest.raises(NeedsOperator, match="closed"):
            client.begin()

    asyncio.run(body())


def test_of_several_statements_none_is_begun_when_one_cannot_be(shop: PumpClient) -> None:
    for wrong in ("CREATE NONSENSE", "CREATE TABLE shop.goods (id INT PRIMARY KEY)"):
        with pytest.raises(NeedsOperator):
            shop.execute_ddl(f"CREATE DATABASE more; {wrong}")
    assert len(shop.execute_ddl("CREATE DATABASE more; CREATE TABLE more.t (id INT)")) == 2


def test_a_transaction_is_streamed_as_it_was_written(
    shop: PumpClient, pump: PumpProcess, stream_of: StreamOf
) -> None:
    with shop.begin("shop") as txn:
        txn.insert("goods", {"id": 1})
        txn.insert("shop.goods", [2, "bolt"])
        txn.update("GOODS", {"id": 1, "name": "nut"}, {"id": 10})
        txn.delete("goods", {"id": 2, "name": "bolt"})
    assert txn.commit_ts is not None
    assert txn.start_ts < txn.commit_ts
    last = stream_of(pump, txn.commit_ts)[-1]
    assert (last.start_ts, last.commit_ts) == (txn.start_ts, txn.commit_ts)
    value = decode_prewrite_value(last.prewrite_value)
    (mutation,) = value.mutations
    table = shop.table("shop.goods")
    codec = RowCodec(table)
    assert mutation.table_id == table.id
    assert value.schema_version == 2
    assert mutation.sequence == (
        MutationType.INSERT,
        MutationType.INSERT,
        MutationType.UPDATE,
        MutationType.DELETE,
    )
    assert [codec.decode_insert(row) for row in mutation.inserted_rows] == [(1, "nut"), (2, "bolt")]
    assert codec.decode_update(mutation.updated_rows[0]) == ((1, "nut"), (10, "nut"))
    assert codec.decode_delete(mutation.deleted_rows[0]) == (2, "bolt")


def test_a_transaction_over_several_tables_is_one_binlog(
    shop: PumpClient, pump: PumpProcess, stream_of: StreamOf
) -> None:
    shop.execute_ddl("CREATE TABLE log (what VARCHAR(10))", "shop")
    with shop.begin() as txn:
        txn.insert("shop.goods", {"id": 1})
        txn.insert("shop.log", {"what": "in"})
        txn.insert("shop.goods", {"id": 2})
    last = stream_of(pump, txn.commit_ts or 0)[-1]
    mutations = decode_prewrite_value(last.prewrite_value).mutations
    assert [len(m.inserted_rows) for m in mutations] == [2, 1]


def test_empty_and_failed_transactions_write_nothing(
    shop: PumpClient, pump: PumpProcess, stream_of: StreamOf
) -> None:
    with shop.begin("shop") as empty:
        pass
    assert empty.commit_ts == 0
    failed = shop.begin("shop")
    failed.insert("goods", {"id": 1})
    with pytest.raises(ZeroDivisionError), failed:
        _ = 1 / 0
    assert failed.commit_ts is None
    with pytest.raises(NeedsOperator, match="begin another"):
        failed.insert("goods", {"id": 1})
    with shop.begin("shop") as txn:
        txn.insert("goods", {"id": 2})
    written = [b for b in stream_of(pump, txn.commit_ts or 0) if not b.is_ddl]
    assert [b.start_ts for b in written] == [txn.start_ts]


def test_ddl_is_streamed_between_the_rows_of_both_schemas(
    shop: PumpClient, pump: PumpProcess, stream_of: StreamOf
) -> None:
    with shop.begin("shop") as before:
        before.insert("goods", [1, "nut"])
    (ddl_ts,) = shop.execute_ddl("ALTER TABLE goods ADD COLUMN price INT DEFAULT 5", "shop")
    with shop.begin("shop") as after:
        after.insert("goods", [2, "bolt", 7])
    binlogs = stream_of(pump, after.commit_ts or 0)[-3:]
    assert [b.commit_ts for b in binlogs] == [before.commit_ts, ddl_ts, after.commit_ts]
    assert [b.is_ddl for b in binlogs] == [False, True, False]
    assert b"ADD COLUMN price" in binlogs[1].ddl_query
    assert decode_prewrite_value(binlogs[2].prewrite_value).schema_version == 3


@pytest.mark.fault(
    "Prewrite without a Commit: it was executing DDL", "committed from the DDL history", cases="1"
)
def test_a_ddl_whose_client_died_before_its_commit_is_committed_from_history(
    shop: PumpClient, pump: PumpProcess, stream_of: StreamOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deliveries, "add", lambda self, delivery: False)
    (ddl_ts,) = shop.execute_ddl("ALTER TABLE goods ADD COLUMN price INT", "shop")
    last = stream_of(pump, ddl_ts)[-1]
    assert last.commit_ts == ddl_ts
    assert last.is_ddl
    assert b"ADD COLUMN price" in last.ddl_query


@pytest.mark.thorough
@pytest.mark.fault(
    "Prewrite without a Commit: it had not recorded it yet",
    "rolled back as soon as a later DDL is recorded",
    cases="1",
)
def test_a_ddl_whose_client_died_before_it_was_recorded_holds_no_one_up_after_the_next_one(
    shop: PumpClient, pump: PumpProcess, stream_of: StreamOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: History, job: DdlJob, **more: Any) -> None:
        raise Retryable("died", code=Code.ETCD_AWAY)

    with monkeypatch.context() as dying:
        dying.setattr(History, "append", die)
        dying.setattr(Session, "roll_back", lambda self, pump, start_ts: None)
        with pytest.raises(Retryable, match="died"):
            shop.execute_ddl("ALTER TABLE goods ADD COLUMN price INT", "shop")
    (ddl_ts,) = shop.execute_ddl("ALTER TABLE goods ADD COLUMN weight INT", "shop")
    queries = [binlog.ddl_query for binlog in stream_of(pump, ddl_ts) if binlog.is_ddl]
    assert b"weight" in queries[-1]
    assert not any(b"price" in query for query in queries)


def test_a_ddl_whose_answer_from_history_was_lost_is_done_once(
    shop: PumpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = History.append
    lost: list[DdlJob] = []

    def append_and_lose_the_answer(self: History, *jobs: DdlJob, **more: Any) -> None:
        append(self, *jobs, **more)
        if not lost:
            lost.extend(jobs)
            raise Retryable("etcd failed: UNAVAILABLE", code=Code.ETCD_AWAY) from OSError()

    monkeypatch.setattr(History, "append", append_and_lose_the_answer)
    assert len(shop.execute_ddl("ALTER TABLE goods ADD COLUMN price INT", "shop")) == 1
    assert lost
    assert shop.table("shop.goods").column("price") is not None


def test_a_ddl_that_history_refuses_is_rolled_back_and_changes_nothing(
    shop: PumpClient, pump: PumpProcess, stream_of: StreamOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: History, job: DdlJob, **more: Any) -> None:
        raise Retryable(
            f"DDL job {job.id} was not recorded: the lock or the version moved on",
            code=Code.ETCD_AWAY,
        )

    with monkeypatch.context() as patched:
        patched.setattr(History, "append", refuse)
        with pytest.raises(Retryable, match="was not recorded"):
            shop.execute_ddl("ALTER TABLE goods ADD COLUMN price INT", "shop")
    with shop.begin("shop") as txn:
        txn.insert("goods", [1, "nut"])
    assert [b.is_ddl for b in stream_of(pump, txn.commit_ts or 0)] == [True, True, False]


@pytest.mark.thorough
def test_many_clients_run_ddl_and_rows_at_once_and_agree_on_one_order(
    shop: PumpClient, pump: PumpProcess, etcd_url: str, stream_of: StreamOf
) -> None:
    errors: list[BaseException] = []
    stop = threading.Event()

    def write(thread: int, client: PumpClient) -> None:
        i = 0
        try:
            while not stop.is_set():
                i += 1
                with client.begin("shop") as txn:
                    txn.insert("goods", {"id": thread * 100_000 + i})
        except BaseException as error:
            errors.append(error)

    with PumpClient.connect(etcd_url) as other:
        threads = [
            threading.Thread(target=write, args=(i, c)) for i, c in enumerate((shop, other, other))
        ]
        for thread in threads:
            thread.start()
        ddl_ts = [
            client.execute_ddl(f"ALTER TABLE goods ADD COLUMN c{i} INT DEFAULT {i}", "shop")[0]
            for i, client in enumerate((shop, other, shop, other))
        ]
        ddl_ts += other.execute_ddls(
            [(f"ALTER TABLE shop.goods ADD COLUMN d{i} INT", None) for i in range(60)]
        )
        stop.set()
        for thread in threads:
            thread.join()
        with other.begin("shop") as last:
            last.insert("goods", {"id": 1})
    assert not errors
    version = 2
    for binlog in stream_of(pump, last.commit_ts or 0):
        if binlog.is_ddl:
            version += binlog.commit_ts in ddl_ts
        else:
            # The promise of the fence: rows carry the version that is current in the stream.
            assert decode_prewrite_value(binlog.prewrite_value).schema_version == version
    assert version == 66


def test_a_no_op_ddl_does_nothing(shop: PumpClient) -> None:
    assert shop.execute_ddl("CREATE DATABASE IF NOT EXISTS shop") == []


def test_rows_written_before_a_ddl_are_carried_over_to_the_new_schema(
    shop: PumpClient, pump: PumpProcess, stream_of: StreamOf
) -> None:
    txn = shop.begin("shop")
    txn.insert("goods", [1, "nut"])
    txn.update("goods", [1, "nut"], [2, "bolt"])
    shop.execute_ddl("ALTER TABLE goods ADD COLUMN price INT DEFAULT 5 FIRST", "shop")
    txn.delete("goods", {"id": 2, "name": "bolt", "price": 5})
    commit_ts = txn.commit()
    (mutation,) = decode_prewrite_value(stream_of(pump, commit_ts)[-1].prewrite_value).mutations
    codec = RowCodec(shop.table("shop.goods"))
    assert codec.decode_insert(mutation.inserted_rows[0]) == (5, 1, "nut")
    assert codec.decode_update(mutation.updated_rows[0]) == ((5, 1, "nut"), (5, 2, "bolt"))
    assert codec.decode_delete(mutation.deleted_rows[0]) == (5, 2, "bolt")


def test_a_transaction_whose_table_was_dropped_meanwhile_can_only_be_run_again(
    shop: PumpClient,
) -> None:
    txn = shop.begin("shop")
    txn.insert("goods", [1, "nut"])
    shop.execute_ddl("TRUNCATE TABLE goods", "shop")
    with pytest.raises(Retryable, match=r"shop\.goods was dropped or truncated"):
        txn.commit()


def test_another_client_sees_a_ddl_at_once(shop: PumpClient, etcd_url: str) -> None:
    with PumpClient.connect(etcd_url) as other:
        shop.execute_ddl("CREATE TABLE fresh (id INT PRIMARY KEY)", "shop")
        assert other.table("shop.fresh").name == "fresh"
        shop.execute_ddl("ALTER TABLE fresh ADD COLUMN a INT", "shop")
        with other.begin("shop") as txn:
            txn.insert("fresh", {"id": 1})
        assert len(other.table("shop.fresh").columns) == 2


def test_wrong_names_are_reported_with_the_nearest_right_one(shop: PumpClient) -> None:
    with shop.begin("shop") as txn:
        with pytest.raises(NeedsOperator, match=r"did you mean shop\.goods"):
            txn.insert("gods", {"id": 1})
        with pytest.raises(NeedsOperator, match="did you mean 'name'"):
            txn.insert("goods", {"id": 1, "nam": "x"})


def test_without_a_pump_connecting_says_how_to_get_one(etcd_url: str) -> None:
    with pytest.raises(NoPump, match="penstock pump"):
        PumpClient.connect(etcd_url, options=Options(connect_timeout_s=0.1))


def test_no_threads_are_left_after_closing(etcd_url: str, pump: PumpProcess) -> None:
    before = set(threading.enumerate())
    with PumpClient.connect(etcd_url) as client:
        client.execute_ddl("CREATE DATABASE shop")
    eventually(lambda: set(threading.enumerate()) <= before)


def test_binlogs_of_ones_own_go_to_the_pump_of_their_prewrite(
    shop: PumpClient, pump: PumpProcess, etcd_url: str, pump_factory: MakePump, stream_of: StreamOf
) -> None:
    second = pump_factory(etcd_url)
    oracle = shop._session.oracle
    expected = {}
    for i in range(6):
        start_ts = oracle.get_ts()
        prewrite_value = b"\x08%c" % i
        shop.write_binlog(
            Binlog(tp=BinlogType.PREWRITE, start_ts=start_ts, prewrite_value=prewrite_value)
        )
        commit_ts = oracle.get_ts()
        shop.write_binlog(Binlog(tp=BinlogType.COMMIT, start_ts=start_ts, commit_ts=commit_ts))
        expected[commit_ts] = prewrite_value
    with pytest.raises(NeedsOperator, match="no Prewrite"):
        shop.write_binlog(Binlog(tp=BinlogType.ROLLBACK, start_ts=start_ts))
    found = stream_of(pump, commit_ts) + stream_of(second, commit_ts)
    assert {b.commit_ts: b.prewrite_value for b in found if not b.is_ddl} == expected


def test_a_pump_that_speaks_only_the_methods_of_tidb_binlog_is_served_too(
    shop: PumpClient, pump: PumpProcess, etcd_url: str, stream_of: StreamOf
) -> None:
    with (
        PumpClient.connect(etcd_url, options=Options(coalesce=False)) as plain,
        plain.begin("shop") as txn,
    ):
        txn.insert("goods", {"id": 1})
    assert stream_of(pump, txn.commit_ts or 0)[-1].start_ts == txn.start_ts


@pytest.mark.thorough
def test_many_threads_commit_and_all_is_streamed_once_and_in_order(
    shop: PumpClient, pump: PumpProcess, stream_of: StreamOf
) -> None:
    committed: list[int] = []

    def work(thread: int) -> None:
        for i in range(20):
            with shop.begin("shop") as txn:
                txn.insert("goods", {"id": thread * 1000 + i})
            committed.append(txn.commit_ts or 0)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [b.commit_ts for b in stream_of(pump, max(committed)) if not b.is_ddl]
    assert found == sorted(committed)


@pytest.mark.thorough
@pytest.mark.fault
def test_pumps_killed_one_after_the_other_lose_and_double_nothing(
    shop: PumpClient, pump: PumpProcess, etcd_url: str, pump_factory: MakePump, stream_of: StreamOf
) -> None:
    second = pump_factory(etcd_url)
    committed: list[int] = []
    stop = threading.Event()

    def work(thread: int) -> None:
        i = 0
        while not stop.is_set():
            i += 1
            with shop.begin("shop") as txn:
                txn.insert("goods", {"id": thread * 100_000 + i})
            committed.append(txn.commit_ts or 0)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for victim in (pump, second):
        time.sleep(0.7)
        victim.kill()
        time.sleep(0.5)
        victim.start()
    time.sleep(0.7)
    stop.set()
    for thread in threads:
        thread.join()
    assert len(committed) > 50
    # Orphans were rolled back, or the streams would stand still for ten minutes here.
    last_ts = max(committed)
    found = [b for p in (pump, second) for b in stream_of(p, last_ts) if not b.is_ddl]
    assert sorted(b.commit_ts for b in found) == sorted(committed)
    assert len({b.start_ts for b in found}) == len(found)


@pytest.mark.thorough
@pytest.mark.fault
def test_a_frozen_pump_costs_one_time_out_and_its_orphan_is_rolled_back(
    shop: PumpClient, pump: PumpProcess, etcd_url: str, pump_factory: MakePump, stream_of: StreamOf
) -> None:
    second = pump_factory(etcd_url)
    options = Options(attempt_timeout_s=0.5, probe_interval_s=0.3, commit_retry_s=0.2)
    with PumpClient.connect(etcd_url, options=options) as hasty:
        for i in range(4):
            with hasty.begin("shop") as txn:
                txn.insert("goods", {"id": i})
        second.freeze()
        try:
            for i in range(10, 16):
                with hasty.begin("shop") as txn:
                    txn.insert("goods", {"id": i})
            usable = [p.node_id for p in hasty._session.pumps.all if p.is_available]
            assert usable == [pump.node_id]
        finally:
            second.thaw()
        last_ts = txn.commit_ts or 0
        found = [b for p in (pump, second) for b in stream_of(p, last_ts) if not b.is_ddl]
    assert len(found) == 10
    assert len({b.start_ts for b in found}) == 10
