"""Requests that are noise, of another cluster, too many, or never finished.

A real Pump, and the Drainer's own services on a server in this process.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError, Message

from drainer.cluster.server import Front
from drainer.components import Home
from drainer.settings.config import DrainerConfig
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.node.http_status import HttpStatus
from penstock.pb import cistern_pb2, pdpb_pb2, penstock_pb2, pump_pb2
from penstock.security.tls import Security, SecurityConfig
from penstock.wire.binlog import Binlog, BinlogType
from penstock.wire.codec import encode_binlog
from tests.kit.servers.fix_pump import PumpProcess
from tests.kit.servers.node import CHANNEL_OPTIONS
from tests.kit.servers.pump_session import PumpSession

pytestmark = pytest.mark.fault

_ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,  # A stream that was accepted and has nothing to say.
}
_PUMP_METHODS: dict[str, type[Message]] = {
    "/binlog.Pump/WriteBinlog": pump_pb2.WriteBinlogReq,
    "/binlog.Pump/PullBinlogs": pump_pb2.PullBinlogReq,
    "/penstock.Pump/Write": penstock_pb2.WriteBatch,
    "/penstock.Pump/WriteLarge": penstock_pb2.WritePiece,
    "/penstock.Pump/Pull": penstock_pb2.PullRequest,
    "/penstock.Pump/Status": penstock_pb2.StatusRequest,
    "/penstock.Pump/Pause": penstock_pb2.PauseRequest,
    "/penstock.Pump/Close": penstock_pb2.CloseRequest,
    "/penstock.Pump/MoveLog": penstock_pb2.MoveLogRequest,
    "/penstock.Pump/TriggerGc": penstock_pb2.TriggerGcRequest,
    "/pdpb.PD/Tso": pdpb_pb2.TsoRequest,
    "/pdpb.PD/GetMembers": pdpb_pb2.GetMembersRequest,
}
_DRAINER_METHODS: dict[str, type[Message]] = {
    "/binlog.Cistern/Notify": cistern_pb2.NotifyReq,
    "/binlog.Cistern/DumpBinlog": cistern_pb2.DumpBinlogReq,
    "/binlog.Cistern/DumpDDLJobs": cistern_pb2.DumpDDLJobsReq,
    "/penstock.Drainer/Status": penstock_pb2.StatusRequest,
    "/penstock.Drainer/Pause": penstock_pb2.PauseRequest,
    "/penstock.Drainer/Close": penstock_pb2.CloseRequest,
}


def ask(channel: grpc.Channel, method: str, data: bytes) -> tuple[grpc.StatusCode, str]:
    """Send bytes as the only message of a call and return how it ends, or its first refusal."""
    try:
        reply = next(channel.stream_stream(method)(iter([data]), timeout=5))
    except StopIteration:
        return grpc.StatusCode.OK, ""
    except grpc.RpcError as error:
        return error.code(), error.details()
    if method.endswith("/WriteLarge"):
        return grpc.StatusCode.OK, str(penstock_pb2.WriteAck.FromString(reply).refusals[:1])
    return grpc.StatusCode.OK, ""


def noise(rng: random.Random, message: type[Message], samples: list[bytes]) -> bytes:
    """Return random bytes, or a message with some bytes changed, cut or repeated."""
    if rng.random() < 0.4 or not samples:
        return rng.randbytes(rng.randrange(1, 60))
    data = bytearray(rng.choice(samples))
    for _ in range(rng.randrange(1, 4)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.3:
        del data[rng.randrange(len(data) + 1) :]
    return bytes(data) * rng.choice((1, 1, 1, 2))


def fuzz(addr: str, methods: dict[str, type[Message]], rounds: int, seed: int) -> int:
    """Send noise to each method and return how much of it could not even be decoded."""
    rng, undecodable = random.Random(seed), 0
    samples = [
        pump_pb2.WriteBinlogReq(clusterID=1, payload=b"\x08\x00\x10\x05").SerializeToString(),
        penstock_pb2.PullRequest(cluster_id=1, after_ts=5, drainer_id="d").SerializeToString(),
        penstock_pb2.PauseRequest(node_id="somebody").SerializeToString(),
        penstock_pb2.WritePiece(cluster_id=1, bytes=9, data=b"x").SerializeToString(),
    ]
    with grpc.insecure_channel(addr, options=CHANNEL_OPTIONS) as channel:
        for number in range(rounds):
            method, message = rng.choice(list(methods.items()))
            data = noise(rng, message, samples)
            code, error = ask(channel, method, data)
            assert code in _ANSWERS, (number, method, data, code, error)
            if not is_decodable(message, data):
                undecodable += 1
                # A large write is answered with a refusal, as one that is too large.
                is_refused = method.endswith("/WriteLarge") and "INVALID" in error
                is_refused = is_refused or code is grpc.StatusCode.INVALID_ARGUMENT
                assert is_refused, (method, data, code, error)
    return undecodable


def is_decodable(message: type[Message], data: bytes) -> bool:
    try:
        message.FromString(data)
    except DecodeError:
        return False
    return True


class _NoPumps:
    """A Drainer that finds no Pumps and refuses all verbs."""

    def status(self) -> penstock_pb2.StatusReply:
        return penstock_pb2.StatusReply(node_id="d", state="online")

    async def refresh(self) -> None:
        """Find no Pumps."""

    def pause(self, asked: str) -> None:
        raise NeedsOperator(f"not {asked}", hint="none", code=Code.DDL_UNSUPPORTED)

    def close(self, asked: str) -> None:
        self.pause(asked)

    async def hand_over(self, asked: str) -> Sequence[str]:
        raise NeedsOperator(f"not {asked}", hint="none", code=Code.DDL_UNSUPPORTED)

    def add_pages(self, pages: HttpStatus) -> None:
        """Add none."""


class DrainerServer:
    """The Drainer's services on a port of its own, without a Drainer behind them."""

    def __init__(self, folder: Path, security: Security) -> None:
        self._folder = folder
        self._security = security
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._closing = asyncio.Event()
        self.addr = ""

    def __enter__(self) -> DrainerServer:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(30)
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        config = DrainerConfig(addr="127.0.0.1:0", status_addr="off")
        front = Front(config, self._security, Home(self._folder))
        await front.serve(_NoPumps())
        self.addr = front.address
        self._ready.set()
        await self._closing.wait()
        await front.close()


@pytest.fixture
def drainer_server(tmp_path: Path) -> Iterator[DrainerServer]:
    with DrainerServer(tmp_path, Security(SecurityConfig())) as server:
        yield server


def is_alive(addr: str, service: str) -> bool:
    with grpc.insecure_channel(addr, options=CHANNEL_OPTIONS) as channel:
        code, _ = ask(channel, f"/penstock.{service}/Status", b"")
        return code is grpc.StatusCode.OK


@pytest.mark.fault(
    "noise instead of messages",
    "what cannot be decoded is INVALID_ARGUMENT, in all 11 methods of a Pump and 6 of a"
    " Drainer; nodes continue",
    cases="2,200 / 102,200",
)
def test_noise_is_an_invalid_argument_to_a_pump_which_continues(
    pump: PumpProcess, etcd: Any
) -> None:
    assert fuzz(pump.addr, _PUMP_METHODS, 1500, seed=1) > 150
    session = PumpSession(etcd, pump)
    try:
        session.transaction()
    finally:
        session.close()
    assert "Traceback" not in pump.log_text()


def test_noise_is_an_invalid_argument_to_a_drainer_which_continues(
    drainer_server: DrainerServer,
) -> None:
    assert fuzz(drainer_server.addr, _DRAINER_METHODS, 700, seed=2) > 70
    assert is_alive(drainer_server.addr, "Drainer")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_thousand_pieces_of_noise(
    pump: PumpProcess, drainer_server: DrainerServer, seed: int
) -> None:
    assert fuzz(pump.addr, _PUMP_METHODS, 20_000, seed=10 + seed) > 1000
    assert fuzz(drainer_server.addr, _DRAINER_METHODS, 5_000, seed=20 + seed) > 1000
    assert pump.status().state == "online"


@pytest.mark.fault(
    "requests of another cluster", "PERMISSION_DENIED or a refusal, nothing stored", cases="5"
)
def test_a_caller_of_another_cluster_gets_nothing_and_leaves_nothing(
    pump: PumpProcess, etcd: Any
) -> None:
    session = PumpSession(etcd, pump)
    other = session.cluster_id ^ 1
    try:
        prewrite = session.prewrite()
        code, error = session.refusal(prewrite, clusterID=other)
        assert (code, "cluster" in error) == (grpc.StatusCode.PERMISSION_DENIED, True), error
        for method, request in (
            ("/penstock.Pump/Pull", penstock_pb2.PullRequest(cluster_id=other)),
            ("/binlog.Pump/PullBinlogs", pump_pb2.PullBinlogReq(clusterID=other)),
        ):
            code, error = ask(session.channel, method, request.SerializeToString())
            assert (code, "cluster" in error) == (grpc.StatusCode.PERMISSION_DENIED, True), method
        piece = penstock_pb2.WritePiece(cluster_id=other, start_ts=1, bytes=9, data=b"x")
        ack = session.batches.WriteLarge(iter([piece]), timeout=20)
        assert ack.refusals[0].code == penstock_pb2.Refusal.CLUSTER_MISMATCH
        batch = penstock_pb2.WriteBatch(cluster_id=other, payloads=[encode_binlog(prewrite)])
        ack = next(session.batches.Write(iter([batch]), timeout=20))
        assert ack.refusals[0].code == penstock_pb2.Refusal.CLUSTER_MISMATCH
        commit = Binlog(
            tp=BinlogType.COMMIT, start_ts=prewrite.start_ts, commit_ts=prewrite.start_ts + 1
        )
        code, _ = session.refusal(commit)
        assert code is grpc.StatusCode.NOT_FOUND, "nothing of the Prewrite is there"
    finally:
        session.close()


@pytest.mark.fault(
    "300 connections that say nothing, or begin and never end their greeting",
    "100 others are served meanwhile; the mute ones are closed",
    cases="400 connections to a Pump / to a Drainer too",
)
@pytest.mark.thorough
@pytest.mark.parametrize("who", ["Pump", pytest.param("Drainer", marks=pytest.mark.slow)])
def test_a_flood_of_connections_and_some_that_never_talk_hold_up_no_one(
    who: str, request: pytest.FixtureRequest
) -> None:
    fixture: Callable[[str], Any] = request.getfixturevalue
    addr = fixture("pump").addr if who == "Pump" else fixture("drainer_server").addr
    host, _, port = addr.rpartition(":")
    with ExitStack() as stack:
        mute = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            for _ in range(300)
        ]
        for number, connection in enumerate(mute):
            if number % 2:  # Half of them begin, and never end, their greeting.
                connection.sendall(b"PRI * HTTP/2.0\r\n"[: 1 + number % 15])
        channels = [
            stack.enter_context(grpc.insecure_channel(addr, options=CHANNEL_OPTIONS))
            for _ in range(100)
        ]
        for channel in channels:
            assert ask(channel, f"/penstock.{who}/Status", b"")[0] is grpc.StatusCode.OK
        # Those that never talk are let go; no one else is.
        for connection in mute:
            connection.settimeout(90)
            while connection.recv(4096):
                pass
        assert all(
            ask(channel, f"/penstock.{who}/Status", b"")[0] is grpc.StatusCode.OK
            for channel in channels
        )
