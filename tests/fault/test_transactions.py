"""Transactions that do not go as they should.

Each against real Pumps; what is emitted is what the Drainer's merge makes of their streams.
"""

import itertools
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from drainer.intake.merger import Merger
from penstock import outbox
from penstock.cluster.etcd import connect
from penstock.local.etcd import EtcdServer
from penstock.pb.etcd import rpc_pb2
from penstock.ts import compose, physical_ms
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog
from pumpclient import Options, PumpClient
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.pump_session import PumpSession
from tests.kit.wait import eventually
from tests.kit.workloads.ledger import pull_until, pulls

pytestmark = [pytest.mark.fault, pytest.mark.alone]

TXN_TIMEOUT_S = 2


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("outbox") / "shop.db"
    with sqlite3.connect(path) as connection:
        outbox.create_table(connection)
    connection.close()
    return path


@pytest.fixture(scope="module")
def both(
    etcd_server: EtcdServer, database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[PumpSession]]:
    """Two Pumps for all tests here that leave them well; the second one leads no oracle."""
    client = connect(etcd_server.url)
    client.kvstub.DeleteRange(rpc_pb2.DeleteRangeRequest(key=b"\0", range_end=b"\0"), 5)
    settings = {
        "etcd_urls": etcd_server.url,
        "txn_timeout_s": TXN_TIMEOUT_S,
        "fake_binlog_interval_s": 600,  # While no one pulls.
        "resolver_kind": "sql",
        "resolver_url": f"sqlite:///{database}",
    }
    folder = tmp_path_factory.mktemp("pumps")
    pumps = [PumpProcess(folder / name, name, settings) for name in ("pump-1", "pump-2")]
    sessions = [PumpSession(client, pump.start()) for pump in pumps]
    yield sessions
    for session in sessions:
        session.close()
    for pump in pumps:
        pump.kill()
    client.close()


@pytest.fixture
def session(both: list[PumpSession]) -> PumpSession:
    return both[0]


def emitted(sessions: list[PumpSession], after_ts: int = 0) -> list[Binlog]:
    """Return what the merge of all Pumps' streams emits up to now, without fake binlogs."""
    until_ts = sessions[0].oracle.get_ts()
    merger, found = Merger(after_ts), []
    for session in sessions:
        merger.add(session.pump.node_id)
    for session in sessions:
        pulled = pull_until(session.pump.addr, session.cluster_id, until_ts, after_ts)
        stamps, payloads = zip(*pulled, strict=True)
        merger.push(session.pump.node_id, stamps, payloads)
    while (merged := merger.take()) is not None:
        for payload in merged.payloads:
            assert isinstance(payload, bytes)
            binlog = decode_binlog(payload)
            found += [] if binlog.is_fake else [binlog]
    assert all(a.commit_ts < b.commit_ts for a, b in itertools.pairwise(found))
    return found


def rollback(prewrite: Binlog) -> Binlog:
    return Binlog(tp=BinlogType.ROLLBACK, start_ts=prewrite.start_ts)


def starts(binlogs: list[Binlog]) -> list[int]:
    return [binlog.start_ts for binlog in binlogs]


@pytest.mark.fault(
    "Prewrite without a Commit: the writer was killed",
    "asked about after 1 s; rolled back at `txn-timeout-s`, or what the resolver says",
    cases="1 writer",
)
def test_a_prewrite_without_a_commit_is_resolved_and_the_stream_continues(
    both: list[PumpSession], etcd_server: EtcdServer
) -> None:
    begin_ts = both[0].oracle.get_ts()
    # The writer dies when its Prewrite is durable: just before it would send its Commit.
    script = f"""
        import os, signal
        from pumpclient import PumpClient
        from pumpclient.delivery.session import Session
        client = PumpClient.connect({etcd_server.url!r})
        client.execute_ddl("CREATE DATABASE row27")
        client.execute_ddl("CREATE TABLE row27.t (id INT PRIMARY KEY)")
        Session.commit = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        with client.begin("row27") as txn:
            txn.insert("t", [1])
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    after = [session.transaction() for session in both]
    found = emitted(both, begin_ts)
    assert starts([b for b in found if not b.is_ddl]) == starts(after)
    assert any("is rolled back, says the resolver" in s.pump.log_text() for s in both)


@pytest.mark.fault(
    "Commit without a Prewrite", "NOT_FOUND (may be repeated), counted, never emitted", cases="1"
)
def test_a_commit_without_its_prewrite_is_refused_counted_and_never_emitted(
    both: list[PumpSession],
) -> None:
    session = both[0]
    before = int(session.pump.status().details["storage_refused_records"])
    stray = session.commit(session.prewrite())
    code, text = session.refusal(stray)
    assert (code, "is not here" in text) == (grpc.StatusCode.NOT_FOUND, True)
    assert int(session.pump.status().details["storage_refused_records"]) == before + 1
    later = session.transaction()
    assert starts(emitted(both, stray.start_ts)) == [later.start_ts]


@pytest.mark.fault(
    "Commit before its Prewrite", "refused until the Prewrite is there, then taken", cases="1"
)
def test_a_commit_that_overtakes_its_prewrite_is_taken_when_both_are_there(
    both: list[PumpSession],
) -> None:
    session = both[0]
    prewrite = session.prewrite()
    # A writer that follows the protocol cannot do this: the commit_ts it would take is too early.
    early = session.commit(prewrite)
    assert session.refusal(early)[0] is grpc.StatusCode.NOT_FOUND
    session.write(prewrite)
    commit = session.commit(prewrite)
    session.write(commit)
    session.write(commit)
    assert starts(emitted(both, prewrite.start_ts)) == [prewrite.start_ts]


@pytest.mark.fault(
    "Rollback, also before its Prewrite", "never emitted; a Commit is refused", cases="2"
)
def test_what_was_rolled_back_is_never_emitted(both: list[PumpSession]) -> None:
    session = both[0]
    prewrite, early = session.prewrite(), session.prewrite()
    session.write(prewrite)
    session.write(rollback(prewrite))
    session.write(rollback(prewrite))
    session.write(rollback(early))  # It overtakes its Prewrite, which is then stored for nothing.
    session.write(early)
    for over in (prewrite, early):
        code, text = session.refusal(session.commit(over))
        assert (code, "rolled back" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    later = session.transaction()
    assert starts(emitted(both, prewrite.start_ts)) == [later.start_ts]
    assert session.refusal(rollback(later))[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.fault(
    "binlogs repeated",
    "acknowledged again, emitted once; a contradiction is refused",
    cases="5 repetitions, 2 contradictions",
)
def test_repeated_binlogs_are_emitted_once(both: list[PumpSession]) -> None:
    session = both[0]
    prewrite = session.prewrite()
    for _ in range(3):
        session.write(prewrite)
    commit = session.commit(prewrite)
    for _ in range(3):
        session.write(commit)
    session.write(prewrite)
    for contradiction in (
        session.commit(prewrite),
        Binlog(tp=BinlogType.PREWRITE, start_ts=prewrite.start_ts, prewrite_value=b"other rows"),
    ):
        assert session.refusal(contradiction)[0] is grpc.StatusCode.INVALID_ARGUMENT
    found = emitted(both, prewrite.start_ts)
    assert [(b.start_ts, b.prewrite_value) for b in found] == [(prewrite.start_ts, b"rows")]


@pytest.mark.fault(
    "the same transaction on two Pumps", "emitted once, committed on both or on one", cases="2"
)
def test_a_transaction_on_two_pumps_is_emitted_once(both: list[PumpSession]) -> None:
    first, second = both
    twice, once = first.prewrite(), first.prewrite()
    for session in both:
        session.write(twice)
        session.write(once)
    commit = first.commit(twice)
    for session in both:
        session.write(commit)
    second.write(second.commit(once))  # The copy on the first is resolved by its age.
    assert starts(emitted(both, twice.start_ts)) == starts([twice, once])


@pytest.mark.fault(
    "the same transaction on two Pumps: a copy arrives after the commit_ts was taken",
    "that copy is dropped, the other Pump commits",
    cases="1",
)
def test_a_copy_that_arrived_after_the_commit_ts_is_left_to_the_other_pump(
    both: list[PumpSession], database: Path
) -> None:
    first, second = both
    prewrite = Binlog(
        tp=BinlogType.PREWRITE,
        start_ts=first.oracle.get_ts(),
        prewrite_key=outbox.new_key("shop"),
        prewrite_value=b"rows",
    )
    second.write(prewrite)
    commit = second.commit(prewrite)
    with sqlite3.connect(database) as connection:
        row = (prewrite.prewrite_key, commit.start_ts, commit.commit_ts)
        outbox.put(connection, outbox.TABLE, *row)
    connection.close()
    # The writer is dead now. A copy was stuck on its way to the first Pump, which continued.
    later = first.transaction()
    first.write(prewrite)
    assert starts(emitted(both, prewrite.start_ts)) == [commit.start_ts, later.start_ts]
    first.pump.wait_for(f"transaction {commit.start_ts} is rolled back here, as another Pump has")
    second.pump.wait_for(f"transaction {commit.start_ts} is committed, says the resolver")


@pytest.mark.fault(
    "the same transaction on two Pumps: a Pump stalls, its writer goes to the next",
    "the stalled one's copy is undone when it wakes up",
    cases="1",
)
def test_a_stalled_pump_that_answers_too_late_has_its_copy_undone(
    both: list[PumpSession], etcd_server: EtcdServer
) -> None:
    begin_ts = both[0].oracle.get_ts()
    stalled = both[1].pump
    options = Options(attempt_timeout_s=0.5, probe_interval_s=0.3)
    with PumpClient.connect(etcd_server.url, options=options) as client:
        client.execute_ddl("CREATE DATABASE row31")
        client.execute_ddl("CREATE TABLE row31.t (id INT PRIMARY KEY)")
        stalled.freeze()
        try:
            written = []
            for i in range(4):
                with client.begin("row31") as txn:
                    txn.insert("t", [i])
                written.append(txn.start_ts)
        finally:
            stalled.thaw()
        found = emitted(both, begin_ts)
    assert starts([b for b in found if not b.is_ddl]) == written


@pytest.mark.fault(
    "40 Commits of two Pumps, shuffled",
    "emitted by `commit_ts`; nothing before the last one is there",
    cases="40 Commits",
)
def test_commits_that_arrive_in_any_order_leave_in_the_order_of_time(
    both: list[PumpSession],
) -> None:
    chance = random.Random(32)
    prewrites = [both[0].prewrite(b"%d" % i) for i in range(40)]
    homes = [chance.choice(both) for _ in prewrites]
    for home, prewrite in zip(homes, prewrites, strict=True):
        home.write(prewrite)
    commits = [(home, home.commit(p)) for home, p in zip(homes, prewrites, strict=True)]
    in_order = [commit.commit_ts for _, commit in commits]
    chance.shuffle(commits)
    for home, commit in commits[:-1]:
        home.write(commit)
    home, last = commits[-1]
    # Until the last one is there, no one may see what would come after it.
    assert home.pump.status().max_commit_ts < last.commit_ts
    home.write(last)
    assert [b.commit_ts for b in emitted(both, prewrites[0].start_ts)] == in_order


@pytest.mark.fault(
    "Commit behind what was streamed",
    "refused with a reason, the transaction is resolved, the Pump continues",
    cases="1",
)
def test_a_commit_behind_the_stream_is_refused_and_the_stream_stays_right(
    both: list[PumpSession],
) -> None:
    session = both[0]
    prewrite = session.prewrite()
    too_early = session.commit(prewrite)  # The mistake: asked for before the Prewrite is durable.
    streamed = session.transaction()
    session.write(prewrite)
    code, text = session.refusal(too_early)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "the commit_ts was asked for before the Prewrite was stored" in text
    later = session.transaction()
    assert starts(emitted(both, prewrite.start_ts)) == [streamed.start_ts, later.start_ts]
    assert session.pump.status().state == "online"


@pytest.mark.fault(
    "no traffic on one Pump",
    "fake binlogs: its stream moves on as soon as someone waits for it",
    cases="5",
)
def test_a_pump_without_traffic_holds_up_no_one(both: list[PumpSession]) -> None:
    busy, idle = both
    for _ in range(5):
        commit = busy.transaction()
        # It gives up after 30 s; without a fake binlog the idle one's stream stands for 10 min.
        for session in (busy, idle):
            pull_until(session.pump.addr, session.cluster_id, commit.commit_ts, commit.start_ts)


@pytest.mark.fault(
    "the oracle is frozen", "the stream waits, writes continue, then order holds", cases="1"
)
def test_without_the_oracle_the_stream_waits_and_then_continues_in_order(
    both: list[PumpSession],
) -> None:
    leader = next(s.pump for s in both if s.pump.status().details["leads_oracle"] == "True")
    other = next(s for s in both if s.pump is not leader)
    stamps: list[int] = []
    stop = threading.Event()
    begin_ts = other.oracle.get_ts()

    def follow() -> None:
        for commit_ts, _ in pulls(other.pump.addr, other.cluster_id, begin_ts):
            stamps.append(commit_ts)
            if stop.is_set():
                return

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        time.sleep(0.5)
        leader.freeze()
        time.sleep(1.5)
        prewrite = Binlog(tp=BinlogType.PREWRITE, start_ts=begin_ts - compose(1, 0))
        other.write(prewrite)  # Only time stands still, the Pump does not.
        other.write(rollback(prewrite))
    finally:
        leader.thaw()
    thawed_ts = other.oracle.get_ts()
    eventually(lambda: stamps[-1] >= thawed_ts, 20)
    stop.set()
    thread.join(20)
    assert stamps == sorted(set(stamps))
    # It stood still: no time was handed out while the oracle was frozen.
    assert max(physical_ms(b) - physical_ms(a) for a, b in itertools.pairwise(stamps)) >= 1000
