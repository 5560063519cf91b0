"""Membership: publishes this Drainer's status in etcd, dated by the cluster's time.

`Presence` keeps the entry of this run, a downstream's writer or a standby, in etcd while it runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from penstock.cluster.etcd import EtcdClient, Lease
from penstock.cluster.node_registry import (
    Heartbeats,
    NodeKind,
    NodeState,
    NodeStatus,
    Registry,
    Statuses,
)
from penstock.cluster.records import (
    DrainerRun,
    LastWord,
    LostPump,
    Standby,
    key_of,
    record_text,
    remember_run,
)
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError, Retryable
from penstock.oracle.client import Oracle
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.security.tls import Tls, open_aio_channel
from penstock.ts import LOGICAL_BITS, compose, seconds_between
from penstock.waiting import set_within

log = logging.getLogger(__name__)

_TIME_EVERY_S = 5.0
_TIME_RETRY_S = 0.5
_DUPLICATE_WITHIN_S = 2.0
_RETIRE_EVERY_S = 2.0


class Membership:
    """This Drainer's entry in the registry; its `max_commit_ts` is the saved checkpoint."""

    def __init__(
        self,
        registry: Registry,
        oracle: Oracle,
        *,
        node_id: str,
        host: str,
        checkpoint_ts: Callable[[], int],
        tls: Tls | None = None,
    ) -> None:
        """Prepare; nothing is published before the first `publish`."""
        self.retire_every_s = _RETIRE_EVERY_S
        self.node_id = node_id
        self.host = host
        self.state = NodeState.ONLINE
        self._registry = registry
        self._oracle = oracle
        self._checkpoint_ts = checkpoint_ts
        self._tls = tls
        self._known: tuple[int, float] | None = None
        self.lost: Mapping[str, LostPump] = {}
        self.last_words: Mapping[str, LastWord] = {}
        self.entered: Mapping[str, int] = {}
        self._is_listed = False
        self.heartbeats = Heartbeats()
        """The heartbeats of the Drainer that this Drainer replaced."""

    def now_ts(self) -> int:
        if self._known is None:
            return compose(int(time.time() * 1000), 0)
        ts, at_s = self._known
        return ts + (int((time.monotonic() - at_s) * 1000) << LOGICAL_BITS)

    async def keep_time(self) -> None:
        """Ask the oracle periodically, indefinitely; without it the local clock continues.

        Raises `NeedsOperator` if the checkpoint is ahead of it: no Pump can have got there.
        """
        while True:
            checkpoint_ts = self._checkpoint_ts()
            try:
                ts = await asyncio.to_thread(self._oracle.get_ts)
            except PenstockError as error:
                log.debug("no timestamp for the heartbeat: %s", error)
                await asyncio.sleep(_TIME_RETRY_S)
            else:
                if checkpoint_ts > ts:
                    raise NeedsOperator(
                        f"the checkpoint {checkpoint_ts} is ahead of the cluster, whose newest"
                        f" timestamp is {ts}: what commits in ({ts}, {checkpoint_ts}] would be left"
                        " out",
                        "the checkpoint is damaged or another cluster's, or etcd was put back: put"
                        " the commitTS right up to which the downstream has everything",
                        Code.CHECKPOINT_CLUSTER,
                    )
                self._known = (ts, time.monotonic())
                await asyncio.sleep(_TIME_EVERY_S)

    async def publish_and_list(self) -> Statuses:
        return await asyncio.to_thread(self._publish_and_list, self._status())

    async def list_again(self, pump: NodeStatus) -> None:
        await asyncio.to_thread(self._registry.put, NodeKind.PUMP, pump)

    async def publish(self, state: NodeState) -> None:
        """Enter a state and publish it; if etcd is unavailable, that is only logged."""
        self.state = state
        self._is_listed = True
        try:
            await asyncio.to_thread(self._registry.put, NodeKind.DRAINER, self._status())
        except PenstockError as error:
            log.warning("could not publish the state %s: %s", state, error)
        else:
            log.info("drainer %s is %s", self.node_id, state)

    async def leave(self, state: NodeState, *, is_new: bool) -> None:
        """Publish the last state; remove an entry that `is_new` and has no checkpoint downstream.

        Pumps would otherwise keep all binlogs for it. If a start failed before anything was
        published, the entry stays as it is: it may be another Drainer's.
        """
        if not self._is_listed:
            return
        if not is_new:
            await self.publish(state)
            return
        try:
            await asyncio.to_thread(self._registry.forget, NodeKind.DRAINER, self.node_id)
        except PenstockError as error:
            log.warning(
                "drainer %s has begun nothing and stays listed, and Pumps keep binlogs for it"
                " (start it again; without that: penstock ctl update-drainer --node-id %s --state"
                " offline, which loses nothing as long as its downstream is empty): %s",
                *(self.node_id, self.node_id, error),
            )
        else:
            log.info("drainer %s has begun nothing and is listed no longer", self.node_id)

    async def refuse_duplicate(self) -> None:
        """Raise `NeedsOperator` if a running Drainer at another address has this node id."""
        try:
            other = await asyncio.to_thread(self._registry.get, NodeKind.DRAINER, self.node_id)
        except Retryable:
            return  # The downstream's checkpoint decides who may write.
        if other is not None and other.is_reader and other.state is not NodeState.OFFLINE:
            raise NeedsOperator(
                f"the node id {self.node_id} is that of a program that reads the stream",
                "give this Drainer another --node-id, and remove .node from its data-dir",
                Code.NODE_ID_TAKEN,
            )
        is_stopped = other is not None and other.state in (NodeState.PAUSED, NodeState.OFFLINE)
        if other is None or other.host == self.host or is_stopped:
            return
        async with open_aio_channel(other.host, self._tls) as channel:
            stub: Any = penstock_pb2_grpc.DrainerStub(channel)  # type: ignore[no-untyped-call]
            try:
                found = await stub.Status(penstock_pb2.StatusRequest(), timeout=_DUPLICATE_WITHIN_S)
            except grpc.RpcError:
                return
        if found.node_id == self.node_id:
            raise NeedsOperator(
                f"a Drainer at {other.host} already has the node id {self.node_id}",
                "give this one another --node-id, and remove .node from its data-dir",
                Code.NODE_ID_TAKEN,
            )

    async def refuse_gap(self) -> None:
        """Raise `NeedsOperator` if a Pump left without us, with binlogs after our checkpoint.

        A Pump that is back with its data is pulled from there, and is not a gap.
        """
        while True:
            try:
                gaps = await asyncio.to_thread(self._registry.gaps, self.node_id)
                listed = await asyncio.to_thread(self._registry.list, NodeKind.PUMP)
                break
            except Retryable as error:
                log.error("cannot ask etcd which Pumps left without us, trying again: %s", error)
                await asyncio.sleep(_TIME_RETRY_S)
        checkpoint_ts = self._checkpoint_ts()
        back = {pump.node_id for pump in listed if pump.state is not NodeState.OFFLINE}
        gaps = [gap for gap in gaps if gap.pump not in back]
        missed = [gap for gap in gaps if gap.up_to_ts > checkpoint_ts]
        if missed:
            ranges = ", ".join(
                f"({max(g.after_ts, checkpoint_ts)}, {g.up_to_ts}] of {g.pump}" for g in missed
            )
            raise NeedsOperator(
                f"this Drainer is at checkpoint {checkpoint_ts} and will never get binlogs in"
                f" {ranges}: the Pump went offline without waiting for it",
                "start that Pump again with its data-dir; or restore the downstream from a"
                " newer backup and start it at that commit_ts",
                Code.LOST_BINLOGS_NEEDED,
            )

    async def retire(self, former: str) -> None:
        """Release the binlogs kept for `former`, whose downstream this Drainer now writes.

        Its entry, if it is not alive, would keep Pumps from purging until it comes back. Does
        nothing for an empty name.
        """
        is_done = not former
        while not is_done:
            is_done = await asyncio.to_thread(self._retired, former)
            await asyncio.sleep(self.retire_every_s)

    def _retired(self, former: str) -> bool:
        """Return whether `former` is retired; this Drainer's own entry must hold Pumps first."""
        try:
            own = self._registry.get(NodeKind.DRAINER, self.node_id)
            other = self._registry.get(NodeKind.DRAINER, former)
            if other is None or other.state is NodeState.OFFLINE:
                return True
            if own is None or own.state is not NodeState.ONLINE:
                return False
            self.heartbeats.note([other], self._registry.silent())
            if other.max_commit_ts > own.max_commit_ts or self.heartbeats.is_live(other):
                return False
            self._registry.put(NodeKind.DRAINER, replace(other, state=NodeState.OFFLINE))
        except PenstockError as error:
            log.debug("cannot take %s off the list of Drainers: %s", former, error)
            return False
        log.info("drainer %s is offline: this Drainer has taken its place", former)
        return True

    def clock_is_from(self) -> str:
        if self._known is None:
            return "this machine: the oracle has not answered yet"
        return f"the oracle, {time.monotonic() - self._known[1]:.1f} s ago"

    def lag_s(self) -> float:
        return max(0.0, seconds_between(self._checkpoint_ts(), self.now_ts()))

    def _publish_and_list(self, status: NodeStatus) -> Statuses:
        self._is_listed = True
        self._registry.put(NodeKind.DRAINER, status)
        return self._list()

    def _list(self) -> Statuses:
        statuses = self._registry.list(NodeKind.PUMP)
        # After the list: a Pump withdraws its record before it lists itself as anything but
        # offline.
        self.lost, self.last_words = self._registry.lost(), self._registry.last_words()
        self.entered = self._registry.entered()
        return statuses

    def _status(self) -> NodeStatus:
        return NodeStatus(
            node_id=self.node_id,
            host=self.host,
            state=self.state,
            max_commit_ts=self._checkpoint_ts(),
            update_ts=self.now_ts(),
        )


_TTL_S = 3
_EVERY_S = 0.5


class Presence:
    """An entry under a lease; if it is lost, it is replaced as soon as etcd answers."""

    def __init__(
        self, etcd: EtcdClient, writer: str, current: Callable[[], DrainerRun | Standby]
    ) -> None:
        """`current` returns the entry to be listed now."""
        self._etcd = etcd
        self._writer = writer
        self._current = current
        self._lease: Lease | None = None
        self._listed = ""
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self, stop: asyncio.Event) -> None:
        """List the entry, waiting for etcd unless asked to stop, then keep it listed."""
        listed = asyncio.Event()
        self._task = asyncio.create_task(self._keep(listed), name="presence")
        waits = [asyncio.create_task(event.wait()) for event in (listed, stop)]
        await asyncio.wait((self._task, *waits), return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()

    async def end(self) -> None:
        self._ending.set()
        if self._task is not None:
            await asyncio.wait((self._task,))  # A running call may be about to list it.
        lease, self._lease = self._lease, None
        if lease is not None:
            await asyncio.to_thread(lease.close)

    async def _keep(self, listed: asyncio.Event) -> None:
        is_reported = False
        while not self._ending.is_set():
            try:
                await asyncio.to_thread(self._put)
                listed.set()
                is_reported = False
            except PenstockError as error:
                if not is_reported:
                    is_standby = isinstance(self._current(), Standby)
                    what = "a standby" if is_standby else "its downstream's writer"
                    log.warning("etcd does not list this Drainer as %s: %s", what, error)
                is_reported = True
            await set_within(self._ending, _EVERY_S)

    def _put(self) -> None:
        if self._lease is None or self._lease.is_lost():
            self._lease, self._listed = Lease(self._etcd, _TTL_S), ""
        entry = self._current()
        if isinstance(entry, DrainerRun) and not self._listed:
            remember_run(self._etcd, self._writer, entry)
        text = record_text(entry)
        if text != self._listed:
            self._lease.put(key_of(entry, self._writer), text)
            self._listed = text
