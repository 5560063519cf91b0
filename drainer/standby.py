"""Standby: waits, fully started, for another Drainer of the same downstream to end.

    checkpoint in my downstream ── names run W ──> is W alive? ──no──> continue as active
             ^                                        │ yes
             └────── check again, twice a second ─────┘      Spark warm, all settings checked

The downstream's checkpoint tells whether two Drainers have the same downstream; URLs do not,
because two URLs may name one server and one URL two. A standby is in no Pump's list, and therefore
blocks neither the merge nor the Pumps' retention.

`ActiveWatch`, which is pure, decides when a standby may take over, from its observations:

    the row in my downstream names run W      etcd lists W?     W's process answers?
    ────────────────────────────────────      ─────────────     ────────────────────
    yes, and it moves with W's checkpoint     yes               yes, or no answer   wait
                                              yes               refused, twice      take over
                                              no                yes                 wait
                                              no                refused             take over
                                              no                no answer, twice    take over
    it stands still while W's moves on        yes               yes                 a copy: continue

The checkpoint's fence, and not the watch, keeps two Drainers from writing at a time
(`drainer.sinks`). The watch only keeps the standby from replacing a healthy Drainer, and lets it
act quickly after a failure.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import grpc
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from drainer.cluster.membership import Presence
from drainer.cluster.server import Front
from drainer.components import Components, StoppedEarly, unless_stopped
from drainer.facts import StandbyFacts
from drainer.sinks.checkpoint import Checkpoint
from penstock.cluster import records
from penstock.cluster.node_registry import NodeKind, NodeState, Registry
from penstock.cluster.records import DrainerRun, Standby
from penstock.codes import Code
from penstock.errors import NeedsOperator, PenstockError
from penstock.node.http_status import JSON, HttpStatus
from penstock.node.http_status import Answer as Page
from penstock.node.logs import RECENT
from penstock.node.output import reply_of
from penstock.pb import penstock_pb2, penstock_pb2_grpc
from penstock.security.tls import Tls, open_aio_channel
from penstock.ts import compose

log = logging.getLogger(__name__)

_LOOK_S = 0.5
_ANSWER_S = 1.0
_HANDED_OVER_S = 30.0
"""How long a Drainer that handed over waits for a successor before it continues itself."""


_NOBODY_YET = DrainerRun(node_id="", host="")
"""The writer, while a Drainer that handed over waits for its successor."""


class EndedAsStandby(Exception):
    """An operator's command ended this standby."""


class StandbyRole:
    """A standby's answers to requests."""

    def __init__(
        self, front: Front, components: Components, active: DrainerRun, writer: str
    ) -> None:
        self._front = front
        self._components = components
        self._began_s = time.monotonic()
        self.active = active
        self.writer = writer
        self.stored_ts = 0
        self.waits_for = "a standby to take over"
        self.problem = ""
        if active is not _NOBODY_YET:
            self.waits_for = f"the end of drainer {active.node_id} at {active.host}"
        self.ended = asyncio.Event()
        self.watch = ActiveWatch()

    def entry(self) -> Standby:
        return Standby(
            node_id=self._front.node_id,
            host=self._front.address,
            active=self.active.node_id,
            writer=self.writer,
            checkpoint_ts=self.stored_ts,
            update_ts=compose(int(time.time() * 1000), 0),
            tasks=self._components.dispatcher.tasks,
        )

    def status(self) -> penstock_pb2.StatusReply:
        facts = StandbyFacts(
            uptime_s=round(time.monotonic() - self._began_s),
            status_pages=self._front.pages.url or "none",
            standby_for=self.active.node_id,
            standby_for_address=self.active.host,
            waits_for=self.waits_for,
            spark_tasks=self._components.dispatcher.tasks,
            spark_tasks_lost=self._components.dispatcher.lost_tasks,
            problems=RECENT.facts() or None,
        )
        return reply_of(
            facts,
            node_id=self._front.node_id,
            state=str(NodeState.STANDBY),
            max_commit_ts=self.stored_ts,
        )

    async def refresh(self) -> None:
        """Do nothing: a standby merges nothing."""

    def pause(self, asked: str) -> None:
        self._check(asked)
        self.ended.set()

    def close(self, asked: str) -> None:
        """End the process: a standby holds nothing that it must give back."""
        self.pause(asked)

    async def hand_over(self, asked: str) -> Sequence[str]:
        self._check(asked)
        raise NeedsOperator(
            f"drainer {asked} is a standby of {self.active.node_id}",
            f"penstock ctl hand-over --node-id {self.active.node_id}",
            Code.NODE_STATE,
        )

    def _check(self, asked: str) -> None:
        if asked != self._front.node_id:
            raise NeedsOperator(
                f"this is drainer {self._front.node_id}, not {asked}",
                "the address is stale: list the nodes again",
                Code.NODE_OTHER,
            )

    def add_pages(self, pages: HttpStatus) -> None:
        async def status(names: Any) -> Page:
            own = self.status()
            shown = {"nodeId": own.node_id, "state": own.state, **dict(sorted(own.details.items()))}
            page = {"LastTS": own.max_commit_ts, "Synced": False, "self": shown}
            return Page(json.dumps(page, indent=2) + "\n", JSON)

        async def metrics(names: Any) -> Page:
            registry = CollectorRegistry(auto_describe=False)
            state = Gauge(
                "penstock_drainer_state", "1 for the state it is in.", ["state"], registry=registry
            )
            for each in NodeState:
                state.labels(each.value).set(each is NodeState.STANDBY)
            tasks = Gauge("penstock_drainer_spark_tasks", "Spark tasks ready.", registry=registry)
            tasks.set(self._components.dispatcher.tasks)
            return Page(generate_latest(registry), CONTENT_TYPE_LATEST)

        pages.problem = lambda: self.problem
        pages.add("GET", "/status", status, "for whom it stands by")
        pages.add("GET", "/metrics", metrics, "for Prometheus")

    async def is_free(self, stop: asyncio.Event) -> bool:
        """Return True if the run has ended, False if another run writes the downstream."""
        active, components = self.active, self._components
        log.warning(
            "drainer %s at %s writes this downstream: this Drainer stands by to take its place",
            active.node_id, active.host,
        )  # fmt: skip
        await self._front.serve(self)
        presence = Presence(components.etcd, self.writer, self.entry)
        try:
            await presence.begin(stop)
            while True:
                published_ts, is_listed = await self._asked_etcd()
                answer = await ask(active.host, self.writer, components.security.tls)
                stored = await _stored(components, stop)
                if stored is None or stored.writer != self.writer:
                    return False
                self.stored_ts = stored.commit_ts
                self.problem = "etcd does not answer" if is_listed is None else ""
                if is_listed is not None:
                    look = Look(
                        at_s=time.monotonic(),
                        is_listed=is_listed,
                        answer=answer,
                        published_ts=published_ts,
                        stored_ts=stored.commit_ts,
                    )
                    if self._is_decided(self.watch.saw(look)):
                        return True
                if self.ended.is_set():
                    raise EndedAsStandby
                await _pause(stop, self.ended)
        finally:
            await presence.end()

    def _is_decided(self, verdict: Verdict) -> bool:
        active = self.active
        if verdict is Verdict.TAKE_OVER:
            log.warning("drainer %s at %s writes no more: taking over", active.node_id, active.host)
        if verdict is Verdict.CONTINUE:
            log.warning(
                "the downstream is a copy of the one that drainer %s writes, and stands still while"
                " that one moves on: this Drainer continues with it", active.node_id,
            )  # fmt: skip
        return verdict is not Verdict.WAIT

    async def _asked_etcd(self) -> tuple[int, bool | None]:
        """Return the active Drainer's published checkpoint, and whether its run is listed.

        Returns None while etcd does not answer; then no standby takes over.
        """
        registry = Registry(self._components.etcd)

        def ask_etcd() -> tuple[int, bool]:
            own = registry.get(NodeKind.DRAINER, self._front.node_id)
            entry = registry.get(NodeKind.DRAINER, self.active.node_id)
            is_held = own is not None and own.state is not NodeState.OFFLINE
            is_active = entry is not None and entry.state is NodeState.ONLINE
            if own is not None and is_held and is_active and self.watch.is_ours:
                # Release the Pumps: the active Drainer retains what the former run needs.
                registry.put(NodeKind.DRAINER, replace(own, state=NodeState.OFFLINE))
                log.info("the entry that this Drainer had as the active one is offline now")
            is_listed = records.run_named(self._components.etcd, self.writer) is not None
            return (entry.max_commit_ts if entry else 0), is_listed

        try:
            return await asyncio.to_thread(ask_etcd)
        except PenstockError as error:
            log.debug("etcd does not say who is active: %s", error)
            return 0, None


async def stand_by(
    components: Components, front: Front, stop: asyncio.Event, *, handed_over: str = ""
) -> str:
    """Return once no other Drainer writes the downstream.

    The result is the node id of the replaced Drainer, if it was seen to write this downstream.
    `handed_over` is the run of this Drainer that made room; another Drainer has precedence over it.
    Raises `StoppedEarly` when asked to stop, `EndedAsStandby` after an operator's command.
    """
    former = ""
    deadline_s = time.monotonic() + _HANDED_OVER_S
    if handed_over:
        # The successor asks whether this run still writes.
        await front.serve(StandbyRole(front, components, _NOBODY_YET, ""))
    while True:
        stored = await _stored(components, stop)
        if handed_over and stored is not None and stored.writer == handed_over:
            if time.monotonic() > deadline_s:
                log.warning(
                    "no one took over within %.0f s: this Drainer continues", _HANDED_OVER_S
                )
                return former
            await _pause(stop)
            continue
        active = await _active(components, front, stored)
        if stored is None or active is None:
            return former
        role = StandbyRole(front, components, active, stored.writer)
        is_free = await role.is_free(stop)
        former = active.node_id if role.watch.is_ours else ""
        if is_free:
            return former


async def _stored(components: Components, stop: asyncio.Event) -> Checkpoint | None:
    return await unless_stopped(components.thread.call(components.sink.load_checkpoint), stop)


async def _active(
    components: Components, front: Front, stored: Checkpoint | None
) -> DrainerRun | None:
    """Return the other run that writes the downstream, or None if none can be found."""
    if stored is None or not stored.writer:
        return None
    try:
        found = await asyncio.to_thread(records.run_named, components.etcd, stored.writer)
        if found is not None:
            # Our own name is a previous run, which the data-dir's lock proves to have ended.
            return None if found.node_id == front.node_id else found
        # A live run may just have lost its lease during an outage of etcd.
        listed = await asyncio.to_thread(Registry(components.etcd).list, NodeKind.DRAINER)
    except PenstockError as error:
        log.warning("etcd does not say whether another Drainer is active: %s", error)
        return None
    # All of them, however old their heartbeats look: clocks may jump.
    others = [
        n
        for n in listed
        if n.state not in (NodeState.PAUSED, NodeState.OFFLINE)
        and n.node_id != front.node_id
        and not n.is_reader
    ]
    asked = await asyncio.gather(
        *(ask(n.host, stored.writer, components.security.tls) for n in others)
    )
    for node, answer in zip(others, asked, strict=True):
        if answer is RunAnswer.IT_IS:
            return DrainerRun(node_id=node.node_id, host=node.host)
    return None


async def ask(address: str, writer: str, tls: Tls | None) -> RunAnswer:
    async with open_aio_channel(address, tls) as channel:
        stub: Any = penstock_pb2_grpc.DrainerStub(channel)  # type: ignore[no-untyped-call]
        try:
            reply = await stub.Status(penstock_pb2.StatusRequest(), timeout=_ANSWER_S)
        except grpc.RpcError as error:
            refused = "Connection refused" in (error.details() or "")
            return RunAnswer.REFUSED if refused else RunAnswer.NONE
        return RunAnswer.IT_IS if reply.details.get("writer") == writer else RunAnswer.REFUSED


async def _pause(stop: asyncio.Event, *others: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in (stop, *others)]
    await asyncio.wait(waits, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()
    if stop.is_set():
        raise StoppedEarly


_LOOKS = 2
"""So many consecutive observations must agree before an uncertain one is believed."""
_COPY_LOOKS = 4
_COPY_S = 6.0
"""An idle Drainer saves its checkpoint every three seconds, and publishes it within one more."""


class RunAnswer(Enum):
    """The active Drainer's answer about its run."""

    IT_IS = "it is"
    REFUSED = "refused"
    """Nothing listens there, or another run does: this run has ended."""
    NONE = "none"


class Verdict(Enum):
    """A standby's next action."""

    WAIT = "wait"
    TAKE_OVER = "take over"
    CONTINUE = "continue"
    """The downstream is a copy of the one that the other Drainer writes, so nothing writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One observation; `published_ts` was read before `stored_ts`."""

    at_s: float
    is_listed: bool
    answer: RunAnswer
    published_ts: int
    """The checkpoint in the active Drainer's entry; it is stored before it is published."""
    stored_ts: int
    """The checkpoint in our downstream."""


@dataclass(slots=True)
class ActiveWatch:
    """The observations of one run since it was first found in the downstream."""

    is_ours: bool = False
    """True once the row was seen to move: that run writes the very downstream that we read."""
    _first_ts: int | None = None
    _has_answered: bool = False
    _gone: int = 0
    _behind: list[float] = field(default_factory=list)

    def saw(self, look: Look) -> Verdict:
        if self._first_ts is None:
            self._first_ts = look.stored_ts
        if look.stored_ts > self._first_ts:
            self.is_ours = True
        self._has_answered |= look.answer is RunAnswer.IT_IS
        if self._is_gone(look):
            return Verdict.TAKE_OVER
        if self._is_copy(look):
            return Verdict.CONTINUE
        return Verdict.WAIT

    def _is_gone(self, look: Look) -> bool:
        if look.answer is RunAnswer.IT_IS:
            self._gone = 0
            return False
        if look.answer is RunAnswer.REFUSED:
            # An address that never answered may be unreachable from here.
            seems_gone = self._has_answered or not look.is_listed
        else:
            seems_gone = not look.is_listed
        self._gone = self._gone + 1 if seems_gone else 0
        sure = look.answer is RunAnswer.REFUSED and not look.is_listed
        return self._gone >= (1 if sure else _LOOKS)

    def _is_copy(self, look: Look) -> bool:
        if (
            self.is_ours
            or look.answer is not RunAnswer.IT_IS
            or look.published_ts <= look.stored_ts
        ):
            self._behind.clear()
            return False
        self._behind.append(look.at_s)
        return len(self._behind) >= _COPY_LOOKS and look.at_s - self._behind[0] >= _COPY_S
