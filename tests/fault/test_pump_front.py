"""Callers of a real Pump that die, never read, come by the thousand, or do not speak its language.

Nothing that was acknowledged is lost, nothing is there twice, and other callers notice nothing.
"""

import contextlib
import resource
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from penstock.http2 import frames
from penstock.http2.frames import END_HEADERS, END_STREAM
from penstock.pb import penstock_pb2, pump_pb2, pump_pb2_grpc
from penstock.security.tls import open_channel
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import decode_binlog, encode_binlog
from tests.kit.fakes.oracle import OracleNode
from tests.kit.http2.raw_peer import RawPeer, message, request
from tests.kit.servers.authority import Authority
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.fix_replication import Nodes
from tests.kit.servers.node import CHANNEL_OPTIONS
from tests.kit.servers.pump_session import PumpSession
from tests.kit.wait import eventually
from tests.kit.workloads.ledger import Ledger, pull_until

pytestmark = pytest.mark.fault

WRITE, PULL, BATCHES = "/binlog.Pump/WriteBinlog", "/penstock.Pump/Pull", "/penstock.Pump/Write"
CONNECTIONS = 1_000
CONNECTION_BYTES = 64 << 10
"""What a connection with a call behind it may take of a Pump's memory."""
UNREAD_BYTES = 16 << 20
"""What a caller that does not read may make a Pump hold, whatever it has asked for."""
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.FAILED_PRECONDITION,  # A Prewrite for a Pump that is pausing.
}


@pytest.fixture
def session(nodes: Nodes, pump: PumpProcess) -> PumpSession:
    return nodes.session(pump)


def peer_of(pump: PumpProcess, **options: Any) -> RawPeer:
    host, _, port = pump.addr.rpartition(":")
    return RawPeer(host, int(port), **options)


def write_request(session: PumpSession, binlog: Binlog) -> bytes:
    payload = encode_binlog(binlog)
    encoded: bytes = pump_pb2.WriteBinlogReq(
        clusterID=session.cluster_id, payload=payload
    ).SerializeToString()
    return encoded


def calls(*requests: bytes) -> bytes:
    """Return all that a client sends for these WriteBinlog calls, from its greeting on."""
    parts = [frames.PREFACE, frames.settings({}), frames.frame(frames.SETTINGS, frames.ACK, 0)]
    for number, data in enumerate(requests):
        block = RawPeer.stateless_block(request(WRITE))
        block = block if number else b"\x20" + block
        parts.append(frames.frame(frames.HEADERS, END_HEADERS, 2 * number + 1, block))
        parts.append(frames.frame(frames.DATA, END_STREAM, 2 * number + 1, message(data)))
    return b"".join(parts)


def memory_bytes(pump: PumpProcess) -> int:
    return int(psutil.Process(pump.pid).memory_info().rss)


@pytest.mark.fault(
    "a writer's connection is cut at any byte, and it writes again",
    "each transaction is there once",
    cases="each 17th / each byte",
)
@pytest.mark.thorough
@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_a_session_cut_at_any_byte_loses_nothing_and_writes_nothing_twice(
    pump: PumpProcess, session: PumpSession, step: int
) -> None:
    """The writer sends both binlogs again afterwards, as writers do that had no answer."""
    ledger, cut, whole = Ledger(), 0, 1
    while cut <= whole:
        prewrite = session.prewrite(b"value of %d" % cut)
        entry = ledger.began(prewrite.start_ts, prewrite.prewrite_value)
        commit = session.commit(prewrite)
        entry.commit_ts = commit.commit_ts
        sent = calls(write_request(session, prewrite), write_request(session, commit))
        whole = len(sent)
        with peer_of(pump, greets=False) as peer:
            peer.send(sent[:cut])
            peer.socket.shutdown(socket.SHUT_WR)
            peer.until_closed()
        session.write(prewrite)
        session.write(commit)
        entry.acknowledged = True
        cut += step
    assert ledger.acknowledged > whole // step
    found = pull_until(pump.addr, session.cluster_id, ledger.last_commit_ts)
    assert ledger.check(found) == ledger.acknowledged


@pytest.mark.fault("a batch breaks off", "no part of it is there", cases="3")
def test_a_batch_that_breaks_off_leaves_no_part_of_it(
    pump: PumpProcess, session: PumpSession
) -> None:
    binlogs = [session.prewrite(b"x" * 5000) for _ in range(20)]
    batch = penstock_pb2.WriteBatch(
        cluster_id=session.cluster_id, seq=1, payloads=[encode_binlog(each) for each in binlogs]
    )
    sent = message(batch.SerializeToString())
    for size in (3, 5000, len(sent) - 1):
        with peer_of(pump) as peer:
            stream_id = peer.open(BATCHES)
            for at in range(0, size, 16_000):
                peer.send_frame(frames.DATA, 0, stream_id, sent[at : min(at + 16_000, size)])
            peer.ping()
    for each in binlogs:
        commit = Binlog(tp=BinlogType.COMMIT, start_ts=each.start_ts, commit_ts=each.start_ts + 1)
        code, _ = session.refusal(commit)
        assert code is grpc.StatusCode.NOT_FOUND
    session.transaction()


@pytest.mark.fault(
    "pullers never read",
    "each makes the Pump hold less than 16 MB; others pull all",
    cases="5 pullers, 30 MB",
)
@pytest.mark.thorough
def test_pullers_that_never_read_hold_little_of_a_pump_and_no_one_up(
    pump: PumpProcess, session: PumpSession
) -> None:
    for _ in range(100):
        last = session.transaction(b"x" * 300_000)
    asked = penstock_pb2.PullRequest(cluster_id=session.cluster_id, drainer_id="deaf")
    options = {
        "settings": {frames.INITIAL_WINDOW_SIZE: frames.WINDOW_MAX},
        "receive_buffer_bytes": 4096,
    }
    before = memory_bytes(pump)
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            peer = stack.enter_context(peer_of(pump, **options))
            peer.send(frames.window_update(0, frames.WINDOW_MAX - frames.WINDOW_DEFAULT))
            peer.send_message(peer.open(PULL), asked.SerializeToString())
            peer.wait_for_kind(frames.DATA)
        last = session.transaction()
        found = pull_until(pump.addr, session.cluster_id, last.commit_ts)
        assert len([None for _, payload in found if len(payload) > 300_000]) == 100
        assert memory_bytes(pump) - before < 5 * UNREAD_BYTES


@pytest.mark.fault(
    "1,000 connections write at once",
    "all are answered; less than 64 kB of memory each",
    cases="1,000",
)
@pytest.mark.thorough
def test_a_thousand_connections_write_at_once_and_take_little_memory(
    pump: PumpProcess, session: PumpSession
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * CONNECTIONS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = memory_bytes(pump)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(peer_of(pump)) for _ in range(CONNECTIONS)]
        prewrites = [session.prewrite() for _ in peers]
        write_all(session, peers, prewrites)
        write_all(session, peers, [session.commit(each) for each in prewrites])
        took = memory_bytes(pump) - before
        assert took < CONNECTIONS * CONNECTION_BYTES
        last = session.transaction()
    found = pull_until(pump.addr, session.cluster_id, last.commit_ts)
    committed = {prewrite.start_ts for prewrite in prewrites}
    pulled = [decode_binlog(payload).start_ts for _, payload in found]
    assert sorted(each for each in pulled if each in committed) == sorted(committed)


def write_all(session: PumpSession, peers: list[RawPeer], binlogs: list[Binlog]) -> None:
    """Write one binlog on each connection, all before the first answer is read."""
    opened = []
    for peer, binlog in zip(peers, binlogs, strict=True):
        opened.append(peer.open(WRITE))
        peer.send_message(opened[-1], write_request(session, binlog))
    answers = [peer.answer(stream_id) for peer, stream_id in zip(peers, opened, strict=True)]
    assert {(answer.status, answer.text) for answer in answers} == {(0, "")}


class Writers:
    """Threads that write transactions to one Pump, each call's status and acknowledgement noted."""

    def __init__(
        self, session: PumpSession, open_one: Callable[[], grpc.Channel], count: int = 8
    ) -> None:
        self.ledger = Ledger()
        self.statuses: set[grpc.StatusCode] = set()
        self.failures: list[BaseException] = []
        self._session, self._open = session, open_one
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End them all; raise what one of them died of."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a call got no answer"
        if self.failures:
            raise self.failures[0]

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                with self._open() as channel:
                    write = pump_pb2_grpc.PumpStub(channel).WriteBinlog  # type: ignore[no-untyped-call]
                    for _ in range(20):
                        if not self._transact(write):
                            break
        except BaseException as error:
            self.failures.append(error)

    def _transact(self, write: Any) -> bool:
        session = self._session
        prewrite = session.prewrite(b"value")
        entry = self.ledger.began(prewrite.start_ts, prewrite.prewrite_value)
        if not self._call(write, prewrite):
            return False
        commit = session.commit(prewrite)
        entry.commit_ts = commit.commit_ts
        entry.acknowledged = self._call(write, commit)
        return entry.acknowledged

    def _call(self, write: Any, binlog: Binlog) -> bool:
        asked = pump_pb2.WriteBinlogReq(
            clusterID=self._session.cluster_id, payload=encode_binlog(binlog)
        )
        try:
            write(asked, timeout=30)
        except grpc.RpcError as error:
            self.statuses.add(error.code())
            return False
        self.statuses.add(grpc.StatusCode.OK)
        return True


def plain(pump: PumpProcess) -> Callable[[], grpc.Channel]:
    return lambda: grpc.insecure_channel(pump.addr, options=CHANNEL_OPTIONS)


@pytest.mark.fault(
    "a Pump is stopped under load",
    "every call is answered: OK, UNAVAILABLE, or that it takes no Prewrites; nothing"
    " acknowledged is lost",
    cases="1 / 8 stops",
)
@pytest.mark.parametrize("stops", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_pump_that_is_stopped_under_load_answers_every_call(nodes: Nodes, stops: int) -> None:
    # Else there were no timestamps while the Pump is away.
    oracle_node = OracleNode(nodes.etcd)
    oracle_node.wait_elected()
    pump = nodes.add_pump()
    session = nodes.session(pump)
    writers = Writers(session, plain(pump))
    try:
        for _ in range(stops):
            wanted = writers.ledger.acknowledged + 50
            eventually(lambda wanted=wanted: writers.ledger.acknowledged >= wanted, within_s=60)  # type: ignore[misc]
            assert pump.stop() == 0
            pump.start()
        writers.stop()
        assert writers.statuses <= ANSWERS, writers.statuses
        roll_back_the_rest(session, writers.ledger)
        last = session.transaction()
        found = pull_until(pump.addr, session.cluster_id, last.commit_ts)
        writers.ledger.check(found[:-1])
    finally:
        pump.kill()
        oracle_node.stop()


def roll_back_the_rest(session: PumpSession, ledger: Ledger) -> None:
    """End every transaction whose writer has given up, so that the stream is not held up."""
    for entry in ledger.entries():
        if entry.acknowledged:
            continue
        if entry.commit_ts:  # It may have been written: the same Commit is taken again.
            session.write(
                Binlog(tp=BinlogType.COMMIT, start_ts=entry.start_ts, commit_ts=entry.commit_ts)
            )
            entry.acknowledged = True
        else:
            session.write(Binlog(tp=BinlogType.ROLLBACK, start_ts=entry.start_ts))
            entry.rolled_back = True


@pytest.mark.fault("its certificate is renewed under load", "no call fails", cases="3 renewals")
@pytest.mark.thorough
def test_certificates_are_renewed_under_load_without_a_failed_call(
    nodes: Nodes, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    node, writer = authority.issue("node"), authority.issue("writer")
    settings = {**node.settings, "security_cert_allowed_cn": "node, writer"}
    pump = nodes.add_pump(**settings)
    session = nodes.session(pump, writer.tls)
    options = [("grpc.use_local_subchannel_pool", 1)]
    writers = Writers(session, lambda: open_channel(pump.addr, writer.tls, options), count=4)
    try:
        for renewal in range(3):
            wanted = writers.ledger.acknowledged + 60
            eventually(lambda wanted=wanted: writers.ledger.acknowledged >= wanted, within_s=60)  # type: ignore[misc]
            authority.issue("node", days=31 + renewal)
        writers.stop()
        assert writers.statuses == {grpc.StatusCode.OK}
        assert "certificates read again" in pump.log_text()
    finally:
        writers.failures.clear()
        writers.stop()


@pytest.mark.fault(
    "a message beyond the limit; an unknown method",
    "RESOURCE_EXHAUSTED with the size, and the connection continues; UNIMPLEMENTED",
    cases="1; 4",
)
def test_a_message_beyond_the_limit_is_refused_and_its_connection_continues(nodes: Nodes) -> None:
    pump = nodes.add_pump(max_message_bytes=1 << 20)
    session = nodes.session(pump)
    with peer_of(pump) as peer:
        stream_id = peer.open(WRITE)
        peer.send_frame(frames.DATA, 0, stream_id, frames.MESSAGE_HEAD.pack(0, 1 << 31))
        answer = peer.answer(stream_id)
        assert answer.status == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert str(1 << 31) in answer.text
        asked = write_request(session, session.prewrite())
        assert peer.call(WRITE, asked).status == 0


def test_an_unknown_method_is_unimplemented(pump: PumpProcess) -> None:
    with peer_of(pump) as peer:
        for path in ("/binlog.Pump/Nothing", "/nothing", "*", "/binlog.Pump/WriteBinlog/"):
            answer = peer.call(path, b"")
            assert answer.status == grpc.StatusCode.UNIMPLEMENTED.value[0], path


@pytest.mark.fault("HTTP/1 or TLS to a plain port", "one clear line in the log", cases="2")
def test_who_speaks_another_language_is_one_clear_line_in_the_log(pump: PumpProcess) -> None:
    host, _, port = pump.addr.rpartition(":")

    def lines_after(act: Callable[[], object], word: str) -> list[str]:
        before = len(pump.log_text())
        act()
        eventually(lambda: word in pump.log_text()[before:])
        return [line for line in pump.log_text()[before:].splitlines() if word in line]

    def http1() -> None:
        with socket.create_connection((host, int(port)), timeout=20) as caller:
            caller.sendall(b"GET /metrics HTTP/1.1\r\nHost: pump\r\n\r\n")
            said = b""
            while more := caller.recv(4096):
                said += more
        assert said.startswith(b"HTTP/1.1 4")
        assert b"gRPC" in said

    def tls() -> None:
        with pytest.raises(OSError):  # noqa: PT011  # Which one is the client's library's affair.
            RawPeer(host, int(port), tls=ssl.create_default_context())

    assert len(lines_after(http1, "HTTP/1")) == 1
    assert len(lines_after(tls, "TLS")) == 1
    assert "Traceback" not in pump.log_text()
