"""A PD of one member, so far as timestamps go, over TLS if it is given a certificate."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

from penstock.pb import pdpb_pb2, pdpb_pb2_grpc
from tests.kit.servers.authority import Pair

CLUSTER_ID = 4711


class ScriptedPd(pdpb_pb2_grpc.PDServicer):
    """Hands out one physical ms after the other; listens at `url` for as long as a `with` lasts."""

    def __init__(self, pair: Pair | None = None) -> None:
        self._ms = itertools.count(1_700_000_000_000)
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        pdpb_pb2_grpc.add_PDServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        if pair is None:
            self.url = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
            return
        credentials = grpc.ssl_server_credentials(
            [(pair.key.read_bytes(), pair.cert.read_bytes())],
            pair.ca.read_bytes(),
            require_client_auth=True,
        )
        self.url = f"https://127.0.0.1:{self._server.add_secure_port('127.0.0.1:0', credentials)}"

    def GetMembers(self, request: Any, context: Any) -> Any:  # noqa: N802
        header = pdpb_pb2.ResponseHeader(cluster_id=CLUSTER_ID)
        leader = pdpb_pb2.Member(name="pd", client_urls=[self.url])
        return pdpb_pb2.GetMembersResponse(header=header, members=[leader], leader=leader)

    def Tso(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        for request in requests:
            stamp = pdpb_pb2.Timestamp(physical=next(self._ms), logical=request.count)
            yield pdpb_pb2.TsoResponse(count=request.count, timestamp=stamp)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop(0).wait()
