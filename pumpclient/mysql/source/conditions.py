"""What must hold before a source may run: the server is fit for it, and nobody else has it."""

from __future__ import annotations

import logging
import os
import socket
import threading

from penstock.errors import NeedsOperator, Retryable
from pumpclient.mysql.gtid import Flavor
from pumpclient.mysql.protocol.address import ServerAddress
from pumpclient.mysql.protocol.prechecks import check_server
from pumpclient.mysql.protocol.server import identify
from pumpclient.mysql.source.state.checkpoint import Checkpoint, SourceStore, SourceTaken

log = logging.getLogger(__name__)

_WAIT_S = 0.5


def checked(address: ServerAddress) -> Flavor:
    """Return the server's flavor; raise `NeedsOperator` for what keeps us from replicating."""
    with address.session() as connection:
        for check in check_server(connection):
            if check.passed:
                continue
            told = f"{check.name} is {check.found}"
            if check.required:
                raise NeedsOperator(f"{address}: {told}", hint=check.hint)
            log.warning("%s: %s: %s", address, told, check.hint)
        return identify(connection).flavor


def owned(store: SourceStore, stopped: threading.Event) -> None:
    """Take the source over, waiting for whoever has it; raise `Retryable` when stopped before."""
    holder = f"{socket.gethostname()}-{os.getpid()}"
    while True:
        try:
            store.own(holder)
            return
        except Retryable as error:
            log.warning("%s", error)
            if stopped.wait(_WAIT_S):
                raise


def owned_again(store: SourceStore, stopped: threading.Event) -> None:
    """Take a source again that was lost; raise `SourceTaken` when another process had it."""
    while not stopped.is_set():
        try:
            store.own_again()
        except SourceTaken:
            raise
        except Retryable as error:
            log.warning("%s", error)
            stopped.wait(_WAIT_S)
        else:
            log.warning(
                "this process, or etcd, was away for longer than lease-s; no other process had the"
                " source meanwhile, so this one continues"
            )
            return


def saved(store: SourceStore, stopped: threading.Event, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint before anything runs; take a source that was lost meanwhile again."""
    while True:
        try:
            return store.save(checkpoint)
        except Retryable:
            if stopped.is_set() or not store.is_lost():
                raise
        owned_again(store, stopped)


def loaded(store: SourceStore, stopped: threading.Event) -> Checkpoint | None:
    """Return the checkpoint, asking until etcd answers; None when stopped before."""
    while True:
        try:
            return store.load()
        except Retryable as error:
            log.warning("%s", error)
            if stopped.wait(_WAIT_S):
                return None
