"""Safe verbs: the verbs of penstock ctl that a console offers, with their effects.

    pause-pump, pause-drainer    the process ends and keeps its place, until it is started again
    offline-pump                 it hands over all its data, then leaves
    hand-over                    a standby writes in the Drainer's place

None of them can lose a row: a stopped node comes back with all its data, and a Pump goes offline
only once every Drainer has all of it. Therefore `offline-drainer` is not offered, because Pumps
then drop data that only that Drainer needs. Nor are `update-…`, `lost-pump`, and `trigger-gc`,
which with `gc-force-after-days` purges data that a late Drainer still needs.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ctl.console.cluster_state import ClusterState, DrainerNode, PumpNode
from ctl.nodes import Cluster, known_node, tls_of
from ctl.steering import begin_ending, begin_hand_over
from penstock.cluster.node_registry import NodeKind
from penstock.codes import Code
from penstock.errors import NeedsOperator

PAUSE_PUMP, OFFLINE_PUMP = "pause-pump", "offline-pump"
PAUSE_DRAINER, HAND_OVER = "pause-drainer", "hand-over"

KINDS: Final[Mapping[str, NodeKind]] = {
    PAUSE_PUMP: NodeKind.PUMP,
    OFFLINE_PUMP: NodeKind.PUMP,
    PAUSE_DRAINER: NodeKind.DRAINER,
    HAND_OVER: NodeKind.DRAINER,
}

_BY_HAND: Final = (
    "That is done by hand: a supervisor leaves a node that stopped as asked, and a console cannot"
    " start one."
)


class Offer(NamedTuple):
    """A verb that is possible for a node now, and its consequences, in sentences."""

    verb: str
    node_id: str
    consequences: tuple[str, ...]

    def command(self, etcd_urls: str) -> str:
        return shlex.join(["penstock", "ctl", self.verb, self.node_id, "--etcd-urls", etcd_urls])


def offers(state: ClusterState) -> Iterator[Offer]:
    online = [pump for pump in state.pumps if pump.word == "online"]
    for pump in online:
        yield Offer(PAUSE_PUMP, pump.name, tuple(_of_pausing_pump(pump, len(online) - 1)))
        yield Offer(OFFLINE_PUMP, pump.name, tuple(_of_offline_pump(len(online) - 1)))
    for drainer in state.drainers:
        if drainer.word != "online":
            continue
        yield Offer(PAUSE_DRAINER, drainer.name, tuple(_of_pausing_drainer(drainer)))
        if drainer.standbys:
            yield Offer(HAND_OVER, drainer.name, tuple(_of_hand_over(drainer)))


def begin(offer: Offer, arguments: argparse.Namespace) -> str:
    """Act as penstock ctl does; return what was started, or raise a `PenstockError`."""
    kind, tls = KINDS[offer.verb], tls_of(arguments)
    with Cluster(arguments) as registry:
        status = known_node(registry, kind, offer.node_id)
    if offer.verb == HAND_OVER:
        return f"makes room for {' or '.join(begin_hand_over(status, tls))}"
    verb = offer.verb.partition("-")[0]
    begin_ending(kind, status, verb, tls)
    return "pausing" if verb == "pause" else "closing"


def find(state: ClusterState, verb: str, node_id: str) -> Offer:
    """Return a currently valid offer; raise `NeedsOperator` if there is none."""
    for each in offers(state):
        if (each.verb, each.node_id) == (verb, node_id):
            return each
    raise NeedsOperator(
        f"{verb} cannot be done to {node_id} now",
        "look at the page again: states change",
        Code.NODE_STATE,
    )


def _of_pausing_pump(pump: PumpNode, others: int) -> Iterator[str]:
    yield f"The process of Pump {pump.name} ends, with all that it holds on its disk."
    yield _where_writers_go(others)
    yield (
        f"Every Drainer waits for it: nothing goes downstream until it is started again. {_BY_HAND}"
    )


def _of_offline_pump(others: int) -> Iterator[str]:
    yield "It takes no new transactions, and stays until every Drainer has all that it holds."
    yield "Then it leaves the cluster, and its process ends. Started again, it joins as before."
    yield _where_writers_go(others)
    yield "A Drainer that does not run holds it up; nothing is given up for that."


def _of_pausing_drainer(drainer: DrainerNode) -> Iterator[str]:
    yield f"Drainer {drainer.name} commits the current batch, and its process ends."
    if drainer.standbys:
        yield f"{' or '.join(drainer.standbys)} takes its place."
    else:
        yield f"The downstream stands still until it is started again. {_BY_HAND}"
    yield "Pumps keep all that it has not got yet; their disks fill meanwhile."


def _of_hand_over(drainer: DrainerNode) -> Iterator[str]:
    yield f"Drainer {drainer.name} commits the current batch, and is on standby."
    yield f"{' or '.join(drainer.standbys)} writes in its place, from the same checkpoint."


def _where_writers_go(others: int) -> str:
    if not others:
        return "No other Pump is online: writers get an error until one is."
    return f"Writers use the other {others} online." if others > 1 else "Writers use the other one."
