"""A Pump of TiDB-Binlog, as far as its neighbours can see: no method of ours, no word of ours.

It serves gRPC (`binlog.Pump`) and HTTP (`PUT /state/…`) at one port, distinguished by their first
bytes; keeps its entry in etcd as it does, without a lease and with `isAlive` false; sends a fake
binlog when nothing was written for a while; and goes offline once every Drainer that is not offline
has all that it holds.
"""

import bisect
import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

from penstock.cluster.node_registry import ROOT, NodeKind, NodeState, Registry
from penstock.errors import Retryable
from penstock.oracle.client import Oracle
from penstock.pb import binlog_pb2, cistern_pb2, cistern_pb2_grpc, pump_pb2, pump_pb2_grpc

_HTTP2 = b"PRI * HTTP/2"
_STATE = re.compile(rb"PUT /state/([^/ ]+)/([a-z]+) HTTP/1")
_TICK_S = 0.1
_CLOSING_S = 1.0
"""How often one that is closing looks at the Drainers; each time it sends another fake binlog."""
_ENDINGS = {"pause": NodeState.PAUSING, "close": NodeState.CLOSING}


class OriginalPump(pump_pb2_grpc.PumpServicer):
    """It is online from `start` on; what it stores is in memory."""

    def __init__(self, etcd: Any, oracle: Oracle, node_id: str) -> None:
        self.node_id = node_id
        self.state = NodeState.PAUSED
        self.taken = 0
        """How many transactions writers gave it."""
        self.refusal = ""
        """What it answers when it is to be steered, if it does not want to."""
        self._etcd = etcd
        self._oracle = oracle
        self._registry = Registry(etcd)
        self._cluster_id = self._registry.cluster_id()
        self._lock = threading.Condition()
        self._open: dict[int, bytes] = {}
        self._sorted: list[tuple[int, bytes]] = []
        self._waiting: list[tuple[int, bytes]] = []
        self._ended = threading.Event()
        self._alive = threading.Thread(target=self._live, daemon=True)
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        pump_pb2_grpc.add_PumpServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._inner = self._server.add_insecure_port("127.0.0.1:0")
        self._front = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._front.getsockname()[1]}"

    # --- its run ---------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._server.start()
        threading.Thread(target=self._serve, daemon=True).start()
        self._beat()
        self._notify()
        self.state = NodeState.ONLINE
        self._beat()
        self._alive.start()
        return self

    def _notify(self) -> None:
        for drainer in self._registry.list(NodeKind.DRAINER):
            if drainer.state is NodeState.ONLINE:
                with grpc.insecure_channel(drainer.host) as channel:
                    stub = cistern_pb2_grpc.CisternStub(channel)  # type: ignore[no-untyped-call]
                    stub.Notify(cistern_pb2.NotifyReq(), timeout=20)

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        with self._lock:
            self._lock.notify_all()
        if self._alive.is_alive():
            self._alive.join()  # The etcd that it writes to ends after it.
        self._front.close()
        self._server.stop(0).wait()

    def _live(self) -> None:
        while not self._ended.wait(_TICK_S if self.state is NodeState.ONLINE else _CLOSING_S):
            if self.state is NodeState.PAUSING:
                self._end(NodeState.PAUSED)
            elif self.state is NodeState.CLOSING and self._is_drained():
                self._end(NodeState.OFFLINE)
            else:
                with contextlib.suppress(Retryable):
                    self._fake()
                    self._beat()

    def _end(self, state: NodeState) -> None:
        self.state = state
        self._beat()
        self._ended.set()
        with self._lock:
            self._lock.notify_all()
        self._front.close()
        self._server.stop(0)

    def _is_drained(self) -> bool:
        drainers = self._registry.list(NodeKind.DRAINER)
        waiting = [d.max_commit_ts for d in drainers if d.state is not NodeState.OFFLINE]
        with self._lock:
            return not self._open and min(waiting, default=2**63) >= self._max_ts()

    def _beat(self) -> None:
        with self._lock:
            max_ts = self._max_ts()
        fields = {
            "nodeId": self.node_id, "host": self.address, "state": str(self.state),
            "isAlive": False, "score": 0, "label": None,
            "maxCommitTS": max_ts, "updateTS": self._oracle.get_ts(),
        }  # fmt: skip
        self._etcd.put(f"{ROOT}/pumps/{self.node_id}", json.dumps(fields))

    # --- binlogs ---------------------------------------------------------------------------

    def _max_ts(self) -> int:
        return self._sorted[-1][0] if self._sorted else 0

    def _fake(self) -> None:
        with self._lock:
            if self._open:
                return
            ts = self._oracle.get_ts()
            fake = binlog_pb2.Binlog(tp=binlog_pb2.Rollback, start_ts=ts, commit_ts=ts)
            self._sorted.append((ts, fake.SerializeToString()))
            self._lock.notify_all()

    def WriteBinlog(self, request: Any, context: Any) -> pump_pb2.WriteBinlogResp:  # noqa: N802
        binlog = binlog_pb2.Binlog.FromString(request.payload)
        if request.clusterID != self._cluster_id:
            context.abort(grpc.StatusCode.UNKNOWN, "cluster ID are mismatch")
        if binlog.tp == binlog_pb2.Prewrite and self.state is not NodeState.ONLINE:
            context.abort(grpc.StatusCode.UNKNOWN, f"no online: {self.state}")
        with self._lock:
            if binlog.tp == binlog_pb2.Prewrite and binlog.start_ts:
                self._open[binlog.start_ts] = request.payload
            elif binlog.start_ts:
                prewrite = self._open.pop(binlog.start_ts)
                if binlog.tp == binlog_pb2.Commit:
                    self.taken += 1
                    merged = binlog_pb2.Binlog.FromString(prewrite + request.payload)
                    self._waiting.append((binlog.commit_ts, merged.SerializeToString()))
                if not self._open:
                    self._sorted += sorted(self._waiting)
                    self._waiting.clear()
                    self._lock.notify_all()
        return pump_pb2.WriteBinlogResp()

    def PullBinlogs(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        after_ts = request.startFrom.offset
        while not self._ended.is_set() and context.is_active():
            with self._lock:
                at = bisect.bisect_right(self._sorted, after_ts, key=lambda each: each[0])
                found = self._sorted[at:]
                if not found:
                    self._lock.wait(_TICK_S)
            for after_ts, payload in found:
                meta = pump_pb2.Meta(commitTs=after_ts)
                yield pump_pb2.PullBinlogResp(entity=pump_pb2.Entity(payload=payload, meta=meta))

    # --- one port for two protocols --------------------------------------------------------

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._front.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            first = client.recv(4096)
            if not first.startswith(_HTTP2):
                client.sendall(self._http(first))
                return
            with socket.create_connection(("127.0.0.1", self._inner)) as inner:
                inner.sendall(first)
                back = threading.Thread(target=_pass_on, args=(inner, client), daemon=True)
                back.start()
                _pass_on(client, inner)
                back.join()

    def _http(self, request: bytes) -> bytes:
        """Answer with status 200, whatever becomes of it, as it does."""
        asked = _STATE.match(request)
        problem = self.refusal
        if asked is None or asked[1].decode().replace("%3A", ":") != self.node_id:
            problem = f"invalid nodeID, this pump's is {self.node_id}"
        elif self.state is not NodeState.ONLINE:
            problem = f"this pump's state is {self.state}, apply {asked[2].decode()} failed!"
        elif not problem:
            self.state = _ENDINGS[asked[2].decode()]
        body = {"message": problem or "success!", "code": 3 if problem else 200, "data": None}
        text = json.dumps(body).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        return head.encode() + text


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
