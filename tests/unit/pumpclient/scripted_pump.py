"""A Pump on loopback that does what a test wants: both services, no storage."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from penstock.pb import penstock_pb2, pump_pb2
from penstock.wire.binlog import Binlog
from penstock.wire.codec import decode_binlog

Verdict = Callable[[bytes], tuple[penstock_pb2.Refusal.Code, str] | None]
"""What to answer to a payload: None takes it, else a refusal's code and message."""


class ScriptedPump:
    """Counts and keeps what it is sent; `verdict` decides, `gate` delays every answer."""

    def __init__(
        self,
        node_id: str = "pump-1",
        *,
        port: int = 0,
        has_batches: bool = True,
        has_large: bool = True,
        verdict: Verdict = lambda payload: None,
    ) -> None:
        self.node_id = node_id
        self.verdict = verdict
        self.batches: list[list[bytes]] = []
        self.large: list[bytes] = []
        self.unary_calls = 0
        self.cluster_ids: set[int] = set()
        self._is_dead = False
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)
        self._pool = ThreadPoolExecutor(16)
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        self._add("binlog.Pump", {"WriteBinlog": self._unary(self._write_binlog, pump_pb2)})
        if has_batches:
            large = grpc.stream_unary_rpc_method_handler(
                self._write_large,
                penstock_pb2.WritePiece.FromString,
                penstock_pb2.WriteAck.SerializeToString,
            )
            self._add(
                "penstock.Pump",
                {
                    **({"WriteLarge": large} if has_large else {}),
                    "Status": self._unary(self._status, penstock_pb2, "StatusRequest"),
                    "Write": grpc.stream_stream_rpc_method_handler(
                        self._write,
                        penstock_pb2.WriteBatch.FromString,
                        penstock_pb2.WriteAck.SerializeToString,
                    ),
                },
            )
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"
        self._server.start()

    @property
    def binlogs(self) -> list[Binlog]:
        """Everything it took, in order, without probes."""
        taken = [decode_binlog(payload) for batch in self.batches for payload in batch]
        return [binlog for binlog in taken if binlog.start_ts or binlog.commit_ts]

    def stop(self) -> None:
        self._is_dead = True
        self.gate.set()
        self._server.stop(0).wait()
        self._pool.shutdown()

    def _add(self, service: str, methods: dict[str, Any]) -> None:
        handler = grpc.method_handlers_generic_handler(service, methods)
        self._server.add_generic_rpc_handlers((handler,))

    def _unary(self, method: Any, module: Any, request: str = "WriteBinlogReq") -> Any:
        return grpc.unary_unary_rpc_method_handler(
            method, getattr(module, request).FromString, lambda reply: reply.SerializeToString()
        )

    def _status(self, request: Any, context: Any) -> penstock_pb2.StatusReply:
        return penstock_pb2.StatusReply(node_id=self.node_id, state="online")

    def _write(
        self, requests: Iterator[penstock_pb2.WriteBatch], context: Any
    ) -> Iterator[penstock_pb2.WriteAck]:
        for batch in requests:
            self.cluster_ids.add(batch.cluster_id)
            refusals, taken = [], []
            for index, payload in enumerate(batch.payloads):
                refused = self.verdict(payload)
                if refused is None:
                    taken.append(payload)
                else:
                    code, message = refused
                    refusals.append(penstock_pb2.Refusal(index=index, code=code, message=message))
            self.batches.append(taken)
            self.arrived.release()
            self.gate.wait()
            if self._is_dead:
                return
            yield penstock_pb2.WriteAck(seq=batch.seq, refusals=refusals)

    def _write_large(
        self, requests: Iterator[penstock_pb2.WritePiece], context: Any
    ) -> penstock_pb2.WriteAck:
        first = next(requests)
        self.cluster_ids.add(first.cluster_id)
        refused = self.verdict(first.data)
        if refused is not None:
            code, message = refused
            refusal = penstock_pb2.Refusal(code=code, message=message)
            return penstock_pb2.WriteAck(refusals=[refusal])
        data = b"".join([first.data, *(message.data for message in requests)])
        if len(data) == first.bytes and context.is_active():
            self.large.append(data)
        return penstock_pb2.WriteAck()

    def _write_binlog(self, request: Any, context: Any) -> pump_pb2.WriteBinlogResp:
        self.unary_calls += 1
        self.cluster_ids.add(request.clusterID)
        refused = self.verdict(request.payload)
        if refused is not None:
            context.abort(grpc.StatusCode.UNKNOWN, refused[1])
        self.batches.append([request.payload])
        self.arrived.release()
        self.gate.wait()
        return pump_pb2.WriteBinlogResp()
