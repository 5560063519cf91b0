"""Registration: a reader's entry in etcd under its name, or none.

/tidb-binlog/v1/drainers/<name>   state `reading` while it runs, `paused` after it has closed

`max_commit_ts` there is the program's acknowledged position: Pumps purge nothing after it, and a
Pump that leaves waits for it, as for a Drainer's checkpoint. The host is reader@MACHINE:0, on which
nothing listens, and which identifies such an entry (`NodeStatus.is_reader`). The label names the
run. If two readers take a name at the same moment, the first finds the second's label, and stops.
"""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from drainer.cluster.membership import Membership
from penstock.cluster.node_registry import (
    READER,
    NodeKind,
    NodeState,
    NodeStatus,
    Registry,
    Statuses,
)
from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.oracle.client import Oracle

HEARTBEAT_S: Final = 1.0
WATCHED_S: Final = 3.5
"""A running reader shows that it runs within so many seconds."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOOK_S: Final = 0.1


def host_of_reader() -> str:
    return f"{READER}{socket.gethostname()}:0"


class Named(Membership):
    """A reader that is listed."""

    def __init__(
        self, registry: Registry, oracle: Oracle, name: str, acknowledged_ts: Callable[[], int]
    ) -> None:
        super().__init__(
            registry, oracle, node_id=name, host=host_of_reader(), checkpoint_ts=acknowledged_ts
        )
        self.state = NodeState.READING
        self._label = {"run": secrets.token_hex(8)}
        self._listed_s = float("-inf")

    def _status(self) -> NodeStatus:
        return replace(super()._status(), label=self._label)

    def _publish_and_list(self, status: NodeStatus) -> Statuses:
        """List the Pumps; publish only occasionally, because nothing needs this status to be fresh.

        Raises `NeedsOperator` if another reader has taken the name since.
        """
        now_s = time.monotonic()
        if now_s - self._listed_s < HEARTBEAT_S / 2:
            return self._list()
        if self._is_listed:
            found = self._registry.get(NodeKind.DRAINER, self.node_id)
            if found is not None and found.is_reader and found.label != self._label:
                self._is_listed = False
                raise _taken(found)
        self._listed_s = now_s
        return super()._publish_and_list(status)


class Nameless(Membership):
    """A reader without an entry: it lists the Pumps, and writes nothing to etcd."""

    def __init__(
        self, registry: Registry, oracle: Oracle, name: str, acknowledged_ts: Callable[[], int]
    ) -> None:
        super().__init__(
            registry, oracle, node_id=name, host=host_of_reader(), checkpoint_ts=acknowledged_ts
        )

    def _publish_and_list(self, status: NodeStatus) -> Statuses:
        return self._list()

    async def list_again(self, pump: NodeStatus) -> None:
        """Leave etcd unchanged; the reader waits for the Pump anyway."""

    async def publish(self, state: NodeState) -> None: ...


def check_name(name: str) -> None:
    """Raise `NeedsOperator` for an invalid name."""
    if not _NAME.fullmatch(name):
        raise NeedsOperator(
            f"{name!r} is no name for a reader",
            "up to 100 letters, digits, dots, dashes and underscores, the first one no mark",
            Code.READER_MISUSED,
        )


def take_name(registry: Registry, name: str, *, watched_s: float = WATCHED_S) -> bool:
    """Return whether a reader of that name has existed before; blocking.

    Raises `NeedsOperator` if the name is a Drainer's, or a running reader's.

    A reader that has not reported its stop may have been killed: it is watched for `watched_s`,
    unless a Pump has already found it silent. May be Retryable.
    """
    found = registry.get(NodeKind.DRAINER, name)
    if found is None:
        return False
    if not found.is_reader:
        raise NeedsOperator(
            f"{name} is the name of the Drainer at {found.host}",
            "give the reader another",
            Code.NODE_ID_TAKEN,
        )
    if found.state is not NodeState.READING or registry.silent().get(name) == found.update_ts:
        return True
    end_s = time.monotonic() + watched_s
    while time.monotonic() < end_s:
        time.sleep(_LOOK_S)
        last = registry.get(NodeKind.DRAINER, name)
        if last is None or last.state is not NodeState.READING:
            return True
        if last.update_ts != found.update_ts:
            raise _taken(last)
    return True


def _taken(other: NodeStatus) -> NeedsOperator:
    machine = other.host.removeprefix(READER).rpartition(":")[0]
    return NeedsOperator(
        f"a reader on {machine} runs under the name {other.node_id}",
        "stop it, or give this one another name",
        Code.NODE_ID_TAKEN,
    )
