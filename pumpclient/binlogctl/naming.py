"""Naming the node that a command is about: `pause-pump pump-1` or `pause-pump --node-id pump-1`."""

from __future__ import annotations

import argparse

from penstock.errors import NeedsOperator

_HELP = "name of the node, as `pumps` and `drainers` list it"


def add_node(command: argparse.ArgumentParser, *, or_address: bool = False) -> None:
    """Let a command take a node in both ways, and its address instead where that is enough."""
    command.add_argument("node", metavar="NODE-ID", nargs="?", help=_HELP)
    command.add_argument("--node-id", metavar="NODE-ID", help="the same as an option")
    if or_address:
        command.add_argument(
            "--addr", metavar="HOST:PORT", help="ask this address, and leave etcd alone"
        )
    command.set_defaults(names_node=True)


def resolve_node(arguments: argparse.Namespace) -> None:
    """Make `node` and `node_id` the node that was named; raise `NeedsOperator` for none or two."""
    if not getattr(arguments, "names_node", False):
        return
    first, second = arguments.node, arguments.node_id
    if first and second and first != second:
        raise NeedsOperator(f"two nodes are named: {first} and {second}", hint="name one of them")
    arguments.node = arguments.node_id = first or second
    if not arguments.node and not getattr(arguments, "addr", None):
        more = ", or --addr" if hasattr(arguments, "addr") else ""
        raise NeedsOperator("no node is named", hint=f"give a node id{more}")
