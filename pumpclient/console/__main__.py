"""Command: `penstock console` serves one page that shows a cluster, live.

It asks etcd and every node with the options of `penstock ctl`, and changes nothing unless it has a
token: then whoever logs in with it may use the safe verbs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from penstock import __version__
from penstock.errors import NeedsOperator
from penstock.node import command
from penstock.settings.setting import check_address

log = logging.getLogger("penstock.console")

PROG = "penstock console"
ADDRESS = "127.0.0.1:9252"
_KEEP_ALIVE_S = 30


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until asked to stop; return the exit code as `penstock.node.command` defines."""
    return command.run(PROG, lambda: _run(argv), extra="console")


def _run(argv: Sequence[str] | None) -> int:
    # Here, so that a package that is not installed is an error like others.
    from penstock.node import service
    from pumpclient.console.access import TOKEN_VARIABLE, Access, read_token

    arguments = _parser().parse_args(argv)
    check_address("addr", arguments.addr)
    token = read_token(arguments.token_file, os.environ.get(TOKEN_VARIABLE, ""))
    _refuse_unsafe(arguments, has_token=bool(token))
    access = Access(token, time.monotonic)

    async def serve(stop: asyncio.Event) -> None:
        await _serve(arguments, access, stop)

    return service.run(serve, extra="console")


def _parser() -> argparse.ArgumentParser:
    from pumpclient.binlogctl.nodes import connection_options

    parser = argparse.ArgumentParser(
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
    """Raise `NeedsOperator` for settings under which the token or the page would be anyone's."""
    from pumpclient.console.access import is_loopback

    is_local = is_loopback(arguments.addr.rpartition(":")[0])
    has_tls = bool(arguments.ssl_ca and arguments.ssl_cert and arguments.ssl_key)
    if has_token and not is_local and not has_tls:
        raise NeedsOperator(
            f"a token would go over plain HTTP to {arguments.addr}",
            hint="give --ssl-ca, --ssl-cert and --ssl-key, or listen on 127.0.0.1 and come through"
            " ssh -L",
        )
    if arguments.cert_allowed_cn and (is_local or not has_tls):
        raise NeedsOperator(
            "--cert-allowed-cn needs TLS",
            hint="give --ssl-ca, --ssl-cert and --ssl-key, and an --addr that is not loopback",
        )


async def _serve(arguments: argparse.Namespace, access: object, stop: asyncio.Event) -> None:
    from aiohttp import web

    from penstock.node import supervisor
    from penstock.security.tls import server_context
    from pumpclient.binlogctl.nodes import etcd_tls_of, tls_of
    from pumpclient.console.access import Access, is_loopback
    from pumpclient.console.poller import Poller
    from pumpclient.console.web import Console

    assert isinstance(access, Access)
    host, _, port = arguments.addr.rpartition(":")
    host = host.strip("[]")
    tls, allowed = tls_of(arguments), frozenset(arguments.cert_allowed_cn)
    context = None
    if tls is not None and arguments.ssl_cert and not is_loopback(host):
        context = server_context(tls, with_client_certificate=bool(allowed))
    poller = Poller(arguments.etcd_urls, etcd_tls=etcd_tls_of(arguments), tls=tls)
    console = Console(poller, access, arguments, allowed=allowed)
    runner = web.AppRunner(
        console.app(), access_log=None, keepalive_timeout=_KEEP_ALIVE_S, shutdown_timeout=1
    )
    await runner.setup()
    site = web.TCPSite(runner, host, int(port), ssl_context=context)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise NeedsOperator(
            f"cannot listen on {arguments.addr}: {error}", hint="choose another --addr"
        ) from error
    bound = runner.addresses[0][1]
    shown = f"[{host}]" if ":" in host else host
    log.info("the console is at %s://%s:%d/", "https" if context else "http", shown, bound)
    supervisor.say(supervisor.READY)
    tasks = [asyncio.create_task(each) for each in (poller.run(), console.run(), stop.wait())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await console.close()
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()


if __name__ == "__main__":
    raise SystemExit(main())
