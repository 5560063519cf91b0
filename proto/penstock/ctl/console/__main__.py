"""Command: `penstock console` serves one page that shows a cluster, live.

It asks etcd and every node with the options of `penstock ctl`, and changes nothing unless it has a
token: a user who logs in with the token may use the safe verbs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from penstock import __version__
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.node import command
from penstock.settings.load import Parser
from penstock.settings.setting import check_address

PROG = "penstock console"
ADDRESS = "127.0.0.1:9252"


def main(argv: Sequence[str] | None = None) -> int:
    return command.run(PROG, lambda: _run(argv), extra="console")


def _run(argv: Sequence[str] | None) -> int:
    # Here, so that a missing package is an error like others.
    from penstock.ctl.console.web import serve
    from penstock.node import service

    arguments, token = load(argv)
    return service.run(partial(serve, arguments, token), extra="console")


def load(argv: Sequence[str] | None) -> tuple[argparse.Namespace, str]:
    from penstock.ctl.console.access import TOKEN_VARIABLE, read_token
    from penstock.ctl.nodes import DEFAULT_ETCD

    arguments = _parser().parse_args(argv)
    arguments.etcd_urls = arguments.etcd_urls or DEFAULT_ETCD
    check_address("addr", arguments.addr)
    token = read_token(arguments.token_file, os.environ.get(TOKEN_VARIABLE, ""))
    _refuse_unsafe(arguments, has_token=bool(token))
    return arguments, token


def _parser() -> argparse.ArgumentParser:
    from penstock.ctl.nodes import connection_options

    parser = Parser(
        prog=PROG,
        description="Show a cluster on one page, live: what flows, what waits, what is wrong.",
        parents=[connection_options()],
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    parser.add_argument(
        "--addr",
        default=ADDRESS,
        metavar="HOST:PORT",
        help="where to listen (default: %(default)s); elsewhere than on loopback with TLS, if"
        " --ssl-ca, --ssl-cert and --ssl-key are given",
    )
    parser.add_argument(
        "--cert-allowed-cn",
        action="append",
        default=[],
        metavar="NAME",
        help="with TLS: viewers must show a certificate of that CA with this common name; may be"
        " repeated",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="a file with a token: who logs in with it may pause nodes and the like; without one,"
        " and without PENSTOCK_CONSOLE_TOKEN, the console is read-only",
    )
    return parser


def _refuse_unsafe(arguments: argparse.Namespace, *, has_token: bool) -> None:
    """Raise `NeedsOperator` for settings that would expose the token or the page."""
    from penstock.ctl.console.access import is_loopback

    is_local = is_loopback(arguments.addr.rpartition(":")[0])
    has_tls = bool(arguments.ssl_ca and arguments.ssl_cert and arguments.ssl_key)
    if has_token and not is_local and not has_tls:
        raise NeedsOperator(
            f"a token would go over plain HTTP to {arguments.addr}",
            "give --ssl-ca, --ssl-cert and --ssl-key, or listen on 127.0.0.1 and come through"
            " ssh -L",
            Code.SETTING_VALUE,
        )
    if arguments.cert_allowed_cn and (is_local or not has_tls):
        raise NeedsOperator(
            "--cert-allowed-cn needs TLS",
            "give --ssl-ca, --ssl-cert and --ssl-key, and an --addr that is not loopback",
            Code.SETTING_VALUE,
        )


if __name__ == "__main__":
    raise SystemExit(main())
