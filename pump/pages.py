"""Pages: serves TiDB-Binlog's HTTP paths and fields, and the metrics.

`self` on /status is ours, typed and in snake_case. `isAlive` means a fresh heartbeat, which nodes
do not write about themselves. An impossible request gets the fitting HTTP status, and
TiDB-Binlog's code in the body.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST

from penstock.cluster.node_registry import NodeKind, seems_live
from penstock.errors import NeedsOperator, PenstockError, coded
from penstock.node.http_status import JSON, Answer, BadRequest, HttpStatus
from penstock.node.output import describe, facts_in
from penstock.wire.codec import decode_binlog
from pump.metrics import PumpMetrics

if TYPE_CHECKING:
    from penstock.cluster.node_registry import NodeStatus, Registry
    from pump.components import Components
    from pump.operator import Operator


_OK, _WRONG = 200, 3
"""TiDB-Binlog's codes, in the body."""


class Pages:
    """The content of one Pump's pages."""

    def __init__(self, registry: Registry, operator: Operator, components: Components) -> None:
        self._registry = registry
        self._operator = operator
        self._components = components
        self._metrics = PumpMetrics(components)

    def add_to(self, server: HttpStatus) -> None:
        add = server.add
        add("GET", "/status", self.status, "all Pumps as etcd knows them, and this one in detail")
        add("GET", "/drainers", self.drainers, "all Drainers as etcd knows them")
        add("GET", "/metrics", self.metrics, "for Prometheus")
        about = "the binlog at a commit_ts, or the Prewrite at a start_ts"
        add("GET", "/debug/binlog/{ts}", self.binlog, about, local_only=True)
        add("POST", "/debug/gc/trigger", self.trigger_gc, "purge now what may be purged")
        about = "pause or close this Pump, as penstock ctl pause-pump and offline-pump do"
        add("PUT", "/state/{node_id}/{action}", self.change_state, about)

    async def status(self, names: Mapping[str, str]) -> Answer:
        """Answer with all Pumps; without etcd, report that and describe at least this Pump."""
        problem, pumps = "", []
        try:
            pumps = await asyncio.to_thread(self._registry.list, NodeKind.PUMP)
        except PenstockError as error:
            problem = coded(error)
        page = {
            "status": {pump.node_id: self._listed(pump) for pump in pumps},
            "CommitTS": self._components.now_ts(),
            "Checkpoint": {},
            "ErrMsg": problem,
            "self": facts_in(self._operator.status()),
        }
        return _json(page)

    def _listed(self, node: NodeStatus) -> Any:
        alive = seems_live(node, self._components.now_ts())
        return json.loads(replace(node, is_alive=alive).to_json())

    async def drainers(self, names: Mapping[str, str]) -> Answer:
        drainers = await asyncio.to_thread(self._registry.list, NodeKind.DRAINER)
        return _json([self._listed(drainer) for drainer in drainers])

    async def metrics(self, names: Mapping[str, str]) -> Answer:
        return Answer(await asyncio.to_thread(self._metrics.text), CONTENT_TYPE_LATEST)

    async def binlog(self, names: Mapping[str, str]) -> Answer:
        if not names["ts"].isdecimal() or len(names["ts"]) > 19 or int(names["ts"]) >> 63:
            raise BadRequest(HTTPStatus.BAD_REQUEST, f"{names['ts']!r} is not a timestamp")
        ts, storage = int(names["ts"]), self._components.storage
        parts = []
        for title, read in (("binlog in the stream", storage.get), ("Prewrite", storage.prewrite)):
            payload = await asyncio.to_thread(read, ts)
            if payload is not None:
                text = await asyncio.to_thread(_described, payload)
                parts.append(f"{title}, {len(payload)} bytes\n{text}\n")
        chunk_list = await asyncio.to_thread(storage.stream.chunk_list, ts) if parts else None
        if chunk_list is not None:
            first, count = chunk_list.positions[0], len(chunk_list.positions)
            parts.append(
                f"The Prewrite has {chunk_list.size_bytes} bytes, in {count} chunks"
                f" from segment {first.segment}, offset {first.offset} on. Shown is only what comes"
                " before its row changes.\n"
            )
        if not parts:
            text = f"nothing at {ts}; purged up to {storage.purged_ts}"
            raise BadRequest(HTTPStatus.NOT_FOUND, text)
        return Answer("\n".join(parts))

    async def trigger_gc(self, names: Mapping[str, str]) -> Answer:
        """Purge and answer as TiDB-Binlog does, followed by a sentence about the result."""
        message = await self._operator.trigger_gc()
        word = "gc is working" if "under way" in message else "trigger gc success"
        return Answer(f"{word}\n{message}\n")

    async def change_state(self, names: Mapping[str, str]) -> Answer:
        action, asked = names["action"], names["node_id"]
        verbs = {"pause": self._operator.pause, "close": self._operator.close}
        if action not in verbs:
            about = f"invalid action {action}: there are pause and close"
            return _outcome(about, _WRONG, HTTPStatus.BAD_REQUEST)
        try:
            await verbs[action](asked)
        except NeedsOperator as error:
            is_ours = asked == self._operator.node_id
            status = HTTPStatus.CONFLICT if is_ours else HTTPStatus.NOT_FOUND
            return _outcome(coded(error), _WRONG, status)
        return _outcome(f"apply action {action} success!", _OK)


def _described(payload: bytes) -> str:
    return describe(decode_binlog(payload))


def _outcome(message: str, code: int, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return _json({"message": message, "code": code, "data": None}, status)


def _json(page: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(json.dumps(page, indent=2, ensure_ascii=False) + "\n", JSON, status)
