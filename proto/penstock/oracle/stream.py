"""The connection of a timestamp client: where the oracle's leader is, and one stream to it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import grpc

from penstock.cluster.etcd import EtcdClient, read
from penstock.errors import NeedsOperator, Retryable
from penstock.pb import pdpb_pb2
from penstock.security.refusal import refusal_of
from penstock.security.tls import Tls, open_channel

log = logging.getLogger(__name__)

LEADER_KEY = "/penstock/v1/oracle/leader"

_CALL_S_MAX = 1.0  # A frozen leader is given up soon after this, while others elect a new one.
_CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


class TsoStream:
    """A stream to the current leader, used by one thread at a time; found anew after a failure.

    Reading from a stream has no deadline of its own, so a thread cancels the stream when the answer
    is overdue.
    """

    def __init__(
        self, find_leader: Callable[[float], tuple[str, int]], tls: Tls | None = None
    ) -> None:
        self._find_leader = find_leader
        self._tls = tls
        self._address = ""
        self._channel: Any = None
        self._call: Any = None
        self._requests: SimpleQueue[pdpb_pb2.TsoRequest | None] = SimpleQueue()
        self._header = pdpb_pb2.RequestHeader()
        self._overdue_s = math.inf
        self._watchdog: threading.Thread | None = None
        self._closed = threading.Event()

    def fetch(self, count: int, left_s: float) -> tuple[int, int]:
        """Return physical and logical of the last of `count` new timestamps.

        One attempt: a failure is Retryable, and the next attempt looks for the leader again.
        """
        left_s = max(min(left_s, _CALL_S_MAX), 0.01)
        call = self._call or self._open(left_s)
        self._overdue_s = time.monotonic() + left_s
        try:
            self._requests.put(pdpb_pb2.TsoRequest(header=self._header, count=count))
            answer = next(call)
        except grpc.RpcError as error:
            self._end_stream()
            if refusal := refusal_of(self._address, self._tls, error):
                raise refusal from error
            raise Retryable(
                f"the oracle at {self._address}: {error.code().name}: {error.details()}"
            ) from error
        except StopIteration as error:
            self._end_stream()
            raise Retryable(f"the oracle at {self._address} ended the stream") from error
        except BaseException:
            # An answer that is still to come must not be taken for the next request's.
            self._end_stream()
            raise
        finally:
            self._overdue_s = math.inf
        if answer.header.error.type or answer.count != count:
            self._end_stream()
            raise Retryable(f"the oracle at {self._address}: {answer.header.error.message}")
        return answer.timestamp.physical, answer.timestamp.logical

    def close(self) -> None:
        """End the stream for good; who waits for its answer gets an error."""
        self._closed.set()
        self._end_stream()
        if self._channel is not None:
            self._channel.close()
        if self._watchdog is not None:
            self._watchdog.join()

    def _open(self, left_s: float) -> Any:
        address, cluster_id = self._find_leader(left_s)
        if self._closed.is_set():
            raise Retryable("this oracle client is closed")
        if address != self._address:
            log.info("the oracle's leader is %s", address)
        # With TLS a new stream is a new channel, which reads the certificates anew.
        if address != self._address or self._tls is not None:
            if self._channel is not None:
                self._channel.close()
            self._address = address
            self._channel = open_channel(address, self._tls, _CHANNEL_OPTIONS)
        self._header = pdpb_pb2.RequestHeader(cluster_id=cluster_id)
        self._requests = SimpleQueue()
        try:
            call = self._channel.stream_stream(
                "/pdpb.PD/Tso",
                request_serializer=pdpb_pb2.TsoRequest.SerializeToString,
                response_deserializer=pdpb_pb2.TsoResponse.FromString,
            )(iter(self._requests.get, None))
        except ValueError as error:  # Another thread closes us right now.
            raise Retryable("this oracle client is closed") from error
        self._call = call
        if self._closed.is_set():
            # `close` may have come before it could see this stream and its channel.
            self._end_stream()
            self._channel.close()
            raise Retryable("this oracle client is closed")
        if self._watchdog is None:
            self._watchdog = threading.Thread(target=self._watch, name="oracle", daemon=True)
            self._watchdog.start()
        return call

    def _end_stream(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        self._requests.put(None)  # gRPC's sending thread ends with its requests.

    def _watch(self) -> None:
        while not self._closed.wait(_CALL_S_MAX / 4):
            call = self._call
            if call is not None and time.monotonic() > self._overdue_s:
                call.cancel()


class EtcdLeader:
    """Finds the Pump that was elected oracle."""

    def __init__(self, etcd: EtcdClient) -> None:
        self._etcd = etcd

    def __call__(self, left_s: float) -> tuple[str, int]:
        """Return the leader's host:port, and 0 since one etcd serves one cluster."""
        address = read(self._etcd, LEADER_KEY, timeout_s=left_s)
        if address is None:
            raise Retryable("no oracle is elected: no Pump runs, or an election is under way")
        return address.decode(), 0


class PdLeader:
    """Finds the leader among PDs by asking each of the given ones."""

    def __init__(self, addresses: str, tls: Tls | None = None) -> None:
        self._tls = tls
        self._addresses = [_host_port(part.strip()) for part in addresses.split(",")]

    def __call__(self, left_s: float) -> tuple[str, int]:
        """Return the leader's host:port and the cluster id that PD insists on."""
        problem, refusals = "", list[NeedsOperator | None]()
        for address in self._addresses:
            try:
                answer = _members(address, self._tls, left_s)
            except grpc.RpcError as error:
                refusals.append(refusal_of(address, self._tls, error))
                problem = f"PD at {address}: {error.code().name}: {error.details()}"
                continue
            if answer.leader.client_urls:
                url = answer.leader.client_urls[0]
                if url.startswith("https://") and self._tls is None:
                    raise NeedsOperator(
                        f"PD's leader at {url} asks for TLS", hint="write https:// in pd-address"
                    )
                return _host_port(url), answer.header.cluster_id
            problem = f"PD at {address} knows no leader"
            refusals.append(None)
        if refusals and (first := refusals[0]) is not None and None not in refusals:
            raise first
        raise Retryable(problem)


def _members(address: str, tls: Tls | None, timeout_s: float) -> pdpb_pb2.GetMembersResponse:
    with open_channel(address, tls, _CHANNEL_OPTIONS) as channel:
        call = channel.unary_unary(
            "/pdpb.PD/GetMembers",
            request_serializer=pdpb_pb2.GetMembersRequest.SerializeToString,
            response_deserializer=pdpb_pb2.GetMembersResponse.FromString,
        )
        answer: pdpb_pb2.GetMembersResponse = call(pdpb_pb2.GetMembersRequest(), timeout=timeout_s)
        return answer


def _host_port(url: str) -> str:
    return url.removeprefix("https://").removeprefix("http://").rstrip("/")
