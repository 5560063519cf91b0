"""Who fetches the rows, a ledger ends the same; a task's answer depends on its unit only."""

import asyncio
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent import futures
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import chain, pairwise, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any

import grpc
import pytest

from drainer.apply.batches import Fetching, Generation, HeldBatch, packed_catalog
from drainer.apply.strategies import Events
from drainer.components import commit_settings, fetch_settings
from drainer.intake.merger import Merged, Merger
from drainer.intake.payload import Remote
from drainer.planner import Planner, RowsStep
from drainer.schema.tracker import SchemaTracker
from drainer.settings.config import ApplyConfig, DrainerConfig, RelayConfig, SparkConfig
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.opening import SinkThread
from drainer.sinks.protocol import EventSink
from drainer.spark.dispatcher import Catalog, Dispatcher
from drainer.task import partitions
from drainer.task.compaction import plan_units
from drainer.task.events.event_unit import (
    CANAL_JSON,
    DEBEZIUM,
    DELTA_CHANGES,
    MAXWELL,
    TIDB_BINLOG,
    TIDB_BINLOG_FILE,
    Encoding,
    encoded_messages,
    event_units,
)
from drainer.task.events.messages import Message
from drainer.task.partitions import arranged
from drainer.task.row_changes import Loss, Screened, Target
from drainer.task.row_fetch import (
    Away,
    Facts,
    Fetcher,
    FetchSettings,
    FetchUnit,
    RemoteTransactions,
    decode_cut,
    decode_made,
    decode_messages,
    encode_away,
    encode_made,
    messages_of,
    statements_of,
)
from drainer.task.selection import Selection
from drainer.task.sql import lake_files
from drainer.task.sql.digests import Digests, merged
from drainer.task.sql.generate import generate
from drainer.task.sql.lake_rows import Block
from drainer.task.work_loop import serve
from drainer.task.work_unit import Batch, TransactionStart, in_order
from penstock.errors import Malformed, NeedsOperator
from penstock.filters import ExpressionRule, FilterConfig, Rules
from penstock.filters.rules import RowPolicy
from penstock.pb import penstock_pb2
from penstock.security.tls import SecurityConfig, Tls
from penstock.wire.codec import (
    decode_binlog,
    decode_prewrite_value,
    encode_binlog,
    encode_prewrite_value,
)
from tests.kit.delta.lake_reader import LakeReader
from tests.kit.fakes.local_drainer import Tasks
from tests.kit.opened_sinks import open_event_sink
from tests.kit.servers.authority import Authority
from tests.kit.wait import eventually, until
from tests.kit.workloads.bank import Bank

BANK = Bank(4, transactions=80)
KEPT_MAX = 4
COMMITS = {"connections": 3, "kept_max": KEPT_MAX}
ROWS_FROM_TS = BANK.jobs[-1].finished_ts
ROWS = [
    (ts, data)
    for ts, data in BANK.binlogs
    if ts > ROWS_FROM_TS and not decode_binlog(data).ddl_query
]
STAMPS = [ts for ts, data in ROWS if decode_binlog(data).prewrite_value]
"""The transactions behind the last DDL."""


def tracker() -> SchemaTracker:
    return SchemaTracker.from_history(BANK.jobs, ROWS_FROM_TS)


def unit(addresses: list[str], stamps: list[int], **changes: Any) -> FetchUnit:
    fields = {
        "batch_id": 1,
        "dialect": "sqlite",
        "displaces": False,
        "catalog": packed_catalog(tracker())[0],
        "cluster_id": 7,
        "drainer_id": "d",
        "addresses": addresses,
        "commit_ts": stamps,
        "owners": [i % len(addresses) for i in range(len(stamps))],
    }
    return FetchUnit.decode(FetchUnit(**{**fields, **changes}).encode())


def of_pumps(
    stamps: list[int], pumps: list[str], sizes: Iterable[int] = repeat(1)
) -> RemoteTransactions:
    found = RemoteTransactions()
    for ts, pump, size in zip(stamps, pumps, sizes, strict=False):
        found.add(ts, pump, size, start_ts=ts - 1)
    return found


def held_step(stamps: list[int]) -> RowsStep:
    """Return transactions as one batch, as where payloads come to the Drainer."""
    planner = Planner(Selection(Rules(), tracker()).lookup, rows_max=10**6, bytes_max=1 << 30)
    binlogs = dict(BANK.binlogs)
    planner.offer(Merged(stamps, [binlogs[ts] for ts in stamps], 1))
    assert planner.next_step() is None
    step = planner.cut()
    assert step is not None
    return step


def through_the_driver(stamps: list[int]) -> list[bytes]:
    """Return the SQL that is made of them then."""
    batch = Batch(1, held_step(stamps).tables)
    return list(in_order(generate(each) for each in plan_units(batch, "sqlite")))


class PumpStub(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A Pump that has the bank's binlogs, and answers as `spoil` lets it."""

    def __init__(self) -> None:
        self.binlogs = dict(BANK.binlogs)
        self.code: grpc.StatusCode | None = None
        self.cut_after = 10**9
        self.repeats = False
        self.halting = False
        self.halted = 0
        """How many fetches stand still in their middle until `halting` ends."""

    def service(self, details: Any) -> Any:
        assert details.method == "/penstock.Pump/Fetch"
        return grpc.unary_stream_rpc_method_handler(
            self.fetch,
            request_deserializer=penstock_pb2.FetchRequest.FromString,
            response_serializer=penstock_pb2.PullBatch.SerializeToString,
        )

    def fetch(self, request: Any, context: Any) -> Iterator[Any]:
        for number, ts in enumerate(request.commit_ts):
            if number == len(request.commit_ts) // 2 and self.halting:
                self.halted += 1
                eventually(lambda: not (self.halting and context.is_active()), 60)
            if self.code is not None and number == self.cut_after:
                context.abort(self.code, "as the test wants it")
            stamps = [ts] * (2 if self.repeats else 1)
            yield penstock_pb2.PullBatch(
                commit_ts=stamps, payloads=[self.binlogs[ts] for ts in stamps]
            )


@contextmanager
def pumps(count: int, tls: Tls | None = None) -> Iterator[tuple[list[PumpStub], list[str]]]:
    stubs, servers, addresses = [], [], []
    for _ in range(count):
        server = grpc.server(futures.ThreadPoolExecutor(8))
        stub = PumpStub()
        server.add_generic_rpc_handlers((stub,))
        if tls is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            credentials = tls.server_credentials(with_client_certificate=True)
            port = server.add_secure_port("127.0.0.1:0", credentials)
        addresses.append(f"127.0.0.1:{port}")
        server.start()
        servers.append(server)
        stubs.append(stub)
    try:
        yield stubs, addresses
    finally:
        for server in servers:
            server.stop(None).wait()


def fetcher() -> Fetcher:
    made = Fetcher(FetchSettings(filters=FilterConfig()))
    made.keep(*packed_catalog(tracker()))
    return made


def sql(answer: bytes) -> list[bytes]:
    made, _ = decode_made(answer)
    return list(in_order(each for _, each in made))


def test_a_task_that_fetches_from_three_pumps_makes_the_sql_that_the_driver_s_way_makes() -> None:
    with pumps(3) as (_, addresses):
        answer = fetcher().answer(unit(addresses, STAMPS).encode())
    assert sql(answer) == through_the_driver(STAMPS)
    _, facts = decode_made(answer)
    assert facts.rows == sum(facts.kinds.values()) == sum(facts.tables.values()) > 50
    assert len(facts.tables) > 1


def test_a_task_that_commits_keeps_the_sql_and_sends_only_the_last_statements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partitions, "PARTITION_BYTES_MIN", 100)
    task = fetcher()
    with pumps(2) as (_, addresses):
        made, facts = decode_made(task.answer(unit(addresses, STAMPS).encode()))
        expected = arranged(made, connections=3)
        answer = task.answer(unit(addresses, STAMPS, **COMMITS).encode())
        assert answer == fetcher().answer(unit(addresses, STAMPS, **COMMITS).encode())
        cut, seen = decode_cut(answer)
        assert (cut.content, cut.last, seen) == (expected.content, expected.last, facts)
        assert cut.phases == [len(phase) for phase in expected.phases]
        assert cut.touched.shares(cut.touched)
        assert expected.count > 1
        assert task.kept == {expected.content: expected}
        others = set()
        for begin in range(1, len(STAMPS)):
            asked = unit(addresses, STAMPS[begin:], **COMMITS)
            others.add(decode_cut(task.answer(asked.encode()))[0].content)
            assert len(task.kept) <= KEPT_MAX
        assert len(others - {expected.content}) > KEPT_MAX
        assert expected.content not in task.kept
        assert decode_made(task.answer(unit(addresses, STAMPS).encode())) == (made, facts)
        monkeypatch.undo()
        little, _ = decode_cut(task.answer(unit(addresses, STAMPS, **COMMITS).encode()))
        assert (little.content, little.count) == ("", 0)
        assert little.last == arranged(made, connections=3).last


FORMATS = (CANAL_JSON, DEBEZIUM, MAXWELL, TIDB_BINLOG, TIDB_BINLOG_FILE, DELTA_CHANGES)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_task_that_fetches_makes_the_messages_that_the_driver_s_way_makes(format_: str) -> None:
    encoding, step = Encoding(format_, topic="{schema}.{table}"), held_step(STAMPS)
    batch = HeldBatch(1, step.tables, commit_ts=step.stamps, starts=step.starts)
    (held,) = event_units(batch, encoding, 1)
    with pumps(3) as (_, addresses):
        answer = fetcher().answer(unit(addresses, STAMPS, encoding=encoding).encode())
    (made,), facts = decode_messages(answer, step.starts)
    assert list(made) == list(encoded_messages(held))
    assert (len(made) > 0, made.starts) == (True, step.starts)
    assert facts.rows == step.rows
    with pytest.raises(Malformed):
        decode_messages(answer[:-3], {})


class Recording(Tasks):
    """Tasks that note which transactions each unit names."""

    def __init__(self) -> None:
        super().__init__(BANK)
        self.runs: list[list[int]] = []

    async def run_on(self, unit: bytes, catalog: Catalog, *_: object) -> tuple[bytes, None]:
        self.runs.append(FetchUnit.decode(unit).commit_ts.tolist())
        return await super().run_on(unit, catalog)


def lines(format_: str, messages: Iterable[tuple[int, Message]]) -> list[Any]:
    """Return messages, or of a change log all lines of a table, which a unit has in one message."""
    if format_ != DELTA_CHANGES:
        return list(messages)
    blocks = [Block.decode(message.value or b"") for _, message in messages]
    ordered = sorted(blocks, key=attrgetter("name"))
    return [(block.name, line) for block in ordered for line in block.rows.to_pylist()]


@pytest.mark.parametrize("format_", FORMATS)
async def test_tasks_share_a_large_batch_by_runs_of_transactions_and_make_the_same_messages(
    format_: str,
) -> None:
    encoding, tasks = Encoding(format_, topic="{schema}.{table}"), Recording()
    step = held_step(STAMPS)
    held = HeldBatch(1, step.tables, commit_ts=step.stamps, starts=step.starts)

    async def made(sizes: Iterable[int]) -> list[Any]:
        tasks.runs.clear()
        remote = of_pumps(STAMPS, ["p"] * len(STAMPS), sizes)
        batch = Fetching(7, "d", lambda: {"p": "h:1"}, tracker()).begin(1, remote)
        dispatcher: Any = tasks
        answers = await batch.messages(dispatcher, encoding, 3)
        assert batch.facts.rows == step.rows == sum(batch.facts.kinds.values())
        assert sum(batch.facts.tables.values()) == step.rows
        return lines(format_, chain(*answers))

    expected = lines(format_, encoded_messages(event_units(held, encoding, 1)[0]))
    assert await made(repeat(1)) == expected
    assert tasks.runs == [STAMPS]
    assert await made(repeat(100_000)) == expected
    assert [len(run) for run in tasks.runs] == [6, 5, 5]
    assert list(chain(*tasks.runs)) == STAMPS
    assert await made(chain([100_000_000], repeat(1))) == expected
    assert tasks.runs == [STAMPS[:1], STAMPS[1:]]


class ByVersion(Selection):
    """A selection whose tables have another name downstream in each version."""

    def lookup(self, table_id: int, version: int) -> Target:
        schema, table = super().lookup(table_id, BANK.jobs[-1].schema_version)
        return schema, table.renamed(f"{table.name}_{version}")


def with_version(data: bytes, version: int) -> bytes:
    binlog = decode_binlog(data)
    value = replace(decode_prewrite_value(binlog.prewrite_value), schema_version=version)
    return encode_binlog(replace(binlog, prewrite_value=encode_prewrite_value(value)))


def test_messages_of_two_versions_of_a_table_follow_one_another() -> None:
    binlogs, selection = dict(BANK.binlogs), ByVersion(Rules(), tracker())

    def transactions(stamps: list[int], version: int) -> list[tuple[int, bytes]]:
        return [(ts, with_version(binlogs[ts], version)) for ts in stamps]

    asked = unit(["x"], STAMPS, encoding=Encoding(CANAL_JSON, topic="{table}"))
    half = len(STAMPS) // 2
    runs = [transactions(STAMPS[:half], 1), transactions(STAMPS[half:], 2)]
    parts = [messages_of(asked, run, selection) for run in runs]
    made, facts = messages_of(asked, [*runs[0], *runs[1]], selection)
    assert [list(each) for each in made] == [list(each) for (each,), _ in parts]
    assert facts.rows == sum(seen.rows for _, seen in parts)
    assert [len({message.to for _, message in each}) for each in made] == [2, 2]


def resident(where: tuple[str, int], token: str, number: int) -> None:
    task = Fetcher(FetchSettings(filters=FilterConfig()))
    serve(where, token, number, task.answer, task.keep)


@pytest.mark.fault(
    "tasks are killed while they fetch, each batch by two",
    "the others' SQL is the same, byte for byte",
    cases="1",
)
def test_tasks_that_are_killed_while_they_fetch_change_nothing() -> None:
    spawn = multiprocessing.get_context("spawn")
    size = len(STAMPS) // 4
    parts = [STAMPS[i * size : (i + 1) * size] for i in range(4)]

    async def main(stubs: list[PumpStub], addresses: list[str]) -> None:
        dispatcher = Dispatcher()
        await dispatcher.start()
        where = dispatcher.host, dispatcher.port
        tasks = [
            spawn.Process(target=resident, args=(where, dispatcher.token, i)) for i in range(3)
        ]
        for task in tasks:
            task.start()
        try:
            await until(lambda: dispatcher.tasks == 3, 120)
            schemas, places = tracker(), {"p0": addresses[0], "p1": addresses[1]}
            generation = Generation(dispatcher, dialect="sqlite")
            way = Fetching(7, "d", lambda: places, schemas)
            batches = [
                way.begin(i, of_pumps(part, [f"p{k % 2}" for k in range(len(part))]))
                for i, part in enumerate(parts)
            ]
            making = [asyncio.create_task(b.by_unit(generation)) for b in batches]
            await until(lambda: stubs[0].halted == len(tasks), 60)
            for victim in tasks[:2]:
                victim.kill()
            await until(lambda: dispatcher.lost_tasks == 2)
            stubs[0].halting = False
            for part, made in zip(parts, await asyncio.gather(*making), strict=True):
                assert list(in_order(each for _, each in made)) == through_the_driver(part)
            assert dispatcher.lost_tasks == 2
        finally:
            for task in tasks:
                task.kill()
                task.join()
            await dispatcher.close()

    with pumps(2) as (stubs, addresses):
        stubs[0].halting = True
        asyncio.run(main(stubs, addresses))


def writing(where: tuple[str, int], token: str, number: int, dies: Path) -> None:
    """Be a task; the first one that has written its files while `dies` exists is killed."""
    lake_files.FILE_ROWS_MIN = 3
    task = Fetcher(FetchSettings(filters=FilterConfig()))

    def answer(payload: bytes) -> bytes:
        made = task.answer(payload)
        with suppress(FileNotFoundError):
            dies.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    serve(where, token, number, answer, task.keep)


@pytest.mark.fault(
    "a task is killed between the files of a lake that it has written and its answer",
    "another task writes the files again; each line is in the log once",
    cases="1",
)
def test_a_task_that_is_killed_with_its_files_written_leaves_each_line_once(tmp_path: Path) -> None:
    spawn, dies = multiprocessing.get_context("spawn"), tmp_path / "dies"
    url, step = f"delta://{tmp_path}/{{}}?mode=changes&interval=0", held_step(STAMPS)
    point = Checkpoint(STAMPS[-1], BANK.jobs[-1].schema_version)
    dies.touch()

    async def main(sink: EventSink, addresses: list[str]) -> None:
        dispatcher, thread = Dispatcher(), SinkThread()
        await dispatcher.start()
        where = dispatcher.host, dispatcher.port
        tasks = [
            spawn.Process(target=writing, args=(where, dispatcher.token, i, dies)) for i in range(2)
        ]
        for task in tasks:
            task.start()
        try:
            await until(lambda: dispatcher.tasks == 2, 120)
            schemas, places = tracker(), {"p0": addresses[0], "p1": addresses[1]}
            owners = [f"p{k % 2}" for k in range(len(STAMPS))]
            batch = Fetching(7, "d", lambda: places, schemas).begin(1, of_pumps(STAMPS, owners))
            prepared = await Events(dispatcher, sink, thread, parts=2).prepare(batch)
            assert dispatcher.lost_tasks == 1
            await prepared(point)
        finally:
            for task in tasks:
                task.kill()
                task.join()
            await dispatcher.close()
            await thread.close(10)

    held = HeldBatch(1, step.tables, commit_ts=step.stamps, starts=step.starts)
    with (
        pumps(2) as (_, addresses),
        closing(open_event_sink(url.format("fetched"), cluster_id=7)) as fetched,
        closing(open_event_sink(url.format("held"), cluster_id=7)) as other,
    ):
        for sink in (fetched, other):
            sink.load_checkpoint()
            sink.look_at(tracker().catalog)
        asyncio.run(main(fetched, addresses))
        (events,) = event_units(held, other.encoding, 1)
        other.put([encoded_messages(events)], point)
    readers = [LakeReader(tmp_path / name) for name in ("fetched", "held")]
    for name in ("account", "entry"):
        lines, wanted = (reader.log("bank", name) for reader in readers)
        assert lines == wanted
        assert len(lines) > 20
    left = (tmp_path / "fetched/_penstock/incoming").glob("*/*/*.parquet")
    assert len(list(left)) == 2  # Of both tables, which no commit names.


@pytest.mark.fault(
    "a Pump breaks off while its rows are fetched, stays away, has not what it named, or"
    " sends it twice",
    "the task asks again, then the batch is given out again; stops with a hint; stops with a hint",
    cases="7",
)
def test_a_pump_that_breaks_off_is_asked_again_and_one_that_stays_away_is_named() -> None:
    task = fetcher()
    with pumps(2) as (stubs, addresses):
        asked = unit(addresses, STAMPS).encode()
        stubs[1].code, stubs[1].cut_after = grpc.StatusCode.UNAVAILABLE, 3
        healing = threading.Timer(0.5, lambda: setattr(stubs[1], "code", None))
        healing.start()
        assert sql(task.answer(asked)) == through_the_driver(STAMPS)
        healing.join()
        task.try_s = 0.1
        stubs[0].code, stubs[0].cut_after = grpc.StatusCode.UNAVAILABLE, 0
        with pytest.raises(Away, match=addresses[0]):
            decode_made(task.answer(asked))
        stubs[0].code = None
        assert sql(task.answer(asked)) == through_the_driver(STAMPS)


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.UNIMPLEMENTED]
)
def test_what_waiting_cannot_cure_is_reported_at_once(code: grpc.StatusCode) -> None:
    with pumps(1) as (stubs, addresses):
        stubs[0].code, stubs[0].cut_after = code, 0
        with pytest.raises(NeedsOperator, match=code.name):
            fetcher().answer(unit(addresses, STAMPS[:5]).encode())


def test_with_tls_a_task_shows_the_certificate_that_it_is_given_the_path_of(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pump, own = authority.issue("pump"), authority.issue("drainer")
    pem = str(own.ca), str(own.cert), str(own.key)
    task = Fetcher(FetchSettings(filters=FilterConfig(), pem=pem))
    task.keep(*packed_catalog(tracker()))
    with pumps(2, pump.tls) as (_, addresses):
        assert sql(task.answer(unit(addresses, STAMPS).encode())) == through_the_driver(STAMPS)


def test_a_pump_that_sends_a_transaction_twice_or_another_one_is_not_believed() -> None:
    with pumps(1) as (stubs, addresses):
        stubs[0].repeats = True
        with pytest.raises(NeedsOperator, match="where"):
            fetcher().answer(unit(addresses, STAMPS[:2]).encode())
        with pytest.raises(NeedsOperator, match="where 0"):
            fetcher().answer(unit(addresses, STAMPS[:1]).encode())


def test_without_its_catalog_a_unit_is_refused() -> None:
    with pytest.raises(Malformed, match="lacks the catalog"):
        fetcher().answer(unit(["127.0.0.1:1"], STAMPS[:1], catalog=5).encode())


def test_what_filters_leave_out_is_a_fact_and_no_state() -> None:
    rules = Rules(FilterConfig(ignore_dbs=("bank",)))
    selection = Selection(rules, tracker())
    binlogs = dict(BANK.binlogs)
    asked = unit(["x"], STAMPS)
    for _ in range(2):
        made, facts = statements_of(asked, [(ts, binlogs[ts]) for ts in STAMPS], selection)
        assert made == []
        assert (facts.rows, facts.skipped.total() > 50) == (0, True)
        assert {each[:2] for each in facts.skipped} == {("rows", "filter")}
        seen, again = facts, decode_made(encode_made(made, facts))
        assert again == ([], seen)


class Converting(Selection):
    """A selection whose tables have a column of another definition downstream."""

    def lookup(self, table_id: int, version: int) -> Target:
        target, policy = super().lookup(table_id, version), RowPolicy(frozenset(), None)
        return Screened(target, Loss(target[1].name, policy, converted=("id",)))


def test_batches_of_a_table_with_another_definition_downstream_share_the_table() -> None:
    binlogs = dict(BANK.binlogs)

    def touched(ts: int, selection: Selection) -> Digests:
        found: list[Digests] = []
        statements_of(unit(["x"], [ts]), [(ts, binlogs[ts])], selection, found)
        return merged(found)

    plain = Selection(Rules(), tracker())
    apart = [(a, b) for a, b in pairwise(STAMPS) if not touched(a, plain).shares(touched(b, plain))
             and touched(a, plain).tables == touched(b, plain).tables]  # fmt: skip
    converting = Converting(Rules(), tracker())
    assert apart
    assert all(touched(a, converting).shares(touched(b, converting)) for a, b in apart)


def test_a_rule_that_does_not_fit_a_table_stops_no_one_before_that_has_rows() -> None:
    unfit = ExpressionRule(schema="bank", table="other", insert_value_expr="nothing > 1")
    task = Fetcher(FetchSettings(filters=FilterConfig(expressions=(unfit,))))
    task.keep(*packed_catalog(tracker()))
    with pumps(1) as (_, addresses):
        assert sql(task.answer(unit(addresses, STAMPS).encode())) == through_the_driver(STAMPS)


def test_answers_and_units_that_were_cut_are_refused() -> None:
    whole = unit(["a"], STAMPS).encode()
    for data in (whole[:-1], whole[:10], b"PSTFETCH"):
        with pytest.raises(Malformed):
            FetchUnit.decode(data)
    answer = encode_made([], Facts(rows=1))
    with pytest.raises(Malformed):
        decode_made(answer[:-3])
    with pytest.raises(Away, match="gone"):
        decode_made(encode_away("gone"))


def test_the_planner_cuts_by_size_and_count_and_never_looks_inside() -> None:
    planner = Planner(lambda *_: pytest.fail("looked"), rows_max=3, bytes_max=100)
    remotes = [
        Remote(f"p{ts % 2}", size, ts - 1)
        for ts, size in enumerate((40, 50, 30, 500, 1, 1, 1, 1), 2)
    ]
    planner.offer(Merged(list(range(2, 10)), remotes, 1))
    steps = []
    while isinstance(step := planner.next_step() or planner.cut(), RowsStep):
        steps.append(step)
    assert [step.remote and step.remote.commit_ts for step in steps] == [
        [2, 3], [4], [5], [6, 7, 8], [9],
    ]  # fmt: skip
    assert steps[0].remote == of_pumps([2, 3], ["p0", "p1"], [40, 50])
    assert steps[0].remote.starts() == {2: TransactionStart(1), 3: TransactionStart(2)}
    assert [step.transactions for step in steps] == [2, 1, 1, 3, 1]


async def test_a_unit_names_only_pumps_that_have_some_of_its_transactions() -> None:
    remote = RemoteTransactions()
    remote.know(("gone", "p1", "idle", "p0"))
    for ts, pump in ((2, "p0"), (3, "p1"), (4, "p0")):
        remote.add(ts, pump, 1, start_ts=ts - 1)
    fetching = Fetching(7, "d", lambda: {"p0": "h:0", "p1": "h:1", "idle": "h:2"}, tracker())
    batch = fetching.begin(1, remote)
    found = FetchUnit.decode(batch._unit(1, {"dialect": "mysql"}).encode())
    assert [found.addresses[owner] for owner in found.owners] == ["h:0", "h:1", "h:0"]
    assert sorted(found.addresses) == ["h:0", "h:1"]
    await batch.catalog


def test_a_batch_never_mixes_rows_that_are_here_with_rows_that_are_on_a_pump() -> None:
    planner = Planner(Selection(Rules(), tracker()).lookup, rows_max=10**6, bytes_max=1 << 30)
    binlogs = dict(BANK.binlogs)
    payloads = [Remote("p", 5, ts - 1) if i % 4 < 2 else binlogs[ts] for i, ts in enumerate(STAMPS)]
    planner.offer(Merged(STAMPS, payloads, 1))
    seen = 0
    while (step := planner.next_step() or planner.cut()) is not None:
        assert isinstance(step, RowsStep)
        assert (step.remote is None) != (not step.tables)
        seen += step.transactions
    assert seen == len(STAMPS)


def test_copies_of_a_transaction_on_two_pumps_are_known_by_their_start_ts() -> None:
    merger = Merger(0)
    for pump in "ab":
        merger.add(pump)
        merger.push(pump, [5], [Remote(pump, 10, 4)])
    merged = merger.take()
    assert merged is not None
    assert len(merged.payloads) == 1
    assert merger.duplicates == 1
    for pump, start_ts in (("a", 6), ("b", 7)):
        merger.push(pump, [9], [Remote(pump, 10, start_ts)])
    with pytest.raises(NeedsOperator, match="different transactions"):
        merger.take()


def config(**changes: Any) -> DrainerConfig:
    spark = SparkConfig(master="spark://h:7077", payloads=changes.pop("payloads", "auto"))
    return DrainerConfig(**{"spark": spark, **changes})


def test_a_cluster_s_executors_fetch_unless_something_needs_the_rows_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert fetch_settings(config()) is not None
    assert fetch_settings(config(payloads="driver")) is None
    assert fetch_settings(DrainerConfig()) is None
    assert fetch_settings(DrainerConfig(spark=SparkConfig(payloads="executors"))) is not None
    pem = SecurityConfig(ssl_ca="a", ssl_cert="b", ssl_key="c")
    assert fetch_settings(config(security=pem)) is None
    assert "PEM" in caplog.text
    settings = fetch_settings(config(security=pem, payloads="executors"))
    assert settings is not None
    assert settings.pem == ("a", "b", "c")
    for needed in (
        {"relay": RelayConfig(log_dir="r")},
        {"apply": ApplyConfig(strategy="statements")},
        {"pd_address": "http://127.0.0.1:2379"},
    ):
        assert fetch_settings(config(payloads="executors", **needed)) is None
    assert "relay log" in caplog.text
    assert "strategy statements" in caplog.text
    assert "a DDL before its binlog" in caplog.text
    with pytest.raises(NeedsOperator):
        config(payloads="both")


def test_tasks_commit_in_mode_parallel_on_several_connections_of_a_server() -> None:
    parallel = ApplyConfig(mode="parallel", connections=2)
    server = "mysql://u:secret@h:3306/"
    settings = commit_settings(config(sink=server, apply=parallel))
    assert settings is not None
    assert b"secret" not in pickle.dumps(settings)
    for other in (
        {"sink": server},
        {"sink": server, "apply": ApplyConfig(mode="parallel", connections=1)},
        {"sink": "sqlite:///a.db", "apply": parallel},
    ):
        assert commit_settings(config(**other)) is None
