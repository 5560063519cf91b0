"""Cluster id: PD's if a PD is configured, otherwise the id in this etcd.

/penstock/v1/cluster_id      decimal text: drawn by the first that asks, or PD's
/penstock/v1/pd_cluster_id   the same, beside it when it is PD's

TiDB sends PD's id to a Pump with each binlog, so a Pump in front of it must have the same. The id
in etcd never changes: nodes, data folders and downstreams identify each other by it. If it is not
PD's, a node with `pd-address` does not start. If it is, a node without `pd-address` does not start:
its timestamps would come from another clock than those of all others.
"""

from __future__ import annotations

import time

from penstock.cluster.etcd import EtcdClient, etcd_errors
from penstock.cluster.node_registry import CLUSTER_ID_KEY, PD_CLUSTER_ID_KEY, Registry
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.oracle.pd import PdLeader, pd_tls_of
from penstock.security.tls import Tls

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
    with etcd_errors(etcd):
        # Compared by value, not by presence: an id that an operator restored by hand is also PD's.
        etcd.transaction(
            compare=[do.create(CLUSTER_ID_KEY) == 0],
            success=[do.put(CLUSTER_ID_KEY, text), do.put(PD_CLUSTER_ID_KEY, text)],
            failure=[],
        )
        is_same, answers = etcd.transaction(
            compare=[do.value(CLUSTER_ID_KEY) == text],
            success=[do.put(PD_CLUSTER_ID_KEY, text)],
            failure=[do.get(CLUSTER_ID_KEY)],
        )
    if is_same:
        return
    values = [value.decode("utf-8", "replace") for value, _ in answers[0]]
    raise NeedsOperator(
        f"the PD at {pd_address} is of cluster {pd_id}, and this etcd holds the nodes of cluster"
        f" {', '.join(values) or '?'}",
        hint="check etcd-urls and pd-address; if the cluster began without its PD's id, see"
        " 'With a TiDB' in pump/README.md",
        code=Code.CLUSTER_MISMATCH,
    )
