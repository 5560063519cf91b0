"""What a Pump asks of PD and TiKV over gRPC, while regions, leaders, stores and PDs change."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from penstock.errors import NeedsOperator, Retryable
from penstock.oracle.client import OracleClient, PdLeader, pd_tls_of
from penstock.pb import tikvpb_pb2
from penstock.security.tls import Tls
from pump.tikv import Channels, Placement, State, Tikv, TransactionStatus
from tests.kit.fakes.scripted_tidb import (
    CLUSTER_ID,
    FIRST_REGION,
    Fate,
    TidbCluster,
    meta_key,
    row_key,
)
from tests.kit.servers.authority import Authority

KEY, OTHER = row_key(42, 7), row_key(42, 1_000)
T = TypeVar("T")


@pytest.fixture
def cluster() -> Iterator[TidbCluster]:
    with TidbCluster() as found:
        yield found


def begun(cluster: TidbCluster, fate: Fate | None = None, key: bytes = KEY) -> int:
    start_ts = cluster.next_ts()
    if fate is not None:
        cluster.fates[key, start_ts] = fate
    return start_ts


def use(
    cluster: TidbCluster,
    do: Callable[[Tikv], Coroutine[Any, Any, T]],
    *,
    timeout_s: float = 10.0,
    tls: Tls | None = None,
) -> T:
    async def main() -> T:
        channels = Channels(tls)
        placement = Placement(PdLeader(cluster.url, tls), channels)
        tikv = Tikv(placement, channels, timeout_s=timeout_s)
        try:
            return await do(tikv)
        finally:
            await tikv.close()

    return asyncio.run(main())


def status(
    cluster: TidbCluster, start_ts: int, key: bytes = KEY, **options: Any
) -> TransactionStatus:
    forbid = options.pop("forbid", False)
    now_ts = cluster.next_ts()
    return use(cluster, lambda tikv: tikv.status(key, start_ts, now_ts, forbid=forbid), **options)


@pytest.mark.parametrize("key", [KEY, meta_key()])
def test_a_commit_is_found_at_the_key_of_a_row_and_of_a_ddl_job(
    cluster: TidbCluster, key: bytes
) -> None:
    start_ts = begun(cluster)
    cluster.fates[key, start_ts] = Fate(commit_ts=start_ts + 9)
    assert status(cluster, start_ts, key) == TransactionStatus(State.COMMITTED, start_ts + 9)
    (asked,) = cluster.asked()
    assert (asked.primary_key, asked.caller_start_ts) == (key, 0)
    assert asked.verify_is_primary


def test_locks_rollbacks_and_absences_are_distinguished(cluster: TidbCluster) -> None:
    assert status(cluster, begun(cluster, Fate(ttl_ms=60_000))) == TransactionStatus(
        State.LOCKED, ttl_ms=60_000
    )
    assert status(cluster, begun(cluster, Fate(is_rolled_back=True))).state is State.ROLLED_BACK
    absent = begun(cluster)
    assert status(cluster, absent).state is State.ABSENT
    assert status(cluster, absent).state is State.ABSENT, "asking alone forbids nothing"
    assert status(cluster, absent, forbid=True).state is State.ROLLED_BACK
    assert cluster.fates[KEY, absent].is_rolled_back


def test_a_lock_ends_with_its_time_to_live_by_pd_s_clock(cluster: TidbCluster) -> None:
    start_ts = begun(cluster, Fate(ttl_ms=20_000))
    assert status(cluster, start_ts).state is State.LOCKED
    cluster.ahead_ms = 20_100
    assert status(cluster, start_ts).state is State.ROLLED_BACK


REGION_ERRORS = [
    tikvpb_pb2.RegionError(message="m", region_not_found=tikvpb_pb2.RegionNotFound(region_id=1)),
    tikvpb_pb2.RegionError(key_not_in_region=tikvpb_pb2.KeyNotInRegion(key=KEY)),
    tikvpb_pb2.RegionError(epoch_not_match=tikvpb_pb2.EpochNotMatch()),
    tikvpb_pb2.RegionError(server_is_busy=tikvpb_pb2.ServerIsBusy(reason="r", backoff_ms=1)),
    tikvpb_pb2.RegionError(stale_command=tikvpb_pb2.StaleCommand()),
    tikvpb_pb2.RegionError(store_not_match=tikvpb_pb2.StoreNotMatch(actual_store_id=9)),
    tikvpb_pb2.RegionError(not_leader=tikvpb_pb2.NotLeader(region_id=FIRST_REGION)),
    tikvpb_pb2.RegionError.FromString(b"\x82\x01\x00"),  # Field 16: one that is not known here.
    tikvpb_pb2.RegionError(),
]


@pytest.mark.fault(
    "TiKV answers with each of its region errors, with one that is not known here, with an"
    " error of the key, of gRPC",
    "no answer: asked again until the time of the question is over",
    cases="14",
)
@pytest.mark.parametrize("error", REGION_ERRORS, ids=lambda each: str(each)[:20].strip() or "none")
def test_a_region_error_of_any_kind_answers_nothing_and_is_asked_again(
    cluster: TidbCluster, error: tikvpb_pb2.RegionError
) -> None:
    start_ts = begun(cluster, Fate(commit_ts=2**62))
    store = cluster.store_servers[1]
    store.steps.extend([error, error])
    assert status(cluster, start_ts).commit_ts == 2**62
    assert store.questions == 3
    store.steps.extend([error] * 1000)
    with pytest.raises(Retryable, match="no answer from TiKV: region 10 at"):
        status(cluster, start_ts, timeout_s=0.6)


@pytest.mark.parametrize(
    "error", [tikvpb_pb2.KvError(abort="no"), tikvpb_pb2.KvError(retryable="later")]
)
def test_an_error_of_the_key_is_no_answer(cluster: TidbCluster, error: tikvpb_pb2.KvError) -> None:
    cluster.store_servers[1].steps.append(error)
    with pytest.raises(NeedsOperator, match="stays open"):
        status(cluster, begun(cluster, Fate(commit_ts=2**62)))


@pytest.mark.fault(
    "a region splits or moves while it is asked; has no leader; PD names an old one; two"
    " stores name each other",
    "asked where it is by then; never in a loop without a pause",
    cases="5",
)
def test_a_region_that_splits_while_it_is_asked_is_found_again(cluster: TidbCluster) -> None:
    start_ts = begun(cluster, Fate(commit_ts=2**62), OTHER)
    cluster.store_servers[1].steps.append(lambda: cluster.split(row_key(42, 500)))
    assert status(cluster, start_ts, OTHER).commit_ts == 2**62
    assert [each.context.region_id for each in cluster.asked()] == [FIRST_REGION + 1]


def test_a_region_that_moves_while_it_is_asked_is_followed(cluster: TidbCluster) -> None:
    start_ts = begun(cluster, Fate(commit_ts=2**62))
    cluster.store_servers[1].steps.append(lambda: cluster.transfer(2))
    assert status(cluster, start_ts).commit_ts == 2**62
    assert [each.context.peer.store_id for each in cluster.asked()] == [2]


def test_the_leader_that_tikv_names_is_asked_though_pd_names_another(cluster: TidbCluster) -> None:
    start_ts = begun(cluster, Fate(commit_ts=2**62))
    cluster.transfer(2, pd_knows=False)
    assert status(cluster, start_ts).commit_ts == 2**62


def test_two_stores_that_each_name_the_other_do_not_make_it_spin(cluster: TidbCluster) -> None:
    for number, store in cluster.store_servers.items():
        other = tikvpb_pb2.NotLeader(region_id=FIRST_REGION)
        other.leader.id, other.leader.store_id = 100 + 3 - number, 3 - number
        store.steps.extend([tikvpb_pb2.RegionError(not_leader=other)] * 10_000)
    with pytest.raises(Retryable, match="not_leader"):
        status(cluster, begun(cluster), timeout_s=1.0)
    assert sum(store.questions for store in cluster.store_servers.values()) < 40


def test_a_region_without_a_leader_is_asked_once_it_has_one(cluster: TidbCluster) -> None:
    start_ts = begun(cluster, Fate(commit_ts=2**62))
    cluster.transfer(None)
    threading.Timer(0.4, cluster.transfer, (2,)).start()
    assert status(cluster, start_ts).commit_ts == 2**62


@pytest.mark.fault(
    "a store restarts, at its address and at another; never answers; is away for fifty questions",
    "found again; a question takes its time and no more",
    cases="4",
)
@pytest.mark.parametrize("same_port", [True, False])
def test_a_store_that_restarts_is_found_again(cluster: TidbCluster, same_port: bool) -> None:
    first = begun(cluster, Fate(commit_ts=2**62))

    async def across_a_restart(tikv: Tikv) -> list[TransactionStatus]:
        found = [await tikv.status(KEY, first, cluster.next_ts())]
        store = cluster.store_servers[1]
        await asyncio.to_thread(store.restart, same_port=same_port)
        return [*found, await tikv.status(KEY, first, cluster.next_ts())]

    assert [each.commit_ts for each in use(cluster, across_a_restart)] == [2**62] * 2


def test_a_store_that_never_answers_costs_the_time_of_one_question(cluster: TidbCluster) -> None:
    ended = threading.Event()

    def stand_still() -> None:
        ended.wait(60)

    store = cluster.store_servers[1]
    store.steps.extend([stand_still] * 4)
    try:
        with pytest.raises(Retryable, match=r"does not answer .*DEADLINE_EXCEEDED"):
            status(cluster, begun(cluster, Fate(commit_ts=2**62)), timeout_s=1.0)
        assert store.questions == 1
    finally:
        ended.set()


def test_many_questions_to_a_store_that_is_away_fail_together_and_find_it_again(
    cluster: TidbCluster,
) -> None:
    start_ts = begun(cluster, Fate(commit_ts=2**62))
    store = cluster.store_servers[1]
    store.stop()

    async def ask_many(tikv: Tikv) -> list[Any]:
        def ask() -> Coroutine[Any, Any, TransactionStatus]:
            return tikv.status(KEY, start_ts, cluster.next_ts())

        failed = await asyncio.gather(*(ask() for _ in range(50)), return_exceptions=True)
        await asyncio.to_thread(store.restart, same_port=False)
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(Retryable):
                    return [*failed, await ask()]

    *failed, found = use(cluster, ask_many, timeout_s=0.7)
    assert {type(each) for each in failed} == {Retryable}
    assert found.commit_ts == 2**62


@pytest.mark.fault(
    "another PD leads, in turn each of three; the one that leads goes away; none leads for a"
    " while; only one is configured and it goes away",
    "timestamps and answers continue, from those that are left",
    cases="6",
)
def test_another_pd_leads_and_is_found_through_those_that_are_left() -> None:
    with TidbCluster(pds=3) as cluster:
        start_ts = begun(cluster, Fate(commit_ts=2**62))

        async def across_an_election(tikv: Tikv) -> None:
            await tikv.status(KEY, start_ts, cluster.next_ts())
            cluster.pd_leader = 2
            assert (await tikv.status(KEY, start_ts, cluster.next_ts())).commit_ts == 2**62
            assert "GetRegion" in cluster.pd_servers[2].calls
            await asyncio.to_thread(cluster.pd_servers[2].stop)
            cluster.pd_leader = None
            threading.Timer(0.5, lambda: setattr(cluster, "pd_leader", 1)).start()
            assert (await tikv.status(KEY, start_ts, cluster.next_ts())).commit_ts == 2**62

        use(cluster, across_an_election)


def test_timestamps_continue_when_the_pd_that_leads_goes_away() -> None:
    with TidbCluster(pds=3) as cluster:
        oracle = OracleClient(f" {cluster.url} ")
        stamps = [oracle.get_ts()]
        cluster.pd_servers[0].stop()
        cluster.pd_leader = 1
        stamps.append(oracle.get_ts())
        cluster.pd_leader = 2
        stamps.append(oracle.get_ts())
        oracle.close()
        assert stamps == sorted(set(stamps))


def test_a_pd_that_was_only_named_by_the_others_takes_over() -> None:
    with TidbCluster(pds=2) as cluster:
        oracle = OracleClient(cluster.pd_servers[0].url)
        first = oracle.get_ts()
        cluster.pd_servers[0].stop()
        cluster.pd_leader = 1
        assert oracle.get_ts() > first
        oracle.close()


def test_a_pd_that_is_away_for_a_while_is_waited_for(cluster: TidbCluster) -> None:
    oracle, pd = OracleClient(cluster.url), cluster.pd_servers[0]
    first = oracle.get_ts()
    pd.stop()
    pd.bind(int(pd.address.rpartition(":")[2]))
    threading.Timer(1.5, pd.start).start()
    assert oracle.get_ts() > first
    oracle.close()


def test_a_pd_of_another_cluster_is_never_taken_for_ours(cluster: TidbCluster) -> None:
    find = PdLeader(cluster.url)
    assert find(1.0) == (cluster.pd_servers[0].address, CLUSTER_ID)
    cluster.cluster_id = CLUSTER_ID + 1
    with pytest.raises(NeedsOperator, match=f"{CLUSTER_ID + 1}, and it was {CLUSTER_ID} before"):
        find(1.0)


def test_a_pd_whose_answer_is_no_message_is_passed_over(cluster: TidbCluster) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    method = grpc.unary_unary_rpc_method_handler(lambda request, context: b"\xff\xff")
    handlers = grpc.method_handlers_generic_handler("pdpb.PD", {"GetMembers": method})
    server.add_generic_rpc_handlers((handlers,))
    strange = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        leader = cluster.pd_servers[0].address
        assert PdLeader(f"{strange},{cluster.url}")(5.0) == (leader, CLUSTER_ID)
        with pytest.raises(Retryable, match="deserializing"):
            PdLeader(strange)(5.0)
    finally:
        server.stop(0)


def test_pd_and_tikv_are_asked_over_tls_with_our_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours = authority.issue("penstock").tls
    with TidbCluster(pair=authority.issue("tikv")) as cluster:
        start_ts = begun(cluster, Fate(commit_ts=2**62))
        tls = pd_tls_of(cluster.url, ours)
        assert status(cluster, start_ts, tls=tls).commit_ts == 2**62
        bare = pd_tls_of(cluster.url, Tls(ca=authority.file))
        with pytest.raises(NeedsOperator, match="there is none to show"):
            status(cluster, start_ts, tls=bare, timeout_s=3.0)


def test_addresses_of_pd_are_all_over_tls_or_none() -> None:
    assert pd_tls_of("http://a:1, b:2", Tls()) is None
    assert pd_tls_of("https://a:1", None) is not None
    with pytest.raises(NeedsOperator, match="only some addresses"):
        pd_tls_of("https://a:1,b:2", None)


def test_an_error_of_grpc_itself_is_asked_again(cluster: TidbCluster) -> None:
    start_ts = begun(cluster, Fate(commit_ts=2**62))
    cluster.store_servers[1].steps.extend(
        [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED]
    )
    assert status(cluster, start_ts).commit_ts == 2**62
