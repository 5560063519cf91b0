"""PD: finds the leader among the PDs of a TiDB cluster, and its cluster id.

Every PD knows the others and their leader. The configured PDs are asked first, then those that they
named, so that a list that has become too short still leads to a PD that runs.

The cluster id must never change, because timestamps of another cluster are unrelated to ours. A
client that was once given an id therefore accepts no other id. The id of the cluster is in etcd:

/penstock/v1/cluster_id      decimal text: drawn by the first that asks, or PD's
/penstock/v1/pd_cluster_id   the same, beside it when it is PD's

TiDB sends PD's id to a Pump with each binlog, so a Pump in front of it must have the same. The id
in etcd never changes: nodes, data folders and downstreams identify each other by it. If it is not
PD's, a node with `pd-address` does not start. If it is, a node without `pd-address` does not start:
its timestamps would come from another clock than those of all others.
"""

from __future__ import annotations

import logging
import time

import grpc

from penstock.cluster.etcd import EtcdClient, transact
from penstock.cluster.node_registry import CLUSTER_ID_KEY, PD_CLUSTER_ID_KEY, Registry
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.pb import pdpb_pb2
from penstock.security.refusal import refusal_of
from penstock.security.tls import Tls, open_channel

log = logging.getLogger(__name__)

CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
]

_KNOWN_MAX = 16


def pd_tls_of(addresses: str, tls: Tls | None) -> Tls | None:
    """Return the TLS with which the PDs at these addresses are asked; None for http://.

    Without `tls`, PDs at https:// are asked without a client certificate, and trusted by the
    system's CAs. Raises `NeedsOperator` if only some are at https://.
    """
    secure = {each.startswith("https://") for each in _split(addresses)}
    if len(secure) > 1:
        raise NeedsOperator(
            f"only some addresses in {addresses!r} begin with https://",
            "write https:// before each address in pd-address, or before none",
            Code.SETTING_VALUE,
        )
    return (tls or Tls()) if secure == {True} else None


class PdLeader:
    """Finds the leader among PDs; for one thread at a time."""

    def __init__(self, addresses: str, tls: Tls | None = None) -> None:
        """Take a comma-separated list; nothing is requested yet."""
        self._tls = tls
        self._configured = [_host_port(each) for each in _split(addresses)]
        self._named: list[str] = []
        self._cluster_id: int | None = None

    def __call__(self, left_s: float) -> tuple[str, int]:
        """Return the leader's host:port and the cluster id that PD insists on.

        Each silent PD costs up to `left_s`. Raises `Retryable` when none knows a leader,
        `NeedsOperator` when all configured PDs refuse us, or belong to another cluster.
        """
        problem, refusals = "", list[NeedsOperator | None]()
        others = [each for each in self._named if each not in self._configured]
        for address in (*self._configured, *others):
            try:
                answer = _members(address, self._tls, left_s)
            except grpc.RpcError as error:
                if address in self._configured:
                    refusals.append(refusal_of(address, self._tls, error))
                problem = f"PD at {address}: {error.code().name}: {error.details()}"
                continue
            if answer.header.error.type:
                problem = f"PD at {address}: {answer.header.error.message}"
            elif answer.leader.client_urls:
                return self._leader(address, answer)
            else:
                problem = f"PD at {address} knows no leader"
            refusals.append(None)
        if refusals and (first := refusals[0]) is not None and None not in refusals:
            raise first
        raise Retryable(problem, Code.ORACLE_AWAY)

    def _leader(self, address: str, answer: pdpb_pb2.GetMembersResponse) -> tuple[str, int]:
        found = answer.header.cluster_id
        if self._cluster_id not in (None, found):
            raise NeedsOperator(
                f"PD at {address} is of cluster {found}, and it was {self._cluster_id} before",
                "check pd-address: all PDs in it must be of one cluster",
                Code.CLUSTER_MISMATCH,
            )
        url = answer.leader.client_urls[0]
        if url.startswith("https://") and self._tls is None:
            raise NeedsOperator(
                f"PD's leader at {url} asks for TLS",
                "write https:// in pd-address",
                Code.TLS_MISMATCH,
            )
        self._cluster_id = found
        urls = [url for member in answer.members for url in member.client_urls]
        self._named = [_host_port(url) for url in urls[:_KNOWN_MAX]]
        return _host_port(url), found


def _members(address: str, tls: Tls | None, timeout_s: float) -> pdpb_pb2.GetMembersResponse:
    with open_channel(address, tls, CHANNEL_OPTIONS) as channel:
        call = channel.unary_unary(
            "/pdpb.PD/GetMembers",
            request_serializer=pdpb_pb2.GetMembersRequest.SerializeToString,
            response_deserializer=pdpb_pb2.GetMembersResponse.FromString,
        )
        answer: pdpb_pb2.GetMembersResponse = call(pdpb_pb2.GetMembersRequest(), timeout=timeout_s)
        return answer


def _split(addresses: str) -> list[str]:
    return [part for each in addresses.split(",") if (part := each.strip())]


def _host_port(url: str) -> str:
    return url.removeprefix("https://").removeprefix("http://").rstrip("/")


_WITHIN_S = 10.0
_ANSWER_S_MAX = 2.0
_RETRY_S = 0.2


def find_cluster_id(
    etcd: EtcdClient,
    pd_address: str | None = None,
    pd_tls: Tls | None = None,
    *,
    within_s: float = _WITHIN_S,
) -> int:
    """Return the id of the cluster of this etcd, and of the PDs at `pd_address` if it is given.

    Raises `Retryable` when etcd or PD does not answer in time, `NeedsOperator` when the two are not
    of one cluster.
    """
    if not pd_address:
        return Registry(etcd).cluster_id()
    found = _pd_cluster_id(PdLeader(pd_address, pd_tls_of(pd_address, pd_tls)), within_s)
    _keep(etcd, found, pd_address)
    return found


def _pd_cluster_id(leader: PdLeader, within_s: float) -> int:
    until_s = time.monotonic() + within_s
    while True:
        try:
            return leader(min(_ANSWER_S_MAX, within_s))[1]
        except Retryable:
            if time.monotonic() + _RETRY_S >= until_s:
                raise
            time.sleep(_RETRY_S)


def _keep(etcd: EtcdClient, pd_id: int, pd_address: str) -> None:
    """Store PD's id in etcd; raise `NeedsOperator` when another id is stored."""
    do, text = etcd.transactions, str(pd_id)
    puts = [do.put(CLUSTER_ID_KEY, text), do.put(PD_CLUSTER_ID_KEY, text)]
    transact(etcd, [do.create(CLUSTER_ID_KEY) == 0], puts)
    # Compared by value, not by presence: an id that an operator restored by hand is also PD's.
    is_same, answers = transact(
        etcd, [do.value(CLUSTER_ID_KEY) == text], puts[1:], [do.get(CLUSTER_ID_KEY)]
    )
    if is_same:
        return
    values = [value.decode("utf-8", "replace") for value, _ in answers[0]]
    raise NeedsOperator(
        f"the PD at {pd_address} is of cluster {pd_id}, and this etcd holds the nodes of cluster"
        f" {', '.join(values) or '?'}",
        "check etcd-urls and pd-address; if the cluster began without its PD's id, see"
        " 'With a TiDB' in pump/README.md",
        Code.CLUSTER_MISMATCH,
    )
