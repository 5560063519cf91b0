"""Command `penstock ctl`: lists nodes, shows their state and their logs, and steers them.

    pumps, drainers                    a table to standard output
    status                             a node's detailed status, or its last known status
    pause-pump, pause-drainer          the node stops and keeps its place: paused
    offline-pump, offline-drainer      the node hands everything over, then leaves: offline
                                       (offline-pump: also for a stopped Pump that is drained)
    drain                              offline-pump, and the replicas on its disk move elsewhere
    move-log                           another Pump serves a Pump's log from now on
    update-pump, update-drainer        writes another state to etcd, for a node that is dead
    hand-over                          the active Drainer hands over to a standby, and becomes one
    lost-pump                          a Pump's disk is permanently lost: continue without its data
    adopt-log                          one disk continues a log, after etcd was restored
    lost-ddl                           writers continue without a DDL missing in a restored etcd
    trigger-gc                         a Pump purges all that it may purge now
    scrub                              a Pump reads all data on its disk, and repairs it
    timestamp                          the cluster's time, for a Drainer's initial-commit-ts
    generate_meta, encrypt             the same as a file; a password as TiDB-Binlog writes it
    dump                               the content of a Pump's log, verified; needs no node, no etcd

A node is named as `status pump-1` or `status --node-id pump-1`; every command takes `-o json`.
Calls in TiDB-Binlog's spelling, `-cmd pumps -pd-urls …`, are also understood (`compat`). Exit
codes: 0 done, 1 it failed and may work later, 2 an operator must change something first; the others
are those of `penstock.node.command`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from penstock import __version__
from penstock.ctl import compat, dump, lost, nodes, steering
from penstock.node import command
from penstock.node.output import add_output
from penstock.settings.load import Parser


def main(argv: Sequence[str] | None = None) -> int:
    def body() -> int:
        translated = compat.in_our_words(sys.argv[1:] if argv is None else argv)
        ours, notes = translated or (argv, ())
        for note in notes:
            sys.stderr.write(f"penstock ctl: {note}\n")
        arguments = command_parser().parse_args(ours)
        nodes.resolve_cluster(arguments, has_default=translated is not None)
        nodes.resolve_node(arguments)
        code: int = arguments.run(arguments)
        return code

    return command.run("penstock ctl", body)


def command_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="penstock ctl",
        description="Look at and steer the nodes of a Penstock cluster.",
        epilog="TiDB-Binlog's spelling is understood too: penstock ctl -cmd pumps -pd-urls URL",
    )
    parser.add_argument("--version", action="version", version=f"penstock ctl {__version__}")
    shared = nodes.connection_options()
    add_output(shared)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    nodes.add_commands(commands, shared)
    steering.add_commands(commands, shared)
    lost.add_commands(commands, shared)
    compat.add_commands(commands, shared)
    dump.add_commands(commands)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
