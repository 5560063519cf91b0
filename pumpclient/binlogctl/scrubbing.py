"""Makes a Pump read all data on its disk, and shows the progress with `--wait`."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

from penstock.cluster.node_registry import NodeKind
from penstock.codes import Code
from penstock.errors import NeedsOperator, Retryable
from penstock.pb import penstock_pb2
from pumpclient.binlogctl.nodes import Cluster, add_node, call_pump, known_node, show_change
from pumpclient.binlogctl.steering import add_wait

_TICK_S: Final = 0.5
_SAID_EVERY_S: Final = 5.0
_ENDED_EARLY: Final = "ended early"
_IN_WORK: Final = ("begins", "reads ")


def add_command(commands: Any, shared: argparse.ArgumentParser) -> None:
    scrub = commands.add_parser(
        "scrub", parents=[shared], help="pump: read all that is on its disk, and mend it"
    )
    add_node(scrub)
    add_wait(scrub)
    scrub.set_defaults(run=_scrub)


def _scrub(arguments: argparse.Namespace) -> int:
    with Cluster(arguments) as registry:
        status = known_node(registry, NodeKind.PUMP, arguments.node_id)
    name = status.node_id
    request = penstock_pb2.ScrubRequest(node_id=name)
    message = call_pump(arguments, status.host, "Scrub", request).message
    facts: dict[str, Any] = {"node_id": name, "scrub": message}
    if not arguments.wait:
        show_change(
            arguments, facts, f"{name}: {message}; see `binlogctl status {name}` for how it goes"
        )
        return 0
    details = _ended(arguments, name)
    left = int(details.get("damaged_places", 0))
    facts |= {"scrub": details["scrub"], "damaged_places": left}
    if left:
        places = [key for key in details if key.startswith("damaged ")]
        raise NeedsOperator(
            f"{name}: {details['scrub']}: {', '.join(places)}",
            hint="no other disk has these places whole; keep a copy of the files before you change"
            " anything",
            code=Code.SEGMENT_DAMAGED,
        )
    show_change(arguments, facts, f"{name}: {details['scrub']}")
    return 0


def _ended(arguments: argparse.Namespace, name: str) -> dict[str, str]:
    end_s, said_s = time.monotonic() + arguments.timeout, time.monotonic()
    problem = "it has not answered"
    while time.monotonic() < end_s:
        time.sleep(min(_TICK_S, max(0.0, end_s - time.monotonic())))
        try:
            with Cluster(arguments) as registry:
                host = known_node(registry, NodeKind.PUMP, name).host
            request = penstock_pb2.StatusRequest()
            reply = call_pump(arguments, host, "Status", request)
        except Retryable as error:
            problem = str(error)
            continue
        details: dict[str, str] = dict(reply.details)
        problem = details["scrub"]
        if problem.startswith(_ENDED_EARLY):
            break
        if not problem.startswith(_IN_WORK):
            return details
        if time.monotonic() - said_s >= _SAID_EVERY_S:
            said_s = time.monotonic()
            sys.stderr.write(f"{name}: {problem}\n")
    raise Retryable(
        f"{name}: its scrub has not ended well within {arguments.timeout:g} s: {problem}; it"
        " continues, or is tried again, by itself",
        code=Code.WAIT_ENDED,
    )
