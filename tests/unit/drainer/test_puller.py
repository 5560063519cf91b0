import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from drainer.intake.merger import Merger
from drainer.intake.payload import Payload
from drainer.intake.puller import Puller, Who
from drainer.intake.pump_set import Pumps
from drainer.intake.spool import Spool
from penstock.cluster.node_registry import NodeState, NodeStatus
from penstock.cluster.records import LastWord, LostPump
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.node.output import lines_of
from penstock.pb import penstock_pb2, pump_pb2
from penstock.waiting import doubling
from penstock.wire.binlog import Binlog, BinlogType, fake_binlog
from penstock.wire.codec import encode_binlog
from tests.kit.wait import until


class FakePump:
    """A Pump that streams what the test gave it, and remembers what it was asked for."""

    def __init__(self, *commit_ts: int, batched: bool = True) -> None:
        self._commit_ts = list(commit_ts)
        self._changed = asyncio.Event()
        self.batched = batched
        self.asked: list[int] = []
        self.port = 0
        self.break_after = 10**9
        self.abort: tuple[grpc.StatusCode, str] | None = None
        self.sent = 0
        self._server: Any = None
        self.payload: Callable[[int], bytes] = lambda ts: b"%d" % ts
        self.advances = True
        self.asked_to_pass: list[int] = []
        self.on_advance: Callable[[int], None] = lambda past_ts: None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(self, *commit_ts: int) -> None:
        self.hold(*self._commit_ts, *commit_ts)

    def hold(self, *commit_ts: int) -> None:
        self._commit_ts = list(commit_ts)
        self._changed.set()
        self._changed = asyncio.Event()

    async def start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        pull = grpc.unary_stream_rpc_method_handler(
            self.pull,
            request_deserializer=penstock_pb2.PullRequest.FromString,
            response_serializer=penstock_pb2.PullBatch.SerializeToString,
        )
        single = grpc.unary_stream_rpc_method_handler(
            self.pull_binlogs,
            request_deserializer=pump_pb2.PullBinlogReq.FromString,
            response_serializer=pump_pb2.PullBinlogResp.SerializeToString,
        )
        handlers = {"binlog.Pump": {"PullBinlogs": single}}
        if self.batched:
            handlers["penstock.Pump"] = {"Pull": pull}
        if self.batched and self.advances:
            handlers["penstock.Pump"]["Advance"] = grpc.unary_unary_rpc_method_handler(
                self.advance,
                request_deserializer=penstock_pb2.AdvanceRequest.FromString,
                response_serializer=penstock_pb2.AdvanceReply.SerializeToString,
            )
        for name, methods in handlers.items():
            handler = grpc.method_handlers_generic_handler(name, methods)
            self._server.add_generic_rpc_handlers((handler,))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def pull(self, request: Any, context: Any) -> AsyncIterator[Any]:
        assert (request.cluster_id, request.drainer_id, request.pieces) == (7, "d", True)
        async for ts in self._after(request.after_ts, context):
            yield penstock_pb2.PullBatch(payloads=[self.payload(ts)], commit_ts=[ts])

    async def advance(self, request: Any, context: Any) -> Any:
        assert request.cluster_id == 7
        self.asked_to_pass.append(request.past_ts)
        self.on_advance(request.past_ts)
        return penstock_pb2.AdvanceReply()

    async def pull_binlogs(self, request: Any, context: Any) -> AsyncIterator[Any]:
        assert request.clusterID == 7
        async for ts in self._after(request.startFrom.offset, context):
            entity = pump_pb2.Entity(payload=self.payload(ts), meta=pump_pb2.Meta(commitTs=ts))
            yield pump_pb2.PullBinlogResp(entity=entity)

    async def _after(self, after_ts: int, context: Any) -> AsyncIterator[int]:
        self.asked.append(after_ts)
        if self.abort:
            await context.abort(*self.abort)
        while True:
            changed = self._changed
            for ts in [ts for ts in self._commit_ts if ts > after_ts]:
                if self.sent >= self.break_after:
                    self.sent = 0
                    return
                self.sent += 1
                after_ts = ts
                yield ts
            await changed.wait()


class Received:
    """What a puller delivered, as the merge would take it."""

    def __init__(self) -> None:
        self.commit_ts: list[int] = []
        self.breaks = 0

    def broke(self) -> None:
        self.breaks += 1

    def received_ts(self, pump: str) -> int:
        return self.commit_ts[-1] if self.commit_ts else 0

    async def receive(
        self, pump: str, commit_ts: Sequence[int], payloads: Sequence[Payload]
    ) -> None:
        assert [b"%d" % ts for ts in commit_ts] == list(payloads)
        self.commit_ts += commit_ts

    async def until(self, last: int) -> None:
        await until(lambda: bool(self.commit_ts) and self.commit_ts[-1] >= last)


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spool:
    made = Spool(tmp_path / "spool", bytes_max=1000)
    monkeypatch.setattr(f"{__name__}.WHO", replace(WHO, spool=made))
    return made


WHO = Who(7, "d", None)  # type: ignore[arg-type]  # Each test has a spool of its own.


@asynccontextmanager
async def pulling(
    pump: FakePump, **patience: Any
) -> AsyncIterator[tuple[Received, asyncio.Task[None]]]:
    await pump.start()
    received = Received()
    puller = Puller("p", pump.address, replace(WHO, **patience), received)
    puller.on_break = received.broke
    task = asyncio.create_task(puller.run())
    try:
        yield received, task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, NeedsOperator):
            await task
        await pump.stop()


@pytest.mark.parametrize("batched", [True, False], ids=["penstock", "tidb-binlog"])
async def test_streams_that_break_all_the_time_lose_and_repeat_nothing(batched: bool) -> None:
    pump = FakePump(*range(1, 60), batched=batched)
    pump.break_after = 7
    async with pulling(pump, retry_s_min=0.001) as (received, _):
        await received.until(59)
        assert received.commit_ts == list(range(1, 60))
        assert len(pump.asked) > 5


async def test_a_pump_that_comes_back_is_pulled_from_where_it_was_after_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses_s: list[float] = []

    def noted(first_s: float, longest_s: float) -> Iterator[float]:
        for pause_s in doubling(first_s, longest_s):
            pauses_s.append(pause_s)
            yield pause_s

    monkeypatch.setattr("drainer.intake.puller.doubling", noted)
    pump = FakePump(1, 2, 3)
    async with pulling(pump) as (received, _):
        await received.until(3)
        await pump.stop()
        await until(lambda: received.breaks >= 5)
        pump.add(4)
        await pump.start()
        await received.until(4)
        assert pump.asked[-1] == 3
    assert pauses_s[:5] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert set(pauses_s[5:]) <= {1.0}


async def test_a_pump_that_is_elsewhere_is_pulled_there_without_a_pause() -> None:
    before, after, received = FakePump(1, 2), FakePump(1, 2, 3), Received()
    await before.start()
    await after.start()
    puller = Puller("p", before.address, replace(WHO, retry_s_min=60.0), received)
    puller.on_break = received.broke
    task = asyncio.create_task(puller.run())
    await received.until(2)
    await before.stop()
    await until(lambda: received.breaks > 0)
    puller.address = after.address
    await received.until(3)
    assert after.asked == [2]
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await after.stop()


@pytest.mark.fault(
    "requests of another cluster: a Drainer of another cluster", "exit code 2", cases="1"
)
@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.FAILED_PRECONDITION],
)
async def test_purged_damaged_or_foreign_binlogs_stop_the_drainer(code: grpc.StatusCode) -> None:
    pump = FakePump(1)
    pump.abort = (code, "the reason")
    async with pulling(pump) as (_, task):
        with pytest.raises(NeedsOperator, match="the reason"):
            await task


async def test_a_mute_stream_is_abandoned_and_opened_again() -> None:
    pump = FakePump(1)
    async with pulling(pump, silence_s_max=0.1) as (received, _):
        await received.until(1)
        await until(lambda: len(pump.asked) >= 3)
        assert received.commit_ts == [1]


class Cluster:
    """The registry's list of Pumps, as a pass reads it."""

    def __init__(self) -> None:
        self.statuses: dict[str, NodeStatus] = {}
        self.is_away = False
        self.passes = 0
        self.lost: Mapping[str, LostPump] = {}
        self.last_words: Mapping[str, LastWord] = {}
        self.entered: Mapping[str, int] = {}

    def now_ts(self) -> int:
        return 0

    def put(self, name: str, address: str, state: NodeState, max_commit_ts: int = 0) -> None:
        self.statuses[name] = NodeStatus(
            node_id=name, host=address, state=state, max_commit_ts=max_commit_ts
        )

    def stop(self, name: str, up_to_ts: int, open_count: int = 0) -> None:
        self.put(name, self.statuses[name].host, NodeState.OFFLINE, up_to_ts)
        word = LastWord(pump=name, up_to_ts=up_to_ts, open_count=open_count, made="today")
        self.last_words = {**self.last_words, name: word}

    async def list_again(self, pump: NodeStatus) -> None:
        self.statuses[pump.node_id] = pump

    async def publish_and_list(self) -> list[NodeStatus]:
        self.passes += 1
        if self.is_away:
            raise Retryable("etcd is away", code=Code.ETCD_AWAY)
        return list(self.statuses.values())


@asynccontextmanager
async def pumps_of(
    cluster: Cluster,
    merger: Merger,
    room_bytes: int = 1 << 20,
    participants: Mapping[str, int] | None = None,
    **options: Any,
) -> AsyncIterator[Pumps]:
    pumps = Pumps(merger, cluster, WHO, room_bytes, participants, **options)
    try:
        yield pumps
    finally:
        await pumps.close()


async def merged(merger: Merger, pumps: Pumps, last: int) -> list[int]:
    """Take from the merge until `last` has come."""
    out: list[int] = []
    async with asyncio.timeout(10):
        while not out or out[-1] < last:
            pumps.arrived.clear()
            part = pumps.take()
            if part is None:
                pumps.hurry()
                await pumps.arrived.wait()
            else:
                out += part.commit_ts
    return out


async def test_a_pump_is_in_the_merge_when_the_pass_that_found_it_returns() -> None:
    cluster, merger = Cluster(), Merger(5)
    async with pumps_of(cluster, merger) as pumps:
        cluster.put("a", "127.0.0.1:1", NodeState.PAUSED)
        cluster.put("gone", "127.0.0.1:2", NodeState.OFFLINE)
        await pumps.refresh()
        assert (merger.sources, merger.watermark) == (["a"], 5)


async def test_a_dead_pump_holds_the_others_and_is_named_with_the_low_water(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, merger = Cluster(), Merger(0)
    alive = FakePump(1, 3, 5)
    await alive.start()
    async with pumps_of(cluster, merger) as pumps:
        pumps.watch.warn_s = 0.05
        cluster.put("alive", alive.address, NodeState.ONLINE)
        cluster.put("dead", "127.0.0.1:1", NodeState.ONLINE)
        watch = asyncio.create_task(pumps.run(0.02))
        await until(lambda: "has waited" in caplog.text)
        assert merger.take() is None
        watch.cancel()
        await asyncio.wait((watch,))
    await alive.stop()
    assert "Pump dead (online" in caplog.text
    assert "low water 0" in caplog.text


def binlog_at(ts: int, *, is_fake: bool = False) -> bytes:
    if is_fake:
        return encode_binlog(fake_binlog(ts))
    return encode_binlog(Binlog(tp=BinlogType.COMMIT, start_ts=ts - 1, commit_ts=ts))


@asynccontextmanager
async def two_pumps(
    cluster: Cluster, merger: Merger, participants: Mapping[str, int] | None = None
) -> AsyncIterator[tuple[Pumps, FakePump, FakePump]]:
    a, b = FakePump(1, 3, 5), FakePump(2, 4)
    a.payload = b.payload = binlog_at
    await a.start()
    await b.start()
    try:
        async with pumps_of(cluster, merger, participants=participants) as pumps:
            cluster.put("a", a.address, NodeState.ONLINE)
            cluster.put("b", b.address, NodeState.ONLINE)
            yield pumps, a, b
    finally:
        await a.stop()
        await b.stop()


async def test_a_pump_that_is_offline_by_its_own_word_leaves_when_all_of_it_is_here() -> None:
    cluster, merger = Cluster(), Merger(0)
    async with two_pumps(cluster, merger) as (pumps, _, _):
        await pumps.refresh()
        assert pumps.participants() == {"a": 0, "b": 0}
        assert await merged(merger, pumps, 4) == [1, 2, 3, 4]
        cluster.stop("b", 4)
        await pumps.refresh()
        assert await merged(merger, pumps, 5) == [5]
        assert merger.sources == ["a"]
        assert pumps.participants() == {"a": 0, "b": 4}
        cluster.put("b", "127.0.0.1:1", NodeState.OFFLINE, max_commit_ts=9)
        cluster.last_words = {}  # It starts, and has withdrawn its word.
        await pumps.refresh()
        assert merger.sources == ["a"]


@pytest.mark.fault(
    "a Pump's state or entry in etcd is changed by somebody else, also before a Drainer starts",
    "it stays in the merge until its own last word says that all of it is here; what is known"
    " to be missing stops the Drainer with the range",
    cases="11",
)
@pytest.mark.parametrize("open_count", [None, 1])
async def test_a_pump_that_somebody_else_calls_offline_stays_in_the_merge(
    open_count: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, merger = Cluster(), Merger(0)
    async with two_pumps(cluster, merger) as (pumps, _, b):
        await pumps.refresh()
        assert await merged(merger, pumps, 4) == [1, 2, 3, 4]
        cluster.put("b", b.address, NodeState.OFFLINE, max_commit_ts=4)
        if open_count is not None:
            cluster.stop("b", 4, open_count)
        await pumps.refresh()
        await pumps.refresh()
        b.add(6, 7)
        assert await merged(merger, pumps, 5) == [5]
        assert merger.sources == ["a", "b"]
        assert pumps.participants() == {"a": 0, "b": 0}
    assert caplog.text.count("was its state changed by hand?") == 1


async def test_a_pump_that_is_offline_with_more_than_the_drainer_has_stops_it_with_the_range() -> (
    None
):
    cluster, merger = Cluster(), Merger(0)
    async with two_pumps(cluster, merger) as (pumps, _, _):
        await pumps.refresh()
        assert await merged(merger, pumps, 4) == [1, 2, 3, 4]
        cluster.stop("b", 9)
        with pytest.raises(NeedsOperator, match=r"offline .* in \(4, 9\] are missing"):
            await pumps.refresh()


async def test_a_drainer_that_starts_misses_an_offline_pump_that_it_had_not_drained() -> None:
    cluster = Cluster()
    async with two_pumps(cluster, merger := Merger(4), {"a": 0, "b": 0}) as (pumps, _, b):
        cluster.put("b", b.address, NodeState.OFFLINE, max_commit_ts=4)
        await pumps.refresh()  # It never said so itself.
        assert merger.sources == ["a", "b"]
    async with two_pumps(cluster, merger := Merger(4), {"a": 0, "b": 0}) as (pumps, _, _):
        cluster.stop("b", 4)
        await pumps.refresh()
        assert (merger.sources, pumps.participants()) == (["a"], {"a": 0})
    for participants in ({"a": 0, "b": 0}, {}):
        async with two_pumps(cluster, Merger(3), participants) as (pumps, _, _):
            cluster.stop("b", 4)
            with pytest.raises(NeedsOperator, match=r"in \(3, 4\] are missing"):
                await pumps.refresh()
    cluster.last_words = {}
    async with two_pumps(cluster, merger := Merger(4)) as (pumps, _, b):
        cluster.entered = {"b": 1}
        cluster.put("b", b.address, NodeState.OFFLINE, max_commit_ts=4)
        await pumps.refresh()  # It has entered, and not left.
        assert merger.sources == ["a", "b"]
        cluster.entered = {}
    async with two_pumps(cluster, merger := Merger(4)) as (pumps, _, b):
        cluster.put("b", b.address, NodeState.OFFLINE, max_commit_ts=4)
        await pumps.refresh()  # Gone before this version, or of TiDB-Binlog.
        assert merger.sources == ["a"]


async def test_a_pump_that_a_restored_etcd_lists_again_is_pulled_from_where_it_left() -> None:
    cluster, merger = Cluster(), Merger(5)
    cluster.entered = {"a": 0, "b": 0}  # As etcd was before "b" left at 4.
    async with two_pumps(cluster, merger, {"a": 0, "b": 4}) as (pumps, _, _):
        await pumps.refresh()
        assert merger.received_ts("b") == 4
        assert pumps.participants() == {"a": 0, "b": 4}


async def test_a_pump_that_came_back_and_was_killed_is_waited_for_whatever_etcd_says() -> None:
    cluster, stood = Cluster(), {"a": 0, "b": 4}
    for entered, sources in (({"b": 1}, ["a", "b"]), ({}, ["a"])):
        async with two_pumps(cluster, merger := Merger(4), stood) as (pumps, _, b):
            cluster.entered = entered
            cluster.put("b", b.address, NodeState.OFFLINE, max_commit_ts=4)
            await pumps.refresh()  # Its word was withdrawn as it started again.
            assert merger.sources == sources


async def test_a_pump_that_was_let_go_but_never_left_comes_back_from_there_after_a_restart() -> (
    None
):
    cluster = Cluster()
    cluster.entered = {"a": 1, "b": 1}
    async with two_pumps(cluster, merger := Merger(0)) as (pumps, _, b):
        await pumps.refresh()
        assert await merged(merger, pumps, 4) == [1, 2, 3, 4]
        cluster.stop("b", 4)  # It is only paused: someone else has written that it is offline.
        await pumps.refresh()
        assert await merged(merger, pumps, 5) == [5]
        participants = pumps.participants()
        assert participants == {"a": 0, "b": 4}
    cluster.last_words = {}
    async with two_pumps(cluster, merger := Merger(5), participants) as (pumps, a, b):
        b.add(6)
        a.add(7)
        await pumps.refresh()
        assert await merged(merger, pumps, 6) == [6]
        assert pumps.participants() == {"a": 0, "b": 0}


async def test_a_pump_of_tidb_binlog_leaves_by_its_state_also_while_no_drainer_runs() -> None:
    cluster, merger, old = Cluster(), Merger(0), FakePump(1, 2, 4, batched=False)
    old.payload = binlog_at
    await old.start()
    try:
        async with pumps_of(cluster, merger) as pumps:
            cluster.put("old", old.address, NodeState.ONLINE)
            await pumps.refresh()
            assert await merged(merger, pumps, 4) == [1, 2, 4]
            participants = pumps.participants()
            assert participants == {}
        # A Drainer that starts knows by its last status what it held.
        cluster.put("old", old.address, NodeState.OFFLINE, max_commit_ts=4)
        async with pumps_of(cluster, merger := Merger(4), participants=participants) as pumps:
            await pumps.refresh()
            assert merger.sources == []
        async with pumps_of(cluster, Merger(3), participants=participants) as pumps:
            with pytest.raises(NeedsOperator, match=r"in \(3, 4\] are missing"):
                await pumps.refresh()
    finally:
        await old.stop()


async def test_a_pump_that_etcd_forgot_is_listed_again_and_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    async with two_pumps(cluster, merger := Merger(1), {"a": 0, "b": 0}) as (pumps, _, b):
        del cluster.statuses["b"]
        await pumps.refresh()
        assert merger.sources == ["a", "b"]
        assert cluster.statuses["b"].state is NodeState.PAUSED
        cluster.put("b", b.address, NodeState.ONLINE)
        await pumps.refresh()
        assert await merged(merger, pumps, 4) == [2, 3, 4]
    assert "Pump b took part up to the checkpoint, and etcd does not list it" in caplog.text


@pytest.mark.parametrize("participants", [{}, {"a": 0}])
async def test_a_pump_that_was_not_listed_in_time_shows_what_was_missed(
    participants: dict[str, int],
) -> None:
    cluster, merger = Cluster(), Merger(1)
    async with two_pumps(cluster, merger, participants) as (pumps, _, b):
        status = cluster.statuses.pop("b")
        await pumps.refresh()
        assert await merged(merger, pumps, 5) == [3, 5]
        cluster.statuses["b"], cluster.entered = status, {"b": 2}
        b.hold(2, 4, 6)
        with pytest.raises(NeedsOperator, match=r"transaction 4, .* of \(2, 5\] is not"):
            await pumps.run(0.02)
    cluster, merger = Cluster(), Merger(1)
    async with two_pumps(cluster, merger, participants) as (pumps, a, b):
        status = cluster.statuses.pop("b")
        await pumps.refresh()
        assert await merged(merger, pumps, 5) == [3, 5]
        cluster.statuses["b"], cluster.entered = status, {"b": 4}
        b.hold(2, 6)  # What it took before it was offline, and since.
        a.add(7)
        await pumps.refresh()
        assert await merged(merger, pumps, 6) == [6]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
async def test_a_pump_that_the_drainer_continued_without_is_pulled_from_where_it_was_left(
    restarted: bool, ignored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def comes_back(pumps: Pumps, merger: Merger) -> None:
        watch = asyncio.create_task(pumps.run(0.02))
        if ignored:
            assert await merged(merger, pumps, 10) == [10]
            assert merger.late == 1
            watch.cancel()
            await asyncio.wait((watch,))
            return
        with pytest.raises(NeedsOperator, match=r"transaction 6, .* of \([45], 8\] is not downstr"):
            await watch

    cluster = Cluster()
    seen_to = frozenset({6}) if ignored else frozenset[int]()
    merger = Merger(0, seen_to)
    async with two_pumps(cluster, merger) as (pumps, a, b):
        await pumps.refresh()
        assert await merged(merger, pumps, 4) == [1, 2, 3, 4]
        cluster.lost = {"b": LostPump(pump="b", after_ts=4, up_to_ts=9, made="today")}
        await pumps.refresh()
        b.add(6, 10)
        a.add(8)
        assert await merged(merger, pumps, 8) == [5, 8]
        participants = pumps.participants()
        assert participants == {"a": 0, "b": 4}
        cluster.lost = {}  # Somebody deletes the decision, and the Pump comes back.
        b.payload = lambda ts: binlog_at(ts, is_fake=ts == 5)
        b.hold(2, 4, 5, 6, 10)
        a.add(11)
        if not restarted:
            await comes_back(pumps, merger)
            return
    async with two_pumps(cluster, merger := Merger(8, seen_to), participants) as (pumps, a, b):
        a.hold(1, 3, 5, 8, 11)
        b.hold(2, 4, 5, 6, 10)
        b.payload = lambda ts: binlog_at(ts, is_fake=ts == 5)
        await comes_back(pumps, merger)


async def test_a_lost_pump_is_left_out_and_what_it_had_sent_is_emitted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, merger = Cluster(), Merger(0)
    a, b = FakePump(1, 3, 5), FakePump(2, 4)
    await a.start()
    await b.start()
    async with pumps_of(cluster, merger) as pumps:
        cluster.put("a", a.address, NodeState.ONLINE)
        cluster.put("b", b.address, NodeState.ONLINE)
        await pumps.refresh()
        await until(lambda: merger.received_ts("a") == 5 and merger.received_ts("b") == 4)
        await b.stop()
        cluster.lost = {"b": LostPump(pump="b", after_ts=4, up_to_ts=9, made="today")}
        await pumps.refresh()
        assert await merged(merger, pumps, 5) == [1, 2, 3, 4, 5]
        assert merger.sources == ["a"]
        assert "(4, 9] is lost to this Drainer" in lines_of(pumps.facts())["pump b"]
        assert lines_of(pumps.facts())["pump b received_ts"] == "4"
    await a.stop()
    assert "what it held of (4, 9] is lost to this Drainer for good" in caplog.text


@pytest.mark.fault(
    "a Pump's disk is gone for good: a Drainer that starts later, behind, in and after the range",
    "refused with the range, continues, continues without a word",
    cases="3",
)
@pytest.mark.parametrize(("checkpoint_ts", "is_refused"), [(3, True), (4, False), (9, False)])
async def test_a_drainer_that_starts_after_a_pump_was_lost_loses_no_more_than_was_accepted(
    checkpoint_ts: int, is_refused: bool
) -> None:
    cluster, merger = Cluster(), Merger(checkpoint_ts)
    cluster.put("b", "127.0.0.1:1", NodeState.OFFLINE)
    cluster.lost = {"b": LostPump(pump="b", after_ts=4, up_to_ts=9, made="today")}
    async with pumps_of(cluster, merger) as pumps:
        if is_refused:
            with pytest.raises(NeedsOperator, match=r"\(3, 9\] are gone"):
                await pumps.refresh()
        else:
            await pumps.refresh()
            assert merger.sources == []
            assert ("pump b" in lines_of(pumps.facts())) == (checkpoint_ts < 9)


async def test_what_a_lost_pump_had_sent_but_was_not_downstream_is_lost_with_the_drainers_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, merger = Cluster(), Merger(3)
    cluster.put("b", "127.0.0.1:1", NodeState.OFFLINE)
    cluster.lost = {"b": LostPump(pump="b", after_ts=0, up_to_ts=9, made="today")}
    async with pumps_of(cluster, merger, participants={"b": 7}) as pumps:
        await pumps.refresh()
        assert "(3, 9] is lost to this Drainer" in lines_of(pumps.facts())["pump b"]
    assert "what it held of (3, 9] is lost" in caplog.text


async def test_a_fast_pump_waits_for_room_and_the_slow_one_always_has_some() -> None:
    cluster, merger = Cluster(), Merger(0)
    fast, slow = FakePump(*range(1, 2000)), FakePump()
    await fast.start()
    await slow.start()
    async with pumps_of(cluster, merger, room_bytes=20_000) as pumps:
        cluster.put("fast", fast.address, NodeState.ONLINE)
        cluster.put("slow", slow.address, NodeState.ONLINE)
        await pumps.refresh()
        await until(lambda: merger.bytes_of("fast") >= 10_000)
        await until(lambda: fast.sent == 1999)  # Most of it waits on the way.
        assert merger.bytes_of("fast") < 10_000 + 200
        slow.add(5000)
        assert await merged(merger, pumps, 1999) == list(range(1, 2000))
    await fast.stop()
    await slow.stop()


async def test_what_arrives_after_a_long_freeze_waits_for_a_fresh_list_of_pumps() -> None:
    clock_s = 100.0
    cluster, merger = Cluster(), Merger(0)
    old, new = FakePump(1), FakePump(8)
    await old.start()
    await new.start()
    async with pumps_of(cluster, merger, clock=lambda: clock_s) as pumps:
        cluster.put("old", old.address, NodeState.ONLINE)
        await pumps.refresh()
        assert await merged(merger, pumps, 1) == [1]
        # The Drainer freezes; a Pump joins that took it for dead and did not notify it.
        clock_s += 60
        cluster.put("new", new.address, NodeState.ONLINE)
        old.add(9)
        await until(lambda: "old" in pumps._waiting)
        assert merger.received_ts("old") == 1
        await pumps.refresh()
        assert await merged(merger, pumps, 8) == [8]
        new.add(10)
        assert await merged(merger, pumps, 9) == [9]
    await old.stop()
    await new.stop()


async def test_without_etcd_passes_continue_and_nothing_joins_or_leaves() -> None:
    cluster, merger = Cluster(), Merger(0)
    async with pumps_of(cluster, merger) as pumps:
        cluster.put("a", "127.0.0.1:1", NodeState.ONLINE)
        await pumps.refresh()
        cluster.is_away = True
        watch = asyncio.create_task(pumps.run(0.01))
        await until(lambda: cluster.passes >= 5)
        assert merger.sources == ["a"]
        watch.cancel()
        await asyncio.wait((watch,))


async def test_a_drainer_that_ends_shows_that_it_is_alive_and_follows_no_pump_any_more() -> None:
    cluster, merger = Cluster(), Merger(0)
    async with pumps_of(cluster, merger) as pumps:
        cluster.put("a", "127.0.0.1:1", NodeState.ONLINE)
        await pumps.refresh()
        await pumps.close()
        cluster.put("b", "127.0.0.1:2", NodeState.ONLINE)
        await pumps.refresh()
        assert (cluster.passes, merger.sources) == (2, ["a"])


async def test_a_failure_that_no_retry_cures_ends_the_passes() -> None:
    cluster, merger = Cluster(), Merger(0)
    pump = FakePump()
    pump.abort = (grpc.StatusCode.OUT_OF_RANGE, "purged")
    await pump.start()
    async with pumps_of(cluster, merger) as pumps:
        cluster.put("a", pump.address, NodeState.ONLINE)
        with pytest.raises(NeedsOperator, match="purged"):
            await pumps.run(0.01)
    await pump.stop()


@asynccontextmanager
async def busy_and_quiet(quiet: FakePump) -> AsyncIterator[tuple[FakePump, Merger, Pumps]]:
    """Two Pumps that are pulled: one that has just sent fake binlogs, and the quiet one."""
    busy, cluster, merger = FakePump(), Cluster(), Merger(0)
    busy.payload = quiet.payload = lambda ts: encode_binlog(fake_binlog(ts))
    busy.add(1)
    quiet.add(2)
    await asyncio.gather(busy.start(), quiet.start())
    try:
        async with pumps_of(cluster, merger) as pumps:
            cluster.put("busy", busy.address, NodeState.ONLINE)
            cluster.put("quiet", quiet.address, NodeState.ONLINE)
            await pumps.refresh()
            await merged(merger, pumps, 1)
            yield busy, merger, pumps
    finally:
        await asyncio.gather(busy.stop(), quiet.stop())


async def test_a_pump_that_holds_back_a_transaction_is_asked_to_move_on() -> None:
    quiet = FakePump()
    quiet.on_advance = lambda past_ts: quiet.add(past_ts + 10)
    async with busy_and_quiet(quiet) as (busy, merger, pumps):
        busy.payload = lambda ts: b"a transaction" * 9
        busy.add(20)
        assert (await merged(merger, pumps, 20))[-1] == 20
        assert quiet.asked_to_pass == [20]
        assert busy.asked_to_pass == [], "who has sent it holds nothing back"


async def test_no_pump_is_asked_to_move_on_for_the_sake_of_a_fake_binlog() -> None:
    quiet = FakePump()
    async with busy_and_quiet(quiet) as (busy, merger, pumps):
        for ts in range(20, 30):
            busy.add(ts)
            await until(lambda ts=ts: merger.received_ts("busy") == ts)  # type: ignore[misc]
            pumps.hurry()
        quiet.add(40)
        await merged(merger, pumps, 29)
        assert quiet.asked_to_pass == []


async def test_a_pump_with_an_open_transaction_is_not_asked_again_and_again() -> None:
    quiet = FakePump()
    async with busy_and_quiet(quiet) as (busy, merger, pumps):
        busy.payload = lambda ts: b"a transaction" * 9
        began_s = asyncio.get_running_loop().time()
        for ts in range(20, 60):
            busy.add(ts)
            await until(lambda ts=ts: merger.received_ts("busy") == ts)  # type: ignore[misc]
            pumps.hurry()
        await until(lambda: bool(quiet.asked_to_pass))
        took_s = asyncio.get_running_loop().time() - began_s
        assert len(quiet.asked_to_pass) <= 2 + took_s / 0.1
        quiet.add(70)
        assert (await merged(merger, pumps, 59))[-1] == 59


async def test_a_pump_of_an_earlier_version_is_pulled_all_the_same() -> None:
    quiet = FakePump()
    quiet.advances = False
    async with busy_and_quiet(quiet) as (busy, merger, pumps):
        busy.payload = lambda ts: b"a transaction" * 9
        busy.add(20)
        await until(lambda: merger.received_ts("busy") == 20)
        quiet.add(30)
        await merged(merger, pumps, 20)
        busy.add(40)
        quiet.add(50)
        assert (await merged(merger, pumps, 40))[-1] == 40
